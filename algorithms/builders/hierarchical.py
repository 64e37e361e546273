"""Hierarchical all_reduce: reduce in the host, exchange between hosts on parallel rails, publish in the host."""

from __future__ import annotations

from dataclasses import dataclass

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import MOST_PARTS, check, check_choice, check_count, one_rank
from topoccl.algorithms.builders.direct import fold_in_order, others
from topoccl.algorithms.builders.recursive_doubling import double
from topoccl.algorithms.layout import host_groups, rail_owners
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

NAME = "hierarchical"
INTER = ("ring", "direct", "exchange", "doubling")

_WITHIN, _BETWEEN, _PUBLISH = 0, 1, 2  # channels of the three phases; rings of one rail use _PUBLISH + 1 and so on


@dataclass(frozen=True)
class _Rail:
    """One of ``count`` rails at one host: who owns it, the position of the host among the owners, and the chunks that belong to it."""

    number: int
    count: int
    owners: tuple[int, ...]
    at: int
    chunks: range
    source: Buf

    @property
    def owner(self) -> int:
        return self.owners[self.at]


def build(spec: CollectiveSpec, topology: Topology, *, inter: str = "ring", channels: int = 1) -> Schedule:
    """R rails, as many as the host with the fewest ranks has; rail j's share of the vector, n/R, has one owner on each host.

    1. Every rank sends each owner of its host that owner's share; the owner folds all L of them in one step.
    2. The owners of a rail all_reduce the share between the H hosts: ``inter``

       * "ring": rings in the order of the hosts, ``channels`` per rail, odd ones backwards; 2(H-1) rounds;
       * "direct": each owner sums the pieces of one H-th and publishes the sum; 2 rounds;
       * "exchange": every owner publishes its share, all sum all of them in the order of the hosts; 1 round;
       * "doubling": the owners of a single rail swap the whole vector by recursive doubling; lg H rounds, plus 2 when H is no power of two.
    3. Every owner publishes the result to its host in one step.

    A host sends and receives 2(H-1)/H n in all, the least possible ("exchange": (H-1) n, the same for two hosts; "doubling": lg H n); a
    rank sends at most n inside its host in phase 1, and publishes n/R there in phase 3. No scratch, so all segments may be under way at
    once. Sums are made once or in the same order everywhere, so all ranks end with the same bits. Right in place.

    Raises:
        ValueError: an unknown ``inter``, ``channels`` not from 1 to ``MOST_PARTS`` (or not 1 without rings), or arguments that do not
            fit together.
    """
    check(NAME, spec, topology, ("all_reduce",))
    check_choice(NAME, "inter", inter, INTER)
    check_count(NAME, "channels", channels, most=MOST_PARTS)
    if channels > 1 and inter != "ring":
        raise ValueError(f"{NAME}: channels is {channels} with inter={inter}; expected 1 without rings")
    params = (("inter", inter),) if channels == 1 else (("inter", inter), ("channels", channels))
    if spec.ranks == 1:
        return one_rank(NAME, spec, params)
    groups, owners = host_groups(topology), rail_owners(topology)
    hosts, rails = len(groups), 1 if inter == "doubling" else len(owners[0])
    share = 1 if inter in ("exchange", "doubling") else hosts * channels
    b = ScheduleBuilder(spec, NAME, chunks=rails * share, params=params)
    for at, group in enumerate(groups):
        source = Buf.OUTPUT if len(group) > 1 else Buf.INPUT
        of_host = [
            _Rail(number, rails, tuple(own[number] for own in owners), at, range(number * share, (number + 1) * share), source)
            for number in range(rails)
        ]
        _reduce_in_host(b, group, of_host)
        if hosts > 1:
            for rail in of_host:
                {"ring": _ring, "direct": _direct, "exchange": _exchange, "doubling": _doubling}[inter](b, rail, channels)
        _publish_in_host(b, group, of_host)
    return b.build()


def _reduce_in_host(b: ScheduleBuilder, group: tuple[int, ...], rails: list[_Rail]) -> None:
    if len(group) == 1:
        return
    for at, rank in enumerate(group):
        lane = b.lane(rank, "within", channel=_WITHIN)
        # Each rank begins with another owner, so that no owner is everybody's first.
        for turn in range(len(rails)):
            rail = rails[(at + 1 + turn) % len(rails)]
            if rail.owner != rank:
                b.send(lane, (Buf.INPUT, rail.chunks.start), rail.owner, len(rail.chunks))
    for rail in rails:
        lane = b.lane(rail.owner, "fold", channel=_WITHIN)
        start = rail.chunks.start
        fold_in_order(b, lane, group, rail.owner, (Buf.INPUT, start), (Buf.OUTPUT, start), len(rail.chunks))


def _publish_in_host(b: ScheduleBuilder, group: tuple[int, ...], rails: list[_Rail]) -> None:
    for rail in rails:
        peers = others(group, group.index(rail.owner))
        if peers:
            b.send(b.lane(rail.owner, "publish", channel=_PUBLISH), (Buf.OUTPUT, rail.chunks.start), peers, len(rail.chunks))
    for at, rank in enumerate(group):
        lane = b.lane(rank, "collect", channel=_PUBLISH)
        for turn in range(len(rails)):
            rail = rails[(at + 1 + turn) % len(rails)]
            if rail.owner != rank:
                b.recv(lane, rail.owner, (Buf.OUTPUT, rail.chunks.start), len(rail.chunks))


def _ring(b: ScheduleBuilder, rail: _Rail, channels: int) -> None:
    hosts = len(rail.owners)
    for channel in range(channels):
        way = -1 if (rail.number * channels + channel) % 2 else 1
        successor, predecessor = rail.owners[(rail.at + way) % hosts], rail.owners[(rail.at - way) % hosts]
        wire = _BETWEEN if channel == 0 else _PUBLISH + channel
        # The owners' first rings take a NIC each; further rings take those that are left, if any.
        nic = channel * rail.count
        send = b.lane(rail.owner, ("between", channel), channel=wire, rail=nic)
        receive = b.lane(rail.owner, ("arrive", channel), channel=wire, rail=nic)
        base = rail.chunks.start + channel * hosts

        def piece(round_: int, base: int = base, way: int = way) -> int:
            return base + (rail.at - way * round_) % hosts

        for t in range(hosts - 1):
            b.send(send, (Buf.OUTPUT if t else rail.source, piece(t)), successor)
            b.recv_reduce(receive, predecessor, (rail.source, piece(t + 1)), (Buf.OUTPUT, piece(t + 1)))
        for t in range(hosts - 1):
            b.send(send, (Buf.OUTPUT, piece(t - 1)), successor)
            b.recv(receive, predecessor, (Buf.OUTPUT, piece(t)))


def _direct(b: ScheduleBuilder, rail: _Rail, channels: int) -> None:
    own, start = rail.owner, rail.chunks.start
    peers = others(rail.owners, rail.at)
    for peer in peers:
        b.send(b.lane(own, "between", channel=_BETWEEN), (rail.source, start + rail.owners.index(peer)), peer)
    mine = start + rail.at
    fold_in_order(b, b.lane(own, "arrive", channel=_BETWEEN), rail.owners, own, (rail.source, mine), (Buf.OUTPUT, mine))
    b.send(b.lane(own, "spread", channel=_PUBLISH + 1), (Buf.OUTPUT, mine), peers)
    for peer in reversed(peers):
        b.recv(b.lane(own, "gather", channel=_PUBLISH + 1), peer, (Buf.OUTPUT, start + rail.owners.index(peer)))


def _exchange(b: ScheduleBuilder, rail: _Rail, channels: int) -> None:
    own, start = rail.owner, rail.chunks.start
    b.send(b.lane(own, "between", channel=_BETWEEN), (rail.source, start), others(rail.owners, rail.at))
    fold_in_order(b, b.lane(own, "arrive", channel=_BETWEEN), rail.owners, own, (rail.source, start), (Buf.OUTPUT, start))


def _doubling(b: ScheduleBuilder, rail: _Rail, channels: int) -> None:
    double(b, [(owner,) for owner in rail.owners], rail.owner, rail.source, rail.chunks.start, _BETWEEN)


def reject(spec: CollectiveSpec, topology: Topology) -> str | None:
    if len(topology.ranks_by_host) == 1 and spec.ranks > 1:
        return "all ranks are on one host: this is two_shot"
    return None


ALGORITHMS = (
    Algorithm(
        name=NAME,
        collectives=("all_reduce",),
        build=build,
        variants=({"inter": "ring"}, {"inter": "direct"}, {"inter": "exchange"}, {"inter": "doubling"}, {"inter": "ring", "channels": 2}),
        reject=reject,
        summary="reduce in the host, exchange between hosts on parallel rails, publish in the host",
    ),
)
