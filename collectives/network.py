"""Opens connections of our own between the hosts of a job, over the transport on which its ranks have met."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from topoccl.collectives.bootstrap import exchange, exchange_or_raise
from topoccl.collectives.config import Config
from topoccl.collectives.errors import ConfigError, TopocclError
from topoccl.collectives.hosts import crowd_of_machines
from topoccl.collectives.logging import Logger, Subsystem
from topoccl.collectives.transports.rendezvous import address_among
from topoccl.collectives.transports.sockets import TOKEN_BYTES, Listener
from topoccl.collectives.transports.tcp import NO_LOOKS, Looks, Pace, tcp_transport, unpaced
from topoccl.topology.discovery import HostFacts, discover_host
from topoccl.topology.graph import Topology
from topoccl.topology.rails import RailTable
from topoccl.topology.routes import routes_of

if TYPE_CHECKING:
    from topoccl.collectives.transports.base import Transport

_PATIENCE = 30.0
# What who waits for a stamped message does before it sleeps, since waking it takes longer than most waits: with a core of its own,
# or beside other ranks, of which the one that has to send next may be waiting for this core.
_ALONE, _BESIDE = Looks(300, yields=False), Looks(20, yields=True)


def over_tcp(
    transport: Transport, topology: Topology, facts: Sequence[HostFacts], config: Config, logger: Logger, timeout: float
) -> Transport:
    """The transport to go on with, ``transport`` closed if it is another one. Every rank calls this, with equal ``topology`` and ``facts``
    (of each rank).

    ``TOPOCCL_TRANSPORT=tcp`` takes sockets; ``auto`` does between hosts, unless MPI may use RDMA there, and goes on without where ranks
    do not reach each other by them.

    Raises:
        ConfigError: ``tcp`` was asked for, and a rank has no address that fits; on every rank.
        TransportError, CollectiveTimeout: ``tcp`` was asked for, and ranks do not reach each other; on every rank.
    """
    if not takes_sockets(transport, config, facts, len(topology.ranks_by_host)):
        return transport
    return _replaced(transport, config, logger, timeout, pace_of(transport.rank, topology, facts), looks_among(facts))


def takes_sockets(transport: Transport, config: Config, facts: Sequence[HostFacts], hosts: int) -> bool:
    """Whether :func:`over_tcp` looks for sockets among ranks with ``facts`` on so many hosts."""
    if config.transport != "auto":
        return config.transport == "tcp"
    return hosts > 1 and not (transport.name == "mpi" and rdma_of(facts) is not None)


def _replaced(transport: Transport, config: Config, logger: Logger, timeout: float, pace: Pace, looks: Looks = NO_LOOKS) -> Transport:
    """Sockets in place of ``transport``, or that where ranks do not reach each other and nobody insists."""
    # Such ranks are to find out soon, where they can do without.
    patience = timeout if config.transport == "tcp" else min(timeout, _PATIENCE)
    try:
        wide = open_tcp(transport, [address_among(transport, config.socket_ifname, timeout)], timeout, pace, patience, looks)
    except TopocclError as problem:
        if config.transport == "tcp":
            raise
        logger.warn_once("tcp", Subsystem.NET, "sockets are not used, but %s: %s", transport.name, problem)
        return transport
    transport.close()
    return wide


def looks_among(facts: Sequence[HostFacts]) -> Looks:
    """What ranks with ``facts`` do before they sleep, which is the same on all."""
    return _BESIDE if crowd_of_machines(facts) > 1 else _ALONE


def rdma_of(facts: Sequence[HostFacts]) -> str | None:
    """A NIC with RDMA, by which MPI may reach more than sockets do."""
    return next((f"{nic.name} of rank {rank}" for rank, seen in enumerate(facts) for nic in seen.nics if nic.rdma), None)


def pace_of(rank: int, topology: Topology, facts: Sequence[HostFacts], rails: RailTable | None = None) -> Pace:
    """The rate of the narrowest link between hosts on the way of ``rank`` to each other one on each of ``rails`` (None: there is one way),
    0 where a rate is only assumed: that no source says it, or that it is what the kernel says of an interface without hardware."""
    routes = routes_of(topology)
    trusted = [all(nic.physical for nic in seen.usable_nics) for seen in facts]

    def pace(peer: int, rail: int) -> float:
        way = 0 if rails is None else rails.ways(rank, peer)[rail]
        links = [topology.links[index] for index in routes.path(rank, peer, way) if topology.links[index].kind == "net"]
        sources = {link.attrs.get("source") for link in links}
        if not links or "default" in sources or ("sysfs" in sources and not (trusted[rank] and trusted[peer])):
            return 0.0
        return min(link.bandwidth for link in links)

    return pace


def for_measuring(transport: Transport, config: Config, logger: Logger) -> Transport:
    """What :func:`over_tcp` goes on with, without a pace, for those who measure what there is and do not know the fabric yet. Every rank
    calls this; errors as there."""
    told: list[tuple[HostFacts, str]] = []
    if config.transport == "auto":
        mine: tuple[HostFacts, str] | Exception
        try:
            seen = discover_host()
            mine = seen, config.hostid or seen.host_id
        except Exception as error:  # told to all ranks
            mine = error
        told = exchange_or_raise(transport, mine, config.timeout)
    if not takes_sockets(transport, config, [seen for seen, _ in told], len({host for _, host in told})):
        return transport
    return _replaced(transport, config, logger, config.timeout, unpaced)


def open_tcp(
    transport: Transport, addresses: Sequence[str], timeout: float, pace: Pace, patience: float | None = None, looks: Looks = NO_LOOKS
) -> Transport:
    """Sockets among the ranks of ``transport``, which stays open; every rank calls this.

    Args:
        addresses: of this rank, one for each rail, in one order on all ranks.
        timeout: seconds.
        pace: of what this rank sends.
        patience: seconds for the first words among all ranks, where these are not ``timeout``.
        looks: as for :func:`tcp_transport`.

    Raises:
        ConfigError: this or another rank cannot listen at an address; on every rank.
        TransportError, CollectiveTimeout: ranks do not reach each other; on every rank.
    """
    listeners: list[Listener] = []
    wide: Transport | None = None
    try:
        problem: TopocclError | None = None
        try:
            listeners += map(Listener, addresses)
        except OSError as error:
            problem = ConfigError(f"cannot listen at {addresses[len(listeners)]}: {error.strerror or error}")
        mine = ([(listener.address, listener.port) for listener in listeners], secrets.token_bytes(TOKEN_BYTES))
        told = exchange_or_raise(transport, problem or mine, timeout)
        wide = tcp_transport(transport.rank, listeners, [book for book, _ in told], told[0][1], timeout, pace, looks)
        try:
            exchange(wide, None, timeout if patience is None else patience)
        except TopocclError as error:
            problem = error
        exchange_or_raise(transport, problem, timeout)
    except BaseException:
        for listener in listeners:
            listener.close()
        if wide is not None:
            wide.close()
        raise
    return wide
