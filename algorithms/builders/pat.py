"""PAT (parallel aggregated trees, from NCCL): logarithmic all_gather and reduce_scatter for any number of ranks.

With s the offset of a block's owner from the rank at hand (in the ring order), a block comes from the rank at offset 2^d, d being the
lowest set bit of s: clearing that bit is the tree's edge. Far distances come first, when a message holds one block, and near ones
last, when it holds p/2: so most bytes move between neighbours, and with hosts contiguous in the order the links between hosts carry
little. Offsets are sums modulo p; when p is a power of two they are exclusive ors (recursive doubling), which never leave an
aligned host for a near distance.
"""

from __future__ import annotations

from dataclasses import dataclass

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import check, one_rank, runs
from topoccl.algorithms.layout import ring_order
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

NAME = "pat"
COLLECTIVES = ("all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Exchange:
    """One round: the blocks at places ``near .. near+count`` of the rank at offset ``distance`` are those at ``far ..`` of this rank."""

    distance: int
    near: int
    far: int
    count: int


def plan(p: int) -> tuple[list[int], list[Exchange]]:
    """The offset held at each of p places, and the rounds, farthest distance first; every message is one range of places.

    In round d a rank passes on all offsets it holds but those that would leave the p ranks, which can only be the largest one. So the
    places grow to the right when the largest is passed on too (its image is then the new largest), and to the left when not.
    """
    top = (p - 1).bit_length() - 1
    held, rounds = [0], []
    left = 0  # how many places lie left of the first one held, offset 0
    for d in range(top, -1, -1):
        distance = 1 << d
        grown = held if held[-1] + distance < p else held[:-1]
        images = [s + distance for s in grown]
        if len(grown) == len(held):
            rounds.append((distance, -left, len(held) - left, len(grown)))
            held = held + images
        else:
            rounds.append((distance, -left, -left - len(grown), len(grown)))
            held = images + held
            left += len(grown)
    return held, [Exchange(distance, near + left, far + left, count) for distance, near, far, count in rounds]


def build(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """Log-round all_gather or reduce_scatter, one message per rank and round, packed in p chunks of scratch.

    ceil(lg p) rounds; a rank sends (p-1)/p n, with n the whole output (all_gather) or input (reduce_scatter). On H hosts of L ranks,
    both powers of two, a host sends (p-L)/p n, the least possible; else up to (lg L)/2 n more, from ranks at the borders of hosts.
    Each rank copies its n bytes once more to or from scratch. Right in place.

    Raises:
        ValueError: arguments that do not fit together.
    """
    check(NAME, spec, topology, COLLECTIVES)
    if spec.ranks == 1:
        return one_rank(NAME, spec)
    b = ScheduleBuilder(spec, NAME)
    order = ring_order(topology)
    held, rounds = plan(spec.ranks)
    add = _all_gather if spec.collective == "all_gather" else _reduce_scatter
    for at in range(spec.ranks):
        add(b, order, at, held, rounds)
    return b.build()


def _rank_at(order: list[int], at: int, offset: int) -> int:
    p = len(order)
    return order[at ^ offset if p & (p - 1) == 0 else (at + offset) % p]


def _rank_before(order: list[int], at: int, offset: int) -> int:
    """The rank for which this one is at ``offset``."""
    p = len(order)
    return order[at ^ offset if p & (p - 1) == 0 else (at - offset) % p]


def _all_gather(b: ScheduleBuilder, order: list[int], at: int, held: list[int], rounds: list[Exchange]) -> None:
    p, rank = len(order), order[at]
    send, receive, copy = (b.lane(rank, name) for name in ("send", "receive", "copy"))
    blocks = [_rank_at(order, at, s) for s in held]
    scratch, own = b.scratch(rank, blocks), held.index(0)
    if p > 2:
        b.copy(copy, (Buf.INPUT, 0), (Buf.SCRATCH, scratch + own))
    for e in rounds:
        # The first round passes on the own block alone, which need not wait for its copy.
        src = (Buf.SCRATCH, scratch + e.near) if e.distance < rounds[0].distance else (Buf.INPUT, 0)
        b.send(send, src, _rank_before(order, at, e.distance), e.count)
        b.recv(receive, _rank_at(order, at, e.distance), (Buf.SCRATCH, scratch + e.far), e.count)
    b.copy(copy, (Buf.INPUT, 0), (Buf.OUTPUT, rank))
    for place, block, count in runs((scratch + i, blocks[i]) for i in range(p) if i != own):
        b.copy(copy, (Buf.SCRATCH, place), (Buf.OUTPUT, block), count)


def _reduce_scatter(b: ScheduleBuilder, order: list[int], at: int, held: list[int], rounds: list[Exchange]) -> None:
    p, rank = len(order), order[at]
    send, receive, copy = (b.lane(rank, name) for name in ("send", "receive", "copy"))
    blocks = [_rank_at(order, at, s) for s in held]
    scratch = b.scratch(rank, blocks)
    # What the first (nearest) round sends is copied first.
    first = range(scratch + rounds[-1].far, scratch + rounds[-1].far + rounds[-1].count)
    for block, place, count in sorted(runs((blocks[i], scratch + i) for i in range(p)), key=lambda run: run[1] not in first):
        b.copy(copy, (Buf.INPUT, block), (Buf.SCRATCH, place), count)
    for e in reversed(rounds):
        b.send(send, (Buf.SCRATCH, scratch + e.far), _rank_at(order, at, e.distance), e.count)
        near = (Buf.SCRATCH, scratch + e.near)
        b.recv_reduce(receive, _rank_before(order, at, e.distance), near, (Buf.OUTPUT, 0) if e is rounds[0] else near, e.count)


ALGORITHMS = (
    Algorithm(
        name=NAME,
        collectives=COLLECTIVES,
        build=build,
        summary="ceil(lg p) rounds over any number of ranks, far distances with few bytes, near ones with many",
    ),
)
