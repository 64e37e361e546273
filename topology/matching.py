"""Which vertices of two descriptions of one fabric are the same thing: the rules that :mod:`topoccl.topology.merge` documents. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from topoccl.topology.graph import Topology, Vertex, VertexKind

_IDENTITIES = ("busid", "uuid", "rdma")
_LEAVES = (VertexKind.SLOT, VertexKind.NIC)


class Known:
    """What earlier descriptions have told: vertices with the ids of the result, ranks in order, who is linked with whom."""

    def __init__(self) -> None:
        self.vertices: dict[str, Vertex] = {}
        self.slots: dict[str, None] = {}
        self.near: dict[str, set[str]] = {}

    def add(self, topology: Topology, names: Mapping[str, str]) -> None:
        """Takes in a description; ``names`` has the id in the result of each of its vertices that are not left out."""
        for vertex in topology.vertices.values():
            if vertex.id in names:
                key, host = names[vertex.id], names.get(vertex.host) if vertex.host is not None else None
                old = self.vertices.get(key)
                attrs = {**vertex.attrs, **old.attrs} if old is not None else vertex.attrs
                self.vertices[key] = Vertex(key, vertex.kind, old.host if old is not None else host, attrs)
        for slot in topology.slots:
            if slot in names:
                self.slots[names[slot]] = None
        for link in topology.links:
            if link.src in names and link.dst in names:
                self.near.setdefault(names[link.src], set()).add(names[link.dst])
                self.near.setdefault(names[link.dst], set()).add(names[link.src])


def match(known: Known, topology: Topology) -> dict[str, str]:
    """The id in the result of each vertex of ``topology``. Slots and NICs that match none of a host that has such are left out."""
    names: dict[str, str] = {}
    known_inside, inside = _by_host(known.vertices.values()), _by_host(topology.vertices.values())
    known_hosts = [vertex.id for vertex in known.vertices.values() if vertex.kind is VertexKind.HOST]
    for host in topology.hosts:
        if host in known_hosts:
            names[host] = host
        elif len(topology.hosts) == len(known_hosts) == 1:
            names[host] = known_hosts[0]
        else:
            names[host] = _free(host, known.vertices)
        _match_inside(known, known_inside.get(names[host], []), topology, inside.get(host, []), host, names)
    _match_outside(known, known_inside.get(None, []), topology, inside.get(None, []), names)
    return names


def short(vertex: Vertex) -> str:
    """The id without the host's."""
    return vertex.id.removeprefix(f"{vertex.host}.") if vertex.host is not None else vertex.id


def _by_host(vertices: Iterable[Vertex]) -> dict[str | None, list[Vertex]]:
    found: dict[str | None, list[Vertex]] = {}
    for vertex in vertices:
        if vertex.kind is not VertexKind.HOST:
            found.setdefault(vertex.host, []).append(vertex)
    return found


def _match_inside(
    known: Known, ours: Sequence[Vertex], topology: Topology, theirs: Sequence[Vertex], host: str, names: dict[str, str]
) -> None:
    for kind in VertexKind:
        mine, other = [v for v in ours if v.kind is kind], [v for v in theirs if v.kind is kind]
        free = {vertex.id: vertex for vertex in mine}
        for vertex in other:
            same = [key for key, one in free.items() if short(one) == short(vertex) and not _differ(one, vertex)]
            same = same or [key for key, one in free.items() if _identical(one, vertex)]
            if same:
                names[vertex.id] = same[0]
                del free[same[0]]
        left = [vertex for vertex in other if vertex.id not in names]
        if kind is VertexKind.SLOT:
            ranks, their_ranks = [s for s in known.slots if s in free], [s for s in topology.slots if s in {v.id for v in left}]
            if len(ranks) == len(their_ranks):
                names.update(zip(their_ranks, ranks, strict=True))
        elif len(free) == len(left) == len(mine) == len(other) == 1 and not _differ(mine[0], left[0]):
            names[left[0].id] = mine[0].id
        for vertex in left:
            if vertex.id not in names and not (mine and kind in _LEAVES):
                names[vertex.id] = _free(f"{names[host]}.{short(vertex)}", {*known.vertices, *names.values()})


def _identical(a: Vertex, b: Vertex) -> bool:
    same = any(key in a.attrs and key in b.attrs and a.attrs[key] == b.attrs[key] for key in _IDENTITIES)
    named = any(str(one.attrs.get("rdma", "")).partition(":")[0] == short(other) for one, other in ((a, b), (b, a)))
    return (same or named) and not _differ(a, b)


def _differ(a: Vertex, b: Vertex) -> bool:
    """Whether something that never changes tells them apart."""
    return any(key in a.attrs and key in b.attrs and a.attrs[key] != b.attrs[key] for key in _IDENTITIES)


def _match_outside(known: Known, ours: Sequence[Vertex], topology: Topology, theirs: Sequence[Vertex], names: dict[str, str]) -> None:
    """Switches by id, else by what is plugged into them; in rounds, since switches hang on switches."""
    near: dict[str, set[str]] = {}
    for link in topology.links:
        near.setdefault(link.src, set()).add(link.dst)
        near.setdefault(link.dst, set()).add(link.src)
    free = {vertex.id: vertex.kind for vertex in ours}
    left = {vertex.id: vertex.kind for vertex in theirs}
    for vertex, kind in list(left.items()):
        if free.get(vertex) is kind:
            names[vertex] = vertex
            del free[vertex], left[vertex]
    changed = True
    while changed:
        changed = False
        by_ports: dict[frozenset[str], str] = {}
        for vertex in free:
            ports = frozenset(one for one in known.near.get(vertex, ()) if one not in free)
            if ports:
                by_ports.setdefault(ports, vertex)
        for vertex, kind in list(left.items()):
            ports = frozenset(names[one] for one in near.get(vertex, ()) if one in names)
            other = by_ports.pop(ports, None) if ports else None
            if other is not None and free[other] is kind:
                names[vertex] = other
                del free[other], left[vertex]
                changed = True
    for vertex in left:
        names[vertex] = _free(vertex, {*known.vertices, *names.values()})


def _free(name: str, taken: Iterable[str]) -> str:
    taken = set(taken)
    return next(free for free in itertools.chain([name], (f"{name}#{number}" for number in itertools.count(2))) if free not in taken)
