"""Generated docs are those of the code, and links between docs lead somewhere."""

import re
from pathlib import Path

import pytest

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
    assert docs.main(["--check"]) == 1
    assert capsys.readouterr().err == "docs/stale.md is stale: make docs\n"
    assert stale.read_text() == "old"
    assert docs.main([]) == 0
    assert stale.read_text() == "new"
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
