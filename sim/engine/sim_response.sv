// Answers of the RTL to loads of software: each one is a wake record for Python.
module sim_response (
    input logic         clk,
    input logic [  7:0] node,
    input logic [  7:0] port,
    input logic         valid,
    input logic [ 63:0] token,
    input logic [511:0] data
);
    import "DPI-C" function void bw_response(
        input int unsigned node, input int unsigned port, input longint unsigned token, input bit [511:0] data);

    always @(posedge clk) if (valid) bw_response(32'(node), 32'(port), token, data);
endmodule
