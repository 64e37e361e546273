"""All_to_all in two levels: local exchange, aggregated messages between hosts, local delivery.

n = bytes of one block, p = ranks, L = ranks of a host, H = hosts. Tutel's 2DH for any placement and any number of ranks per host
(reference: Hierarchical All-to-All).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import check, check_count
from topoccl.algorithms.layout import host_groups
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

NAME = "two_level"
COLLECTIVES = ("all_to_all",)


@dataclass(frozen=True)
class Route:
    """One message between two hosts: from rank ``relay`` to rank ``arrival``, with the blocks of all ``sources`` for ``targets``."""

    turn: int
    rail: int
    relay: int
    arrival: int
    sources: tuple[int, ...]
    targets: tuple[int, ...]


def build(spec: CollectiveSpec, topology: Topology, *, rails: int = 0, lanes: int = 1) -> Schedule:
    """Blocks for another host are first collected at relays on the sender's host, then travel in one message per pair of hosts and
    rail, then are handed to their targets; a block takes at most three hops, and two when its rail ends at its target.

    Two hosts with L1 and L2 ranks share R = min(L1, L2) rails; rail i serves the targets whose place on their host is i modulo R.
    With hosts of one size each rank sends H - 1 messages of L n bytes between hosts, instead of (H - 1) L of n bytes, and
    (L - 1) H n bytes within its host. Each block crosses its hosts' links once, which is the least there is. In turn t all hosts
    send to the host t places on. Exchange within the host, between hosts, and delivery run in lanes of their own, so with several
    segments they overlap.

    Args:
        rails: at most so many rails between two hosts; 0 for as many as there can be. Fewer make fewer and longer messages.
        lanes: the number of turns that a rank has under way at once.
    """
    check(NAME, spec, topology, COLLECTIVES)
    check_count(NAME, "rails", rails, least=0)
    check_count(NAME, "lanes", lanes)
    params = [(name, value) for name, value, plain in (("rails", rails, 0), ("lanes", lanes, 1)) if value != plain]
    b = ScheduleBuilder(spec, NAME, params=params)
    table = routes(topology, rails)
    for route in table:
        _between_hosts(b, route, lanes)
    # After what other hosts wait for.
    for group in host_groups(topology):
        for at, rank in enumerate(group):
            b.copy(b.lane(rank, "own"), (Buf.INPUT, rank), (Buf.OUTPUT, rank))
            for k in range(1, len(group)):
                to, source = group[(at + k) % len(group)], group[at - k]
                b.send(b.lane(rank, ("to", to)), (Buf.INPUT, to), to)
                b.recv(b.lane(rank, ("from", source)), source, (Buf.OUTPUT, source))
    return b.build()


def routes(topology: Topology, rails: int = 0) -> list[Route]:
    """All messages between hosts, in the order of the turns in which they leave.

    A host with more ranks than rails spreads the relays and the arrivals of its turns over them.
    """
    return [route for turn in range(1, len(host_groups(topology))) for route in _turn(topology, rails, turn)]


def _turn(topology: Topology, rails: int, turn: int) -> Iterator[Route]:
    groups = host_groups(topology)
    for a, sources in enumerate(groups):
        c = (a + turn) % len(groups)
        count = min(len(sources), len(groups[c]), rails or len(sources))
        for rail in range(count):
            relays, targets = sources[rail::count], groups[c][rail::count]
            yield Route(turn, rail, relays[(turn - 1) % len(relays)], targets[(turn - 1) % len(targets)], sources, targets)


def _between_hosts(b: ScheduleBuilder, route: Route, lanes: int) -> None:
    p, relay, arrival = b.spec.ranks, route.relay, route.arrival
    pairs = [(source, to) for to in route.targets for source in route.sources]
    blocks = [source * p + to for source, to in pairs]
    held = (Buf.INPUT, route.targets[0])
    if len(pairs) > 1:
        held = (Buf.SCRATCH, b.scratch(relay, blocks))
        for i, (source, to) in enumerate(pairs):
            place = (Buf.SCRATCH, held[1] + i)
            if source == relay:
                b.copy(b.lane(relay, "own"), (Buf.INPUT, to), place)
            else:
                b.send(b.lane(source, ("to", relay)), (Buf.INPUT, to), relay)
                b.recv(b.lane(relay, ("from", source)), source, place)
    slot = route.turn % lanes
    b.send(b.lane(relay, ("leave", slot, route.rail), rail=route.rail), held, arrival, len(pairs))
    lane = b.lane(arrival, ("arrive", slot, route.rail), rail=route.rail)
    if len(pairs) == 1:
        b.recv(lane, relay, (Buf.OUTPUT, route.sources[0]))
        return
    offset = b.scratch(arrival, blocks)
    b.recv(lane, relay, (Buf.SCRATCH, offset), len(pairs))
    for i, (source, to) in enumerate(pairs):
        if to == arrival:
            b.copy(b.lane(arrival, "unpack"), (Buf.SCRATCH, offset + i), (Buf.OUTPUT, source))
        else:
            b.send(b.lane(arrival, ("deliver", to), channel=1), (Buf.SCRATCH, offset + i), to)
            b.recv(b.lane(to, ("take", arrival), channel=1), arrival, (Buf.OUTPUT, source))


def _reject(spec: CollectiveSpec, topology: Topology) -> str | None:
    groups = topology.ranks_by_host
    if len(groups) <= 1:
        return "one host: there are no messages between hosts to aggregate"
    return None if max(map(len, groups)) > 1 else "one rank on every host: the same as pairwise"


ALGORITHMS = (
    Algorithm(
        NAME, COLLECTIVES, build, ({}, {"rails": 1}, {"lanes": 2}), _reject,
        summary="local exchange, one message per pair of hosts and rail, local delivery",
    ),
)  # fmt: skip
