"""Small fabrics made by hand or at random."""

from __future__ import annotations

from hypothesis import strategies as st

from topoccl.topology import Topology
from topoccl.topology.graph import Link, Vertex, VertexKind


def bare(ranks: int, links: list[tuple[int, int, int]], switches: int = 0) -> Topology:
    """Ranks ``0 .. ranks - 1`` and switches after them, joined by one-way links of so many bytes/s."""
    hosts = [Vertex(f"h{i}", VertexKind.HOST) for i in range(ranks)]
    slots = [Vertex(f"s{i}", VertexKind.SLOT, f"h{i}") for i in range(ranks)]
    middle = [Vertex(f"s{ranks + i}", VertexKind.SWITCH) for i in range(switches)]
    return Topology("bare", [*hosts, *slots, *middle], [Link(f"s{a}", f"s{b}", float(rate)) for a, b, rate in links])


@st.composite
def fabrics(draw: st.DrawFn, switches: int = 2, parallel: bool = True) -> Topology:
    """Connected graphs of a few ranks and switches; links have one rate each way, or, without switches, one per direction.

    ``parallel``: whether there may be several links between two of them.
    """
    ranks = draw(st.integers(2, 5))
    extra = draw(st.integers(0, switches))
    total = ranks + extra
    pairs = [(draw(st.integers(0, i - 1)), i) for i in range(1, total)]
    pairs += draw(st.lists(st.tuples(st.integers(0, total - 1), st.integers(0, total - 1)).filter(lambda e: e[0] != e[1]), max_size=6))
    if not parallel:
        pairs = sorted({(min(pair), max(pair)) for pair in pairs})
    rates = st.integers(1, 4)
    links = []
    for a, b in pairs:
        there = draw(rates)
        links += [(a, b, there), (b, a, there if extra else draw(rates))]
    return bare(ranks, links, extra)


@st.composite
def lopsided(draw: st.DrawFn) -> Topology:
    """Ranks on one to three switches in a row, with links that are much wider one way than the other."""
    ranks = draw(st.integers(3, 5))
    switches = draw(st.integers(1, 3))
    links = []
    for rank in range(ranks):
        for switch in draw(st.sets(st.integers(ranks, ranks + switches - 1), min_size=1, max_size=2)):
            links += [(rank, switch, draw(st.sampled_from([1, 2, 20]))), (switch, rank, draw(st.sampled_from([1, 5, 20])))]
    for switch in range(ranks + 1, ranks + switches):
        links += [(switch - 1, switch, draw(st.sampled_from([2, 10]))), (switch, switch - 1, draw(st.sampled_from([2, 10])))]
    return bare(ranks, links, switches)
