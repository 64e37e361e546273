"""Hierarchical all_gather and reduce_scatter: every block crosses each host's link once, however many ranks sit there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import check, check_choice, one_rank
from topoccl.algorithms.builders.direct import fold_in_order, others
from topoccl.algorithms.layout import host_groups
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

NAME = "hierarchical"
COLLECTIVES = ("all_gather", "reduce_scatter")
INTER = ("ring", "direct")

_LOCAL = 0  # the channel inside hosts; between hosts 1 forwards and 2 backwards


@dataclass(frozen=True)
class _Block:
    """The block that rank ``groups[host][at]`` contributes or receives. It moves around the hosts in direction ``way``."""

    rank: int
    host: int
    at: int
    way: int

    @property
    def channel(self) -> int:
        return 1 if self.way > 0 else 2


@dataclass(frozen=True)
class _Hosts:
    groups: tuple[tuple[int, ...], ...]

    @cached_property
    def blocks(self) -> tuple[tuple[_Block, ...], ...]:
        """Per host; half of the blocks go each way, so that both directions of every link are used."""
        return tuple(
            tuple(_Block(rank, h, at, 1 if (h + at) % 2 == 0 else -1) for at, rank in enumerate(group))
            for h, group in enumerate(self.groups)
        )

    def near(self, host: int, distance: int) -> Iterator[_Block]:
        """The blocks whose own host lies ``distance`` hosts before ``host`` on their way, in one order for all who ask."""
        count = len(self.groups)
        for way in (1, -1):
            yield from (block for block in self.blocks[(host - way * distance) % count] if block.way == way)

    def carrier(self, block: _Block, host: int) -> int:
        """The rank of ``host`` (modulo the number of hosts) that handles a block there: on its own host the block's own rank, elsewhere
        the one on the same rail; on a larger host the rails of several smaller ones take turns."""
        host %= len(self.groups)
        group, home = self.groups[host], len(self.groups[block.host])
        if host == block.host:
            return block.rank
        if home >= len(group):
            return group[block.at % len(group)]
        return group[block.at + home * (block.host % (len(group) // home))]


def build(spec: CollectiveSpec, topology: Topology, *, inter: str = "ring") -> Schedule:
    """all_gather: each block visits one carrier per host, which publishes it there in one step. reduce_scatter: the same backwards,
    each host's contributions to a block are folded by its carrier in one step before their sum leaves the host.

    Between H hosts, ``inter``:

    * "ring": from host to host in their order, half of the blocks in each direction; H-1 rounds;
    * "direct": between the block's rank and all its carriers at once; 1 round.

    Every block enters each remote host once (all_gather), or leaves it once as a partial sum (reduce_scatter): with n the whole output
    or input of a rank and L ranks on the host, (p-L)/p n, the least possible; the other direction carries on average the same in a ring,
    and L(H-1)/p n when direct. all_gather needs no scratch; reduce_scatter one place for each block carried for another host. Sums of
    one block are made in one order. Right in place.

    Raises:
        ValueError: an unknown ``inter``, or arguments that do not fit together.
    """
    check(NAME, spec, topology, COLLECTIVES)
    check_choice(NAME, "inter", inter, INTER)
    params = (("inter", inter),)
    if spec.ranks == 1:
        return one_rank(NAME, spec, params)
    b = ScheduleBuilder(spec, NAME, params=params)
    hosts = _Hosts(host_groups(topology))
    add = _all_gather if spec.collective == "all_gather" else _reduce_scatter
    for host, group in enumerate(hosts.groups):
        for rank in group:
            add(b, hosts, host, rank, inter == "ring")
    return b.build()


def _lane(b: ScheduleBuilder, rank: int, name: str, block: _Block) -> int:
    return b.lane(rank, (name, block.way), channel=block.channel)


def _all_gather(b: ScheduleBuilder, hosts: _Hosts, host: int, rank: int, ring: bool) -> None:
    group, count = hosts.groups[host], len(hosts.groups)
    peers = others(group, group.index(rank))
    for distance in range(count):
        for block in hosts.near(host, distance):
            place = (Buf.OUTPUT, block.rank)
            carrier = hosts.carrier(block, host)
            if carrier != rank:
                b.recv(b.lane(rank, "collect", channel=_LOCAL), carrier, place)
                continue
            if distance == 0:
                place = (Buf.INPUT, 0)
            else:
                before = hosts.carrier(block, host - block.way) if ring else block.rank
                b.recv(_lane(b, rank, "arrive", block), before, place)
            if ring and distance < count - 1:
                b.send(_lane(b, rank, "between", block), place, hosts.carrier(block, host + block.way))
            elif not ring and distance == 0 and count > 1:
                b.send(_lane(b, rank, "between", block), place, [hosts.carrier(block, host + block.way * d) for d in range(1, count)])
            if peers:
                b.send(b.lane(rank, "publish", channel=_LOCAL), place, peers)
            if distance == 0:
                b.copy(b.lane(rank, "copy"), place, (Buf.OUTPUT, rank))


def _reduce_scatter(b: ScheduleBuilder, hosts: _Hosts, host: int, rank: int, ring: bool) -> None:
    group, count = hosts.groups[host], len(hosts.groups)
    for distance in reversed(range(count)):
        # A partial sum that is ``distance`` hosts from its owner; blocks are met in the order of their way back.
        for block in hosts.near(host, -distance):
            own = (Buf.INPUT, block.rank)
            carrier = hosts.carrier(block, host)
            if carrier != rank:
                b.send(b.lane(rank, "within", channel=_LOCAL), own, carrier)
                continue
            place = (Buf.OUTPUT, 0) if distance == 0 else own
            if len(group) > 1:
                place = (Buf.OUTPUT, 0) if distance == 0 else (Buf.SCRATCH, b.scratch(rank, [block.rank]))
                fold_in_order(b, b.lane(rank, "fold", channel=_LOCAL), group, rank, own, place)
                own = place
            if ring:
                _pass_on(b, hosts, host, rank, block, distance, own)
            elif distance:
                b.send(_lane(b, rank, "between", block), own, block.rank)
            elif count > 1:
                carriers = [hosts.carrier(block, h) for h in range(count)]
                fold_in_order(b, _lane(b, rank, "arrive", block), carriers, rank, own, (Buf.OUTPUT, 0))


def _pass_on(b: ScheduleBuilder, hosts: _Hosts, host: int, rank: int, block: _Block, distance: int, own: tuple[Buf, int]) -> None:
    """One stop of a partial sum on its ring: add this host's part ``own`` to what arrives, and send it towards the owner."""
    place = own
    if distance < len(hosts.groups) - 1:
        if distance == 0:
            place = (Buf.OUTPUT, 0)
        elif own[0] is Buf.INPUT:
            place = (Buf.SCRATCH, b.scratch(rank, [block.rank]))
        b.recv_reduce(_lane(b, rank, "arrive", block), hosts.carrier(block, host - block.way), own, place)
    if distance:
        b.send(_lane(b, rank, "between", block), place, hosts.carrier(block, host + block.way))


def reject(spec: CollectiveSpec, topology: Topology) -> str | None:
    groups = topology.ranks_by_host
    if len(groups) == 1 and spec.ranks > 1:
        return "all ranks are on one host: this is direct"
    if len(groups) == spec.ranks > 1:
        return "no two ranks share a host: this is ring or direct"
    return None


ALGORITHMS = (
    Algorithm(
        name=NAME,
        collectives=COLLECTIVES,
        build=build,
        variants=({"inter": "ring"}, {"inter": "direct"}),
        reject=reject,
        summary="each block crosses each host's link once; published or folded inside the host",
    ),
)
