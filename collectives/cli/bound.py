"""``topoccl bound``: the least time of a collective on a fabric, and the cut that proves it."""

from __future__ import annotations

import argparse
import json
from fractions import Fraction

from topoccl.algorithms.spec import COLLECTIVES, CollectiveSpec, canonical_collective
from topoccl.collectives.cli import Subparsers
from topoccl.topology.bounds import Certificate, certificate, lower_bound
from topoccl.topology.bounds.certificate import ROOTED
from topoccl.topology.generators import known_shapes
from topoccl.topology.load import load, require_ranks
from topoccl.topology.units import format_rate, parse_rate


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "bound",
        help="print the least time that a collective takes on a fabric, and the cut that proves it",
        epilog=f"Topologies: a file or {known_shapes()}.",
    )
    parser.add_argument("topology", metavar="SPEC|FILE")
    parser.add_argument("collective", help=f"one of {', '.join(COLLECTIVES)}")
    parser.add_argument("--ranks", type=int, metavar="N", help="only the first N slots")
    parser.add_argument("--root", type=int, metavar="RANK", help="of a rooted collective (default 0)")
    parser.add_argument("--unit", metavar="RATE", help="what rates are measured in, such as 1GB/s; by default what divides all links")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    collective = canonical_collective(args.collective)
    topology = load(args.topology)
    if args.ranks is not None:
        topology = require_ranks(topology, args.ranks)
    root = 0 if collective in ROOTED and args.root is None else args.root
    CollectiveSpec(collective, topology.num_ranks, root)  # says what is wrong with the root
    unit = None if args.unit is None else Fraction(parse_rate(args.unit))
    found = certificate(topology, collective, root)
    latency = lower_bound(topology, collective, 0, root)
    if args.json:
        print(json.dumps({**found.as_dict(unit), "latency_seconds": latency.seconds}, indent=2))
    else:
        print(_text(found, unit))
        print(f"short calls: {latency.description}")
    return 0


def _text(found: Certificate, unit: Fraction | None) -> str:
    topology = found.topology
    where = "" if found.root is None else f" with root {found.root}"
    title = f"{found.collective}{where} among {topology.num_ranks} rank{'s' if topology.num_ranks > 1 else ''} of {topology.name}"
    if not found.seconds_per_byte:
        return f"{title}: {found.text}"
    unit = found.unit if unit is None else unit
    data = "one rank's block" if found.per_block else "the whole vector"
    kind = "" if found.searched else " (the best of the likely cuts)"
    return (
        f"{title}: at most {format_rate(float(1 / found.seconds_per_byte))} of the call's bytes{kind}\n"
        f"exactly: {found.inverse_throughput(unit)} of the time that {data} takes at {format_rate(float(unit))}\n"
        f"cut: {found.text}"
    )
