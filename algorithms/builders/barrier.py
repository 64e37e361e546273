"""Barriers: messages of zero bytes. A token may be counted more than once, so rounds may overlap in what they know."""

from __future__ import annotations

from collections.abc import Sequence

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import check, one_rank
from topoccl.algorithms.builders.direct import fold_in_order
from topoccl.algorithms.layout import host_groups, ring_order
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

DISSEMINATION = "dissemination"
HIERARCHICAL = "hierarchical"
TOKEN = (Buf.OUTPUT, 0)


def build_dissemination(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """In round k a rank tells the one 2^k behind it in the ring order, and hears the one 2^k before it.

    ceil(lg p) rounds, one message per rank and round, no bytes. Right in place.

    Raises:
        ValueError: arguments that do not fit together.
    """
    check(DISSEMINATION, spec, topology, ("barrier",))
    if spec.ranks == 1:
        return one_rank(DISSEMINATION, spec)
    b = ScheduleBuilder(spec, DISSEMINATION)
    _disseminate(b, ring_order(topology), (Buf.INPUT, 0))
    return b.build()


def build_hierarchical(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """All ranks of a host tell its leader, the leaders run the dissemination, and each leader releases its host in one step.

    2 + ceil(lg H) rounds over H hosts; a host sends and receives ceil(lg H) messages, no bytes. Right in place.

    Raises:
        ValueError: arguments that do not fit together.
    """
    check(HIERARCHICAL, spec, topology, ("barrier",))
    if spec.ranks == 1:
        return one_rank(HIERARCHICAL, spec)
    b = ScheduleBuilder(spec, HIERARCHICAL)
    groups = host_groups(topology)
    for group in groups:
        leader, members = group[0], group[1:]
        for rank in members:
            b.send(b.lane(rank, "send"), (Buf.INPUT, 0), leader)
        fold_in_order(b, b.lane(leader, "gather"), group, leader, (Buf.INPUT, 0), TOKEN)
    _disseminate(b, [group[0] for group in groups], TOKEN)
    for group in groups:
        leader, members = group[0], group[1:]
        if members:
            b.send(b.lane(leader, "release"), TOKEN, members)
        for rank in members:
            b.recv(b.lane(rank, "receive"), leader, TOKEN)
    return b.build()


def _disseminate(b: ScheduleBuilder, order: Sequence[int], first: tuple[Buf, int]) -> None:
    """The dissemination among ``order``; ``first`` is where a rank's token lies before the first round."""
    p = len(order)
    for at, rank in enumerate(order):
        token, distance = first, 1
        while distance < p:
            b.send(b.lane(rank, "tell", channel=1), token, order[(at + distance) % p])
            b.recv_reduce(b.lane(rank, "hear", channel=1), order[(at - distance) % p], token, TOKEN)
            token, distance = TOKEN, 2 * distance


def reject_hierarchical(spec: CollectiveSpec, topology: Topology) -> str | None:
    if all(len(group) == 1 for group in topology.ranks_by_host):
        return "no two ranks share a host: this is the dissemination with an extra step"
    return None


ALGORITHMS = (
    Algorithm(
        name=DISSEMINATION,
        collectives=("barrier",),
        build=build_dissemination,
        summary="ceil(lg p) rounds over doubling distances",
    ),
    Algorithm(
        name=HIERARCHICAL,
        collectives=("barrier",),
        build=build_hierarchical,
        reject=reject_hierarchical,
        summary="gather in the host, dissemination between hosts, release in the host",
    ),
)
