"""Direct exchanges: every rank talks to every other one, in one round or two."""

from __future__ import annotations

from collections.abc import Sequence

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import check, one_rank
from topoccl.algorithms.layout import rotated
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

NAME = "direct"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "barrier")
TWO_SHOT = "two_shot"
MAX_RANKS_BETWEEN_HOSTS = 64


def others(ranks: Sequence[int], at: int) -> tuple[int, ...]:
    """All of ``ranks`` but the one at position ``at``, starting behind it, so that not all turn to the same one first."""
    return rotated(ranks, at + 1)[:-1]


def fold_in_order(
    b: ScheduleBuilder, lane: int, ranks: Sequence[int], own: int, src: tuple[Buf, int], dst: tuple[Buf, int], count: int = 1
) -> int:
    """One step that sums the messages of all ``ranks`` and, in its place among them, ``own``'s local ``src``."""
    return b.step(lane, [src if rank == own else (Buf.PEER, rank) for rank in ranks], dst, (), count)


def build(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """One round in which every rank serves all others.

    With n as for the ring (a rank's vector, whole output or whole input), L the ranks of a host:

    * all_reduce ("one-shot"): every rank publishes its vector in one step and folds all p of them in one step, in rank order, so
      all ranks end with the same bits. A rank sends n to each of p-1 peers, a host L(p-L) n.
    * all_gather: every rank publishes its block in one step. A rank sends n/p to each of p-1 peers, a host L(p-L)/p n.
    * reduce_scatter: every rank sends each owner its block; the owner folds all p in rank order in one step. A rank sends
      (p-1)/p n, a host L(p-L)/p n.
    * barrier: every rank tells all others; p-1 messages each, no bytes.

    No scratch. Right in place; all_reduce then waits for its own publication to be read before it writes.

    Raises:
        ValueError: arguments that do not fit together.
    """
    check(NAME, spec, topology, COLLECTIVES)
    if spec.ranks == 1:
        return one_rank(NAME, spec)
    b = ScheduleBuilder(spec, NAME)
    ranks = range(spec.ranks)
    for rank in ranks:
        peers = others(ranks, rank)
        send, receive = b.lane(rank, "send"), b.lane(rank, "receive")
        if spec.collective == "reduce_scatter":
            for peer in peers:
                b.send(send, (Buf.INPUT, peer), peer)
            fold_in_order(b, receive, ranks, rank, (Buf.INPUT, rank), (Buf.OUTPUT, 0))
            continue
        b.send(send, (Buf.INPUT, 0), peers)
        if spec.collective == "all_gather":
            b.copy(b.lane(rank, "copy"), (Buf.INPUT, 0), (Buf.OUTPUT, rank))
            for peer in reversed(peers):
                b.recv(receive, peer, (Buf.OUTPUT, peer))
        else:
            fold_in_order(b, receive, ranks, rank, (Buf.INPUT, 0), (Buf.OUTPUT, 0))
    return b.build()


def build_two_shot(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """all_reduce in two rounds: a direct reduce-scatter, then a direct all-gather.

    Every rank sends each owner its chunk; the owner folds all p in rank order in one step and publishes the result in one step,
    so all ranks end with the same bits. A rank sends (p-1)/p n and publishes n/p to p-1 peers; a host sends 2L(p-L)/p n.
    No scratch. Right in place.

    Raises:
        ValueError: arguments that do not fit together.
    """
    check(TWO_SHOT, spec, topology, ("all_reduce",))
    if spec.ranks == 1:
        return one_rank(TWO_SHOT, spec)
    b = ScheduleBuilder(spec, TWO_SHOT, chunks=spec.ranks)
    ranks = range(spec.ranks)
    for rank in ranks:
        peers = others(ranks, rank)
        for peer in peers:
            b.send(b.lane(rank, "send"), (Buf.INPUT, peer), peer)
        fold_in_order(b, b.lane(rank, "fold"), ranks, rank, (Buf.INPUT, rank), (Buf.OUTPUT, rank))
        b.send(b.lane(rank, "publish", channel=1), (Buf.OUTPUT, rank), peers)
        for peer in reversed(peers):
            b.recv(b.lane(rank, "receive", channel=1), peer, (Buf.OUTPUT, peer))
    return b.build()


def reject(spec: CollectiveSpec, topology: Topology) -> str | None:
    hosts = len(topology.ranks_by_host)
    if hosts > 1 and spec.ranks > MAX_RANKS_BETWEEN_HOSTS:
        return f"{spec.ranks} ranks on {hosts} hosts: p(p-1) messages make sense up to {MAX_RANKS_BETWEEN_HOSTS} ranks, or within one host"
    return None


ALGORITHMS = (
    Algorithm(
        name=NAME,
        collectives=COLLECTIVES,
        build=build,
        reject=reject,
        summary="one round: every rank serves all others, and folds all contributions in one step",
    ),
    Algorithm(
        name=TWO_SHOT,
        collectives=("all_reduce",),
        build=build_two_shot,
        reject=reject,
        summary="two rounds: each rank owns a chunk, folds all contributions in one step and publishes the result",
    ),
)
