"""The smallest thing that has the ports of a node (decision 2), to test the engine alone.

It stores (op 1) and loads (op 2) bytes of the GPU memory by the gpu mailbox; a configure (op 3)
sends the low bits of its data as a beat by the port that its address names; a beat that arrives is
written to the host memory at line 0, logged, and its credit returned.
"""

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.node import SoftwareTrace

__all__ = ["StubNode"]

#: Event kinds of the stub: beat received, credit received (at port 0; at port 1 one more), timed
#: wait ended.
BEAT, CREDIT, TIMER = 100, 102, 104
#: A configure with address 0 or 1 sends by that port, with this one starts a timed wait of `data`
#: cycles.
TIMER_ADDRESS = 2


PINS = ("rx_valid", "rx_beat", "tx_credit", "tx_valid", "tx_beat", "rx_credit")


class StubBeat(data.Struct):
    number: 32
    body: 96


class StubNode(wiring.Component):
    node_id: In(8)
    now: In(48)
    mailbox_due: In(4)
    rx_valid: In(1)
    rx_beat: In(StubBeat)
    tx_valid: Out(1)
    tx_beat: Out(StubBeat)
    rx_credit: Out(1)
    tx_credit: In(1)
    rx_valid_1: In(1)
    rx_beat_1: In(StubBeat)
    tx_valid_1: Out(1)
    tx_beat_1: Out(StubBeat)
    rx_credit_1: Out(1)
    tx_credit_1: In(1)
    quiet: Out(1)
    next_due: Out(48)

    def elaborate(self, platform):
        m = Module()

        now = Signal(48)
        m.d.sync += now.eq(self.now)

        def mailbox(number):
            port = {
                "valid": Signal(name=f"m{number}_valid"),
                "ready": Signal(name=f"m{number}_ready", init=1),
                "op": Signal(4, name=f"m{number}_op"),
                "address": Signal(64, name=f"m{number}_address"),
                "length": Signal(8, name=f"m{number}_length"),
                "token": Signal(64, name=f"m{number}_token"),
                "data": Signal(512, name=f"m{number}_data"),
            }
            outputs = {f"o_{name}": signal for name, signal in port.items() if name != "ready"}
            m.submodules[f"mailbox{number}"] = Instance(
                "sim_mailbox",
                i_clk=ClockSignal(),
                i_node=self.node_id,
                i_port=Const(number, 8),
                i_due=self.mailbox_due[number],
                i_ready=port["ready"],
                **outputs,
            )
            return port

        def event(name, kind, valid, payload):
            m.submodules[name] = Instance(
                "sim_event",
                i_clk=ClockSignal(),
                i_node=self.node_id,
                i_kind=Const(kind, 16),
                i_valid=valid,
                i_payload=payload,
            )

        gpu, config = mailbox(0), mailbox(2)
        m.submodules.trace = trace = SoftwareTrace()
        m.d.comb += [trace.node_id.eq(self.node_id), trace.due.eq(self.mailbox_due[3])]

        # GPU memory: the processor port alone, one cycle to commit, two to read.
        load, load_token, line = Signal(), Signal(64), Signal(512)
        # Bytes of a command start at byte 0, those of a memory in the lanes of their address.
        lane, load_lane = Cat(Const(0, 3), gpu["address"][:6]), Signal(9)
        enable = Signal(64)
        m.d.comb += enable.eq(((Const(1, 65) << gpu["length"]) - 1) << gpu["address"][:6])
        m.submodules.gpu_memory = Instance(
            "sim_memory",
            i_clk=ClockSignal(),
            i_node=self.node_id,
            i_memory=Const(0, 8),
            i_pw_en=gpu["valid"] & (gpu["op"] == 1),
            i_pw_addr=gpu["address"],
            i_pw_be=enable,
            i_pw_data=(gpu["data"] << lane)[:512],
            i_fw_en=Const(0),
            i_fw_addr=Const(0, 64),
            i_fw_be=Const(0, 64),
            i_fw_data=Const(0, 512),
            i_fr_en=Const(0),
            i_fr_addr=Const(0, 64),
            i_pr_en=gpu["valid"] & (gpu["op"] == 2),
            i_pr_addr=gpu["address"],
            o_pr_data=line,
        )
        m.d.sync += [
            load.eq(gpu["valid"] & (gpu["op"] == 2)),
            load_token.eq(gpu["token"]),
            load_lane.eq(lane),
        ]
        m.submodules.response = Instance(
            "sim_response",
            i_clk=ClockSignal(),
            i_node=self.node_id,
            i_port=Const(0, 8),
            i_valid=load,
            i_token=load_token,
            i_data=line >> load_lane,
        )

        # The links: one beat out per configure, one credit back per beat in.
        busy, arrivals = [], []
        for port, suffix in enumerate(("", "_1")):
            pin = {name: getattr(self, name + suffix) for name in PINS}
            rx_valid, rx_beat = Signal(name=f"arrived{suffix}"), Signal(StubBeat)
            tx_credit = Signal(name=f"credited{suffix}")
            m.d.sync += [
                rx_valid.eq(pin["rx_valid"]),
                rx_beat.eq(pin["rx_beat"]),
                tx_credit.eq(pin["tx_credit"]),
                pin["tx_valid"].eq(config["valid"] & (config["address"] == port)),
                pin["tx_beat"].number.eq(config["data"][:32]),
                pin["tx_beat"].body.eq(config["data"][32:128]),
                pin["rx_credit"].eq(rx_valid),
            ]
            event(f"beat{suffix}", BEAT + port, rx_valid, rx_beat.as_value())
            event(f"credit{suffix}", CREDIT + port, tx_credit, now)
            busy += [rx_valid, tx_credit, pin["tx_valid"], pin["rx_credit"]]
            arrivals.append((rx_valid, rx_beat))
        (_, first), (second_valid, second) = arrivals
        m.submodules.host_memory = Instance(
            "sim_memory",
            i_clk=ClockSignal(),
            i_node=self.node_id,
            i_memory=Const(1, 8),
            i_pw_en=Const(0),
            i_pw_addr=Const(0, 64),
            i_pw_be=Const(0, 64),
            i_pw_data=Const(0, 512),
            i_fw_en=arrivals[0][0] | second_valid,
            i_fw_addr=Const(0, 64),
            i_fw_be=Const((1 << 16) - 1, 64),
            i_fw_data=Mux(second_valid, second.as_value(), first.as_value()),
            i_fr_en=Const(0),
            i_fr_addr=Const(0, 64),
            i_pr_en=Const(0),
            i_pr_addr=Const(0, 64),
        )

        # A timed wait.
        armed, due, fired = Signal(), Signal(48), Signal()
        m.d.comb += fired.eq(armed & (now >= due))
        with m.If(fired):
            m.d.sync += armed.eq(0)
        with m.If(config["valid"] & (config["address"] == TIMER_ADDRESS)):
            m.d.sync += [armed.eq(1), due.eq(now + config["data"][:48])]
        event("timer", TIMER, fired, due)

        m.d.comb += [
            self.quiet.eq(~(Cat(busy).any() | gpu["valid"] | config["valid"] | load)),
            self.next_due.eq(Mux(armed, due, (1 << 48) - 1)),
        ]
        return m
