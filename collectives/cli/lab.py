"""``topoccl lab``: the virtual cluster of ``topoccl.bench.lab``."""

from __future__ import annotations

import argparse

from topoccl.collectives.cli import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    from topoccl.bench.lab import add_arguments

    add_arguments(subparsers.add_parser("lab", help="run a command on a virtual cluster of network namespaces"))


def run(args: argparse.Namespace) -> int:
    from topoccl.bench import lab

    return lab.run(args)
