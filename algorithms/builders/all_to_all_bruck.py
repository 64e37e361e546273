"""All_to_all in a logarithmic number of rounds (Bruck et al. 1997), for small blocks. n = bytes of one block, p = ranks."""

from __future__ import annotations

from collections.abc import Sequence

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import check
from topoccl.algorithms.layout import host_groups
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

NAME = "bruck"
COLLECTIVES = ("all_to_all",)

Place = tuple[Buf, int]


def build(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """In round k each rank sends one message 2^k places on, with all blocks whose distance still to go has bit k set.

    ceil(lg p) messages a rank; each holds at most ceil(p / 2) blocks, so about n (p / 2) lg p bytes a rank, plus a copy of each
    block a hop. Places follow the hosts, so that the first rounds mostly stay within a host. Blocks are named by source and
    target throughout, hence their sizes may differ.
    """
    check(NAME, spec, topology, COLLECTIVES)
    p = spec.ranks
    order = [rank for group in host_groups(topology) for rank in group]
    rounds = [k for k in range(p.bit_length()) if 1 << k < p]
    b = ScheduleBuilder(spec, NAME)
    for rank in order:
        b.copy(b.lane(rank, "own"), (Buf.INPUT, rank), (Buf.OUTPUT, rank))
    # Where a rank holds the block that began `gone` places before it and travels `distance` in all: arrived[at][k][distance].
    arrived: list[dict[int, dict[int, int]]] = [{} for _ in order]
    for k in rounds:
        travelling = sorted((d for d in range(1, p) if d >> k & 1), key=lambda d: (_bit_below(d, k), _bit_above(d, k), d))
        for at, rank in enumerate(order):
            lane = b.lane(rank, "send")
            held: list[Place] = []
            blocks = []
            for distance in travelling:
                gone = distance & ((1 << k) - 1)
                source, to = order[(at - gone) % p], order[(at - gone + distance) % p]
                blocks.append(source * p + to)
                held.append((Buf.SCRATCH, arrived[at][_bit_below(distance, k)][distance]) if gone else (Buf.INPUT, to))
            start = held[0]
            if len(held) > 1:
                start = (Buf.SCRATCH, b.scratch(rank, blocks))
                _copy_runs(b, lane, held, [(Buf.SCRATCH, start[1] + i) for i in range(len(held))])
            b.send(lane, start, order[(at + (1 << k)) % p], len(held))
        for at, rank in enumerate(order):
            lane = b.lane(rank, "receive")
            previous = order[(at - (1 << k)) % p]
            sources = [order[(at - (distance & ((2 << k) - 1))) % p] for distance in travelling]
            targets = [order[(at - (distance & ((2 << k) - 1)) + distance) % p] for distance in travelling]
            if targets == [rank]:
                b.recv(lane, previous, (Buf.OUTPUT, sources[0]))
                continue
            offset = b.scratch(rank, [s * p + t for s, t in zip(sources, targets, strict=True)])
            b.recv(lane, previous, (Buf.SCRATCH, offset), len(travelling))
            arrived[at][k] = {distance: offset + i for i, distance in enumerate(travelling)}
            for i, (source, to) in enumerate(zip(sources, targets, strict=True)):
                if to == rank:
                    b.copy(b.lane(rank, "deliver"), (Buf.SCRATCH, offset + i), (Buf.OUTPUT, source))
    return b.build()


def _bit_below(distance: int, k: int) -> int:
    """The highest bit of ``distance`` below bit ``k``: the round in which it last moved; -1 when there is none."""
    return (distance & ((1 << k) - 1)).bit_length() - 1


def _bit_above(distance: int, k: int) -> int:
    """The lowest bit of ``distance`` above bit ``k``: the round in which it moves next; -1 when there is none."""
    rest = distance >> (k + 1) << (k + 1)
    return (rest & -rest).bit_length() - 1


def _copy_runs(b: ScheduleBuilder, lane: int, sources: Sequence[Place], targets: Sequence[Place]) -> None:
    """Copies places one by one, or in one step where both sides are consecutive scratch."""
    first = 0
    for i in range(1, len(sources) + 1):
        buf, offset = sources[first]
        if buf is Buf.SCRATCH and i < len(sources) and sources[i] == (buf, offset + i - first):
            continue
        b.copy(lane, sources[first], targets[first], i - first)
        first = i


ALGORITHMS = (Algorithm(NAME, COLLECTIVES, build, summary="a logarithmic number of rounds, blocks forwarded"),)
