"""Opens a transport over several NICs per host, where the fabric has rails and every rank has an interface on each."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING

from topoccl.collectives.bootstrap import exchange, exchange_or_raise, share_store
from topoccl.collectives.config import Config, variable_of
from topoccl.collectives.errors import ConfigError, TopocclError
from topoccl.collectives.logging import Logger, Subsystem
from topoccl.collectives.network import looks_among, open_tcp, pace_of, rdma_of, takes_sockets
from topoccl.collectives.transports.rendezvous import address_among, source_address
from topoccl.topology.discovery import HostFacts, NicFacts
from topoccl.topology.discovery.assemble import nic_name
from topoccl.topology.graph import Topology
from topoccl.topology.rails import Rail, RailTable, rails_of, without

if TYPE_CHECKING:
    from topoccl.collectives.transports.base import Transport


def over_rails(
    transport: Transport, topology: Topology, facts: Sequence[HostFacts], config: Config, logger: Logger, timeout: float
) -> tuple[Transport, tuple[frozenset[str], ...], Topology]:
    """The transport to go on with, ``transport`` closed if it is another one; the switches of each of its rails, none where it has one way;
    and ``topology`` without the rails that will carry nothing, which nothing may be planned for.

    Every rank calls this, with the same ``topology`` and ``facts`` (of each rank). Rails are those of ``topology``; its NICs are
    interfaces of the same name or PCI address. ``TOPOCCL_RAILS=auto`` goes on with those of them that nothing is in the way of.

    Raises:
        ConfigError: ``TOPOCCL_RAILS=1``, and something is in the way, on every rank; it names the rank, the NIC and the known interfaces.
    """
    rails = rails_of(topology)
    insists = config.rails == "1"
    if len(topology.ranks_by_host) < 2 or (len(rails) < 2 and not insists):
        return transport, (), topology
    wide: Transport | None = None
    problems: list[TopocclError] = []
    try:
        _may_have(transport.name, topology, rails, facts, config)
        used, problems = _sound(transport, topology, rails, facts, timeout)
        if problems and (insists or len(used) < 2):
            raise problems[0]
        rest = without(topology, (rail for rail in rails if rail not in used))
        own = [of_rank[transport.rank] for of_rank in rail_addresses(topology, used, facts)]
        wide = _opened(transport, rest, used, own, facts, config, timeout)
    except TopocclError as problem:
        if insists:
            raise ConfigError(f"{variable_of('rails')}=1: {problem}") from None
        logger.info(Subsystem.NET, "rails are not used: %s", problem)
        if problem not in problems and not isinstance(problem, _Declined):
            problems.append(problem)
        used = _carrying(transport, topology, rails, facts, config, timeout)
        rest = without(topology, (rail for rail in rails if rail not in used))
    if len(used) < len(rails) and problems and transport.rank == 0:
        words = "nothing goes over %s of the rails, nor is planned for it: %s"
        lost = ", ".join(str(rail) for rail in rails if rail not in used)
        logger.warn_once("rails", Subsystem.NET, words, lost, "; ".join(map(str, problems)))
    if wide is None:
        return transport, (), rest
    transport.close()
    logger.info(Subsystem.NET, "rails %s over %s", ", ".join(map(str, used)), ", ".join(own))
    return wide, _switches(used), rest


class _Declined(ConfigError):
    """Rails are not wanted, or not known to be better: nothing that anybody should repair."""


def _may_have(transport: str, topology: Topology, rails: Sequence[Rail], facts: Sequence[HostFacts], config: Config) -> None:
    """Raises _Declined where rails are not to be looked for. ``transport`` is the name of what would be left."""
    if config.rails == "0":
        raise _Declined(f"{variable_of('rails')}=0")
    if len(rails) < 2:
        raise _Declined(f"topology {topology.name!r} has {len(rails)} of the networks that reach all hosts over NICs; rails need two")
    if transport == "memory" or config.transport == "mpi":
        raise _Declined(f"transport {transport} has one way between ranks; {variable_of('transport')}=auto, tcp or gloo has rails")
    if config.rails != "1" and transport == "mpi" and (fast := rdma_of(facts)):
        raise _Declined(f"MPI may reach more than sockets do by the RDMA of {fast}")
    guessed = [nic for rail in rails for nic in rail.nics.values() if topology.vertices[nic].attrs.get("source") == "default"]
    if guessed and config.rails != "1":
        raise _Declined(f"the rate of NIC {guessed[0]} is not known")


def _sound(
    transport: Transport, topology: Topology, rails: Sequence[Rail], facts: Sequence[HostFacts], timeout: float
) -> tuple[list[Rail], list[TopocclError]]:
    """The rails that may be opened together, and what is in the way of each other one; equal on all ranks."""
    sound: list[Rail] = []
    problems: list[TopocclError] = []
    for rail in rails:
        try:
            rail_addresses(topology, [*sound, rail], facts)
        except ConfigError as problem:
            problems.append(problem)
        else:
            sound.append(rail)
    rows = rail_addresses(topology, sound, facts) if sound else []
    mine = [_unroutable(transport.rank, topology, rail, row) for rail, row in zip(sound, rows, strict=True)]
    for rail, *found in zip(tuple(sound), *exchange_or_raise(transport, mine, timeout), strict=True):
        if any(found):
            sound.remove(rail)
            problems.append(next(filter(None, found)))
    return sound, problems


def _opened(
    transport: Transport, topology: Topology, rails: Sequence[Rail], own: Sequence[str], facts: Sequence[HostFacts], config: Config,
    timeout: float,
) -> Transport:  # fmt: skip
    if config.transport == "gloo":
        return _over_gloo(transport, own, config, timeout)
    pace = pace_of(transport.rank, topology, facts, RailTable(topology, _switches(rails)))
    return open_tcp(transport, own, timeout, pace, looks=looks_among(facts))


def _switches(rails: Sequence[Rail]) -> tuple[frozenset[str], ...]:
    return tuple(rail.switches for rail in rails)


def _carrying(
    transport: Transport, topology: Topology, rails: Sequence[Rail], facts: Sequence[HostFacts], config: Config, timeout: float
) -> list[Rail]:
    """Those of ``rails`` that carry what ranks send over one address each: one if these all are on it; else nobody knows, and all may."""
    if transport.name == "memory":
        return list(rails)
    if transport.name != "gloo" and not takes_sockets(transport, config, facts, len(topology.ranks_by_host)):
        return list(rails)  # Open MPI uses all interfaces
    told = exchange_or_raise(transport, address_among(transport, config.socket_ifname, timeout), timeout)
    for rail in rails:
        if all(address in _addresses_on(topology, rail, rank, seen) for rank, (address, seen) in enumerate(zip(told, facts, strict=True))):
            return [rail]
    return list(rails)


def _addresses_on(topology: Topology, rail: Rail, rank: int, seen: HostFacts) -> list[str]:
    return [str(face.ip) for nic in seen.nics if _is_of(topology, rail, rank, nic) for face in map(ipaddress.ip_interface, nic.addresses)]


def _over_gloo(transport: Transport, addresses: Sequence[str], config: Config, timeout: float) -> Transport:
    from topoccl.collectives.transports.rails import rails_transport

    store, _ = share_store(transport, transport.size, timeout, config.socket_ifname)
    wide = rails_transport(store, transport.rank, transport.size, timeout, addresses)
    try:
        exchange(wide, None, timeout)  # the store may end with rank 0: nobody goes on before all are done with it
    except BaseException:
        wide.close()
        raise
    return wide


def rail_addresses(topology: Topology, rails: Sequence[Rail], facts: Sequence[HostFacts]) -> list[list[str]]:
    """The address of each rank on each rail; equal on all ranks.

    Raises:
        ConfigError: what is in the way.
    """
    families = {4, 6}
    found: list[list[NicFacts]] = []
    for rail in rails:
        found.append([_interface(topology, rail, rank, seen) for rank, seen in enumerate(facts)])
        for nic in found[-1]:
            families &= {6 if family == "ipv6" else 4 for family in nic.families}
    if not families:
        raise ConfigError("there is no version of IP in which all ranks have addresses on all rails")
    version = min(families)
    addresses = [[_address(nic, version) for nic in row] for row in found]
    for rank in range(len(facts)):
        own = [row[rank] for row in addresses]
        if len(set(own)) < len(own):
            raise ConfigError(f"rank {rank} has one address, {own[0]}, on several rails")
    return addresses


def _interface(topology: Topology, rail: Rail, rank: int, seen: HostFacts) -> NicFacts:
    for nic in seen.nics:
        if _is_of(topology, rail, rank, nic):
            if nic.up and nic.addresses:
                return nic
            raise ConfigError(f"rank {rank} on {seen.hostname}: interface {nic.name} of rail {rail} is down or has no address")
    known = ", ".join(nic.name for nic in seen.nics) or "none"
    vertex = rail.nics[topology.host_of_rank[rank]]
    raise ConfigError(
        f"rank {rank} on {seen.hostname}: NIC {vertex} of rail {rail} is none of its interfaces; known and allowed are {known} "
        f"({variable_of('socket_ifname')})"
    )


def _is_of(topology: Topology, rail: Rail, rank: int, nic: NicFacts) -> bool:
    """Whether ``nic`` is the one by which the host of ``rank`` is on ``rail``."""
    host = topology.host_of_rank[rank]
    vertex = rail.nics[host]
    name, busid = vertex.removeprefix(f"{host}."), topology.vertices[vertex].attrs.get("busid")
    return nic_name(nic) == name or nic.name == name or bool(nic.pci and nic.pci[0].address == busid)


def _address(nic: NicFacts, version: int) -> str:
    faces = map(ipaddress.ip_interface, nic.addresses)
    return str(next(face.ip for face in faces if face.version == version))


def _unroutable(rank: int, topology: Topology, rail: Rail, addresses: Sequence[str]) -> ConfigError | None:
    """Why messages of ``rail``, on which ranks have ``addresses``, would leave this rank's host by another interface."""
    hosts = topology.host_of_rank
    others = {host: peer for peer, host in reversed(list(enumerate(hosts))) if host != hosts[rank]}
    for host, peer in others.items():
        source = source_address(addresses[peer])
        if source != addresses[rank]:
            way = f"leave from {source}" if source else "have no way"
            return ConfigError(f"rail {rail}: messages from {addresses[rank]} to {addresses[peer]} (rank {peer} on {host}) would {way}")
    return None
