"""An SVG picture, written as text: hosts as boxes, ranks in squares, line width by bandwidth, colour by kind of link."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

from topoccl.topology.graph import Topology, VertexKind
from topoccl.topology.render.edges import Edge, color, edges, rate_text, short, width
from topoccl.topology.render.layout import Box, Picture, lay_out
from topoccl.topology.units import format_time
from topoccl.topology.wiring import owner

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LEGEND_LINES = 12
_STYLE = (
    "text{font-family:Helvetica,Arial,sans-serif;font-size:12px;fill:#222}"
    ".title{font-size:17px;font-weight:bold}.note{fill:#666}.small{font-size:10px}.mid{text-anchor:middle}"
    ".host{fill:#f6f7f9;stroke:#8c929c}.slot{fill:#dbe8fa;stroke:#3b6ea8}.free{fill:#fff;stroke:#9aa;stroke-dasharray:3 2}"
    ".rank{font-weight:bold;font-size:13px}.nic{fill:#e4f1dd;stroke:#5f8f4e}.part{fill:#f3ead3;stroke:#9a8457}"
    ".numa{fill:#f0e8f6;stroke:#8d63a8}.switch{fill:#fdf3d8;stroke:#b08a2e}.line{fill:none;stroke-linecap:round}.faint{opacity:.4}.name{paint-order:stroke;stroke:#f6f7f9;stroke-width:4px}"
)


def to_svg(topology: Topology) -> str:
    """``topology`` as a stand-alone SVG document."""
    return _Drawing(topology, lay_out(topology)).document()


class _Drawing:
    def __init__(self, topology: Topology, picture: Picture) -> None:
        self.topology = topology
        self.picture = picture
        self.rank_of = {slot: rank for rank, slot in enumerate(topology.slots)}
        self.slowest = min((edge.rate for edge in picture.edges), default=1.0)
        self.index = {id(edge): index for index, edge in enumerate(picture.edges)}
        self.attached = self.attach()

    def document(self) -> str:
        legend = self.legend()
        crossing = [edge for edge in self.picture.edges if owner(self.topology, edge.a) != owner(self.topology, edge.b)]
        wide = max(self.picture.width, 420.0)
        high = self.picture.height + 18 * len(legend) + 20
        counts = f"{len(self.topology.hosts)} hosts, {self.topology.num_ranks} ranks"
        hidden = f", {self.picture.hidden} hosts not drawn" if self.picture.hidden else ""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{high:.0f}" viewBox="0 0 {wide:.0f} {high:.0f}">',
            f"<title>{_safe(self.topology.name)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect width="{wide:.0f}" height="{high:.0f}" fill="#fff"/>',
            _text(20, 28, self.topology.name, "title"),
            _text(20, 46, counts + hidden, "note"),
            *(self.network(edge) for edge in crossing if not self.ends_at_switch(edge)),  # may pass below other hosts
            *(_rect(box, "host", 8, host) for host, box in self.picture.hosts.items()),
            *(self.network(edge) for edge in crossing if self.ends_at_switch(edge)),
            *(self.host(host, box) for host, box in self.picture.hosts.items()),
            *(_rect(box, "switch", 6, name) + _text(box.x, box.y + 4, name, "mid") for name, box in self.picture.switches.items()),
            *legend,
            "</svg>",
        ]
        return "".join(f"{part}\n" for part in parts if part)

    def ends_at_switch(self, edge: Edge) -> bool:
        return edge.a in self.picture.switches or edge.b in self.picture.switches

    # The network

    def attach(self) -> dict[tuple[int, str], tuple[float, float]]:
        """Where edges meet a switch: in the order of what is at their other ends, so that they do not cross on the way in."""
        sides: dict[tuple[str, bool], list[tuple[float, int, str]]] = {}
        for index, edge in enumerate(self.picture.edges):
            for end, other in ((edge.a, edge.b), (edge.b, edge.a)):
                if end in self.picture.switches:
                    far = self.place(other)
                    sides.setdefault((end, far.y < self.picture.switches[end].y), []).append((far.x, index, end))
        found = {}
        for (switch, above), ends in sides.items():
            box = self.picture.switches[switch]
            for position, (_, index, end) in enumerate(sorted(ends)):
                x = box.left + box.w * (position + 0.5) / len(ends)
                found[index, end] = (x, box.top if above else box.bottom)
        return found

    def place(self, vertex: str) -> Box:
        for boxes in (self.picture.switches, self.picture.parts, self.picture.hosts):
            if vertex in boxes:
                return boxes[vertex]
        return self.picture.hosts[owner(self.topology, vertex)]

    def network(self, edge: Edge) -> str:
        index = self.index[id(edge)]
        hosts = [self.picture.hosts.get(owner(self.topology, end)) for end in (edge.a, edge.b)]
        cells = [self.picture.cells.get(owner(self.topology, end)) for end in (edge.a, edge.b)]
        if hosts[0] is not None and hosts[1] is not None:
            if cells[0] is not None and cells[1] is not None and (bow := self.wrapped(hosts[0], hosts[1], cells[0], cells[1])):
                return self.line(edge, bow)
            ends = [hosts[0].border(hosts[1].x, hosts[1].y), hosts[1].border(hosts[0].x, hosts[0].y)]
            dots = [
                _dot(*point, end)
                for point, end in zip(ends, (edge.a, edge.b), strict=True)
                if self.topology.vertices[end].kind is VertexKind.NIC
            ]
            return self.line(edge, _straight(*ends)) + "".join(dots)
        points = []
        for end, other in ((edge.a, edge.b), (edge.b, edge.a)):
            box = self.place(end)
            points.append(self.attached.get((index, end)) or (box.x, box.top if self.place(other).y < box.y else box.bottom))
        return self.line(edge, _straight(*points))

    def wrapped(self, a: Box, b: Box, at: tuple[int, ...], to: tuple[int, ...]) -> str:
        """The bow of a link around a torus, above its row or left of its column; empty for neighbours."""
        if abs(at[-1] - to[-1]) > 1:
            return f"M{a.x:.1f} {a.top:.1f}C{a.x:.1f} {a.top - 36:.1f} {b.x:.1f} {b.top - 36:.1f} {b.x:.1f} {b.top:.1f}"
        if abs(at[-2] - to[-2]) > 1 or (len(at) == 3 and abs(at[0] - to[0]) > 1):
            return f"M{a.left:.1f} {a.y:.1f}C{a.left - 36:.1f} {a.y:.1f} {b.left - 36:.1f} {b.y:.1f} {b.left:.1f} {b.y:.1f}"
        return ""

    def line(self, edge: Edge, path: str, style: str = "line") -> str:
        note = f"{edge.a} to {edge.b}: {edge.kind} {edge.label}{f', {format_time(edge.latency)}' if edge.latency else ''}"
        stroke = f'stroke="{color(edge.kind)}" stroke-width="{width(edge.rate, self.slowest):g}"'
        return f'<path class="{style}" d="{path}" {stroke}><title>{_safe(note)}</title></path>'

    # Hosts

    def host(self, host: str, box: Box) -> str:
        vertices = [v for v in self.topology.vertices.values() if v.host == host and v.id in self.picture.parts]
        inner = [edge for edge in self.picture.edges if edge.a in self.picture.parts and edge.b in self.picture.parts]
        inner = [edge for edge in inner if self.topology.vertices[edge.a].host == host == self.topology.vertices[edge.b].host]
        texts = [_text(box.left + 8, box.top + 15, host, "name")]
        texts += [_rect(self.picture.parts[v.id], "numa", 5, v.id) for v in vertices if v.kind is VertexKind.NUMA]
        texts += [self.inside(edge) for edge in inner]
        for vertex in vertices:
            place, name = self.picture.parts[vertex.id], short(self.topology, vertex.id)
            match vertex.kind:
                case VertexKind.SLOT:
                    rank = self.rank_of.get(vertex.id)
                    texts.append(_rect(place, "free" if rank is None else "slot", 4, vertex.id))
                    texts.append(_text(place.x, place.y + 4.5, "" if rank is None else str(rank), "mid rank"))
                case VertexKind.NUMA:
                    texts.append(_text(place.x, place.top + 12, name, "mid small"))
                case VertexKind.NIC | VertexKind.SWITCH:
                    texts.append(_rect(place, "nic" if vertex.kind is VertexKind.NIC else "switch", 3, vertex.id))
                    texts.append(_text(place.x, place.y + 3.5, name, "mid small"))
                case _:
                    texts.append(_rect(place, "part", 3, vertex.id))
        return "".join(texts)

    def inside(self, edge: Edge) -> str:
        a, b = self.picture.parts[edge.a], self.picture.parts[edge.b]
        kinds = {self.topology.vertices[end].kind for end in (edge.a, edge.b)}
        if VertexKind.NUMA in kinds:  # a box around its slots says it already
            return ""
        if kinds == {VertexKind.SLOT} and a.y == b.y and abs(a.x - b.x) > 1.9 * a.w:  # over the squares between
            above = a.y <= min(box.y for box in (self.picture.parts[s] for s in self.siblings(edge.a)))
            y, bow = (a.top, -10 - abs(a.x - b.x) / 7) if above else (a.bottom, 10 + abs(a.x - b.x) / 7)
            return self.line(edge, f"M{a.x:.1f} {y:.1f}Q{(a.x + b.x) / 2:.1f} {y + 1.6 * bow:.1f} {b.x:.1f} {y:.1f}")
        if a.w > 2 * b.w:
            return self.line(edge, _straight((b.x, b.y), (b.x, a.y)))
        if b.w > 2 * a.w:
            return self.line(edge, _straight((a.x, a.y), (a.x, b.y)))
        meshed = VertexKind.PCIE in kinds and any({e.a, e.b} <= set(self.rank_of) for e in self.picture.edges)
        return self.line(edge, _straight((a.x, a.y), (b.x, b.y)), "line faint" if meshed else "line")

    def siblings(self, slot: str) -> list[str]:
        host = self.topology.vertices[slot].host
        return [v.id for v in self.topology.vertices.values() if v.host == host and v.kind is VertexKind.SLOT]

    def legend(self) -> list[str]:
        """One line per kind and rate, the fastest of a kind first."""
        seen: dict[tuple[str, str], Edge] = {}
        for edge in sorted(edges(self.topology), key=lambda edge: (edge.kind, -edge.rate)):
            seen.setdefault((edge.kind, edge.label), edge)
        texts, y = [], self.picture.height
        for number, ((kind, label), edge) in enumerate(seen.items()):
            y += 18
            if number == _LEGEND_LINES and len(seen) > _LEGEND_LINES + 1:
                texts.append(_text(20, y, f"and {len(seen) - _LEGEND_LINES} more rates, to {rate_text(self.slowest, kind)}", "note"))
                break
            texts.append(self.line(edge, _straight((20, y - 4), (60, y - 4))) + _text(70, y, f"{kind} {label}", "note"))
        return texts


def _straight(a: tuple[float, float], b: tuple[float, float]) -> str:
    return f"M{a[0]:.1f} {a[1]:.1f}L{b[0]:.1f} {b[1]:.1f}"


def _rect(box: Box, style: str, radius: float, note: str) -> str:
    size = f'x="{box.left:.1f}" y="{box.top:.1f}" width="{box.w:.1f}" height="{box.h:.1f}" rx="{radius:g}"'
    return f'<rect class="{style}" {size}><title>{_safe(note)}</title></rect>'


def _dot(x: float, y: float, note: str) -> str:
    return f'<circle class="nic" cx="{x:.1f}" cy="{y:.1f}" r="4.5"><title>{_safe(note)}</title></circle>'


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{_safe(text)}</text>' if text else ""


def _safe(text: str) -> str:
    return escape(_ILLEGAL.sub("\ufffd", text))
