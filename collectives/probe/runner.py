"""The probe of a running job: rank 0 decides and the others do as it says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from topoccl.algorithms.calibration import default_profile
from topoccl.collectives.bootstrap import agree, exchange, exchange_or_raise
from topoccl.collectives.config import Config
from topoccl.collectives.errors import ConfigError
from topoccl.collectives.executor.arena import supported
from topoccl.collectives.hosts import meet
from topoccl.collectives.probe import rounds
from topoccl.collectives.probe.build import Setting
from topoccl.collectives.probe.explore import Explorer
from topoccl.collectives.probe.infer import infer
from topoccl.collectives.probe.streams import Arrivals, Stream, least_rate, ping, run_streams, steady_rates
from topoccl.collectives.probe.table import Flow, Table
from topoccl.collectives.transports.base import Transport
from topoccl.topology.discovery import HostFacts, discover_host
from topoccl.topology.graph import Topology

Report = Callable[[str, int, int], None]
"""Called with the name of a step, how many of its measurements are done, and how many it has."""

_PINGS = 60
_CHUNK_SECONDS = 6e-3  # that a chunk takes at the rate last seen, at most,
_CHUNKS = 40  # and so many of them come in the time of a measurement
_FIRST_CHUNK, _LEAST_CHUNK, _MOST_CHUNK = 64 << 10, 8 << 10, 2 << 20
_WARM_SECONDS = 0.03
_ATTEMPTS = 3


@dataclass(frozen=True)
class _Command:
    """What all ranks do next: ``ping`` pairs, run ``streams``, or end."""

    kind: str
    pairs: tuple[tuple[int, int], ...] = ()
    streams: tuple[Stream, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Probed:
    """What was found: the measurements and the topology that explains them, on rank 0; None on the others."""

    table: Table
    topology: Topology
    seconds: float


def probe(transport: Transport, config: Config, budget: float, progress: Report = lambda *_: None) -> Probed | None:
    """Measures what lies between the ranks of ``transport``; every rank calls it.

    Args:
        config: for the time limit of messages, shared memory and the host's identity.
        budget: seconds for all measurements.
        progress: see :data:`Report`, on rank 0.

    Raises:
        ConfigError: fewer than two ranks.
        TopocclError: ranks cannot reach each other, on every rank that notices.
    """
    if transport.size < 2:
        raise ConfigError("probe measures between ranks, and this job has only one; start it with mpirun -n N or torchrun")
    began = time.monotonic()
    mine: Any
    try:
        facts = discover_host()
        mine = (facts, config.hostid or facts.host_id, config.shm and supported() is None)
    except Exception as error:  # told to all ranks
        mine = error
    told = exchange_or_raise(transport, mine, config.timeout)
    everyone = [facts for facts, *_ in told]
    share = all(able for *_, able in told)
    cpus = [frozenset(facts.affinity) for facts in everyone]
    places = meet(transport, [claim for _, claim, _ in told], cpus, config.timeout, share=share).hosts
    groups: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        groups.setdefault(place, []).append(rank)
    hosts = tuple(map(tuple, groups.values()))
    if transport.rank:
        _serve(transport, config.timeout)
        return None
    control = _Control(transport, config.timeout, began + budget)
    table = Table(hosts)
    try:
        control.warm_up(table, progress)
        Explorer(table, control.measure, control.left, progress).explore()
    finally:
        control.end()
    medium = default_profile(transport.name).network
    setting = Setting(
        names=_names([everyone[ranks[0]] for ranks in hosts]),
        efficiency=medium.efficiency,
        overhead=medium.send_overhead + medium.recv_overhead,
    )
    return Probed(table, infer(table, setting), time.monotonic() - began)


class _Control:
    """Rank 0's side: one command, then everyone's results."""

    def __init__(self, transport: Transport, timeout: float, deadline: float) -> None:
        self._transport = transport
        self._timeout = timeout
        self._deadline = deadline
        self._rates: dict[Flow, float] = {}
        self._ahead = [0.0] * transport.size  # each rank's clock, compared to this one's

    def left(self) -> float:
        return self._deadline - time.monotonic()

    def warm_up(self, table: Table, progress: Report) -> None:
        """Compares clocks, opens the connections between hosts, sees roughly how fast they are, and how long a small message takes."""
        for rank in range(1, self._transport.size):
            self._ahead[rank] = self._do(_Command("ping", pairs=((0, rank),)))[0][1]
        schedule = rounds.tournament(range(len(table.hosts))) if len(table.hosts) > 1 else []
        for step, pairs in enumerate(schedule):
            progress("latency", step, len(schedule))
            if self.left() <= 0:
                table.complete = False
                return
            self.measure([flow for a, b in pairs for flow in (table.flow(a, b), table.flow(b, a))], _WARM_SECONDS)
            ranks = tuple((table.hosts[a][0], table.hosts[b][0]) for a, b in pairs)
            found = self._do(_Command("ping", pairs=ranks))
            for a, b in pairs:
                table.latencies[min(a, b), max(a, b)] = found[table.hosts[a][0]][0]

    def measure(self, flows: Sequence[Flow], seconds: float) -> list[float]:
        """As :data:`Measure`. Flows that did not run at the same time, since a rank came late, run again; in the end a lower limit is
        what is known of them."""
        ends = [[flow[side] for flow in flows] for side in range(2)]
        streams = []
        each = min(_CHUNK_SECONDS, seconds / _CHUNKS)
        for flow in flows:
            fan = max(side.count(rank) for side, rank in zip(ends, flow, strict=True))
            chunk = int(self._rates.get(flow, _FIRST_CHUNK / _CHUNK_SECONDS) * each / fan)
            streams.append(Stream(*flow, min(max(chunk, _LEAST_CHUNK), _MOST_CHUNK)))
        for _ in range(_ATTEMPTS):
            seen: dict[int, Arrivals] = {}
            for arrivals in self._do(_Command("stream", streams=tuple(streams), seconds=seconds)):
                seen.update(arrivals or {})
            chunks = steady_rates([self._on_my_clock(seen[number], flow.dst) for number, flow in enumerate(flows)])
            if chunks is not None:
                break
        else:
            chunks = [least_rate(one, seconds) for _, one in sorted(seen.items())]
        result = [rate * stream.chunk for rate, stream in zip(chunks, streams, strict=True)]
        for flow, rate in zip(flows, result, strict=True):
            self._rates[flow] = max(rate, self._rates.get(flow, 0.0))
        return result

    def end(self) -> None:
        agree(self._transport, _Command("end"), self._timeout)

    def _on_my_clock(self, seen: Arrivals, rank: int) -> Arrivals:
        ahead = self._ahead[rank]
        return Arrivals(tuple(when - ahead for when in seen.times), seen.counts, seen.ends - ahead)

    def _do(self, command: _Command) -> list[Any]:
        agree(self._transport, command, self._timeout)
        return exchange(self._transport, _perform(self._transport, command, self._timeout), self._timeout)


def _serve(transport: Transport, timeout: float) -> None:
    while (command := agree(transport, None, timeout)).kind != "end":
        exchange(transport, _perform(transport, command, timeout), timeout)


def _perform(transport: Transport, command: _Command, timeout: float) -> Any:
    if command.kind == "stream":
        return run_streams(transport, command.streams, command.seconds, timeout)
    for a, b in command.pairs:
        if transport.rank in (a, b):
            return ping(transport, b if transport.rank == a else a, transport.rank == a, _PINGS, timeout)
    return None


def _names(facts: Sequence[HostFacts]) -> list[str]:
    """Host names; ``#2`` and so on tells equal ones apart."""
    seen: dict[str, int] = {}
    names = []
    for one in facts:
        name = one.hostname or "host"
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names
