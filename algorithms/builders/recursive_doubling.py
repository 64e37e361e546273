"""Recursive doubling: the fewest rounds, for short vectors."""

from __future__ import annotations

from collections.abc import Sequence

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import check, one_rank
from topoccl.algorithms.builders.halving_doubling import fold
from topoccl.algorithms.layout import host_groups
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

NAME = "recursive_doubling"


def build(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """all_reduce in which pairs of ever larger groups exchange whole vectors, over q = 2^floor(lg p) ranks.

    In round k rank i of the q swaps what it has with rank i xor 2^k, and both add the two in the same order. Neighbours in the order of
    the hosts come first. The p-q other ranks first fold their vector into a partner's, in the same host where there is one, and get the
    result back at the end.

    Rounds: lg q, plus 2 when p is no power of two. Bytes sent by a rank: lg q n, plus n for partners and n alone for folded ranks. Packed
    on H hosts of L ranks, both powers of two, a host sends L lg H n. No scratch. All ranks end with the same bits. Right in place.

    Raises:
        ValueError: arguments that do not fit together.
    """
    check(NAME, spec, topology, ("all_reduce",))
    if spec.ranks == 1:
        return one_rank(NAME, spec)
    b = ScheduleBuilder(spec, NAME)
    groups = host_groups(topology)
    for rank in range(spec.ranks):
        double(b, groups, rank, Buf.INPUT, 0, 0)
    return b.build()


def double(b: ScheduleBuilder, groups: Sequence[Sequence[int]], rank: int, source: Buf, chunk: int, channel: int, count: int = 1) -> None:
    """The part of ``rank`` among the ranks of ``groups``: of ``count`` chunks from ``source`` to the output."""
    core, folded = fold(tuple(map(tuple, groups)), sum(map(len, groups)))
    send, receive = b.lane(rank, "double", channel=channel), b.lane(rank, "gather", channel=channel)
    if rank in folded:
        b.send(send, (source, chunk), folded[rank], count)
        b.recv(receive, folded[rank], (Buf.OUTPUT, chunk), count)
        return
    other = next((extra for extra, partner in folded.items() if partner == rank), None)
    if other is not None:
        b.recv_reduce(receive, other, (source, chunk), (Buf.OUTPUT, chunk), count)
        source = Buf.OUTPUT
    at = core.index(rank)
    for bit in range(len(core).bit_length() - 1):
        peer = core[at ^ 1 << bit]
        own = (Buf.OUTPUT if bit else source, chunk)
        b.send(send, own, peer, count)
        operands: list[tuple[Buf, int]] = [own, (Buf.PEER, peer)]
        b.step(receive, operands if at < at ^ 1 << bit else operands[::-1], (Buf.OUTPUT, chunk), (), count)
    if other is not None:
        b.send(send, (Buf.OUTPUT, chunk), other, count)


ALGORITHMS = (
    Algorithm(
        name=NAME,
        collectives=("all_reduce",),
        build=build,
        summary="lg p rounds of whole vectors between pairs; for short ones",
    ),
)
