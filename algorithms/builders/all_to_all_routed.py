"""All_to_all along ways of our own over hosts that are wired to each other, from neighbour to neighbour.

n = bytes of one block, p = ranks. On a ring, mesh or torus the network's own routes take shortest ways whatever else is under way;
here blocks are cut into chunks whose ways together load all cables evenly, and ranks on the way pass them on.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import MOST_PARTS, check, check_count
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.traffic import Path, routed, wires
from topoccl.topology.graph import Topology

NAME = "routed"
COLLECTIVES = ("all_to_all",)
MAX_HOSTS = 36


class _Move(NamedTuple):
    """One chunk on one hop: rank ``ranks[hop]`` sends chunk ``chunk`` of the block from ``ranks[0]`` to ``ranks[-1]``."""

    ranks: Path
    chunk: int
    hop: int


def build(spec: CollectiveSpec, topology: Topology, *, chunks: int = 2) -> Schedule:
    """Each chunk takes one of the ways of :func:`topoccl.algorithms.traffic.routed`; the farthest chunks leave first.

    Every host sends a chunk to one neighbour at a time over each of its cables. A rank sends the (p-1) n bytes of its own and what it
    passes on: on a bidirectional ring of p hosts about n p^2/8 bytes cross each cable in each direction, the least possible. Chunks
    under way wait in scratch. Ranks of one host exchange their blocks directly; a host's ranks take turns in passing on.

    Where hosts meet in switches every message is one hop, and this is the direct exchange.

    Raises:
        ValueError: ``chunks`` not from 1 to ``MOST_PARTS``, or arguments that do not fit together.
    """
    check(NAME, spec, topology, COLLECTIVES)
    check_count(NAME, "chunks", chunks, most=MOST_PARTS)
    b = ScheduleBuilder(spec, NAME, chunks=chunks, params={"chunks": chunks}.items())
    groups, host = topology.ranks_by_host, _hosts(topology)
    ways = _ways(topology, chunks)
    for rank in range(spec.ranks):
        b.copy(b.lane(rank, "own"), (Buf.INPUT, rank * chunks), (Buf.OUTPUT, rank * chunks), chunks)
    moves: list[_Move] = []
    for source in range(spec.ranks):
        for target in range(spec.ranks):
            ends = (host[source], host[target])
            if source != target and ends[0] == ends[1]:
                b.send(b.lane(source, ("send", target)), (Buf.INPUT, target * chunks), target, chunks)
                b.recv(b.lane(target, ("receive", source)), source, (Buf.OUTPUT, source * chunks), chunks)
            elif source != target:
                for chunk, way in enumerate(ways[ends]):
                    relays = [groups[host][(source + target + chunk) % len(groups[host])] for host in way[1:-1]]
                    moves.append(_Move((source, *relays, target), chunk, 0))
    waiting: dict[tuple[Path, int], int] = {}  # where a chunk under way lies
    for move in _in_order(topology, moves):
        _add(b, move, chunks, waiting)
    return b.build()


def _ways(topology: Topology, chunks: int) -> dict[tuple[int, int], list[Path]]:
    if wires(topology) is None:
        hosts = range(len(topology.ranks_by_host))
        return {(a, c): [(a, c)] * chunks for a in hosts for c in hosts if a != c}
    return routed(topology, chunks)


def _hosts(topology: Topology) -> dict[int, int]:
    return {rank: host for host, ranks in enumerate(topology.ranks_by_host) for rank in ranks}


def _in_order(topology: Topology, first: list[_Move]) -> list[_Move]:
    """All hops of all chunks in the order in which they begin when every cable carries one chunk at a time, the farthest to go first."""
    found = wires(topology)
    host = _hosts(topology)
    ready: dict[tuple[int, int], list[tuple[int, int, _Move]]] = {}
    free: dict[tuple[int, int], bool] = {}
    events: list[tuple[float, int, _Move]] = []
    order: list[_Move] = []
    serial = 0

    def arc(move: _Move) -> tuple[int, int]:
        return host[move.ranks[move.hop]], host[move.ranks[move.hop + 1]]

    def offer(move: _Move) -> None:
        nonlocal serial
        serial += 1
        heapq.heappush(ready.setdefault(arc(move), []), (move.hop - len(move.ranks), serial, move))

    def begin(ends: tuple[int, int], now: float) -> None:
        nonlocal serial
        if free.get(ends, True) and ready.get(ends):
            move = heapq.heappop(ready[ends])[2]
            order.append(move)
            free[ends] = False
            serial += 1
            heapq.heappush(events, (now + (found.seconds(ends) if found is not None else 1.0), serial, move))

    turns = sorted(range(len(first)), key=lambda i: ((first[i].ranks[-1] - first[i].ranks[0]) % topology.num_ranks, first[i]))
    for turn in turns:  # ranks begin with different targets
        offer(first[turn])
    for ends in list(ready):
        begin(ends, 0.0)
    while events:
        now, _, move = heapq.heappop(events)
        free[arc(move)] = True
        if move.hop + 2 < len(move.ranks):
            onward = move._replace(hop=move.hop + 1)
            offer(onward)
            begin(arc(onward), now)
        begin(arc(move), now)
    return order


def _add(b: ScheduleBuilder, move: _Move, chunks: int, waiting: dict[tuple[Path, int], int]) -> None:
    source, target = move.ranks[0], move.ranks[-1]
    sender, receiver = move.ranks[move.hop], move.ranks[move.hop + 1]
    key = (move.ranks, move.chunk)
    held = (Buf.SCRATCH, waiting.pop(key)) if move.hop else (Buf.INPUT, target * chunks + move.chunk)
    b.send(b.lane(sender, ("send", receiver)), held, receiver)
    if receiver == target:
        place = (Buf.OUTPUT, source * chunks + move.chunk)
    else:
        block = source * b.spec.ranks + target
        waiting[key] = b.scratch(receiver, [block * chunks + move.chunk])
        place = (Buf.SCRATCH, waiting[key])
    b.recv(b.lane(receiver, ("receive", sender)), sender, place)


def reject(spec: CollectiveSpec, topology: Topology) -> str | None:
    hosts = len(topology.ranks_by_host)
    if hosts > MAX_HOSTS:
        return f"{hosts} hosts: ways are looked for among up to {MAX_HOSTS}"
    return "hosts are not wired to each other, so that there is one way for each message" if wires(topology) is None else None


ALGORITHMS = (
    Algorithm(
        NAME, COLLECTIVES, build, ({"chunks": 1}, {"chunks": 2}, {"chunks": 4}), reject,
        summary="chunks passed from neighbour to neighbour on ways that load all cables evenly",
    ),
)  # fmt: skip
