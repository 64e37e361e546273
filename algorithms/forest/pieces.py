"""From trees over the vertices of a network to pieces: whose block, how much of it, and the ranks that pass it on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from topoccl.algorithms.forest.packing import Arborescence
from topoccl.algorithms.forest.spreading import Spread
from topoccl.algorithms.forest.trees import Piece, Tree
from topoccl.algorithms.forest.ways import Way, straight
from topoccl.topology.graph import Topology

MOST_WEIGHT = 1 << 29
"""Weights of a block sum to no more: schedules have 32-bit columns, and rounding to this loses a billionth."""


def shared_out(topology: Topology, ranks_at: dict[int, list[int]], trees: Spread, turned: bool) -> list[Piece]:
    """Shares the trees of every root out to the blocks of its ranks; all blocks get equally many pieces."""
    pieces: list[list[Piece]] = [[] for _ in range(topology.num_ranks)]
    total = sum(trees.weights.values())
    finer = topology.num_ranks // math.gcd(total, topology.num_ranks)
    each = total * finer // topology.num_ranks
    for vertex, ranks in ranks_at.items():
        mine = iter([tree for tree in trees.trees if tree.root == vertex])
        tree = next(mine)
        left = tree.weight * finer
        for at, rank in enumerate(ranks):
            needed = each
            while needed:
                if not left:
                    tree = next(mine)
                    left = tree.weight * finer
                weight = min(left, needed)
                over = over_ranks(topology, ranks_at, tree, rank, at + len(pieces[rank]), turned=turned)
                pieces[rank].append(Piece(rank, weight, over if turned else None, None if turned else over))
                left -= weight
                needed -= weight
    return _evened([piece for row in pieces for piece in row])


def trees_of(mine: Spread, other: Spread, vertex: int) -> list[tuple[int, Arborescence]]:
    """The trees of one root, with weights in which both spreads agree on all roots."""
    a, b = sum(mine.weights.values()), sum(other.weights.values())
    shared = math.lcm(a, b)
    return [(tree.weight * (shared // a), tree) for tree in mine.trees if tree.root == vertex]


def over_ranks(
    topology: Topology, ranks_at: dict[int, list[int]], tree: Arborescence, root: int, turn: int, relayed: bool = False,
    turned: bool = False,
) -> Tree:  # fmt: skip
    """A tree over vertices as one over ranks: every vertex has a leader, the next of its ranks at each ``turn``, under which the others
    hang; the root's is ``root`` itself, unless what leaves it is ``relayed`` by the others of its host in turn. In a tree that is
    ``turned`` around messages go towards the root."""
    leader = {vertex: ranks[turn % len(ranks)] for vertex, ranks in ranks_at.items()}
    if not relayed:
        leader[tree.root] = root
    parent = [0] * topology.num_ranks
    for vertex, ranks in ranks_at.items():
        for rank in ranks:
            parent[rank] = leader[vertex]
    for vertex, above in tree.parent.items():
        parent[leader[vertex]] = leader[above]
    parent[leader[tree.root]] = root
    parent[root] = root
    ways: list[Way] = [()] * topology.num_ranks
    for vertex, way in tree.ways.items():
        ways[leader[vertex]] = straight(topology, way[::-1] if turned else way)
    return Tree(root, tuple(parent), (0,) * topology.num_ranks, tuple(ways) if tree.ways else ())


def bounded(pieces: Sequence[Piece]) -> list[Piece]:
    """Weights as small as they can be, and below :data:`MOST_WEIGHT` in each block; larger ones are rounded."""
    by_block = _by_block(pieces)
    found = []
    for row in by_block.values():
        shared, whole = math.gcd(*(piece.weight for piece in row)), sum(piece.weight for piece in row)
        small = [piece.weight // shared for piece in row]
        if whole // shared > MOST_WEIGHT:
            small = [max(1, round(Fraction(piece.weight * MOST_WEIGHT, whole))) for piece in row]
        found += [replace(piece, weight=weight) for piece, weight in zip(row, small, strict=True)]
    return found


def _evened(pieces: Sequence[Piece]) -> list[Piece]:
    """Heavy pieces cut, until all blocks have equally many."""
    by_block = _by_block(pieces)
    most = max(map(len, by_block.values()))
    finer = 1 << max(0, (most - 1).bit_length()) if any(len(row) < most for row in by_block.values()) else 1
    found = []
    for row in by_block.values():
        weights = [piece.weight * finer for piece in row]
        parts: list[list[int]] = [[weight] for weight in weights]
        while sum(map(len, parts)) < most:
            row_at = max(range(len(parts)), key=lambda at: max(parts[at]))
            heaviest = max(parts[row_at])
            parts[row_at].remove(heaviest)
            parts[row_at] += [heaviest - heaviest // 2, heaviest // 2]
        for piece, cuts in zip(row, parts, strict=True):
            found += [Piece(piece.block, weight, piece.up, piece.down) for weight in cuts]
    return found


def _by_block(pieces: Iterable[Piece]) -> dict[int, list[Piece]]:
    found: dict[int, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.block, []).append(piece)
    return found
