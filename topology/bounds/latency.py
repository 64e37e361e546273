"""Latency bounds: a rank needs something from every rank (broadcast, scatter: from the root; reduce, gather: the root from all).

So the longest of the shortest latencies is a bound; on more than 64 ranks it is taken over a sample of ranks, which can only lower it.
"""

from __future__ import annotations

import heapq
import math

from topoccl.topology.graph import Topology
from topoccl.topology.units import format_time

_ALL_RANKS = 64


def shortest(edges: dict[str, dict[str, int]] | dict[str, dict[str, float]], source: str) -> dict[str, float]:
    """The length of the shortest way from ``source`` to every vertex that it reaches."""
    best: dict[str, float] = {source: 0.0}
    heap = [(0.0, source)]
    while heap:
        cost, vertex = heapq.heappop(heap)
        if cost > best[vertex]:
            continue
        for neighbour, weight in edges.get(vertex, {}).items():
            if cost + weight < best.get(neighbour, math.inf):
                best[neighbour] = cost + weight
                heapq.heappush(heap, (cost + weight, neighbour))
    return best


def eccentricity(topology: Topology, collective: str, root: int | None) -> tuple[float, str]:
    """The bound in seconds, and what says so."""
    edges: dict[str, dict[str, float]] = {}
    for link in topology.links:
        a, b = (link.dst, link.src) if collective in ("reduce", "gather") else (link.src, link.dst)
        row = edges.setdefault(a, {})
        row[b] = min(link.latency, row.get(b, math.inf))
    slots = topology.slots

    def farthest(rank: int) -> tuple[float, int, int]:
        reach = shortest(edges, slots[rank])
        return max(((reach.get(slot, math.inf), rank, other) for other, slot in enumerate(slots)), key=lambda found: found[0])

    if root is not None:
        found = [farthest(root)]
    elif len(slots) <= _ALL_RANKS:
        found = [farthest(rank) for rank in range(len(slots))]
    else:
        found = [farthest(0)]
        found.append(farthest(found[0][2]))
    seconds, rank, other = max(found, key=lambda one: one[0])
    return seconds, f"latency between ranks {rank} and {other}: {format_time(seconds)}"
