"""Forests: right on any graph, as fast as the bound where trees are exact, and as fast as they say elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_fabrics import bare, fabrics

from topoccl.algorithms.builders import forest as builder
from topoccl.algorithms.cost import CostModel, block_bytes
from topoccl.algorithms.forest import Forest, refuses, synthesise
from topoccl.algorithms.forest.few import few_trees
from topoccl.algorithms.forest.packing import pack
from topoccl.algorithms.forest.scaling import GOOD
from topoccl.algorithms.forest.splitting import Splitter, _proportional, feasible
from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.verify import verify
from topoccl.topology import Topology
from topoccl.topology.bounds import certificate
from topoccl.topology.bounds.exchange import best_exchange
from topoccl.topology.bounds.network import by_host, network_of
from topoccl.topology.load import load

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce")
ENDLESS = 1 << 50
HANDED = Path(__file__).resolve().parents[3] / "shared" / "topologies"


def made(topology: Topology, collective: str, root: int, k: int = 0) -> tuple[Forest, Schedule]:
    """The forest and its schedule, proved."""
    where = root if collective in ("broadcast", "reduce") else None
    forest = synthesise(topology, collective, where, k)
    schedule = builder.build(CollectiveSpec(collective, topology.num_ranks, where), topology, k=k)
    verify(schedule)
    verify(schedule, in_place=True)
    return forest, schedule


def pace(schedule: Schedule, topology: Topology) -> float:
    """Seconds per byte of a call in infinitely many segments, when nothing but links takes time."""
    model = CostModel(schedule, topology)
    return model.floor(block_bytes(schedule.spec, ENDLESS), ENDLESS) / ENDLESS


def check(topology: Topology, collective: str, root: int = 0, k: int = 0) -> float:
    """The forest's share of the bound, which its schedule keeps to, costed by the steps themselves."""
    forest, schedule = made(topology, collective, root, k)
    bound = float(certificate(topology, collective, schedule.spec.root).seconds_per_byte)
    assert bound / pace(schedule, topology) == pytest.approx(forest.share, rel=1e-6)
    assert forest.share <= 1 + 1e-9
    return forest.share


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    "spec",
    [
        *("ring:5", "ring:8", "torus:3x3", "mesh:2x3", "mesh:2x3,ranks=2", "line:4", "dgx-1v:1", "dgx-a100:1"),
        *("cluster:4x1", "cluster:4x2,placement=round_robin", "cluster:3+2+1", "cluster:4x1,net=1GB/s+1GB/s+1GB/s+250MB/s"),
        *("racks:2x2x2,oversub=4", "rails:4x2,net=1GB/s+500MB/s", "cluster:2x2,nics=2", "cluster:2x1"),
    ],
)
def test_they_reach_the_bound(spec: str, collective: str) -> None:
    topology = load(f"{spec},latency=0")
    for root in {0, topology.num_ranks - 1} if collective in ("broadcast", "reduce") else {0}:
        assert check(topology, collective, root) == pytest.approx(1, rel=1e-9)


def test_few_trees_on_two_boxes() -> None:
    """ForestColl's figure for one tree per root on 2 x 8 A100: 342.9 of 346.7 GB/s."""
    assert check(load("dgx-a100:2"), "all_gather", k=1) == pytest.approx(342.9 / 346.7, rel=1e-3)
    assert check(load("dgx-a100:2"), "all_reduce") > 0.985


def test_large_clusters_are_decomposed() -> None:
    topology = load("dgx-a100:8")
    forest = synthesise(topology, "all_gather")
    assert (forest.level, len(forest.pieces)) == ("hosts", 64)
    assert forest.share == pytest.approx(1)
    assert refuses(load("cluster:32x8")) == "32 hosts; trees span at most 24 hosts or 64 ranks"
    assert refuses(load("cluster:1x80")) == "80 ranks on one host; trees span at most 64 ranks"


def test_roots_are_spread() -> None:
    """As many as can be: one root alone would make deep trees."""
    star = synthesise(load("cluster:4x1,net=1GB/s+1GB/s+1GB/s+250MB/s"), "all_reduce")
    assert {piece.up.root for piece in star.pieces if piece.up is not None} >= {0, 1, 2}


def test_few_equal_trees() -> None:
    """The linear programme has 13 of six weights for a mesh."""
    forest = synthesise(load("mesh:2x3"), "all_reduce")
    assert forest.share == pytest.approx(1)
    assert [piece.weight for piece in forest.pieces] == [1] * 7
    assert max(tree.depth() for piece in forest.pieces for tree in (piece.up, piece.down) if tree is not None) == 3


@settings(deadline=None, derandomize=True, max_examples=20)
@given(fabrics(switches=0, parallel=False))
def test_few_equal_trees_on_any_graph(topology: Topology) -> None:
    network = by_host(topology, network_of(topology))
    rate = best_exchange(network, publish=False).rate
    pairs = few_trees(network, rate, 9)
    if pairs is None:
        return
    used = dict.fromkeys(network.arcs, 0)
    for up, down in pairs:
        assert up.root == down.root
        for vertex, above in up.parent.items():
            used[vertex, above] += 1
        for vertex, above in down.parent.items():
            used[above, vertex] += 1
    for arc, width in zip(network.arcs, network.capacity, strict=True):
        assert used[arc] * rate * GOOD <= width * len(pairs)
    assert any(used[arc] * rate >= width * len(pairs) for arc, width in zip(network.arcs, network.capacity, strict=True))


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match="k is -1; expected a whole number, at least 0"):
        builder.build(CollectiveSpec("all_gather", 4), load("ring:4"), k=-1)
    with pytest.raises(ValueError, match="does not build all_to_all"):
        builder.build(CollectiveSpec("all_to_all", 4), load("ring:4"))
    assert builder.build(CollectiveSpec("all_gather", 1), load("cluster:1x1")).num_steps == 1


def test_nothing_passes_through_a_switch_with_one_neighbour() -> None:
    assert _proportional({3: 8}, {3: 8}, set()) == {}


@settings(deadline=None, derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(fabrics(switches=0, parallel=False), st.sampled_from(COLLECTIVES), st.integers(0, 4))
def test_any_graph_of_ranks_exactly(topology: Topology, collective: str, root: int) -> None:
    """With as many trees as it takes nothing is lost; with few, what is said."""
    root %= topology.num_ranks
    assert check(topology, collective, root, k=5000) == pytest.approx(1, rel=1e-9)
    assert check(topology, collective, root, k=1) > 0.2


@settings(deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(fabrics(switches=3), st.sampled_from(COLLECTIVES))
def test_any_graph_with_switches(topology: Topology, collective: str) -> None:
    """Messages take one way through switches, so that some of them may be lost; never more than the forest says."""
    assert check(topology, collective) > 0.1


@settings(deadline=None, derandomize=True, max_examples=60)
@given(fabrics(switches=3), st.booleans())
def test_splitting_keeps_every_tree_feasible(topology: Topology, refine: bool) -> None:
    from topoccl.topology.bounds.cuts import tightest
    from topoccl.topology.bounds.network import network_of

    network = network_of(topology)
    weights = dict.fromkeys(network.ranks, 1)
    blocks, capacity, _ = tightest(network, weights, network.ranks)
    capacities = {arc: width * blocks for arc, width in zip(network.arcs, network.capacity, strict=True)}
    splitter = Splitter(capacities, dict.fromkeys(network.ranks, capacity), network.ranks, refine)
    splitter.run()
    assert {vertex for arc in splitter.capacities for vertex in arc} <= set(network.ranks)
    assert feasible(splitter.capacities, splitter.weights, network.ranks)
    left = dict(splitter.capacities)
    total = dict.fromkeys(network.ranks, 0)
    for tree in pack(splitter.capacities, splitter.weights, list(network.ranks)):
        assert set(tree.parent) == set(network.ranks) - {tree.root}
        total[tree.root] += tree.weight
        for head, tail in tree.parent.items():
            left[tail, head] -= tree.weight
    assert min(left.values(), default=0) >= 0
    assert total == splitter.weights


def test_packing_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="fits any more"):
        pack({(0, 1): 1, (1, 0): 1}, {0: 2}, [0, 1])


@pytest.mark.skipif(not HANDED.is_dir(), reason="the collected topologies (shared/topologies) are not here")
def test_the_collected_topologies() -> None:
    found = 0
    for path in sorted(HANDED.glob("*/*")):
        try:
            topology = load(path) if path.parent.name != "msccl_xml" else bare(1, [])
        except ValueError:
            continue
        if 2 <= topology.num_ranks <= 8:
            collective = COLLECTIVES[found % len(COLLECTIVES)]
            found += 1
            assert check(topology, collective) > 0.7, (path.name, collective)
    assert found > 30
