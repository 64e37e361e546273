"""``topoccl bench``: the benchmarks of ``topoccl.bench``, which reads the arguments itself, since only rank 0 may complain."""

from __future__ import annotations

import argparse

from topoccl.collectives.cli import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    # No argument begins with the null character, so that all of them, --help too, are left to the benchmarks.
    parser = subparsers.add_parser("bench", help="time a collective under mpirun", add_help=False, prefix_chars="\0")
    parser.add_argument("argv", nargs="*")


def run(args: argparse.Namespace) -> int:
    from topoccl.bench.runner import main

    return main(argv=args.argv, prog="topoccl bench")
