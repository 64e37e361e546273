"""A mutable helper that assembles a :class:`Topology` part by part; generators, files and discovery all build through it.

The model of one host of CPUs: every slot (the place of one rank) hangs on the host's hub by a link of kind ``shm``, which
stands for what one core moves through shared memory, and every NIC by a link of kind ``pcie``. NICs are joined to switches or
to each other by links of kind ``net``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

from topoccl.topology.graph import Link, Topology, TopologyError, Vertex, VertexKind

MEMORY_BANDWIDTH = 10e9
"""What one slot moves through shared memory, bytes/s per direction, unless said otherwise."""
MEMORY_LATENCY = 1e-6
"""Seconds between a slot and its host's hub, unless said otherwise."""
NUMA_BANDWIDTH = 40e9
"""What crosses from one NUMA node to the others, bytes/s per direction, unless said otherwise."""
NUMA_LATENCY = 0.1e-6
NET_BANDWIDTH = 1.25e9
"""10 Gbit/s: the rate of a NIC of which nothing is known, bytes/s per direction."""
NET_LATENCY = 5e-6
"""Seconds over one network link, unless said otherwise."""
PCIE_LATENCY = 0.5e-6
_PCIE_X16 = (12e9, 24e9, 48e9)  # generations 3, 4 and 5 with 16 lanes, as NCCL counts them

PLACEMENTS = ("packed", "round_robin", "alternate")


def pcie_for(nic: float) -> float:
    """The slowest 16-lane PCIe (12, 24, 48 GB/s for generations 3 to 5) that carries ``nic`` bytes/s, or ``nic`` itself."""
    return next((rate for rate in _PCIE_X16 if rate >= nic), nic)


_Attrs = Mapping[str, Any]


class Fabric:
    """Collects vertices and links in order; :meth:`build` freezes them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.vertices: list[Vertex] = []
        self.links: list[Link] = []
        self._slots: dict[str, list[str]] = {}
        self._racks: dict[str, str] = {}

    def add(self, vertex: str, kind: VertexKind, host: str | None = None, attrs: _Attrs = MappingProxyType({})) -> str:
        """Any vertex; slots count for the placement in the order in which they are added."""
        if kind is VertexKind.SLOT and host is not None:
            self._slots.setdefault(host, []).append(vertex)
        self.vertices.append(Vertex(vertex, kind, host, attrs))
        return vertex

    def host(self, name: str, *, rack: str | None = None, inside: str | None = None, attrs: _Attrs = MappingProxyType({})) -> str:
        """A host's hub. ``rack`` only matters for the placement ``alternate``; ``inside`` is a host that contains this one."""
        self._racks[name] = name if rack is None else rack
        return self.add(name, VertexKind.HOST, inside, attrs)

    def bare_slot(self, host: str, attrs: _Attrs = MappingProxyType({})) -> str:
        """A slot with no link yet (an accelerator)."""
        return self.add(f"{host}.s{len(self._slots.get(host, ()))}", VertexKind.SLOT, host, attrs)

    def slot(
        self,
        host: str,
        *,
        hub: str | None = None,
        memory: float = MEMORY_BANDWIDTH,
        latency: float = MEMORY_LATENCY,
        attrs: _Attrs = MappingProxyType({}),
    ) -> str:
        """A slot that reaches the ``hub`` (the host, or one of its NUMA nodes) through shared memory."""
        slot = self.bare_slot(host, attrs)
        self.link(slot, hub or host, memory, latency, "shm")
        return slot

    def numa(
        self,
        host: str,
        name: str,
        *,
        bandwidth: float = NUMA_BANDWIDTH,
        latency: float = NUMA_LATENCY,
        attrs: _Attrs = MappingProxyType({}),
    ) -> str:
        """A NUMA node, joined to the host's hub: what goes between nodes crosses this link."""
        node = self.add(f"{host}.{name}", VertexKind.NUMA, host, attrs)
        self.link(node, host, bandwidth, latency, "numa")
        return node

    def nic(
        self, host: str, name: str, rate: float, *, hub: str | None = None, pcie: float | None = None, attrs: _Attrs = MappingProxyType({})
    ) -> str:
        """A NIC of ``rate`` bytes/s, not plugged in yet; its PCIe link is by default as wide as the rate needs."""
        nic = self.add(f"{host}.{name}", VertexKind.NIC, host, attrs)
        self.link(hub or host, nic, pcie_for(rate) if pcie is None else pcie, PCIE_LATENCY, "pcie")
        return nic

    def switch(self, name: str, host: str | None = None) -> str:
        return self.add(name, VertexKind.SWITCH, host)

    def link(
        self,
        a: str,
        b: str,
        bandwidth: float,
        latency: float,
        kind: str,
        *,
        back: float | None = None,
        attrs: _Attrs = MappingProxyType({}),
    ) -> None:
        """Both directions of a link: ``bandwidth`` from ``a`` to ``b``, ``back`` (by default the same) from ``b`` to ``a``."""
        self.links.append(Link(a, b, bandwidth, latency, kind, attrs))
        self.links.append(Link(b, a, bandwidth if back is None else back, latency, kind, attrs))

    def slots(self, placement: str | Sequence[str] = "packed") -> list[str]:
        """Slots in rank order.

        ``packed`` fills one host after the other; ``round_robin`` deals ranks to the hosts in turn; ``alternate`` deals them
        to the racks in turn, and inside a rack to its hosts in turn.
        """
        if not isinstance(placement, str):
            return list(placement)
        match placement:
            case "packed":
                return [slot for slots in self._slots.values() for slot in slots]
            case "round_robin":
                return _deal(list(self._slots.values()))
            case "alternate":
                racks: dict[str, list[list[str]]] = {}
                for host, slots in self._slots.items():
                    racks.setdefault(self._racks.get(host, host), []).append(slots)
                return _deal([_deal(hosts) for hosts in racks.values()])
        raise TopologyError(f"topology {self.name!r}: unknown placement {placement!r}; known: {', '.join(PLACEMENTS)}, or a list of slots")

    def ordered(self) -> list[Vertex]:
        """Vertices in the order of the file format: every host with what it contains, then what belongs to no host."""
        inside: dict[str | None, list[Vertex]] = {}
        for vertex in self.vertices:
            inside.setdefault(None if vertex.kind is VertexKind.HOST else vertex.host, []).append(vertex)
        rest = inside.pop(None, [])
        hosts = [vertex for vertex in rest if vertex.kind is VertexKind.HOST]
        found = [vertex for host in hosts for vertex in (host, *inside.pop(host.id, ()))]
        strays = [vertex for some in inside.values() for vertex in some]  # of a host that was never declared: Topology will say so
        return [*found, *(vertex for vertex in rest if vertex.kind is not VertexKind.HOST), *strays]

    def build(self, placement: str | Sequence[str] = "packed") -> Topology:
        return Topology(self.name, self.ordered(), self.links, self.slots(placement))


def _deal(groups: list[list[str]]) -> list[str]:
    """One of each group in turn; groups that have run out are passed over."""
    return [slot for turn in zip_longest(*groups) for slot in turn if slot is not None]
