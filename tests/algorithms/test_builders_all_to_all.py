"""The all_to_all builders: proofs on every size and placement, and what their docstrings say about messages and bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from placements import cluster, messages, placements, round_robin, uneven_placements

from topoccl.algorithms.builders import all_to_all_bruck, all_to_all_direct, all_to_all_pairwise, all_to_all_striped, all_to_all_two_level
from topoccl.algorithms.cost import CostModel
from topoccl.algorithms.layout import host_groups
from topoccl.algorithms.schedule import Buf
from topoccl.algorithms.select import select
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.verify import ScheduleError, verify
from topoccl.topology.graph import Topology
from topoccl.topology.load import load
from topoccl.topology.rails import rails_of

CANDIDATES = [
    (algorithm, params)
    for module in (all_to_all_direct, all_to_all_pairwise, all_to_all_bruck, all_to_all_two_level)
    for algorithm in module.ALGORITHMS
    for params in algorithm.variants
]
IDS = [f"{algorithm.name}{dict(params)}" for algorithm, params in CANDIDATES]


@pytest.mark.parametrize("p", range(1, 34))
@pytest.mark.parametrize(("algorithm", "params"), CANDIDATES, ids=IDS)
def test_proved_on_every_size(algorithm, params, p):
    for topology in placements(p).values():
        schedule = algorithm.build(CollectiveSpec("all_to_all", p, uneven=True), topology, **params)
        assert dict(schedule.params).items() >= params.items()
        verify(schedule)
        even = algorithm.build(CollectiveSpec("all_to_all", p), topology, **params)
        assert replace(even, spec=schedule.spec).digest == schedule.digest  # so the proof holds for equal blocks too


def uneven(topology: Topology) -> bool:
    return len(set(map(len, topology.ranks_by_host))) > 1


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(topology=uneven_placements().filter(uneven), rails=st.integers(0, 5), lanes=st.integers(1, 4))
def test_proved_on_random_placements(topology, rails, lanes):
    spec = CollectiveSpec("all_to_all", topology.num_ranks, uneven=True)
    free = {"two_level": {"rails": rails, "lanes": lanes}, "pairwise": {"lanes": lanes}}
    for algorithm in {algorithm.name: algorithm for algorithm, _ in CANDIDATES}.values():
        verify(algorithm.build(spec, topology, **free.get(algorithm.name, {})))


def test_a_wrong_relay_is_refused():
    """The proofs above can fail: two blocks that change places in a relay's scratch are noticed."""
    schedule = all_to_all_two_level.build(CollectiveSpec("all_to_all", 5, uneven=True), cluster([3, 2]))
    like = schedule.scratch_like.copy()
    like[[0, 1]] = like[[1, 0]]
    with pytest.raises(ScheduleError):
        verify(replace(schedule, scratch_like=like))


@pytest.mark.parametrize(("algorithm", "params"), CANDIDATES, ids=IDS)
def test_ranges_of_several_blocks_lie_in_scratch(algorithm, params):
    """Blocks of the input and output lie apart when a call is cut into segments."""
    for topology in placements(13).values():
        schedule = algorithm.build(CollectiveSpec("all_to_all", 13), topology, **params)
        several = schedule.count > 1
        operands = np.repeat(several, np.diff(schedule.operand_ptr))
        assert set(schedule.operand_buf[operands].tolist()) <= {Buf.SCRATCH, Buf.PEER}
        assert set(schedule.dst_buf[several].tolist()) <= {Buf.SCRATCH, Buf.NONE}


@pytest.mark.parametrize("module", [all_to_all_direct, all_to_all_pairwise, all_to_all_two_level])
def test_no_lane_of_a_host_waits_for_the_network(module):
    topology = cluster([4, 3, 1], [7, 0, 3, 5, 2, 6, 1, 4])
    schedule = module.build(CollectiveSpec("all_to_all", 8), topology)
    host = topology.host_of_rank
    reach: dict[int, set[bool]] = {}
    for step in schedule.steps():
        peers = [*step.targets, *(off for buf, off in step.operands if buf is Buf.PEER)]
        reach.setdefault(step.lane, set()).update(host[step.rank] == host[peer] for peer in peers)
    assert all(len(kinds) <= 1 for kinds in reach.values())


@pytest.mark.parametrize("module", [all_to_all_direct, all_to_all_pairwise])
def test_direct_and_pairwise_send_each_block_once_without_scratch(module):
    for topology in placements(9).values():
        schedule = module.build(CollectiveSpec("all_to_all", 9), topology)
        assert Counter(messages(schedule)) == Counter((a, b, 1) for a in range(9) for b in range(9) if a != b)
        assert len(schedule.scratch_like) == 0


@pytest.mark.parametrize("sizes", [[4, 4, 4], [2, 2, 2, 2, 2], [3, 3]])
def test_pairwise_loads_the_links_of_all_hosts_evenly_in_every_round(sizes):
    p = sum(sizes)
    for topology in (cluster(sizes), round_robin(sizes)):
        rounds = list(all_to_all_pairwise.remote_rounds(host_groups(topology)))
        assert len(rounds) == p * (p - sizes[0])
        host = topology.host_of_rank
        for first in range(0, len(rounds), p):
            senders, receivers = zip(*rounds[first : first + p], strict=True)
            assert set(senders) == set(receivers) == set(range(p))
            assert all(host[a] != host[b] for a, b in zip(senders, receivers, strict=True))
        sent = [(a, b) for a, b, _ in messages(all_to_all_pairwise.build(CollectiveSpec("all_to_all", p), topology)) if host[a] != host[b]]
        for rank in range(p):
            assert [b for a, b in sent if a == rank] == [b for a, b in rounds if a == rank]


@pytest.mark.parametrize("p", range(1, 34))
def test_bruck_sends_few_messages_of_at_most_half_the_blocks(p):
    sent = list(messages(all_to_all_bruck.build(CollectiveSpec("all_to_all", p), cluster([p]))))
    assert Counter(a for a, _, _ in sent) == Counter({rank: (p - 1).bit_length() for rank in range(p) if p > 1})
    assert all(blocks <= (p + 1) // 2 for _, _, blocks in sent)
    hops = sum(distance.bit_count() for distance in range(p))
    assert sum(blocks for _, _, blocks in sent) == p * hops


@pytest.mark.parametrize("rails", [0, 1, 2])
@pytest.mark.parametrize("sizes", [[1, 1], [2, 2, 2, 2], [4, 1], [5, 3, 3, 2], [1, 8, 2], [6, 4, 1, 1, 3]])
def test_two_level_sends_one_message_per_pair_of_hosts_and_rail(sizes, rails):
    p = sum(sizes)
    for topology in (cluster(sizes), round_robin(sizes)):
        host = topology.host_of_rank
        size = Counter(host)
        number: Counter[tuple[str, str]] = Counter()
        blocks: Counter[tuple[str, str]] = Counter()
        for a, b, count in messages(all_to_all_two_level.build(CollectiveSpec("all_to_all", p, uneven=True), topology, rails=rails)):
            if host[a] != host[b]:
                number[host[a], host[b]] += 1
                blocks[host[a], host[b]] += count
        pairs = list(permutations(size, 2))
        assert number == {(a, b): min(size[a], size[b], rails or p) for a, b in pairs}
        assert blocks == {(a, b): size[a] * size[b] for a, b in pairs}  # what any algorithm must move


def test_two_level_spreads_relays_and_arrivals_of_bigger_hosts():
    topology = cluster([4, 1, 1, 1, 1])
    found = all_to_all_two_level.routes(topology)
    assert sorted(route.relay for route in found if route.relay < 4) == [0, 1, 2, 3]
    assert sorted(route.arrival for route in found if route.arrival < 4) == [0, 1, 2, 3]
    one_rail = all_to_all_two_level.routes(cluster([3, 3, 3, 3]), rails=1)
    assert max(Counter(route.relay for route in one_rail).values()) == max(Counter(route.arrival for route in one_rail).values()) == 1


def test_two_level_keeps_the_turns_of_hosts_apart():
    """In a turn every host sends to one host and receives from one."""
    found = all_to_all_two_level.routes(cluster([2, 3, 1, 2]))
    for turn in range(1, 4):
        heads = {(route.sources[0], route.targets[0]) for route in found if route.turn == turn and route.rail == 0}
        assert len(heads) == len({a for a, _ in heads}) == len({b for _, b in heads}) == 4


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: all_to_all_pairwise.build(CollectiveSpec("all_to_all", 4), cluster([4]), lanes=0), "pairwise: lanes is 0"),
        (lambda: all_to_all_striped.build(CollectiveSpec("all_to_all", 4), load(RAILS[0]).place(range(4)), lanes=0), "striped: lanes is 0"),
        (lambda: all_to_all_two_level.build(CollectiveSpec("all_to_all", 4), cluster([4]), lanes=0), "two_level: lanes is 0"),
        (lambda: all_to_all_two_level.build(CollectiveSpec("all_to_all", 4), cluster([4]), rails=-1), "two_level: rails is -1"),
        (lambda: all_to_all_bruck.build(CollectiveSpec("all_gather", 4), cluster([4])), "bruck: does not build all_gather"),
        (lambda: all_to_all_direct.build(CollectiveSpec("all_to_all", 3), cluster([4])), "of 3 ranks, but the topology places 4"),
    ],
)
def test_refuses_what_it_cannot_build(build, words):
    with pytest.raises(ValueError, match=words):
        build()


RAILS = [
    "rails:4x2,net=200Mbit/s+100Mbit/s",
    "rails:3x1,nics=3,net=200Mbit/s+50Mbit/s+7Mbit/s",
    "rails:2x3,net=1Gbit/s+999Mbit/s",
]


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("fabric", RAILS)
def test_striped_loads_every_rail_of_every_host_by_its_rate_and_is_proved(fabric, lanes):
    whole = load(fabric)
    p = whole.num_ranks
    for order in (range(p), [*range(0, p, 2), *range(1, p, 2)], range(1, p)):
        topology = whole.place(list(order))
        schedule = all_to_all_striped.build(CollectiveSpec("all_to_all", topology.num_ranks, uneven=True), topology, lanes=lanes)
        for segments in (1, 3):
            verify(schedule, segments=(segments,), topology=topology)
        links = topology.links
        carried = CostModel(schedule, topology).predict(1e6).bytes_by_link
        seconds = {links[link].name: nbytes / links[link].bandwidth for link, nbytes in carried.items() if links[link].kind == "net"}
        for group in topology.ranks_by_host:
            host = topology.host_of_rank[group[0]]
            mine = [time for name, time in seconds.items() if name.startswith(f"{host}.")]
            assert len(mine) == len(rails_of(topology))
            assert max(mine) <= 1.005 * min(mine)
            nbytes = sum(n for link, n in carried.items() if links[link].kind == "net" and links[link].src.startswith(f"{host}."))
            assert nbytes == pytest.approx(1e6 * len(group) * (topology.num_ranks - len(group)))  # what any algorithm must move


def test_striped_is_pairwise_without_rails():
    for topology in placements(9).values():
        spec = CollectiveSpec("all_to_all", 9)
        for lanes in (1, 3):
            striped, pairwise = (module.build(spec, topology, lanes=lanes) for module in (all_to_all_striped, all_to_all_pairwise))
            assert replace(striped, algorithm="pairwise").digest == pairwise.digest


@pytest.mark.parametrize(
    ("fabric", "reason"),
    [
        ("cluster:4x2", "no two networks"),
        ("rails:1x4", "no two networks"),
        ("rails:4x2", "different networks as it is"),
        ("rails:4x1,nics=2", None),
        (RAILS[0], None),
    ],
)
def test_striped_is_offered_where_it_uses_more_than_messages_do_by_themselves(fabric, reason):
    topology = load(fabric)
    found = all_to_all_striped.ALGORITHMS[0].reject(CollectiveSpec("all_to_all", topology.num_ranks), topology)
    assert found is None if reason is None else reason in found


def test_striped_is_chosen_between_hosts_with_two_networks():
    topology = load(RAILS[0])
    choice = select(CollectiveSpec("all_to_all", 8), topology, 1 << 20)
    assert choice.algorithm == "striped"
    assert choice.bound_fraction > 0.95


@pytest.mark.parametrize(("sizes", "accepted"), [([8], False), ([1, 1, 1], False), ([2, 1], True), ([4, 4], True)])
def test_two_level_is_offered_where_hosts_have_several_ranks(sizes, accepted):
    reason = all_to_all_two_level.ALGORITHMS[0].reject(CollectiveSpec("all_to_all", sum(sizes)), cluster(sizes))
    assert (reason is None) == accepted
