"""The stub node's Verilog and binary, for the tests of build and engine."""

import functools

from support_stub_node import StubNode

from hw.elaborate import to_verilog
from sim.build import build

__all__ = ["stub_binary", "stub_verilog"]


@functools.cache
def stub_verilog():
    return to_verilog(StubNode())


def stub_binary(progress=None):
    """The binary, which is built by the first test that wants it and then cached for good."""
    build("stub", stub_verilog())
    return build("stub", stub_verilog(), progress=progress)
