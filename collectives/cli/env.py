"""``topoccl env``: the configuration of this process and where each value comes from."""

from __future__ import annotations

import argparse
import os

from topoccl.algorithms.registry import known_names
from topoccl.collectives.cli import Subparsers
from topoccl.collectives.config import Config, markdown_table, option_names, variable_of


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("env", help="show the configuration and where each value comes from")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/configuration.md instead")


def run(args: argparse.Namespace) -> int:
    if args.markdown:
        print(markdown_table(), end="")
        return 0
    config = Config.from_environment(os.environ)
    config.algo_rules(known_names())  # says what is wrong with them, as every rank would
    rows = [("variable", "value", "from")]
    rows += [(variable_of(name), config.text(name) or "(empty)", config.sources[name]) for name in option_names()]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for variable, value, source in rows:
        print(f"{variable:<{widths[0]}}  {value:<{widths[1]}}  {source}")
    return 0
