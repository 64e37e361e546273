"""Ways of messages by name: over which vertices, and over which of several parallel links, a message goes.

A schedule that names ways (:attr:`~topoccl.algorithms.schedule.Schedule.ways`) is for fabrics that have them; everybody else's messages
go the network's own way (:mod:`topoccl.topology.routes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from topoccl.algorithms.schedule import Schedule, Way
from topoccl.topology.graph import Topology


@lru_cache(maxsize=16)
def _between(topology: Topology) -> dict[tuple[str, str], list[int]]:
    """The links from one vertex to another, in order."""
    found: dict[tuple[str, str], list[int]] = {}
    for index, link in enumerate(topology.links):
        found.setdefault((link.src, link.dst), []).append(index)
    return found


def name_way(topology: Topology, links: Sequence[int]) -> Way:
    """The way over these links, of which each begins where the one before ends."""
    between = _between(topology)
    ends = [(topology.links[link].src, topology.links[link].dst) for link in links]
    return (ends[0][0], *(dst for _, dst in ends)), tuple(between[pair].index(link) for pair, link in zip(ends, links, strict=True))


def links_of(topology: Topology, way: Way) -> tuple[int, ...]:
    """The links of a way, as indices into ``topology.links``.

    Raises:
        ValueError: the topology has no such link; the message names it.
    """
    between = _between(topology)
    vertices, places = way
    found = []
    for (src, dst), place in zip(pairwise(vertices), places, strict=True):
        there = between.get((src, dst), [])
        if not 0 <= place < len(there):
            count = f"{len(there)} links" if there else "no link"
            raise ValueError(f"topology {topology.name!r} has {count} {src}->{dst}" + (f", no number {place}" if there else ""))
        found.append(there[place])
    return tuple(found)


def named_paths(schedule: Schedule, topology: Topology) -> list[tuple[int, ...]]:
    """The links of all ways of a schedule.

    Raises:
        ValueError: a way that the topology does not have.
    """
    return [links_of(topology, way) for way in schedule.ways]
