"""A picture as shapes, for any writer: hosts as boxes, ranks in squares, line width by bandwidth, colour by kind of link.

What limits large all_reduces (:mod:`topoccl.topology.render.cut`) shines red.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from topoccl.topology.graph import Topology, VertexKind
from topoccl.topology.render.boxes import Box
from topoccl.topology.render.cut import bottleneck
from topoccl.topology.render.edges import CUT_COLOR, Edge, color, edges, rate_text, short, width
from topoccl.topology.render.inside import PCIE_HEIGHT
from topoccl.topology.render.layout import Picture, lay_out
from topoccl.topology.units import format_time
from topoccl.topology.wiring import owner

_LEGEND_LINES = 12


Path = tuple[tuple[str, tuple[float, ...]], ...]
"""``M``, ``L``, ``Q`` and ``C`` as in SVG, each with its coordinates."""


@dataclass(frozen=True, slots=True)
class Rect:
    box: Box
    style: str
    radius: float
    note: str


@dataclass(frozen=True, slots=True)
class Dot:
    x: float
    y: float
    style: str
    note: str
    radius: float = 4.5


@dataclass(frozen=True, slots=True)
class Words:
    """Text whose baseline begins at (x, y), or is centred there if ``style`` has ``mid``."""

    x: float
    y: float
    text: str
    style: str


@dataclass(frozen=True, slots=True)
class Line:
    path: Path
    color: str
    width: float
    style: str
    note: str


Shape = Rect | Dot | Words | Line


@dataclass
class Sheet:
    """Everything to draw, from the back to the front."""

    title: str
    width: float
    height: float
    shapes: list[Shape] = field(default_factory=list)


def draw(topology: Topology) -> Sheet:
    """The picture of ``topology``; of many hosts only the first are drawn."""
    return _Drawing(topology, lay_out(topology)).sheet()


class _Drawing:
    def __init__(self, topology: Topology, picture: Picture) -> None:
        self.topology = topology
        self.picture = picture
        self.rank_of = {slot: rank for rank, slot in enumerate(topology.slots)}
        self.slowest = min((edge.rate for edge in picture.edges), default=1.0)
        self.index = {id(edge): index for index, edge in enumerate(picture.edges)}
        self.attached = self.attach()
        self.cut, self.limit = bottleneck(topology) if not picture.hidden else (frozenset[int](), "")

    def sheet(self) -> Sheet:
        legend = self.legend()
        crossing = [edge for edge in self.picture.edges if owner(self.topology, edge.a) != owner(self.topology, edge.b)]
        sheet = Sheet(self.topology.name, max(self.picture.width, 420.0), self.picture.height + 18 * self.legend_lines + 20)
        numbers = ((len(self.topology.hosts), "host"), (self.topology.num_ranks, "rank"))
        counts = ", ".join(f"{number} {word}{'' if number == 1 else 's'}" for number, word in numbers)
        hidden = f", {self.picture.hidden} hosts not drawn" if self.picture.hidden else ""
        sheet.shapes += [Words(20, 28, self.topology.name, "title"), Words(20, 46, counts + hidden, "note")]
        for edge in crossing:
            if not self.ends_at_switch(edge):  # may pass below other hosts
                sheet.shapes += self.network(edge)
        sheet.shapes += [Rect(box, "host", 8, host) for host, box in self.picture.hosts.items()]
        for edge in crossing:
            if self.ends_at_switch(edge):
                sheet.shapes += self.network(edge)
        for host, box in self.picture.hosts.items():
            sheet.shapes += self.host(host, box)
        for name, box in self.picture.switches.items():
            sheet.shapes += [Rect(box, "switch", 6, name), Words(box.x, box.y + 4, name, "mid")]
        sheet.shapes += legend
        return sheet

    def ends_at_switch(self, edge: Edge) -> bool:
        return edge.a in self.picture.switches or edge.b in self.picture.switches

    # The network

    def attach(self) -> dict[tuple[int, str], tuple[float, float]]:
        """Where edges meet a switch: in the order of what is at their other ends, so that they do not cross on the way in."""
        sides: dict[tuple[str, bool], list[tuple[float, int, str]]] = {}
        for index, edge in enumerate(self.picture.edges):
            for end, other in ((edge.a, edge.b), (edge.b, edge.a)):
                far = self.place(other)
                if end in self.picture.switches and not self.beside(end, other):
                    sides.setdefault((end, far.y < self.picture.switches[end].y), []).append((far.x, index, end))
        found = {}
        for (switch, above), ends in sides.items():
            box = self.picture.switches[switch]
            for position, (_, index, end) in enumerate(sorted(ends)):
                x = box.left + box.w * (position + 0.5) / len(ends)
                found[index, end] = (x, box.top if above else box.bottom)
        return found

    def beside(self, a: str, b: str) -> bool:
        """Whether both are switches of one level."""
        switches = self.picture.switches
        return a in switches and b in switches and switches[a].y == switches[b].y

    def sideways(self, a: Box, b: Box) -> Path:
        """Between switches of one level: from side to side, or in a bow over those between."""
        low, high = sorted((a.x, b.x))
        if not any(box.y == a.y and low < box.x < high for box in self.picture.switches.values()):
            return _straight(a.border(b.x, b.y), b.border(a.x, a.y))
        return (("M", (a.x, a.top)), ("Q", ((a.x + b.x) / 2, a.top - 20 - (high - low) / 12, b.x, b.top)))

    def place(self, vertex: str) -> Box:
        for boxes in (self.picture.switches, self.picture.parts, self.picture.hosts):
            if vertex in boxes:
                return boxes[vertex]
        return self.picture.hosts[owner(self.topology, vertex)]

    def network(self, edge: Edge) -> list[Shape]:
        index = self.index[id(edge)]
        hosts = [self.picture.hosts.get(owner(self.topology, end)) for end in (edge.a, edge.b)]
        cells = [self.picture.cells.get(owner(self.topology, end)) for end in (edge.a, edge.b)]
        if hosts[0] is not None and hosts[1] is not None:
            if cells[0] is not None and cells[1] is not None and (bow := self.wrapped(hosts[0], hosts[1], cells[0], cells[1])):
                return self.line(edge, bow)
            ends = [hosts[0].border(hosts[1].x, hosts[1].y), hosts[1].border(hosts[0].x, hosts[0].y)]
            dots = [
                Dot(*point, "nic", end)
                for point, end in zip(ends, (edge.a, edge.b), strict=True)
                if self.topology.vertices[end].kind is VertexKind.NIC
            ]
            return [*self.line(edge, _straight(*ends)), *dots]
        if self.beside(edge.a, edge.b):
            return self.line(edge, self.sideways(self.place(edge.a), self.place(edge.b)))
        points = []
        for end, other in ((edge.a, edge.b), (edge.b, edge.a)):
            box = self.place(end)
            points.append(self.attached.get((index, end)) or (box.x, box.top if self.place(other).y < box.y else box.bottom))
        return self.line(edge, _straight(*points))

    def wrapped(self, a: Box, b: Box, at: tuple[int, ...], to: tuple[int, ...]) -> Path:
        """The bow of a link around a torus, above its row or left of its column; empty for neighbours."""
        if abs(at[-1] - to[-1]) > 1:
            return (("M", (a.x, a.top)), ("C", (a.x, a.top - 36, b.x, b.top - 36, b.x, b.top)))
        if abs(at[-2] - to[-2]) > 1 or (len(at) == 3 and abs(at[0] - to[0]) > 1):
            return (("M", (a.left, a.y)), ("C", (a.left - 36, a.y, b.left - 36, b.y, b.left, b.y)))
        return ()

    def line(self, edge: Edge, path: Path, style: str = "line") -> list[Shape]:
        note = f"{edge.a} to {edge.b}: {edge.kind} {edge.label}{f', {format_time(edge.latency)}' if edge.latency else ''}"
        wide = width(edge.rate, self.slowest)
        drawn: list[Shape] = [Line(path, color(edge.kind), wide, style, note)]
        return [Line(path, CUT_COLOR, wide + 5, "cut", note), *drawn] if self.cut.intersection(edge.links) else drawn

    # Hosts

    def host(self, host: str, box: Box) -> list[Shape]:
        vertices = [v for v in self.topology.vertices.values() if v.host == host and v.id in self.picture.parts]
        inner = [edge for edge in self.picture.edges if edge.a in self.picture.parts and edge.b in self.picture.parts]
        inner = [edge for edge in inner if self.topology.vertices[edge.a].host == host == self.topology.vertices[edge.b].host]
        shapes: list[Shape] = [Words(box.left + 8, box.top + 15, host, "name")]
        shapes += [Rect(self.picture.parts[v.id], "numa", 5, v.id) for v in vertices if v.kind is VertexKind.NUMA]
        for edge in inner:
            shapes += self.inside(edge)
        for vertex in vertices:
            place, name = self.picture.parts[vertex.id], short(self.topology, vertex.id)
            match vertex.kind:
                case VertexKind.SLOT:
                    rank = self.rank_of.get(vertex.id)
                    shapes.append(Rect(place, "free" if rank is None else "slot", 4, vertex.id))
                    shapes.append(Words(place.x, place.y + 4.5, "" if rank is None else str(rank), "mid rank"))
                case VertexKind.NUMA:
                    shapes.append(Words(place.left + 6, place.top + 12, name, "small"))
                case VertexKind.NIC | VertexKind.SWITCH if place.h > PCIE_HEIGHT:
                    shapes.append(Rect(place, "nic" if vertex.kind is VertexKind.NIC else "switch", 3, vertex.id))
                    shapes.append(Words(place.x, place.y + 3.5, name, "mid small"))
                case _:
                    shapes.append(Rect(place, "part", 3, vertex.id))
        return shapes

    def inside(self, edge: Edge) -> list[Shape]:
        a, b = self.picture.parts[edge.a], self.picture.parts[edge.b]
        kinds = {self.topology.vertices[end].kind for end in (edge.a, edge.b)}
        if VertexKind.NUMA in kinds:  # a box around its slots says it already
            return []
        if kinds == {VertexKind.SLOT} and a.y == b.y and abs(a.x - b.x) > 1.9 * a.w:  # over the squares between
            above = a.y <= min(box.y for box in (self.picture.parts[s] for s in self.siblings(edge.a)))
            y, bow = (a.top, -10 - abs(a.x - b.x) / 7) if above else (a.bottom, 10 + abs(a.x - b.x) / 7)
            return self.line(edge, (("M", (a.x, y)), ("Q", ((a.x + b.x) / 2, y + 1.6 * bow, b.x, y))))
        if a.w > 2 * b.w:
            return self.line(edge, _straight((b.x, b.y), (b.x, a.y)))
        if b.w > 2 * a.w:
            return self.line(edge, _straight((a.x, a.y), (a.x, b.y)))
        meshed = VertexKind.PCIE in kinds and any({e.a, e.b} <= set(self.rank_of) for e in self.picture.edges)
        return self.line(edge, _straight((a.x, a.y), (b.x, b.y)), "line faint" if meshed else "line")

    def siblings(self, slot: str) -> list[str]:
        host = self.topology.vertices[slot].host
        return [v.id for v in self.topology.vertices.values() if v.host == host and v.kind is VertexKind.SLOT]

    def legend(self) -> list[Shape]:
        """One line per kind and rate, the fastest of a kind first, and what red means."""
        seen: dict[tuple[str, str], Edge] = {}
        for edge in sorted(edges(self.topology), key=lambda edge: (edge.kind, -edge.rate)):
            seen.setdefault((edge.kind, edge.label), edge)
        shapes: list[Shape] = []
        y = self.picture.height
        for number, ((kind, label), edge) in enumerate(seen.items()):
            y += 18
            if number == _LEGEND_LINES and len(seen) > _LEGEND_LINES + 1:
                shapes.append(Words(20, y, f"and {len(seen) - _LEGEND_LINES} more rates, to {rate_text(self.slowest, kind)}", "note"))
                break
            wide = width(edge.rate, self.slowest)
            note = f"{kind} {label}"
            shapes += [Line(_straight((20, y - 4), (60, y - 4)), color(kind), wide, "line", note), Words(70, y, note, "note")]
        if self.limit:
            y += 18
            if self.cut:
                shapes.append(Line(_straight((20, y - 4), (60, y - 4)), CUT_COLOR, 6, "cut", self.limit))
            shapes.append(Words(70 if self.cut else 20, y, self.limit, "note"))
        self.legend_lines = round((y - self.picture.height) / 18)
        return shapes


def _straight(a: tuple[float, float], b: tuple[float, float]) -> Path:
    return (("M", a), ("L", b))
