"""One node: GPU and host with their memories, the PCIe fabric, the NIC, and software's ports
(decision 2).
"""

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import Flow, In, Out

from .formats.command import MAILBOXES, MEMORIES, Command
from .formats.context import ConfigWrite, Table
from .formats.events import EVENTS, SoftwareEvent
from .formats.tlp import Port
from .lib.delay import NOW_BITS, earliest
from .lib.stream import connect
from .lib.trace import Probe, probes
from .memory import Memory
from .nic import Nic
from .pcie_switch import PcieFabric
from .processor import Processor
from .timing import Timing
from .wire import WirePort, of_port

__all__ = ["Node", "SoftwareTrace"]

#: Kinds of software's landmarks.
_LANDMARKS = [kind for kind, layout in EVENTS.items() if layout is SoftwareEvent]


class SoftwareTrace(wiring.Component):
    """Takes software's landmarks out of their mailbox and logs them; they take no time and steer
    nothing.

    Members
    -------
    node_id : In(8)
    due : In(1)
        A landmark is due in this cycle.
    on_<landmark> : Out(Probe)
        For waveforms: valid in the cycle after the one with which the landmark is logged.
    """

    def __init__(self):
        super().__init__(
            {
                "node_id": In(8),
                "due": In(1),
                **{f"on_{k.name.lower()}": Out(Probe(k, SoftwareEvent)) for k in _LANDMARKS},
            }
        )

    def elaborate(self, platform):
        m = Module()
        kinds = 1 + max(kind.value for kind in _LANDMARKS)
        valid, payload = Signal(kinds), Signal(data.ArrayLayout(160, kinds))
        m.submodules.mailbox = Instance(
            "sim_trace",
            p_KINDS=kinds,
            i_clk=ClockSignal(),
            i_node=self.node_id,
            i_due=self.due,
            o_valid=valid,
            o_payload=payload.as_value(),
        )
        for _, kind, probe in probes(self):
            shown = payload[kind.value]
            m.d.comb += [
                probe.valid.eq(valid[kind.value]),
                probe.payload.eq(shown[: SoftwareEvent.as_shape().size]),
            ]
        return m


class Node(wiring.Component):
    """A node as the engine sees it. The top of the Verilog.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    node_id, now, mailbox_due : In
    quiet, next_due : Out
    rx_valid, rx_beat, tx_credit : In
    tx_valid, tx_beat, rx_credit : Out
        As in `docs/decisions/0002-node-ports-and-engine.md`. Those of the second wire port end in
        `_1`.

    Timing
    ------
    Inputs are registered here, so what happens in engine cycle c is seen by the blocks in cycle c +
    1, together with `now` = c.
    """

    def __init__(self, structure):
        self.structure = structure
        super().__init__(
            {
                "node_id": In(8),
                "now": In(NOW_BITS),
                "mailbox_due": In(len(MAILBOXES)),
                **{
                    of_port(name, port): member
                    for port in range(structure.ports)
                    for name, member in WirePort().members.items()
                },
                "quiet": Out(1),
                "next_due": Out(NOW_BITS),
            }
        )
        self.fabric = PcieFabric(structure)
        self.gpu, self.host = Processor(Port.GPU), Processor(Port.HOST)
        self.gpu_memory, self.host_memory = (Memory(number) for number in range(len(MEMORIES)))
        self.nic = Nic(structure)
        self.trace = SoftwareTrace()

    @property
    def blocks(self):
        """Path in the hierarchy and block, in the order in which a message travels."""
        nic = dict(self.nic.blocks)
        arrival = {name: nic.pop(name) for name in ("doorbell", "wq_engine")}
        cq_engine = nic.pop("cq_engine")
        return {
            "trace": self.trace,
            "gpu": self.gpu,
            "host": self.host,
            **{f"fabric.{name}": link for name, link in self.fabric.links_by_name.items()},
            **{f"nic.{name}": block for name, block in arrival.items()},
            "nic.wq_engine.decoder": self.nic.wq_engine.decoder,
            **{f"nic.{name}": block for name, block in nic.items()},
            "gpu_memory": self.gpu_memory,
            "host_memory": self.host_memory,
            "nic.cq_engine": cq_engine,
        }

    def elaborate(self, platform):
        m = Module()
        m.submodules.fabric = self.fabric
        m.submodules.gpu, m.submodules.host = self.gpu, self.host
        m.submodules.gpu_memory, m.submodules.host_memory = self.gpu_memory, self.host_memory
        m.submodules.nic = self.nic

        # Everything from outside is registered once.
        now = Signal(NOW_BITS)
        m.d.sync += now.eq(self.now)
        arrivals = self._wire_ports(m)
        m.d.comb += [self.fabric.now.eq(now), self.nic.now.eq(now)]
        for memory in (self.gpu_memory, self.host_memory):
            m.d.comb += memory.now.eq(now)

        pending = self._mailboxes(m)
        self._configuration(m)

        # Devices and their ports of the fabric.
        self._processor_side(m, Port.GPU, self.gpu, self.gpu_memory)
        self._processor_side(m, Port.HOST, self.host, self.host_memory)
        up, down = self.fabric.up[Port.NIC.value], self.fabric.down[Port.NIC.value]
        for stream in ("posted", "reads", "completions"):
            connect(m, getattr(self.nic.up, stream), getattr(up, stream))
            connect(m, getattr(down, stream), getattr(self.nic.down, stream))

        self._events(m)
        blocks = [self.fabric, self.gpu, self.host, self.gpu_memory, self.host_memory, self.nic]
        m.d.comb += [
            self.quiet.eq(
                Cat(*(block.quiet for block in blocks)).all()
                & ~pending.any()
                & ~arrivals.any()
                & ~self._stalling
            ),
            self.next_due.eq(earliest(m, [block.due for block in blocks if hasattr(block, "due")])),
        ]
        return m

    def _wire_ports(self, m):
        """The NIC's ports and those of the node; returns what has just arrived at them."""
        for number, port in enumerate(self.nic.ports):
            for name, member in WirePort().members.items():
                inner, outer = getattr(port, name), getattr(self, of_port(name, number))
                if member.flow is Flow.In:
                    m.d.sync += inner.eq(outer)
                else:
                    m.d.comb += outer.eq(inner)
        return Cat(signal for port in self.nic.ports for signal in (port.rx_valid, port.tx_credit))

    def _mailboxes(self, m):
        """Commands of software, in order of their due cycle; returns which are held."""
        pending = []
        self._config_command = Signal(Command)
        self._config_valid = Signal()
        targets = [
            (self.gpu.commands.payload, self.gpu.commands.valid, self.gpu.commands.ready),
            (self.host.commands.payload, self.host.commands.valid, self.host.commands.ready),
            (self._config_command, self._config_valid, Const(1)),
        ]
        for number, (command, valid, ready) in enumerate(targets):
            m.submodules[f"mailbox_{MAILBOXES[number]}"] = Instance(
                "sim_mailbox",
                i_clk=ClockSignal(),
                i_node=self.node_id,
                i_port=Const(number, 8),
                i_due=self.mailbox_due[number],
                i_ready=ready,
                o_valid=valid,
                **{
                    f"o_{field}": getattr(command, field)
                    for field in ("op", "address", "length", "token", "data")
                },
            )
            pending.append(valid)
        m.submodules.trace = self.trace
        m.d.comb += [
            self.trace.node_id.eq(self.node_id),
            self.trace.due.eq(self.mailbox_due[MAILBOXES.index("trace")]),
        ]
        return Cat(*pending)

    def _configuration(self, m):
        """The configuration bus, and the timing registers that it writes."""
        write = Signal(ConfigWrite)
        m.d.comb += [
            # Table in address bits 35:32, index in 15:0.
            write.index.eq(self._config_command.address[:16]),
            write.table.eq(self._config_command.address[32:36]),
            write.data.eq(self._config_command.data),
            self.nic.config.valid.eq(self._config_valid),
            self.nic.config.payload.eq(write),
        ]
        words = Signal(-(-data.Layout.cast(Timing).size // 512) * 512)
        with m.If(self._config_valid & (write.table == Table.TIMING)):
            with m.Switch(write.index):
                for index in range(len(words) // 512):
                    with m.Case(index):
                        m.d.sync += words[512 * index : 512 * (index + 1)].eq(write.data)
        timing = data.View(Timing, words[: data.Layout.cast(Timing).size])
        m.d.comb += [
            self.fabric.timing.eq(timing.pcie),
            self.gpu_memory.timing.eq(timing.gpu_memory),
            self.host_memory.timing.eq(timing.host_memory),
            self.nic.timing.eq(timing.nic),
            self.nic.wire_timing.eq(timing.wire),
            self.nic.faults.eq(timing.faults),
            self.nic.mps_log2.eq(timing.pcie.mps_log2),
            self.nic.mrrs_log2.eq(timing.pcie.mrrs_log2),
            self.gpu_memory.mps_log2.eq(timing.pcie.mps_log2),
            self.host_memory.mps_log2.eq(timing.pcie.mps_log2),
        ]

    def _processor_side(self, m, port, processor, memory):
        """A device that stores, loads, and answers reads of its memory."""
        up, down = self.fabric.up[port.value], self.fabric.down[port.value]
        connect(m, processor.posted, up.posted)
        connect(m, processor.reads, up.reads)
        connect(m, memory.completions, up.completions)
        connect(m, down.posted, memory.posted)
        connect(m, down.reads, memory.reads)
        connect(m, down.completions, processor.completions)
        connect(m, processor.stores, memory.stores)

        m.submodules[f"{port.name.lower()}_bytes"] = Instance(
            "sim_memory",
            i_clk=ClockSignal(),
            i_node=self.node_id,
            i_memory=Const(MEMORIES.index(port.name.lower()), 8),
            i_pw_en=memory.pw_en,
            i_pw_addr=memory.pw_addr,
            i_pw_be=memory.pw_be,
            i_pw_data=memory.pw_data,
            i_fw_en=memory.fw_en,
            i_fw_addr=memory.fw_addr,
            i_fw_be=memory.fw_be,
            i_fw_data=memory.fw_data,
            i_fr_en=memory.fr_en,
            i_fr_addr=memory.fr_addr,
            o_fr_data=memory.fr_data,
            i_pr_en=Const(0),
            i_pr_addr=Const(0, 64),
            o_pr_data=Signal(512, name=f"{port.name.lower()}_pr_data"),
        )
        m.submodules[f"{port.name.lower()}_response"] = Instance(
            "sim_response",
            i_clk=ClockSignal(),
            i_node=self.node_id,
            i_port=Const(MAILBOXES.index("gpu" if port is Port.GPU else "cpu"), 8),
            i_valid=processor.response.valid,
            i_token=processor.response.token,
            i_data=processor.response.data,
        )

    def _events(self, m):
        """Every probe of every block to the event log; stall meters keep the node awake until they
        have reported.
        """
        blocks = {"gpu_memory": self.gpu_memory, "host_memory": self.host_memory}
        blocks |= {"nic": self.nic, **self.nic.blocks}
        blocks |= {f"link_{number}": link for number, link in enumerate(self.fabric.links)}
        stalls = []
        for block_name, block in blocks.items():
            for name, kind, probe in probes(block):
                payload = probe.payload.as_value()
                m.submodules[f"event_{block_name}_{name}"] = Instance(
                    "sim_event",
                    i_clk=ClockSignal(),
                    i_node=self.node_id,
                    i_kind=Const(kind.value, 16),
                    i_valid=probe.valid,
                    i_payload=Cat(payload, Const(0, 160 - len(payload))),
                )
                if name.startswith("on_stall"):
                    stalls.append(probe.valid | probe.payload.active)
        self._stalling = Signal()
        m.d.comb += self._stalling.eq(Cat(*stalls).any())
