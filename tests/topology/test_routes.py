"""Routes: the documented order of preference, even use of parallel ways, and large fabrics on demand."""

from __future__ import annotations

import itertools
from collections import Counter

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoccl.topology import Link, Topology, TopologyError, Vertex, VertexKind
from topoccl.topology.load import load
from topoccl.topology.routes import Routes, describe_path


def way(spec: str, src: int, dst: int, rail: int = 0) -> str:
    topology = load(spec)
    return describe_path(topology, Routes(topology).path(src, dst, rail))


@pytest.mark.parametrize(
    ("spec", "src", "dst", "expected"),
    [
        ("cluster:4x2", 0, 1, "h0.s0 -> h0 -> h0.s1"),
        ("cluster:4x2", 1, 6, "h0.s1 -> h0 -> h0.eth0 -> sw0 -> h3.eth0 -> h3 -> h3.s0"),
        ("cluster:4x2,placement=round_robin", 0, 4, "h0.s0 -> h0 -> h0.s1"),
        ("racks:2x2x1", 0, 2, "h0.s0 -> h0 -> h0.eth0 -> rack0 -> core -> rack1 -> h2.eth0 -> h2 -> h2.s0"),
        ("ring:8", 0, 3, "h0.s0 -> h1.s0 -> h2.s0 -> h3.s0"),
        ("ring:8", 1, 7, "h1.s0 -> h0.s0 -> h7.s0"),
        ("ring:5,ranks=2", 0, 4, "h0.s0 -> h0 -> h0.eth0 -> h1.eth0 -> h1 -> h1.eth1 -> h2.eth0 -> h2 -> h2.s0"),
        ("dgx-a100:2", 0, 5, "h0.s0 -> h0.nvswitch -> h0.s5"),
        ("dgx-a100:2", 3, 12, "h0.s3 -> h0.pcie3 -> h0.ib3 -> ib0 -> h1.ib4 -> h1.pcie4 -> h1.s4"),
    ],
)
def test_known_ways(spec: str, src: int, dst: int, expected: str) -> None:
    assert way(spec, src, dst) == expected


def test_accelerators_relay_once_rather_than_leave_the_host() -> None:
    """GPUs 0 and 5 of a DGX-1V share no NVLink; two machines have NICs, and still the way is one relay inside."""
    relayed = way("dgx-1v:2", 0, 5).split(" -> ")
    assert relayed[0] == "h0.s0"
    assert relayed[2] == "h0.s5"
    assert relayed[1] in ("h0.s1", "h0.s4")


def test_an_accelerator_that_owns_the_right_nic_relays_between_rails() -> None:
    ways = way("dgx-a100:2,fabric=rails", 0, 9).split(" -> ")
    assert "ib0" in ways or "ib1" in ways
    assert sum(".s" in vertex for vertex in ways) == 3
    assert "h1.s0" in ways or "h0.s1" in ways


def test_local_ranks_share_equal_nics_and_rails_reach_each() -> None:
    topology = load("cluster:2x4,nics=2")
    routes = Routes(topology)
    exits: Counter[str] = Counter()
    for src in range(4):
        for link in routes.path(src, 4 + src):
            if topology.links[link].kind == "net":
                exits[topology.links[link].name] += 1
    assert set(exits.values()) == {2}
    assert len(exits) == 4
    assert routes.rails(0, 4) == 2
    seen = {describe_path(topology, routes.path(0, 4, rail)) for rail in range(2)}
    assert len(seen) == 2
    assert routes.path(0, 4, 2) == routes.path(0, 4, 0)


def test_the_faster_of_two_rails_comes_first_for_every_rank() -> None:
    spec = "rails:2x2,net=100Mbit/s+200Mbit/s"
    assert all("eth1" in way(spec, src, 2) for src in (0, 1))
    assert all("eth0" in way(spec, src, 2, rail=1) for src in (0, 1))


def test_spines_of_a_fat_tree_carry_a_shift_without_sharing() -> None:
    """D-mod-k: when every host sends to its like in the next pod, no link between switches carries two messages."""
    topology = load("fattree:k=4")
    loads = Routes(topology).link_bytes((host, (host + 4) % 16, 1.0) for host in range(16))
    assert loads.max() == 1.0
    assert loads.sum() == 16 * 10


def test_every_dgx_rail_of_a_pair() -> None:
    topology = load("dgx-a100:2")
    routes = Routes(topology)
    assert routes.rails(0, 8) == 8
    assert len({routes.path(0, 8, rail) for rail in range(8)}) == 8
    assert routes.path(0, 8, 8) == routes.path(0, 8, 0)


def test_figures_of_a_path() -> None:
    topology = load("cluster:2x2,net=200Mbit/s,latency=20us")
    routes = Routes(topology)
    path = routes.path(0, 2)
    assert routes.bottleneck(path) == 25e6
    assert routes.latency(path) == pytest.approx(2 * (1e-6 + 0.5e-6 + 20e-6))
    assert routes.path(1, 1) == ()
    assert routes.bottleneck(()) == float("inf")
    assert routes.same_host(0, 1)
    assert not routes.same_host(1, 2)
    assert routes.link_kind_bytes([(0, 2, 100.0), (0, 1, 7.0)]) == {"shm": 214.0, "pcie": 200.0, "net": 200.0}


def test_no_route_names_both_ranks() -> None:
    vertices = [v for h in "ab" for v in (Vertex(h, VertexKind.HOST), Vertex(f"{h}.0", VertexKind.SLOT, h))]
    topology = Topology("apart", vertices, [Link("a.0", "a", 1.0), Link("a", "a.0", 1.0)])
    with pytest.raises(TopologyError, match=r"'apart': no route from rank 0 \(a\.0\) to rank 1 \(b\.0\)"):
        Routes(topology).path(0, 1)
    with pytest.raises(TopologyError, match="no route from rank 0 to rank 2: 2 is not among 2 ranks"):
        Routes(topology).path(0, 2)


SPECS = st.sampled_from(
    [
        "ring:7",
        "line:5",
        "torus:3x4",
        "mesh:2x3,ranks=2",
        "cluster:3+2+1",
        "cluster:3x2,nics=3",
        "rails:3x2",
        "racks:3x2x2",
        "fattree:k=4",
        "dgx-1v:2",
        "dgx-a100:2,fabric=rails",
    ]
)


@settings(deadline=None)
@given(SPECS, st.data())
def test_a_path_is_a_chain_without_loops_for_any_placement(spec: str, data: st.DataObject) -> None:
    fabric = load(spec)
    order = data.draw(st.permutations(range(fabric.num_ranks)))
    topology = fabric.place(order)
    routes = Routes(topology)
    src, dst, rail = (data.draw(st.integers(0, topology.num_ranks - 1)) for _ in range(3))
    path = [topology.links[link] for link in routes.path(src, dst, rail)]
    stops = [topology.slots[src], *(link.dst for link in path)]
    assert all(a.dst == b.src for a, b in itertools.pairwise(path))
    assert stops[-1] == topology.slots[dst]
    assert len(set(stops)) == len(stops)
    assert Routes(topology).path(src, dst, rail) == routes.path(src, dst, rail)


@settings(deadline=None)
@given(st.sampled_from(["torus:4x4", "mesh:3x4", "ring:9"]), st.data())
def test_grids_are_crossed_by_shortest_ways(spec: str, data: st.DataObject) -> None:
    topology = load(spec)
    src, dst = (data.draw(st.integers(0, topology.num_ranks - 1)) for _ in range(2))
    hops = nx.shortest_path_length(topology.graph, topology.slots[src], topology.slots[dst])
    assert len(Routes(topology).path(src, dst)) == hops


def test_a_thousand_hosts_need_no_search_over_all_pairs() -> None:
    topology = load("cluster:1024x8")
    routes = Routes(topology)
    paths = [routes.path(rank, (rank + 8) % 8192) for rank in range(0, 8192, 64)]
    assert {len(path) for path in paths} == {6}
    assert len(routes._trees) <= 2 * len(paths) + 1  # two small trees a pair and one for the switch
    assert max(len(tree.keys) for tree in routes._trees.values()) <= 10


@pytest.mark.parametrize("spec", ["torus:4x5", "mesh:3x4,ranks=2", "ring:9", "torus:2x3x3,ranks=2"])
def test_searches_that_stop_early_find_the_same(spec: str) -> None:
    """Whatever was asked before, near or far, the way is the one that a fresh search of the whole graph finds."""
    topology = load(spec)
    ranks = range(topology.num_ranks)
    near_first, far_first = Routes(topology), Routes(topology)
    for src in ranks:
        for dst in ranks:
            near_first.path(src, dst)
        for dst in reversed(ranks):
            far_first.path(src, dst)
    for src in ranks:
        for dst in ranks:
            fresh = Routes(topology).path(src, dst)
            assert near_first.path(src, dst) == far_first.path(src, dst) == fresh
            assert len(set(fresh)) == len(fresh)
