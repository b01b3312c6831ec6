// Software's commands into the RTL: one mailbox of the engine behind a registered valid/ready stage.
//
// A command is popped in a cycle in which `due` is set and the stage is free or being emptied; it is visible in the next cycle.
module sim_mailbox (
    input  logic         clk,
    input  logic [  7:0] node,
    input  logic [  7:0] port,
    input  logic         due,
    input  logic         ready,
    output logic         valid,
    output logic [  3:0] op,
    output logic [ 63:0] address,
    output logic [  7:0] length,
    output logic [ 63:0] token,
    output logic [511:0] data
);
    import "DPI-C" function int bw_pop(
        input int unsigned node, input int unsigned port, output byte unsigned op, output longint unsigned address,
        output byte unsigned length, output longint unsigned token, output bit [511:0] data);

    byte unsigned    popped_op, popped_length;
    longint unsigned popped_address, popped_token;
    bit [511:0]      popped_data;

    initial valid = 1'b0;

    always @(posedge clk) begin
        if (!valid || ready) begin
            valid <= 1'b0;
            if (due) begin
                if (bw_pop(32'(node), 32'(port), popped_op, popped_address, popped_length, popped_token,
                           popped_data) != 0) begin
                    valid   <= 1'b1;
                    op      <= popped_op[3:0];
                    address <= popped_address;
                    length  <= popped_length;
                    token   <= popped_token;
                    data    <= popped_data;
                end
            end
        end
    end
endmodule
