// Landmarks of software: pops every due command of mailbox 3 in one cycle and logs each as an event.
//
// The outputs are for waveforms: in the cycle after, `valid[k]` says that a landmark of kind k was logged and lane k of
// `payload` which (the last one, if there were several of one kind).
module sim_trace #(
    parameter int KINDS = 8
) (
    input  logic                   clk,
    input  logic [  7:0]           node,
    input  logic                   due,
    output logic [KINDS-1:0]       valid,
    output logic [160*KINDS-1:0]   payload
);
    import "DPI-C" function int bw_trace(
        input int unsigned node, output shortint unsigned kind, output bit [159:0] payload);

    shortint unsigned last_kind;
    bit [159:0]       last_payload;

    initial valid = '0;

    always @(posedge clk) begin
        valid <= '0;
        if (due)
            while (bw_trace(32'(node), last_kind, last_payload) != 0)
                if (32'(last_kind) < KINDS) begin
                    valid[last_kind] <= 1'b1;
                    payload[160*last_kind+:160] <= last_payload;
                end
    end
endmodule
