"""Grids of hosts without switches, and what the algorithms for them promise in their docstrings."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from placements import cluster, messages, rank_traffic

from topoccl.algorithms import registry
from topoccl.algorithms.builders.swing import partner, spreading, tree_parents
from topoccl.algorithms.cost.model import predict
from topoccl.algorithms.grids import host_grid, host_wiring, rank_grid
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.generators import generate


@pytest.mark.parametrize(
    ("text", "shape"),
    [("torus:3x5", (3, 5)), ("torus:4x4", (4, 4)), ("mesh:2x3", (2, 3)), ("torus:2x3x4", (2, 3, 4)), ("mesh:4x3x3", (3, 3, 4))],
)
def test_a_grid_is_found_whatever_the_order_of_hosts(text: str, shape: tuple[int, ...]) -> None:
    topology = generate(text)
    shuffled = topology.place(np.random.default_rng(1).permutation(topology.num_ranks).tolist())
    for one in (topology, shuffled):
        grid = host_grid(one)
        wiring = host_wiring(one)
        assert grid is not None
        assert wiring is not None
        assert grid.shape == shape
        assert sorted(grid.flat) == list(range(topology.num_ranks))
        for axis in range(grid.ndim):
            lines = np.moveaxis(grid, axis, -1).reshape(-1, grid.shape[axis])
            assert all(wiring.has_edge(a, b) for line in lines.tolist() for a, b in pairwise(line))


@pytest.mark.parametrize("text", ["ring:8", "line:4", "cluster:4x2", "cluster:1x8", "fattree:2x2x2", "dgx-a100:2"])
def test_what_is_no_grid(text: str) -> None:
    assert host_grid(generate(text)) is None


@pytest.mark.parametrize("text", ["cluster:4x2", "cluster:1x8", "dgx-a100:2"])
def test_hosts_behind_switches_are_not_wired_to_each_other(text: str) -> None:
    topology = generate(text)
    assert host_wiring(topology) is None
    for name in ("swing", "torus"):
        assert registry.by_name("all_reduce", name).reject(CollectiveSpec("all_reduce", topology.num_ranks), topology) is not None


def test_a_missing_link_is_no_mesh() -> None:
    mesh = generate("mesh:3x3")
    gone = (mesh.slots[0], mesh.slots[1])
    links = tuple(link for link in mesh.links if {link.src, link.dst} != set(gone))
    assert len(links) == len(mesh.links) - 2
    broken = type(mesh)(mesh.name, tuple(mesh.vertices.values()), links, mesh.slots)
    assert host_wiring(broken) is not None
    assert host_grid(broken) is None


@pytest.mark.parametrize(("ranks", "shape"), [(12, (4, 3)), (7, (7,)), (16, (4, 4)), (2, (2,))])
def test_ranks_anywhere_are_folded_into_a_grid(ranks: int, shape: tuple[int, ...]) -> None:
    grid = rank_grid(cluster([ranks]))
    assert grid.shape == shape
    assert sorted(grid.flat) == list(range(ranks))


@pytest.mark.parametrize("p", [*range(2, 66, 2), 96, 100, 128])
def test_swing_partners_are_pairs_and_reach_all_once(p: int) -> None:
    for step in range((p - 1).bit_length()):
        assert all(partner(partner(r, step, p), step, p) == r for r in range(p))
    got = [{r} for r in range(p)]
    for moves in spreading(p):
        for _, peer, blocks in moves:
            assert not got[peer] & set(blocks)
            got[peer] |= set(blocks)
    assert all(len(blocks) == p for blocks in got)


@pytest.mark.parametrize("p", range(1, 40))
def test_bine_trees_span_in_logarithmic_depth(p: int) -> None:
    parents = tree_parents(p)
    for at in range(p):
        depth = 0
        while at:
            at, depth = parents[at], depth + 1
        assert depth <= max(1, (p - 1).bit_length())


@pytest.mark.parametrize("p", [4, 8, 16, 32])
def test_swing_sends_the_least_in_one_message_a_round(p: int) -> None:
    topology = generate(f"ring:{p}")
    schedule = registry.by_name("all_reduce", "swing").build(CollectiveSpec("all_reduce", p), topology)
    assert set(rank_traffic(schedule).values()) == {2 * Fraction(p - 1, p)}
    assert sum(1 for _ in messages(schedule)) == 2 * p * (p.bit_length() - 1)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_torus_sends_the_least_between_neighbours_only(channels: int) -> None:
    topology = generate("torus:3x5")
    wiring = host_wiring(topology)
    assert wiring is not None
    schedule = registry.by_name("all_reduce", "torus").build(CollectiveSpec("all_reduce", 15), topology, channels=channels)
    assert set(rank_traffic(schedule).values()) == {2 * Fraction(14, 15)}
    assert all(wiring.has_edge(a, b) for a, b, _ in messages(schedule))
    assert sum(1 for _ in messages(schedule)) == 15 * 2 * (2 + 4) * channels


def test_four_channels_use_all_links_of_a_torus() -> None:
    topology = generate("torus:4x4")
    spec = CollectiveSpec("all_reduce", 16)
    torus = registry.by_name("all_reduce", "torus")
    ring = registry.by_name("all_reduce", "ring")
    four = predict(torus.build(spec, topology, channels=4), topology, nbytes=64 << 20).seconds
    assert four < 0.52 * predict(ring.build(spec, topology, channels=2), topology, nbytes=64 << 20).seconds
