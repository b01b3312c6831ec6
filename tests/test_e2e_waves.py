"""Waveforms of real runs: the same cycles with and without, the right times, every landmark."""

import ast
import json
import re
import shutil
import subprocess
from io import StringIO

import pytest
from support_run import ROOT, SCENARIOS, bellwire, run, toml
from support_waves import Waves, declared

from hw.config import Structure
from hw.formats.events import EVENTS, EventKind, SoftwareEvent
from hw.formats.roce import RoceOpcode
from hw.formats.tlp import MarkKind
from sim.names import LANDMARKS
from sim.progress import Progress
from sim.run import binary_for
from sim.waves.catalog import Catalog
from sim.waves.layout import layout
from sim.waves.request import WaveRequest
from sim.waves.rerun import window
from sim.waves.shipped import PICTURE, picture

BOTH = ("gda_minimal", "ibrc")
#: Landmarks that software stamps through the trace port.
SOFTWARE = [kind.name.lower() for kind, layout in EVENTS.items() if layout is SoftwareEvent]
#: A waveform that is no more than this can be attached to a report.
LIMIT_BYTES = 5_000_000
SMALL = toml(paths=BOTH, workload=[{"kind": "put", "size": [8, 700], "count": 3}])


@pytest.fixture(scope="module")
def waves_model():
    """The default structure with waveforms, the same form wherever the tests run."""
    return binary_for(Structure(), trace="vcd")


@pytest.fixture(scope="module")
def catalog(waves_model):
    return Catalog.load(waves_model.parent)


@pytest.fixture(scope="module")
def dumped(waves_model, tmp_path_factory):
    return run(SMALL, tmp_path_factory.mktemp("waves"), waves=WaveRequest(form="vcd")).must_pass()


def request_of(**options):
    return WaveRequest(form="vcd", **options)


# The same run -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"first": 900, "last": 1800}, {"everything": True, "last": 3000}],
    ids=["default", "window", "everything"],
)
def test_waveforms_change_no_cycle(model, dumped, tmp_path, options):
    plain = run(SMALL, tmp_path)
    again = run(SMALL, tmp_path, waves=request_of(**options))
    hashes = {outcome.result["sim"]["event_log_sha256"] for outcome in (plain, again, dumped)}
    assert len(hashes) == 1
    rtl = [
        (binary.parent / "node.v").read_text() for binary in (model, binary_for(Structure(), "vcd"))
    ]
    assert rtl[0] == rtl[1]


def test_idle_skipping_shows_in_no_waveform(dumped, tmp_path):
    """Skipped cycles are gaps in which nothing changes: with and without, every value is equal."""
    slow = run(SMALL, tmp_path, skip_idle=False, waves=request_of())
    for path in BOTH:
        one, two = (Waves(o.directory / f"{path}-waves.vcd") for o in (dumped, slow))
        signals, _ = declared(dumped.directory / f"{path}-waves.vcd")
        assert (one.first, one.last) == (two.first, two.last)
        for name in signals:
            assert one.changes(name) == two.changes(name), name


# The file ---------------------------------------------------------------------------------------


def test_every_path_has_its_file_and_layouts(dumped):
    names = {path.name for path in dumped.directory.iterdir()}
    for path in BOTH:
        assert {f"{path}-waves.{end}" for end in ("vcd", "gtkw", "sucl")} <= names
    assert {"names", ".surfer"} <= names


def test_main_job_makes_a_small_file(waves_model, tmp_path):
    found = run(SCENARIOS / "main-job.toml", tmp_path, waves=request_of()).must_pass()
    files = list(found.directory.glob("*.vcd"))
    assert len(files) == 2
    assert max(file.stat().st_size for file in files) < LIMIT_BYTES


def test_window_and_scope_are_what_is_dumped(waves_model, dumped, tmp_path):
    found = run(
        SMALL,
        tmp_path,
        waves=request_of(first=1000, last=1500, nodes=(0,), blocks=("nic.wire", "nic.doorbell")),
    ).must_pass()
    for path in BOTH:
        file = found.directory / f"{path}-waves.vcd"
        waves = Waves(file)
        assert (waves.first, waves.last) == (1000, 1500)
        blocks = {".".join(name.split(".")[:4]) for name in declared(file)[0]} - {"n1.rst"}
        assert blocks == {"n0.node.nic.wire", "n0.node.nic.doorbell"}
        whole = Waves(dumped.directory / f"{path}-waves.vcd")
        for name in ("wire.on_tx_first__valid", "doorbell.rings__valid", "doorbell.word__index"):
            for cycle in range(1000, 1501):
                path_ = f"n0.node.nic.{name}"
                assert waves.at(path_, cycle) == whole.at(path_, cycle)


def test_scope_all_has_everything_with_a_name(waves_model, catalog, tmp_path):
    found = run(SMALL, tmp_path, 'paths=["ibrc"]', waves=request_of(everything=True, last=0))
    signals, codes = declared(found.directory / "waves.vcd")
    for module, wires in catalog.wires.items():
        shown = {name for name in wires if not name.startswith(("$", "_"))}
        missing = {name for name in shown if f"n1.{module}.{name}" not in signals}
        assert not missing, module
    assert not [name for name in signals if "$" in name.rpartition(".")[2][:1]]


def test_window_in_a_pause_holds_the_state(waves_model, tmp_path):
    """Nothing is evaluated in the window, and the file has it all the same."""
    ops = [{"size": 8, "at_ns": at, "remote_offset": 64 * n} for n, at in enumerate((0, 90_000))]
    found = run(toml(op=ops), tmp_path, waves=request_of(first=50_000, last=60_000)).must_pass()
    waves = Waves(found.directory / "waves.vcd")
    assert (waves.first, waves.last) == (50_000, 60_000)
    assert waves.at("n0.node.nic.wire.on_tx_first__valid", 55_000) == 0
    # The first message has gone through.
    assert waves.at("n0.node.nic.cq_engine.cqe__wqe_counter", 55_000) == 0


def test_window_behind_the_end_is_told_and_leaves_no_file(waves_model, tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    done = bellwire(
        *("run", "small.toml", "--waves", "9000000:", "--wave-format", "vcd", "--out", "here"),
        cwd=tmp_path,
    )
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("bellwire: no waveforms")]
    assert [re.sub(r"\d+", "#", line) for line in lines] == [
        f"bellwire: no waveforms: path {path} ended in cycle #, before the window from # on"
        for path in BOTH
    ]
    assert not list((tmp_path / "here").glob("*waves*"))
    assert json.loads((tmp_path / "here" / "result.json").read_text())["verdict"] == "pass"


def test_missing_and_empty_files_are_told(waves_model, tmp_path):
    def lose(path, work):
        (work / "waves.vcd").write_text("") if path == "ibrc" else (work / "waves.vcd").unlink()

    found = run(SMALL, tmp_path, tamper=lose, waves=request_of())
    assert found.waveless == tuple(f"path {path} left no waveforms (waves.vcd)" for path in BOTH)


def test_command_prints_where_the_files_are(waves_model, tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    done = bellwire(
        *("run", "small.toml", "--waves", ":400", "--wave-format", "vcd", "--out", "here"),
        *("--scope", "wire"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if line.startswith("waveforms: ")]
    assert printed == [f"waveforms: here/{path}-waves.vcd" for path in BOTH]
    assert all((tmp_path / line.partition(" ")[2]).stat().st_size for line in printed)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--waves", "8"], "bellwire: --waves = "),
        (["--waves", "8:2"], "bellwire: --waves = "),
        (["--waves", "--scope", "nic"], "bellwire: --scope = "),
        (["--scope", "wire"], "bellwire: --scope, --wave-format: allowed with --waves only"),
        (["--waves", "--wave-format", "png"], "bellwire run: argument --wave-format: "),
    ],
)
def test_bad_words_are_one_line_and_exit_2(tmp_path, words, said):
    (tmp_path / "small.toml").write_text(SMALL)
    done = bellwire("run", "small.toml", *words, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines()[0].startswith(said)
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


# What viewers get ---------------------------------------------------------------------------------


def test_every_signal_of_the_layouts_is_in_the_dump(dumped):
    for path in BOTH:
        file = dumped.directory / f"{path}-waves.vcd"
        signals, _ = declared(file)
        save = file.with_suffix(".gtkw").read_text()
        named = re.findall(r"^\+\{[^}]+\} (\S+?)(?:\[(\d+):0\])?$", save, re.M)
        assert len(named) > 1000
        assert {name: int(high or 0) + 1 for name, high in named} == {
            name: signals[name] for name, _ in named
        }
        commands = file.with_suffix(".sucl").read_text()
        added = re.findall(r"^variable_add (\S+)$", commands, re.M)
        assert added == [name for name, _ in named]
        # Of what is dumped nothing is hidden but the port that the simulator's filter needs.
        assert set(signals) - set(added) == {"n1.rst"}
        filters = re.findall(r"^\^1 (\S+)$", save, re.M)
        mappings = re.findall(r"^item_set_format (\S+)$", commands, re.M)
        assert filters and mappings
        for name in filters:
            assert (dumped.directory / name).stat().st_size
        for mapping in mappings:
            text = (dumped.directory / ".surfer" / "mappings" / f"{mapping}.txt").read_text()
            assert text.startswith(f"Name = {mapping}\nBits = ")


def test_every_value_of_a_dump_belongs_to_a_declared_signal(dumped):
    """The simulator's filter lets nothing else through."""
    file = dumped.directory / "ibrc-waves.vcd"
    _, codes = declared(file)
    body = file.read_text().partition("$enddefinitions $end\n")[2]
    used = {
        line.split()[1] if line[0] == "b" else line[1:]
        for line in body.splitlines()
        if line and line[0] in "b01"
    }
    assert used and used <= codes


def test_layout_has_the_blocks_in_travel_order(dumped):
    save = (dumped.directory / "ibrc-waves.gtkw").read_text()
    groups = list(dict.fromkeys(re.findall(r"^-(n0 \S+)$", save, re.M)))
    wanted = ["trace", "nic.doorbell", "nic.wq_engine", "nic.gather", "nic.requester", "nic.wire"]
    wanted += ["nic.responder", "gpu_memory", "nic.cq_engine"]
    places = [groups.index(f"n0 {name}") for name in wanted]
    assert places == sorted(places)


def test_fields_of_the_formats_have_names(catalog):
    shown = layout(WaveRequest(), Structure(), 2, catalog)
    fields = {
        (group.block, group.name): {row.label for row in group.rows} for group in shown.groups
    }
    decoder = "nic.wq_engine.decoder"
    assert {"wqe_index", "opcode", "qpn", "ds", "fm_ce_se"} <= fields[decoder, "ctrl"]
    assert {"raddr", "rkey"} <= fields[decoder, "raddr"]
    assert {"byte_count", "lkey", "address"} <= fields[decoder, "data"]
    assert {"wqe_counter", "opcode", "owner", "qpn"} <= fields["nic.cq_engine", "cqe"]
    assert {"bth.opcode", "bth.psn", "bth.dest_qp"} <= fields["nic.requester", "packets"]
    assert {"address", "length", "tag", "mark.kind"} <= fields["fabric.nic_up", "o.reads"]
    assert {"index", "qpn", "ds"} <= fields["nic.doorbell", "word"]


def test_every_state_machine_and_enumeration_is_decoded(catalog):
    """All that the design has: states in the catalog, enumerations in the Verilog."""
    sources = [path for path in (ROOT / "hw").rglob("*.py") if "FSM" in calls(path)]
    assert bool(sources) == bool(catalog.states)
    shown = layout(WaveRequest(), Structure(), 1, catalog)
    rows = {row.path: row for row in shown.rows}
    for path, names in catalog.states.items():
        for name in names:
            assert rows[f"n0.{path}.{name}"].enum
    for row in shown.rows:
        _, _, rest = row.path.partition(".")
        module, _, name = rest.rpartition(".")
        assert not catalog.wires[module][name].enum or row.enum
        assert not row.enum or shown.enums[row.enum]


def calls(path):
    """Names of the methods that a file calls."""
    return {
        node.func.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }


def test_gtkwave_opens_the_layout(dumped, tmp_path):
    tools = [shutil.which(name) for name in ("gtkwave", "xvfb-run")]
    if None in tools:
        pytest.skip("gtkwave and xvfb are not installed")
    script = tmp_path / "look.tcl"
    script.write_text(
        'puts "traces [gtkwave::getTotalNumTraces]"\n'
        "for {set i 0} {$i < [gtkwave::getTotalNumTraces]} {incr i} {\n"
        '  puts "trace [gtkwave::getTraceNameFromIndex $i]"\n}\nexit\n'
    )
    save = dumped.directory / "ibrc-waves.gtkw"
    done = subprocess.run(
        ["xvfb-run", "-a", "gtkwave", save, "-S", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    shown = re.findall(r"^trace (.+)$", done.stdout, re.M)
    lines = save.read_text().splitlines()
    # Labels and group ends have a line of their own; a signal that is not found has no trace.
    wanted = [line for line in lines if line.startswith(("-", "+{"))]
    assert len(shown) == len(wanted) > 1000, done.stdout[-500:] + done.stderr[-500:]


def test_surfer_runs_the_commands(dumped, tmp_path):
    if not shutil.which("surfer"):
        pytest.skip("surfer is not installed")
    if not shutil.which("xvfb-run"):
        pytest.skip("xvfb is not installed")
    commands = tmp_path / "commands.sucl"
    commands.write_text((dumped.directory / "ibrc-waves.sucl").read_text() + "exit\n")
    done = subprocess.run(
        ["xvfb-run", "-a", "surfer", "ibrc-waves.vcd", "--command-file", commands],
        cwd=dumped.directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert "No translator" not in done.stderr and "ERROR" not in done.stderr


# Landmarks --------------------------------------------------------------------------------------


def landmarks_of(waves, number):
    """Cycle of each landmark of a message of node 0, from signals alone.

    One message after the other on one QP, so that its indices tell it from the others.
    """
    near, far = ("n0.node", "n1.node")

    def first(path, member, **wanted):
        return next(
            (
                event
                for event in waves.events(path, member)
                if all(test(event[key]) for key, test in wanted.items())
            ),
            None,
        )

    def equals(value):
        return lambda found: found == value

    marks = {}
    for name in (
        "issue",
        "request_written",
        "proxy_seen",
        "wqe_written",
        "proxy_posted",
        "ring",
        "seen",
    ):
        found = first(f"{near}.trace", f"on_{name}", message=equals(number))
        # Shown in the cycle after the one in which software did it.
        marks[name] = found and {**found, "cycle": found["cycle"] - 1}
    index = marks["wqe_written"]["wqe_index"]
    nic = f"{near}.nic"
    mine = {"wqe_index": equals(index)}
    marks["ring_seen"] = first(f"{nic}.wq_engine", "on_ring_seen", producer=lambda p: p > index)
    marks["fetch_req"] = first(f"{nic}.wq_engine", "on_fetch_requested", **mine)
    marks["fetched"] = first(f"{nic}.wq_engine", "on_fetched", **mine)
    marks["payload_req"] = first(f"{nic}.gather", "on_payload_requested", **mine)
    marks["payload"] = first(f"{nic}.gather", "on_payload_arrived", **mine)
    marks["tx_first"] = first(f"{nic}.wire", "on_tx_first", **mine)
    ends = [RoceOpcode.WRITE_LAST.value, RoceOpcode.WRITE_ONLY.value]
    last = first(f"{nic}.wire", "on_tx_last", opcode=lambda op: op in ends, **mine)
    assert last, "the message's last packet"
    marks["tx_last"], psn = last, last["psn"]
    marks["rx_last"] = first(f"{far}.nic.wire", "on_rx_last", psn=equals(psn))
    marks["ack_rx"] = first(f"{nic}.requester", "on_ack_received", psn=equals(psn))
    landed = {"mark__kind": equals(MarkKind.PAYLOAD_LAST.value), "mark__index": equals(psn)}
    marks["landed"] = last_of(waves, f"{far}.gpu_memory", landed)
    written = {"mark__kind": equals(MarkKind.CQE.value), "mark__index": equals(index)}
    marks["cqe_written"] = last_of(waves, f"{near}.gpu_memory", written) or last_of(
        waves, f"{near}.host_memory", written
    )
    return {name: marks[name]["cycle"] for name in LANDMARKS if marks[name]}


def last_of(waves, memory, wanted):
    """The commit that ends a write."""
    found = [
        event
        for event in waves.events(memory, "on_commit_fabric")
        if event["last"] and all(test(event[key]) for key, test in wanted.items())
    ]
    return found[-1] if found else None


@pytest.mark.parametrize("path", BOTH)
def test_every_landmark_is_found_in_the_signals(dumped, path):
    waves = Waves(dumped.directory / f"{path}-waves.vcd")
    rows = dumped.table(path)
    assert len(rows) == 6
    for number in (1, 4):
        row = rows[number]
        expected = {
            name: int(float(row[f"at_{name}_ns"])) for name in LANDMARKS if row[f"at_{name}_ns"]
        }
        assert landmarks_of(waves, int(row["message"])) == expected
        assert {"issue", "ring", "fetched", "tx_first", "landed", "cqe_written", "seen"} <= set(
            expected
        )


@pytest.mark.parametrize("path", BOTH)
def test_every_event_of_the_log_is_in_the_signals(dumped, path):
    """Kinds that one block emits, all their fields, in their cycle."""
    log = dumped.logs[path]
    waves = Waves(dumped.directory / f"{path}-waves.vcd")
    places = {
        EventKind.FETCHED: ("nic.wq_engine", "on_fetched"),
        EventKind.TX_FIRST: ("nic.wire", "on_tx_first"),
        EventKind.RX_LAST: ("nic.wire", "on_rx_last"),
        EventKind.RETIRED: ("nic.requester", "on_retired"),
        EventKind.CQE_ISSUED: ("nic.cq_engine", "on_issued"),
    }
    for kind, (block, member) in places.items():
        table = log.of(kind)
        assert len(table["cycle"])
        names = [name for name in table if name != "node"]
        wanted = sorted(
            (node, *values)
            for node, *values in zip(
                table["node"].tolist(), *(table[n].tolist() for n in names), strict=True
            )
        )
        found = sorted(
            (node, *(event[name] for name in names))
            for node in (0, 1)
            for event in waves.events(f"n{node}.node.{block}", member)
        )
        assert found == wanted, kind


# The window of a message --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(waves_model, tmp_path_factory):
    """A run without waveforms."""
    return run(SMALL, tmp_path_factory.mktemp("recorded")).must_pass()


def test_message_is_dumped_from_an_earlier_run(recorded, tmp_path):
    done = bellwire("waves", recorded.directory, "--message", 4, "--out", "again", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines == [
        line
        for path in BOTH
        for line in (f"waveforms: again/{path}-waves.vcd", f"picture: again/{path}-waves.svg")
    ]
    result = json.loads((tmp_path / "again" / "result.json").read_text())
    assert result["sim"]["event_log_sha256"] == recorded.result["sim"]["event_log_sha256"]
    for path in BOTH:
        row = recorded.table(path)[4]
        times = [int(float(row[f"at_{name}_ns"])) for name in LANDMARKS if row[f"at_{name}_ns"]]
        waves = Waves(tmp_path / "again" / f"{path}-waves.vcd")
        assert (waves.first, waves.last) == window({"issue": min(times), "seen": max(times)})
        assert landmarks_of(waves, 4) == {
            name: int(float(row[f"at_{name}_ns"])) for name in LANDMARKS if row[f"at_{name}_ns"]
        }
        svg = (tmp_path / "again" / f"{path}-waves.svg").read_text()
        assert "message 4" in svg and "on_tx_first" in svg


def test_another_run_than_the_recorded_one_is_told(recorded, tmp_path):
    copy = shutil.copytree(recorded.directory, tmp_path / "copy")
    text = (copy / "scenario.toml").read_text()
    (copy / "scenario.toml").write_text(re.sub(r"(?m)^cqe_ns = .*$", "cqe_ns = 300", text))
    done = bellwire("waves", copy, "--window", "100:200", "--scope", "wire", cwd=tmp_path)
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if "not the same run" in line]
    assert [line.split(":")[1].strip() for line in told] == [f"path {path}" for path in BOTH]
    assert (tmp_path / "copy-cycles-100" / "ibrc-waves.vcd").stat().st_size


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "--message", "1"], 'bellwire: RUN = "nowhere": allowed the folder of an earl'),
        (["RUN", "--message", "6"], "bellwire: --message = 6: allowed 0 to 5"),
        (["RUN", "--window", "9"], 'bellwire: --window = "9": allowed FROM:TO in cycles'),
        (["RUN", "--window", ":", "--scope", "x"], 'bellwire: --scope = "x": '),
        (["RUN", "--message", "-1"], "bellwire waves: "),
        (["RUN"], "bellwire waves: one of the arguments --message --window is required"),
        (["RUN", "--message", "1", "--window", ":"], "bellwire waves: argument --window: not all"),
    ],
)
def test_what_is_no_run_is_one_line_and_exit_2(recorded, tmp_path, words, said):
    words = [str(recorded.directory) if word == "RUN" else word for word in words]
    done = bellwire("waves", *words, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines()[0].startswith(said)
    assert not list(tmp_path.iterdir())


def test_picture_of_the_docs_is_not_stale(waves_model, tmp_path):
    """Rows, landmarks and their order; what a constant moves by a cycle makes no new picture."""

    def shape(svg):
        return [
            re.sub(r" \+\d+|\d+ to \d+", "", text) for text in re.findall(r">([^<>]+)</text>", svg)
        ]

    made = picture(tmp_path, Progress(StringIO()))
    assert shape(made) == shape(PICTURE.read_text()), "run `python -m sim.waves.shipped`"
