"""Maximum flows and minimum cuts in whole numbers of any size (Dinic's algorithm on lists).

networkx takes 13 s for the flows of a forest on two boxes of eight accelerators, most of it for its graphs of dictionaries; scipy's
flows have 32-bit capacities, which scaled fractions leave.
"""

from __future__ import annotations

from collections.abc import Sequence


class FlowGraph:
    """A directed graph with capacities; arcs are numbered in the order in which they are added.

    Args:
        vertices: how many vertices; they are ``0 .. vertices - 1``.
    """

    def __init__(self, vertices: int) -> None:
        self._out: list[list[int]] = [[] for _ in range(vertices)]  # half-arcs: 2 i forwards, 2 i + 1 backwards
        self._to: list[int] = []
        self._left: list[int] = []
        self._capacity: list[int] = []

    def add(self, tail: int, head: int, capacity: int) -> int:
        """A new arc; returns its number."""
        number = len(self._capacity)
        self._out[tail].append(2 * number)
        self._out[head].append(2 * number + 1)
        self._to += (head, tail)
        self._left += (capacity, 0)
        self._capacity.append(capacity)
        return number

    def set(self, arc: int, capacity: int) -> None:
        """Gives an arc another capacity, and forgets the flow through it (call :meth:`clear` before the next flow)."""
        self._capacity[arc] = capacity

    def clear(self) -> None:
        """Forgets all flow."""
        for arc, capacity in enumerate(self._capacity):
            self._left[2 * arc] = capacity
            self._left[2 * arc + 1] = 0

    def flow(self, source: int, sink: int, limit: int) -> int:
        """The largest flow from ``source`` to ``sink``, or ``limit`` if that is less; starts from no flow."""
        self.clear()
        total = 0
        while total < limit:
            level = self._levels(source, sink)
            if level[sink] < 0:
                break
            total += self._push(source, sink, limit - total, level)
        return total

    def reached(self, source: int) -> list[bool]:
        """After :meth:`flow` fell short of its limit: the vertices on the source's side of the smallest such minimum cut."""
        return [level >= 0 for level in self._levels(source, -1)]

    def reaching(self, sink: int) -> list[bool]:
        """After :meth:`flow` fell short of its limit: the vertices on the sink's side of the smallest such minimum cut."""
        seen = [False] * len(self._out)
        seen[sink] = True
        queue = [sink]
        for vertex in queue:
            for half in self._out[vertex]:
                tail = self._to[half]
                if self._left[half ^ 1] > 0 and not seen[tail]:
                    seen[tail] = True
                    queue.append(tail)
        return seen

    def carried(self, arc: int) -> int:
        """How much the last flow sent through an arc."""
        return self._left[2 * arc + 1]

    def _levels(self, source: int, sink: int) -> list[int]:
        level = [-1] * len(self._out)
        level[source] = 0
        queue = [source]
        out, to, left = self._out, self._to, self._left
        for vertex in queue:
            if vertex == sink:
                break
            below = level[vertex] + 1
            for half in out[vertex]:
                if left[half] > 0 and level[to[half]] < 0:
                    level[to[half]] = below
                    queue.append(to[half])
        return level

    def _push(self, source: int, sink: int, limit: int, level: Sequence[int]) -> int:
        """A blocking flow along the levels."""
        out, to, left = self._out, self._to, self._left
        at = [0] * len(out)
        path: list[int] = []
        total, vertex = 0, source
        while True:
            if vertex == sink:
                amount = min(limit - total, min(left[half] for half in path))
                narrow = len(path)
                for position in range(len(path) - 1, -1, -1):
                    half = path[position]
                    left[half] -= amount
                    left[half ^ 1] += amount
                    if not left[half]:
                        narrow = position
                total += amount
                if total == limit:
                    return total
                vertex = to[path[narrow] ^ 1]
                del path[narrow:]
                continue
            row, position, below = out[vertex], at[vertex], level[vertex] + 1
            while position < len(row):
                half = row[position]
                if left[half] > 0 and level[to[half]] == below:
                    break
                position += 1
            at[vertex] = position
            if position < len(row):
                path.append(row[position])
                vertex = to[row[position]]
            elif path:
                half = path.pop()
                vertex = to[half ^ 1]
                at[vertex] += 1
            else:
                return total
