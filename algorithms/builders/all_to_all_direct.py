"""All_to_all without rounds: every message in a lane of its own. n = bytes of one block, p = ranks."""

from __future__ import annotations

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import check
from topoccl.algorithms.layout import host_groups
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

NAME = "direct"
COLLECTIVES = ("all_to_all",)


def build(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """Each rank sends p - 1 messages of n bytes, all at once, straight from input to output: one round, n (p - 1) bytes a rank.

    No message waits for another, so a slow peer holds nobody else up. Lanes are made in the order of a shift, so that ranks do
    not all begin with the same peer.
    """
    check(NAME, spec, topology, COLLECTIVES)
    order = [rank for group in host_groups(topology) for rank in group]
    b = ScheduleBuilder(spec, NAME)
    for at, rank in enumerate(order):
        b.copy(b.lane(rank, "own"), (Buf.INPUT, rank), (Buf.OUTPUT, rank))
        for k in range(1, spec.ranks):
            to, source = order[(at + k) % spec.ranks], order[at - k]
            b.send(b.lane(rank, ("send", to)), (Buf.INPUT, to), to)
            b.recv(b.lane(rank, ("receive", source)), source, (Buf.OUTPUT, source))
    return b.build()


ALGORITHMS = (Algorithm(NAME, COLLECTIVES, build, summary="all messages at once, no rounds"),)
