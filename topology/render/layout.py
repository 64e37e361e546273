"""Where everything goes in a picture. Sizes are in SVG's user units; y grows downwards.

Hosts on a grid stand on it (``cell`` in their attributes: row and column, with a layer before them in three dimensions); hosts without
switches stand on a circle, or in a row if they form one; else hosts stand in a row at the bottom and switches above them, level by level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from topoccl.topology.graph import Topology, VertexKind
from topoccl.topology.render.edges import Edge, edges, short
from topoccl.topology.wiring import owner

SLOT, GAP, NIC_HEIGHT, BAR, TITLE, MARGIN = 30.0, 8.0, 18.0, 18.0, 20.0, 10.0
_ROW = 8  # slots in one row
_SPACE = 56.0  # between hosts
_LEVEL = 92.0  # between rows of switches
_MOST_HOSTS = 32


@dataclass
class Box:
    """A rectangle by its centre."""

    x: float
    y: float
    w: float
    h: float

    @property
    def left(self) -> float:
        return self.x - self.w / 2

    @property
    def top(self) -> float:
        return self.y - self.h / 2

    @property
    def bottom(self) -> float:
        return self.y + self.h / 2

    def border(self, x: float, y: float) -> tuple[float, float]:
        """Where the line from the centre to a point leaves the rectangle."""
        dx, dy = x - self.x, y - self.y
        if dx == 0 and dy == 0:
            return self.x, self.top
        scale = min(self.w / 2 / abs(dx) if dx else math.inf, self.h / 2 / abs(dy) if dy else math.inf)
        return self.x + dx * min(1.0, scale), self.y + dy * min(1.0, scale)


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
    insides = {host: _Inside(topology, host, members[host], picture.edges) for host in shown}
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


class _Inside:
    """The parts of one host, placed from its top left corner: NICs and PCIe above the slots, switches below."""

    def __init__(self, topology: Topology, host: str, members: Sequence[str], found: list[Edge]) -> None:
        self.parts: dict[str, Box] = {}
        kinds: dict[VertexKind, list[str]] = {kind: [] for kind in VertexKind}
        for vertex in members:
            kinds[topology.vertices[vertex].kind].append(vertex)
        ends = [(owner(topology, edge.a), owner(topology, edge.b), edge) for edge in found]
        hosts = set(topology.hosts)
        direct = {end for a, b, edge in ends if a != b and {a, b} <= hosts for end in (edge.a, edge.b)}
        direct -= {end for a, b, edge in ends if a != b and not {a, b} <= hosts for end in (edge.a, edge.b)}
        nics = [nic for nic in kinds[VertexKind.NIC] if nic not in direct]  # the others are dots on the border
        slots = kinds[VertexKind.SLOT]
        meshed = any(edge.a in slots and edge.b in slots for edge in found)
        nic_w = max([34.0, *(12 + 6.2 * len(short(topology, nic)) for nic in nics)])
        slot_gap = 26.0 if meshed else max(GAP, nic_w + 4 - SLOT) if nics and len(nics) == len(slots) else GAP
        node_of = {edge.a if edge.a in slots else edge.b: edge.b if edge.a in slots else edge.a for edge in found if edge.kind == "shm"}
        groups = [[slot for slot in slots if node_of.get(slot) not in kinds[VertexKind.NUMA]]]
        groups += [[slot for slot in slots if node_of.get(slot) == node] for node in kinds[VertexKind.NUMA]]
        nodes = [None, *kinds[VertexKind.NUMA]]
        per_row = 4 if meshed and len(slots) > 4 else _ROW
        widths = [
            max(min(len(group), per_row) * (SLOT + slot_gap) - slot_gap, 56.0 if node else 0.0)
            for group, node in zip(groups, nodes, strict=True)
        ]
        pad = 8.0
        spans = [width + (2 * pad if node else 0) for width, node in zip(widths, nodes, strict=True) if width]
        inner = max(
            [sum(spans) + 10 * (len(spans) - 1), len(nics) * (nic_w + 4) - 4, 6.6 * len(host), 36.0 * len(kinds[VertexKind.PCIE]) - 8],
        )
        self.w = max(inner, SLOT) + 2 * MARGIN
        y = TITLE + 4
        nic_gap = slot_gap + SLOT - nic_w if len(nics) == len(slots) and not meshed else max(4.0, 12 - nic_w / 8)
        y = self.row(nics, nic_w, NIC_HEIGHT, nic_gap, y, 12)
        pcie = kinds[VertexKind.PCIE]
        pcie_gap = nic_gap + nic_w - 30 if len(pcie) == len(nics) else (self.w - 2 * MARGIN) / max(1, len(pcie)) - 30
        y = self.row(pcie, 30, 12, pcie_gap, y, 16)
        if meshed:
            y += 22
        x = self.w / 2 - (sum(spans) + 10 * (len(spans) - 1)) / 2
        top, deepest = y, y
        for group, node, width in zip(groups, nodes, widths, strict=True):
            if not width:
                continue
            offset = pad if node else 0.0
            for index, slot in enumerate(group):
                row, column = divmod(index, per_row)
                centre = x + offset + SLOT / 2 + column * (SLOT + slot_gap)
                self.parts[slot] = Box(centre, top + (16 if node else 0) + SLOT / 2 + row * (SLOT + slot_gap), SLOT, SLOT)
            rows = max(1, -(-len(group) // per_row))
            bottom = top + (16 if node else 0) + rows * (SLOT + slot_gap) - slot_gap
            if node:
                bottom += pad
                self.parts[node] = Box(x + width / 2 + pad, (top + bottom) / 2, width + 2 * pad, bottom - top)
            deepest = max(deepest, bottom)
            x += width + 2 * offset + 10
        y = deepest + (22 if meshed and len(slots) > per_row else 0)
        for switch in kinds[VertexKind.SWITCH]:
            y += 16
            self.parts[switch] = Box(self.w / 2, y + BAR / 2, self.w - 2 * MARGIN, BAR)
            y += BAR
        self.h = y + MARGIN

    def row(self, vertices: Sequence[str], w: float, h: float, gap: float, y: float, below: float) -> float:
        if not vertices:
            return y
        left = self.w / 2 - (len(vertices) * (w + gap) - gap) / 2
        for index, vertex in enumerate(vertices):
            self.parts[vertex] = Box(left + w / 2 + index * (w + gap), y + h / 2, w, h)
        return y + h + below


def _flat(topology: Topology, insides: dict[str, _Inside], picture: Picture) -> dict[str, tuple[float, float]]:
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
    if len(order) <= 2 or order[0] not in near[order[-1]]:
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


def _levels(topology: Topology, insides: dict[str, _Inside], switches: list[str], picture: Picture) -> dict[str, tuple[float, float]]:
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
