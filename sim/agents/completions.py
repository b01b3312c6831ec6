"""What host verbs make of a CQE, and what they write to the records of a completion queue.

Ref: rdma-core providers/mlx5/cq.c and the `ibv_wc` enums as read; consumer and `cq_arm` vectors.
"""

from dataclasses import dataclass

from hw.formats.layout import Codec
from hw.formats.mlx5 import Cqe, CqeError, CqeOpcode, WqeOpcode

__all__ = ["WorkCompletion", "arm_word", "consumer_record", "status_of", "work_completion"]

_cqe, _error = Codec(Cqe), Codec(CqeError)

#: mlx5 syndrome to ibv_wc status; any other is a general error.
_STATUS = {
    0x01: 1,  # local length
    0x02: 2,  # local QP operation
    0x04: 4,  # local protection
    0x05: 5,  # flushed
    0x06: 6,  # memory window bind
    0x10: 7,  # bad response
    0x11: 8,  # local access
    0x12: 9,  # remote invalid request
    0x13: 10,  # remote access
    0x14: 11,  # remote operation
    0x15: 12,  # transport retries exceeded
    0x16: 13,  # RNR retries exceeded
    0x22: 16,  # remote aborted
}
_GENERAL = 21

#: ibv_wc opcodes: of a WQE's opcode at the requester, of a CQE's opcode at the responder.
_SEND, _WRITE, _READ, _COMPARE_SWAP, _FETCH_ADD = range(5)
_REQUESTER = {
    0x01: _SEND,  # send with invalidate
    WqeOpcode.SEND.value: _SEND,
    WqeOpcode.SEND_IMM.value: _SEND,
    WqeOpcode.WRITE.value: _WRITE,
    WqeOpcode.WRITE_IMM.value: _WRITE,
    WqeOpcode.READ.value: _READ,
    WqeOpcode.COMPARE_SWAP.value: _COMPARE_SWAP,
    WqeOpcode.FETCH_ADD.value: _FETCH_ADD,
}
_RESPONSE_SEND_INVALIDATE = 4
_RECEIVE, _RECEIVE_WRITE_IMM = 128, 129
#: ibv_wc flags.
_WITH_IMM, _WITH_INVALIDATE = 2, 8


@dataclass(frozen=True, slots=True)
class WorkCompletion:
    """The fields of an `ibv_wc` that come from the CQE; those not set by the provider are 0."""

    status: int
    qpn: int
    #: Index of the WQE's first block (requester).
    counter: int
    opcode: int = 0
    byte_len: int = 0
    flags: int = 0
    #: Immediate data as it is in memory, or the invalidated key in host order: 4 bytes.
    word: bytes = bytes(4)
    vendor_error: int = 0


def status_of(syndrome):
    """The ibv_wc status of an error syndrome."""
    return _STATUS.get(syndrome, _GENERAL)


def work_completion(raw):
    """What a poll reports of a CQE's 64 bytes that it owns."""
    cqe = _cqe.unpack(raw)
    opcode, common = cqe["opcode"], {"qpn": cqe["qpn"], "counter": cqe["wqe_counter"]}
    if opcode in (CqeOpcode.REQ_ERR.value, CqeOpcode.RESP_ERR.value):
        error = _error.unpack(raw)
        return WorkCompletion(
            status=status_of(error["syndrome"]), vendor_error=error["vendor_err_synd"], **common
        )
    if opcode == CqeOpcode.REQ.value:
        return WorkCompletion(status=0, **_requester(cqe), **common)
    return WorkCompletion(status=0, byte_len=cqe["byte_cnt"], **_responder(cqe), **common)


def _requester(cqe):
    sent = cqe["send_opcode"]
    fields = {"opcode": _REQUESTER.get(sent, 0)}
    if sent in (WqeOpcode.WRITE_IMM.value, WqeOpcode.SEND_IMM.value):
        fields["flags"] = _WITH_IMM
    if fields["opcode"] == _READ:
        fields["byte_len"] = cqe["byte_cnt"]
    elif fields["opcode"] in (_COMPARE_SWAP, _FETCH_ADD):
        fields["byte_len"] = 8
    return fields


def _responder(cqe):
    key = cqe["imm"].to_bytes(4, "big")
    if cqe["opcode"] == CqeOpcode.RESP_WR_IMM.value:
        return {"opcode": _RECEIVE_WRITE_IMM, "flags": _WITH_IMM, "word": key}
    if cqe["opcode"] == CqeOpcode.RESP_SEND_IMM.value:
        return {"opcode": _RECEIVE, "flags": _WITH_IMM, "word": key}
    if cqe["opcode"] == _RESPONSE_SEND_INVALIDATE:
        return {"opcode": _RECEIVE, "flags": _WITH_INVALIDATE, "word": key[::-1]}
    return {"opcode": _RECEIVE}


def consumer_record(consumer):
    """The consumer word of a CQ's record: 24 bits."""
    return (consumer & 0xFFFFFF).to_bytes(4, "big")


def arm_word(*, consumer, sequence, solicited_only):
    """The arm word of a CQ's record; with the CQ number behind it, also the arm doorbell."""
    word = (sequence & 3) << 28 | solicited_only << 24 | consumer & 0xFFFFFF
    return word.to_bytes(4, "big")
