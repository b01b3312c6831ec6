"""The PCIe switch of a node, and the fabric that it makes with its links."""

from amaranth.hdl import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .formats.tlp import CompletionBeat, Port, PostedBeat, ReadBeat, claims
from .lib.arbiter import Arbiter
from .lib.delay import NOW_BITS, earliest
from .pcie import Pcie, PcieLink
from .timing import PcieTiming

__all__ = ["PcieFabric", "PcieSwitch"]

PORTS = len(Port)


class PcieSwitch(wiring.Component):
    """Routes TLPs among three ports: posted and reads by address, completions by requester.

    The GPU and the NIC get what they claim (`formats.tlp.claims`), the host all else.

    Parameters
    ----------
    none

    Members
    -------
    i : In(array of 3 `Pcie`), indexed by `Port`
        From the links up. The links' receive queues are the switch's input queues, one per class.
    o : Out(array of 3 `Pcie`), indexed by `Port`
        To the links down.
    quiet : Out(1)
        No input is valid.

    Timing
    ------
    Combinational: no cycle is added (the latency of the switch is part of the links
    down). One beat per cycle, output and class, round robin among inputs by TLP; a TLP keeps its
    output until its last beat. A blocked TLP blocks those of its class behind it.
    """

    def __init__(self):
        super().__init__(
            {"i": In(Pcie()).array(PORTS), "o": Out(Pcie()).array(PORTS), "quiet": Out(1)}
        )

    def elaborate(self, platform):
        m = Module()

        def by_address(port, beat):
            return claims(port, beat.address)

        def by_requester(port, beat):
            return beat.requester == port

        for name, shape, route, packets in (
            ("posted", PostedBeat, by_address, True),
            ("reads", ReadBeat, by_address, False),
            ("completions", CompletionBeat, by_requester, True),
        ):
            inputs = [getattr(port, name) for port in self.i]
            arbiters = []
            for output in range(PORTS):
                m.submodules[f"{name}_{output}"] = arbiter = Arbiter(shape, PORTS, packets=packets)
                wiring.connect(m, arbiter.o, wiring.flipped(getattr(self.o[output], name)))
                arbiters.append(arbiter)
            for index, port in enumerate(inputs):
                for target, arbiter in zip(Port, arbiters, strict=True):
                    m.d.comb += arbiter.i[index].payload.eq(port.payload)
                    with m.If(route(target, port.payload)):
                        m.d.comb += [
                            arbiter.i[index].valid.eq(port.valid),
                            port.ready.eq(arbiter.i[index].ready),
                        ]

        offered = Cat(
            stream.valid
            for port in self.i
            for stream in (port.posted, port.reads, port.completions)
        )
        m.d.comb += self.quiet.eq(~offered.any())
        return m


class PcieFabric(wiring.Component):
    """The switch with a link up and a link down for each device.

    Parameters
    ----------
    structure : Structure

    Members
    -------
    up : In(array of 3 `Pcie`), indexed by `Port`
        From the devices.
    down : Out(array of 3 `Pcie`), indexed by `Port`
        To the devices.
    now : In
    timing : In(PcieTiming)
    quiet, due : Out

    Attributes
    ----------
    links : list of PcieLink
        By link number (2 x `Port` + direction); their probes are the fabric's events.

    Timing
    ------
    A TLP on an idle fabric, first beat taken at cycle t, is offered to its target at

        t + ceil(wire * a) + latency_up(source) + ceil(wire * b) + latency_down(target)

    if it has one beat (a, b: cycles per byte of the two links). Of several beats each enters the
    second link as it leaves the first, so that the slower link alone counts for all beats but one.
    """

    def __init__(self, structure):
        self.links = [PcieLink(number, structure) for number in range(2 * PORTS)]
        super().__init__(
            {
                "up": In(Pcie()).array(PORTS),
                "down": Out(Pcie()).array(PORTS),
                "now": In(NOW_BITS),
                "timing": In(PcieTiming),
                "quiet": Out(1),
                "due": Out(NOW_BITS),
            }
        )

    @property
    def links_by_name(self):
        """Submodule name and link, by link number."""
        names = (f"{port.name.lower()}_{way}" for port in Port for way in ("up", "down"))
        return dict(zip(names, self.links, strict=True))

    def elaborate(self, platform):
        m = Module()
        m.submodules.switch = switch = PcieSwitch()
        for name, link in self.links_by_name.items():
            m.submodules[name] = link
        sections = {
            Port.HOST: self.timing.host,
            Port.GPU: self.timing.gpu,
            Port.NIC: self.timing.nic,
        }
        for port, section in sections.items():
            index = port.value
            up, down = self.links[2 * index], self.links[2 * index + 1]
            wiring.connect(m, wiring.flipped(self.up[index]), up.i)
            wiring.connect(m, up.o, switch.i[index])
            wiring.connect(m, switch.o[index], down.i)
            wiring.connect(m, down.o, wiring.flipped(self.down[index]))
            m.d.comb += [
                up.latency.eq(section.latency_up),
                up.byte_interval.eq(section.byte_interval_up),
                down.latency.eq(section.latency_down),
                down.byte_interval.eq(section.byte_interval_down),
            ]
            for link in (up, down):
                m.d.comb += [link.now.eq(self.now), link.timing.eq(self.timing)]
        m.d.comb += [
            self.quiet.eq(Cat(switch.quiet, *(link.quiet for link in self.links)).all()),
            self.due.eq(earliest(m, [link.due for link in self.links])),
        ]
        return m
