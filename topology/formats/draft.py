"""A fabric in the making that keeps ids apart and remembers, per host, what the file did not say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from topoccl.topology import fabric as fb
from topoccl.topology.fabric import Fabric
from topoccl.topology.generators import MAX_SLOTS
from topoccl.topology.graph import Topology, TopologyError, Vertex, VertexKind

_MOST_NOTES = 24
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Draft(Fabric):
    """A :class:`Fabric` for parsers of machines: :meth:`put` for parts with free ids, :meth:`note` for assumptions."""

    def __init__(self, source: str) -> None:
        super().__init__(PurePath(source).stem or source)
        self.source = source
        self.taken: dict[str, int] = {}
        """All ids, each with the last number that was given to namesakes of it."""
        self.notes: dict[str, dict[str, None]] = {}
        self.more: dict[str, dict[str, Any]] = {}

    def free(self, name: str) -> str:
        """``name``, or ``name#2`` and so on if that is taken."""
        free, number = name, self.taken.get(name, 1)
        while free in self.taken:
            number += 1
            free = f"{name}#{number}"
        self.taken[free] = 1
        self.taken[name] = number
        return free

    def put(self, host: str, name: str, kind: VertexKind, attrs: Mapping[str, Any] = _NOTHING) -> str:
        """A part of ``host`` without links, with the id ``host.name`` or the next free one."""
        return self.add(self.free(f"{host}.{name}"), kind, host, {key: value for key, value in attrs.items() if value is not None})

    def below(self, hub: str, part: str, rate: float, attrs: Mapping[str, Any] = _NOTHING) -> None:
        """A PCIe link."""
        self.link(hub, part, rate, fb.PCIE_LATENCY, "pcie", attrs=attrs)

    def inside(self, device: str, part: str, rate: float) -> None:
        """What shares one device (ports of a NIC): no hop of its own."""
        self.link(device, part, rate, 0.0, "port")

    def describe(self, vertex: str, attrs: Mapping[str, Any]) -> None:
        """More attributes for a vertex that is there already."""
        self.more.setdefault(vertex, {}).update(attrs)

    def note(self, host: str, text: str) -> None:
        """A sentence about what is missing or assumed, once."""
        self.notes.setdefault(host, {})[text] = None

    def finish(self, slots: Sequence[str] | None = None) -> Topology:
        """The topology; notes become an attribute of their hosts.

        Raises:
            TopologyError: too many slots, or what :class:`Topology` refuses; begins with the source.
        """
        for host, texts in self.notes.items():
            notes = list(texts)
            if len(notes) > _MOST_NOTES:
                notes[_MOST_NOTES:] = [f"and {len(notes) - _MOST_NOTES} more"]
            self.describe(host, {"notes": notes})
        self.vertices = [
            Vertex(vertex.id, vertex.kind, vertex.host, {**vertex.attrs, **self.more[vertex.id]}) if vertex.id in self.more else vertex
            for vertex in self.vertices
        ]
        count = sum(vertex.kind is VertexKind.SLOT for vertex in self.vertices)
        if count > MAX_SLOTS:
            raise TopologyError(f"{self.source}: {count} places for ranks; at most {MAX_SLOTS} are read")
        try:
            return self.build("packed" if slots is None else slots)
        except TopologyError as error:
            raise TopologyError(f"{self.source}: {error}") from None
