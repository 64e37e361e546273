"""``topoccl probe``: measures the network between the ranks of a job and writes a topology file."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path

from topoccl.collectives.bootstrap import LaunchInfo, exchange_or_raise, launch_environment
from topoccl.collectives.cli import Subparsers
from topoccl.collectives.cli.ending import fail
from topoccl.collectives.cli.jobs import Parser, budget, obstacle, progress, silence, write_whole
from topoccl.collectives.config import Config, trace_requested
from topoccl.collectives.errors import ConfigError, TopocclError, one_line
from topoccl.collectives.network import for_measuring
from topoccl.collectives.opening import open_job
from topoccl.collectives.probe.report import summary
from topoccl.collectives.probe.runner import probe
from topoccl.collectives.transports.base import Transport
from topoccl.topology.dump import dump
from topoccl.topology.graph import TopologyError


def add_parser(subparsers: Subparsers) -> None:
    # No argument begins with the null character: options are read by run(), where it is known which rank this is.
    parser = subparsers.add_parser(
        "probe", help="measure the network between the ranks of a job, write its topology", add_help=False, prefix_chars="\0"
    )
    parser.add_argument("argv", nargs="*")


def run(args: argparse.Namespace) -> int:
    info = launch_environment(os.environ)
    options = _options(args.argv, info)
    try:
        met, config = open_job(info, transport=options.transport)
        transport = for_measuring(met, config, config.logger(met.rank))
        _probe(transport, config, options)
        transport.close()
    except (TopocclError, TopologyError, OSError) as error:
        if trace_requested(os.environ):
            raise
        fail(f"topoccl: error: {one_line(error)}", info.rank, info.size)
    return 0


def _probe(transport: Transport, config: Config, options: argparse.Namespace) -> None:
    """Everything between opening and closing. An error of rank 0 alone is raised on every rank."""
    first = transport.rank == 0
    output: Path | None = options.output
    exchange_or_raise(transport, obstacle(output) if first and output else None, config.timeout)
    with progress("probe") if first and not options.quiet else nullcontext(silence) as report:
        found = probe(transport, config, options.budget, report)
    problem: Exception | None = None
    if found is not None:
        text = dump(found.topology, style="json" if output is not None and output.suffix.lower() == ".json" else "yaml")
        try:
            if output is None:
                sys.stdout.write(text)
            else:
                write_whole(output, text)
                print(summary(found.table, found.topology, found.seconds))
            sys.stdout.flush()
        except OSError as error:
            problem = ConfigError(f"cannot write {output or 'the topology'}: {error.strerror}")
    exchange_or_raise(transport, problem, config.timeout)


def _options(argv: list[str], job: LaunchInfo) -> argparse.Namespace:
    parser = Parser(
        prog="topoccl probe",
        description="Measures the network between the ranks of this job (mpirun or torchrun, one rank or more on each host) and writes "
        "the topology that explains it, which TOPOCCL_TOPO_FILE and --topology take.",
        epilog="docs/probe.md says what is measured, and how the structure is inferred.",
        allow_abbrev=False,
    )
    parser.job = job
    add = parser.add_argument
    add("-o", "--output", type=Path, metavar="FILE", help="write there (YAML, or JSON if FILE ends in .json), not to standard output")
    add("--budget", type=budget, default="60s", metavar="TIME", help="time for all measurements, such as 60s or 5min (60s)")
    add("--transport", metavar="NAME", help="in place of TOPOCCL_TRANSPORT: auto, tcp, mpi or gloo")
    add("-q", "--quiet", action="store_true", help="show no progress")
    return parser.parse_args(argv)
