"""Opens a transport over several NICs per host, where the fabric has rails and every rank has an interface on each."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING

from topoccl.collectives.bootstrap import exchange, exchange_or_raise, share_store
from topoccl.collectives.config import Config, variable_of
from topoccl.collectives.errors import ConfigError, TopocclError
from topoccl.collectives.logging import Logger, Subsystem
from topoccl.collectives.network import open_tcp, pace_of, rdma_of, spins_among
from topoccl.collectives.transports.rendezvous import source_address
from topoccl.topology.discovery import HostFacts, NicFacts
from topoccl.topology.discovery.assemble import nic_name
from topoccl.topology.graph import Topology
from topoccl.topology.rails import Rail, rails_of

if TYPE_CHECKING:
    from topoccl.collectives.transports.base import Transport


def over_rails(
    transport: Transport, topology: Topology, facts: Sequence[HostFacts], config: Config, logger: Logger, timeout: float
) -> tuple[Transport, tuple[frozenset[str], ...]]:
    """The transport to go on with, ``transport`` closed if it is another one, and the switches of each of its rails.

    Every rank calls this, with the same ``topology`` and ``facts`` (of each rank). Rails are those of ``topology``; its NICs are
    interfaces of the same name or PCI address. ``TOPOCCL_RAILS=auto`` leaves everything as it is where something is in the way.

    Raises:
        ConfigError: ``TOPOCCL_RAILS=1``, and something is in the way, on every rank; it names the rank, the NIC and the known interfaces.
    """
    rails = rails_of(topology)
    insists = config.rails == "1"
    if config.rails == "0" or len(topology.ranks_by_host) < 2 or (len(rails) < 2 and not insists):
        return transport, ()
    try:
        addresses = rail_addresses(transport.name, topology, rails, facts, config)
        exchange_or_raise(transport, _unroutable(transport.rank, topology, rails, addresses), timeout)
        own = [of_rank[transport.rank] for of_rank in addresses]
        if config.transport == "gloo":
            wide = _over_gloo(transport, own, config, timeout)
        else:
            wide = open_tcp(transport, own, timeout, pace_of(transport.rank, topology, facts), spins=spins_among(facts))
    except TopocclError as problem:
        if insists:
            raise ConfigError(f"{variable_of('rails')}=1: {problem}") from None
        logger.info(Subsystem.NET, "rails are not used: %s", problem)
        return transport, ()
    transport.close()
    logger.info(Subsystem.NET, "rails %s over %s", ", ".join(map(str, rails)), ", ".join(own))
    return wide, tuple(rail.switches for rail in rails)


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


def rail_addresses(
    transport: str, topology: Topology, rails: Sequence[Rail], facts: Sequence[HostFacts], config: Config
) -> list[list[str]]:
    """The address of each rank on each rail; equal on all ranks. ``transport`` is the name of what would be left.

    Raises:
        ConfigError: what is in the way.
    """
    if len(rails) < 2:
        raise ConfigError(f"topology {topology.name!r} has {len(rails)} of the networks that reach all hosts over NICs; rails need two")
    if transport == "memory" or config.transport == "mpi":
        raise ConfigError(f"transport {transport} has one way between ranks; {variable_of('transport')}=auto, tcp or gloo has rails")
    if config.rails != "1" and transport == "mpi" and (fast := rdma_of(facts)):
        raise ConfigError(f"MPI may reach more than sockets do by the RDMA of {fast}")
    guessed = [nic for rail in rails for nic in rail.nics.values() if topology.vertices[nic].attrs.get("source") == "default"]
    if guessed and config.rails != "1":
        raise ConfigError(f"the rate of NIC {guessed[0]} is not known")
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
    host = topology.host_of_rank[rank]
    vertex = rail.nics[host]
    name, busid = vertex.removeprefix(f"{host}."), topology.vertices[vertex].attrs.get("busid")
    for nic in seen.nics:
        if nic_name(nic) == name or nic.name == name or (nic.pci and nic.pci[0].address == busid):
            if nic.up and nic.addresses:
                return nic
            raise ConfigError(f"rank {rank} on {seen.hostname}: interface {nic.name} of rail {rail} is down or has no address")
    known = ", ".join(nic.name for nic in seen.nics) or "none"
    raise ConfigError(
        f"rank {rank} on {seen.hostname}: NIC {vertex} of rail {rail} is none of its interfaces; known and allowed are {known} "
        f"({variable_of('socket_ifname')})"
    )


def _address(nic: NicFacts, version: int) -> str:
    faces = map(ipaddress.ip_interface, nic.addresses)
    return str(next(face.ip for face in faces if face.version == version))


def _unroutable(rank: int, topology: Topology, rails: Sequence[Rail], addresses: Sequence[Sequence[str]]) -> ConfigError | None:
    """Why messages of a rail would leave this rank's host by another interface."""
    hosts = topology.host_of_rank
    others = {host: peer for peer, host in reversed(list(enumerate(hosts))) if host != hosts[rank]}
    for rail, row in zip(rails, addresses, strict=True):
        for host, peer in others.items():
            source = source_address(row[peer])
            if source != row[rank]:
                way = f"leave from {source}" if source else "have no way"
                return ConfigError(f"rail {rail}: messages from {row[rank]} to {row[peer]} (rank {peer} on {host}) would {way}")
    return None
