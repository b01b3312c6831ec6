"""Brings up the queues of a run: contexts, timing words, completion rings. Stands for the control
path, which is out of scope.
"""

from hw.formats import context
from hw.formats.layout import Codec
from hw.units import cycles

from . import addresses
from .paths import PATHS

__all__ = ["bring_up", "configuration", "qpn"]

_sq, _tx, _rx, _cq, _rq = (
    Codec(getattr(context, f"{name}Context")) for name in ("Sq", "Tx", "Rx", "Cq", "Rq")
)


def qpn(node, index):
    """QP number of a context: the low bits are its index."""
    return (node + 1) << 12 | index


def configuration(scenario, path):
    """Writes of the configuration bus, as (node, table, index, data), in order."""
    memory, queues = PATHS[path].memory, scenario.queues
    writes = []
    for node in range(scenario.nodes.count):
        writes += [
            (node, context.Table.TIMING, index, word)
            for index, word in enumerate(scenario.timing_words(node, path))
        ]
    entries = PATHS[path].cq_entries(scenario)
    psn = queues.start_psn
    mtu_log2 = scenario.nic.mtu_bytes.bit_length() - 1
    for connection in scenario.plan.connections:
        ends = connection.ends
        for (node, index, port), (peer, peer_index, _) in (ends, ends[::-1]):
            common = {"valid": 1, "qpn": qpn(node, index)}
            peers = {
                "peer_qpn": qpn(peer, peer_index),
                "peer_node": peer,
                "mtu_log2": mtu_log2,
                "port": port,
            }
            writes += [
                (
                    node,
                    context.Table.SQ,
                    index,
                    _sq.pack(
                        base=addresses.bus(memory, addresses.sq_offset(index, queues.sq_depth)),
                        depth_log2=queues.sq_depth.bit_length() - 1,
                        mtu_log2=mtu_log2,
                        start_index=queues.start_index,
                        **common,
                    ),
                ),
                (
                    node,
                    context.Table.TX,
                    index,
                    _tx.pack(
                        start_psn=psn,
                        ack_timeout=queues.ack_timeout,
                        retry_count=queues.retry_count,
                        rnr_retry=queues.rnr_retry,
                        max_reads=queues.max_reads,
                        **common,
                        **peers,
                    ),
                ),
                (
                    node,
                    context.Table.RX,
                    index,
                    _rx.pack(
                        expected_psn=psn,
                        max_reads=queues.max_reads,
                        rnr_timer=queues.rnr_timer,
                        **common,
                        **peers,
                    ),
                ),
                (
                    node,
                    context.Table.CQ,
                    index,
                    _cq.pack(
                        base=addresses.bus(memory, addresses.cq_offset(index, entries)),
                        depth_log2=entries.bit_length() - 1,
                        collapsed=entries == 1,
                        **common,
                    ),
                ),
            ]
    return writes


def _receives(scenario, path, depth):
    """Writes of the configuration bus for receive queues of `depth` WQEs."""
    memory = PATHS[path].memory
    for connection in scenario.plan.connections:
        for node, index, _ in connection.ends:
            common = {"valid": 1, "qpn": qpn(node, index), "depth_log2": depth.bit_length() - 1}
            rq = _rq.pack(
                base=addresses.bus(memory, addresses.rq_offset(index, depth)),
                stride_log2=addresses.RECEIVE_STRIDE.bit_length() - 1,
                record=addresses.bus(memory, addresses.record_offset(index)),
                **common,
            )
            base = addresses.bus(memory, addresses.receive_cq_offset(index, depth))
            yield node, context.Table.RQ, index, rq
            yield node, context.Table.RECEIVE_CQ, index, _cq.pack(base=base, **common)


def bring_up(machine, scenario, path, *, receives=0):
    """Links, completion rings, timing and contexts of all nodes, before cycle 0; returns the cycle
    from which software may use them. QPs have receive queues of `receives` WQEs, if any.
    """
    propagation = max(1, cycles(scenario.wire.propagation_ns))
    ends = scenario.nodes.wire
    for (node, port), (peer, peer_port) in (ends, ends[::-1]):
        machine.link(node, peer, propagation, source_port=port, target_port=peer_port)
    _prepare(machine, scenario, path, receives)
    writes = configuration(scenario, path)
    writes += _receives(scenario, path, receives) if receives else ()
    for due, (node, table, index, data) in enumerate(writes):
        machine.node(node).configure(table.value, index, data, due=due)
    return len(writes) + 1


def _prepare(machine, scenario, path, receives):
    """Fills completion rings with ones, as software does, before cycle 0. The entry of a collapsed
    one says that the last block before the first is done.
    """
    entries, memory = PATHS[path].cq_entries(scenario), PATHS[path].memory
    ring = bytearray(b"\xff" * 64 * entries)
    if entries == 1:
        ring[60:62] = (scenario.queues.start_index - 1 & 0xFFFF).to_bytes(2, "big")
    for connection in scenario.plan.connections:
        for node, index, _ in connection.ends:
            machine.preload(node, memory, addresses.cq_offset(index, entries), bytes(ring))
            if receives:
                offset = addresses.receive_cq_offset(index, receives)
                machine.preload(node, memory, offset, b"\xff" * 64 * receives)
