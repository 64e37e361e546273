"""Orders of hosts and ranks, and rails: near ones are next to each other on every kind of fabric."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from placements import cluster, placements, round_robin, uneven_placements

from topoccl.algorithms.layout import distances, host_groups, rail_owners, ring_order
from topoccl.topology.generators import generate
from topoccl.topology.graph import Topology
from topoccl.topology.routes import Routes


def hops(topology: Topology) -> list[float]:
    """The distance from each host to the next one around the order, in units of the shortest between any two."""
    heads = [group[0] for group in host_groups(topology)]
    matrix = distances(topology, heads)
    return [float(matrix[i, (i + 1) % len(heads)] / matrix[matrix > 0].min()) for i in range(len(heads))]


def shuffled(topology: Topology, seed: int = 1) -> Topology:
    order = list(range(topology.num_ranks))
    random.Random(seed).shuffle(order)
    return topology.place(order)


@pytest.mark.parametrize("p", range(1, 34))
def test_groups_hold_every_rank_once_host_by_host(p: int) -> None:
    for topology in placements(p).values():
        groups = host_groups(topology)
        assert sorted(sorted(group) for group in groups) == sorted(sorted(group) for group in topology.ranks_by_host)
        for channel in range(5):
            order = ring_order(topology, channel)
            assert sorted(order) == list(range(p))
            host = [topology.host_of_rank[rank] for rank in order]
            assert sum(a != b for a, b in zip(host, host[1:] + host[:1], strict=True)) == (len(groups) if len(groups) > 1 else 0)


def test_placement_does_not_change_the_order_of_slots() -> None:
    for expression in ("cluster:4x3", "racks:2x4x2", "torus:3x4", "cluster:3+1+2"):
        plain = generate(expression)
        other = shuffled(plain)
        slots = [[plain.slots[rank] for rank in group] for group in host_groups(plain)]
        assert [[other.slots[rank] for rank in group] for group in host_groups(other)] == slots


@pytest.mark.parametrize(
    "expression", ["ring:8", "ring:5", "torus:4x4", "torus:3x3", "torus:3x5", "torus:8x8", "mesh:4x5", "mesh:2x3", "torus:2x3x4"]
)
def test_consecutive_hosts_are_adjacent_where_the_fabric_has_a_closed_tour(expression: str) -> None:
    topology = shuffled(generate(expression))
    assert max(hops(topology)) == pytest.approx(1)


@pytest.mark.parametrize("expression", ["mesh:3x3", "mesh:3x5", "mesh:5x5"])
def test_an_odd_mesh_has_one_detour(expression: str) -> None:
    # Coloured like a chess board, an odd mesh has no closed tour of single hops: one more hop is the least.
    topology = shuffled(generate(expression))
    assert sum(hops(topology)) == pytest.approx(topology.num_ranks + 1)


@pytest.mark.parametrize("expression", ["line:8", "ring:6", "line:3", "racks:3x2x1", "cluster:5x1", "fattree:2x3x1"])
def test_one_ring_crosses_each_network_link_once_per_direction(expression: str) -> None:
    topology = shuffled(generate(expression))
    order = ring_order(topology)
    loads = Routes(topology).link_bytes([(a, b, 1.0) for a, b in zip(order, order[1:] + order[:1], strict=True)])
    used = [load for load, link in zip(loads, topology.links, strict=True) if link.kind == "net"]
    assert used
    assert max(used) == 1


@pytest.mark.parametrize("expression", ["racks:3x4x2", "fattree:3x4x2", "racks:5x16x1", "fattree:5x16x1"])
def test_racks_are_contiguous(expression: str) -> None:
    topology = shuffled(generate(expression))
    racks, hosts = (int(n) for n in expression.partition(":")[2].split("x")[:2])
    rack_of = {host: at // hosts for at, host in enumerate(topology.hosts)}
    met = [rack_of[topology.host_of_rank[group[0]]] for group in host_groups(topology)]
    assert sum(a != b for a, b in zip(met, met[1:] + met[:1], strict=True)) == racks


def test_a_large_torus_is_walked_along_its_links() -> None:
    topology = shuffled(generate("torus:16x16"))
    assert topology.num_ranks == 256
    order = ring_order(topology)
    routes = Routes(topology)
    lengths = [len(routes.path(a, b)) for a, b in itertools.pairwise(order)]
    assert lengths.count(min(lengths)) >= 0.9 * len(lengths)


def test_ranks_of_a_host_follow_its_links() -> None:
    topology = shuffled(generate("dgx-1v:1"))
    order = ring_order(topology)
    matrix = distances(topology, order)
    assert matrix[np.arange(8), (np.arange(8) + 1) % 8].max() < np.median(matrix[matrix > 0])


def test_channels_leave_hosts_at_different_ranks_in_both_directions() -> None:
    topology = round_robin([4, 4, 4])
    host = topology.host_of_rank

    def exits(channel: int) -> set[int]:
        order = ring_order(topology, channel)
        return {a for a, b in zip(order, order[1:] + order[:1], strict=True) if host[a] != host[b]}

    assert ring_order(topology, 1) == ring_order(topology, 0)[::-1]
    for channel in range(4):
        assert len(exits(channel)) == 3
        assert all(exits(channel).isdisjoint(exits(other)) for other in range(channel))
    assert exits(4) == exits(0)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(topology=uneven_placements())
def test_rails(topology: Topology) -> None:
    owners, groups = rail_owners(topology), host_groups(topology)
    rails = min(map(len, groups))
    for own, group in zip(owners, groups, strict=True):
        assert len(own) == len(set(own)) == rails
        assert set(own) <= set(group)


def test_rails_spread_over_a_large_host() -> None:
    topology = cluster([8, 2])
    assert rail_owners(topology) == ((0, 4), (8, 9))
