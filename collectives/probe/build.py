"""A structure and the figures of a table, put down as a topology. Pure.

Rates are those of the wire: what was measured divided by the transport's efficiency. Rates that differ by less than the noise are
taken as equal, so that what is symmetric stays so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topoccl.collectives.probe.neighbours import Cables
from topoccl.collectives.probe.nics import nics
from topoccl.collectives.probe.racks import Racks
from topoccl.collectives.probe.table import Table
from topoccl.topology import fabric as fb
from topoccl.topology.fabric import Fabric
from topoccl.topology.graph import Topology
from topoccl.topology.units import format_rate, format_time, parse_rate, parse_time

SOURCE = "measured"
Structure = Cables | Racks
Attrs = Mapping[tuple[str, str], Mapping[str, Any]]
"""Attributes of links by their ends, in the order in which the first direction was declared."""

_EQUAL = 0.92  # of the next higher rate: nearer ones are the same
_NOISE = 0.85  # of the highest of rates that are the same: none is lower
_LEAST_LATENCY = 1e-7


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


class Builder:
    """Makes topologies of one table."""

    def __init__(self, table: Table, setting: Setting) -> None:
        self.table = table
        self.setting = setting
        self._sent, self._received = table.peaks()
        self._nics = [nics(table, host) for host in range(len(table.hosts))]

    def build(self, structure: Structure, attrs: Attrs | None = None) -> Topology:
        """``attrs`` are put on the links between hosts and switches, beside where their figures come from."""
        fabric = Fabric(self.setting.name)
        slots: dict[int, str] = {}
        for host, ranks in enumerate(self.table.hosts):
            self._host(fabric, host, ranks, slots)
        if len(self.table.hosts) > 1:
            link, uplink = latencies(self.table, self.setting.overhead, structure)
            if isinstance(structure, Cables):
                self._lay_cables(fabric, structure, link, attrs or {})
            else:
                self._plug_in(fabric, structure, link, uplink, attrs or {})
        return fabric.build([slots[rank] for rank in range(len(slots))])

    def _host(self, fabric: Fabric, host: int, ranks: Sequence[int], slots: dict[int, str]) -> None:
        name = fabric.host(self.setting.names[host])
        hubs = dict.fromkeys(ranks, name)
        if len(self._nics[host]) > 1:  # a rank's own NIC is the near one
            for number, nic in enumerate(self._nics[host]):
                hubs |= dict.fromkeys(nic.ranks, fabric.numa(name, f"numa{number}"))
        for rank in ranks:
            slots[rank] = fabric.bare_slot(name)
            fabric.link(slots[rank], hubs[rank], fb.MEMORY_BANDWIDTH, fb.MEMORY_LATENCY, "shm", attrs={"source": "default"})

    def _lay_cables(self, fabric: Fabric, found: Cables, latency: float, attrs: Attrs) -> None:
        names, ports = self.setting.names, [0] * len(self.table.hosts)
        payload = [self.table.single(*ends) for a, b in found.edges for ends in ((a, b), (b, a))]
        wire = self._wire(payload)
        for number, edge in enumerate(found.edges):
            rate, back = _both(wire[2 * number], wire[2 * number + 1])
            nics = []
            for host in edge:
                nics.append(fabric.nic(names[host], f"eth{ports[host]}", max(rate, back)))
                ports[host] += 1
            _link(fabric, nics[0], nics[1], rate, back, latency, attrs)

    def _plug_in(self, fabric: Fabric, found: Racks, latency: float, beyond: float, attrs: Attrs) -> None:
        own = [rack for rack, hosts in enumerate(found.members) if len(hosts) > 1]
        # One rack and one other host: the host's NIC explains as much as an uplink.
        flat = not own or (len(own) < 2 and len(found.members) < 3)
        switches = {} if flat else {rack: fabric.switch(f"rack{number}") for number, rack in enumerate(own)}
        middle = None if switches and len(found.members) == 2 else fabric.switch("switch0" if flat else "core")
        wire = iter(self._wire([rate for found in self._nics for nic in found for rate in (nic.up, nic.down)]))
        switch_of = {host: switches.get(rack, middle) for rack, hosts in enumerate(found.members) for host in hosts}
        for host, name in enumerate(self.setting.names):
            switch = switch_of[host]
            assert switch is not None  # without one in the middle both racks have their own
            for number in range(len(self._nics[host])):
                rate, back = _both(next(wire), next(wire))
                hub = f"{name}.numa{number}" if len(self._nics[host]) > 1 else None
                _link(fabric, fabric.nic(name, f"eth{number}", max(rate, back), hub=hub), switch, rate, back, latency, attrs)
        if middle is None:
            _link(fabric, switches[0], switches[1], *self._uplink(found, 0, 1), beyond, attrs)
        else:
            for rack, switch in switches.items():
                _link(fabric, switch, middle, *self._uplink(found, rack, None), beyond, attrs)

    def _uplink(self, found: Racks, rack: int, other: int | None) -> tuple[float, float]:
        """Out of ``rack`` and into it, on the wire; towards one ``other`` rack alone, its own limits count, too."""
        up, down = found.up[rack], found.down[rack]
        if other is not None:
            up = min((rate for rate in (up, found.down[other]) if rate is not None), default=None)
            down = min((rate for rate in (down, found.up[other]) if rate is not None), default=None)
        members = found.members[rack]
        return _both(
            *self._wire(
                [
                    sum(self._sent[host] for host in members) if up is None else up,
                    sum(self._received[host] for host in members) if down is None else down,
                ]
            )
        )

    def _wire(self, payload: Sequence[float]) -> list[float]:
        rates = [max(rate, 1.0) / self.setting.efficiency for rate in payload]
        levels = _levels(rates)
        return [levels[rate] for rate in rates]


def _link(fabric: Fabric, a: str, b: str, rate: float, back: float, latency: float, attrs: Attrs) -> None:
    fabric.link(a, b, rate, latency, "net", back=back, attrs={"source": SOURCE} | dict(attrs.get((a, b), {})))


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


def _both(there: float, back: float) -> tuple[float, float]:
    """Both directions, equal if they differ by no more than noise."""
    if min(there, back) < _EQUAL * max(there, back) or there == back:
        return there, back
    mean = _rounded((there + back) / 2)
    return mean, mean


def _rounded(rate: float) -> float:
    """Three digits, so that a file shows the rate with its unit."""
    return parse_rate(format_rate(float(f"{rate:.3g}")))


def latencies(table: Table, overhead: float, structure: Structure) -> tuple[float, float]:
    """Seconds of a link between a host and what it is plugged into, and of one between switches.

    From the quickest pairs of each kind: the least that was seen is the least disturbed.
    """

    def least(near: Callable[[int, int], bool]) -> float:
        inside = 2 * (fb.MEMORY_LATENCY + fb.PCIE_LATENCY) + overhead
        return min((max(took - inside, 0.0) for ends, took in table.latencies.items() if near(*ends)), default=math.nan)

    if isinstance(structure, Cables):
        edges = set(structure.edges)
        return _seconds(least(lambda a, b: (a, b) in edges)), fb.NET_LATENCY
    rack_of = {host: rack for rack, hosts in enumerate(structure.members) for host in hosts}
    same = least(lambda a, b: rack_of[a] == rack_of[b])
    other = least(lambda a, b: rack_of[a] != rack_of[b])
    link = (other if math.isnan(same) else same) / 2
    return _seconds(link), _seconds(max((other - same) / (1 if len(structure.members) == 2 else 2), link))


def _seconds(value: float) -> float:
    return fb.NET_LATENCY if math.isnan(value) else parse_time(format_time(float(f"{max(value, _LEAST_LATENCY):.2g}")))
