// The top that cocotb attaches to. The machine itself is beside it: one Verilated `node` object per node.
`timescale 1ns / 1ps
module bench (
    // Toggled by the engine when Python is wanted.
    input logic wake
);
endmodule
