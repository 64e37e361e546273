"""A topology as whole numbers: capacities in one unit, parallel links merged, what only passes data on taken out.

A vertex without a rank that has one neighbour carries nothing, and one with two neighbours (a NIC, the hub of a host with one rank) is
as wide as the narrower of its two sides; neither changes any cut. The links behind every arc are kept, so that an arc can be named, and
a way through it can be told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from topoccl.topology.graph import Topology, VertexKind
from topoccl.topology.wiring import owner

_MEMORY = (VertexKind.HOST, VertexKind.NUMA)


@dataclass(frozen=True, slots=True)
class Branch:
    """Part of an arc: ``capacity`` units along ``links`` in order (indices into ``topology.links``)."""

    capacity: int
    links: tuple[int, ...]


@dataclass(frozen=True)
class Network:
    """Vertices are numbers; ``arcs[i]`` goes from ``arcs[i][0]`` to ``arcs[i][1]``, at most one arc each way between two vertices.

    Attributes:
        unit: bytes/s that one unit of capacity stands for: the largest rate that divides every link's.
        names: ids of the vertices in the topology.
        ranks: the vertices of the ranks; in a network of hosts there are fewer of them than ranks.
        vertex_of_rank: the vertex of each rank.
        memory: whether a vertex is memory, in which what is written once can be read by several.
        arcs, capacity, branches: see above; an arc's capacity is the sum of its branches'.
    """

    unit: Fraction
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    vertex_of_rank: tuple[int, ...]
    memory: tuple[bool, ...]
    arcs: tuple[tuple[int, int], ...]
    capacity: tuple[int, ...]
    branches: tuple[tuple[Branch, ...], ...]

    def into(self, inside: Sequence[bool]) -> list[int]:
        """The arcs that enter a set of vertices."""
        return [arc for arc, (tail, head) in enumerate(self.arcs) if inside[head] and not inside[tail]]

    def total(self, arcs: Iterable[int]) -> int:
        """The capacity of some arcs together."""
        return sum(self.capacity[arc] for arc in arcs)

    def reversed(self) -> Network:
        """The same with every arc turned around; the numbers of vertices and arcs stay."""
        turned = tuple((head, tail) for tail, head in self.arcs)
        back = tuple(tuple(Branch(b.capacity, b.links[::-1]) for b in row) for row in self.branches)
        return replace(self, arcs=turned, branches=back)


def unit_of(rates: Iterable[float]) -> Fraction:
    """The largest rate that divides all of ``rates``; 1 when there are none."""
    numerator, denominator = 0, 1
    for rate in set(rates):
        exact = Fraction(rate)
        numerator = math.gcd(numerator * exact.denominator, exact.numerator * denominator)
        denominator *= exact.denominator
        shared = math.gcd(numerator, denominator)
        numerator, denominator = numerator // shared, denominator // shared
    return Fraction(numerator, denominator) if numerator else Fraction(1)


@lru_cache(maxsize=16)
def network_of(topology: Topology) -> Network:
    """The network of ``topology``."""
    unit = unit_of(link.bandwidth for link in topology.links)
    out: dict[str, dict[str, list[Branch]]] = {vertex: {} for vertex in topology.vertices}
    into: dict[str, dict[str, list[Branch]]] = {vertex: {} for vertex in topology.vertices}
    for index, link in enumerate(topology.links):
        row = out[link.src].setdefault(link.dst, [])
        row.append(Branch(int(Fraction(link.bandwidth) / unit), (index,)))
        into[link.dst][link.src] = row
    placed = set(topology.slots)
    waiting = [vertex for vertex in topology.vertices if vertex not in placed]
    while waiting:
        vertex = waiting.pop()
        neighbours = list(dict.fromkeys([*out[vertex], *into[vertex]])) if vertex in out else []
        if not neighbours or len(neighbours) > 2:
            continue
        arriving, leaving = into.pop(vertex), out.pop(vertex)
        for other in neighbours:
            out[other].pop(vertex, None)
            into[other].pop(vertex, None)
        for a, b in (neighbours, neighbours[::-1]) if len(neighbours) == 2 else ():
            if a in arriving and b in leaving:
                row = out[a].setdefault(b, [])
                row.extend(_in_series(arriving[a], leaving[b]))
                into[b][a] = row
        waiting.extend(other for other in neighbours if other not in placed)
    kept = [vertex for vertex in topology.vertices if vertex in placed or out.get(vertex) or into.get(vertex)]
    number = {vertex: at for at, vertex in enumerate(kept)}
    found = [(a, b, out[a][b]) for a in kept for b in sorted(out[a], key=number.__getitem__)]
    ranks = tuple(number[slot] for slot in topology.slots)
    return Network(
        unit=unit,
        names=tuple(kept),
        ranks=ranks,
        vertex_of_rank=ranks,
        memory=tuple(topology.vertices[vertex].kind in _MEMORY for vertex in kept),
        arcs=tuple((number[a], number[b]) for a, b, _ in found),
        capacity=tuple(sum(branch.capacity for branch in row) for _, _, row in found),
        branches=tuple(tuple(row) for _, _, row in found),
    )


def by_host(topology: Topology, network: Network) -> Network:
    """Every host with ranks as one rank, as if its inside had no limits: bounds on it hold for the whole."""
    hosts = set(topology.host_of_rank)
    owners = [owner(topology, name) for name in network.names]
    names = list(dict.fromkeys(own if own in hosts else name for own, name in zip(owners, network.names, strict=True)))
    number = {name: at for at, name in enumerate(names)}
    at = [number[own if own in hosts else name] for own, name in zip(owners, network.names, strict=True)]
    merged: dict[tuple[int, int], list[Branch]] = {}
    for (tail, head), branches in zip(network.arcs, network.branches, strict=True):
        if at[tail] != at[head]:
            merged.setdefault((at[tail], at[head]), []).extend(branches)
    arcs = sorted(merged)
    return Network(
        unit=network.unit,
        names=tuple(names),
        ranks=tuple(number[host] for host in dict.fromkeys(topology.host_of_rank)),
        vertex_of_rank=tuple(number[host] for host in topology.host_of_rank),
        memory=tuple(False for _ in names),
        arcs=tuple(arcs),
        capacity=tuple(sum(branch.capacity for branch in merged[arc]) for arc in arcs),
        branches=tuple(tuple(merged[arc]) for arc in arcs),
    )


def host_groups(topology: Topology, network: Network) -> list[list[int]]:
    """The vertices of each host."""
    inside: dict[str, list[int]] = {}
    for at, name in enumerate(network.names):
        host = topology.vertices[name].host or name
        inside.setdefault(host, []).append(at)
    return list(inside.values())


def _in_series(first: Sequence[Branch], second: Sequence[Branch]) -> list[Branch]:
    """What passes through one set of branches and then another, the widest of both together."""
    left, right = (sorted(side, key=lambda b: -b.capacity) for side in (first, second))
    spare = [[b.capacity for b in side] for side in (left, right)]
    joined: list[Branch] = []
    i = j = 0
    while i < len(left) and j < len(right):
        amount = min(spare[0][i], spare[1][j])
        joined.append(Branch(amount, (*left[i].links, *right[j].links)))
        spare[0][i] -= amount
        spare[1][j] -= amount
        i += not spare[0][i]
        j += not spare[1][j]
    return joined
