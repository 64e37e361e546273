"""``topoccl topo``: shows a fabric, discovered, read from a file or generated, or what differs between two."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from topoccl.collectives.cli import Subparsers
from topoccl.topology import Topology
from topoccl.topology.discovery import assemble, discover_host
from topoccl.topology.discovery.inventory import describe, take_inventory
from topoccl.topology.generators import is_expression, known_shapes
from topoccl.topology.load import load
from topoccl.topology.render import FORMATS, render, to_png

_STYLES = (*FORMATS, "png")
_HERE = "here"
_COLORS = {"removed": "red", "added": "green", "changed": "yellow"}


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "topo",
        help="show the fabric: discovered, read from a file, or generated",
        epilog=f"Generators: {known_shapes()}, each with options such as ,net=200Mbit/s; docs/topology-format.md has them all.",
    )
    parser.add_argument(
        "topology",
        nargs="*",
        metavar="SPEC|FILE",
        help="topology files or expressions, or `here` for this host as discovered, which is also shown without any; of two it is shown "
        "what differs, and the status is 0 if nothing does, else 1",
    )
    parser.add_argument("--merge", action="store_true", help="one topology of all that are given; what an earlier one states counts")
    parser.add_argument("-f", "--format", choices=_STYLES, help="by default what the name after -o says, else tree")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write there instead of to the terminal")
    parser.add_argument("--json", action="store_true", help="JSON: the same as --format json; of two topologies, their differences")


def run(args: argparse.Namespace) -> int:
    given = [_HERE] if not args.topology else list(args.topology)
    if len(given) == 2 and not args.merge:
        if args.format is not None or args.output is not None:
            raise ValueError("--format and --output show one topology; two are compared as text, or with --json, or made one with --merge")
        return _compare(_load(given[0]), _load(given[1]), args.json)
    if len(given) > 2 and not args.merge:
        raise ValueError(f"{len(given)} topologies: one is shown, two are compared, several are made one with --merge")
    topology = _merged(given) if args.merge else _load(given[0])
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
    from topoccl.topology.compare import align, compare

    b, names = align(a, b)
    if names:
        pairs = ", ".join(f"{old} is {new}" for old, new in list(names.items())[:4])
        rest = f" and {len(names) - 4} more" if len(names) > 4 else ""
        print(f"topoccl: note: no host has the same name in both; taken for the same in their order: {pairs}{rest}", file=sys.stderr)
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


def _load(text: str) -> Topology:
    return _discovered() if text == _HERE else load(text)


def _merged(given: Sequence[str]) -> Topology:
    """One topology of all; contradictions cost a line each."""
    from topoccl.topology.checks import figure
    from topoccl.topology.merge import Origin, Part, merge

    parts = []
    for text in given:
        origin = Origin.SYSFS if text == _HERE else Origin.USER
        parts.append(Part(origin, _load(text), text if is_expression(text) else Path(text).name))
    known = {host for part in parts if part.origin is Origin.USER for host in part.topology.hosts}
    lost = [host for part in parts if part.origin is Origin.SYSFS for host in part.topology.hosts if len(known) > 1 and host not in known]
    if lost:
        raise ValueError(f"this host, {lost[0]}, is none of those that are described: {', '.join(sorted(known)[:8])}")
    merged = merge(parts)
    for one in merged.contradictions:
        said = ", ".join(f"{who} says {figure(one.attribute, value)}" for who, value in one.values)
        print(f"topoccl: warning: {one.subject}: {one.attribute}: {said}; the first counts", file=sys.stderr)
    return merged.topology


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
