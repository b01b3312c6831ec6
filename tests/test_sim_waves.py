"""Waveforms without a simulation: what may be asked, what signals are called, what viewers get."""

import subprocess
from xml.etree import ElementTree

import pytest
from support_engine import stub_verilog
from support_states import Machine

from hw.config import Structure
from hw.elaborate import convert, plain_names
from hw.node import Node
from sim import build as builder
from sim import toolchain
from sim.schema import BadInput
from sim.waves import gtkwave, surfer
from sim.waves.catalog import Catalog
from sim.waves.layout import Group, Layout, Row
from sim.waves.picture import draw
from sim.waves.request import FOREVER, WaveRequest, parse
from sim.waves.rerun import MARGIN, window
from sim.waves.vcd import read

# What may be asked ----------------------------------------------------------------------------


def asked(window=":", scope="", nodes=2):
    return parse(window, scope, "", Structure(), nodes)


@pytest.mark.parametrize(
    ("window", "cycles"),
    [
        (":", (0, FOREVER)),
        ("5:", (5, FOREVER)),
        (":7", (0, 7)),
        ("5:7", (5, 7)),
        ("7:7", (7, 7)),
    ],
)
def test_window_may_be_open(window, cycles):
    assert asked(window).window("ibrc") == cycles


@pytest.mark.parametrize("window", ["", "5", "7:5", "a:", "-1:4", "1:2:3", "²:", f":{1 << 64}"])
def test_bad_window_is_told(window):
    with pytest.raises(BadInput, match=r"^bellwire: --waves = .*: allowed FROM:TO in cycles"):
        asked(window)


def test_scope_names_blocks_and_nodes():
    assert asked() == WaveRequest()
    assert asked(scope="n1").nodes == (1,)
    request = asked(scope="wire, n0,doorbell,nic_up")
    assert request.nodes == (0,)
    # In travel order, whatever the order of the words.
    assert request.blocks == ("fabric.nic_up", "nic.doorbell", "nic.wire")
    assert asked(scope="all,n1").everything


@pytest.mark.parametrize("scope", ["wires", "n2", "wire,", "all,wire", "nic.wire"])
def test_bad_scope_is_told(scope):
    with pytest.raises(BadInput, match="^bellwire: --scope = .*: ") as told:
        asked(scope=scope)
    assert "\n" not in str(told.value)


# The form ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "wanted", "form"),
    [(True, "", "fst"), (True, "vcd", "vcd"), (False, "", "vcd"), (True, "fst", "fst")],
)
def test_fst_is_written_where_its_libraries_are(monkeypatch, there, wanted, form):
    monkeypatch.setattr(toolchain, "_compiles", lambda source: there)
    assert toolchain.wave_format(wanted) == form


def test_fst_that_cannot_be_had_is_told(monkeypatch):
    monkeypatch.setattr(toolchain, "_compiles", lambda source: False)
    with pytest.raises(toolchain.BuildError, match="apt install liblz4-dev"):
        toolchain.wave_format("fst")
    with pytest.raises(ValueError, match="allowed fst, vcd"):
        toolchain.wave_format("lxt")


@pytest.mark.slow
def test_fst_is_built_and_written_where_lz4_is(tmp_path):
    if toolchain.wave_format() != "fst":
        pytest.skip("lz4.h is not installed")
    binary = builder.build("stub", stub_verilog(), trace="fst", cache=tmp_path)
    linked = subprocess.run(["ldd", binary], capture_output=True, text=True, check=True).stdout
    assert "liblz4" in linked


# What signals are called --------------------------------------------------------------------------


def test_names_of_fields_states_and_members_come_from_the_design():
    catalog = Catalog.parse(*convert(Machine(), "machine"))
    wires = catalog.wires["machine"]
    assert catalog.members["machine"]["pair"] == "pair"
    assert wires["pair__colour"].width == 2 and wires["pair__count__1"].width == 3
    assert catalog.enums[wires["pair__colour"].enum] == {1: "RED", 2: "BLUE"}
    assert catalog.states == {"machine": ("fsm_state",)}
    assert catalog.enums[wires["fsm_state"].enum] == {0: "REST", 1: "WORK"}
    assert not [name for name in wires if "." in name and name[0] != "$"]


def test_tables_of_one_name_are_kept_apart():
    text = """
module top (a);
  (* enum_base_type = "State" *)
  (* enum_value_0 = "A" *)
  wire one;
  (* enum_base_type = "State" *)
  (* enum_value_1 = "B" *)
  wire \\two ;
"""
    catalog = Catalog.parse(text, {"members": {}, "states": {}})
    assert [wire.enum for wire in catalog.wires["top"].values()] == ["State", "State_2"]
    assert catalog.enums == {"State": {0: "A"}, "State_2": {1: "B"}}


def test_field_that_would_take_a_name_is_refused():
    with pytest.raises(ValueError, match="a__b"):
        plain_names("module m (x);\n  wire a__b;\n  wire \\a.b ;\nendmodule\n")


def test_every_block_is_on_the_way():
    """A block that is added to the NIC or the fabric is shown."""
    node = Node(Structure())
    shown = [id(block) for block in node.blocks.values()]
    assert len(shown) == len(set(shown))
    parts = (*node.nic.blocks.values(), *node.fabric.links, node.gpu_memory, node.host_memory)
    assert {id(block) for block in parts} <= set(shown)


# What viewers get ---------------------------------------------------------------------------------

ROWS = (
    Row("valid", "n0.node.a.x__valid", 1),
    Row("kind", "n0.node.a.x__kind", 3, "Kind"),
    Row("address", "n0.node.a.x__address", 48),
)
SMALL = Layout((Group(0, "a", "x", ROWS),), {"Kind": {0: "NONE", 5: "SOME"}}, ())


def test_gtkwave_gets_groups_aliases_and_filters(tmp_path):
    text = gtkwave.write(SMALL, tmp_path / "waves.vcd", (100, 4800)).read_text()
    lines = text.splitlines()
    assert '[dumpfile] "waves.vcd"' in lines and "[timestart] 100" in lines
    assert "+{x/valid} n0.node.a.x__valid" in lines
    assert "+{x/address} n0.node.a.x__address[47:0]" in lines
    assert "^1 names/Kind_3.txt" in lines
    assert (tmp_path / "names" / "Kind_3.txt").read_text().split() == ["0", "NONE", "5", "SOME"]


def test_surfer_gets_dividers_variables_and_mappings(tmp_path):
    text = surfer.write(SMALL, tmp_path / "waves.vcd").read_text()
    assert text.splitlines() == [
        "divider_add n0.a.x",
        "variable_add n0.node.a.x__valid",
        "variable_add n0.node.a.x__kind",
        "variable_add n0.node.a.x__address",
        "item_focus c_n0.node.a.x__kind",
        "item_set_format Kind_3",
        "item_unfocus",
        "zoom_fit",
    ]
    mapping = tmp_path / ".surfer" / "mappings" / "Kind_3.txt"
    assert mapping.read_text() == "Name = Kind_3\nBits = 3\n0 NONE\n5 SOME\n"


# One message ------------------------------------------------------------------------------------


def test_window_of_a_message_has_a_margin():
    assert window({"issue": 200, "ring": 300, "seen": 900}) == (200 - MARGIN, 900 + MARGIN)
    # Near the start; and never seen complete: to the end of the run.
    assert window({"issue": 7, "ring": 300}) == (0, FOREVER)


HEAD = """$version x $end $timescale 1ns $end
$scope module n0 $end
$scope module node.a $end
$var wire 1 ! x__valid $end
$var
  wire 4 "! x__kind [3:0]
$end
$var wire 4 # y[3:0] $end
$upscope $end $upscope $end
$enddefinitions $end
"""


@pytest.mark.parametrize(
    "body",
    [
        '#0\n0!\nb0000 "!\n#5\n1!\nb101 "!\n#6\n0!\n',
        # All behind the time, and what is of no interest.
        '#0  0! b0 "! $dumpvars x# $end\n#5 1! bx101 "! r1.5 %\n#6 0!',
    ],
)
def test_reader_takes_what_tools_write(tmp_path, body):
    file = tmp_path / "waves.vcd"
    file.write_text(HEAD.replace("node.a", "a") + body)
    assert read(file, {"n0.a.x__valid", "n0.a.x__kind", "n0.a.none"}) == {
        "n0.a.x__valid": [(0, 0), (5, 1), (6, 0)],
        "n0.a.x__kind": [(0, 0), (5, 5)],
    }


@pytest.mark.parametrize("text", ["", "$var wire 1 !", HEAD + "#x\n", HEAD + "what\n"])
def test_reader_refuses_what_is_no_vcd(tmp_path, text):
    file = tmp_path / "waves.vcd"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"waves\.vcd: no VCD that can be read"):
        read(file, {"n0.node.a.y"})


def test_picture_has_rows_and_landmarks(tmp_path):
    file = tmp_path / "waves.vcd"
    text = HEAD.replace("$scope module node.a $end", "$scope module node $end $scope module a $end")
    file.write_text(text.replace("$upscope $end $upscope $end", "") + "#10\n1!\n#12\n0!\n#90\n")
    svg = draw(SMALL, file, "a <title>", {"issue": 5, "seen": 85})
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert "a &lt;title&gt;" in svg and "cycles 5 to 85" in svg
    assert ">node 0: a</text>" in svg and ">x</text>" in svg
    assert "issue +0" in svg and "seen +80" in svg
    assert svg.count('class="p"') == 1
