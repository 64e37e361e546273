"""From a table of measurements to a topology. Pure: the same table gives the same topology.

The structure is one of two: hosts with NICs on a switch, or on one switch per rack with uplinks; or hosts with a cable to each of
their neighbours. Rates are those of the wire: what was measured divided by the transport's efficiency. Rates that differ by less
than the noise are taken as equal, so that what is symmetric stays so.

Confidence of a link: every measurement is predicted with the topology found; of those that a link limits, the share in which all
its flows together got what the link carries, drawn towards one half as long as they are few. A link that limits nothing was only
seen to carry at least its rate: confidence 0.25, and ``limits: false``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topoccl.collectives.probe.neighbours import Cables, find_cables
from topoccl.collectives.probe.nics import nics
from topoccl.collectives.probe.racks import Racks, partition, uplinks
from topoccl.collectives.probe.sharing import share
from topoccl.collectives.probe.table import Table
from topoccl.topology import fabric as fb
from topoccl.topology.fabric import Fabric
from topoccl.topology.graph import Topology
from topoccl.topology.routes import Routes
from topoccl.topology.units import format_rate, format_time, parse_rate, parse_time

SOURCE = "measured"
_EQUAL = 0.92  # of the next higher rate: nearer ones are the same
_NOISE = 0.85  # of the highest of rates that are the same: none is lower
_FULL = 0.98
_AGREES = 0.12
_UNTESTED = 0.25


@dataclass(frozen=True)
class Setting:
    """What a table does not say.

    Attributes:
        names: of the hosts, all different.
        efficiency: bytes of payload per byte on the wire.
        overhead: seconds that software adds to each message.
        name: of the topology.
    """

    names: Sequence[str]
    efficiency: float = 1.0
    overhead: float = 0.0
    name: str = "measured"


def infer(table: Table, setting: Setting) -> Topology:
    """The topology that explains ``table`` best. Slot ``r`` is where rank ``r`` ran."""
    plan = _Plan(table, setting)
    first = plan.build({})
    return plan.build(_confidence(table, first, setting.efficiency))


class _Plan:
    """The structure that was found; :meth:`build` puts it down with given confidences."""

    def __init__(self, table: Table, setting: Setting) -> None:
        self.table = table
        self.setting = setting
        self.sent, self.received = table.peaks()
        found = find_cables(table)
        self.cables = found if isinstance(found, Cables) else None
        self.racks = uplinks(table, partition(table)) if self.cables is None else None
        self.nics = [nics(table, host) for host in range(len(table.hosts))]
        rates = [rate for found in self.nics for nic in found for rate in (nic.up, nic.down)]
        if self.cables is not None:
            rates += [table.single(*ends) for a, b in self.cables.edges for ends in ((a, b), (b, a))]
        self._level = _levels(rate / setting.efficiency for rate in rates if rate)
        self.latency = _latency(table, setting, self.cables, self.racks)

    def rate(self, payload: float) -> float:
        wire = payload / self.setting.efficiency
        return self._level.get(wire, _rounded(wire))

    def build(self, confidence: Mapping[tuple[str, str], Mapping[str, Any]]) -> Topology:
        fabric = Fabric(self.setting.name)
        slots: dict[int, str] = {}
        for host, ranks in enumerate(self.table.hosts):
            name = fabric.host(self.setting.names[host])
            hubs = {rank: f"{name}.numa{number}" for number, nic in enumerate(self.nics[host]) for rank in nic.ranks}
            if len(self.nics[host]) > 1:
                for number in range(len(self.nics[host])):
                    fabric.numa(name, f"numa{number}")
            for rank in ranks:
                slots[rank] = fabric.bare_slot(name)
                hub = hubs[rank] if len(self.nics[host]) > 1 else name
                fabric.link(slots[rank], hub, fb.MEMORY_BANDWIDTH, fb.MEMORY_LATENCY, "shm", attrs={"source": "default"})
        if self.cables is not None:
            self._lay_cables(fabric, self.cables, confidence)
        elif self.racks is not None and len(self.table.hosts) > 1:
            self._plug_in(fabric, self.racks, confidence)
        return fabric.build([slots[rank] for rank in range(len(slots))])

    def _lay_cables(self, fabric: Fabric, found: Cables, confidence: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        names, ports = self.setting.names, [0] * len(self.table.hosts)
        for (a, b), agreed in zip(found.edges, found.agreed, strict=True):
            rate, back = self._both(self.table.single(a, b), self.table.single(b, a))
            ends = []
            for host in (a, b):
                ends.append(fabric.nic(names[host], f"eth{ports[host]}", max(rate, back)))
                ports[host] += 1
            attrs = dict(confidence.get((ends[0], ends[1]), {}))
            if not agreed and "confidence" in attrs:
                attrs["confidence"] = _two_digits(attrs["confidence"] / 2)
            fabric.link(ends[0], ends[1], rate, self.latency.link, "net", back=back, attrs={"source": SOURCE} | attrs)

    def _plug_in(self, fabric: Fabric, found: Racks, confidence: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        names = self.setting.names
        own = [rack for rack, hosts in enumerate(found.members) if len(hosts) > 1]
        flat = len(own) < 2 and len(found.members) < 3  # one rack, or one and a host whose NIC is as good a reason
        switches: dict[int, str] = {}
        core: str | None = None
        if flat:
            core = fabric.switch("switch0")
        else:
            switches = {rack: fabric.switch(f"rack{number}") for number, rack in enumerate(own)}
            core = fabric.switch("core") if len(found.members) > 2 else None
        for rack, hosts in enumerate(found.members):
            for host in hosts:
                switch = switches.get(rack, core)
                assert switch is not None  # without a core both racks have switches of their own
                for number, found_nic in enumerate(self.nics[host]):
                    rate, back = self._both(found_nic.up, found_nic.down)
                    hub = f"{names[host]}.numa{number}" if len(self.nics[host]) > 1 else None
                    nic = fabric.nic(names[host], f"eth{number}", max(rate, back), hub=hub)
                    attrs = {"source": SOURCE} | dict(confidence.get((nic, switch), {}))
                    fabric.link(nic, switch, rate, self.latency.link, "net", back=back, attrs=attrs)
        if core is None:
            a, b = own
            self._uplink(fabric, switches[a], switches[b], self._uplink_rates(found, a, b), confidence)
        else:
            for rack, switch in switches.items():
                self._uplink(fabric, switch, core, self._uplink_rates(found, rack, None), confidence)

    def _uplink(
        self, fabric: Fabric, a: str, b: str, rates: tuple[float, float], confidence: Mapping[tuple[str, str], Mapping[str, Any]]
    ) -> None:
        attrs = {"source": SOURCE} | dict(confidence.get((a, b), {}))
        fabric.link(a, b, rates[0], self.latency.uplink, "net", back=rates[1], attrs=attrs)

    def _uplink_rates(self, found: Racks, rack: int, other: int | None) -> tuple[float, float]:
        """Out of ``rack`` and into it, on the wire; towards one ``other`` rack alone, its own limits count, too."""
        up, down = found.up[rack], found.down[rack]
        if other is not None:
            up = min((x for x in (up, found.down[other]) if x is not None), default=None)
            down = min((x for x in (down, found.up[other]) if x is not None), default=None)
        members = found.members[rack]
        up = up if up is not None else sum(self.sent[host] for host in members)
        down = down if down is not None else sum(self.received[host] for host in members)
        return self._both(up, down)

    def _both(self, there: float, back: float) -> tuple[float, float]:
        """Wire rates of both directions, equal if they differ by no more than noise."""
        rates = self.rate(there), self.rate(back)
        if min(rates) >= _EQUAL * max(rates):
            mean = statistics.mean(rates) if rates[0] != rates[1] else rates[0]
            return _rounded(mean), _rounded(mean)
        return rates


# Figures


def _levels(rates: Iterable[float]) -> dict[float, float]:
    """For each rate the median of those that noise may have made of the same rate, rounded."""
    found: dict[float, float] = {}
    group: list[float] = []
    for rate in [*sorted(rates, reverse=True), 0.0]:
        if group and (rate < _EQUAL * group[-1] or rate < _NOISE * group[0]):
            found |= dict.fromkeys(group, _rounded(statistics.median(group)))
            group = []
        group.append(rate)
    return found


def _rounded(rate: float) -> float:
    """Three digits, so that a file shows the rate with its unit."""
    return parse_rate(format_rate(float(f"{rate:.3g}")))


def _two_digits(value: float) -> float:
    return math.floor(value * 100) / 100


@dataclass(frozen=True)
class _Latency:
    """Seconds: of a link between a host and what it is plugged into, and of one between switches."""

    link: float = fb.NET_LATENCY
    uplink: float = fb.NET_LATENCY


def _latency(table: Table, setting: Setting, found: Cables | None, racks: Racks | None) -> _Latency:
    if not table.latencies:
        return _Latency()
    inside = 2 * (fb.MEMORY_LATENCY + fb.PCIE_LATENCY) + setting.overhead

    def least(near: Callable[[int, int], bool]) -> float:
        return min((max(t - inside, 0.0) for ends, t in table.latencies.items() if near(*ends)), default=math.nan)

    if found is not None:
        edges = set(found.edges)
        return _Latency(link=_seconds(least(lambda a, b: (a, b) in edges)))
    assert racks is not None
    rack_of = {host: rack for rack, hosts in enumerate(racks.members) for host in hosts}
    same = least(lambda a, b: rack_of[a] == rack_of[b])
    other = least(lambda a, b: rack_of[a] != rack_of[b])
    base = other if math.isnan(same) else same
    beyond = (other - base) / (1 if len(racks.members) == 2 else 2)
    return _Latency(link=_seconds(base / 2), uplink=_seconds(max(beyond, base / 2)))


def _seconds(value: float) -> float:
    return fb.NET_LATENCY if math.isnan(value) else parse_time(format_time(float(f"{max(value, 1e-7):.2g}")))


# Confidence


def _confidence(table: Table, topology: Topology, efficiency: float) -> dict[tuple[str, str], dict[str, Any]]:
    """Attributes of links, by their ends (in the order in which the first direction was declared)."""
    routes = Routes(topology)
    capacity = [link.bandwidth * efficiency for link in topology.links]
    agreeing, limited = [0] * len(capacity), [0] * len(capacity)
    for outcome in table.outcomes:
        paths = [routes.path(*flow) for flow in outcome.flows]
        predicted: dict[int, float] = {}
        got: dict[int, float] = {}
        for path, rate, real in zip(paths, share(paths, capacity), outcome.rates, strict=True):
            for link in path:
                predicted[link] = predicted.get(link, 0.0) + rate
                got[link] = got.get(link, 0.0) + real
        for link, load in predicted.items():
            if load >= _FULL * capacity[link]:
                limited[link] += 1
                agreeing[link] += abs(got[link] - load) <= _AGREES * load
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for index in range(0, len(capacity), 2):  # directions are declared in pairs
        first = topology.links[index]
        if first.kind != "net":
            continue
        yes, all_ = agreeing[index] + agreeing[index + 1], limited[index] + limited[index + 1]
        seen: dict[str, Any] = {"confidence": _two_digits((yes + 0.5) / (all_ + 1))}
        found[first.src, first.dst] = seen if all_ else {"confidence": _UNTESTED, "limits": False}
    return found
