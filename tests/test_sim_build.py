"""The build: cache, concurrency, lint. One stub structure serves all tests of the engine."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from support_engine import stub_binary, stub_verilog

from sim import build as builder
from sim import toolchain


def test_second_build_makes_nothing(tmp_path):
    phases = []
    binary = stub_binary(lambda name, seconds: phases.append(name))
    assert binary.exists()
    assert phases == []


def test_function_is_called_only_when_the_binary_is_missing(monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr(builder, "_verilate", lambda *a: a[3].mkdir(exist_ok=True))
    monkeypatch.setattr(builder, "_compile", lambda *a: [])
    monkeypatch.setattr(builder, "run", lambda command, **k: "")

    def verilog():
        made.append("convert")
        return "module node; endmodule"

    for _ in range(2):
        builder.build("s", verilog, cache=tmp_path)
    assert made.count("convert") == 1


def test_concurrent_builders_build_once(monkeypatch, tmp_path):
    made = []

    def make(into):
        made.append(into)
        (into / "file").write_text("whole")

    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: builder._once(tmp_path, "one", make), range(8)))
    assert len(made) == 1
    assert {(folder / "file").read_text() for folder in folders} == {"whole"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "one.lock"]


def test_failed_build_leaves_nothing_behind(tmp_path):
    def make(into):
        (into / "file").write_text("half")
        raise toolchain.BuildError("no")

    with pytest.raises(toolchain.BuildError):
        builder._once(tmp_path, "one", make)
    assert [path.name for path in tmp_path.iterdir()] == ["one.lock"]


def test_hash_covers_engine_and_verilog(monkeypatch, tmp_path):
    names = set()

    def record(cache, name, make):
        names.add(name)
        return cache / name

    monkeypatch.setattr(builder, "_once", record)
    builder.build("s", "module node; endmodule", cache=tmp_path)
    builder.build("s", "module node; wire a; endmodule", cache=tmp_path)
    builder.build("t", "module node; endmodule", cache=tmp_path)
    monkeypatch.setattr(builder, "_engine_sources", list)
    builder.build("s", "module node; endmodule", cache=tmp_path)
    assert len(names) == 4


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("5.49", (5, 49)),
        ("5.036 2025-04-27 rev v5.036", (5, 36)),
        ("none", (0, 0)),
    ],
)
def test_version_is_read_from_any_text(text, version):
    assert toolchain.parse_version(text) == version


def test_variables_that_leak_into_compilers_are_removed(monkeypatch):
    monkeypatch.setenv("CXXFLAGS", "-broken")
    monkeypatch.setenv("LIBS", "-lbroken")
    assert not {"CXXFLAGS", "LIBS"} & toolchain._environment().keys()


def test_failing_tool_says_why():
    with pytest.raises(toolchain.BuildError, match="No such file"):
        toolchain.run(["g++", "-c", "no-such-file.cpp"])


def test_lint_accepts_the_stub_and_names_what_is_wrong():
    builder.lint(stub_verilog())
    broken = stub_verilog().replace(
        "endmodule", "reg latch; always @* if (clk) latch = 1'b1; endmodule", 1
    )
    with pytest.raises(toolchain.BuildError, match="LATCH"):
        builder.lint(broken)
