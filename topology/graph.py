"""The frozen graph of an interconnect.

Vertices are typed and belong to hosts; links are directed and carry a bandwidth in bytes/s, a latency in seconds and a
kind. A *slot* is a place where one rank can run (an accelerator, or a share of a CPU): rank ``r`` of a group sits on
``topology.slots[r]``, so a placement is nothing but an order of slots (:meth:`Topology.place`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx as nx


class TopologyError(ValueError):
    """A description of a fabric that cannot be used; the message names the subject, the reason and the values."""


class VertexKind(StrEnum):
    SLOT = "slot"
    NUMA = "numa"
    PCIE = "pcie"
    NIC = "nic"
    SWITCH = "switch"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Vertex:
    """One vertex. ``host`` is the id of the HOST vertex that contains it (None for switches between hosts)."""

    id: str
    kind: VertexKind
    host: str | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Vertex, (self.id, self.kind, self.host, dict(self.attrs)))


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link: ``bandwidth`` in bytes/s, ``latency`` in seconds, ``kind`` such as shm, nvlink, pcie, net."""

    src: str
    dst: str
    bandwidth: float
    latency: float = 0.0
    kind: str = "link"
    attrs: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Link, (self.src, self.dst, self.bandwidth, self.latency, self.kind, dict(self.attrs)))

    @property
    def name(self) -> str:
        return f"{self.src}->{self.dst}"


class Topology:
    """An immutable interconnect graph.

    Args:
        name: what people call it; not part of the digest.
        vertices: all vertices, ids unique.
        links: directed links; parallel links are allowed and add up.
        slots: ids of SLOT vertices in rank order; by default all slots in the order of ``vertices``.

    Raises:
        TopologyError: duplicate ids, dangling links, links with a bandwidth that is not positive and finite, a negative
            latency, a slot without a host, or an unknown slot.
    """

    def __init__(self, name: str, vertices: Iterable[Vertex], links: Iterable[Link], slots: Sequence[str] | None = None) -> None:
        self.name = name
        table: dict[str, Vertex] = {}
        for vertex in vertices:
            if vertex.id in table:
                raise TopologyError(f"topology {name!r}: vertex {vertex.id!r} is declared twice")
            table[vertex.id] = vertex
        self.vertices: Mapping[str, Vertex] = MappingProxyType(table)
        self.links: tuple[Link, ...] = tuple(links)
        for vertex in table.values():
            if vertex.host is not None and (vertex.host not in table or table[vertex.host].kind is not VertexKind.HOST):
                raise TopologyError(f"topology {name!r}: vertex {vertex.id!r} is in host {vertex.host!r}, which is not a declared host")
            if vertex.kind is VertexKind.SLOT and vertex.host is None:
                raise TopologyError(f"topology {name!r}: slot {vertex.id!r} belongs to no host")
        for link in self.links:
            for end in (link.src, link.dst):
                if end not in table:
                    raise TopologyError(f"topology {name!r}: link {link.name} ends at {end!r}, which is not a declared vertex")
            if link.src == link.dst:
                raise TopologyError(f"topology {name!r}: link {link.name} connects a vertex with itself")
            if not (math.isfinite(link.bandwidth) and link.bandwidth > 0):
                raise TopologyError(f"topology {name!r}: link {link.name} has bandwidth {link.bandwidth!r}; expected bytes/s, positive")
            if not (math.isfinite(link.latency) and link.latency >= 0):
                raise TopologyError(f"topology {name!r}: link {link.name} has latency {link.latency!r}; expected seconds, not negative")
        all_slots = tuple(v.id for v in table.values() if v.kind is VertexKind.SLOT)
        self.slots: tuple[str, ...] = all_slots if slots is None else tuple(slots)
        known = set(all_slots)
        for slot in self.slots:
            if slot not in known:
                raise TopologyError(f"topology {name!r}: {slot!r} is not a slot; known slots: {', '.join(all_slots[:16]) or 'none'}")
        if len(set(self.slots)) != len(self.slots):
            raise TopologyError(f"topology {name!r}: a slot is listed twice in {self.slots}")

    def __repr__(self) -> str:
        counts = f"hosts={len(self.hosts)}, slots={len(self.slots)}, vertices={len(self.vertices)}, links={len(self.links)}"
        return f"Topology({self.name!r}, {counts})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Topology, (self.name, tuple(self.vertices.values()), self.links, self.slots))

    @property
    def num_ranks(self) -> int:
        return len(self.slots)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Ids of all HOST vertices in declaration order."""
        return tuple(v.id for v in self.vertices.values() if v.kind is VertexKind.HOST)

    @cached_property
    def host_of_rank(self) -> tuple[str, ...]:
        """The host id of each rank."""
        hosts = []
        for slot in self.slots:
            host = self.vertices[slot].host
            assert host is not None  # checked by the constructor
            hosts.append(host)
        return tuple(hosts)

    @cached_property
    def ranks_by_host(self) -> tuple[tuple[int, ...], ...]:
        """Ranks grouped by host: hosts in the order of their lowest rank, ranks ascending. Hosts without ranks are left out."""
        groups: dict[str, list[int]] = {}
        for rank, host in enumerate(self.host_of_rank):
            groups.setdefault(host, []).append(rank)
        return tuple(tuple(g) for g in groups.values())

    @cached_property
    def graph(self) -> nx.MultiDiGraph[str]:
        """A frozen networkx view: vertices with ``vertex=``, edges with ``link=`` (an index into :attr:`links`)."""
        import networkx as nx

        graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
        for vertex in self.vertices.values():
            graph.add_node(vertex.id, vertex=vertex)
        for index, link in enumerate(self.links):
            graph.add_edge(link.src, link.dst, key=index, link=index, bandwidth=link.bandwidth, latency=link.latency)
        return nx.freeze(graph)

    @cached_property
    def digest(self) -> str:
        """A hash of everything that planning depends on (not of the name): equal on every rank and machine."""
        rows = [
            [[v.id, v.kind.value, v.host, _canonical(v.attrs)] for v in self.vertices.values()],
            [[k.src, k.dst, float(k.bandwidth).hex(), float(k.latency).hex(), k.kind] for k in self.links],
            list(self.slots),
        ]
        return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()

    def place(self, slots: Sequence[int]) -> Topology:
        """The same fabric for a group whose rank ``i`` sits on slot ``slots[i]`` of this one (a placement or a sub-group).

        Raises:
            TopologyError: an index out of range or used twice.
        """
        for index in slots:
            if not 0 <= index < len(self.slots):
                raise TopologyError(f"topology {self.name!r}: rank placed on slot {index}, but there are only {len(self.slots)} slots")
        return Topology(self.name, self.vertices.values(), self.links, [self.slots[i] for i in slots])


def _canonical(value: Any) -> str:
    """``repr`` with the keys of mappings in order, however deep: the same text for equal attributes."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {item}" for key, item in sorted((repr(k), _canonical(x)) for k, x in value.items())) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_canonical, value)) + "]"
    return repr(value)
