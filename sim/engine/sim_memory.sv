// One memory of a node: 64-byte lines that live in the engine (sim/engine), two writers and two readers.
//
// Order within a cycle: processor write, fabric write, fabric read, processor read. An address is a byte address whose low
// six bits are ignored. Read data is valid in the cycle after the enable and then stays.
module sim_memory (
    input  logic         clk,
    input  logic [  7:0] node,
    input  logic [  7:0] memory,
    input  logic         pw_en,
    input  logic [ 63:0] pw_addr,
    input  logic [ 63:0] pw_be,
    input  logic [511:0] pw_data,
    input  logic         fw_en,
    input  logic [ 63:0] fw_addr,
    input  logic [ 63:0] fw_be,
    input  logic [511:0] fw_data,
    input  logic         fr_en,
    input  logic [ 63:0] fr_addr,
    output logic [511:0] fr_data,
    input  logic         pr_en,
    input  logic [ 63:0] pr_addr,
    output logic [511:0] pr_data
);
    import "DPI-C" function void bw_mem_read(
        input int unsigned node, input int unsigned memory, input longint unsigned address, output bit [511:0] data);
    import "DPI-C" function void bw_mem_write(
        input int unsigned node, input int unsigned memory, input longint unsigned address,
        input longint unsigned byte_enable, input bit [511:0] data);

    bit [511:0] fabric_line, processor_line;

    always @(posedge clk) begin
        if (pw_en) bw_mem_write(32'(node), 32'(memory), pw_addr, pw_be, pw_data);
        if (fw_en) bw_mem_write(32'(node), 32'(memory), fw_addr, fw_be, fw_data);
        if (fr_en) begin
            bw_mem_read(32'(node), 32'(memory), fr_addr, fabric_line);
            fr_data <= fabric_line;
        end
        if (pr_en) begin
            bw_mem_read(32'(node), 32'(memory), pr_addr, processor_line);
            pr_data <= processor_line;
        end
    end
endmodule
