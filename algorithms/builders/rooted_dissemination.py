"""Short broadcasts and reductions to a root by which every rank learns that all others have come. n = bytes, p = ranks, H = hosts.

A call ends when all ranks are known to have made it, and a tree tells most ranks of few others. So the tree over one leader per host
lies within a dissemination: in each of ceil(lg H) rounds, of another distance 2^k each, every leader sends to the one 2^k from it. Where
the tree has an edge the message is the data, elsewhere it is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import one_rank
from topoccl.algorithms.builders.direct import fold_in_order
from topoccl.algorithms.builders.rooted_trees import checked_root, hosts_from
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

NAME = "dissemination"


def build_broadcast(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """A binomial tree over the hosts, big subtrees first; then each leader serves its host with one step.

    ceil(lg H) + 1 rounds; every host sends and receives ceil(lg H) messages, of which each host but the root's receives n bytes once.
    """
    root = checked_root(NAME, spec, topology, ("broadcast",))
    b = ScheduleBuilder(spec, NAME)
    hosts = hosts_from(topology, root)
    leaders = [host[0] for host in hosts]
    held = [(Buf.INPUT if leader == root else Buf.OUTPUT, 0) for leader in leaders]
    for distance in reversed(_distances(len(hosts))):
        for at, leader, after in _pairs(leaders, distance):
            b.send(b.lane(leader, "between"), held[at], after, int(_is_edge(at, at + distance, distance, len(hosts))))
        for at, leader, before in _pairs(leaders, -distance):
            b.recv(b.lane(leader, "between"), before, (Buf.OUTPUT, 0), int(_is_edge(at - distance, at, distance, len(hosts))))
    for source, (leader, *others) in zip(held, hosts, strict=True):
        if others:
            b.send(b.lane(leader, "between"), source, others)
        for rank in others:
            b.recv(b.lane(rank, "receive"), leader, (Buf.OUTPUT, 0))
    # Last, since in place it would hold back the sends.
    b.copy(b.lane(root, "own"), (Buf.INPUT, 0), (Buf.OUTPUT, 0))
    return b.build()


def build_reduce(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """Each leader folds its host in one step; a binomial tree over the hosts, small subtrees first; each leader releases its host.

    ceil(lg H) + 2 rounds; every host sends and receives ceil(lg H) messages, of which each host but the root's sends n bytes once. The
    sum of a host is left to right in rank order; the sums of the tree's children are then added one by one, small subtrees first.
    """
    root = checked_root(NAME, spec, topology, ("reduce",))
    if spec.ranks == 1:
        return one_rank(NAME, spec)
    b = ScheduleBuilder(spec, NAME)
    hosts = hosts_from(topology, root)
    leaders = [host[0] for host in hosts]
    own = (Buf.INPUT, 0)
    held = [own] * len(hosts)

    def total(at: int) -> tuple[Buf, int]:
        if held[at] == own:
            held[at] = (Buf.OUTPUT, 0) if at == 0 else (Buf.SCRATCH, b.scratch(leaders[at], [0]))
        return held[at]

    for at, (leader, *others) in enumerate(hosts):
        for rank in others:
            b.send(b.lane(rank, "send"), own, leader)
        if others:
            fold_in_order(b, b.lane(leader, "between"), sorted(hosts[at]), leader, own, total(at))
    for distance in _distances(len(hosts)):
        for at, leader, before in _pairs(leaders, -distance):
            b.send(b.lane(leader, "between"), held[at], before, int(_is_edge(at - distance, at, distance, len(hosts))))
        for at, leader, after in _pairs(leaders, distance):
            lane = b.lane(leader, "between")
            if _is_edge(at, at + distance, distance, len(hosts)):
                b.step(lane, [held[at], (Buf.PEER, after)], total(at))
            else:
                b.step(lane, [(Buf.PEER, after)], count=0)
    for at, (leader, *others) in enumerate(hosts):
        if others:
            b.send(b.lane(leader, "between"), held[at], others, 0)
        for rank in others:
            b.step(b.lane(rank, "receive"), [(Buf.PEER, leader)], count=0)
    return b.build()


def _distances(hosts: int) -> list[int]:
    return [1 << k for k in range((hosts - 1).bit_length())]


def _pairs(leaders: Sequence[int], distance: int) -> Iterator[tuple[int, int, int]]:
    """Position and rank of each leader, and the leader that is ``distance`` from it."""
    for at, leader in enumerate(leaders):
        yield at, leader, leaders[(at + distance) % len(leaders)]


def _is_edge(parent: int, child: int, distance: int, hosts: int) -> bool:
    """Whether positions that are ``distance`` apart are parent and child in the binomial tree: a parent lacks the child's lowest bit."""
    return parent >= 0 and child < hosts and child % (2 * distance) == distance


def reject(spec: CollectiveSpec, topology: Topology) -> str | None:
    return None if len(topology.ranks_by_host) > 1 else "one host: its ranks see who has come"


ALGORITHMS = tuple(
    Algorithm(NAME, (collective,), build, reject=reject, summary="binomial tree over the hosts, which tell each other that they have come")
    for collective, build in (("broadcast", build_broadcast), ("reduce", build_reduce))
)
