"""``topoccl topo``: shows a fabric, discovered, read from a file or generated."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from topoccl.collectives.cli import Subparsers
from topoccl.topology import Topology
from topoccl.topology.discovery import assemble, discover_host
from topoccl.topology.generators import known_shapes
from topoccl.topology.load import load
from topoccl.topology.render import FORMATS, render


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "topo",
        help="show the fabric: discovered, read from a file, or generated",
        epilog=f"Generators: {known_shapes()}, each with options such as ,net=200Mbit/s; docs/topology-format.md has them all.",
    )
    parser.add_argument(
        "topology", nargs="?", metavar="SPEC|FILE", help="a topology file or an expression; without it this host is discovered"
    )
    parser.add_argument("-f", "--format", choices=FORMATS, help="by default what the name after -o says, else tree")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write there instead of to the terminal")


def run(args: argparse.Namespace) -> int:
    topology = load(args.topology) if args.topology is not None else this_host()
    style = args.format or _style_of(args.output)
    if args.output is not None:
        args.output.write_text(render(topology, style), encoding="utf-8")
    elif style == "tree" and sys.stdout.isatty():
        from rich.console import Console

        from topoccl.topology.render.tree import to_tree

        Console().print(to_tree(topology))
    else:
        sys.stdout.write(render(topology, style))
    return 0


def this_host() -> Topology:
    """What discovery finds here, with a slot for every CPU that this process may use."""
    facts = discover_host()
    each = [replace(facts, affinity=(cpu,)) for cpu in facts.affinity]
    return assemble(each, [facts.host_id] * len(each), name=facts.hostname or "this host")


def _style_of(output: Path | None) -> str:
    suffix = output.suffix.lower().removeprefix(".") if output is not None else "tree"
    style = {"yml": "yaml", "gv": "dot", "txt": "tree", "": "tree"}.get(suffix, suffix)
    if style not in FORMATS:
        raise ValueError(f"{output}: no format is known by this name; say --format {'|'.join(FORMATS)}")
    return style
