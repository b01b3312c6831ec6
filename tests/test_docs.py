"""Docs agree with the code: generated pages, the table of blocks, links between pages."""

import importlib
import re
from pathlib import Path

import pytest
from amaranth.lib.wiring import Flow

from hw.config import Structure
from hw.formats import mlx5
from hw.formats.layout import Codec
from sim import docs
from sim.preset import load_preset, preset_names

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("scenarios/*.md")])


@pytest.mark.parametrize("path", docs.render(), ids=lambda path: path.name)
def test_generated_page_is_not_stale(path):
    assert path.read_text() == docs.render()[path], "stale: make docs"


def test_check_names_what_is_stale_and_writes_nothing(tmp_path, monkeypatch, capsys):
    fresh, stale = tmp_path / "fresh.md", tmp_path / "stale.md"
    fresh.write_text("new")
    stale.write_text("old")
    monkeypatch.setattr(docs, "render", lambda: {fresh: "new", stale: "new"})
    monkeypatch.setattr(docs, "readme_text", lambda: "tables")
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    assert docs.main(["--check"]) == 1
    assert capsys.readouterr().err == "docs/stale.md is stale: make docs\n"
    assert stale.read_text() == "old"
    assert docs.main([]) == 0
    assert stale.read_text() == "new"
    assert (tmp_path / "README.md").read_text() == "tables"
    assert docs.main(["--check"]) == 0


def test_table_of_a_network_format_places_what_its_codec_packs():
    """Each row of the table, read by byte and bits, finds the value that was packed."""
    text = docs.formats_text().partition("### Ctrl\n")[2].partition("\n### ")[0]
    row = r"^\| (\d+)(?: to (\d+))? \| (\d+)(?::(\d+))? \| (\w+) \| (\d+) \|"
    rows = re.findall(row, text, re.M)
    assert [row[4] for row in rows][:3] == ["opmod", "wqe_index", "opcode"]
    for first, last, high, low, name, width in rows:
        value = (1 << int(width)) - 1
        raw = Codec(mlx5.Ctrl).pack(**{name: value})
        word = int.from_bytes(raw[int(first) : int(last or first) + 1], "big")
        assert word == value << int(low or high), name
        assert not any(raw[: int(first)]) and not any(raw[int(last or first) + 1 :])


def test_comments_are_found_for_names_and_members():
    told = docs.comments(mlx5)
    assert told["BLOCK_BYTES"] == "One WQE basic block."
    assert told["Ctrl.ds"] == "Length of the WQE in octowords."
    assert "Ctrl.qpn" not in told


def test_every_exported_format_has_its_table():
    text = docs.formats_text()
    for name in ("Ctrl", "Cqe", "Doorbell", "MemoryHeader", "Bth", "Op", "SqContext", "Stall"):
        assert f"### {name}\n" in text


@pytest.mark.parametrize("preset", preset_names())
def test_every_constant_has_a_row(preset):
    text = docs.assumptions_text()
    for section, table in load_preset(preset).constants.items():
        for key in table:
            assert f"| `{section}.{key}` |" in text


def test_default_without_a_reason_and_reason_without_a_default_are_refused(tmp_path, monkeypatch):
    kept = (ROOT / "docs" / "assumptions.toml").read_text()
    monkeypatch.setattr(docs, "DOCS", tmp_path)
    for old, new in (('"wire.hops"', '"wire.hoops"'), ('[choice."wire.hops"]', "[other]")):
        (tmp_path / "assumptions.toml").write_text(kept.replace(old, new))
        with pytest.raises(ValueError, match=r"differ in .*wire\.ho"):
            docs.assumptions_text()


def test_key_without_a_unit_in_its_name_is_refused():
    with pytest.raises(ValueError, match="does not end with a unit"):
        docs._unit("latency")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_of_a_page_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target
    for target in re.findall(r"`((?:hw|sim|tests|docs|scenarios)/[\w./-]+)`", text):
        assert (ROOT / target).exists(), target


#: Arguments of a block's constructor by their name in the table.
ARGUMENTS = {
    "sources": 3,
    "structure": Structure(qps=2),
    "number": 0,
    "slots": 4,
    "depth": 4,
    "lines": 128,
    "tags": 4,
    "tag_base": 0,
    "clients": 2,
    "keys": 16,
    "ports": 2,
}
#: Members that the page explains once for all blocks.
COMMON = {"now", "timing", "quiet", "due"}


def block_rows():
    text = (ROOT / "docs" / "architecture.md").read_text()
    row = r"^\| (?:\S )?`(\w+)\.(\w+)\(([\w, ]*)\)`[^|]*\| (.*) \| (.*) \|$"
    rows = re.findall(row, text, re.M)
    # (Without any, the test below would be skipped.)
    assert rows, "no row of the table of blocks is understood"
    return rows


def names_in(cell):
    """Members that a cell of the table names, as patterns."""
    cell = re.sub(r"\([^)]*`[^)]*\)", "", cell)
    return {name.replace("*", r"\w+") for name in re.findall(r"`([\w*]+)[`:]", cell)}


@pytest.mark.parametrize("row", block_rows(), ids=lambda row: row[1])
def test_table_of_blocks_names_the_members(row):
    file, name, arguments, ins, outs = row
    block = getattr(importlib.import_module(f"hw.{file}"), name)
    given = {"port": importlib.import_module("hw.formats.tlp").Port.GPU, **ARGUMENTS}
    wanted = [word for word in arguments.split(", ") if word]
    keywords = {word: given[word] for word in wanted} if "lines" in wanted else {}
    made = block(**keywords) if keywords else block(*(given[word] for word in wanted))
    members = {key: member.flow for key, member in made.signature.members.items()}
    # A context port is the reader's: its address goes out, but what it brings comes in.
    contexts = set(re.findall(r"context `(\w+)", ins))
    for cell, flow in ((ins, Flow.In), (outs, Flow.Out)):
        for pattern in names_in(cell):
            found = [key for key in members if re.fullmatch(pattern, key)]
            assert found, f"{name} has no {pattern}"
            assert all(members[key] is flow or key in contexts for key in found), pattern
    patterns = names_in(ins) | names_in(outs) | COMMON
    missing = {key for key in members if not any(re.fullmatch(p, key) for p in patterns)}
    assert not missing


def test_every_file_of_hw_is_on_the_page_of_blocks():
    text = (ROOT / "docs" / "architecture.md").read_text()
    for path in (ROOT / "hw").glob("*.py"):
        if path.stem not in ("__init__", "elaborate"):
            assert f"`{path.stem}" in text or f"hw/{path.name}" in text, path.stem
