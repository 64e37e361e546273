"""``topoccl probe``: measures the network between the ranks of a job and writes a topology file."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

from topoccl.collectives.bootstrap import LaunchInfo, exchange_or_raise, launch_environment
from topoccl.collectives.cli import Subparsers
from topoccl.collectives.config import Config, trace_requested
from topoccl.collectives.errors import ConfigError, TopocclError
from topoccl.collectives.opening import open_job
from topoccl.collectives.probe.report import summary
from topoccl.collectives.probe.runner import Report, probe
from topoccl.collectives.transports.base import Transport
from topoccl.topology.dump import dump
from topoccl.topology.graph import TopologyError
from topoccl.topology.units import parse_time

BAD_USAGE = 2
_PATIENCE = 1.0  # seconds that rank 0 has for telling what all ranks know, and for ending them


class _Parser(argparse.ArgumentParser):
    """Ranks other than 0 say nothing about what every rank notices."""

    speaks = True

    def error(self, message: str) -> NoReturn:
        if self.speaks:
            super().error(message)
        raise SystemExit(BAD_USAGE)

    def print_help(self, file: Any = None) -> None:
        if self.speaks:
            super().print_help(file)


def add_parser(subparsers: Subparsers) -> None:
    # No argument begins with the null character: options are read by run(), where it is known which rank this is.
    parser = subparsers.add_parser(
        "probe", help="measure the network between the ranks of a job, write its topology", add_help=False, prefix_chars="\0"
    )
    parser.add_argument("argv", nargs="*")


def run(args: argparse.Namespace) -> int:
    info = launch_environment(os.environ)
    options = _options(args.argv, speaks=info.rank == 0)
    try:
        transport, config = open_job(info, transport=options.transport)
        _probe(transport, config, options)
        transport.close()
    except (TopocclError, TopologyError, OSError) as error:
        if trace_requested(os.environ):
            raise
        _fail(error, info)
    return 0


def _probe(transport: Transport, config: Config, options: argparse.Namespace) -> None:
    """Everything between opening and closing. An error of rank 0 alone is raised on every rank."""
    first = transport.rank == 0
    output: Path | None = options.output
    exchange_or_raise(transport, _obstacle(output) if first and output else None, config.timeout)
    with _progress() if first and not options.quiet else nullcontext(_silence) as progress:
        found = probe(transport, config, options.budget, progress)
    problem: Exception | None = None
    if found is not None:
        text = dump(found.topology, style="json" if output is not None and output.suffix.lower() == ".json" else "yaml")
        try:
            if output is None:
                sys.stdout.write(text)
            else:
                _write_whole(output, text)
                print(summary(found.table, found.topology, found.seconds))
            sys.stdout.flush()
        except OSError as error:
            problem = ConfigError(f"cannot write {output or 'the topology'}: {error.strerror}")
    exchange_or_raise(transport, problem, config.timeout)


def _options(argv: list[str], speaks: bool) -> argparse.Namespace:
    parser = _Parser(
        prog="topoccl probe",
        description="Measures the network between the ranks of this job (mpirun or torchrun, one rank or more on each host) and writes "
        "the topology that explains it, which TOPOCCL_TOPO_FILE and --topology take.",
        epilog="docs/probe.md says what is measured, and how the structure is inferred.",
        allow_abbrev=False,
    )
    parser.speaks = speaks
    add = parser.add_argument
    add("-o", "--output", type=Path, metavar="FILE", help="write there (YAML, or JSON if FILE ends in .json), not to standard output")
    add("--budget", type=_budget, default="60s", metavar="TIME", help="time for all measurements, such as 60s or 5min (60s)")
    add("--transport", metavar="NAME", help="in place of TOPOCCL_TRANSPORT: auto, mpi or gloo")
    add("-q", "--quiet", action="store_true", help="show no progress")
    return parser.parse_args(argv)


def _budget(text: str) -> float:
    try:
        seconds = parse_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is too short; expected at least 1s")
    return seconds


def _obstacle(output: Path) -> ConfigError | None:
    """Why nothing can be written at ``output``, found out before measuring."""
    if output.is_dir():
        return ConfigError(f"cannot write {output}: it is a directory")
    if not output.parent.is_dir():
        return ConfigError(f"cannot write {output}: there is no directory {output.parent}")
    if not os.access(output.parent, os.W_OK) or (output.exists() and not os.access(output, os.W_OK)):
        return ConfigError(f"cannot write {output}: no permission")
    return None


def _write_whole(output: Path, text: str) -> None:
    """All of it or nothing."""
    partial = output.with_name(f"{output.name}.{os.getpid()}.tmp")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, output)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def _progress() -> Iterator[Report]:
    """A bar on a terminal; elsewhere a line for each step. On standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        seen: set[str] = set()

        def line(step: str, done: int, total: int) -> None:
            if step not in seen:
                seen.add(step)
                print(f"probe: {step} ...", file=sys.stderr, flush=True)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("probe")

        def show(step: str, done: int, total: int) -> None:
            bars.update(task, description=f"probe: {step}", completed=done, total=total)

        yield show


def _silence(step: str, done: int, total: int) -> None:
    pass


def _fail(error: Exception, info: LaunchInfo) -> NoReturn:
    """Ends the job with one line. Most errors befall all ranks alike: then only rank 0 gets to tell.

    Nothing is closed in order (MPI_Finalize, threads): that would wait for ranks that may be waiting for this one.
    """
    text = " ".join(str(error).split())
    if info.rank:
        time.sleep(_PATIENCE)
        text = f"rank {info.rank} of {info.size}: {text}"
    print(f"topoccl: error: {text}", file=sys.stderr, flush=True)
    os._exit(BAD_USAGE)
