"""From processes that were started to a communicator: transport, hosts, fabric, selection."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from topoccl.algorithms.calibration import default_profile
from topoccl.algorithms.registry import known_names
from topoccl.algorithms.select import Selector
from topoccl.algorithms.tuning import Tuning, TuningError, load_tuning
from topoccl.collectives.bootstrap import exchange_or_raise, launch_environment
from topoccl.collectives.communicator import Communicator
from topoccl.collectives.config import Config, check_agreement, variable_of
from topoccl.collectives.errors import CollectiveTimeout, ConfigError, TransportError
from topoccl.collectives.executor.arena import supported
from topoccl.collectives.forests import keep_forests
from topoccl.collectives.group import open_groups
from topoccl.collectives.hosts import Neighbours, crowd_of_machines, meet, seat, share_machines
from topoccl.collectives.logging import Subsystem
from topoccl.collectives.network import over_tcp
from topoccl.collectives.opening import open_job
from topoccl.collectives.rails import over_rails
from topoccl.collectives.transports.mpi_process import leave_without_others  # imported here: its exit comes after this module's
from topoccl.topology.discovery import HostFacts, assemble, discover_host
from topoccl.topology.dump import dump
from topoccl.topology.graph import Topology, TopologyError

if TYPE_CHECKING:
    from topoccl.collectives.transports.base import Transport


_GRACE = 5.0  # seconds that calls in flight have when the program ends


def init(**options: Any) -> Communicator:
    """The communicator of all ranks of this job, however it was started (mpirun, torchrun, or one process alone).

    Args:
        options: fields of :class:`~topoccl.collectives.config.Config`, which beat ``TOPOCCL_*`` variables.

    Raises:
        ConfigError: a value that cannot be used, or ranks whose values differ; on every rank.
        TopologyError: a topology file that is wrong or has fewer slots than ranks; on every rank.
        TransportError, CollectiveTimeout: ranks cannot reach each other.
    """
    transport, config = open_job(launch_environment(os.environ), **options)
    try:
        return connect(transport, config)
    except BaseException as error:
        transport.close()
        if isinstance(error, CollectiveTimeout | TransportError):
            leave_without_others(str(error))
        raise


def connect(transport: Transport, config: Config, name: str = "world", timeout: float | None = None) -> Communicator:
    """A communicator over an open transport, or over rails in its place; every rank of it calls this. Errors of one rank are raised on all.

    ``timeout`` in seconds, for the set-up and for each call, beats the configuration's and need not be equal on all ranks.

    Raises:
        ConfigError, TopologyError: as :func:`init`.
    """
    logger = config.logger(transport.rank)
    limit = config.timeout if timeout is None else timeout
    seen = survey(transport, config, limit)
    if config.shm and (reason := supported()):
        logger.warn_once("shm", Subsystem.SHM, "shared memory is not used: %s", reason)
    neighbours, topology = seen.neighbours, seen.topology
    if neighbours.problem:
        logger.warn_once("arena", Subsystem.SHM, "shared memory is not used on a host: %s", neighbours.problem)
    if neighbours.area is not None and transport.rank == 0:
        logger.warn_once("area", Subsystem.SHM, "memory is short on a host: %d KiB per rank for messages inside it", neighbours.area >> 10)
    if config.attach and neighbours.arena is not None and neighbours.reach is None:
        logger.info(Subsystem.SHM, "processes cannot read each other's memory here (cross-memory attach); long messages are copied twice")
    exchange_or_raise(transport, _dumped(config.topo_dump_file, topology) if transport.rank == 0 else None, limit)
    transport, rails, topology = over_rails(transport, topology, seen.facts, config, logger, limit)
    if not rails:
        transport = over_tcp(transport, topology, seen.facts, config, logger, limit)
    rules = config.algo_rules(known_names())
    profile = default_profile(transport.name).on_hosts(
        neighbours.crowd,
        attach=neighbours.reach is not None,
        machine=crowd_of_machines(seen.facts),
        shared=share_machines(seen.facts, neighbours.hosts),
    )
    tuning = seen.tuning
    if not seen.share:
        profile = profile.without_shared_memory()
    if tuning is not None:
        profile = tuning.calibrate(profile, topology, transport.name)
    if tuning is not None and transport.rank == 0 and (mismatch := tuning.mismatch(topology, transport.name)):
        logger.warn(Subsystem.TUNING, "%s: %s", variable_of("tune_file"), mismatch)
    if tuning is not None:
        tuning = tuning.at(topology, transport.name)
    if transport.rank == 0:  # the one that chooses
        keep_forests()
    selector = Selector(topology, rules, profile, config.fallback, tuning)
    logger.info(
        Subsystem.INIT, "rank %d of %d over %s on %s, %s", transport.rank, transport.size, transport.name, socket.gethostname(), topology
    )
    return Communicator(transport, topology, neighbours, config, logger, selector, name, limit, rails)


@dataclass(frozen=True)
class Survey:
    """What all ranks saw and agreed on, equal on all of them save ``neighbours``.

    Attributes:
        facts: of each rank.
        claims: the host that each rank claims to be on.
        share: whether shared memory may be used.
        neighbours: who shares this rank's memory.
        described: the fabric that the configuration describes, its ranks put on their hosts; None without a description.
        tuning: the measurements that the configuration names, None without.
    """

    facts: tuple[HostFacts, ...]
    claims: tuple[str, ...]
    share: bool
    neighbours: Neighbours
    described: Topology | None
    tuning: Tuning | None

    @cached_property
    def discovered(self) -> Topology:
        """The fabric as discovery sees it."""
        return assemble(self.facts, self.neighbours.hosts)

    @property
    def topology(self) -> Topology:
        """What ranks plan with: the described fabric, else the discovered one."""
        return self.discovered if self.described is None else self.described


def survey(transport: Transport, config: Config, timeout: float) -> Survey:
    """Finds out, among all ranks at once, where they are and what they have; every rank calls this.

    Raises:
        ConfigError, TopologyError: as :func:`init`.
    """
    mine: Any
    try:
        facts = discover_host(config.socket_ifname.matches) if config.socket_ifname.explicit else discover_host()
        described = config.described()
        config.algo_rules(known_names())
        tuning = _tuning(config)
        agreement = config.agreement()
        if tuning is not None:
            agreement[f"{variable_of('tune_file')} (digest of its contents)"] = tuning.digest[:16]
        mine = (agreement, facts, config.hostid or facts.host_id, described, config.shm and not supported())
    except Exception as error:  # told to all ranks
        mine = error
    told = exchange_or_raise(transport, mine, timeout)
    check_agreement([agreement for agreement, *_ in told])
    everyone, claims = tuple(row[1] for row in told), tuple(row[2] for row in told)
    share = all(row[4] for row in told)
    neighbours = meet(transport, claims, [frozenset(facts.affinity) for facts in everyone], timeout, share=share, attach=config.attach)
    described = told[0][3]
    if described is not None:
        try:
            described = seat(described, [facts.hostname for facts in everyone])
        except TopologyError as error:
            raise TopologyError(f"{variable_of('topo_file')}: {error}") from None
    return Survey(everyone, claims, share, neighbours, described, tuning)


def _tuning(config: Config) -> Tuning | None:
    if not config.tune_file:
        return None
    try:
        return load_tuning(config.tune_file)
    except TuningError as error:
        raise ConfigError(f"{variable_of('tune_file')}: {error}") from None


def _dumped(path: str, topology: Topology) -> ConfigError | None:
    """Writes a whole file or none, if one is asked for; returns what is wrong, to be told to all ranks."""
    if not path:
        return None
    partial = f"{path}.{os.getpid()}.tmp"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            file.write(dump(topology))
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(partial)
        return ConfigError(f"{variable_of('topo_dump_file')}={path!r} cannot be written: {error.strerror}")
    return None


@atexit.register
def _close_all() -> None:
    """Programs may end without closing: inner threads and descriptors must not outlive the interpreter's teardown.

    Calls in flight are given some time, since other ranks may wait for them; but not by a program that has failed.
    """
    left = [group for group in open_groups if not group.closed]
    end = time.monotonic() + (0 if hasattr(sys, "last_value") else _GRACE)
    for group in left:
        if group.broken is not None:
            leave_without_others(str(group.broken))
        group.settle(max(end - time.monotonic(), 0))
    for group in left:
        group.abort("the program ended")
        group.transport.close()
    for group in left:
        group.close()
