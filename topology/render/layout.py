"""Where everything goes in a picture. Sizes are in SVG's user units; y grows downwards.

Hosts on a grid stand on it (``cell`` in their attributes: row and column, with a layer before them in three dimensions); hosts without
switches stand in a row, or on a circle if some link would pass a host; else hosts stand in a row at the bottom and switches above them,
level by level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

from topoccl.topology.graph import Topology, VertexKind
from topoccl.topology.render.boxes import Box
from topoccl.topology.render.edges import Edge, edges
from topoccl.topology.render.inside import Inside
from topoccl.topology.wiring import owner

_SPACE = 56.0  # between hosts
_LEVEL = 92.0  # between rows of switches
_MOST_HOSTS = 32


@dataclass
class Picture:
    """Boxes of hosts, of what is inside them and of switches; ``ports`` are the ends of network links."""

    hosts: dict[str, Box] = field(default_factory=dict)
    parts: dict[str, Box] = field(default_factory=dict)
    switches: dict[str, Box] = field(default_factory=dict)
    cells: dict[str, tuple[int, ...]] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    hidden: int = 0
    """Hosts that were left out because there are too many."""
    width: float = 0.0
    height: float = 0.0


def lay_out(topology: Topology) -> Picture:
    """Places everything; of many hosts only the first are drawn."""
    shown = topology.hosts[:_MOST_HOSTS]
    picture = Picture(hidden=len(topology.hosts) - len(shown))
    members: dict[str, list[str]] = {host: [] for host in topology.hosts}
    for vertex in topology.vertices.values():
        if vertex.host is not None and vertex.kind is not VertexKind.HOST:
            members[vertex.host].append(vertex.id)
    drawn = {vertex for host in shown for vertex in (host, *members[host])}
    drawn.update(v.id for v in topology.vertices.values() if v.host is None and v.kind is not VertexKind.HOST)
    picture.edges = [edge for edge in edges(topology) if edge.a in drawn and edge.b in drawn]
    insides = {host: Inside(topology, host, members[host], picture.edges) for host in shown}
    switches = [v for v in drawn if v in topology.vertices and topology.vertices[v].host is None and v not in insides]
    switches.sort(key=list(topology.vertices).index)
    centres = _levels(topology, insides, switches, picture) if switches else _flat(topology, insides, picture)
    for host, inside in insides.items():
        x, y = centres[host]
        picture.hosts[host] = Box(x, y, inside.w, inside.h)
        for part, box in inside.parts.items():
            picture.parts[part] = Box(x - inside.w / 2 + box.x, y - inside.h / 2 + box.y, box.w, box.h)
    everything = [*picture.hosts.values(), *picture.switches.values()]
    if everything:
        dx = 40 - min(box.left for box in everything)
        dy = (94 if picture.cells else 70) - min(box.top for box in everything)  # bows around a torus rise above its first row
        for box in (*everything, *picture.parts.values()):
            box.x += dx
            box.y += dy
        picture.width = max(box.x + box.w / 2 for box in everything) + 40
        picture.height = max(box.bottom for box in everything) + 40
    return picture


def _flat(topology: Topology, insides: dict[str, Inside], picture: Picture) -> dict[str, tuple[float, float]]:
    """Centres of hosts without switches."""
    w = max((inside.w for inside in insides.values()), default=0.0) + _SPACE
    h = max((inside.h for inside in insides.values()), default=0.0) + _SPACE
    cells = {host: topology.vertices[host].attrs.get("cell") for host in insides}
    sizes = {len(cell) if isinstance(cell, list) and all(isinstance(i, int) for i in cell) else 0 for cell in cells.values()}
    if sizes in ({2}, {3}):
        picture.cells = {host: tuple(cell) for host, cell in cells.items() if cell is not None}
        columns = 1 + max(cell[-1] for cell in picture.cells.values())
        centres = {}
        for host, cell in picture.cells.items():
            layer = cell[0] if len(cell) == 3 else 0
            centres[host] = (cell[-1] * w + layer * (columns * w + 40), cell[-2] * h + layer * 0.6 * h)
        return centres
    near: dict[str, set[str]] = {host: set() for host in insides}
    for edge in picture.edges:
        a, b = owner(topology, edge.a), owner(topology, edge.b)
        if a != b:
            near[a].add(b)
            near[b].add(a)
    order = _walk(near)
    steps = {frozenset(pair) for pair in pairwise(order)}
    if all(frozenset((a, b)) in steps for a in near for b in near[a]):
        return {host: (index * w, 0.0) for index, host in enumerate(order)}
    radius = max(w, h) / (2 * math.sin(math.pi / len(order)))
    return {
        host: (radius * math.sin(2 * math.pi * index / len(order)), -radius * math.cos(2 * math.pi * index / len(order)))
        for index, host in enumerate(order)
    }


def _walk(near: dict[str, set[str]]) -> list[str]:
    """All hosts, each followed by a neighbour of its own where it has one left; begins at an end of a line."""
    left = dict.fromkeys(sorted(near, key=lambda host: (len(near[host]), list(near).index(host))))
    names = list(near)
    order: list[str] = []
    while left:
        following = [host for host in names if order and host in left and host in near[order[-1]]]
        host = following[0] if following else next(iter(left))
        order.append(host)
        del left[host]
    return order


def _levels(topology: Topology, insides: dict[str, Inside], switches: list[str], picture: Picture) -> dict[str, tuple[float, float]]:
    """Centres of hosts in a row, grouped by the switch they hang on; places the switches above."""
    near: dict[str, list[str]] = {name: [] for name in (*insides, *switches)}
    for edge in picture.edges:
        a, b = owner(topology, edge.a), owner(topology, edge.b)
        if a != b and a in near and b in near:
            near[a].append(b)
            near[b].append(a)
    level = dict.fromkeys(insides, 0)
    frontier = list(insides)
    while frontier:
        reached = dict.fromkeys(other for name in frontier for other in near[name] if other not in level)
        for name in reached:
            level[name] = level[frontier[0]] + 1
        frontier = list(reached)
    first = {host: min((switches.index(s) for s in near[host] if s in level and level[s] == 1), default=len(switches)) for host in insides}
    order = sorted(insides, key=lambda host: first[host])
    x, centres = 0.0, {}
    floor = max(inside.h for inside in insides.values()) / 2
    for host in order:
        x += insides[host].w / 2
        centres[host] = (x, floor - insides[host].h / 2)  # all boxes start at one height, so that lines do not cross them
        x += insides[host].w / 2 + 26
    tops = floor - max(inside.h for inside in insides.values())
    centres = {host: (cx, tops + insides[host].h / 2) for host, (cx, _) in centres.items()}
    places = {host: cx for host, (cx, _) in centres.items()}
    highest = max(level.values(), default=0)
    rows = [[s for s in switches if level.get(s, highest + 1) == number] for number in range(1, highest + 2)]
    for number, row in enumerate(rows, 1):
        below = {s: [places[o] for o in near[s] if o in places] for s in row}
        share = max(70.0, (x - 26) / max(1, len(row)) - 24)
        wide = {s: min(max(7.2 * len(s) + 16, 70.0, 0.7 * (max(below[s]) - min(below[s])) if below[s] else 0.0), share) for s in row}
        wish = {s: sum(below[s]) / len(below[s]) if below[s] else x / 2 for s in row}
        for switch, centre in _spread(sorted(row, key=lambda s: (wish[s], switches.index(s))), wish, wide).items():
            places[switch] = centre
            picture.switches[switch] = Box(centre, tops - number * _LEVEL, wide[switch], 26.0)
    return centres


def _spread(row: list[str], wish: dict[str, float], wide: dict[str, float], gap: float = 24.0) -> dict[str, float]:
    """Centres as near to the wishes as widths allow, in the given order: neighbours that would overlap move apart as one block."""
    blocks: list[tuple[float, float, list[str]]] = []  # centre, width, members
    for name in row:
        centre, span, names = wish[name], wide[name] + gap, [name]
        while blocks and blocks[-1][0] + blocks[-1][1] / 2 > centre - span / 2:
            other, width, before = blocks.pop()
            centre = (other * len(before) + centre * len(names)) / (len(before) + len(names))
            span, names = width + span, before + names
        blocks.append((centre, span, names))
    found = {}
    for centre, span, names in blocks:
        left = centre - span / 2
        for name in names:
            found[name] = left + (wide[name] + gap) / 2
            left += wide[name] + gap
    return found
