"""The builders of broadcast, reduce, gather and scatter: proofs on every size, placement and root, and what their docstrings say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from placements import cluster, host_traffic, messages, placements, round_robin, uneven_placements

from topoccl.algorithms.builders import broadcast_scatter_allgather, broadcast_tree, gather_scatter, reduce_tree, rooted_dissemination
from topoccl.algorithms.builders.rooted_trees import SHAPES, chain_tree, flat_tree, host_tree
from topoccl.algorithms.hearing import everyone_hears
from topoccl.algorithms.schedule import Buf, Schedule
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.verify import ScheduleError, verify
from topoccl.topology.graph import Topology

CANDIDATES = [
    (collective, algorithm, params)
    for module in (broadcast_tree, broadcast_scatter_allgather, reduce_tree, rooted_dissemination, gather_scatter)
    for algorithm in module.ALGORITHMS
    for collective in algorithm.collectives
    for params in algorithm.variants
]
IDS = [f"{collective}-{algorithm.name}{dict(params)}" for collective, algorithm, params in CANDIDATES]


def sum_at_root(schedule: Schedule) -> str:
    """Runs a reduce with the ranks' numbers as data and ``(a+b)`` for their sums, one lane step at a time."""
    held: dict[tuple[int, Buf, int], str] = {(r, Buf.INPUT, 0): str(r) for r in range(schedule.spec.ranks)}
    wire: dict[tuple[int, int], list[str]] = {}
    done: set[int] = set()
    lanes = [list(range(a, b)) for a, b in zip(schedule.lane_ptr[:-1], schedule.lane_ptr[1:], strict=True)]
    while any(lanes):
        for lane in filter(None, lanes):
            step = schedule.step(lane[0])
            peers = [off for buf, off in step.operands if buf is Buf.PEER]
            if not done.issuperset(step.deps) or not all(wire.get((peer, step.rank)) for peer in peers):
                continue
            values = [
                wire[off, step.rank].pop(0) if buf is Buf.PEER else held.get((step.rank, buf, off), "?") for buf, off in step.operands
            ]
            value = values[0] if step.count else ""
            for other in values[1:]:
                value = f"({value}+{other})"
            if step.dst is not None and step.count:
                held[step.rank, *step.dst] = value
            for target in step.targets:
                wire.setdefault((step.rank, target), []).append(value)
            done.add(lane.pop(0))
    return held[schedule.spec.root, Buf.OUTPUT, 0]


@pytest.mark.parametrize("p", range(1, 34))
@pytest.mark.parametrize(("collective", "algorithm", "params"), CANDIDATES, ids=IDS)
def test_proved_on_every_size(collective, algorithm, params, p):
    for name, topology in placements(p).items():
        if name in ("packed", "uneven"):
            continue  # to a tree the same as dealt out, but for the names of the ranks
        for root in {0, p // 2, p - 1}:
            schedule = algorithm.build(CollectiveSpec(collective, p, root), topology, **params)
            assert dict(schedule.params).items() >= params.items()
            for in_place in (False, True):
                verify(schedule, in_place=in_place)


def uneven(topology: Topology) -> bool:
    return len(set(map(len, topology.ranks_by_host))) > 1


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(topology=uneven_placements().filter(uneven), data=st.data(), in_place=st.booleans())
def test_proved_on_random_placements(topology, data, in_place):
    root = data.draw(st.integers(0, topology.num_ranks - 1))
    for collective, algorithm, params in CANDIDATES:
        verify(algorithm.build(CollectiveSpec(collective, topology.num_ranks, root), topology, **params), in_place=in_place)


def test_a_wrong_target_is_refused():
    """The proofs above can fail."""
    schedule = broadcast_tree.build_binomial(CollectiveSpec("broadcast", 4, 0), cluster([2, 2]))
    targets = schedule.targets.copy()
    targets[0] = (targets[0] + 1) % 4 or 1
    with pytest.raises(ScheduleError):
        verify(replace(schedule, targets=targets))


@pytest.mark.parametrize(("collective", "algorithm", "params"), CANDIDATES, ids=IDS)
def test_ranges_of_several_blocks_lie_in_scratch(collective, algorithm, params):
    """Blocks of the input and output lie apart when a call is cut into segments; chunks of one block do not."""
    for topology in placements(13).values():
        schedule = algorithm.build(CollectiveSpec(collective, 13, 5), topology, **params)
        for step in schedule.steps():
            for buf, off in [*step.operands, *([step.dst] if step.dst else [])]:
                if buf in (Buf.INPUT, Buf.OUTPUT):
                    assert off // schedule.chunks == (off + max(step.count, 1) - 1) // schedule.chunks


@pytest.mark.parametrize("inter", SHAPES)
@pytest.mark.parametrize("intra", SHAPES)
@pytest.mark.parametrize(("sizes", "root"), [([7], 3), ([4, 4, 4], 6), ([1, 5, 2, 2], 0), ([1] * 9, 8)])
def test_trees_enter_each_host_once_and_keep_it_together(sizes, root, inter, intra):
    p = sum(sizes)
    topology = round_robin(sizes)
    host = topology.host_of_rank
    tree = host_tree(topology, root, inter, intra)
    assert sorted(tree.order) == list(range(p))
    assert tree.parent[root] == tree.order[0] == root
    assert sum(host[a] != host[b] for a, b in enumerate(tree.parent)) == len(sizes) - 1
    assert sum(host[a] != host[b] for a, b in zip(tree.order, tree.order[1:], strict=False)) == len(sizes) - 1
    for rank in range(p):
        assert sorted(r for child in tree.children[rank] for r in tree.subtree(child)) == sorted(set(tree.subtree(rank)) - {rank})
        assert all(tree.parent[child] == rank for child in tree.children[rank])


def test_binomial_trees_are_shallow_and_serve_big_and_far_subtrees_first():
    topology = cluster([8, 8, 8, 8])
    tree = host_tree(topology, 0, "binomial", "binomial")
    depth = [0] * 32
    for rank in tree.order[1:]:
        depth[rank] = depth[tree.parent[rank]] + 1
    assert max(depth) == 5
    assert tree.children[0] == (16, 8, 4, 2, 1)


def test_chains_and_flat_trees():
    topology = cluster([2, 3, 2], [0, 2, 5, 1, 3, 6, 4])
    assert chain_tree(topology, 4).order == (4, 6, 1, 2, 5, 0, 3)
    assert chain_tree(topology, 4).parent == (5, 6, 1, 0, 4, 2, 4)
    assert sorted(flat_tree(topology, 3).children[3]) == [0, 1, 2, 4, 5, 6]


@pytest.mark.parametrize("name", ["binomial", "chain", "hierarchical", "dissemination", "scatter_allgather"])
def test_broadcast_brings_every_byte_to_each_host_and_rank_once(name):
    topology = cluster([3, 4, 1, 2], [3, 0, 7, 9, 1, 4, 2, 8, 5, 6])
    host = topology.host_of_rank
    for _, algorithm, params in [c for c in CANDIDATES if c[0] == "broadcast" and c[1].name == name]:
        for root in range(10):
            schedule = algorithm.build(CollectiveSpec("broadcast", 10, root), topology, **params)
            received: Counter[int] = Counter()
            for _, b, count in messages(schedule):
                received[b] += count
            assert +received == dict.fromkeys(set(range(10)) - {root}, 1)
            leave, enter = host_traffic(schedule, topology)
            assert enter == {h: int(h != host[root]) for h in host}
            if name == "chain":
                assert max(leave.values()) == 1
            if name == "scatter_allgather":
                assert max(leave.values()) < 2


@pytest.mark.parametrize("name", ["binomial", "chain", "hierarchical", "dissemination"])
def test_reduce_sends_the_sum_of_each_host_and_rank_once(name):
    topology = cluster([3, 4, 1, 2], [3, 0, 7, 9, 1, 4, 2, 8, 5, 6])
    host = topology.host_of_rank
    for _, algorithm, params in [c for c in CANDIDATES if c[0] == "reduce" and c[1].name == name]:
        for root in range(10):
            schedule = algorithm.build(CollectiveSpec("reduce", 10, root), topology, **params)
            assert Counter(a for a, _, count in messages(schedule) if count) == dict.fromkeys(set(range(10)) - {root}, 1)
            leave, _ = host_traffic(schedule, topology)
            assert leave == {h: int(h != host[root]) for h in host}


@pytest.mark.parametrize(
    ("build", "sizes", "root", "total"),
    [
        (reduce_tree.build_binomial, [8], 0, "(((0+1)+(2+3))+((4+5)+(6+7)))"),
        (reduce_tree.build_binomial, [3, 2], 3, "((3+4)+((0+1)+2))"),
        (reduce_tree.build_chain, [4], 1, "(1+(2+(3+0)))"),
        (reduce_tree.build_direct, [4], 2, "(((0+1)+2)+3)"),
        (reduce_tree.build_hierarchical, [3, 3, 2], 4, "((((3+4)+5)+(6+7))+((0+1)+2))"),
        (rooted_dissemination.build_reduce, [3, 3, 2], 4, "((((3+4)+5)+(6+7))+((0+1)+2))"),
        (rooted_dissemination.build_reduce, [1] * 8, 0, "(((0+1)+(2+3))+((4+5)+(6+7)))"),
    ],
)
def test_sums_are_made_in_the_documented_order(build, sizes, root, total):
    assert sum_at_root(build(CollectiveSpec("reduce", sum(sizes), root), cluster(sizes))) == total


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("p", [2, 3, 5, 8, 13])
def test_a_dissemination_tells_every_rank_of_all_in_the_fewest_rounds(collective, p):
    build = rooted_dissemination.build_broadcast if collective == "broadcast" else rooted_dissemination.build_reduce
    for topology in placements(p).values():
        hosts = topology.ranks_by_host
        rounds = (len(hosts) - 1).bit_length()
        host = topology.host_of_rank
        for root in range(p) if rounds else ():
            schedule = build(CollectiveSpec(collective, p, root), topology)
            assert everyone_hears(schedule, hosts)
            between = [(host[a], host[b], count) for a, b, count in messages(schedule) if host[a] != host[b]]
            assert Counter(a for a, _, _ in between) == Counter(b for _, b, _ in between) == dict.fromkeys(set(host), rounds)
            assert sum(count for _, _, count in between) == len(hosts) - 1


def test_sums_for_a_rank_of_the_same_host_need_no_scratch():
    chain = reduce_tree.build_chain(CollectiveSpec("reduce", 6, 0), cluster([6]))
    assert len(chain.scratch_like) == chain.slots == 0
    over_hosts = reduce_tree.build_chain(CollectiveSpec("reduce", 6, 0), cluster([2, 2, 2]))
    assert np.diff(over_hosts.scratch_ptr).tolist() == [0, 0, 1, 0, 1, 0]  # the ranks that fold and then leave the host


def test_direct_reduce_is_one_fold():
    schedule = reduce_tree.build_direct(CollectiveSpec("reduce", 5, 3), cluster([5]))
    (fold,) = (step for step in schedule.steps() if step.rank == 3)
    assert fold.operands == ((Buf.PEER, 0), (Buf.PEER, 1), (Buf.PEER, 2), (Buf.INPUT, 0), (Buf.PEER, 4))


def test_direct_and_hierarchical_broadcast_serve_a_host_with_one_step():
    schedule = broadcast_tree.build_hierarchical(CollectiveSpec("broadcast", 7, 1), cluster([4, 3]))
    assert sorted(step.targets for step in schedule.steps() if len(step.targets) > 1) == [(0, 2, 3), (5, 6)]
    direct = broadcast_tree.build_direct(CollectiveSpec("broadcast", 4, 2), cluster([4]))
    assert [step.targets for step in direct.steps() if step.targets] == [(0, 1, 3)]


@pytest.mark.parametrize("root", [0, 5, 9])
def test_hierarchical_gather_and_scatter_cross_the_network_once(root):
    topology = cluster([3, 4, 1, 2], [3, 0, 7, 9, 1, 4, 2, 8, 5, 6])
    host = topology.host_of_rank
    far = {h: count if h != host[root] else 0 for h, count in Counter(host).items()}
    near = {h: sum(far.values()) if h == host[root] else 0 for h in host}
    for collective, traffic in (("gather", (far, near)), ("scatter", (near, far))):
        schedule = gather_scatter.build_hierarchical(CollectiveSpec(collective, 10, root), topology)
        assert host_traffic(schedule, topology) == traffic
        assert sum(host[a] != host[b] for a, b, _ in messages(schedule)) == 3


@pytest.mark.parametrize("build", [gather_scatter.build_direct, gather_scatter.build_binomial, gather_scatter.build_hierarchical])
def test_a_scatter_is_its_gather_reversed(build):
    for topology in placements(13).values():
        gather = list(messages(build(CollectiveSpec("gather", 13, 4), topology)))
        scatter = messages(build(CollectiveSpec("scatter", 13, 4), topology))
        assert len(gather) == 12
        assert Counter(gather) == Counter((b, a, count) for a, b, count in scatter)


def test_direct_gather_and_scatter_copy_nothing():
    for collective in ("gather", "scatter"):
        assert len(gather_scatter.build_direct(CollectiveSpec(collective, 6, 2), cluster([4, 2])).scratch_like) == 0


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: broadcast_tree.build_hierarchical(CollectiveSpec("broadcast", 4, 0), cluster([2, 2]), inter="star"),
            "inter is 'star'",
        ),
        (lambda: reduce_tree.build_hierarchical(CollectiveSpec("reduce", 4, 0), cluster([2, 2]), inter="star"), "inter is 'star'"),
        (lambda: reduce_tree.build_chain(CollectiveSpec("broadcast", 4, 0), cluster([4])), "chain: does not build broadcast"),
        (lambda: gather_scatter.build_direct(CollectiveSpec("scatter", 3, 0), cluster([4])), "of 3 ranks, but the topology places 4"),
    ],
)
def test_refuses_what_it_cannot_build(build, words):
    with pytest.raises(ValueError, match=words):
        build()


@pytest.mark.parametrize(
    ("collective", "sizes", "names"),
    [
        ("broadcast", [4], {"binomial", "chain", "direct", "scatter_allgather"}),
        ("broadcast", [2, 2], {"binomial", "chain", "hierarchical", "dissemination", "scatter_allgather"}),
        ("broadcast", [1, 1], {"binomial", "chain", "hierarchical", "dissemination"}),
        ("reduce", [4], {"binomial", "chain", "direct"}),
        ("reduce", [2, 2], {"binomial", "chain", "hierarchical", "dissemination"}),
        ("gather", [4], {"direct", "binomial"}),
        ("gather", [1, 1, 1], {"direct", "binomial"}),
        ("scatter", [3, 1], {"direct", "binomial", "hierarchical"}),
    ],
)
def test_offers_what_makes_sense(collective, sizes, names):
    spec = CollectiveSpec(collective, sum(sizes), 0)
    offered = {a.name for c, a, _ in CANDIDATES if c == collective and a.reject(spec, cluster(sizes)) is None}
    assert offered == names
