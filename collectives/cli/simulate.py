"""``topoccl simulate``: an all_reduce on a fabric too large for schedules, on paper, and how it grows with the fabric."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from topoccl.algorithms.outlines import OUTLINES, estimate, outline
from topoccl.algorithms.spec import canonical_collective
from topoccl.collectives.cli import Subparsers
from topoccl.topology.generators import known_shapes
from topoccl.topology.graph import Topology
from topoccl.topology.load import load, require_ranks
from topoccl.topology.units import format_size, format_time, parse_size

COLLECTIVES = ("all_reduce",)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "simulate",
        help="estimate an all_reduce on a fabric of up to tens of thousands of ranks, algorithm by algorithm",
        epilog=f"Topologies: a file or {known_shapes()}. Links alone are counted, no overhead of software.",
    )
    parser.add_argument("collective", help=" or ".join(COLLECTIVES))
    parser.add_argument("size", help="bytes of the call, such as 1G")
    parser.add_argument("-t", "--topology", metavar="SPEC|FILE", required=True)
    parser.add_argument("--ranks", type=int, metavar="N", help="only the first N slots")
    parser.add_argument("--algorithms", metavar="LIST", help="only these, separated by ';': the labels of the table")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="also draw seconds against ranks into this PNG or SVG file")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    collective = canonical_collective(args.collective)
    if collective not in COLLECTIVES:
        raise ValueError(f"simulate: {collective} has no outlines; known: {', '.join(COLLECTIVES)}. topoccl explain has all collectives")
    nbytes = parse_size(args.size)
    labels = _labels(args.algorithms)
    topology = load(args.topology)
    if args.ranks is not None:
        topology = require_ranks(topology, args.ranks)
    if args.plot is not None and args.plot.suffix not in (".png", ".svg"):
        raise ValueError(f"--plot {args.plot}: expected a name that ends with .png or .svg")
    rows = _rows(topology, nbytes, labels)
    curves = {size: _rows(_part(topology, size), nbytes, labels) for size in _sizes(topology)} if args.plot is not None else {}
    if args.plot is not None:
        _draw(args.plot, f"{collective} of {format_size(nbytes)} on {topology.name}", {**curves, topology.num_ranks: rows})
    if args.json:
        points = [{"ranks": ranks, "algorithms": part} for ranks, part in {**curves, topology.num_ranks: rows}.items()]
        print(json.dumps({"collective": collective, "bytes": nbytes, "topology": topology.name, "points": points}, indent=2))
    else:
        print(_text(collective, nbytes, topology, rows))
    return 0


def _labels(text: str | None) -> list[str]:
    if text is None:
        return list(OUTLINES)
    labels = ["".join(label.split()) for label in text.split(";")]
    unknown = [label for label in labels if label not in OUTLINES]
    if unknown:
        raise ValueError(f"--algorithms: no outline of {', '.join(map(repr, unknown))}; known: {'; '.join(OUTLINES)}")
    return labels


def _rows(topology: Topology, nbytes: int, labels: Sequence[str]) -> list[dict[str, Any]]:
    """One row per algorithm, the fastest first; those that cannot be looked at last, with the reason."""
    rows: list[dict[str, Any]] = []
    for label in labels:
        row: dict[str, Any] = {"algorithm": label, "seconds": None, "segments": None, "busiest_link": None, "why": None}
        try:
            found = estimate(outline(label, topology), topology, nbytes)
        except ValueError as error:
            row["why"] = str(error)
        else:
            row["seconds"], row["segments"] = found.seconds, found.segments
            if found.busiest_link is not None:
                link = topology.links[found.busiest_link]
                row["busiest_link"] = f"{link.src} -> {link.dst}"
                row["busy_seconds"] = found.busy_seconds
        rows.append(row)
    return sorted(rows, key=lambda row: math.inf if row["seconds"] is None else row["seconds"])


def _sizes(topology: Topology) -> list[int]:
    """Ranks of whole hosts, their number doubling, below all ranks."""
    ends, total = [], 0
    for group in topology.ranks_by_host:
        total += len(group)
        ends.append(total)
    if len(ends) == 1:
        return [1 << power for power in range(1, (topology.num_ranks - 1).bit_length())]
    return [ends[(1 << power) - 1] for power in range((len(ends) - 1).bit_length())]


def _part(topology: Topology, ranks: int) -> Topology:
    kept = [rank for group in topology.ranks_by_host for rank in group][:ranks]
    return topology.place(sorted(kept))


def _text(collective: str, nbytes: int, topology: Topology, rows: Sequence[dict[str, Any]]) -> str:
    lines = [f"{collective} of {format_size(nbytes)} among {topology.num_ranks} ranks of {topology.name}, links alone"]
    best = rows[0]["seconds"]
    table = [("algorithm", "estimated", "x best", "segments", "busiest link")]
    for row in rows:
        if row["seconds"] is None:
            table.append((row["algorithm"], "-", "-", "-", row["why"]))
            continue
        share = 0.0 if not row["seconds"] else row.get("busy_seconds", 0.0) / row["seconds"]
        busy = "-" if row["busiest_link"] is None else f"{row['busiest_link']}, busy {share:.0%} of the time"
        ratio = f"{row['seconds'] / best:.3g}" if best else "-"
        table.append((row["algorithm"], format_time(row["seconds"]), ratio, str(row["segments"]), busy))
    widths = [max(len(line[column]) for line in table) for column in range(4)]
    lines += ["  ".join([*(cell.ljust(width) for cell, width in zip(line[:4], widths, strict=True)), line[4]]) for line in table]
    return "\n".join(lines)


def _draw(path: Path, title: str, points: dict[int, list[dict[str, Any]]]) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(f"--plot needs matplotlib ({error}): pip install 'topoccl[plot]'") from None
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    curves: dict[str, list[tuple[int, float]]] = {}
    for ranks in sorted(points):
        for row in points[ranks]:
            if row["seconds"]:
                curves.setdefault(row["algorithm"], []).append((ranks, row["seconds"] * 1e3))
    # Named at their ends in the order in which the curves end, so that the legend reads like the picture.
    for number, (label, curve) in enumerate(sorted(curves.items(), key=lambda item: -item[1][-1][1])):
        axes.plot(*zip(*curve, strict=True), marker="osD^v"[number % 5], markersize=4, label=label)
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="estimated time, ms", title=title)
    axes.set_xticks(sorted(points), [str(ranks) for ranks in sorted(points)])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    figure.savefig(path)
