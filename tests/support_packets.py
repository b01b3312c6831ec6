"""The packets that a job must become on the wire, in both directions."""

from support_asked import Atomic, Dump, Nop, Other, Read, Send
from support_jobs import PEER_QPN
from support_seen import Packet

from hw.formats.layout import Codec
from hw.formats.roce import ACK_SYNDROME, Bth, RoceOpcode

__all__ = ["answers_of", "requests_of"]

_SEQUENCE = (1 << 24) - 1
#: BTH of a packet in which nothing is asked for; its partition is the default one.
_PLAIN = Codec(Bth).unpack(bytes(Codec(Bth).size)) | {"pkey": 0xFFFF}
#: Bytes of an atomic's operands that stand in its header.
_OPERANDS = 16


def _sent(job):
    """(number of the WQE, its work, first PSN, PSNs) of each that sends something."""
    psn, mtu = job.psn, 1 << job.mtu_log2
    for number, work in enumerate(job.works):
        if isinstance(work, (Nop, Dump, Other)):
            continue
        count = max(1, -(-work.size // mtu))
        yield number, work, psn, count
        psn = (psn + count) & _SEQUENCE


def requests_of(job, payloads):
    """Packets of the sender; `payloads` are the bytes that each WQE sends."""
    packets = []
    for number, work, psn, _ in _sent(job):
        if isinstance(work, Read):
            fields = {"opcode": RoceOpcode.READ_REQUEST.value} | _reth(work)
            packets.append(_asking(psn, fields))
        elif isinstance(work, Atomic):
            packets.append(_atomic(work, psn))
        else:
            packets += _message(job, work, payloads[number], psn)
    return packets


def _reth(work):
    return {"reth_va": work.raddr, "reth_rkey": work.rkey, "reth_length": work.size}


def _asking(psn, fields, payload=b""):
    """The only packet of its message."""
    return Packet(_PLAIN | {"dest_qp": PEER_QPN, "ack_request": 1, "psn": psn} | fields, payload)


def _atomic(work, psn):
    operands = work.raw_operands
    fields = {
        "opcode": RoceOpcode[work.opcode.name].value,
        "atomiceth_va": work.raddr,
        "atomiceth_rkey": work.rkey,
        "atomiceth_swap_add": int.from_bytes(operands[:8], "big"),
    }
    # Behind what an addition adds stands anything.
    if work.counts > 8:
        fields["atomiceth_compare"] = int.from_bytes(operands[8:16], "big")
    return _asking(psn, fields, operands[_OPERANDS:])


def _message(job, work, payload, psn):
    mtu = 1 << job.mtu_log2
    parts = [payload[at : at + mtu] for at in range(0, len(payload), mtu)] or [b""]
    packets = []
    for number, part in enumerate(parts):
        first, last = number == 0, number == len(parts) - 1
        fields = _PLAIN | {
            "opcode": _opcode(work, first, last).value,
            "solicited": int(last and work.takes and work.solicited),
            "pad": -len(part) % 4,
            "dest_qp": PEER_QPN,
            "ack_request": int(last),
            "psn": (psn + number) & _SEQUENCE,
        }
        if first and not isinstance(work, Send):
            fields |= _reth(work)
        if last and work.imm is not None:
            fields["immdt_immediate"] = work.imm
        packets.append(Packet(fields, part))
    return packets


def _place(first, last):
    return ("ONLY" if last else "FIRST") if first else ("LAST" if last else "MIDDLE")


def _opcode(work, first, last):
    name = "SEND" if isinstance(work, Send) else "WRITE"
    name += f"_{_place(first, last)}"
    return RoceOpcode[name + "_IMM" * (last and work.imm is not None)]


def answers_of(job):
    """What the peer must answer: responses, or one ACK for each message."""
    packets = []
    for messages, (number, work, psn, count) in enumerate(_sent(job), 1):
        aeth = {"aeth_syndrome": ACK_SYNDROME, "aeth_msn": (job.msn + messages) & _SEQUENCE}
        if isinstance(work, Read):
            packets += _responses(job, job.before.get(number, b""), psn, count, aeth)
            continue
        fields = {"opcode": RoceOpcode.ACK.value} | aeth
        if isinstance(work, Atomic):
            found = int.from_bytes(job.before[number], "little")
            fields |= {"opcode": RoceOpcode.ATOMIC_ACK.value, "atomicacketh_original": found}
        packets.append(_answer(job, (psn + count - 1) & _SEQUENCE, fields))
    return packets


def _responses(job, payload, psn, count, aeth):
    mtu = 1 << job.mtu_log2
    for number in range(count):
        part = payload[number * mtu : (number + 1) * mtu]
        place = _place(number == 0, number == count - 1)
        fields = {"opcode": RoceOpcode[f"READ_RESPONSE_{place}"].value, "pad": -len(part) % 4}
        fields |= {} if place == "MIDDLE" else aeth
        yield _answer(job, (psn + number) & _SEQUENCE, fields, part)


def _answer(job, psn, fields, payload=b""):
    return Packet(_PLAIN | {"dest_qp": job.qpn, "psn": psn} | fields, payload)
