"""Few equal trees, for an all_reduce on a network without switches.

A linear programme's best rate is often met by many trees of uneven weights; small ones then are short messages, which cost as much as
long ones, and deep ones fill slowly. Where whole numbers allow it, far fewer trees of one weight are as fast: a mesh of 2 x 3 needs 7
instead of 13. They are looked for among a pool of shallow trees, by an integer programme (scipy's HiGHS).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from heapq import heappop, heappush

import numpy as np

from topoccl.algorithms.forest.packing import Arborescence
from topoccl.algorithms.forest.scaling import GOOD
from topoccl.topology.bounds.network import Network

_MOST_VERTICES = 10  # of which programmes are solved in a second or two
_DRAWN = 200  # trees per root
_SLACK = 2.0  # ways may be longer than the shortest by about this factor
_NODES = 50  # of a search; not a time, since all ranks must find the same


def few_trees(network: Network, rate: Fraction, most: int) -> list[tuple[Arborescence, Arborescence]] | None:
    """Pairs of a tree up and one down with the same root, all of weight 1, that keep :data:`GOOD` of ``rate``; as few as any out
    of the pool, and of those the shallowest.

    Args:
        rate: the best of an all_reduce, in the network's unit.
        most: how many pairs may be found.

    Returns:
        None where there are none, or the network has switches or is large.
    """
    if len(network.ranks) != len(network.names) or len(network.ranks) > _MOST_VERTICES:
        return None
    size = len(network.names)
    down = _pool(network)
    up = _pool(network.reversed())
    for total in range(1, most + 1):
        limits = [int(width * total / (rate * Fraction(GOOD))) for width in network.capacity]
        if sum(limits) >= 2 * total * (size - 1):
            found = _chosen(network, down, up, limits, total)
            if found is not None:
                return found
    return None


def _pool(network: Network) -> list[Arborescence]:
    """Different out-trees of every root: shortest ways when arcs have lengths drawn at random, the same ones each time."""
    draw = random.Random(len(network.arcs))
    out: dict[int, list[tuple[int, int]]] = {vertex: [] for vertex in network.ranks}
    for arc, (tail, head) in enumerate(network.arcs):
        out[tail].append((arc, head))
    found: dict[tuple[int, tuple[tuple[int, int], ...]], Arborescence] = {}
    for root in network.ranks:
        for _ in range(_DRAWN):
            tree = _shortest(root, out, [draw.uniform(1, 1 + _SLACK) for _ in network.arcs])
            found.setdefault((root, tuple(sorted(tree.parent.items()))), tree)
    return list(found.values())


def _shortest(root: int, out: dict[int, list[tuple[int, int]]], length: Sequence[float]) -> Arborescence:
    parent: dict[int, int] = {}
    heap = [(0.0, root, root)]
    while heap:
        far, vertex, above = heappop(heap)
        if vertex in parent:
            continue
        parent[vertex] = above
        for arc, head in out[vertex]:
            heappush(heap, (far + length[arc], head, vertex))
    del parent[root]
    return Arborescence(root, 1, parent)


def _chosen(
    network: Network, down: Sequence[Arborescence], up: Sequence[Arborescence], limits: Sequence[int], total: int
) -> list[tuple[Arborescence, Arborescence]] | None:
    """``total`` trees of both kinds, roots alike, of which no arc carries more than its limit."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    arc_at = {arc: at for at, arc in enumerate(network.arcs)}
    root_at = {vertex: len(limits) + at for at, vertex in enumerate(network.ranks)}
    matrix = np.zeros((len(limits) + len(root_at) + 1, len(down) + len(up)))
    for column, tree in enumerate((*down, *up)):
        below = column < len(down)
        for vertex, above in tree.parent.items():
            matrix[arc_at[(above, vertex) if below else (vertex, above)], column] = 1
        matrix[root_at[tree.root], column] = 1 if below else -1
        matrix[-1, column] = below
    least = [*[-np.inf] * len(limits), *[0] * len(root_at), total]
    result = milp(
        [_shallow(tree) for tree in (*down, *up)],
        integrality=np.ones(matrix.shape[1]),
        bounds=Bounds(0, total),
        constraints=LinearConstraint(matrix, least, [*limits, *[0] * len(root_at), total]),
        options={"node_limit": _NODES},
    )
    if result.x is None:
        return None
    counts = np.rint(result.x).astype(int).tolist()
    pairs: list[tuple[Arborescence, Arborescence]] = []
    for root in network.ranks:
        belows, aboves = (
            sorted(
                (tree for tree, count in zip(trees, some, strict=True) if tree.root == root for _ in range(count)), key=Arborescence.depth
            )
            for trees, some in ((down, counts[: len(down)]), (up, counts[len(down) :]))
        )
        pairs += zip(reversed(aboves), belows, strict=True)  # deep with shallow
    return pairs


def _shallow(tree: Arborescence) -> int:
    """What is to be small: first of all the depth, then that of all vertices together."""
    below = {tree.root: 0}
    for vertex, above in tree.parent.items():
        below[vertex] = below[above] + 1
    return max(below.values()) * len(below) + sum(below.values())
