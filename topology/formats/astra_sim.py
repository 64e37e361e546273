"""ASTRA-sim's analytical network (``topology``, ``npus_count``, ``bandwidth``, ``latency`` per dimension) and ns-3's list of links.

NPU ``i`` has the coordinates that ``npus_count`` makes of ``i``, the first dimension running fastest. Along a dimension NPUs form a
ring, a line, a full mesh or hang on a switch. Where the first of several dimensions is faster than the others it is taken for the
inside of a host; else every NPU is a host of its own.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

from topoccl.topology.document import read
from topoccl.topology.formats.base import CERTAIN, LIKELY, NO, Format
from topoccl.topology.formats.draft import Draft
from topoccl.topology.formats.support import HEAD, MAX_LINKS, Line, finish, lines, need, positive, shown, whole
from topoccl.topology.generators import MAX_SLOTS
from topoccl.topology.graph import Topology, TopologyError, VertexKind
from topoccl.topology.units import parse_rate, parse_time

BLOCKS = ("Ring", "FullyConnected", "Switch", "Mesh")
_KEYS = ("npus_count", "bandwidth", "latency")
_TOPOLOGY = re.compile(r"(?:^|[{,][ \t]*)[\"']?topology[\"']?[ \t]*:", re.MULTILINE)
_BANDWIDTH = re.compile(r"(?:^|[{,][ \t]*)[\"']?bandwidth[\"']?[ \t]*:", re.MULTILINE)
_COUNT = re.compile(r"(?:^|[{,])[ \t]*[\"']?npus_count[\"']?[ \t]*:", re.MULTILINE)


def recognise(text: str) -> int:
    head = text[:HEAD]
    if _COUNT.search(head):
        return CERTAIN
    return LIKELY if _TOPOLOGY.search(head) and _BANDWIDTH.search(head) else NO


def parse(text: str, source: str) -> Topology:
    """Bandwidths are in GB/s per link and direction, latencies in ns per link.

    Raises:
        TopologyError: not YAML, lists of different lengths, an unknown building block, a number that is none, too many NPUs.
    """
    document = read(text, source)
    given = document.entries("a mapping with topology, npus_count, bandwidth and latency (ASTRA-sim's analytical network)")
    names = need(given, "topology", document).items("a list of building blocks")
    columns = {key: need(given, key, document).items("a list with one number per dimension") for key in _KEYS}
    for key, column in columns.items():
        if len(column) != len(names):
            raise given[key].error(f"{len(column)} values for {len(names)} dimensions of topology")
    blocks = [name.one_of(BLOCKS) for name in names]
    sizes = [whole(at, MAX_SLOTS, 1) for at in columns["npus_count"]]
    rates = [positive(at, "GB/s") * 1e9 for at in columns["bandwidth"]]
    times = [positive(at, "ns", zero=True) / 1e9 for at in columns["latency"]]
    npus = math.prod(sizes)
    if not names or npus > MAX_SLOTS:
        raise given["npus_count"].error(f"{npus} NPUs; expected 1 to {MAX_SLOTS}")
    links = sum(npus * (size - 1) // 2 if block == "FullyConnected" else npus for block, size in zip(blocks, sizes, strict=True))
    if links > MAX_LINKS // 2:
        raise given["npus_count"].error(f"{links} links; at most {MAX_LINKS // 2} are read")
    draft = Draft(source)
    per_host = sizes[0] if len(sizes) > 1 and rates[0] > max(rates[1:]) else 1
    slots = []
    grid = per_host == 1 and len(sizes) in (2, 3) and "Switch" not in blocks
    for host in range(npus // per_host):
        cell = [host // math.prod(sizes[:dim]) % sizes[dim] for dim in range(len(sizes))]
        draft.host(f"h{host}", attrs={"cell": cell[::-1]} if grid else {})  # where pictures put it
        slots += [draft.bare_slot(f"h{host}", {"accelerator": "npu"}) for _ in range(per_host)]
    if per_host > 1:
        draft.note("h0", "hosts are not stated: the first dimension, the fastest, is taken for the inside of a host")
    for dim, (block, size, rate, time) in enumerate(zip(blocks, sizes, rates, times, strict=True)):
        inside = per_host > 1 and dim == 0
        for number, line in enumerate(_lines(sizes, dim)):
            members = [slots[npu] for npu in line]
            kind = "link" if inside else "net"
            if block == "Switch":
                switch = draft.switch(f"h{number}.switch", f"h{number}") if inside else draft.switch(f"switch{dim}.{number}")
                for member in members:
                    draft.link(member, switch, rate, time, kind)
                continue
            for a, b in _pairs(block, size):
                draft.link(members[a], members[b], rate, time, kind)
    return finish(draft)


def _lines(sizes: list[int], dim: int) -> Iterator[list[int]]:
    """The NPUs that differ in dimension ``dim`` only."""
    step = math.prod(sizes[:dim])
    for first in range(math.prod(sizes)):
        if first // step % sizes[dim] == 0:
            yield [first + index * step for index in range(sizes[dim])]


def _pairs(block: str, size: int) -> Iterator[tuple[int, int]]:
    """Which members of one line are joined; a ring of two has one link."""
    if block == "FullyConnected":
        return itertools.combinations(range(size), 2)
    wrap = [(size - 1, 0)] if block == "Ring" and size > 2 else []
    return iter([*itertools.pairwise(range(size)), *wrap])


_NS3_HEAD = re.compile(r"\s*\d{1,6}[ \t]+\d{1,6}[ \t]+\d{1,7}[ \t]*\r?\n(\s*\d[\d \t]*\r?\n)?\s*\d+[ \t]+\d+[ \t]+[\d.]+[kKMGT]?bps[ \t]")


def recognise_ns3(text: str) -> int:
    return CERTAIN if _NS3_HEAD.match(text[:HEAD]) else NO


def parse_ns3(text: str, source: str) -> Topology:
    """``nodes switches links``, the switches' numbers, then ``a b rate delay error`` per link; nodes that are no switches are slots.

    Raises:
        TopologyError: counts that do not match, an unknown node, a rate or a delay that is none.
    """
    rows = [line for line in lines(text, source) if line.text.strip()]
    nodes, count, links = _numbers(rows[0], MAX_LINKS)[:3] if rows and len(rows[0].text.split()) == 3 else _no_head(source)
    if nodes > MAX_SLOTS:
        raise rows[0].error(f"{nodes} nodes; at most {MAX_SLOTS} are read")
    switches = set(_numbers(rows[1], nodes - 1)) if count and len(rows) > 1 else set()
    rest = rows[2 if count else 1 :]
    body = rest[:links]  # as ns-3 reads it; what follows is often a description of the form
    if len(switches) != count or len(body) != links:
        raise TopologyError(f"{source}: {len(switches)} switches and {len(body)} links; the first line says {count} and {links}")
    draft = Draft(source)
    vertices = {}
    for node in range(nodes):
        if node not in switches:
            vertices[node] = draft.bare_slot(draft.host(f"n{node}"), {"accelerator": "npu"})
    for node in sorted(switches):
        vertices[node] = draft.switch(f"sw{node}")
    for row in body:
        words = row.text.split()
        if len(words) not in (4, 5):
            row.fail("a link", row.text.strip(), "two nodes, a rate, a delay and an error rate")
        a, b = _numbers(Line(source, row.number, " ".join(words[:2])), nodes - 1)
        if a == b:
            raise row.error(f"joins node {a} with itself")
        try:
            rate, delay = parse_rate(words[2]), parse_time(words[3])
        except ValueError as error:
            raise row.error(str(error)) from None
        draft.link(vertices[a], vertices[b], rate, delay, "net")
    if len(rest) > links and draft.vertices:
        first = next((vertex.id for vertex in draft.vertices if vertex.kind is VertexKind.HOST), "")
        draft.note(first, f"{len(rest) - links} lines after the {links} links that the first line counts are passed over, as ns-3 does")
    return finish(draft)


def _no_head(source: str) -> list[int]:
    raise TopologyError(f"{source}:1: expected the numbers of nodes, switches and links")


def _numbers(line: Line, most: int) -> list[int]:
    found = []
    for text in line.text.split():
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or int(text) > most:
            line.fail("a number", text, f"a whole number from 0 to {most}; the line is {shown(line.text.strip())}")
        found.append(int(text))
    return found


ANALYTICAL = Format("astra-sim", "ASTRA-sim's analytical network (YAML)", recognise, parse)
NS3 = Format("astra-sim-ns3", "ns-3's list of links (ASTRA-sim, HPCC)", recognise_ns3, parse_ns3)
