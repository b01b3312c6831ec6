// Sink of one event source: an event that is valid at the clock edge of cycle c is logged with cycle c.
module sim_event (
    input logic         clk,
    input logic [  7:0] node,
    input logic [ 15:0] kind,
    input logic         valid,
    input logic [159:0] payload
);
    import "DPI-C" function void bw_event(
        input int unsigned node, input int unsigned kind, input bit [159:0] payload);

    always @(posedge clk) if (valid) bw_event(32'(node), 32'(kind), payload);
endmodule
