import pytest

from hw.config import Structure
from hw.elaborate import to_verilog
from hw.node import Node
from sim import build, run
from sim.toolchain import BuildError


def test_generated_verilog_lints_without_warnings():
    """But for the waivers in sim/engine/waivers.vlt, each with its reason."""
    build.lint((run.binary_for(Structure()).parent / "node.v").read_text())


def test_lint_finds_a_warning():
    latch = "module node(input wire a, output reg b); always @* if (a) b = 1; endmodule\n"
    with pytest.raises(BuildError, match="LATCH"):
        build.lint(latch)


def test_a_node_with_1024_qps_and_two_ports_elaborates_and_lints():
    build.lint(to_verilog(Node(Structure(qps=1024, ports=2)), "node"))
