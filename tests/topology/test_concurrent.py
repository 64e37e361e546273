"""The bound of all_to_all: lengths of links that prove it, and flows that reach it."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topoccl.topology.bounds import certificate
from topoccl.topology.bounds.concurrent import best_lengths, concurrent_flow, length_bound
from topoccl.topology.generators import generate

Arcs = list[tuple[int, int]]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, Arcs, list[int], dict[int, dict[int, int]]]:
    count = draw(st.integers(2, 6))
    edges = {(draw(st.integers(0, v - 1)), v) for v in range(1, count)}
    more = [(a, b) for a, b in combinations(range(count), 2) if (a, b) not in edges]
    if more:
        edges |= set(draw(st.lists(st.sampled_from(more), max_size=4)))
    arcs = [arc for a, b in sorted(edges) for arc in ((a, b), (b, a))]
    capacity = draw(st.lists(st.integers(1, 5), min_size=len(arcs), max_size=len(arcs)))
    size = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count).filter(lambda sizes: sum(map(bool, sizes)) > 1))
    demand = {a: {b: size[a] * size[b] for b in range(count) if a != b and size[b]} for a in range(count) if size[a]}
    return count, arcs, capacity, demand


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graph=graphs())
def test_flows_reach_what_lengths_prove(graph: tuple[int, Arcs, list[int], dict[int, dict[int, int]]]) -> None:
    count, arcs, capacity, demand = graph
    seconds, lengths = best_lengths(count, arcs, capacity, demand)
    assert seconds == length_bound(count, arcs, capacity, demand, lengths)
    amounts = {a: {b: float(amount) for b, amount in row.items()} for a, row in demand.items()}
    flows = concurrent_flow(count, arcs, [[arc] for arc in range(len(arcs))], [float(c) for c in capacity], amounts)
    load = [sum(row.get(arc, 0.0) for row in flows.of_source) for arc in range(len(arcs))]
    busiest = max(x / c for x, c in zip(load, capacity, strict=True))
    assert busiest == pytest.approx(float(seconds), rel=1e-3)
    for row, (source, targets) in zip(flows.of_source, demand.items(), strict=True):
        kept = [0.0] * count
        for arc, amount in row.items():
            kept[arcs[arc][0]] -= amount
            kept[arcs[arc][1]] += amount
        for vertex in range(count):
            assert kept[vertex] == pytest.approx(targets.get(vertex, 0) if vertex != source else -sum(targets.values()), abs=1e-4)
    # Every cut is a choice of lengths, so none can prove more.
    for size in range(1, count):
        for inside in combinations(range(count), size):
            crossing = [Fraction(int(a not in inside and b in inside)) for a, b in arcs]
            if any(crossing):
                assert length_bound(count, arcs, capacity, demand, crossing) <= seconds * Fraction(1001, 1000)


@pytest.mark.parametrize(
    ("text", "inverse", "words"),
    [
        ("ring:5", 3, "only be reached over"),
        ("ring:8", 8, ""),
        ("line:4", 4, "ranks 0-1 can only be reached over h2.s0->h1.s0"),
        ("mesh:2x3", 4, "only be reached over"),
        ("mesh:4x4", 16, "ranks 0-7 can only be reached over"),
        ("torus:4x4", 8, ""),
        ("torus:3x5", 9, ""),
    ],
)
def test_known_bounds(text: str, inverse: int, words: str) -> None:
    found = certificate(generate(text), "all_to_all")
    assert found.inverse_throughput() == inverse
    assert found.searched
    assert words in found.text


def test_too_many_ranks_are_looked_at_by_hosts() -> None:
    found = certificate(generate("dgx-h100:16"), "all_to_all")
    assert found.inverse_throughput() == 120
    assert not found.searched
    assert "ranks 0-7 can only be reached over ib0->h0.ib0" in found.text


def test_what_cannot_be_reached() -> None:
    with pytest.raises(ValueError, match="no flow between all vertices"):
        concurrent_flow(3, [(0, 1), (1, 0)], [[0], [1]], [1.0, 1.0], {0: {2: 1.0}})
