"""How costly a schedule is to build and to predict, before it is built: what selection leaves out on very large groups.

The work of a schedule is about a microsecond for each unit: 10 for a step, 1 for each chunk that a step names, 5 for each message. On large
groups these numbers are extrapolated from what the same builder makes for parts of the group: each grows as a power of the number of hosts
and as a power of the ranks per host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

TOO_LARGE = "too large"
"""How the reasons of :func:`too_costly` begin."""

UNITS = (10, 1, 5)
"""For a step, a chunk that it names, and a message."""

SMALL_GROUP = 128
"""With up to so many ranks everything is built."""
MOST_WORK = 20_000_000
"""What all candidates of a table may take together, the least costly first,"""
MOST_FORCED_WORK = 120_000_000
"""and what a single one may where no other is left: two minutes and 4 GB."""

HOSTS, RANKS = (8, 16), (4, 8)
"""How many hosts, and ranks of each, the parts have that tell how work grows."""


def _numbers(schedule: Schedule) -> tuple[int, int, int]:
    """Steps, the chunks that they name, and messages."""
    return schedule.num_steps, int(schedule.count.sum()), len(schedule.targets)


def expected_work(algorithm: Algorithm, spec: CollectiveSpec, topology: Topology, params: Mapping[str, Any]) -> float:
    """Of what ``algorithm`` would build; 0 for groups of up to :data:`SMALL_GROUP` ranks, where that does not matter.

    Where a part of the group is nothing that the algorithm serves (half a torus is none), as much is assumed as for a ring.

    Raises:
        ValueError: a parameter's value that the builder refuses.
    """
    if spec.ranks <= SMALL_GROUP:
        return 0.0
    hosts, ranks = len(topology.ranks_by_host), max(map(len, topology.ranks_by_host))
    few, more = (min(hosts, n) for n in HOSTS)
    thin, thick = (min(ranks, n) for n in RANKS)
    known: list[tuple[int, int, int]] = []
    for size in ((few, thin), (more, thin), (few, thick)):
        part = _part(spec, topology, *size)
        if algorithm.reject(*part) is not None:
            return float(sum(unit * each for unit, each in zip(UNITS, (4, 4, 2), strict=True)) * spec.ranks**2)
        known.append(_numbers(algorithm.build(*part, **params)))
    return math.fsum(
        unit * base * _growth(wider / base, more / few, hosts / few) * _growth(deeper / base, thick / thin, ranks / thin)
        for unit, base, wider, deeper in zip(UNITS, *known, strict=True)
        if base
    )


def too_costly(expected: Mapping[str, float], ranks: int) -> dict[str, str]:
    """Of candidates with such work among so many ranks those that are to be left out, and why.

    The least costly come first; the very first stays up to :data:`MOST_FORCED_WORK`, the others while all together are within
    :data:`MOST_WORK`.
    """
    left: dict[str, str] = {}
    total = 0.0
    for at, (label, units) in enumerate(sorted(expected.items(), key=lambda item: item[1])):
        total += units
        if total > (MOST_WORK if at else MOST_FORCED_WORK):
            left[label] = f"{TOO_LARGE} among {ranks} ranks: building and predicting it would take about {_roughly(units / 1e6)}"
    return left


def _roughly(seconds: float) -> str:
    name, size = next((unit for unit in (("days", 86400), ("hours", 3600), ("minutes", 60)) if seconds >= 2 * unit[1]), ("seconds", 1))
    return f"{seconds / size:.2g} {name}" if seconds < 100 * size else f"{seconds / size:.0f} {name}"


def _growth(ratio: float, by: float, whole: float) -> float:
    """What grows by ``ratio`` when its size grows ``by`` times grows so much when it grows ``whole`` times."""
    return float(whole ** (math.log(ratio) / math.log(by))) if by > 1 else 1.0


@lru_cache(maxsize=8)
def _part(spec: CollectiveSpec, topology: Topology, hosts: int, ranks: int) -> tuple[CollectiveSpec, Topology]:
    """The same collective for up to ``ranks`` ranks of each of ``hosts`` hosts, the root among them."""
    first = spec.root or 0
    groups = sorted(topology.ranks_by_host, key=lambda group: first not in group)[:hosts]
    kept = sorted(rank for group in groups for rank in sorted(group, key=lambda rank: rank != first)[:ranks])
    root = None if spec.root is None else kept.index(spec.root)
    return CollectiveSpec(spec.collective, len(kept), root, spec.uneven), topology.place(kept)
