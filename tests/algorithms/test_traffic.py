"""Ways of all_to_all over hosts without switches: whole, balanced, and near what the graph allows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from placements import messages

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.cost.model import predict
from topoccl.algorithms.registry import by_name
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.traffic import routed, wires
from topoccl.algorithms.verify import verify
from topoccl.topology.generators import generate
from topoccl.topology.graph import Link, Topology, Vertex, VertexKind

ROUTED: Algorithm = by_name("all_to_all", "routed")


def wired(edges: list[tuple[int, int]], sizes: list[int], rates: list[float]) -> Topology:
    """Hosts with ``sizes`` ranks each and a cable for each of ``edges``, both ways."""
    vertices, links, slots = [], [], []
    for host, size in enumerate(sizes):
        vertices.append(Vertex(f"h{host}", VertexKind.HOST))
        for rank in range(size):
            slots.append(f"h{host}.s{rank}")
            vertices.append(Vertex(slots[-1], VertexKind.SLOT, f"h{host}"))
            links += [Link(slots[-1], f"h{host}", 1e11, 1e-7, "shm"), Link(f"h{host}", slots[-1], 1e11, 1e-7, "shm")]
    for (a, b), rate in zip(edges, rates, strict=True):
        links += [Link(f"h{a}", f"h{b}", rate, 1e-6, "net"), Link(f"h{b}", f"h{a}", rate, 1e-6, "net")]
    return Topology("wired", vertices, links, slots)


@st.composite
def wired_hosts(draw: st.DrawFn) -> Topology:
    hosts = draw(st.integers(2, 6))
    edges = {(draw(st.integers(0, host - 1)), host) for host in range(1, hosts)}  # a tree, so that all are joined
    more = [(a, b) for a in range(hosts) for b in range(a + 1, hosts) if (a, b) not in edges]
    if more:
        edges |= set(draw(st.lists(st.sampled_from(more), max_size=4)))
    sizes = draw(st.lists(st.integers(1, 2), min_size=hosts, max_size=hosts))
    rates = draw(st.lists(st.sampled_from([1e9, 2e9, 5e9]), min_size=len(edges), max_size=len(edges)))
    topology = wired(sorted(edges), sizes, rates)
    return topology.place(draw(st.permutations(range(topology.num_ranks))))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(topology=wired_hosts(), chunks=st.integers(1, 3), uneven=st.booleans())
def test_proved_on_any_graph(topology: Topology, chunks: int, uneven: bool) -> None:
    spec = CollectiveSpec("all_to_all", topology.num_ranks, uneven=uneven)
    assert ROUTED.reject(spec, topology) is None
    schedule = ROUTED.build(spec, topology, chunks=chunks)
    verify(schedule, segments=(1, 3))
    found = wires(topology)
    assert found is not None
    number = {rank: host for host, ranks in enumerate(topology.ranks_by_host) for rank in ranks}
    for source, target, _ in messages(schedule):
        assert number[source] == number[target] or (number[source], number[target]) in found.links


@pytest.mark.parametrize("text", ["torus:3x5", "mesh:2x3", "ring:5", "ring:8", "line:4"])
def test_ways_lead_from_host_to_host(text: str) -> None:
    topology = generate(text)
    found = wires(topology)
    assert found is not None
    ways = routed(topology, 4)
    assert len(ways) == topology.num_ranks * (topology.num_ranks - 1)
    for (source, target), paths in ways.items():
        assert len(paths) == 4
        for path in paths:
            assert (path[0], path[-1]) == (source, target)
            assert len(set(path)) == len(path)
            assert all(arc in found.links for arc in pairwise(path))


# Blocks that the busiest cable must carry in one direction: half of the pairs across the narrowest cut, or all hops over all cables.
@pytest.mark.parametrize(
    ("text", "chunks", "least"),
    [
        ("ring:8", 2, 8.0),
        ("ring:5", 1, 3.0),
        ("line:4", 1, 4.0),
        ("mesh:2x3", 1, 4.0),
        ("mesh:3x3", 1, 6.0),
        ("torus:4x4", 4, 8.0),
        ("torus:3x3", 2, 3.0),
    ],
)
def test_the_busiest_cable_carries_little_more_than_it_must(text: str, chunks: int, least: float) -> None:
    topology = generate(text)
    load: dict[tuple[int, int], float] = {}
    for paths in routed(topology, chunks).values():
        for path in paths:
            for arc in pairwise(path):
                load[arc] = load.get(arc, 0.0) + 1 / chunks
    assert least <= max(load.values()) <= least * 1.13


# Routing tables send all chunks of a pair one way: on even rings and tori, and on wide meshes, some cables carry more than need be.
@pytest.mark.parametrize(
    ("text", "gain"), [("mesh:2x3", 1.0), ("mesh:3x3", 1.0), ("torus:3x3", 1.0), ("ring:8", 1.1), ("mesh:4x4", 1.1), ("torus:4x4", 1.15)]
)
def test_it_is_no_slower_than_the_networks_own_routes(text: str, gain: float) -> None:
    topology = generate(text)
    spec = CollectiveSpec("all_to_all", topology.num_ranks)
    mine = min(predict(ROUTED.build(spec, topology, chunks=k), topology, nbytes=64 << 20).seconds for k in (1, 4))
    others = [
        predict(by_name("all_to_all", name).build(spec, topology), topology, nbytes=64 << 20).seconds for name in ("direct", "pairwise")
    ]
    assert mine * gain < min(others) * 1.001


def test_slow_cables_are_spared() -> None:
    """Two ways around a square: the one over the slow cable carries less."""
    topology = wired([(0, 1), (1, 2), (2, 3), (0, 3)], [1, 1, 1, 1], [4e9, 4e9, 1e9, 4e9])
    load = np.zeros((4, 4))
    for paths in routed(topology, 4).values():
        for path in paths:
            for arc in pairwise(path):
                load[arc] += 1
    assert load[2, 3] < load[0, 1] / 2


def test_what_is_refused() -> None:
    switched = generate("cluster:4x2")
    assert "one way for each message" in str(ROUTED.reject(CollectiveSpec("all_to_all", 8), switched))
    with pytest.raises(ValueError, match="hosts are not wired to each other"):
        routed(switched, 1)
    many = generate("ring:37")
    assert ROUTED.reject(CollectiveSpec("all_to_all", 37), many) == "37 hosts: ways are looked for among up to 36"
    with pytest.raises(ValueError, match="routed: chunks is 0; expected a whole number, from 1 to 128"):
        ROUTED.build(CollectiveSpec("all_to_all", 8), generate("ring:8"), chunks=0)
