"""Trees packed into a directed graph of ranks, as many as its capacities hold (Edmonds; Tarjan's and Schrijver's way to grow them).

Every tree has a root, a whole weight, and grows by one arc at a time. An arc into a new vertex may carry as much of the tree as leaves
enough for all other trees to grow: a maximum flow says how much. What it cannot carry becomes a tree of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topoccl.algorithms.forest.splitting import Capacities
from topoccl.topology.bounds.flow import FlowGraph


@dataclass
class Arborescence:
    """A tree over all vertices; ``parent`` in the order in which vertices were added, without the root.

    ``ways`` are the links, in order, from the parent of each vertex to it, where they are told.
    """

    root: int
    weight: int
    parent: dict[int, int]
    ways: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def depth(self) -> int:
        """Arcs on the longest way down."""
        below = {self.root: 0}
        for vertex, above in self.parent.items():
            below[vertex] = below[above] + 1
        return max(below.values())


def pack(capacities: Mapping[tuple[int, int], int], weights: Mapping[int, int], vertices: list[int]) -> list[Arborescence]:
    """Trees over ``vertices`` whose weights sum to ``weights`` at each root and nowhere exceed ``capacities``.

    Raises:
        ValueError: they do not fit.
    """
    quick = _greedily(capacities, weights, vertices)
    return quick if quick is not None else _Packer(capacities, weights, vertices).run()


def _greedily(capacities: Mapping[tuple[int, int], int], weights: Mapping[int, int], vertices: list[int]) -> list[Arborescence] | None:
    """The shallowest trees one after the other, without looking ahead; None when that gets stuck."""
    left: Capacities = dict(capacities)
    out: dict[int, list[int]] = {vertex: [] for vertex in vertices}
    for tail, head in left:
        out[tail].append(head)
    trees = []
    for at, (root, weight) in enumerate((root, weight) for root, weight in weights.items() if weight):
        tree = Arborescence(root, weight, {})
        level = [root]
        while len(tree.parent) < len(vertices) - 1:
            reached: list[int] = []
            # The widest arc first; where several are as wide, every tree begins with other ones.
            order = {vertex: (vertices.index(vertex) - at) % len(vertices) for vertex in vertices}
            wanted = sorted(
                ((-left[tail, head], order[head], tail, head) for tail in level for head in out[tail]), key=lambda option: option[:2]
            )
            for _, _, tail, head in wanted:
                if head != root and head not in tree.parent and left[tail, head] >= weight:
                    tree.parent[head] = tail
                    left[tail, head] -= weight
                    reached.append(head)
            if not reached:
                return None
            level = reached
        trees.append(tree)
    return trees


class _Packer:
    def __init__(self, capacities: Mapping[tuple[int, int], int], weights: Mapping[int, int], vertices: list[int]) -> None:
        self.left: Capacities = {arc: capacity for arc, capacity in capacities.items() if capacity}
        self.vertices = vertices
        self.number = {vertex: at for at, vertex in enumerate(vertices)}
        self.waiting = {root: weight for root, weight in weights.items() if weight}  # whole trees that have not begun
        self.begun: list[Arborescence] = []
        self.done: list[Arborescence] = []

    def run(self) -> list[Arborescence]:
        while self.begun or self.waiting:
            if not self.begun:
                root = next(iter(self.waiting))
                self.begun.append(Arborescence(root, self.waiting.pop(root), {}))
            tree = self.begun.pop()
            while len(tree.parent) < len(self.vertices) - 1:
                self._grow(tree)
            self.done.append(tree)
        return self.done

    def _grow(self, tree: Arborescence) -> None:
        """Adds an arc, as near to the root as any that can carry the whole tree; what the best arc cannot carry is split off."""
        depth = {tree.root: 0}
        for vertex, above in tree.parent.items():
            depth[vertex] = depth[above] + 1
        options = [arc for arc, capacity in self.left.items() if capacity and arc[0] in depth and arc[1] not in depth]
        first = self.number[tree.root]  # trees of different roots prefer different arcs
        options.sort(key=lambda arc: (depth[arc[0]], -min(self.left[arc], tree.weight), (self.number[arc[1]] - first) % len(self.vertices)))
        best, most = None, 0
        for arc in options:
            if min(self.left[arc], tree.weight) <= most:
                continue
            amount = self._room(tree, arc, depth)
            if amount > most:
                best, most = arc, amount
            if most == tree.weight:
                break
        if best is None:
            raise ValueError(f"no tree with root {tree.root} and weight {tree.weight} fits any more")
        if most < tree.weight:
            self.begun.append(Arborescence(tree.root, tree.weight - most, dict(tree.parent)))
            tree.weight = most
        tree.parent[best[1]] = best[0]
        self.left[best] -= most

    def _room(self, tree: Arborescence, arc: tuple[int, int], inside: Mapping[int, int]) -> int:
        """How much of ``tree`` the arc may carry: what it has, less what a cut around its head needs for other trees."""
        wanted = min(self.left[arc], tree.weight)
        size = len(self.vertices)
        graph = FlowGraph(size + len(self.begun))
        for (tail, head), capacity in self.left.items():
            if capacity:
                graph.add(self.number[tail], self.number[head], capacity)
        source = self.number[arc[0]]
        others = 0
        for root, weight in self.waiting.items():
            others += weight
            if self.number[root] != source:
                graph.add(source, self.number[root], weight)
        for at, other in enumerate(self.begun):
            others += other.weight
            graph.add(source, size + at, other.weight)
            for vertex in (other.root, *other.parent):
                graph.add(size + at, self.number[vertex], other.weight)
        return graph.flow(source, self.number[arc[1]], others + wanted) - others
