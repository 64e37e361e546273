"""Exact bounds: the published optima to the last digit, and proofs that hold when they are checked by other means."""

from __future__ import annotations

import itertools
import re
from fractions import Fraction as F

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_fabrics import bare, fabrics

from topoccl.topology import Topology, TopologyError
from topoccl.topology.bounds import certificate, lower_bound
from topoccl.topology.bounds.exchange import best_exchange
from topoccl.topology.bounds.flow import FlowGraph
from topoccl.topology.bounds.network import by_host, network_of, unit_of
from topoccl.topology.graph import VertexKind
from topoccl.topology.load import load

STAR = "memory=1TB/s,net=1GB/s"


def one_way_ring(ranks: int) -> Topology:
    return bare(ranks, [(a, (a + 1) % ranks, 1) for a in range(ranks)])


@pytest.mark.parametrize(
    ("spec", "unit", "expected"),
    [
        ("ring:8", None, F(7, 2)),
        ("ring:5", None, F(2)),
        ("torus:4x4", None, F(15, 4)),
        ("torus:3x5", None, F(7, 2)),
        ("dgx-1v:1", None, F(7, 6)),
        ("dgx-a100:1", 10**9, F(7, 300)),
        ("dgx-a100:2", 10**9, F(3, 65)),
        ("dgx-a100:4", 10**9, F(3, 25)),
        ("cluster:4+2,net=10GB/s,memory=100GB/s", 10**9, F(2, 5)),
    ],
)
def test_all_gather_anchors(spec: str, unit: int | None, expected: F) -> None:
    topology = load(spec)
    for collective in ("all_gather", "reduce_scatter"):
        found = certificate(topology, collective)
        assert found.searched
        assert found.inverse_throughput(None if unit is None else F(unit)) == expected
        check_cut(topology, found.cut, found.seconds_per_byte)


def test_a_one_way_ring() -> None:
    assert certificate(one_way_ring(8), "all_gather").inverse_throughput() == 7


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("mesh:2x3,net=1GB/s", F(5, 7)),
        (f"cluster:4x1,{STAR}", F(3, 2)),
        (f"cluster:4x2,{STAR}", F(3, 2)),
        (f"cluster:4x1,{STAR}+1GB/s+1GB/s+250MB/s", F(4)),
        ("ring:5,net=1GB/s", F(4, 5)),
        ("ring:8,net=1GB/s", F(7, 8)),
        ("torus:4x4,net=1GB/s", F(15, 32)),
        ("line:4,net=1GB/s", F(1)),
        ("dgx-a100:2,nvlink=12GB/s,net=1GB/s", F(30, 16 * 13)),
    ],
)
def test_all_reduce_anchors(spec: str, expected: F) -> None:
    topology = load(spec)
    found = certificate(topology, "all_reduce")
    assert found.searched
    assert found.inverse_throughput(F(10**9)) == expected
    check_cut(topology, found.cut, found.seconds_per_byte)


def check_cut(topology: Topology, cut: object, seconds: F) -> None:
    """The links named have the bandwidth that the bound divides by."""
    weights = cut.weights or [1] * len(cut.links)
    rate = sum(weight * F(topology.links[link].bandwidth) for link, weight in zip(cut.links, weights, strict=True))
    assert seconds == cut.share / rate


def test_rooted_collectives() -> None:
    topology = load("cluster:3x2,net=1GB/s+250MB/s+500MB/s,memory=100GB/s")
    assert certificate(topology, "broadcast", 0).inverse_throughput(F(10**9)) == 4
    assert certificate(topology, "broadcast", 0).text == "ranks 2-3 can only be reached over sw0->h1.eth0: 250MB/s"
    assert certificate(topology, "reduce", 5).text == "ranks 2-3 can only be heard over h1.eth0->sw0: 250MB/s"
    # Gathering by a rank of the slow host: 4 blocks of 6 over 250 MB/s; by a fast one its own 1 GB/s for the other four.
    assert certificate(topology, "gather", 2).seconds_per_byte == F(4, 6) / 250_000_000
    assert certificate(topology, "scatter", 0).seconds_per_byte == F(2, 6) / 250_000_000
    assert certificate(load("ring:6,net=1GB/s"), "broadcast", 0).inverse_throughput(F(10**9)) == F(1, 2)


def test_parallel_nics_and_both_directions() -> None:
    topology = load("cluster:2x2,nics=2,net=1GB/s,memory=100GB/s")
    found = certificate(topology, "all_gather")
    assert found.text == "ranks 0-1 can only be reached over sw0->h0.eth0, sw0->h0.eth1: 2GB/s"
    assert found.seconds_per_byte == F(1, 2) / (2 * 10**9)
    # A slow way back limits the reduce-scatter of the far side and the all_gather of the near one alike.
    slow = bare(2, [(0, 1, 4), (1, 0, 1)])
    assert certificate(slow, "broadcast", 0).inverse_throughput(F(1)) == F(1, 4)
    assert certificate(slow, "reduce", 0).inverse_throughput(F(1)) == 1
    assert certificate(slow, "all_reduce").inverse_throughput(F(1)) == 1


def test_in_words_and_json() -> None:
    found = certificate(load("racks:2x2x2,oversub=4,net=1GB/s"), "all_reduce")
    side, link = re.fullmatch(r"ranks (0-3|4-7) can only be reached over (.*): 500MB/s", found.text).groups()
    assert link in {"0-3": ("rack1->core", "core->rack0"), "4-7": ("rack0->core", "core->rack1")}[side]
    row = certificate(load("ring:8"), "all_gather").as_dict()
    assert (row["inverse_throughput"], row["unit_bandwidth"], row["searched"]) == ("7/2", 1.25e9, True)
    assert row["cut"] == {"ranks": [0], "links": ["h1.s0->h0.s0", "h7.s0->h0.s0"], "direction": "into"}
    assert row["seconds_per_byte"] == pytest.approx(7 / 2 / 8 / 1.25e9)
    assert certificate(load("cluster:1x1"), "all_reduce").text == "one rank: nothing to send"
    assert certificate(load("ring:8"), "all_to_all").searched
    assert not certificate(load("ring:8"), "all_to_all", search=False).searched


def test_what_nothing_reaches() -> None:
    with pytest.raises(TopologyError, match="cannot be reached"):
        certificate(bare(2, [(0, 1, 1)]), "all_gather")
    with pytest.raises(TopologyError, match="no way from"):
        certificate(bare(4, [(0, 1, 1), (1, 0, 1), (2, 3, 1), (3, 2, 1)]), "broadcast", 0)


def test_units() -> None:
    assert unit_of([300e9, 25e9]) == 25 * 10**9
    assert unit_of([0.75, 0.5]) == F(1, 4)
    assert unit_of([]) == 1


def test_large_fabrics_are_not_searched() -> None:
    bound = lower_bound(load("cluster:1024x8"), "all_gather", 1 << 30)
    assert bound.seconds == pytest.approx(1023 / 1024 * 2**30 / 1.25e9)
    found = certificate(load("cluster:256x8,net=1GB/s"), "all_reduce")
    assert not found.searched
    assert found.seconds_per_byte == F(2 * 255, 256) / 10**9


@settings(deadline=None, max_examples=80)
@given(fabrics())
def test_no_cut_is_tighter(topology: Topology) -> None:
    """Against all sets of vertices."""
    ids = [v for v in topology.vertices if topology.vertices[v].kind is not VertexKind.HOST]
    p, worst, out_of = topology.num_ranks, F(0), F(0)
    for size in range(1, len(ids)):
        for inside in map(set, itertools.combinations(ids, size)):
            k = sum(slot in inside for slot in topology.slots)
            rate = sum(F(link.bandwidth) for link in topology.links if link.src in inside and link.dst not in inside)
            if 0 < k < p:
                worst, out_of = max(worst, k / rate), max(out_of, (p - k) / rate)
    assert certificate(topology, "all_gather").seconds_per_byte == worst / p
    assert certificate(topology, "reduce_scatter").seconds_per_byte == out_of / p
    graph = nx.DiGraph()
    for link in topology.links:
        known = graph.get_edge_data(link.src, link.dst, {"capacity": 0})["capacity"]
        graph.add_edge(link.src, link.dst, capacity=known + int(link.bandwidth))
    least = min(nx.maximum_flow_value(graph, topology.slots[0], slot) for slot in topology.slots[1:])
    assert certificate(topology, "broadcast", 0).seconds_per_byte == F(1, least)


@settings(deadline=None, max_examples=40)
@given(fabrics())
def test_the_best_exchange_is_proved_and_reached(topology: Topology) -> None:
    """The weights on cuts are a proof by themselves; the solution satisfies every cut of every set."""
    network = network_of(topology)
    found = best_exchange(network, publish=False)
    assert found.exact
    assert sum(found.roots) == found.rate
    assert sum(w * c for w, c in zip(found.arcs, network.capacity, strict=True)) == found.rate
    assert all(a + b <= c for a, b, c in zip(found.down, found.up, network.capacity, strict=True))
    for size in range(1, len(network.names)):
        for inside in map(set, itertools.combinations(range(len(network.names)), size)):
            if not inside.issuperset(network.ranks):
                roots = sum(x for x, v in zip(found.roots, network.ranks, strict=True) if v in inside)
                leaving = [i for i, (a, b) in enumerate(network.arcs) if a in inside and b not in inside]
                entering = [i for i, (a, b) in enumerate(network.arcs) if b in inside and a not in inside]
                assert roots <= sum(found.down[i] for i in leaving)
                assert roots <= sum(found.up[i] for i in entering)
    gather = certificate(topology, "all_gather").seconds_per_byte
    scatter = certificate(topology, "reduce_scatter").seconds_per_byte
    assert max(gather, scatter) <= 1 / (found.rate * network.unit) <= 2 * max(gather, scatter)


def test_hosts_as_ranks_bound_the_whole() -> None:
    topology = load("racks:2x2x3,oversub=2,net=1GB/s")
    whole, hosts = network_of(topology), by_host(topology, network_of(topology))
    assert len(hosts.ranks) == 4
    assert best_exchange(hosts).rate >= best_exchange(whole).rate


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 6), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 10**12)), max_size=20))
def test_flows_against_networkx(vertices: int, arcs: list[tuple[int, int, int]]) -> None:
    arcs = [(a % vertices, b % vertices, c) for a, b, c in arcs if a % vertices != b % vertices]
    graph, mine = nx.DiGraph(), FlowGraph(vertices)
    graph.add_nodes_from(range(vertices))
    for a, b, capacity in arcs:
        mine.add(a, b, capacity)
        known = graph.get_edge_data(a, b, {"capacity": 0})["capacity"]
        graph.add_edge(a, b, capacity=known + capacity)
    value = nx.maximum_flow_value(graph, 0, vertices - 1)
    assert mine.flow(0, vertices - 1, 10**20) == value
    for side in (mine.reached(0), [not far for far in mine.reaching(vertices - 1)]):
        assert (side[0], side[-1]) == (True, False)
        assert sum(c for a, b, c in arcs if side[a] and not side[b]) == value
    assert mine.flow(0, vertices - 1, value // 2) == value // 2
