"""What the symmetric builders' docstrings say about bytes on the wire, rounds and scratch, counted from their schedules."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from placements import cluster, host_traffic, messages, placements, rank_traffic, round_robin

from topoccl.algorithms import registry
from topoccl.algorithms.builders.halving_doubling import fold
from topoccl.algorithms.builders.pat import plan
from topoccl.algorithms.builders.tree import binary_tree
from topoccl.algorithms.layout import host_groups
from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

SPREAD = [cluster([2, 2]), round_robin([4, 4, 4]), cluster([3, 1, 2]), round_robin([5, 2, 4, 1]), cluster([1] * 5), cluster([1, 6])]
EVEN = [cluster([4] * 4), round_robin([4] * 4), round_robin([2] * 8), cluster([8, 8]), cluster([1] * 16)]


def name_of(topology: Topology) -> str:
    dealt = topology.num_ranks > 1 and len(topology.ranks_by_host[0]) > 1 and topology.ranks_by_host[0][1] != 1
    return "+".join(str(len(group)) for group in topology.ranks_by_host) + (" dealt" if dealt else "")


spread = pytest.mark.parametrize("topology", SPREAD, ids=name_of)
even = pytest.mark.parametrize("topology", EVEN, ids=name_of)


def made(collective: str, name: str, topology: Topology, **params: Any) -> Schedule:
    return registry.by_name(collective, name).build(CollectiveSpec(collective, topology.num_ranks), topology, **params)


def blocks(collective: str, p: int) -> int:
    """Blocks in n, the bytes that the docstrings speak of."""
    return p if collective in ("all_gather", "reduce_scatter") else 1


def hosts_of(topology: Topology) -> dict[str, int]:
    return {topology.host_of_rank[group[0]]: len(group) for group in topology.ranks_by_host}


@spread
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize(("collective", "passes"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_ring_loads_every_rank_and_host_alike(collective: str, passes: int, channels: int, topology: Topology) -> None:
    schedule = made(collective, "ring", topology, channels=channels)
    p = topology.num_ranks
    share = passes * Fraction(p - 1, p) * blocks(collective, p)
    assert set(rank_traffic(schedule).values()) == {share}
    for traffic in host_traffic(schedule, topology):
        assert set(traffic.values()) == {share}
    assert len(schedule.scratch_like) == (channels * p * min(2, p - 2) if collective == "reduce_scatter" else 0)


@spread
@pytest.mark.parametrize(
    "params", [{"inter": "ring"}, {"inter": "ring", "channels": 2}, {"inter": "direct"}, {"inter": "exchange"}], ids=str
)
def test_hierarchical_all_reduce_loads_hosts_least(params: dict[str, Any], topology: Topology) -> None:
    schedule = made("all_reduce", "hierarchical", topology, **params)
    hosts = len(topology.ranks_by_host)
    expected = Fraction(hosts - 1) if params["inter"] == "exchange" else 2 * Fraction(hosts - 1, hosts)
    for traffic in host_traffic(schedule, topology):
        assert set(traffic.values()) == {expected}
    assert len(schedule.scratch_like) == 0
    rails = min(len(group) for group in topology.ranks_by_host)
    for group in topology.ranks_by_host:
        leaving = {a for a, b, _ in messages(schedule) if a in group and b not in group}
        assert len(leaving) == rails


@spread
@pytest.mark.parametrize("inter", ["ring", "direct"])
def test_hierarchical_blocks_cross_each_link_once(inter: str, topology: Topology) -> None:
    p, hosts = topology.num_ranks, hosts_of(topology)
    gathered, scattered = (made(c, "hierarchical", topology, inter=inter) for c in ("all_gather", "reduce_scatter"))
    least = {host: p - ranks for host, ranks in hosts.items()}
    out, into = host_traffic(gathered, topology)
    back_out, back_into = host_traffic(scattered, topology)
    assert into == least == back_out
    assert sum(out.values()) == sum(back_into.values()) == sum(least.values())
    if inter == "direct":
        assert out == {host: ranks * (len(hosts) - 1) for host, ranks in hosts.items()}
    assert len(gathered.scratch_like) == 0


@even
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_pat_keeps_bytes_near_and_messages_few(collective: str, topology: Topology) -> None:
    schedule = made(collective, "pat", topology)
    p, hosts = topology.num_ranks, hosts_of(topology)
    for traffic in host_traffic(schedule, topology):
        assert traffic == {host: p - ranks for host, ranks in hosts.items()}
    assert set(rank_traffic(schedule).values()) == {p - 1}
    assert len(list(messages(schedule))) == p * 4  # lg 16


@spread
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_pat_adds_little_at_the_borders_of_other_hosts(collective: str, topology: Topology) -> None:
    p, hosts = topology.num_ranks, hosts_of(topology)
    schedule = made(collective, "pat", topology)
    most = {host: p - ranks + p / 2 * math.log2(max(hosts.values())) for host, ranks in hosts.items()}
    for traffic in host_traffic(schedule, topology):
        assert all(traffic[host] <= most[host] for host in hosts), (traffic, most)
    assert len(list(messages(schedule))) == p * (p - 1).bit_length()


@pytest.mark.parametrize("p", [*range(2, 70), 127, 128, 129])
def test_pat_plan_moves_every_offset_in_logarithmic_rounds(p: int) -> None:
    held, rounds = plan(p)
    assert sorted(held) == list(range(p))
    assert len(rounds) == (p - 1).bit_length()
    known = {0}
    for e in rounds:
        near, far = held[e.near : e.near + e.count], held[e.far : e.far + e.count]
        assert [s + e.distance for s in near] == far
        assert known.issuperset(near)
        assert known.isdisjoint(far)
        known.update(far)
    assert known == set(range(p))


@even
def test_halving_doubling_sends_large_messages_near(topology: Topology) -> None:
    schedule = made("all_reduce", "halving_doubling", topology)
    hosts = len(topology.ranks_by_host)
    for traffic in host_traffic(schedule, topology):
        assert set(traffic.values()) == {2 * Fraction(hosts - 1, hosts)}
    assert set(rank_traffic(schedule).values()) == {2 * Fraction(15, 16)}
    host = topology.host_of_rank
    largest = [(a, b) for a, b, size in messages(schedule) if size == Fraction(1, 2)]
    assert len(largest) == 2 * topology.num_ranks
    assert hosts == 16 or all(host[a] == host[b] for a, b in largest)


@pytest.mark.parametrize("p", range(2, 34))
def test_folded_ranks_have_partners_on_their_hosts_where_possible(p: int) -> None:
    for topology in placements(p).values():
        groups, host = host_groups(topology), topology.host_of_rank
        core, folded = fold(groups, p)
        q = 1 << (p.bit_length() - 1)
        assert len(core) == q
        assert len(set(folded.values())) == len(folded) == p - q
        assert sorted([*core, *folded]) == list(range(p))
        assert set(folded.values()) <= set(core)
        inside = sum(host[a] == host[b] for a, b in folded.items())
        assert inside == min(p - q, sum(len(group) // 2 for group in groups))
        schedule = made("all_reduce", "halving_doubling", topology)
        rounds = 2 * (q.bit_length() - 1)
        assert len(list(messages(schedule))) == q * rounds + 2 * (p - q)


@spread
@pytest.mark.parametrize("intra", ["chain", "flat"])
def test_trees_carry_the_vector_up_and_down_every_edge_once(intra: str, topology: Topology) -> None:
    schedule = made("all_reduce", "tree", topology, intra=intra)
    hosts = len(topology.ranks_by_host)
    assert sum(rank_traffic(schedule).values()) == 2 * (topology.num_ranks - 1)
    for traffic in host_traffic(schedule, topology):
        assert sum(traffic.values()) == 2 * (hosts - 1)
        assert max(traffic.values()) <= 2
    leaders = {(host, rank) for a, b, _ in messages(schedule) for rank in (a, b) if (host := topology.host_of_rank[rank]) and
               topology.host_of_rank[a] != topology.host_of_rank[b]}  # fmt: skip
    assert len(leaders) == sum(min(2, len(group)) for group in topology.ranks_by_host)


@pytest.mark.parametrize("n", [*range(1, 70), 128, 255])
def test_inner_nodes_of_one_tree_are_leaves_of_the_other(n: int) -> None:
    inner = []
    for second in (False, True):
        parents = binary_tree(n, second)
        assert parents.count(None) == 1
        depth = 0
        for node in range(n):
            steps, at = 0, node
            while parents[at] is not None:
                at, steps = parents[at], steps + 1
                assert steps <= n, "a circle"
            depth = max(depth, steps)
        assert depth <= max(1, n.bit_length())
        children = [parents.count(node) for node in range(n)]
        assert max(children) <= 2
        root = parents.index(None)
        inner.append({node for node in range(n) if children[node] and node != root})
    assert not inner[0] & inner[1]


@spread
def test_direct_rounds(topology: Topology) -> None:
    p, hosts = topology.num_ranks, hosts_of(topology)
    for collective, size in (("all_reduce", 1), ("all_gather", 1), ("reduce_scatter", 1)):
        schedule = made(collective, "direct", topology)
        out, into = host_traffic(schedule, topology)
        assert out == into == {host: size * ranks * (p - ranks) for host, ranks in hosts.items()}
        assert set(rank_traffic(schedule).values()) == {size * (p - 1)}
        # One step publishes or folds everything, whatever the number of peers.
        widest = np.diff(schedule.operand_ptr).max() if collective != "all_gather" else np.diff(schedule.target_ptr).max()
        assert widest == (p if collective != "all_gather" else p - 1)
    out, into = host_traffic(made("all_reduce", "two_shot", topology), topology)
    assert out == into == {host: 2 * Fraction(ranks * (p - ranks), p) for host, ranks in hosts.items()}


@spread
def test_barriers_send_few_messages(topology: Topology) -> None:
    p, hosts = topology.num_ranks, len(topology.ranks_by_host)
    counts = {name: len(list(messages(made("barrier", name, topology)))) for name in ("direct", "dissemination", "hierarchical")}
    assert counts["direct"] == p * (p - 1)
    assert counts["dissemination"] == p * (p - 1).bit_length()
    assert counts["hierarchical"] == 2 * (p - hosts) + hosts * (hosts - 1).bit_length()
