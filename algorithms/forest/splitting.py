"""Switches taken out of a network, so that trees over the ranks alone can be packed in what is left.

Switches forward, they do not copy. A unit of capacity from ``u`` into a switch and one from the switch to ``t`` become one from ``u`` to
``t`` (*splitting off*). Where as much enters a switch as leaves it, that can be done without lowering any of the flows that trees
need (Bang-Jensen, Frank, Jackson; ForestColl); elsewhere what is left over is lost. What is sent along a new arc takes the route of
its ends through the switches, or one of the ways of a :class:`~topoccl.algorithms.forest.ways.WayMap` that is kept with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from topoccl.algorithms.forest.ways import WayMap
from topoccl.topology.bounds.flow import FlowGraph

Capacities = dict[tuple[int, int], int]
Allowed = Callable[[int, int, int], bool]

_FINE = 1 << 20  # capacities are scaled up to at least this when a switch is replaced as a whole
_SINKHORN = 200
_TURNS = 4096  # units that are dealt out one by one


def feasible(capacities: Mapping[tuple[int, int], int], weights: Mapping[int, int], sinks: Sequence[int]) -> bool:
    """Whether trees with these weights at their roots fit: a flow of all of them reaches every sink (Edmonds)."""
    total = sum(weights.values())
    size = 1 + max(max(sinks), max((max(arc) for arc in capacities), default=0))
    graph = FlowGraph(size + 1)
    for (tail, head), capacity in capacities.items():
        graph.add(tail, head, capacity)
    taps = {vertex: graph.add(size, vertex, weights.get(vertex, 0)) for vertex in sinks}
    for sink in sinks:
        if graph.flow(size, sink, total) < total:
            return False
        graph.set(taps[sink], total)  # cuts that leave it out are wide enough: from now on it is as good as the source
    return True


def _anywhere(tail: int, switch: int, head: int) -> bool:
    return True


@dataclass
class Splitter:
    """Takes switches out of ``capacities`` one by one, keeping trees of ``weights`` feasible for ``ranks``.

    Attributes:
        refine: capacities and weights may be multiplied by a common factor on the way, to share every switch out evenly.
        allowed: whether what goes from the first to the last of three vertices may pass the second. Where messages do not take that
            way, capacity may be lost, and the trees may not fit any more.
        ways: the ways that each arc stands for, kept up to date if they are given.
    """

    capacities: Capacities
    weights: dict[int, int]
    ranks: Sequence[int]
    refine: bool = True
    allowed: Allowed = _anywhere
    ways: WayMap | None = None
    _total: int = field(init=False)

    def __post_init__(self) -> None:
        self._total = sum(self.weights.values())

    def run(self) -> None:
        """Takes out all switches, those with few neighbours first."""
        kept = set(self.ranks)
        left = {vertex for arc in self.capacities for vertex in arc} - kept
        while left:
            degree = dict.fromkeys(left, 0)
            for arc in self.capacities:
                for vertex in arc:
                    if vertex in left:
                        degree[vertex] += 1
            switch = min(left, key=lambda vertex: (degree[vertex], vertex))
            left.remove(switch)
            self._remove(switch)

    def _remove(self, switch: int) -> None:
        ins = {tail: c for (tail, head), c in self.capacities.items() if head == switch and c}
        outs = {head: c for (tail, head), c in self.capacities.items() if tail == switch and c}
        if not ins or self._as_a_whole(switch, ins, outs):
            return
        for tail, head in self._pairs(ins, outs):
            if not self.allowed(tail, switch, head):
                continue
            amount = min(self.capacities[tail, switch], self.capacities[switch, head])
            if amount and tail != head:
                amount = self._movable(switch, tail, head, amount)
            if amount:
                self._move(switch, tail, head, amount)
        self._forget(switch, {*ins, *outs})

    def _forget(self, switch: int, neighbours: Set[int]) -> None:
        for vertex in neighbours:
            for arc in ((vertex, switch), (switch, vertex)):
                self.capacities.pop(arc, None)
                if self.ways is not None:
                    self.ways.forget(arc)

    def _pairs(self, ins: Mapping[int, int], outs: Mapping[int, int]) -> Iterator[tuple[int, int]]:
        """All pairs, distant ones last, so that what a few get is spread; units back to where they came from are dropped last."""
        heads = list(outs)
        for shift in range(len(heads)):
            for at, tail in enumerate(ins):
                head = heads[(at + 1 + shift) % len(heads)]
                if head != tail:
                    yield tail, head
        for tail in ins:
            if tail in outs:
                yield tail, tail

    def _move(self, switch: int, tail: int, head: int, amount: int) -> None:
        self.capacities[tail, switch] -= amount
        self.capacities[switch, head] -= amount
        if tail != head:
            self.capacities[tail, head] = self.capacities.get((tail, head), 0) + amount
        if self.ways is not None:
            self.ways.join(tail, switch, head, amount)

    def _movable(self, switch: int, tail: int, head: int, amount: int) -> int:
        """How much of ``amount`` can be split off at once (ForestColl's two families of flows)."""
        if self._with(switch, tail, head, amount):
            return amount
        size = 1 + max(max(arc) for arc in (*self.capacities, (max(self.ranks), 0)))
        huge = sum(self.capacities.values()) + self._total + 1
        graph = FlowGraph(size + 1)
        source = size
        for (a, b), capacity in self.capacities.items():
            graph.add(a, b, capacity)
        for vertex, weight in self.weights.items():
            graph.add(source, vertex, weight)
        back, across, through = graph.add(tail, source, 0), graph.add(tail, head, 0), {}
        for vertex in self.ranks:
            through[vertex] = (graph.add(vertex, switch, 0), graph.add(vertex, head, 0))
        back_from_switch = graph.add(switch, source, 0)
        for vertex in self.ranks:
            if vertex == tail:
                continue
            if vertex != head:
                for arc in (back, across, through[vertex][0]):
                    graph.set(arc, huge)
                amount = min(amount, graph.flow(tail, switch, self._total + amount) - self._total)
                for arc in (back, across, through[vertex][0]):
                    graph.set(arc, 0)
            if amount <= 0:
                return 0
            for arc in (back_from_switch, across, through[vertex][1]):
                graph.set(arc, huge)
            amount = min(amount, graph.flow(switch, head, self._total + amount) - self._total)
            for arc in (back_from_switch, across, through[vertex][1]):
                graph.set(arc, 0)
            if amount <= 0:
                return 0
        return amount

    def _with(self, switch: int, tail: int, head: int, amount: int) -> bool:
        """Whether moving ``amount`` leaves the trees feasible."""
        trial = dict(self.capacities)
        trial[tail, switch] -= amount
        trial[switch, head] -= amount
        trial[tail, head] = trial.get((tail, head), 0) + amount
        return feasible(trial, self.weights, self.ranks)

    def _as_a_whole(self, switch: int, ins: Mapping[int, int], outs: Mapping[int, int]) -> bool:
        """Replaces the switch by arcs between all its neighbours, which makes shallow trees; False if that loses too much."""
        fine = self._fine(ins, outs) if self.refine else 1
        pairs = {(u, t) for u in ins for t in outs if u != t and self.allowed(u, switch, t)}
        share_out = _proportional if self.refine else _dealt
        spread = share_out({u: c * fine for u, c in ins.items()}, {t: c * fine for t, c in outs.items()}, pairs)
        trial = {arc: c * fine for arc, c in self.capacities.items() if switch not in arc}
        for arc, amount in spread.items():
            trial[arc] = trial.get(arc, 0) + amount
        weights = {vertex: weight * fine for vertex, weight in self.weights.items()}
        if not feasible(trial, weights, self.ranks):
            return False
        ways = self.ways
        if ways is not None:
            ways.multiply(fine)
            for (tail, head), amount in spread.items():
                ways.join(tail, switch, head, amount)
            self._forget(switch, {*ins, *outs})
        shared = math.gcd(*trial.values(), *weights.values(), *(() if ways is None else ways.amounts()))
        if ways is not None:
            ways.divide(shared)
        self.capacities = {arc: c // shared for arc, c in trial.items() if c}
        self.weights = {vertex: weight // shared for vertex, weight in weights.items()}
        self._total = sum(self.weights.values())
        return True

    @staticmethod
    def _fine(ins: Mapping[int, int], outs: Mapping[int, int]) -> int:
        """What to multiply capacities with: equal neighbours divide evenly, others finely."""
        if len({*ins.values(), *outs.values()}) == 1 and ins.keys() == outs.keys():
            return max(1, len(ins) - 1)
        least = min(*ins.values(), *outs.values())
        return max(1, len(ins) * len(outs), _FINE // least)


def _dealt(ins: Mapping[int, int], outs: Mapping[int, int], pairs: Set[tuple[int, int]]) -> Capacities:
    """Whole numbers for ``pairs`` with these sums of rows and columns, never more, a unit (or more, of many) to one after the other."""
    left_in, left_out = dict(ins), dict(outs)
    unit = 1 + sum(ins.values()) // _TURNS
    tails, heads = list(ins), list(outs)
    found: Capacities = {}
    moved = True
    while moved:
        moved = False
        for shift in range(1, len(heads) + 1):
            for at, tail in enumerate(tails):
                head = heads[(at + shift) % len(heads)]
                amount = min(unit, left_in[tail], left_out[head]) if (tail, head) in pairs else 0
                if amount:
                    found[tail, head] = found.get((tail, head), 0) + amount
                    left_in[tail] -= amount
                    left_out[head] -= amount
                    moved = True
    return found


def _proportional(ins: Mapping[int, int], outs: Mapping[int, int], pairs: Set[tuple[int, int]]) -> Capacities:
    """Whole numbers for ``pairs`` with (nearly) these sums of rows and columns, never more."""
    if not pairs:  # a switch with one neighbour left: nothing passes through
        return {}
    tails, heads = list(ins), list(outs)
    if len({*ins.values(), *outs.values()}) == 1 and set(tails) == set(heads) and len(pairs) == len(tails) * (len(tails) - 1):
        return dict.fromkeys(sorted(pairs), next(iter(ins.values())) // (len(tails) - 1))
    rows, columns = np.array([float(ins[u]) for u in tails]), np.array([float(outs[t]) for t in heads])
    matrix = np.array([[float(ins[u]) * float(outs[t]) if (u, t) in pairs else 0.0 for t in heads] for u in tails])
    for _ in range(_SINKHORN):
        matrix *= (rows / np.maximum(matrix.sum(axis=1), 1e-9))[:, None]
        matrix *= (columns / np.maximum(matrix.sum(axis=0), 1e-9))[None, :]
    found = {(u, t): int(matrix[i, j]) for i, u in enumerate(tails) for j, t in enumerate(heads) if (u, t) in pairs}
    left_in, left_out = dict(ins), dict(outs)
    for (u, t), amount in found.items():
        left_in[u] -= amount
        left_out[t] -= amount
    for u, t in sorted(found, key=lambda arc: -found[arc]):
        amount = max(-found[u, t], min(left_in[u], left_out[t]))
        found[u, t] += amount
        left_in[u] -= amount
        left_out[t] -= amount
    return {arc: amount for arc, amount in found.items() if amount}
