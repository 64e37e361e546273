"""All_to_all in rounds of disjoint pairs. n = bytes of one block, p = ranks, L = ranks of a host, H = hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import check, check_count
from topoccl.algorithms.layout import host_groups
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

NAME = "pairwise"
COLLECTIVES = ("all_to_all",)


def build(spec: CollectiveSpec, topology: Topology, *, lanes: int = 1) -> Schedule:
    """p - 1 rounds in which each rank sends one block and receives one, straight from input to output: n (p - 1) bytes a rank.

    Rounds within a host run beside rounds between hosts, in lanes of their own. In each round between hosts every rank of a host
    sends to another host, ranks next to each other to different ones where there are enough, and as many messages enter the host
    as leave it: links between hosts are loaded evenly throughout. With hosts of one size these are (H - 1) L rounds.

    Args:
        lanes: the number of rounds between hosts that a rank has under way at once; more hide the network's latency.
    """
    check(NAME, spec, topology, COLLECTIVES)
    check_count(NAME, "lanes", lanes)
    b = ScheduleBuilder(spec, NAME, params={"lanes": lanes}.items() if lanes > 1 else ())
    add_rounds(b, host_groups(topology), lanes, lambda source, to: (0,))
    return b.build()


def add_rounds(
    b: ScheduleBuilder, groups: Sequence[Sequence[int]], lanes: int, rails: Callable[[int, int], Sequence[int]]
) -> None:  # fmt: skip
    """The steps of all rounds; between hosts chunk i of a block takes the i-th of the ``rails`` of its source and target."""
    parts = b.chunks
    sent = [0] * b.spec.ranks
    received = [0] * b.spec.ranks
    for source, to in remote_rounds(groups):
        for part, rail in enumerate(rails(source, to)):
            leave = b.lane(source, ("send remote", sent[source] % lanes, part, rail), channel=part, rail=rail)
            b.send(leave, (Buf.INPUT, to * parts + part), to)
            arrive = b.lane(to, ("receive remote", received[to] % lanes, part, rail), channel=part, rail=rail)
            b.recv(arrive, source, (Buf.OUTPUT, source * parts + part))
        sent[source] += 1
        received[to] += 1
    for group in groups:
        for at, rank in enumerate(group):
            b.copy(b.lane(rank, "own"), (Buf.INPUT, rank * parts), (Buf.OUTPUT, rank * parts), parts)
            for k in range(1, len(group)):
                to, source = group[(at + k) % len(group)], group[at - k]
                b.send(b.lane(rank, "send local"), (Buf.INPUT, to * parts), to, parts)
                b.recv(b.lane(rank, "receive local"), source, (Buf.OUTPUT, source * parts), parts)


def remote_rounds(groups: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """All (sender, receiver) pairs on different hosts, round after round; within a round nobody sends or receives twice.

    Rank l of host h sends to host h + 1 + (j + l) mod (H - 1), rank l + k of it, in round (k, j): a permutation of an H x L grid.
    Smaller hosts leave places of the grid, and so some turns, empty.
    """
    hosts, width = len(groups), max(map(len, groups))
    for k in range(width):
        for j in range(hosts - 1):
            for h, group in enumerate(groups):
                for at, rank in enumerate(group):
                    target = groups[(h + 1 + (j + at) % (hosts - 1)) % hosts]
                    if (at + k) % width < len(target):
                        yield rank, target[(at + k) % width]


ALGORITHMS = (Algorithm(NAME, COLLECTIVES, build, ({}, {"lanes": 4}), summary="rounds of disjoint pairs, even on every host's link"),)
