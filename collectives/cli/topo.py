"""``topoccl topo``: shows a fabric, discovered, read from a file or generated, or what differs between two."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from topoccl.collectives.cli import Subparsers
from topoccl.topology import Topology
from topoccl.topology.discovery import assemble, discover_host
from topoccl.topology.discovery.inventory import describe, take_inventory
from topoccl.topology.generators import known_shapes
from topoccl.topology.load import load
from topoccl.topology.render import FORMATS, render, to_png

_STYLES = (*FORMATS, "png")
_COLORS = {"removed": "red", "added": "green", "changed": "yellow"}


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "topo",
        help="show the fabric: discovered, read from a file, or generated",
        epilog=f"Generators: {known_shapes()}, each with options such as ,net=200Mbit/s; docs/topology-format.md has them all.",
    )
    parser.add_argument(
        "topology", nargs="?", metavar="SPEC|FILE", help="a topology file or an expression; without it this host is discovered"
    )
    parser.add_argument(
        "other", nargs="?", metavar="SPEC|FILE", help="show what differs between the two; the status is 0 if nothing does, else 1"
    )
    parser.add_argument("-f", "--format", choices=_STYLES, help="by default what the name after -o says, else tree")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write there instead of to the terminal")
    parser.add_argument("--json", action="store_true", help="JSON: the same as --format json; of two topologies, their differences")


def run(args: argparse.Namespace) -> int:
    if args.other is not None:
        if args.format is not None or args.output is not None:
            raise ValueError("--format and --output show one topology; two are compared as text, or with --json")
        return _compare(load(args.topology), load(args.other), args.json)
    topology = load(args.topology) if args.topology is not None else _discovered()
    style = args.format or ("json" if args.json else _style_of(args.output))
    if style == "png":
        if args.output is None and sys.stdout.isatty():
            raise ValueError("a PNG picture is nothing for a terminal; give a file with --output")
        data = to_png(topology)
        if args.output is not None:
            args.output.write_bytes(data)
        else:
            sys.stdout.buffer.write(data)
    elif args.output is not None:
        args.output.write_text(render(topology, style), encoding="utf-8")
    elif style == "tree" and sys.stdout.isatty():
        from rich.console import Console

        from topoccl.topology.render.tree import to_tree

        Console().print(to_tree(topology))
    else:
        sys.stdout.write(render(topology, style))
    return 0


def _compare(a: Topology, b: Topology, as_json: bool) -> int:
    from topoccl.topology.compare import compare

    changes = compare(a, b)
    if as_json:
        rows = [dict(asdict(change), before=dict(change.before), after=dict(change.after)) for change in changes]
        print(json.dumps({"a": a.name, "b": b.name, "changes": rows}, indent=2))
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console(soft_wrap=True)
        for change in changes:
            console.print(Text(str(change), _COLORS[change.how]))
    else:
        sys.stdout.writelines(f"{change}\n" for change in changes)
    return int(bool(changes))


def _discovered() -> Topology:
    """All that can be found out about this host; a tool that fails costs a line."""

    def report(line: str) -> None:
        print(f"topoccl: warning: {line}", file=sys.stderr)

    return describe(take_inventory(report=report), report).topology


def this_host() -> Topology:
    """What ranks that start here plan with, one for every CPU that this process may use."""
    facts = discover_host()
    each = [replace(facts, affinity=(cpu,)) for cpu in facts.affinity]
    return assemble(each, [facts.host_id] * len(each), name=facts.hostname or "this host")


def _style_of(output: Path | None) -> str:
    suffix = output.suffix.lower().removeprefix(".") if output is not None else "tree"
    style = {"yml": "yaml", "gv": "dot", "txt": "tree", "": "tree"}.get(suffix, suffix)
    if style not in _STYLES:
        raise ValueError(f"{output}: no format is known by this name; say --format {'|'.join(_STYLES)}")
    return style
