"""The Verilog form of registers: touched only where they change, and nothing else is moved."""

import os
import re
import subprocess
import sys
from pathlib import Path

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.elaborate import merge_registers, to_verilog

ROOT = Path(__file__).resolve().parent.parent


class Registers(wiring.Component):
    """A counter with an enable, a shifted part, a copy, and a value that is also read."""

    enable: In(1)
    data: In(8)
    count: Out(8)
    parts: Out(8)
    copy: Out(8)

    def elaborate(self, platform):
        m = Module()
        with m.If(self.enable):
            m.d.sync += [self.count.eq(self.count + 1), self.parts[4:].eq(self.data)]
        m.d.sync += self.copy.eq(self.data)
        return m


PROCESS = """\
  reg [7:0] \\next$1 ;
  reg [7:0] r = 8'h00;
  always @(posedge clk)
    r <= \\next$1 ;
  always @* begin
    \\next$1  = r;
    if (enable) begin
      \\next$1 [3:0] = data;
    end
  end
"""
MERGED = """\
  reg [7:0] r = 8'h00;
  always @(posedge clk) begin
    if (enable) begin
      r [3:0] <= data;
    end
  end
"""


def test_all_registers_are_merged():
    text = to_verilog(Registers(), name="registers")
    clocked = re.findall(r"always @\(posedge clk\) begin\n.*?\n  end", text, re.S)
    assert len(clocked) == 3
    assert "always @*" not in text
    assert all(name in "".join(clocked) for name in ("count", "parts", "copy"))


def test_a_process_becomes_clocked():
    assert merge_registers(PROCESS) == MERGED


def test_a_next_value_that_is_read_elsewhere_stays():
    text = PROCESS + "  assign seen = \\next$1 ;\n"
    assert merge_registers(text) == text


def test_a_process_that_reads_its_own_value_stays():
    text = PROCESS.replace("= data", "= \\next$1 [7:4]")
    assert merge_registers(text) == text


def test_a_constant_start_is_kept():
    text = PROCESS.replace("\\next$1  = r;", "\\next$1  = 8'h01;")
    assert "r  <= 8'h01;" in merge_registers(text)


def test_elaboration_is_the_same_in_every_process():
    """What depends on the order of a set would make another model in each process."""
    script = (
        "import hashlib; from amaranth.back import rtlil; from hw.config import Structure; "
        "from hw.nic import Nic; text = rtlil.convert(Nic(Structure(qps=2))); "
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=dict(os.environ) | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
