"""The entry point of ``topoccl`` and ``python -m topoccl``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

from topoccl import __version__
from topoccl.collectives.cli.ending import BAD_USAGE, INTERRUPTED, READER_GONE
from topoccl.collectives.config import ConfigWarning, trace_requested
from topoccl.collectives.errors import TopocclError, one_line


class Command(NamedTuple):
    """One subcommand: it lives in module ``topoccl.collectives.cli.<name>``, which is imported only when it is chosen."""

    name: str
    help: str


COMMANDS = (
    Command("topo", "show the fabric: discovered, read from a file, or generated"),
    Command("doctor", "report what is wrong with this host, with a job's hosts, or with a description of a fabric"),
    Command("explain", "show every candidate for a collective, its predicted time, and why one is chosen"),
    Command("bound", "print the least time that a collective takes on a fabric, and the cut that proves it"),
    Command("check", "prove a schedule in MSCCL's XML right or wrong, and say how far from optimal it is"),
    Command("simulate", "estimate an all_reduce on a fabric of up to tens of thousands of ranks, algorithm by algorithm"),
    Command("bench", "time a collective under mpirun, in the manner of nccl-tests"),
    Command("probe", "measure the network between the ranks of a job, write its topology"),
    Command("tune", "measure a job's collectives on its fabric, write what is fastest and what the cost model has to know"),
    Command("lab", "run a command on a virtual cluster of network namespaces"),
    Command("env", "show the configuration and where each value comes from"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status: 0, what the command returned, or 2 for bad input."""
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", ConfigWarning)
            warnings.showwarning = _show_warning
            status = _run(argv)
            sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader has gone (`| head`). Point stdout elsewhere, or the interpreter complains when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except (TopocclError, ValueError, OSError) as error:  # TopologyError is a ValueError
        if trace_requested(os.environ):
            raise
        print(f"topoccl: error: {one_line(error)}", file=sys.stderr)
        return BAD_USAGE


def _run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="topoccl", description="Topology-aware collective communication for PyTorch and NumPy.")
    parser.add_argument("--version", action="version", version=f"topoccl {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in argv if not word.startswith("-")), None)  # no option before the command takes a value
    module: ModuleType | None = None
    for command in COMMANDS:
        if command.name == chosen:
            module = importlib.import_module(f"topoccl.collectives.cli.{command.name}")
            module.add_parser(subparsers)
        else:
            subparsers.add_parser(command.name, help=command.help)
    args = parser.parse_args(argv)
    assert module is not None  # else the parser has ended the program: a command is required, and must be one of COMMANDS
    status = module.run(args)
    assert isinstance(status, int)
    return status


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> None:
    print(f"topoccl: warning: {message}", file=sys.stderr)
