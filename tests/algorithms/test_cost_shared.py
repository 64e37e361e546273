"""The cost model inside a host: ranks that share cores, and messages that are read straight from the senders' buffers."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from topoccl.algorithms.calibration import COLD, LOCAL_TURNS, PULL_FROM, Medium, Profile, default_profile
from topoccl.algorithms.cost import CostModel, block_bytes
from topoccl.algorithms.registry import ALGORITHMS, build_verified, by_name
from topoccl.algorithms.schedule import Buf, ScheduleBuilder
from topoccl.algorithms.select import Selector
from topoccl.algorithms.spec import ROOTED, CollectiveSpec
from topoccl.topology.files import loads
from topoccl.topology.generators import generate
from topoccl.topology.load import load

M = 1 << 20
MPI = default_profile("mpi")
COPIES = Profile("copies", local=Medium(staged=True, pull_bandwidth=1e10, pull_small_pages=5e9), copy_bandwidth=1e10, reduce_bandwidth=1e10)


def model(collective: str, ranks: int, profile: Profile, name: str = "direct") -> CostModel:
    topology = generate(f"cluster:1x{ranks},memory=100GB/s,memory_latency=0")
    spec = CollectiveSpec(collective, ranks, 0 if collective in ROOTED else None)
    return CostModel(build_verified(by_name(collective, name), spec, topology), topology, profile)


def seconds(collective: str, nbytes: int, profile: Profile, name: str = "direct", ranks: int = 4) -> float:
    found = model(collective, ranks, profile, name)
    return found.predict(block_bytes(found.schedule.spec, nbytes)).seconds


def test_ranks_that_share_cores_share_what_these_copy() -> None:
    alone, crowded = COPIES, replace(COPIES, crowd=2.0)
    assert seconds("all_gather", 64 * M, crowded) == pytest.approx(2 * seconds("all_gather", 64 * M, alone))
    # Two of four ranks have something to do, and two cores.
    assert seconds("gather", 64 * M, replace(COPIES, crowd=4.0)) > seconds("gather", 64 * M, alone)
    one = Profile("one", local=Medium(staged=True), copy_bandwidth=1e10, reduce_bandwidth=1e10)
    chain = [seconds("broadcast", 64 * M, replace(one, crowd=crowd), "chain", 2) for crowd in (1.0, 2.0)]
    assert chain[1] == pytest.approx(chain[0]), "in one segment the two ranks of a chain copy one after the other"


def test_crowding_costs_turns_and_segments() -> None:
    quiet, crowded = default_profile("mpi").on_hosts(1, attach=False), default_profile("mpi").on_hosts(4, attach=False)
    assert (quiet.local.latency, quiet.crowd) == (0.0, 1.0)
    assert crowded.local.latency > 0
    assert crowded.local.recv_overhead > 4 * quiet.local.recv_overhead
    few, many = model("all_gather", 8, crowded), model("all_gather", 8, quiet)
    assert len(few.ladder(M)) < len(many.ladder(M))
    with pytest.raises(ValueError, match=r"crowd is 0.5; expected a number of ranks, at least 1"):
        replace(COPIES, crowd=0.5)


def test_one_copy_instead_of_two() -> None:
    found = model("all_gather", 2, COPIES)
    pulled = found.pulled(8 * M)
    assert pulled is not None
    assert (pulled.pulls, pulled.segments) == (True, 1)
    # Its own block and the other one, each copied once; staged, a block is copied into shared memory besides.
    assert pulled.seconds == pytest.approx(2 * 8 * M / 1e10)
    assert found.predict(8 * M).seconds == pytest.approx(3 * 8 * M / 1e10)
    best = found.choose_segments(8 * M)
    assert best.pulls
    assert best.seconds == pulled.seconds
    assert found.least(8 * M) <= pulled.seconds


def test_a_fold_of_what_is_pulled_costs_its_copy_too() -> None:
    found = model("reduce_scatter", 2, COPIES)
    pulled = found.pulled(8 * M)
    assert pulled is not None
    assert pulled.seconds == pytest.approx((8 * M + 8 * M) / 1e10)


@pytest.mark.parametrize(
    ("collective", "least"),
    [("all_gather", PULL_FROM), ("all_to_all", PULL_FROM), ("reduce_scatter", 2 * PULL_FROM), ("broadcast", 4 * PULL_FROM)],
)
def test_short_messages_are_not_pulled(collective: str, least: int) -> None:
    found = model(collective, 2, COPIES)
    assert found.pulled(least) is not None
    assert found.pulled(least - 1) is None


def test_where_nothing_is_pulled() -> None:
    assert model("all_reduce", 2, COPIES, "direct").pulled(64 * M) is None, "in place its ranks would wait for each other"
    assert model("all_gather", 2, COPIES.on_hosts(1, attach=False)).pulled(64 * M) is None
    assert model("all_gather", 2, COPIES.without_shared_memory()).pulled(64 * M) is None
    topology = generate("cluster:2x2")
    spec = CollectiveSpec("all_gather", 4)
    assert CostModel(build_verified(by_name("all_gather", "direct"), spec, topology), topology, COPIES).pulled(64 * M) is None


def test_small_pages_are_another_choice() -> None:
    topology = generate("cluster:1x2,memory=100GB/s")
    selector = Selector(topology, profile=replace(COPIES, local=replace(COPIES.local, pull_small_pages=1e9)))
    spec = CollectiveSpec("all_gather", 2)
    fast, slow = selector.choose(spec, 64 * M), selector.choose(spec, 64 * M, small_pages=True)
    assert (fast.pulls, slow.pulls) == (True, False)
    assert fast.as_dict()["pulls"]
    assert fast.seconds < slow.seconds < math.inf


def test_ranks_of_hosts_that_share_a_machine_share_its_cores() -> None:
    topology = generate("cluster:8x1")
    alone, packed = MPI.on_hosts(1, attach=False), MPI.on_hosts(1, attach=False, machine=4)
    crowded = MPI.on_hosts(4, attach=False, machine=2)
    assert packed.network.send_overhead == alone.network.send_overhead
    for side in ("send_overhead", "recv_overhead"):
        assert getattr(packed.local, side) == pytest.approx(getattr(alone.local, side) + 3 * COLD)
    assert packed.local.latency == pytest.approx(alone.local.latency + 3 * LOCAL_TURNS)
    tcp = default_profile("tcp")
    latency = [tcp.on_hosts(1, attach=False, machine=machine).network.latency for machine in (1, 1.5, 2, 4)]
    assert latency == pytest.approx([tcp.network.latency * turns for turns in (1, 1, 1, 3)])
    assert (alone.machine, packed.machine, crowded.machine) == (1, 4, 4)

    def of_call(collective: str, name: str, profile: Profile) -> float:
        spec = CollectiveSpec(collective, 8, 0 if collective == "broadcast" else None)
        algorithm = by_name(collective, name)
        schedule = build_verified(algorithm, spec, topology, dict(algorithm.variants[0]))
        return CostModel(schedule, topology, profile).predict(0.0).seconds

    quiet = replace(MPI, network=replace(MPI.network, latency=0.0, call_overhead=0.0))
    busy = quiet.on_hosts(1, attach=False, machine=4)
    round_ = quiet.network.send_overhead + quiet.network.recv_overhead
    # All eight send and receive in each of three rounds: two cores take four times as long. In a tree all wait for one, then two.
    wires = of_call("all_reduce", "recursive_doubling", quiet) - 3 * round_
    assert 0 < wires < round_
    assert of_call("all_reduce", "recursive_doubling", busy) == pytest.approx(12 * round_ + wires)
    assert 3 * round_ < of_call("broadcast", "binomial", busy) < 6 * round_ + wires
    # What a call costs besides its messages, each rank pays.
    dear = replace(busy, network=replace(busy.network, call_overhead=1e-4))
    for name in ("recursive_doubling", "ring"):
        assert of_call("all_reduce", name, dear) == pytest.approx(of_call("all_reduce", name, busy) + 4e-4)


@pytest.mark.parametrize("fabric", ["mesh-2x3", "ring-5", "uneven-3-2-1", "cluster-4x2"])
def test_more_cores_are_not_predicted_to_be_slower(fabric: str) -> None:
    """One schedule on hosts of one machine, from one core for all ranks to more than they are.

    Links are the same whatever the cores. What remains is the order in which messages meet on them: it follows from when processors are
    done, and is now and then worse when these are done sooner, as wherever what comes first is done first.
    """
    topology = load(Path(__file__).parents[2] / "bench" / "fabrics" / f"{fabric}.yaml")
    ranks, hosts = topology.num_ranks, topology.ranks_by_host
    tcp, fullest = default_profile("tcp"), max(map(len, hosts))
    profiles = [
        tcp.on_hosts(max(1.0, fullest / cores), attach=True, machine=max(1.0, ranks / cores), shared=True) for cores in range(1, ranks + 3)
    ]
    assert profiles[ranks - 1 :] == [profiles[-1]] * 3
    for algorithm in ALGORITHMS:
        for collective in algorithm.collectives:
            spec = CollectiveSpec(collective, ranks, 0 if collective in ROOTED else None)
            try:
                schedule = build_verified(algorithm, spec, topology, dict(algorithm.variants[0]))
            except ValueError:  # not on this fabric
                continue
            models = [CostModel(schedule, topology, profile) for profile in profiles]
            for block, segments in ((1000.0, 1), (30_000.0, 1)):
                taken = [model.predict(block, segments).seconds for model in models]
                grown = [more / less for less, more in pairwise(taken)]
                assert max(grown) < 1.01, f"{schedule.label} with blocks of {block:g} bytes: {taken}"


def test_links_with_a_bucket_pass_short_messages_at_once() -> None:
    topology = generate("cluster:2x1,net=1GB/s")
    spec = CollectiveSpec("broadcast", 2, 0)
    schedule = build_verified(by_name("broadcast", "binomial"), spec, topology, {})

    def of_size(nbytes: int, burst: float, segments: int = 1) -> float:
        return CostModel(schedule, topology, Profile("test", network=Medium(burst=burst))).predict(float(nbytes), segments).seconds

    latency = of_size(0, 0.0)
    assert of_size(8000, 10_000) == pytest.approx(latency)
    assert of_size(110_000, 10_000) == pytest.approx(of_size(100_000, 0.0))
    assert of_size(110_000, 10_000, 11) == pytest.approx(of_size(110_000, 0.0, 11) - 1e-5, rel=0.01)  # only what comes first
    model = CostModel(schedule, topology, Profile("test", network=Medium(burst=10_000)))
    for nbytes in (100, 20_000, M):
        for segments in (1, 4, 64):
            assert model.floor(nbytes, segments) <= model.predict(nbytes, segments).seconds * (1 + 1e-9)
    assert default_profile("tcp").network.burst == 0 < default_profile("tcp").on_hosts(1, attach=True, machine=4).network.burst


def test_where_the_link_decides_the_segments_with_more_time_to_spare_are_taken() -> None:
    topology = generate("cluster:4x1,net=25MB/s")
    spec = CollectiveSpec("broadcast", 4, 0)
    schedule = build_verified(by_name("broadcast", "chain"), spec, topology, {})
    model = CostModel(schedule, topology, Profile("test", network=Medium(send_overhead=1e-6, burst=float(32 << 10))))
    block = float(47 << 10)
    one, two = model.predict(block), model.predict(block, 2)
    assert one.seconds == pytest.approx(two.seconds)  # what the link needs: the rest of the bucket hides what is passed on as a whole
    assert model.choose_segments(block).segments > 1
    assert model.choose_segments(block).seconds == pytest.approx(one.seconds)
    # Short calls are predicted in between: close to the larger where one is small, a tenth more where both are equal.
    for profile in (Medium(stamped_overhead=1e-6, burst=float(32 << 10)), Medium(stamped_overhead=1e-6)):
        ring = build_verified(by_name("all_gather", "ring"), CollectiveSpec("all_gather", 4), topology, {"channels": 1})
        short = CostModel(ring, topology, Profile("test", network=profile))
        view = short._stamped
        assert view is not None
        assert view.joined((1.0, 0.1)) == pytest.approx(1.0)
        assert view.joined((1.0, 1.0)) == pytest.approx(2 ** (1 / 8) if profile.burst else 1.0)
        both = view.both(view.low.step_bytes(10_000.0), 1, 6000)
        assert short.predict(10_000.0).seconds == view.joined(both) >= max(both)
        assert short.floor(10_000.0, 1) <= short.predict(10_000.0).seconds


def test_each_cable_of_a_host_has_a_bucket_of_its_own() -> None:
    line = loads("topoccl: 1\ndefaults: {slots: 1, rate: 8Gbit/s}\nhosts: [a, b, c]\ncables:\n  - between: [a, b]\n  - between: [a, c]\n")
    b = ScheduleBuilder(CollectiveSpec("broadcast", 3, 0), "both ways")
    for peer in (1, 2):
        b.send(b.lane(0, peer), (Buf.INPUT, 0), peer)
        b.recv(b.lane(peer), 0, (Buf.OUTPUT, 0))
    schedule = b.build()

    def of_size(nbytes: float, burst: float) -> float:
        return CostModel(schedule, line, Profile("test", network=Medium(burst=burst))).predict(nbytes).seconds

    assert of_size(5_000.0, 5_000) == pytest.approx(of_size(0.0, 0))
    assert of_size(105_000.0, 5_000) == pytest.approx(of_size(100_000.0, 0))
    # Calls in a row find what the ones before have left.
    assert of_size(20_000.0, 20_000) == pytest.approx(20e-6)
    assert of_size(0.0, 0) < 20e-6
