"""Rails: networks of their own that each reach every host, by a NIC per host and rail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from topoccl.topology.graph import Topology, VertexKind
from topoccl.topology.routes import Routes, routes_of


@dataclass(frozen=True)
class Rail:
    """A connected set of switches with a NIC on each host.

    Attributes:
        switches: the ids of its switches.
        nics: the NIC's vertex of each host, the first one where a host has several there.
        rate: bytes/s of the slowest of their links, in the slower direction.
    """

    switches: frozenset[str]
    nics: dict[str, str]
    rate: float

    def __str__(self) -> str:
        return "+".join(sorted(self.switches))


def rails_of(topology: Topology) -> tuple[Rail, ...]:
    """The rails among the hosts of the ranks of ``topology``, the fastest first; none or one where there is nothing to choose."""
    hosts = list(dict.fromkeys(topology.host_of_rank))
    nics: dict[str, dict[str, str]] = {}  # of a switch: the NIC of each host
    rates: dict[str, float] = {}
    beside: dict[str, set[str]] = {}
    for link in topology.links:
        src, dst = topology.vertices[link.src], topology.vertices[link.dst]
        for one, other in ((src, dst), (dst, src)):
            if other.kind is VertexKind.SWITCH and other.host is None:
                if one.kind is VertexKind.SWITCH and one.host is None:
                    beside.setdefault(other.id, set()).add(one.id)
                elif one.kind is VertexKind.NIC and one.host in hosts:
                    nics.setdefault(other.id, {}).setdefault(one.host, one.id)
                    rates[one.id] = min(rates.get(one.id, link.bandwidth), link.bandwidth)
    found = []
    for switches in _connected([*nics, *beside], beside):
        plugged: dict[str, str] = {}
        for switch in switches:
            plugged = nics.get(switch, {}) | plugged
        if all(host in plugged for host in hosts):
            found.append(Rail(frozenset(switches), plugged, min(rates[nic] for nic in plugged.values())))
    return tuple(sorted(found, key=lambda rail: -rail.rate))


def without(topology: Topology, rails: Iterable[Rail]) -> Topology:
    """``topology`` as if nothing were plugged into the switches of ``rails``; itself without any."""
    gone = frozenset[str]().union(*(rail.switches for rail in rails))
    if not gone:
        return topology
    links = [link for link in topology.links if link.src not in gone and link.dst not in gone]
    return Topology(topology.name, topology.vertices.values(), links, topology.slots)


def _connected(switches: Iterable[str], beside: dict[str, set[str]]) -> list[list[str]]:
    """The connected ones together (networkx would do, but every program would pay for its import when it starts)."""
    seen: set[str] = set()
    groups = []
    for first in switches:
        if first not in seen:
            seen.add(first)
            group = [first]
            for switch in group:
                more = sorted(beside.get(switch, set()) - seen)
                seen.update(more)
                group += more
            groups.append(group)
    return groups


class RailTable:
    """Which of a transport's ``rails`` (in its order) a message takes that a schedule sends over a rail of its routes."""

    def __init__(self, topology: Topology, rails: Sequence[frozenset[str]], routes: Routes | None = None) -> None:
        self._topology = topology
        self._routes = routes_of(topology) if routes is None else routes
        self._number = {switch: number for number, switches in enumerate(rails) for switch in switches}
        self._count = len(rails)
        self._known: dict[tuple[int, int, int], int] = {}

    def number(self, src: int, dst: int, rail: int) -> int:
        """The transport's number of rail ``rail`` from rank ``src`` to rank ``dst``; 0 where the way is over none of its rails."""
        key = (src, dst, rail)
        found = self._known.get(key)
        if found is None:
            links = self._topology.links
            passed = (links[link].dst for link in self._routes.path(src, dst, rail))
            found = self._known[key] = next((self._number[vertex] for vertex in passed if vertex in self._number), 0)
        return found

    def ways(self, src: int, dst: int) -> list[int]:
        """For each of the transport's rails, the rail of the routes from rank ``src`` to rank ``dst`` that is on it; 0 where none is."""
        found = {self.number(src, dst, way): way for way in reversed(range(self._routes.rails(src, dst)))}
        return [found.get(number, 0) for number in range(self._count)]
