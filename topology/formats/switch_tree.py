"""Switches that name what hangs below them, without rates: what schedulers know of a network.

Every host gets one slot and one NIC per switch that lists it. Rates are the defaults of topology/fabric.py; a link upwards is as
wide as everything below it together, so that nothing is narrower than the file says (it says nothing).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from topoccl.topology import fabric as fb
from topoccl.topology.formats.draft import Draft
from topoccl.topology.formats.support import DEFAULT, finish, shown
from topoccl.topology.graph import Topology, TopologyError, VertexKind

Error = Callable[[str], TopologyError]

NO_RATES = "rates are not stated: 10 Gbit/s per NIC, links between switches as wide as all that is below them"
ONE_SLOT = "how many ranks a host takes is not stated: one"


@dataclass
class _Switch:
    error: Error
    children: Sequence[str]
    hosts: Sequence[str]
    attrs: Mapping[str, Any]
    parents: list[str] = field(default_factory=list)


class SwitchTree:
    """Collects switches in the order of the file; ``error`` makes a TopologyError of a sentence, with the place before it."""

    def __init__(self, source: str, name: str) -> None:
        self.source = source
        self.name = name
        self.switches: dict[str, _Switch] = {}
        self.domains: dict[str, list[str]] = {}
        self.notes = [NO_RATES, ONE_SLOT]

    def switch(
        self, name: str, error: Error, *, children: Sequence[str] = (), hosts: Sequence[str] = (), attrs: Mapping[str, Any] | None = None
    ) -> None:
        if name in self.switches:
            raise error(f"switch {name!r} is defined twice")
        for what, names in (("switch", children), ("host", hosts)):
            seen: set[str] = set()
            for below in names:
                if below in seen:
                    raise error(f"switch {name!r} lists {what} {below!r} twice")
                seen.add(below)
        self.switches[name] = _Switch(error, children, hosts, attrs or {})

    def domain(self, name: str, hosts: Sequence[str]) -> None:
        """Hosts whose accelerators share one NVLink domain."""
        self.domains.setdefault(name, []).extend(hosts)

    def join(self, name: str) -> None:
        """A switch above all that have none above them."""
        below = {child for switch in self.switches.values() for child in switch.children}
        roots = [known for known in self.switches if known not in below]
        if len(roots) > 1:
            free = next(n for n in (name, *(f"{name}{i}" for i in range(len(self.switches) + 1))) if n not in self.switches)
            self.switch(free, lambda problem: TopologyError(f"{self.source}: {problem}"), children=roots, attrs=DEFAULT)
            self.notes.append(f"no switch is above all others: {free!r} is assumed")

    def build(self, nvlink: float | None = None) -> Topology:
        """The topology; ``nvlink`` is the rate of an NVLink domain's member.

        Raises:
            TopologyError: an undefined switch, a ring of switches, no host.
        """
        hosts: dict[str, None] = {}
        for name, switch in self.switches.items():
            for child in switch.children:
                if child not in self.switches:
                    raise switch.error(f"switch {name!r} lists switch {child!r}, which is never defined")
                self.switches[child].parents.append(name)
            hosts.update(dict.fromkeys(switch.hosts))
        ids = {name: f"{name}#switch" if name in hosts else name for name in self.switches}  # two name spaces in these files, one here
        order = self._upwards()
        draft = Draft(self.source)
        draft.name = self.name
        slots: dict[str, str] = {}
        for host in hosts:
            draft.host(host)
            slots[host] = draft.slot(host, attrs=DEFAULT)
        for name, switch in self.switches.items():
            draft.add(ids[name], VertexKind.SWITCH, attrs=switch.attrs)
        self._wire(draft, order, ids)
        for domain, members in self.domains.items():
            vertex = domain if domain not in self.switches and domain not in hosts else f"{domain}#nvlink"
            draft.add(vertex, VertexKind.SWITCH, attrs={"domain": domain})
            for host in members:
                if host in slots:
                    draft.link(slots[host], vertex, nvlink or fb.NET_BANDWIDTH, fb.MEMORY_LATENCY, "nvlink", attrs=DEFAULT)
        for note in self.notes:
            draft.note(next(iter(hosts), ""), note)
        return finish(draft)

    def _upwards(self) -> list[str]:
        """Switches, each after all below it."""
        left = {name: len(switch.children) for name, switch in self.switches.items()}
        order = [name for name, count in left.items() if not count]
        for name in order:
            for parent in self.switches[name].parents:
                left[parent] -= 1
                if not left[parent]:
                    order.append(parent)
        if len(order) < len(self.switches):
            stuck = [name for name, count in left.items() if count]
            raise self.switches[stuck[0]].error(f"switches form a ring: {shown(stuck[:8])} are below one another")
        return order

    def _wire(self, draft: Draft, order: list[str], ids: dict[str, str]) -> None:
        ports: dict[str, int] = {}
        below: dict[str, float] = dict.fromkeys(self.switches, 0.0)
        for name in order:
            switch = self.switches[name]
            for host in switch.hosts:
                port = f"eth{ports.get(host, 0)}"
                ports[host] = ports.get(host, 0) + 1
                nic = draft.nic(host, port, fb.NET_BANDWIDTH, attrs=DEFAULT)
                draft.link(nic, ids[name], fb.NET_BANDWIDTH, fb.NET_LATENCY, "net", attrs=DEFAULT)
                below[name] += fb.NET_BANDWIDTH
            rate = (below[name] or fb.NET_BANDWIDTH) / max(1, len(switch.parents))
            for parent in switch.parents:
                draft.link(ids[name], ids[parent], rate, fb.NET_LATENCY, "net", attrs=DEFAULT)
                below[parent] += rate
