"""The requests of captures, sent to our responder: it answers as theirs did."""

from ipaddress import ip_address

import pytest
import scapy.all as scapy
from support_captures import CaptureError, read, replayed, said_of_beats, said_of_packets
from support_responder import atomic_result

from hw.formats.roce import RoceOpcode
from sim.frames import Address, Packet, build

_HEAD = "| capture | frames | RC packets | others | right ICRC | requests | answered alike |"


def written_of(flow):
    """What each request writes: its payload, or what an atomic makes of what it found."""
    originals = [
        packet.extended["AtomicAckEth"]["original"]
        for packet in flow.answers
        if "AtomicAckEth" in packet.extended
    ]
    for packet in flow.requests:
        if atomic := packet.extended.get("AtomicEth"):
            words = b"".join(atomic[name].to_bytes(8, "big") for name in ("swap_add", "compare"))
            result = atomic_result(packet.opcode, 8, originals.pop(0), words)
            yield result.to_bytes(8, "little")
        elif packet.payload:
            yield packet.payload


def differences(flow, run):
    """In a line each, how a run differs from a capture."""
    ours, theirs = said_of_beats(run.acks.words), said_of_packets(flow.answers)
    # The capture may end before the last answers.
    pairs = zip(ours, theirs, strict=False)
    found = [f"answer {n}: {a}, recorded {b}" for n, (a, b) in enumerate(pairs) if a != b]
    if len(ours) < len(theirs):
        found.append(f"{len(ours)} answers, recorded {len(theirs)}")
    if run.drops:
        found.append(f"{len(run.drops)} requests dropped")
    if [data for _, data in run.written if data] != list(written_of(flow)):
        found.append("other bytes are written")
    return found


def conform(folder):
    """(table, problems) of all captures of a folder."""
    rows, problems = [_HEAD, "|" + "---|" * 7], []
    total = alike = 0
    for file in sorted(folder.glob("*.pcap")):
        try:
            capture = read(file)
        except CaptureError as error:
            problems.append(str(error))
            continue
        ours = asked = 0
        for flow in capture.flows:
            asked += len(flow.requests)
            if not flow.answers:
                continue
            wrong = differences(flow, replayed(flow))
            problems += [f"{file.name}: {line}" for line in wrong]
            ours += 0 if wrong else len(flow.answers)
        rc = capture.kinds["rc"]
        roce = sum(capture.kinds[kind] for kind in ("rc", "ud", "cnp", "roce"))
        others = ", ".join(
            f"{count} {kind}" for kind, count in sorted(capture.kinds.items()) if kind != "rc"
        )
        if capture.right != roce:
            problems.append(f"{file.name}: {roce - capture.right} packets with a wrong ICRC")
        rows.append(
            f"| {file.name} | {sum(capture.kinds.values())} | {rc} | {others or '-'} | "
            f"{capture.right} of {roce} | {asked} | {ours} of {rc - asked} |"
        )
        total, alike = total + rc, alike + ours + asked
    if not total:
        problems.append(f"{folder}: no packet of a reliable connection in files *.pcap")
    return "\n".join([*rows, f"pcaps: {total} packets, {alike} sent or answered alike"]), problems


@pytest.mark.conformance
def test_captures_conform(pcaps, record_property):
    table, problems = conform(pcaps)
    record_property("table", table)
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


# A capture in which something is wrong cannot pass -----------------------------------------------

CLIENT, SERVER = Address(1, ip_address("10.0.0.1")), Address(2, ip_address("10.0.0.2"))


def exchange():
    """Frames of a WRITE of two packets and a READ, with their answers."""

    def ask(opcode, psn, ack=0, payload=b"", **extended):
        return (CLIENT, SERVER), packet(opcode, 0x11, psn, ack, payload, extended)

    def answer(opcode, psn, msn, payload=b""):
        aeth = {"syndrome": 0x1F, "msn": msn}
        return (SERVER, CLIENT), packet(opcode, 0x22, psn, 0, payload, {"Aeth": aeth})

    def packet(opcode, qp, psn, ack, payload, extended):
        bth = {"opcode": opcode.value, "dest_qp": qp, "psn": psn, "ack_request": ack}
        return Packet(bth={**bth, "pkey": 0xFFFF}, extended=extended, payload=payload)

    reth = {"va": 0x10010, "rkey": 7, "length": 300}
    return [
        ask(RoceOpcode.WRITE_FIRST, 0xFFFFFF, payload=bytes(range(256)), Reth=reth),
        ask(RoceOpcode.WRITE_LAST, 0, 1, payload=bytes(44)),
        answer(RoceOpcode.ACK, 0, 5),
        ask(RoceOpcode.READ_REQUEST, 1, Reth=reth),
        answer(RoceOpcode.READ_RESPONSE_FIRST, 1, 6, b"a" * 256),
        answer(RoceOpcode.READ_RESPONSE_LAST, 2, 6, b"b" * 44),
    ]


def saved(folder, frames):
    scapy.wrpcap(str(folder / "x.pcap"), [scapy.Ether(raw) for raw in frames])
    return conform(folder)


def test_an_exchange_that_is_right_passes_and_is_counted(tmp_path):
    table, problems = saved(tmp_path, [build(packet, *ends) for ends, packet in exchange()])
    assert problems == []
    assert "| x.pcap | 6 | 6 | - | 6 of 6 | 3 | 3 of 3 |" in table
    assert table.endswith("pcaps: 6 packets, 6 sent or answered alike")


@pytest.mark.parametrize(
    ("place", "change", "line"),
    [
        (2, {"psn": 1}, "x.pcap: answer 0: "),
        (2, {"Aeth": {"syndrome": 0x1F, "msn": 4}}, "x.pcap: answer 1: "),
        (2, {"Aeth": {"syndrome": 0x60, "msn": 5}}, "x.pcap: answer 0: "),
        (5, {"Aeth": {"syndrome": 0x1F, "msn": 7}}, "x.pcap: answer 2: "),
        (1, {"psn": 3}, "x.pcap: 2 requests dropped"),
    ],
)
def test_an_answer_that_differs_is_named(place, change, line, tmp_path):
    frames = exchange()
    ends, packet = frames[place]
    fields = {key: value for key, value in change.items() if key == "psn"}
    extended = {key: value for key, value in change.items() if key == "Aeth"}
    frames[place] = (
        ends,
        Packet(
            bth={**packet.bth, **fields},
            extended={**packet.extended, **extended},
            payload=packet.payload,
        ),
    )
    _, problems = saved(tmp_path, [build(packet, *ends) for ends, packet in frames])
    assert any(problem.startswith(line) for problem in problems), problems


def test_a_damaged_frame_and_other_files_are_told(tmp_path):
    frames = [build(packet, *ends) for ends, packet in exchange()]
    frames[1] = frames[1][:-1] + bytes([frames[1][-1] ^ 1])
    assert "x.pcap: 1 packets with a wrong ICRC" in saved(tmp_path, frames)[1]
    (tmp_path / "x.pcap").write_bytes(b"nothing")
    _, problems = conform(tmp_path)
    assert problems[0].startswith("x.pcap: no capture (") and "no packet of a" in problems[1]
