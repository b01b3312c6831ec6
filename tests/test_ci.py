"""What continuous integration runs exists, and needs what the README says."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from sim import regress

ROOT = Path(__file__).resolve().parent.parent
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
SCRIPT = ROOT / ".ci" / "run"


# The part of YAML that the workflow is written in ------------------------------------------------


class NotPlain(Exception):
    """A line that is no part of the subset: mappings, lists, plain and quoted texts, `|`."""


def yaml(text) -> Any:
    """A document of the subset, as dicts, lists and texts; None: nothing."""
    lines = [
        (len(line) - len(line.lstrip()), line.strip(), number)
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    value, rest = _block(lines, 0)
    if rest:
        raise NotPlain(f"line {rest[0][2]}: {rest[0][1]}")
    return value


def _block(lines, indent) -> Any:
    """The value that starts with the first line, and the lines behind it."""
    if not lines or lines[0][0] < indent:
        return None, lines
    indent = lines[0][0]
    entries = [] if lines[0][1].startswith("- ") else {}
    while lines and lines[0][0] == indent:
        _, line, number = lines[0]
        if isinstance(entries, list):
            if not line.startswith("- "):
                raise NotPlain(f"line {number}: {line}")
            # What follows the dash stands two further in.
            value, lines = _block([(indent + 2, line[2:].strip(), number), *lines[1:]], indent + 2)
            entries.append(value)
            continue
        found = re.fullmatch(r"([\w-]+):(?: (.+))?", line)
        if not found:
            if entries or re.search(r": |:$|^[\[{&*!>%@`]", line):
                raise NotPlain(f"line {number}: {line}")
            return line, lines[1:]
        key, inline = found.groups()
        if key in entries:
            raise NotPlain(f"line {number}: {key} twice")
        if inline == "|":
            inside = []
            lines = lines[1:]
            while lines and lines[0][0] > indent:
                inside.append(lines[0][1])
                lines = lines[1:]
            entries[key] = "\n".join(inside)
        elif inline is None:
            entries[key], lines = _block(lines[1:], indent + 1)
        else:
            entries[key], lines = _scalar(inline, number), lines[1:]
    return entries, lines


def _scalar(text, number):
    if quoted := re.fullmatch(r'"([^"\\]*)"', text):
        return quoted[1]
    if re.search(r": | #|^[\[{&*!>%@`\"']", text):
        raise NotPlain(f"line {number}: {text}")
    return text


@pytest.mark.parametrize(
    "text",
    [
        "a: [1]",
        "a: &x 1",
        "a:\n  - b\n c: d",
        "- a\nb: c",
        "a: 1\na: 2",
        "a: 'b'",
        "a: b: c",
        "a b",
    ],
)
def test_what_is_not_plain_is_refused(text):
    with pytest.raises(NotPlain):
        assert yaml(text + "\nz") is None


def test_plain_documents_are_read():
    text = 'a:\n  b: "1 2"\n  # told\n  c:\nd:\n  - e: f\n    g: |\n      h\n      i\n  - j\n'
    assert yaml(text) == {"a": {"b": "1 2", "c": None}, "d": [{"e": "f", "g": "h\ni"}, "j"]}


# What is in it ----------------------------------------------------------------------------------


def steps():
    return [step for job in yaml(WORKFLOW.read_text())["jobs"].values() for step in job["steps"]]


def commands():
    return [step["run"] for step in steps() if "run" in step]


def packages(text):
    """Lists of packages that a text installs, each sorted."""
    return [
        sorted(found.split())
        for found in re.findall(r"apt(?:-get)? install (?:-y )?([\w\d+ -]+)", text)
    ]


def verbs(text):
    """Verbs of make that a text uses."""
    return set(re.findall(r"^make (?:-s )?([a-z]+)", text, re.M))


def test_workflow_and_container_do_what_the_script_does():
    assert os.access(SCRIPT, os.X_OK)
    assert ".ci/run" in commands()
    assert 'CMD [".ci/run"]' in (ROOT / "Containerfile").read_text().splitlines()
    assert verbs(SCRIPT.read_text()) == {"test", "regress"}


def test_verbs_exist():
    rules = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    used = verbs("\n".join(commands())) | verbs(SCRIPT.read_text())
    assert used - rules == set() and "campaign" in used


def test_packages_are_those_of_the_readme():
    (wanted,) = packages((ROOT / "README.md").read_text())
    for file in (WORKFLOW, ROOT / "Containerfile"):
        found = packages(file.read_text())
        assert found and all(names == wanted for names in found), file


def test_reports_that_are_kept_are_those_that_are_written():
    defaults = regress.Options()
    written = {str(defaults.out / name) for name in (regress.JUNIT, regress.SUMMARY)}
    (kept,) = (step["with"]["path"].split() for step in steps() if "upload" in step.get("uses", ""))
    (options,) = {step["env"]["PYTEST_ADDOPTS"] for step in steps() if step.get("run") == ".ci/run"}
    assert set(kept) == written | {options.removeprefix("--junitxml=")}
    shown = [run for run in commands() if "GITHUB_STEP_SUMMARY" in run]
    assert any(str(defaults.out / regress.SUMMARY) in run for run in shown)


def test_cache_depends_on_files_that_exist():
    (key,) = (step["with"]["key"] for step in steps() if "cache" in step.get("uses", ""))
    patterns = re.findall(r"'([^']+)'", key)
    assert patterns and all(list(ROOT.glob(pattern)) for pattern in patterns)


def test_container_takes_nothing_along_that_is_built():
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".venv", "build", "runs"} <= set(ignored)
