"""What all pictures share: links seen as undirected edges, rates as people read them, ranks in short."""

from __future__ import annotations

import math
from dataclasses import dataclass

from topoccl.topology.graph import Topology
from topoccl.topology.units import format_rate

COLORS = {"net": "#2f6db3", "nvlink": "#4f9a3a", "pcie": "#9a8457", "shm": "#8a8f98", "numa": "#8d63a8"}
OTHER_COLOR = "#c2862f"
CUT_COLOR = "#e3342f"


@dataclass(frozen=True, slots=True)
class Edge:
    """One link, or one with its way back of equal kind; rates in bytes/s, ``back`` None for one way only.

    ``links`` are their indices in the topology.
    """

    a: str
    b: str
    kind: str
    rate: float
    back: float | None
    latency: float
    links: tuple[int, ...]

    @property
    def label(self) -> str:
        if self.back is None:
            return f"{rate_text(self.rate, self.kind)} one way"
        if self.back != self.rate:
            return f"{rate_text(self.rate, self.kind)} / {rate_text(self.back, self.kind)}"
        return rate_text(self.rate, self.kind)


def edges(topology: Topology) -> list[Edge]:
    """All links in order, each joined with the first link back of the same kind that no other has taken."""
    waiting: dict[tuple[str, str, str], list[int]] = {}
    found: list[Edge | None] = []
    for index, link in enumerate(topology.links):
        partners = waiting.get((link.dst, link.src, link.kind))
        if partners:
            first = found[partners[0]]
            assert first is not None
            latency, both = max(first.latency, link.latency), (*first.links, index)
            found[partners.pop(0)] = Edge(first.a, first.b, first.kind, first.rate, link.bandwidth, latency, both)
        else:
            waiting.setdefault((link.src, link.dst, link.kind), []).append(len(found))
            found.append(Edge(link.src, link.dst, link.kind, link.bandwidth, None, link.latency, (index,)))
    return [edge for edge in found if edge is not None]


def rate_text(rate: float, kind: str) -> str:
    """Network rates in bits as on their labels, others in bytes."""
    if kind != "net":
        return format_rate(rate)
    for factor, unit in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if rate * 8 >= factor * 0.99995:
            return f"{rate * 8 / factor:.4g} {unit}"
    return f"{rate * 8:.4g} bit/s"


def color(kind: str) -> str:
    return COLORS.get(kind, OTHER_COLOR)


def width(rate: float, slowest: float) -> float:
    """A line's width: 1.5 for the slowest of a picture, 1 more for each factor of 4, at most 8."""
    return round(min(8.0, 1.5 + math.log(max(1.0, rate / slowest), 4)), 2)


def short(topology: Topology, vertex: str) -> str:
    """A vertex's name without the name of its host."""
    host = topology.vertices[vertex].host
    return vertex.removeprefix(f"{host}.") if host is not None and vertex != host else vertex
