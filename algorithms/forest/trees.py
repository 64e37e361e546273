"""A forest: the trees along which every piece of the data moves, over ranks, with the rails of their messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from topoccl.topology.graph import Topology
from topoccl.topology.routes import Routes

MAX_RAILS = 16


@dataclass(frozen=True)
class Tree:
    """A tree over all ranks: ``parent[rank]``, the root's is the root itself; ``rail[rank]`` is for messages between it and its parent.

    ``ways[rank]`` are the links that such messages are meant to take, as indices into ``topology.links``; empty (for all, or for one
    rank) where they take the network's own way.
    """

    root: int
    parent: tuple[int, ...]
    rail: tuple[int, ...]
    ways: tuple[tuple[int, ...], ...] = ()

    def way(self, rank: int) -> tuple[int, ...]:
        """The links between ``rank`` and its parent, if they are told."""
        return self.ways[rank] if self.ways else ()

    def depth(self) -> int:
        """Messages on the longest way."""
        depth = [-1] * len(self.parent)
        depth[self.root] = 0

        def of(rank: int) -> int:
            if depth[rank] < 0:
                depth[rank] = 1 + of(self.parent[rank])
            return depth[rank]

        return max(map(of, range(len(self.parent))))


@dataclass(frozen=True)
class Piece:
    """``weight`` parts of block ``block``: summed along ``up`` towards its root, if there is one, then handed on along ``down``."""

    block: int
    weight: int
    up: Tree | None
    down: Tree | None

    def edges(self) -> Iterator[tuple[int, bool, int, int]]:
        """(rank, whether of ``up``, source, destination) of every message."""
        for tree, upwards in ((self.up, True), (self.down, False)):
            if tree is not None:
                for rank, above in enumerate(tree.parent):
                    if rank != tree.root:
                        yield (rank, True, rank, above) if upwards else (rank, False, above, rank)


@dataclass(frozen=True)
class Forest:
    """All pieces of all blocks, of which each has as many.

    Attributes:
        seconds_per_byte: of a call, for endless calls: the time of the busiest link.
        share: the bound's seconds divided by that; 1 is optimal.
        level: ``ranks``, or ``hosts`` when trees span hosts and each host's ranks hang on its leader.
    """

    pieces: tuple[Piece, ...]
    seconds_per_byte: float
    share: float
    level: str


def with_rails(topology: Topology, routes: Routes, pieces: Sequence[Piece], blocks: int) -> tuple[list[Piece], float]:
    """Gives every message without a way of its own the rail on which the busiest link is least busy, large ones first; also the seconds
    per byte of a call.

    Args:
        blocks: how many blocks a call's bytes make.
    """
    total: dict[int, int] = {}
    for piece in pieces:
        total[piece.block] = total.get(piece.block, 0) + piece.weight
    slowness = 1.0 / np.array([link.bandwidth for link in topology.links])
    busy = np.zeros(len(topology.links))
    options: dict[tuple[int, int], list[tuple[int, npt.NDArray[np.int64]]]] = {}
    open_edges = []
    for at, piece in enumerate(pieces):
        share = piece.weight / total[piece.block] / blocks
        for rank, up, src, dst in piece.edges():
            tree = piece.up if up else piece.down
            if tree is not None and tree.way(rank):
                told = np.array(tree.way(rank), dtype=np.int64)
                busy[told] += share * slowness[told]
                continue
            ways = options.get((src, dst))
            if ways is None:
                ways = options[src, dst] = _ways(routes, src, dst)
            if len(ways) == 1:
                busy[ways[0][1]] += share * slowness[ways[0][1]]
            else:
                open_edges.append((share, at, rank, up, ways))
    open_edges.sort(key=lambda edge: -edge[0])
    chosen: dict[tuple[int, int, bool], int] = {}
    for sweep in range(3):
        for share, at, rank, up, ways in open_edges:
            if sweep:
                before = ways[chosen[at, rank, up]][1]
                busy[before] -= share * slowness[before]
            best = min(
                range(len(ways)), key=lambda way: (round(float((busy[ways[way][1]] + share * slowness[ways[way][1]]).max()), 15), way)
            )
            chosen[at, rank, up] = best
            busy[ways[best][1]] += share * slowness[ways[best][1]]
    rails = {(at, rank, up): ways[chosen[at, rank, up]][0] for _, at, rank, up, ways in open_edges}

    def railed(at: int, tree: Tree | None, up: bool) -> Tree | None:
        if tree is None:
            return None
        return replace(tree, rail=tuple(rails.get((at, rank, up), 0) for rank in range(len(tree.parent))))

    finished = [Piece(p.block, p.weight, railed(at, p.up, True), railed(at, p.down, False)) for at, p in enumerate(pieces)]
    return finished, float(busy.max(initial=0.0))


def _ways(routes: Routes, src: int, dst: int) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """The different routes between two ranks, by the first rail that takes each."""
    found: dict[tuple[int, ...], int] = {}
    for rail in range(min(MAX_RAILS, routes.rails(src, dst))):
        found.setdefault(tuple(routes.path(src, dst, rail)), rail)
    return [(rail, np.array(path, dtype=np.int64)) for path, rail in found.items()]
