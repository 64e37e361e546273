"""The cost model against closed forms, a direct count of messages, and itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoccl.algorithms.calibration import IDEAL, TRANSPORTS, Medium, Profile, default_profile
from topoccl.algorithms.cost import CostModel, block_bytes, choose_segments, model, predict
from topoccl.algorithms.cost.sharing import Fabric, Sharing
from topoccl.algorithms.registry import algorithms_for, build_verified, by_name
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import COLLECTIVES, ROOTED, CollectiveSpec
from topoccl.topology.bounds import lower_bound
from topoccl.topology.generators import generate
from topoccl.topology.graph import Link, Topology, Vertex, VertexKind
from topoccl.topology.routes import Routes

ALPHA, RATE = 5e-6, 1e9
MB = 1_000_000


def spec_of(collective: str, ranks: int) -> CollectiveSpec:
    return CollectiveSpec(collective, ranks, min(1, ranks - 1) if collective in ROOTED else None)


def every_schedule(topology: Topology, collectives: Sequence[str] = COLLECTIVES) -> list[Schedule]:
    found = []
    for collective in collectives:
        spec = spec_of(collective, topology.num_ranks)
        for algorithm in algorithms_for(collective):
            if algorithm.reject(spec, topology) is None:
                found += [build_verified(algorithm, spec, topology, variant) for variant in algorithm.variants]
    return found


def built(collective: str, name: str, topology: Topology, **params: object) -> Schedule:
    return build_verified(by_name(collective, name), spec_of(collective, topology.num_ranks), topology, params)


def bare(links: Sequence[tuple[str, str, float, float]], slots: Sequence[str], switches: Sequence[str] = ()) -> Topology:
    """Hosts of one bare slot each, and both directions of (a, b, bytes/s, seconds)."""
    hosts = [Vertex(f"host-{s}", VertexKind.HOST) for s in slots]
    vertices = [*hosts, *(Vertex(s, VertexKind.SLOT, f"host-{s}") for s in slots), *(Vertex(s, VertexKind.SWITCH) for s in switches)]
    both = [Link(a, b, rate, latency, "net") for x, y, rate, latency in links for a, b in ((x, y), (y, x))]
    return Topology("bare", vertices, both, slots)


PAIR = bare([("a", "b", RATE, ALPHA)], ["a", "b"])


def broadcast_pair() -> Schedule:
    b = ScheduleBuilder(CollectiveSpec("broadcast", 2, 0), "pair")
    b.send(b.lane(0), (Buf.INPUT, 0), 1)
    b.recv(b.lane(1), 0, (Buf.OUTPUT, 0))
    return b.build()


# Closed forms


def test_one_message_takes_alpha_plus_beta_n() -> None:
    prediction = predict(broadcast_pair(), PAIR, nbytes=3 * MB)
    assert prediction.seconds == pytest.approx(ALPHA + 3 * MB / RATE, rel=1e-12)
    assert (prediction.mode, prediction.messages, prediction.segments) == ("flow", 1, 1)
    assert prediction.bytes_by_kind == {"net": 3 * MB}
    assert prediction.bytes_by_link == {0: 3 * MB}
    assert (prediction.bottleneck_link, prediction.bottleneck_seconds) == (0, pytest.approx(3 * MB / RATE))


def test_an_empty_message_takes_the_latency() -> None:
    assert predict(broadcast_pair(), PAIR, nbytes=0).seconds == ALPHA


def test_overheads_and_headers_are_added() -> None:
    profile = Profile("x", network=Medium(send_overhead=1e-6, recv_overhead=2e-6, efficiency=0.8))
    seconds = predict(broadcast_pair(), PAIR, nbytes=MB, profile=profile).seconds
    assert seconds == pytest.approx(1e-6 + ALPHA + MB / RATE / 0.8 + 2e-6, rel=1e-12)


def test_sizes_as_elements() -> None:
    assert predict(broadcast_pair(), PAIR, block_elems=MB, itemsize=4) == predict(broadcast_pair(), PAIR, nbytes=4 * MB)
    with pytest.raises(ValueError, match="give either nbytes or block_elems"):
        predict(broadcast_pair(), PAIR)


@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_ring_all_reduce_on_a_uniform_ring(p: int) -> None:
    topology = generate(f"ring:{p},net=1GB/s,latency=5us")
    seconds = predict(built("all_reduce", "ring", topology, channels=1), topology, nbytes=8 * MB).seconds
    assert seconds == pytest.approx(2 * (p - 1) * (ALPHA + 8 * MB / p / RATE), rel=1e-9)


def test_ring_over_a_cluster_is_paced_by_the_network() -> None:
    topology = generate("cluster:4x2,net=1GB/s")
    n, p = 64 * MB, 8
    prediction = predict(built("all_reduce", "ring", topology, channels=1), topology, nbytes=n)
    assert prediction.seconds == pytest.approx(2 * (p - 1) * n / p / RATE, rel=1e-2)
    assert prediction.bytes_by_kind["net"] == pytest.approx(4 * 2 * (p - 1) * n / p)
    assert prediction.bottleneck_link is not None
    assert topology.links[prediction.bottleneck_link].kind == "net"


def dumbbell(k: int, own: Sequence[float], shared: float) -> tuple[Topology, Schedule]:
    """Rank i sends to rank k + i over its own link of ``own[i]`` and one link that all share."""
    slots = [f"s{i}" for i in range(2 * k)]
    links = [(slots[i], "left" if i < k else "right", own[i % k], 0.0) for i in range(2 * k)]
    topology = bare([*links, ("left", "right", shared, ALPHA)], slots, ["left", "right"])
    b = ScheduleBuilder(CollectiveSpec("all_to_all", 2 * k), "pairs")
    for i in range(k):
        b.send(b.lane(i), (Buf.INPUT, k + i), k + i)
        b.recv(b.lane(k + i), i, (Buf.OUTPUT, i))
    return topology, b.build()


@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_flows_over_one_link_share_it(k: int) -> None:
    topology, schedule = dumbbell(k, [RATE] * k, RATE)
    assert CostModel(schedule, topology).predict(MB).seconds == pytest.approx(ALPHA + k * MB / RATE, rel=1e-9)


def test_sharing_is_max_min_fair() -> None:
    # The slow flow has 0.1, so the fast ones get 0.45 each, and the slow one then ends last.
    topology, schedule = dumbbell(3, [0.1 * RATE, RATE, RATE], RATE)
    assert CostModel(schedule, topology).predict(MB).seconds == pytest.approx(ALPHA + MB / (0.1 * RATE), rel=1e-9)
    sizes = np.zeros(36)
    sizes[[0 * 6 + 3, 1 * 6 + 4, 2 * 6 + 5]] = [MB / 100, MB, MB]
    # 10 kB at 0.1 end after 0.1 ms, in which the others got 45 kB each; the rest goes at 0.5 each.
    seconds = 1e-4 + (MB - 0.45 * RATE * 1e-4) / (0.5 * RATE)
    assert CostModel(schedule, topology).predict(list(sizes)).seconds == pytest.approx(ALPHA + seconds, rel=1e-9)


def test_two_ways_of_one_link_do_not_share() -> None:
    b = ScheduleBuilder(CollectiveSpec("all_to_all", 2), "swap")
    for rank in range(2):
        b.send(b.lane(rank, "send"), (Buf.INPUT, 1 - rank), 1 - rank)
        b.recv(b.lane(rank, "receive"), 1 - rank, (Buf.OUTPUT, 1 - rank))
    swap = b.build()
    assert CostModel(swap, PAIR).predict(MB).seconds == pytest.approx(ALPHA + MB / RATE)
    slow = Profile("slow both ways", network=Medium(both_ways=0.6))
    assert CostModel(swap, PAIR, slow).predict(MB).seconds == pytest.approx(ALPHA + MB / RATE / 0.6)
    # A shift around a ring uses both directions of every node's links, but no pair exchanges.
    ring = generate("ring:5,net=1GB/s,latency=5us")
    schedule = built("all_gather", "ring", ring, channels=1)
    assert CostModel(schedule, ring, slow).predict(MB).seconds == CostModel(schedule, ring).predict(MB).seconds


# Shared memory

HOST = generate("cluster:1x4,memory=10GB/s,memory_latency=1us")
SHM = Profile("shm", local=Medium(send_overhead=1e-6, recv_overhead=1e-6, staged=True), copy_bandwidth=10e9, reduce_bandwidth=4e9)


def publish(readers: int, *, fold: bool) -> Schedule:
    """Rank 0 publishes its vector; each reader copies it out, or folds it into its own."""
    spec = CollectiveSpec("all_reduce", 4)
    b = ScheduleBuilder(spec, "publish")
    b.send(b.lane(0), (Buf.INPUT, 0), list(range(1, readers + 1)))
    for rank in range(1, readers + 1):
        if fold:
            b.recv_reduce(b.lane(rank), 0, (Buf.INPUT, 0), (Buf.OUTPUT, 0))
        else:
            b.recv(b.lane(rank), 0, (Buf.OUTPUT, 0))
    return b.build()


@pytest.mark.parametrize("readers", [1, 3])
def test_a_message_through_shared_memory_is_copied_in_once_and_out_by_each(readers: int) -> None:
    prediction = predict(publish(readers, fold=False), HOST, nbytes=MB, profile=SHM)
    assert prediction.seconds == pytest.approx(2e-6 + 2e-6 + 2 * MB / 10e9)
    assert prediction.bytes_by_kind == {"shm": readers * MB}
    assert sorted(prediction.bytes_by_link.values()) == [MB] * (readers + 1)  # out of rank 0 once, into each reader


def test_a_fold_reads_the_peer_in_place() -> None:
    assert predict(publish(2, fold=True), HOST, nbytes=MB, profile=SHM).seconds == pytest.approx(4e-6 + MB / 10e9 + MB / 4e9)


def test_without_shared_memory_messages_are_not_shared() -> None:
    profile = SHM.without_shared_memory()
    prediction = predict(publish(3, fold=False), HOST, nbytes=MB, profile=profile)
    assert prediction.bytes_by_link[0] == 3 * MB


def test_lanes_of_a_rank_share_its_memory() -> None:
    spec = CollectiveSpec("reduce_scatter", 2)
    b = ScheduleBuilder(spec, "copies", chunks=2)
    for chunk in range(2):
        b.copy(b.lane(0, chunk), (Buf.INPUT, chunk), (Buf.OUTPUT, chunk))
    assert CostModel(b.build(), generate("cluster:1x2"), SHM).predict(MB).seconds == pytest.approx(MB / 10e9)


def test_overheads_of_a_rank_add_up_over_its_lanes() -> None:
    topology = generate("cluster:4x1,latency=1us")
    profile = Profile("busy", network=Medium(send_overhead=1e-3))
    b = ScheduleBuilder(CollectiveSpec("broadcast", 4, 0), "flat")
    for peer in range(1, 4):
        b.send(b.lane(0, peer), (Buf.INPUT, 0), peer)
        b.recv(b.lane(peer), 0, (Buf.OUTPUT, 0))
    seconds = predict(b.build(), topology, nbytes=0, profile=profile).seconds
    assert seconds == pytest.approx(3e-3, rel=0.01)
    assert seconds > 3e-3


# Segments

CHAIN = bare([("a", "b", RATE, 0.0), ("b", "c", RATE, 0.0)], ["a", "b", "c"])


def relay(slots: int) -> Schedule:
    """0 -> 1 -> 2 through scratch of rank 1, whose two lanes may overlap as far as ``slots`` allows."""
    spec = CollectiveSpec("broadcast", 3, 0)
    b = ScheduleBuilder(spec, "relay", slots=slots)
    place = (Buf.SCRATCH, b.scratch(1, [0]))
    b.send(b.lane(0), (Buf.INPUT, 0), 1)
    b.recv(b.lane(1, "in"), 0, place)
    b.send(b.lane(1, "out"), place, 2)
    b.recv(b.lane(2), 1, (Buf.OUTPUT, 0))
    return b.build()


@pytest.mark.parametrize(("slots", "segments", "steps"), [(1, 1, 2), (2, 1, 2), (2, 8, 9), (3, 8, 9), (2, 1000, 1001)])
def test_a_relay_overlaps_as_far_as_its_window(slots: int, segments: int, steps: int) -> None:
    seconds = CostModel(relay(slots), CHAIN).predict(MB, segments).seconds
    assert seconds == pytest.approx(steps * MB / segments / RATE, rel=1e-9)


def test_a_window_of_one_waits_for_the_relay() -> None:
    profile = Profile("x", network=Medium(recv_overhead=1e-3))
    overlapped, waiting = (CostModel(relay(slots), CHAIN, profile).predict(0, 20).seconds for slots in (2, 1))
    assert overlapped == pytest.approx(21e-3)
    assert waiting == pytest.approx(overlapped)  # arrived messages wait in the transport; rank 1 itself needs 1 ms a segment
    slow = Profile("x", network=Medium(send_overhead=1e-3))
    b = CostModel(relay(1), CHAIN, slow).predict(MB, 20).seconds
    assert b == pytest.approx(1e-3 + MB / 20 / RATE + 20 * (1e-3 + MB / 20 / RATE), rel=0.01)


@pytest.mark.parametrize("transport", ["ideal", "mpi"], ids="{}-profile".format)
@pytest.mark.parametrize(
    ("collective", "name", "params"),
    [
        ("all_reduce", "ring", {"channels": 1}),
        ("all_reduce", "tree", {"intra": "chain"}),
        ("all_reduce", "hierarchical", {"inter": "direct"}),
        ("broadcast", "chain", {}),
        ("broadcast", "binomial", {}),
        ("reduce", "chain", {}),
        ("all_to_all", "pairwise", {}),
        ("reduce_scatter", "ring", {"channels": 1}),
    ],
)
def test_extrapolation_agrees_with_full_simulation(
    collective: str, name: str, params: dict[str, object], transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = generate("cluster:4x2")
    costs = CostModel(built(collective, name, topology, **params), topology, default_profile(transport))
    block = block_bytes(costs.schedule.spec, 16 << 20)
    short = costs.predict(block, 128).seconds
    monkeypatch.setattr(model, "SIMULATED_STEPS", 10**9)
    assert short == pytest.approx(costs.predict(block, 128).seconds, rel=0.01)


def test_the_number_of_segments_is_near_the_best() -> None:
    topology = generate("cluster:4x2")
    for name in ("chain", "binomial", "scatter_allgather"):
        costs = CostModel(built("broadcast", name, topology), topology, default_profile("mpi"))
        chosen = costs.choose_segments(16 << 20)
        assert costs.least(16 << 20) <= chosen.seconds
        best = min(costs.predict(16 << 20, segments).seconds for segments in costs.ladder(16 << 20))
        assert chosen.seconds <= 1.06 * best
    chain = choose_segments(built("broadcast", "chain", topology), topology, nbytes=16 << 20, profile=default_profile("mpi"))
    assert chain.segments > 8
    assert choose_segments(built("broadcast", "chain", topology), topology, nbytes=8, profile=default_profile("mpi")).segments == 1


def test_the_ladder_keeps_pieces_large() -> None:
    topology = generate("ring:4")
    costs = CostModel(built("all_reduce", "ring", topology, channels=2), topology, replace(IDEAL, min_segment=4096, max_segments=16))
    assert costs.ladder(8 * 4096) == (1,)  # 8 chunks of 4096 bytes
    assert costs.ladder(8 * 4096 * 5) == (1, 2, 3, 4)
    assert costs.ladder(8 * 4096 * 6) == (1, 2, 3, 4, 6)
    assert costs.ladder(1 << 30) == (1, 2, 3, 4, 6, 8, 12, 16)
    alone = generate("cluster:1x1")
    tight = Profile("tight", local=Medium(staged=True, room=MB), copy_bandwidth=1e10, reduce_bandwidth=1e10, max_segments=8)
    published = CostModel(publish(3, fold=False), HOST, tight)  # rank 0 writes once, whoever reads
    assert published.ladder(MB) == (1, 2, 4, 8)
    assert published.ladder(MB + 1) == (2, 4, 8)
    assert published.ladder(100 * MB) == (128,)
    assert CostModel(built("all_reduce", "ring", alone, channels=1), alone).ladder(1 << 30) == (1,)


# Against the schedule itself, and against the cheaper models


def sizes_of_steps(schedule: Schedule, block: float) -> list[float]:
    """Bytes of each step, place by place."""
    spec, chunks = schedule.spec, schedule.chunks
    weights = [1] * (spec.num_blocks * chunks) if schedule.weights is None else schedule.weights.tolist()
    share = [w * block / sum(weights[i // chunks * chunks :][:chunks]) for i, w in enumerate(weights)]

    def place(rank: int, buf: Buf, off: int) -> float:
        if buf is Buf.SCRATCH:
            like = int(schedule.scratch_places(rank)[off])
            return share[like] if like >= 0 else max(share)
        blocks = spec.input_blocks(rank) if buf is Buf.INPUT else spec.output_blocks(rank)
        return share[blocks[off // chunks] * chunks + off % chunks]

    sizes = []
    for step in schedule.steps():
        local = [p for p in (*step.operands, step.dst) if p is not None and p[0] is not Buf.PEER]
        sizes.append(sum(place(step.rank, local[0][0], local[0][1] + i) for i in range(step.count)))
    return sizes


@pytest.mark.parametrize("shape", ["cluster:3+2+1", "ring:5"])
def test_bytes_agree_with_a_count_of_the_messages(shape: str) -> None:
    topology = generate(shape)
    routes = Routes(topology)
    for schedule in every_schedule(topology):
        block = block_bytes(schedule.spec, 6 * MB)
        links: Counter[int] = Counter()
        kinds: Counter[str] = Counter()
        messages = 0
        for step, nbytes in zip(schedule.steps(), sizes_of_steps(schedule, block), strict=True):
            for target in step.targets:
                path = routes.path(step.rank, target, int(schedule.lane_rail[step.lane]))
                if nbytes:
                    links.update(dict.fromkeys(path, nbytes))
                    kinds.update(dict.fromkeys({topology.links[i].kind for i in path}, nbytes))
                messages += 1
        prediction = CostModel(schedule, topology, routes=routes).predict(block, 2)
        assert prediction.bytes_by_link == pytest.approx(dict(links)), schedule.label
        assert prediction.bytes_by_kind == pytest.approx(dict(kinds)), schedule.label
        assert prediction.messages == 2 * messages


@pytest.mark.parametrize("transport", ["ideal", *TRANSPORTS], ids="{}-profile".format)
def test_no_prediction_is_below_the_floor(transport: str) -> None:
    topology = generate("cluster:3+2")
    profile = default_profile(transport)
    for schedule in every_schedule(topology):
        costs = CostModel(schedule, topology, profile)
        for size, segments in ((64, 1), (64, 5), (MB, 1), (MB, 30)):
            block = block_bytes(schedule.spec, size)
            assert costs.floor(block, segments) <= costs.predict(block, segments).seconds * (1 + 1e-9), (schedule.label, size, segments)


@pytest.mark.parametrize("shape", ["cluster:3+2+1", "ring:5", "racks:2x2x1,uplink=1GB/s"])
def test_no_prediction_beats_the_bound(shape: str) -> None:
    topology = generate(shape)
    for schedule in every_schedule(topology):
        costs = CostModel(schedule, topology)
        for size in (64, MB):
            bound = lower_bound(topology, schedule.spec.collective, size, schedule.spec.root)
            for segments in (1, 5):
                seconds = costs.predict(block_bytes(schedule.spec, size), segments).seconds
                assert seconds >= bound.seconds * (1 - 1e-9), (schedule.label, size, segments, bound.description)


def test_predictions_grow_with_the_size() -> None:
    topology = generate("cluster:2x3")
    for schedule in every_schedule(topology):
        costs = CostModel(schedule, topology)
        seconds = [costs.predict(block_bytes(schedule.spec, size)).seconds for size in (0, 1, 10**3, 10**4, 10**5, 10**6, 10**7, 10**8)]
        assert seconds == sorted(seconds), schedule.label


def test_levels_are_a_fair_picture_of_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = generate("cluster:4x2")
    profile = default_profile("mpi")
    ratios = []
    for schedule in every_schedule(topology, ("all_reduce", "all_to_all", "broadcast", "all_gather")):
        block = block_bytes(schedule.spec, 4 * MB)
        exact = CostModel(schedule, topology, profile).predict(block)
        with monkeypatch.context() as patch:
            patch.setattr(model, "FLOW_LIMIT", 0)
            rough = CostModel(schedule, topology, profile).predict(block)
        assert (exact.mode, rough.mode) == ("flow", "wavefront")
        assert rough.bytes_by_link == exact.bytes_by_link
        ratios.append(rough.seconds / exact.seconds)
    assert min(ratios) > 0.6
    assert max(ratios) < 1.2
    assert np.mean([0.9 < ratio < 1.1 for ratio in ratios]) > 0.9


def test_levels_are_exact_where_nothing_overlaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "FLOW_LIMIT", 0)
    topology = generate("ring:6,net=1GB/s,latency=5us")
    prediction = predict(built("all_reduce", "ring", topology, channels=1), topology, nbytes=6 * MB)
    assert prediction.mode == "wavefront"
    assert prediction.seconds == pytest.approx(2 * 5 * (ALPHA + MB / RATE))


# Bad input


def test_messages_that_do_not_pair_up() -> None:
    b = ScheduleBuilder(CollectiveSpec("broadcast", 2, 0), "lost")
    b.send(b.lane(0, channel=3), (Buf.INPUT, 0), 1)
    with pytest.raises(ValueError, match="lost: rank 0 sends 1 messages to rank 1 on channel 3, which receives 0"):
        CostModel(b.build(), PAIR)


def test_ranks_that_wait_for_each_other() -> None:
    b = ScheduleBuilder(CollectiveSpec("all_to_all", 2), "embrace")
    for rank in range(2):
        b.recv(b.lane(rank), 1 - rank, (Buf.OUTPUT, 1 - rank))
        b.send(b.lane(rank), (Buf.INPUT, 1 - rank), 1 - rank)
    with pytest.raises(ValueError, match="embrace: 4 of 4 steps wait for each other for ever"):
        CostModel(b.build(), PAIR)


def test_other_numbers_of_ranks_and_segments() -> None:
    with pytest.raises(ValueError, match="pair is for 2 ranks, but the topology places 4"):
        CostModel(broadcast_pair(), HOST)
    with pytest.raises(ValueError, match="0 segments; expected at least 1"):
        predict(broadcast_pair(), PAIR, nbytes=1, segments=0)


# Sharing


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=6).flatmap(
        lambda capacity: st.tuples(
            st.just(capacity),
            st.lists(st.sets(st.integers(0, len(capacity) - 1), min_size=1), min_size=1, max_size=7),
            st.lists(st.tuples(st.integers(0, 6), st.integers(-3, 3)), max_size=12),
        )
    )
)
@settings(max_examples=200, deadline=None)
def test_rates_are_max_min_fair_whatever_came_before(case: tuple[list[float], list[set[int]], list[tuple[int, int]]]) -> None:
    capacity, classes, changes = case
    solo = [min(capacity[r] for r in c) for c in classes]
    sharing = Sharing(Fabric([sorted(c) for c in classes], [1.0] * len(classes), capacity, solo))
    rates = dict.fromkeys(range(len(classes)), math.nan)
    for number, more in [*((i, 1) for i in range(len(classes))), *changes]:
        c = number % len(classes)
        more = max(more, -sharing.count[c])
        sharing.change({c: more})
    rates = {c: sharing.rate[c] for c in range(len(classes)) if sharing.count[c]}
    load = [sum(rates[c] * sharing.count[c] for c in rates if r in classes[c]) for r in range(len(capacity))]
    assert all(used <= limit * (1 + 1e-6) for used, limit in zip(load, capacity, strict=True))
    for c, rate in rates.items():
        # Nobody can have more: some resource is full, and there nobody has more than this one.
        assert any(
            load[r] >= capacity[r] * (1 - 1e-6) and all(rates[other] <= rate * (1 + 1e-6) for other in rates if r in classes[other])
            for r in classes[c]
        )


# Profiles


def test_profiles_check_themselves() -> None:
    for bad, message in (
        (lambda: Medium(send_overhead=-1), "send_overhead is -1"),
        (lambda: Medium(both_ways=0.4), "both_ways is 0.4"),
        (lambda: Medium(efficiency=0), "efficiency is 0"),
        (lambda: Medium(room=0), "room is 0"),
        (lambda: Profile("x", copy_bandwidth=0.0), "copy_bandwidth is 0.0"),
        (lambda: Profile("x", reduce_bandwidth=1e9), "give copy_bandwidth a number too"),
        (lambda: Profile("x", min_segment=0), "min_segment 0"),
        (lambda: default_profile("ucx"), "no cost profile for transport 'ucx'; known: tcp, mpi, gloo, memory, ideal"),
    ):
        with pytest.raises(ValueError, match=message):
            bad()
    for transport in TRANSPORTS:
        assert default_profile(transport).name == transport
