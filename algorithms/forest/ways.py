"""Which ways through the switches an arc between two ranks stands for.

Splitting off joins arcs to longer ones; a :class:`WayMap` joins the ways behind them. In the end every arc between ranks has a few ways,
each with a part of its capacity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from topoccl.topology.graph import Topology

Arc = tuple[int, int]
Way = tuple[int, ...]
"""Links in order, as indices into ``topology.links``."""

_A = TypeVar("_A")
_B = TypeVar("_B")


class WayMap:
    """The ways of every arc, with their shares of its capacity, in whole numbers."""

    def __init__(self, rows: Mapping[Arc, Mapping[Way, int]]) -> None:
        self.rows: dict[Arc, dict[Way, int]] = {arc: dict(row) for arc, row in rows.items()}

    def join(self, tail: int, switch: int, head: int, amount: int) -> None:
        """Moves ``amount`` from the arcs into and out of ``switch`` to one past it; back to where it came from it is dropped."""
        first, second = self._take((tail, switch), amount), self._take((switch, head), amount)
        if tail != head:
            row = self.rows.setdefault((tail, head), {})
            for part, before, behind in paired(first, second):
                way = (*before, *behind)
                row[way] = row.get(way, 0) + part

    def forget(self, arc: Arc) -> None:
        self.rows.pop(arc, None)

    def multiply(self, factor: int) -> None:
        for row in self.rows.values():
            for way in row:
                row[way] *= factor

    def divide(self, divisor: int) -> None:
        """By a common divisor of all amounts."""
        for row in self.rows.values():
            for way in row:
                row[way] //= divisor

    def amounts(self) -> Iterator[int]:
        return (amount for row in self.rows.values() for amount in row.values())

    def _take(self, arc: Arc, amount: int) -> list[tuple[int, Way]]:
        row = self.rows[arc]
        taken = []
        while amount:
            way, there = row.popitem()
            part = min(there, amount)
            taken.append((part, way))
            if part < there:
                row[way] = there - part
            amount -= part
        return taken


def paired(first: Sequence[tuple[int, _A]], second: Sequence[tuple[int, _B]]) -> Iterator[tuple[int, _A, _B]]:
    """Cuts two rows of amounts with equal sums into parts of which each lies in one entry of both."""
    left, right = [amount for amount, _ in first], [amount for amount, _ in second]
    i = j = 0
    while i < len(first) and j < len(second):
        part = min(left[i], right[j])
        if part:
            yield part, first[i][1], second[j][1]
        left[i] -= part
        right[j] -= part
        i += not left[i]
        j += not right[j]


def straight(topology: Topology, way: Way) -> Way:
    """A way without the rounds that it makes."""
    seen = {topology.links[way[0]].src: 0} if way else {}
    found: list[int] = []
    for link in way:
        found.append(link)
        vertex = topology.links[link].dst
        if vertex in seen:
            del found[seen[vertex] :]
            seen = {v: at for v, at in seen.items() if at <= seen[vertex]}
        seen[vertex] = len(found)
    return tuple(found)
