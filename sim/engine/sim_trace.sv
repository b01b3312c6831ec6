// Landmarks of software: pops every due command of mailbox 3 in one cycle and logs each as an event.
//
// The outputs show the last one, for waveforms.
module sim_trace (
    input  logic         clk,
    input  logic [  7:0] node,
    input  logic         due,
    output logic         valid,
    output logic [ 15:0] kind,
    output logic [159:0] payload
);
    import "DPI-C" function int bw_trace(
        input int unsigned node, output shortint unsigned kind, output bit [159:0] payload);

    shortint unsigned last_kind;
    bit [159:0]       last_payload;

    initial valid = 1'b0;

    always @(posedge clk) begin
        valid <= 1'b0;
        if (due) begin
            if (bw_trace(32'(node), last_kind, last_payload) != 0) begin
                valid   <= 1'b1;
                kind    <= last_kind;
                payload <= last_payload;
            end
        end
    end
endmodule
