"""``topoccl tune``: measures the candidates of a job's collectives on its fabric and writes a tuning file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from topoccl.algorithms.select import Selector
from topoccl.algorithms.spec import canonical_collective
from topoccl.algorithms.tuning import TuningError, dump_tuning, load_tuning, merge
from topoccl.algorithms.tuning.nccl import CsvError, asked_by, read_csv, write_csv
from topoccl.collectives.bootstrap import LaunchInfo, exchange_or_raise, launch_environment
from topoccl.collectives.cli import Subparsers
from topoccl.collectives.cli.ending import fail
from topoccl.collectives.cli.jobs import Parser, budget, obstacle, progress, silence, write_whole
from topoccl.collectives.communicator import Communicator
from topoccl.collectives.config import trace_requested
from topoccl.collectives.errors import ConfigError, TopocclError, one_line
from topoccl.collectives.opening import open_job
from topoccl.collectives.setup import connect
from topoccl.collectives.tune.check import as_rows
from topoccl.collectives.tune.report import check_summary, summary
from topoccl.collectives.tune.runner import check, tune
from topoccl.collectives.tune.work import TUNED
from topoccl.topology.graph import TopologyError
from topoccl.topology.units import parse_size

COLLECTIVES = "all_reduce,all_gather,reduce_scatter,all_to_all,broadcast"


def add_parser(subparsers: Subparsers) -> None:
    # As for probe: options are read by run(), where it is known which rank this is.
    parser = subparsers.add_parser("tune", help="measure a job's collectives on its fabric", add_help=False, prefix_chars="\0")
    parser.add_argument("argv", nargs="*")


def run(args: argparse.Namespace) -> int:
    info = launch_environment(os.environ)
    options = _options(args.argv, info)
    if options.merge:
        return _merge(options.merge, options.output)
    try:
        transport, config = open_job(info, transport=options.transport, tune_file="", algo="")
        communicator = connect(transport, config)
        (_check if options.check else _tune)(communicator, options)
        communicator.close()
    except (TopocclError, TopologyError, TuningError, OSError) as error:
        if trace_requested(os.environ):
            raise
        fail(f"topoccl: error: {one_line(error)}", info.rank, info.size)
    return 0


def _tune(communicator: Communicator, options: argparse.Namespace) -> None:
    """Everything between opening and closing. An error of rank 0 alone is raised on every rank, and then no file is written."""
    first, transport = communicator.rank == 0, communicator.transport
    output: Path = options.output
    exchange_or_raise(transport, _prepare(options) if first else None, communicator.timeout)
    hosts = len(communicator.topology.ranks_by_host)

    def asked(collective: str, nbytes: int) -> tuple[str, ...]:
        return asked_by(options.preferences, hosts, communicator.size, collective, nbytes)

    with progress("tune") if first and not options.quiet else nullcontext(silence) as report:
        found = tune(communicator, options.collectives, options.sizes, options.budget, asked, report)
    problem: Exception | None = None
    if found is not None:
        try:
            write_whole(output, dump_tuning(found.tuning))
            print(summary(found, output))
            if options.export is not None:
                output = options.export
                text, left = write_csv(found.tuning)
                write_whole(output, text)
                print(f"{output}: {text.count(',simple,')} lines for NCCL" + _listed(left))
            sys.stdout.flush()
        except OSError as error:
            problem = ConfigError(f"cannot write {output}: {error.strerror}")
    exchange_or_raise(transport, problem, communicator.timeout)


def _check(communicator: Communicator, options: argparse.Namespace) -> None:
    """Compares what is chosen without a tuning file, and with one if it is given, with what is fastest."""
    first, transport, output = communicator.rank == 0, communicator.transport, options.output_file
    ways: dict[str, Selector] = {}
    problem: Exception | None = None
    if first:
        try:
            problem = obstacle(output) if output is not None else None
            ways = _ways(communicator, options.tune_file)
        except TuningError as error:
            problem = error
    exchange_or_raise(transport, problem, communicator.timeout)
    with progress("tune --check") if first and not options.quiet else nullcontext(silence) as report:
        found = check(communicator, ways, options.collectives, options.sizes, options.budget, report)
    if found is not None:
        try:
            if output is not None:
                topology = communicator.topology
                about = {"topology": topology.name, "digest": topology.digest, "ranks": topology.num_ranks, "transport": transport.name}
                write_whole(output, json.dumps({**about, "calls": as_rows(found)}, indent=1) + "\n")
            print(check_summary(found), flush=True)
        except OSError as error:
            problem = ConfigError(f"cannot write {output}: {error.strerror}")
    exchange_or_raise(transport, problem, communicator.timeout)


def _ways(communicator: Communicator, path: Path | None) -> dict[str, Selector]:
    """What a program would choose by."""
    usual = communicator.planner.selector
    ways = {"defaults": usual}
    if path is not None:
        topology, transport = communicator.topology, communicator.transport.name
        tuning = load_tuning(path)
        mismatch = tuning.mismatch(topology, transport)
        if mismatch is not None:
            print(f"topoccl: warning: {mismatch}", file=sys.stderr)
        profile = tuning.calibrate(usual.profile, topology, transport)
        ways[path.name] = Selector(topology, None, profile, tuning=tuning.at(topology, transport))
    return ways


def _merge(paths: Sequence[Path], output: Path) -> int:
    """One file of several; no job is needed."""
    try:
        problem = obstacle(output)
        if problem is not None:
            raise problem
        merged = merge([load_tuning(path) for path in paths])
        write_whole(output, dump_tuning(merged))
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror}") from None
    parts = merged.parts
    print(f"{output}: {sum(len(part.entries) for part in parts)} measurements in {len(parts)} place{'s' if len(parts) > 1 else ''}")
    return 0


def _prepare(options: argparse.Namespace) -> Exception | None:
    """Reads what is imported; returns what is in the way, found out before anything is measured."""
    options.preferences = []
    problem = obstacle(options.output) or (obstacle(options.export) if options.export is not None else None)
    if problem is not None or options.imported is None:
        return problem
    try:
        options.preferences, left = read_csv(options.imported.read_text(encoding="utf-8"), str(options.imported))
    except UnicodeDecodeError:
        return ConfigError(f"{options.imported}: not a text in UTF-8")
    except OSError as error:
        return ConfigError(f"cannot read {options.imported}: {error.strerror}")
    except CsvError as error:
        return ConfigError(str(error))
    if not options.quiet:
        print(f"{options.imported}: {len(options.preferences)} lines are measured first{_listed(left)}")
    return None


def _listed(left: Sequence[str]) -> str:
    """What has no counterpart, for the end of a sentence."""
    return f"; without a counterpart: {'; '.join(left)}" if left else ""


def _options(argv: list[str], job: LaunchInfo) -> argparse.Namespace:
    parser = Parser(
        prog="topoccl tune",
        description="Measures collectives among the ranks of this job (mpirun or torchrun) with all algorithms and numbers of segments "
        "that may be fast, fits the cost model to the fabric, and writes both into a file for TOPOCCL_TUNE_FILE and explain --tune-file.",
        epilog="docs/tuning.md says what is measured and what the file holds. It is written when all is measured; until then, and after "
        "Ctrl-C or an error, FILE is as it was.",
        allow_abbrev=False,
    )
    parser.job = job
    add = parser.add_argument
    add("collectives", nargs="?", type=_collectives, default=COLLECTIVES, help=f"separated by commas ({COLLECTIVES})")
    add("-b", "--minbytes", type=_size, default="4K", metavar="SIZE", help="smallest size, as nccl-tests counts it (4K)")
    add("-e", "--maxbytes", type=_size, default="8M", metavar="SIZE", help="largest size (8M)")
    add("-f", "--stepfactor", type=int, default=4, metavar="N", help="factor between sizes (4)")
    add("-o", "--output", type=Path, metavar="FILE", help="write the tuning file there")
    add("--check", action="store_true", help="write nothing; measure whether what is chosen is the fastest")
    add("--tune-file", type=Path, metavar="FILE", help="with --check: also what is chosen with this tuning file")
    add("-J", "--output_file", type=Path, metavar="FILE", help="with --check: also write all times as JSON")
    add("--merge", type=Path, nargs="+", metavar="FILE", help="measure nothing; make one tuning file of these")
    add("--budget", type=budget, default="60s", metavar="TIME", help="time for all of it, such as 60s or 5min (60s)")
    add("--transport", metavar="NAME", help="in place of TOPOCCL_TRANSPORT: auto, tcp, mpi or gloo")
    add("--import", dest="imported", type=Path, metavar="FILE.csv", help="measure what this table of NCCL's tuner plugin asks for, first")
    add("--export", type=Path, metavar="FILE.csv", help="also write a table for NCCL's tuner plugin")
    add("-q", "--quiet", action="store_true", help="show no progress")
    options = parser.parse_args(argv)
    _consistent(parser, options)
    if options.stepfactor < 2 or options.minbytes > options.maxbytes:
        parser.error("expected -f of at least 2, and -b at most -e")
    options.sizes = []
    size = options.minbytes
    while size <= options.maxbytes:
        options.sizes.append(size)
        size *= options.stepfactor
    return options


def _consistent(parser: Parser, options: argparse.Namespace) -> None:
    """Ends with what is wrong if options do not go together."""
    only = {"--tune-file": options.tune_file, "-J": options.output_file}
    alone = [name for name, value in only.items() if value is not None and not options.check]
    tuning = {"-o": options.output, "--import": options.imported, "--export": options.export}
    unused = [name for name, value in tuning.items() if value is not None and options.check]
    if alone:
        parser.error(f"{alone[0]}: only with --check")
    if unused:
        parser.error(f"{unused[0]}: not with --check, which writes no tuning file")
    if options.merge and options.check:
        parser.error("--merge: not with --check")
    if options.merge and (options.imported is not None or options.export is not None):
        parser.error("--merge: not with --import or --export")
    if options.output is None and not options.check:
        parser.error("the following arguments are required: -o/--output")


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < 4:
        raise argparse.ArgumentTypeError(f"{text!r} is too small; expected at least 4 bytes, one float32")
    return size


def _collectives(text: str) -> list[str]:
    names = []
    for part in text.split(","):
        try:
            name = canonical_collective(part)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if name not in TUNED:
            raise argparse.ArgumentTypeError(f"{part!r} cannot be tuned; expected some of {', '.join(TUNED)}")
        names.append(name)
    return list(dict.fromkeys(names))
