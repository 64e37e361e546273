"""Ring: every rank passes chunks to its successor."""

from __future__ import annotations

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import MOST_PARTS, check, check_count, one_rank
from topoccl.algorithms.layout import ring_order
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

NAME = "ring"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


def build(spec: CollectiveSpec, topology: Topology, *, channels: int = 1) -> Schedule:
    """Rings over all ranks in the order of :func:`topoccl.algorithms.layout.ring_order`, ``channels`` of them with a share each.

    Odd channels run backwards; further pairs of channels leave hosts at other ranks. With n the bytes of the vector
    (all_reduce), of the whole output (all_gather) or of the whole input (reduce_scatter) of one rank:

    * all_reduce: 2(p-1) steps; each rank sends 2(p-1)/p n, and so does each host to its neighbour. No scratch.
    * all_gather: p-1 steps; each rank and each host sends (p-1)/p n. No scratch.
    * reduce_scatter: p-1 steps; each rank and each host sends (p-1)/p n. Two scratch chunks per channel.

    Each sum is made once, along the ring from one rank to the owner, so all ranks end with the same bits. Right in place.

    Raises:
        ValueError: ``channels`` not from 1 to ``MOST_PARTS``, or arguments that do not fit together.
    """
    check(NAME, spec, topology, COLLECTIVES)
    check_count(NAME, "channels", channels, most=MOST_PARTS)
    params = (("channels", channels),)
    if spec.ranks == 1:
        return one_rank(NAME, spec, params)
    chunks = channels * spec.ranks if spec.collective == "all_reduce" else channels
    b = ScheduleBuilder(spec, NAME, chunks=chunks, params=params)
    add = {"all_reduce": _all_reduce, "all_gather": _all_gather, "reduce_scatter": _reduce_scatter}[spec.collective]
    host_size = {rank: len(group) for group in topology.ranks_by_host for rank in group}
    for channel in range(channels):
        order = ring_order(topology, channel)
        for at, rank in enumerate(order):
            # Channels leave the host at other ranks, thus at other NICs; when the ranks are used up, by what NICs are left.
            rail = channel - channel % host_size[rank]
            send = b.lane(rank, ("send", channel), channel=channel, rail=rail)
            receive = b.lane(rank, ("receive", channel), channel=channel, rail=rail)
            add(b, order, at, channel, send, receive)
    return b.build()


def _all_reduce(b: ScheduleBuilder, order: list[int], at: int, channel: int, send: int, receive: int) -> None:
    p, base = len(order), channel * len(order)
    successor, predecessor = order[(at + 1) % p], order[at - 1]
    for step in range(p - 1):
        b.send(send, (Buf.OUTPUT if step else Buf.INPUT, base + (at - step) % p), successor)
        piece = base + (at - step - 1) % p
        b.recv_reduce(receive, predecessor, (Buf.INPUT, piece), (Buf.OUTPUT, piece))
    for step in range(p - 1):
        b.send(send, (Buf.OUTPUT, base + (at + 1 - step) % p), successor)
        b.recv(receive, predecessor, (Buf.OUTPUT, base + (at - step) % p))


def _all_gather(b: ScheduleBuilder, order: list[int], at: int, channel: int, send: int, receive: int) -> None:
    p, rank = len(order), order[at]
    successor, predecessor = order[(at + 1) % p], order[at - 1]
    b.send(send, (Buf.INPUT, channel), successor)
    b.copy(b.lane(rank, ("copy", channel)), (Buf.INPUT, channel), (Buf.OUTPUT, rank * b.chunks + channel))
    for step in range(1, p):
        place = (Buf.OUTPUT, order[at - step] * b.chunks + channel)
        b.recv(receive, predecessor, place)
        if step < p - 1:
            b.send(send, place, successor)


def _reduce_scatter(b: ScheduleBuilder, order: list[int], at: int, channel: int, send: int, receive: int) -> None:
    p, rank = len(order), order[at]
    successor, predecessor = order[(at + 1) % p], order[at - 1]
    # A partial sum waits in one place while the next one arrives in the other.
    scratch = b.scratch(rank, [channel] * min(2, p - 2))
    b.send(send, (Buf.INPUT, order[at - 1] * b.chunks + channel), successor)
    for step in range(1, p):
        own = (Buf.INPUT, order[at - 1 - step] * b.chunks + channel)
        if step == p - 1:
            b.recv_reduce(receive, predecessor, own, (Buf.OUTPUT, channel))
        else:
            place = (Buf.SCRATCH, scratch + step % 2 if p > 3 else scratch)
            b.recv_reduce(receive, predecessor, own, place)
            b.send(send, place, successor)


ALGORITHMS = (
    Algorithm(
        name=NAME,
        collectives=COLLECTIVES,
        build=build,
        variants=({"channels": 1}, {"channels": 2}, {"channels": 4}),
        summary="chunks travel around rings over all ranks, each host entered and left once per ring",
    ),
)
