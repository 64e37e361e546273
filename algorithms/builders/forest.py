"""Forest: trees packed into the fabric, for any graph."""

from __future__ import annotations

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import check, check_count, one_rank
from topoccl.algorithms.forest import Piece, Tree, refuses, synthesise
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder, Way
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.ways import name_way
from topoccl.topology.graph import Topology
from topoccl.topology.routes import routes_of

NAME = "forest"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


def build(spec: CollectiveSpec, topology: Topology, *, k: int = 0, ways: str = "own") -> Schedule:
    """Every piece of a block is summed up a tree to its root, or handed down a tree from it, or both; trees share the links so that
    the busiest one has as little to do as any schedule allows, or nearly so (``k``).

    Rounds: the depth of the trees (all_reduce: of both); S segments follow each other closely. Bytes: what
    :func:`topoccl.algorithms.forest.synthesise` says for the busiest link. No scratch. Every sum is made once, so all ranks end with
    the same bits. Right in place.

    Args:
        k: trees per root, fewer if fewer are exact; 0 takes as many as it takes to lose less than 1.5 %, up to 8, or, by any ways, as
            many as are exact.
        ways: ``own``: messages take the network's own ways; ``any``: the schedule names the way of every message that is to take another.

    Raises:
        ValueError: a negative ``k``, unknown ``ways``, or arguments that do not fit together.
    """
    check(NAME, spec, topology, COLLECTIVES)
    check_count(NAME, "k", k, least=0)
    params = (("k", k), *((("ways", ways),) if ways != "own" else ()))
    if spec.ranks == 1:
        return one_rank(NAME, spec, params)
    forest = synthesise(topology, spec.collective, spec.root, k, ways)
    pieces = sorted(forest.pieces, key=lambda piece: piece.block)
    chunks = len(pieces) // spec.num_blocks
    b = ScheduleBuilder(
        spec, NAME, chunks=chunks, weights=[piece.weight for piece in pieces], slots=_window(pieces), params=params, window=True
    )
    colours = _colours(pieces)
    found = _Ways(topology)
    for at, piece in enumerate(pieces):
        _add(b, topology, at, piece, colours[at], found)
    if spec.collective in ("all_gather", "broadcast"):
        for rank in range(spec.ranks):
            if spec.input_blocks(rank):
                place = rank * chunks if spec.collective == "all_gather" else 0
                b.copy(b.lane(rank, "copy"), (Buf.INPUT, 0), (Buf.OUTPUT, place), chunks)
    return b.build()


def _window(pieces: list[Piece]) -> int:
    """How many segments a rank may have under way: without a limit, trees that share a link with others would run ahead of them; with
    too low a one the longest way would not be filled."""
    return 2 + max(sum(tree.depth() for tree in (piece.up, piece.down) if tree is not None) for piece in pieces)


def _colours(pieces: list[Piece]) -> list[tuple[int, int]]:
    """Channels for the trees up and down of each piece, such that no two trees that share an edge have the same one."""
    used: dict[tuple[int, int], set[int]] = {}
    found = []
    for piece in pieces:
        mine = []
        for upwards in (True, False):
            edges = [(src, dst) for _, up, src, dst in piece.edges() if up is upwards]
            taken = set[int]().union(*(used.get(edge, ()) for edge in edges))
            colour = next(c for c in range(len(taken) + 1) if c not in taken)
            for edge in edges:
                used.setdefault(edge, set()).add(colour)
            mine.append(colour)
        found.append((mine[0], mine[1]))
    return found


class _Ways:
    """The ways of messages: None where the way that a tree says is the network's own."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._routes = routes_of(topology)
        self._names: dict[tuple[int, ...], Way] = {}

    def of(self, links: tuple[int, ...], src: int, dst: int) -> Way | None:
        if not links or links == tuple(self._routes.path(src, dst)):
            return None
        if links not in self._names:
            self._names[links] = name_way(self._topology, links)
        return self._names[links]


def _add(b: ScheduleBuilder, topology: Topology, at: int, piece: Piece, colours: tuple[int, int], ways: _Ways) -> None:
    spec, chunk = b.spec, at % b.chunks
    scattered = spec.collective == "reduce_scatter"
    own = piece.block * b.chunks + chunk if scattered else chunk
    for rank in range(spec.ranks):
        partial = (Buf.INPUT, own)
        result = (Buf.OUTPUT, piece.block * b.chunks + chunk if spec.collective == "all_gather" else chunk)
        if piece.up is not None:
            partial = _sum(b, at, piece, piece.up, rank, (Buf.INPUT, own), result, colours[0], ways)
        if piece.down is not None:
            _hand_on(b, topology, at, piece.down, rank, partial, result, colours[1], ways)


def _sum(
    b: ScheduleBuilder, at: int, piece: Piece, tree: Tree, rank: int, own: tuple[Buf, int], result: tuple[Buf, int], channel: int,
    ways: _Ways,
) -> tuple[Buf, int]:  # fmt: skip
    """One rank's part in a tree upwards; returns where its partial sum is."""
    children = [child for child, above in enumerate(tree.parent) if above == rank and child != tree.root]
    keeps = rank == tree.root or piece.down is not None
    targets = () if rank == tree.root else (tree.parent[rank],)
    operands = [own, *((Buf.PEER, child) for child in children)]
    if children and keeps:
        b.step(b.lane(rank, ("fold", at), channel=channel), operands, result)
        own = result
        operands = [own]
    if targets:
        way = ways.of(tree.way(rank), rank, targets[0])
        b.step(b.lane(rank, ("up", at), channel=channel, rail=tree.rail[rank]), operands, None, targets, ways=(way,))
    return own


def _hand_on(
    b: ScheduleBuilder, topology: Topology, at: int, tree: Tree, rank: int, held: tuple[Buf, int], result: tuple[Buf, int], channel: int,
    ways: _Ways,
) -> None:  # fmt: skip
    """One rank's part in a tree downwards; the root hands on what it holds."""
    host = topology.host_of_rank
    children = [child for child, above in enumerate(tree.parent) if above == rank and child != tree.root]
    if rank != tree.root:
        b.recv(b.lane(rank, ("down", at), channel=channel), tree.parent[rank], result)
        held = result
    near = [child for child in children if host[child] == host[rank]]
    for child in children:
        if child not in near:
            way = ways.of(tree.way(child), rank, child)
            b.step(b.lane(rank, ("on", at, child), channel=channel, rail=tree.rail[child]), [held], None, [child], ways=(way,))
    if near:
        named = [ways.of(tree.way(child), rank, child) for child in near]
        b.step(b.lane(rank, ("near", at), channel=channel), [held], None, near, ways=named)


def reject(spec: CollectiveSpec, topology: Topology) -> str | None:
    return None if spec.ranks == 1 else refuses(topology)


ALGORITHMS = (
    Algorithm(
        name=NAME,
        collectives=COLLECTIVES,
        build=build,
        reject=reject,
        costly=True,
        on_paper=({"ways": "any"},),
        summary="trees packed into the fabric, as many and as wide as its links allow; for irregular fabrics",
    ),
)
