"""NCCL's graph XML (``NCCL_GRAPH_FILE``, ``NCCL_GRAPH_DUMP_FILE``): the channels that NCCL's search found, not the fabric itself.

A link carries what all channels of one graph move over it at the graph's speed, and the most that any graph does: graphs are
alternatives, channels run side by side. What no channel uses is not in the file.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from topoccl.topology import constants
from topoccl.topology import fabric as fb
from topoccl.topology.formats import safe_xml
from topoccl.topology.formats.base import CERTAIN, NO, Format
from topoccl.topology.formats.draft import Draft
from topoccl.topology.formats.safe_xml import Element
from topoccl.topology.graph import Topology, VertexKind

_NVLS, _RING = 5, 4
_PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
_SYSTEM = 56
"""NCCL keeps the number of the host above this bit of a device's number."""


def recognise(text: str) -> int:
    return CERTAIN if safe_xml.root_name(text) == "graphs" else NO


def parse(text: str, source: str) -> Topology:
    """Accelerators and NICs of the machine (or, with NVLink between hosts, machines) that the channels run through.

    Raises:
        TopologyError: not well-formed XML, not NCCL's, or without accelerators; the message names the line, the element, the value
            and what was expected.
    """
    root = safe_xml.parse(text, source)
    if root.tag != "graphs":
        raise root.error("expected <graphs>, the root of NCCL's graph XML")
    if root.integer("version", 0, 1 << 30, 1) != 1:
        root.fail("version", "1")
    return _Reader(root).topology()


class _Reader:
    def __init__(self, root: Element) -> None:
        self.root = root
        self.draft = Draft(root.source)
        self.hosts: dict[int, str] = {}
        self.vertices: dict[tuple[str, int], str] = {}
        self.ranks: dict[str, int] = {}
        self.rates: dict[tuple[str, str], float] = {}
        self.kinds: dict[tuple[str, str], tuple[str, str]] = {}

    def topology(self) -> Topology:
        for graph in self.root.all("graph"):
            self.graph(graph)
        if not self.ranks:
            raise self.root.error("no <gpu> in any channel; expected at least one")
        done: set[tuple[str, str]] = set()
        for (a, b), rate in self.rates.items():
            if (b, a) not in done:
                done.add((a, b))
                kind, path = self.kinds[a, b]
                latency = {"nvlink": 2 * constants.NVLINK_LATENCY, "net": fb.NET_LATENCY}.get(kind, 2 * fb.PCIE_LATENCY)
                self.draft.link(a, b, rate, latency, kind, back=self.rates.get((b, a)), attrs={"path": path})
        for host in self.hosts.values():
            self.draft.note(host, "an NCCL graph: channels that NCCL chose and their speeds; what they do not use is not in the file")
        order = {slot: index for index, slot in enumerate(self.ranks)}
        return self.draft.finish(sorted(self.ranks, key=lambda slot: (self.ranks[slot], order[slot])))

    def graph(self, graph: Element) -> None:
        pattern = graph.integer("pattern", 0, 1 << 16)
        intra, inter = graph.number("speedintra", 0.0) * 1e9, graph.number("speedinter", 0.0) * 1e9
        types = self.type(graph, "typeintra"), self.type(graph, "typeinter")
        total: dict[tuple[str, str], float] = {}
        for channel in graph.all("channel"):
            steps = [(child.tag, self.device(child)) for child in channel.children if child.tag in ("gpu", "net")]
            for a, b in _pairs(steps, ring=pattern == _RING):
                inside = a[0] == b[0] == "gpu"
                rate = intra if inside else inter
                if a[1] != b[1] and rate > 0 and not (inside and pattern == _NVLS):
                    pair = a[1], b[1]
                    total[pair] = total.get(pair, 0.0) + rate
                    path = types[0] if inside else types[1]
                    kind = "nvlink" if path in ("NVL", "NVB") and inside else "c2c" if path == "C2C" else "pcie"
                    self.kinds.setdefault(pair, (kind, path))
        for pair, rate in total.items():
            self.rates[pair] = max(self.rates.get(pair, 0.0), rate)

    def type(self, graph: Element, name: str) -> str:
        text = graph.get(name).strip().upper()
        if text and text not in _PATHS:
            graph.fail(name, f"one of {', '.join(_PATHS)}")
        return text

    def device(self, element: Element) -> str:
        """The vertex of a ``gpu`` or ``net``; ``dev`` is hexadecimal, with the number of the host in its top byte."""
        text = element.must("dev")
        if not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,16}", text):
            element.fail("dev", "a hexadecimal number")
        number = int(text, 16)
        known = self.vertices.get((element.tag, number))
        if known is not None:
            return known
        system, local = number >> _SYSTEM, number & (1 << _SYSTEM) - 1
        if system not in self.hosts:
            self.hosts[system] = self.draft.host(self.draft.free(f"h{system}"))
        kind = VertexKind.SLOT if element.tag == "gpu" else VertexKind.NIC
        rank = element.integer("rank", 0, 1 << 24, -1) if element.tag == "gpu" else None
        vertex = self.draft.put(self.hosts[system], f"{element.tag}{local}", kind, {"rank": rank if rank != -1 else None})
        self.vertices[element.tag, number] = vertex
        if rank is not None:
            self.ranks[vertex] = rank
        return vertex


def _pairs(steps: list[tuple[str, str]], ring: bool) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Neighbours in a channel. A ring without NICs closes inside the host."""
    yield from itertools.pairwise(steps)
    if ring and len(steps) > 2 and steps[0][0] == steps[-1][0] == "gpu":
        yield steps[-1], steps[0]


FORMAT = Format("nccl-graph", "NCCL's graph XML (NCCL_GRAPH_DUMP_FILE)", recognise, parse)
