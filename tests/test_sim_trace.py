import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_log import Log, mark

from hw.formats.events import EventKind
from hw.formats.tlp import MarkKind
from sim import trace


def some_log():
    log = Log()
    log.add(EventKind.RETIRED, 7, 1, qp=63, wqe_index=0xFFFF, blocks=4, signaled=1, status=2)
    log.add(
        EventKind.COMMIT,
        5,
        0,
        memory=1,
        fabric=1,
        address=0xABCDEF012345,
        count=64,
        last=1,
        mark=mark(MarkKind.CQE, 0x123, 0xFEDCBA),
    )
    log.add(EventKind.COMMIT, 5, 0, memory=0, fabric=0, address=1, count=1, last=0, mark=0)
    return log


def test_fields_come_back_nested_ones_flattened():
    commits = some_log().events().of(EventKind.COMMIT)
    assert commits["cycle"].tolist() == [5, 5]
    row = commits["count"].tolist().index(64)
    assert {key: int(values[row]) for key, values in commits.items()} == {
        "cycle": 5,
        "node": 0,
        "memory": 1,
        "fabric": 1,
        "address": 0xABCDEF012345,
        "count": 64,
        "last": 1,
        "mark_kind": 6,
        "mark_qp": 0x123,
        "mark_index": 0xFEDCBA,
    }


def test_a_kind_without_events_has_empty_columns():
    drops = some_log().events().of(EventKind.DROPPED)
    assert set(drops) == {"cycle", "node", "reason", "qp", "info"} and len(drops["cycle"]) == 0
    assert len(Log().events()) == 0 and Log().events().last_cycle == 0


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 2),
            st.sampled_from([1, 2, 300]),
            st.lists(st.integers(0, 255), min_size=20, max_size=20),
        ),
        max_size=40,
    )
)
def test_records_are_sorted_as_tuples_of_bytes(rows):
    records = np.array(rows, trace.RECORD)
    expected = sorted((cycle, node, kind, bytes(payload)) for cycle, node, kind, payload in rows)
    raw = b"".join(
        c.to_bytes(8, "little") + n.to_bytes(2, "little") + k.to_bytes(2, "little") + p
        for c, n, k, p in expected
    )
    events = trace.Events(records)
    assert events.records.tobytes() == raw
    assert events.sha256 == hashlib.sha256(raw).hexdigest()


def test_file_and_npz_give_the_same_log(tmp_path):
    log = some_log().events("ibrc")
    log.records[::-1].tofile(tmp_path / "events.bin")
    read = trace.read(tmp_path / "events.bin", "ibrc")
    assert read.sha256 == log.sha256
    trace.save(tmp_path / "events.npz", [read, trace.Events(read.records[:1], "gda_minimal")])
    loaded = trace.load(tmp_path / "events.npz")
    assert list(loaded) == ["ibrc", "gda_minimal"]
    assert loaded["ibrc"].sha256 == log.sha256 and loaded["ibrc"].layouts == trace.LAYOUTS
    assert loaded["ibrc"].of(EventKind.RETIRED)["status"].tolist() == [2]
    first = (tmp_path / "events.npz").read_bytes()
    trace.save(tmp_path / "events.npz", list(loaded.values()))
    assert (tmp_path / "events.npz").read_bytes() == first


def test_a_stored_layout_wins_over_the_present_one(tmp_path):
    log = some_log().events("x")
    moved = {**log.layouts, 25: {"name": "RETIRED", "fields": {"qp": [0, 12], "later": [12, 4]}}}
    trace.save(tmp_path / "a.npz", [trace.Events(log.records, "x", moved)])
    assert trace.load(tmp_path / "a.npz")["x"].of(EventKind.RETIRED)["later"].tolist() == [0xF]


def test_decoded_rows_name_their_kind():
    assert some_log().events().decode([2]) == [
        {
            "cycle": 7,
            "node": 1,
            "kind": "RETIRED",
            "qp": 63,
            "wqe_index": 0xFFFF,
            "blocks": 4,
            "signaled": 1,
            "status": 2,
        }
    ]


def test_bad_files_are_refused(tmp_path):
    (tmp_path / "events.bin").write_bytes(bytes(33))
    with pytest.raises(trace.TraceError, match="33 bytes"):
        trace.read(tmp_path / "events.bin")
    np.array([(0, 0, 999, [0] * 20)], trace.RECORD).tofile(tmp_path / "events.bin")
    with pytest.raises(trace.TraceError, match="unknown kinds"):
        trace.read(tmp_path / "events.bin")
    (tmp_path / "x.npz").write_bytes(b"nonsense")
    with pytest.raises(trace.TraceError, match="not an event log"):
        trace.load(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", other=np.zeros(3))
    with pytest.raises(trace.TraceError, match="not an event log"):
        trace.load(tmp_path / "y.npz")
