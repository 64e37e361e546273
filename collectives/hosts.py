"""Which ranks share memory: claimed by a host's identity, believed only when a probe succeeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from topoccl.collectives.bootstrap import exchange_or_raise
from topoccl.collectives.errors import TopocclError
from topoccl.collectives.executor import arena as arenas
from topoccl.collectives.executor.reach import Door, Reach, opens
from topoccl.collectives.executor.waiting import Waiter
from topoccl.collectives.transports.base import Transport
from topoccl.topology.discovery import HostFacts
from topoccl.topology.graph import Topology, TopologyError


@dataclass(frozen=True)
class Neighbours:
    """The ranks that share this rank's memory.

    Attributes:
        hosts: the verified host of every rank of the group; equal texts share memory (or, with shared memory turned off, claim
            to).
        arena: their shared memory; None for a rank that is alone or does without.
        member: each of these ranks' place in the arena.
        cpus: the CPUs that each rank of the group may run on.
        shares: False where shared memory is turned off, on all ranks.
        reach: reads these ranks' own memory; None unless every rank of the group can do that with all that share its arena.
        least: how many ranks share a core at least, as is known of a larger group.
        problem: why ranks that could share memory do not; empty when they do.
        area: bytes of the smallest message area of any host where memory is short; None where all are as large as they should be.
    """

    hosts: tuple[str, ...]
    arena: arenas.Arena | None
    member: dict[int, int]
    cpus: tuple[frozenset[int], ...]
    shares: bool = field(default=True, kw_only=True)
    reach: Reach | None = None
    least: float = 1.0
    problem: str = ""
    area: int | None = None

    def load(self, rank: int) -> float:
        """How many ranks share a core on ``rank``'s host, at least 1."""
        together = [cpus for host, cpus in zip(self.hosts, self.cpus, strict=True) if host == self.hosts[rank]]
        return max(self.least, len(together) / max(len(frozenset().union(*together)), 1))

    def waiter(self, rank: int, counters: memoryview) -> Waiter:
        """How ``rank`` waits for counters in the memory of its host."""
        return Waiter(counters, crowded=self.load(rank) > 1, several=len(set(self.hosts)) > 1)

    @property
    def crowd(self) -> float:
        """``load`` of the fullest host."""
        return max(self.load(self.hosts.index(host)) for host in set(self.hosts))

    @property
    def together(self) -> list[tuple[int, ...]]:
        """The ranks in groups that share memory, each in ascending order, by their first rank."""
        if not self.shares:
            return [(rank,) for rank in range(len(self.hosts))]
        found: dict[str, list[int]] = {}
        for rank, host in enumerate(self.hosts):
            found.setdefault(host, []).append(rank)
        return [tuple(ranks) for ranks in found.values()]


def crowd_of_machines(facts: Sequence[HostFacts]) -> float:
    """How many ranks share a core of the fullest machine, whatever hosts they count as."""
    machines = [[facts[rank] for rank in ranks] for ranks in _by_machine(facts)]
    return max(len(ranks) / max(1, len(set().union(*(seen.affinity for seen in ranks)))) for ranks in machines)


def share_machines(facts: Sequence[HostFacts], hosts: Sequence[str]) -> bool:
    """Whether any machine holds several of ``hosts``, of which each rank names its own."""
    return any(len({hosts[rank] for rank in ranks}) > 1 for ranks in _by_machine(facts))


def _by_machine(facts: Sequence[HostFacts]) -> list[list[int]]:
    machines: dict[str, list[int]] = {}
    for rank, seen in enumerate(facts):
        machines.setdefault(seen.boot_id or f"rank {rank}", []).append(rank)
    return list(machines.values())


def meet(
    transport: Transport, claims: Sequence[str], cpus: Sequence[frozenset[int]], timeout: float, *, share: bool = True, attach: bool = True,
    least: float = 1.0,
) -> Neighbours:  # fmt: skip
    """Finds out, among all ranks at once, who shares memory with whom, and maps the shared memory.

    For each claimed host the lowest rank makes an arena and the others try to open it; those who cannot are another host and
    try among themselves, until everyone is placed. Where one that could open it has no room for it a smaller one is made. Where there
    is no memory for the smallest every rank is a host of its own.

    Args:
        transport: the group's.
        claims: the host that each rank claims to run on.
        cpus: the CPUs that each rank may run on.
        timeout: seconds.
        share: False believes the claims and uses no shared memory.
        attach: False does not try to read other ranks' own memory.
        least: of the larger group that this one is part of.
    """
    if not share:
        return Neighbours(tuple(claims), None, {}, tuple(cpus), None, least, shares=False)
    hosts: list[str | None] = [None] * transport.size
    mine: arenas.Arena | None = None
    member: dict[int, int] = {}
    door = Door() if attach else None
    problem_seen = ""
    short: list[int] = []
    most: dict[str, int] = {}  # bytes of the message areas that are tried next, by claim, where some had no room for larger ones
    while True:
        groups: dict[str, list[int]] = {}
        for rank, claim in enumerate(claims):
            if hosts[rank] is None:
                groups.setdefault(claim, []).append(rank)
        for claim, ranks in groups.items():
            if len(ranks) == 1:
                hosts[ranks[0]] = _name(claim, ranks[0], hosts)
        waiting = {claim: ranks for claim, ranks in groups.items() if len(ranks) > 1}
        if not waiting:
            break
        group = waiting.get(claims[transport.rank], []) if hosts[transport.rank] is None else []
        leads = bool(group) and group[0] == transport.rank
        offer: arenas.ArenaOffer | str | None = None
        opened: arenas.Arena | None = None
        problem = ""
        if leads:
            try:
                opened, offer = arenas.create(len(group), most.get(claims[transport.rank]))
            except OSError as error:
                offer = str(_lacking(len(group), error))
        offers = exchange_or_raise(transport, offer, timeout)
        refused = {claim: str(offers[ranks[0]]) for claim, ranks in waiting.items() if isinstance(offers[ranks[0]], str)}
        for claim, why in refused.items():
            problem_seen = problem_seen or why
            for r in waiting.pop(claim):
                hosts[r] = _name(claim, r, hosts)
        if group and not leads and claims[transport.rank] not in refused:
            try:
                opened = arenas.join(offers[group[0]], len(group))
            except OSError as error:
                problem = str(_lacking(len(group), error))
        joined = exchange_or_raise(transport, problem or opened is not None, timeout)
        if opened is not None:
            opened.close_fd()
        for claim, ranks in waiting.items():
            area = offers[ranks[0]].area
            told = next((joined[r] for r in ranks if isinstance(joined[r], str)), None)
            if told is not None:
                if area > arenas.LEAST_AREA:
                    most[claim] = arenas.smaller(area)
                    continue
                problem_seen = problem_seen or told
                for r in ranks:
                    hosts[r] = _name(claim, r, hosts)
                continue
            if area < arenas.area_bytes(len(ranks)):
                short.append(area)
            together = [r for r in ranks if joined[r]]
            name = _name(claim, ranks[0], hosts)
            for r in together:
                hosts[r] = name
            if transport.rank in together and len(together) > 1:
                mine = opened
                member = {r: i for i, r in enumerate(ranks) if joined[r]}
    reach = _reach(transport, door, mine, member, timeout) if door is not None and len(set(hosts)) < transport.size else None
    found = tuple(h for h in hosts if h is not None)
    return Neighbours(found, mine, member, tuple(cpus), reach, least, problem_seen, min(short, default=None))


def _reach(transport: Transport, door: Door, arena: arenas.Arena | None, member: dict[int, int], timeout: float) -> Reach | None:
    """Lets all ranks try to read their neighbours' memory."""
    offers = exchange_or_raise(transport, door.offer, timeout)
    mine = all(opens(offers[rank]) for rank in member if rank != transport.rank)
    everyone = all(exchange_or_raise(transport, mine, timeout))
    return Reach({rank: offers[rank][0] for rank in member if rank != transport.rank}) if everyone and arena is not None else None


def _lacking(ranks: int, error: OSError) -> TopocclError:
    size = arenas.arena_size(ranks, 0) >> 10
    return TopocclError(f"{size} KiB of memory for {ranks} ranks to share cannot be had: {error}; TOPOCCL_SHM=0 does without")


def _name(claim: str, leader: int, hosts: Sequence[str | None]) -> str:
    return f"{claim}#{leader}" if claim in hosts else claim


def seat(topology: Topology, names: Sequence[str]) -> Topology:
    """Places ranks on the slots of a described fabric: by host name where the description knows the names, else in order.

    Args:
        topology: the description.
        names: the host name of each rank.

    Raises:
        TopologyError: fewer slots than ranks, in all or on one host; both numbers are in the message.
    """
    if len(names) > topology.num_ranks:
        room = f"{topology.num_ranks} slot{'s' if topology.num_ranks > 1 else ''}"
        raise TopologyError(f"topology {topology.name!r} has {room}, fewer than the {len(names)} ranks of the group")
    known = {}
    for host in topology.hosts:
        known[host] = host
        known[str(topology.vertices[host].attrs.get("name", host))] = host
    if not all(name in known for name in names):
        return topology.place(range(len(names)))
    free: dict[str, list[int]] = {}
    for slot, host in enumerate(topology.host_of_rank):
        free.setdefault(host, []).append(slot)
    order = []
    for rank, name in enumerate(names):
        slots = free.get(known[name], [])
        if not slots:
            have = topology.host_of_rank.count(known[name])
            raise TopologyError(
                f"topology {topology.name!r}: host {name!r} has {have} slots, fewer than the {names.count(name)} ranks on it (rank {rank})"
            )
        order.append(slots.pop(0))
    return topology.place(order)
