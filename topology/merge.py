"""One topology of several descriptions of the same fabric. Pure.

A description comes from somewhere, and what comes from a stronger :class:`Origin` wins: a user's file over measurements over a
vendor's tool over the kernel's files over defaults. The rule holds for every figure by itself: a link of a user's file whose
bandwidth is a default takes the measured one. A vertex or link may say in its attributes what its own origin is (``source``, and
``sources`` for single figures that come from elsewhere); else it is its description's. The result says so everywhere. A bandwidth that was
not seen to limit anything (``limits: false``: something else did, so it is at least that) counts as a default.

**What is the same thing.** Hosts by id, or by being the only one in both. Inside a host: equal kind and short name (``eth0``), else
equal PCI address (``busid``), ``uuid`` or ``rdma`` port; else ranks by position, if there are as many; else the only one of its
kind in both. Switches between hosts by id, or by having the same things plugged in.

**What there is.** The strongest description that has any slots in a host (any NICs) says which they are; those of weaker ones that match
none are left out. Likewise the strongest that gives a slot or NIC links of one kind says where these lead. So nothing is counted twice
because two descriptions model it in different ways. Bridges, NUMA nodes and switches that then lead nowhere are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from topoccl.topology.graph import Link, Topology, TopologyError, Vertex, VertexKind
from topoccl.topology.matching import Known, match

TOLERANCE = 1.25
"""Rates that differ by less than this factor do not contradict each other: headers alone cost some percent."""
LATENCY_TOLERANCE = 5.0


class Origin(IntEnum):
    """Where a figure comes from, the stronger the greater."""

    DEFAULT = 0
    SYSFS = 1
    VENDOR = 2
    MEASURED = 3
    USER = 4

    @property
    def text(self) -> str:
        return self.name.lower()


_ORIGINS = {origin.text: origin for origin in Origin}
_COMPARED = {"rate": TOLERANCE, "bandwidth": TOLERANCE, "latency": LATENCY_TOLERANCE, "lanes": 1.0}
_LEAVES = (VertexKind.SLOT, VertexKind.NIC)
_MODELLED = ("shm", "numa", "pcie", "port", "link")
"""Kinds of links inside a host that every description models in its own way, so that other figures are no contradiction."""


@dataclass(frozen=True, slots=True)
class Part:
    """One description; ``label`` is what reports call it (a file, a tool)."""

    origin: Origin
    topology: Topology
    label: str = ""

    def says(self, origin: Origin) -> str:
        return f"{origin.text} ({self.label})" if self.label else origin.text


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Descriptions that disagree; ``values`` are (who says it, what), the strongest first."""

    subject: str
    attribute: str
    values: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """The topology, and where the descriptions disagreed about it."""

    topology: Topology
    contradictions: tuple[Contradiction, ...]


def merge(parts: Sequence[Part], name: str | None = None) -> Merged:
    """One topology of all ``parts``; equally strong ones count in their order. ``name`` is by default the strongest one's.

    Raises:
        TopologyError: no parts.
    """
    if not parts:
        raise TopologyError("nothing to merge: no descriptions of a topology")
    ordered = sorted(parts, key=lambda part: -part.origin)
    return _Merger(ordered, ordered[0].topology.name if name is None else name).merged()


@dataclass
class _Figure:
    value: Any
    origin: Origin
    said: list[tuple[str, Any]]
    """Who says what, defaults left out."""


@dataclass
class _Thing:
    """A vertex or link in the making."""

    subject: str
    main: str
    """The figure whose origin counts as the thing's own, if it has it."""
    origin: Origin
    figures: dict[str, _Figure] = field(default_factory=dict)
    attrs: dict[str, _Figure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def take(self, part: Part, figures: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
        """What one description says of the thing."""
        own = _ORIGINS.get(str(attrs.get("source")), part.origin)
        others = attrs.get("sources")
        others = others if isinstance(others, Mapping) else {}
        for table, values in ((self.figures, figures), (self.attrs, attrs)):
            for key, value in values.items():
                if key not in ("source", "sources", "notes"):
                    origin = _ORIGINS.get(str(others.get(key)), own)
                    at_least = key == "bandwidth" and attrs.get("limits") is False
                    self.figure(table, key, value, Origin.DEFAULT if at_least else origin, part)
        if isinstance(attrs.get("notes"), list):
            self.notes += [note for note in attrs["notes"] if note not in self.notes]

    def figure(self, table: dict[str, _Figure], key: str, value: Any, origin: Origin, part: Part) -> None:
        said = [(part.says(origin), value)] if origin is not Origin.DEFAULT else []
        old = table.get(key)
        if old is None:
            table[key] = _Figure(value, origin, said)
        elif origin > old.origin:
            table[key] = _Figure(value, origin, said + old.said)
        else:
            old.said += said

    def final(self) -> dict[str, Any]:
        """The attributes, with the origins."""
        both = self.figures | self.attrs
        own = both[self.main].origin if self.main in both else self.origin
        others = {key: figure.origin.text for key, figure in sorted(both.items()) if figure.origin is not own}
        attrs = {key: figure.value for key, figure in self.attrs.items()}
        return attrs | ({"notes": self.notes} if self.notes else {}) | {"source": own.text} | ({"sources": others} if others else {})

    def contradictions(self) -> list[Contradiction]:
        found = []
        for key, figure in (self.figures | self.attrs).items():
            numbers = [value for _, value in figure.said if isinstance(value, int | float) and value > 0]
            if key in _COMPARED and numbers and max(numbers) > min(numbers) * _COMPARED[key]:
                found.append(Contradiction(self.subject, key, tuple(figure.said)))
        return found


@dataclass
class _Joint:
    """A link in the making and the number of the description that has it first."""

    src: str
    dst: str
    kind: str
    first: int
    thing: _Thing


class _Merger:
    def __init__(self, parts: Sequence[Part], name: str) -> None:
        self.parts = parts
        self.name = name
        self.known = Known()
        self.things: dict[str, _Thing] = {}
        self.maps: list[dict[str, str]] = []
        self.links: list[_Joint] = []
        self.counts: list[Contradiction] = []

    def merged(self) -> Merged:
        for part in self.parts:
            names = match(self.known, part.topology)
            self.compare_counts(part, names)
            self.known.add(part.topology, names)
            self.maps.append(names)
            for vertex in part.topology.vertices.values():
                if vertex.id in names:
                    key = names[vertex.id]
                    self.things.setdefault(key, _Thing(key, "rate", part.origin)).take(part, {}, vertex.attrs)
        self.join()
        kept = self.kept()
        vertices = [Vertex(v.id, v.kind, v.host, self.things[v.id].final()) for v in self.known.vertices.values() if v.id in kept]
        links = []
        for joint in self.links:
            if joint.src in kept and joint.dst in kept:
                figures = joint.thing.figures
                rate, latency = figures["bandwidth"].value, figures["latency"].value
                links.append(Link(joint.src, joint.dst, rate, latency, joint.kind, joint.thing.final()))
        found = [one for thing in self.things.values() for one in thing.contradictions()]
        joints = [joint for joint in self.links if joint.kind not in _MODELLED]
        found += _both_ways([one for joint in joints for one in joint.thing.contradictions()])
        return Merged(Topology(self.name, vertices, links, list(self.known.slots)), (*self.counts, *found))

    def compare_counts(self, part: Part, names: Mapping[str, str]) -> None:
        """Descriptions with other numbers of NICs in a host."""
        if not self.maps:
            return
        first = self.parts[0]
        for host in part.topology.hosts:
            ours = sum(v.kind is VertexKind.NIC and v.host == names[host] for v in self.known.vertices.values())
            theirs = sum(v.kind is VertexKind.NIC and v.host == host for v in part.topology.vertices.values())
            if ours and theirs and ours != theirs and part.origin is not Origin.DEFAULT:
                said = ((first.says(first.origin), ours), (part.says(part.origin), theirs))
                self.counts.append(Contradiction(names[host], "number of NICs", said))

    def join(self) -> None:
        """The links of all descriptions: equal ones become one, others count where their description has the say."""
        claims: dict[tuple[str, str], tuple[int, int]] = {}
        for number, (part, names) in enumerate(zip(self.parts, self.maps, strict=True)):
            for link in part.topology.links:
                strength = (_ORIGINS.get(str(link.attrs.get("source")), part.origin), -number)
                for end in (link.src, link.dst):
                    if end in names and self.known.vertices[names[end]].kind in _LEAVES:
                        place = (names[end], link.kind)
                        claims[place] = max(claims.get(place, strength), strength)
        pairs: dict[tuple[str, str, str], list[_Joint]] = {}
        for number, position, key, _ in self.mapped():
            same = pairs.setdefault(key, [])
            first = not same or same[0].first == number  # as many parallel links as the first description has
            if position >= len(same) and first and all(claims.get((end, key[2]), (0, -number))[1] == -number for end in key[:2]):
                thing = _Thing(f"{key[0]}->{key[1]}", "bandwidth", self.parts[number].origin)
                same.append(_Joint(*key, number, thing))
                self.links.append(same[-1])
        for number, position, key, link in self.mapped():
            if position < len(pairs[key]):
                figures = {"bandwidth": link.bandwidth, "latency": link.latency}
                pairs[key][position].thing.take(self.parts[number], figures, link.attrs)

    def mapped(self) -> Iterator[tuple[int, int, tuple[str, str, str], Link]]:
        """All links: the description's number, which one of those between the same ends and of the same kind it is, these, the link."""
        for number, (part, names) in enumerate(zip(self.parts, self.maps, strict=True)):
            used: dict[tuple[str, str, str], int] = {}
            for link in part.topology.links:
                if link.src in names and link.dst in names and names[link.src] != names[link.dst]:
                    key = (names[link.src], names[link.dst], link.kind)
                    used[key] = used.get(key, -1) + 1
                    yield number, used[key], key, link

    def kept(self) -> set[str]:
        """Vertices without those of weaker descriptions that lead nowhere."""
        near: dict[str, set[str]] = {}
        for joint in self.links:
            near.setdefault(joint.src, set()).add(joint.dst)
            near.setdefault(joint.dst, set()).add(joint.src)
        first = set(self.maps[0].values())
        inner = (VertexKind.PCIE, VertexKind.NUMA, VertexKind.SWITCH)
        loose = [v.id for v in self.known.vertices.values() if v.kind in inner and v.id not in first]
        gone: set[str] = set()
        while True:
            dead = [vertex for vertex in loose if vertex not in gone and len(near.get(vertex, set()) - gone) < 2]
            if not dead:
                return set(self.known.vertices) - gone
            gone.update(dead)


def _both_ways(found: list[Contradiction]) -> list[Contradiction]:
    """The two directions of a link told once where they tell the same."""
    seen: set[tuple[str, str, tuple[tuple[str, Any], ...]]] = set()
    kept = []
    for one in found:
        a, _, b = one.subject.partition("->")
        if (f"{b}->{a}", one.attribute, one.values) not in seen:
            seen.add((one.subject, one.attribute, one.values))
            kept.append(one)
    return kept
