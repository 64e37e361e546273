"""``topoccl check``: proves a schedule in MSCCL's XML right or wrong, and says how far from optimal it is."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from topoccl.algorithms.cost import CostModel, block_bytes
from topoccl.algorithms.msccl import MAX_BYTES, MscclError, read_msccl
from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.verify import ScheduleError, verify
from topoccl.collectives.cli import Subparsers
from topoccl.topology.bounds import lower_bound
from topoccl.topology.files import read_file
from topoccl.topology.generators import known_shapes
from topoccl.topology.graph import Topology
from topoccl.topology.load import load, require_ranks
from topoccl.topology.units import format_size, format_time, parse_size

_ENDLESS = 1 << 50  # bytes, beside which latencies vanish
WRONG = 1
"""The exit status for a schedule that is wrong."""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "check",
        help="prove a schedule in MSCCL's XML right or wrong, and say how far from optimal it is",
        epilog=f"Topologies: a file or {known_shapes()}. The status is 0 for a right schedule, {WRONG} for a wrong one.",
    )
    parser.add_argument("schedule", type=Path, metavar="SCHEDULE.xml")
    parser.add_argument("-t", "--topology", metavar="SPEC|FILE", help="where its ranks sit; without it only the proof is made")
    parser.add_argument("--size", default="64M", help="bytes of the call to predict (default 64M)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    try:
        schedule = read_msccl(read_file(args.schedule, MAX_BYTES))
    except MscclError as error:
        raise MscclError(f"{args.schedule}: {error}") from None
    spec = schedule.spec
    topology = None if args.topology is None else require_ranks(load(args.topology), spec.ranks)
    report: dict[str, Any] = {
        "schedule": schedule.algorithm,
        "collective": spec.collective,
        "ranks": spec.ranks,
        "chunks": schedule.chunks,
        "steps": schedule.num_steps,
        "right": True,
        "problem": None,
    }
    try:
        proof = verify(schedule, topology=topology)
        report |= {"messages": proof.messages, "depth": proof.depth, "in_place": _in_place(schedule)}
    except ScheduleError as error:
        report |= {"right": False, "problem": str(error)}
    if report["right"] and topology is not None:
        report |= _compare(schedule, topology, parse_size(args.size))
    print(json.dumps(report, indent=2) if args.json else _text(report))
    return 0 if report["right"] else WRONG


def _in_place(schedule: Schedule) -> bool:
    try:
        return schedule.spec.aliases and bool(verify(schedule, in_place=True))
    except ScheduleError:
        return False


def _compare(schedule: Schedule, topology: Topology, nbytes: int) -> dict[str, Any]:
    """What the schedule takes on a fabric with links alone, for one size and for endless calls, beside the bound."""
    spec = schedule.spec
    model = CostModel(schedule, topology)
    best = model.choose_segments(block_bytes(spec, nbytes))
    bound = lower_bound(topology, spec.collective, nbytes, spec.root)
    endless = lower_bound(topology, spec.collective, _ENDLESS, spec.root).bandwidth_seconds
    pace = model.floor(block_bytes(spec, _ENDLESS), _ENDLESS)
    busiest = None if best.bottleneck_link is None else topology.links[best.bottleneck_link].name
    return {
        "topology": topology.name,
        "bytes": nbytes,
        "segments": best.segments,
        "seconds": best.seconds,
        "bound_seconds": bound.seconds,
        "bound": bound.description,
        "bound_fraction": bound.seconds / best.seconds if best.seconds else 1.0,
        "endless_fraction": endless / pace if pace else 1.0,
        "busiest_link": busiest,
    }


def _text(report: dict[str, Any]) -> str:
    title = f"{report['collective']} of {report['ranks']} ranks by {report['schedule']}, {report['chunks']} chunks, {report['steps']} steps"
    if not report["right"]:
        return f"wrong: {report['problem']}"
    lines = [f"right: {title}; {report['messages']} messages, {'also' if report['in_place'] else 'not'} in place"]
    if "topology" in report:
        segments = f"{report['segments']} segment{'s' if report['segments'] > 1 else ''}"
        bound = f"{report['bound_fraction']:.0%} of the bound, {format_time(report['bound_seconds'])}"
        lines += [
            f"on {report['topology']}, {format_size(report['bytes'])}: {format_time(report['seconds'])} in {segments}, {bound}",
            f"however long the call: at best {report['endless_fraction']:.0%} of the bound; the busiest link is {report['busiest_link']}",
            f"the bound: {report['bound']}",
        ]
    return "\n".join(lines)
