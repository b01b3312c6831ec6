"""The command `bellwire`.

Exit codes: 0 ran and every check held; 1 ran and a check failed; 2 the input is bad, nothing was
run; 3 the environment is. Errors go to stderr, in one line first.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, NoReturn

from .schema import BadInput
from .toolchain import WAVE_FORMATS, BuildError

__all__ = ["main"]

PASSED, FAILED, BAD_INPUT, BAD_ENVIRONMENT = range(4)


class _Parser(argparse.ArgumentParser):
    """Reports a bad command line in one line, and only then how it is meant."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}", file=sys.stderr)
        self.print_usage(sys.stderr)
        raise SystemExit(BAD_INPUT)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="bellwire",
        allow_abbrev=False,
        description="Cycle-approximate model of the path from a GPU thread through an RDMA NIC.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)

    run = verbs.add_parser("run", help="run a scenario", allow_abbrev=False)
    run.add_argument("scenario", metavar="SCENARIO.toml", type=Path)
    run.add_argument(
        "--set",
        metavar="table.key=value",
        action="append",
        default=[],
        dest="overrides",
        help="override a key; the value is TOML; workload.0.count=8 reaches into a list",
    )
    run.add_argument("--seed", type=_seed, metavar="N")
    run.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="run directory (default: runs/<scenario>-<hashes>-<seed>)",
    )
    run.add_argument(
        "--waves",
        nargs="?",
        const=":",
        metavar="FROM:TO",
        help="waveforms, of these cycles (default: all)",
    )
    _wave_options(run)
    run.add_argument(
        "--pcap",
        nargs="?",
        type=_ip_version,
        const=4,
        default=0,
        metavar="4|6",
        help="captures of the links, over this version of IP (default: 4)",
    )
    run.add_argument("--json", action="store_true", help="print the result file alone")
    run.set_defaults(action=_run)

    regress = verbs.add_parser(
        "regress", help="run all scenarios and compare exact figures", allow_abbrev=False
    )
    regress.add_argument("folder", metavar="FOLDER", type=Path, nargs="?", default="scenarios")
    regress.add_argument(
        "--only", metavar="NAME", action="append", default=[], help="this scenario alone"
    )
    regress.add_argument(
        "--accept", action="store_true", help="keep the figures that came out, and say which"
    )
    regress.add_argument("-j", type=_jobs, metavar="N", dest="jobs", help="scenarios at a time")
    regress.add_argument(
        "--out", type=Path, metavar="DIR", default="runs/regress", help="run directories, reports"
    )
    regress.add_argument("--junit", type=Path, metavar="FILE", help="default: DIR/junit.xml")
    regress.add_argument("--summary", type=Path, metavar="FILE", help="default: DIR/summary.md")
    regress.set_defaults(action=_regress)

    _waves_verb(verbs)

    verbs.add_parser(
        "presets", help="platforms that are shipped, with their constants"
    ).set_defaults(action=_presets)

    explain = verbs.add_parser(
        "explain", help="what a key means, and where a preset's value comes from"
    )
    explain.add_argument("key", metavar="KEY", help="table.key, or a key, or a table")
    explain.set_defaults(action=_explain)

    schema = verbs.add_parser("schema", help="keys of a scenario, names of a result")
    schema.add_argument("which", choices=("scenario", "result"))
    schema.set_defaults(action=_schema)

    bench = verbs.add_parser("bench", help="speed of the model itself", allow_abbrev=False)
    bench.add_argument("--json", action="store_true", help="print the figures alone")
    bench.add_argument(
        "--write", type=Path, metavar="PAGE.md", help="also put them into their section of a page"
    )
    bench.set_defaults(action=_bench)

    verbs.add_parser("doctor", help="what this machine lacks").set_defaults(action=_doctor)
    return parser


def _waves_verb(verbs: Any) -> None:
    """`bellwire waves`."""
    waves = verbs.add_parser(
        "waves", help="run an earlier run again, with waveforms of a window", allow_abbrev=False
    )
    waves.add_argument("run", metavar="RUN", type=Path, help="its run directory")
    which = waves.add_mutually_exclusive_group(required=True)
    which.add_argument("--message", type=_number, metavar="N", help="from its issue to seen")
    which.add_argument("--window", metavar="FROM:TO", help="cycles")
    waves.add_argument(
        "--out", type=Path, metavar="DIR", help="run directory (default: RUN-message-N, beside it)"
    )
    _wave_options(waves)
    waves.set_defaults(action=_waves)


def _integer(text: str) -> int | None:
    """A number in plain digits, as many as anything here may have; None: it is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else None


def _number(text: str) -> int:
    number = _integer(text)
    if number is None:
        raise argparse.ArgumentTypeError(
            f"--message = {text[:40]}: allowed the number of a message"
        )
    return number


def _wave_options(parser: argparse.ArgumentParser) -> None:
    """What is dumped, and how."""
    parser.add_argument(
        "--scope",
        default="",
        metavar="NAMES",
        help="blocks and nodes (wire,doorbell,n0), or all; default: events, streams and formats",
    )
    parser.add_argument(
        "--wave-format",
        choices=WAVE_FORMATS,
        default="",
        help="default of run: fst where lz4.h is installed, else vcd; of waves: vcd",
    )


def _seed(text: str) -> int:
    number = _integer(text)
    if number is None or number >= 1 << 32:
        raise argparse.ArgumentTypeError(f"--seed = {text[:40]}: allowed 0 to {(1 << 32) - 1}")
    return number


def _ip_version(text: str) -> int:
    if text not in ("4", "6"):
        raise argparse.ArgumentTypeError(f"--pcap = {text}: allowed 4, 6")
    return int(text)


def _jobs(text: str) -> int:
    number = _integer(text)
    if number is None or not 1 <= number <= 256:
        raise argparse.ArgumentTypeError(f"-j = {text[:40]}: allowed 1 to 256")
    return number


def _run(arguments: argparse.Namespace) -> int:
    from .scenario import load

    scenario = load(arguments.scenario, arguments.overrides, arguments.seed)

    from .launch import LaunchError
    from .progress import Progress
    from .report.tables import report
    from .run import RunOptions, execute
    from .waves.request import parse

    waves = None
    if arguments.waves is not None:
        form, nodes = arguments.wave_format, scenario.nodes.count
        waves = parse(arguments.waves, arguments.scope, form, scenario.structure, nodes)
    elif arguments.scope or arguments.wave_format:
        raise BadInput("bellwire", "--scope, --wave-format", MISSING, "allowed with --waves only")
    progress = Progress(sys.stderr)
    try:
        run = execute(
            scenario, RunOptions(out=arguments.out, waves=waves, pcap=arguments.pcap), progress
        )
    except (BuildError, LaunchError) as error:
        print(f"bellwire: {error}", file=sys.stderr)
        return BAD_ENVIRONMENT
    result = run.result
    if result["failures"]:
        print(
            f"bellwire: {result['verdict']}: {result['failures'][0]}"
            + (f" (and {len(result['failures']) - 1} more)" if len(result["failures"]) > 1 else ""),
            file=sys.stderr,
        )
        again = shlex.quote(_shown(run.directory / "scenario.toml"))
        print(f"replay: {_command()} run {again}", file=sys.stderr)
    for line in run.waveless:
        print(f"bellwire: no waveforms: {line}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        print(report(result))
        print(f"run directory: {_shown(run.directory)}")
        for place in run.waves.values():
            print(f"waveforms: {_shown(place)}")
        for place in run.captures:
            print(f"capture: {_shown(place)}")
    return PASSED if result["verdict"] == "pass" and not run.waveless else FAILED


def _waves(arguments: argparse.Namespace) -> int:
    from .launch import LaunchError
    from .progress import Progress
    from .waves.request import parse
    from .waves.rerun import Recorded, rerun

    recorded = Recorded.load(arguments.run)
    scenario, form = recorded.scenario, arguments.wave_format or "vcd"
    window, nodes = arguments.window or ":", scenario.nodes.count
    request = parse(window, arguments.scope, form, scenario.structure, nodes, "--window")
    try:
        run, differences = rerun(
            recorded, request, arguments.message, arguments.out, Progress(sys.stderr)
        )
    except (BuildError, LaunchError) as error:
        print(f"bellwire: {error}", file=sys.stderr)
        return BAD_ENVIRONMENT
    for line in (*(f"no waveforms: {line}" for line in run.waveless), *differences):
        print(f"bellwire: {line}", file=sys.stderr)
    for place in run.waves.values():
        print(f"waveforms: {_shown(place)}")
        if (picture := place.with_suffix(".svg")).exists():
            print(f"picture: {_shown(picture)}")
    return FAILED if run.waveless or differences else PASSED


def _regress(arguments: argparse.Namespace) -> int:
    from .launch import LaunchError
    from .regress import Options, cores, regress

    options = Options(
        folder=arguments.folder,
        only=tuple(arguments.only),
        accept=arguments.accept,
        jobs=arguments.jobs or cores(),
        out=arguments.out,
        junit=arguments.junit,
        summary=arguments.summary,
        command=_command(),
    )
    try:
        return PASSED if regress(options, sys.stdout, sys.stderr) else FAILED
    except (BuildError, LaunchError) as error:
        print(f"bellwire: {error}", file=sys.stderr)
        return BAD_ENVIRONMENT
    except KeyboardInterrupt:
        print("bellwire: interrupted, nothing was accepted", file=sys.stderr)
        return FAILED


def _command() -> str:
    """How this command is called from here, such as `.venv/bin/bellwire`."""
    called = Path(sys.argv[0])
    if called.name == "bellwire":
        # As the shell found it, or by its place.
        return shlex.quote(_shown(called) if len(called.parts) > 1 else called.name)
    return f"{shlex.quote(sys.executable)} -m sim.cli"


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _presets(arguments: argparse.Namespace) -> int:
    from .explain import presets_text

    print(presets_text())
    return PASSED


def _explain(arguments: argparse.Namespace) -> int:
    from .explain import explain_text

    print(explain_text(arguments.key))
    return PASSED


def _schema(arguments: argparse.Namespace) -> int:
    if arguments.which == "result":
        from .result import schema_text

        print(schema_text())
    else:
        from .explain import scenario_text

        print(scenario_text())
    return PASSED


def _bench(arguments: argparse.Namespace) -> int:
    from .report.page import check_section, write_section

    if arguments.write:
        check_section(arguments.write, "bench")

    from .launch import LaunchError
    from .progress import Progress
    from .speed import bars
    from .speed.measure import measure

    try:
        figures = measure(Progress(sys.stderr))
    except (BuildError, LaunchError) as error:
        print(f"bellwire: {error}", file=sys.stderr)
        return BAD_ENVIRONMENT
    for text in bars.missed(figures):
        print(f"bellwire: {text}", file=sys.stderr)
    print(json.dumps(figures, indent=1) if arguments.json else bars.table(figures))
    if arguments.write:
        write_section(arguments.write, "bench", bars.section(figures))
    return FAILED if bars.missed(figures) else PASSED


def _doctor(arguments: argparse.Namespace) -> int:
    from .doctor import main as doctor

    return doctor()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    try:
        arguments = _parser().parse_args(argv)
        return arguments.action(arguments)
    except BadInput as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    except SystemExit as end:
        return int(end.code or 0)
    except KeyboardInterrupt:
        print("bellwire: interrupted, nothing was run", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        sys.stderr.close()
        return PASSED


if __name__ == "__main__":
    sys.exit(main())
