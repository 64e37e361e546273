"""Fitting the cost model to measurements: planted constants are found again."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from topoccl.algorithms.calibration import Profile, default_profile
from topoccl.algorithms.registry import algorithms_for, build_verified
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.tuning.fit import Sample, fit, pick, predicted_seconds, relative_errors, spread
from topoccl.algorithms.tuning.measured import with_constants
from topoccl.topology.generators import generate
from topoccl.topology.graph import Topology

MPI = default_profile("mpi")
SIZES = (256, 64 << 10, 4 << 20)
PLANTED = [
    ("copy_bandwidth", 4e9),
    ("local.call_overhead", 20e-6),
    ("local.latency", 10e-6),
    ("local.recv_overhead", 8e-6),
    ("local.send_overhead", 8e-6),
    ("network.both_ways", 0.75),
    ("network.burst", 8192.0),
    ("network.call_overhead", 100e-6),
    ("network.efficiency", 0.88),
    ("network.latency", 60e-6),
    ("network.recv_overhead", 60e-6),
    ("network.send_overhead", 60e-6),
    ("reduce_bandwidth", 3e9),
]


def samples(topology: Topology, true: Profile, noise: float = 0.0, sizes: tuple[int, ...] = SIZES) -> list[Sample]:
    """What calls would take if the cost model with ``true`` were the truth."""
    rng, found = random.Random(7), []
    for collective in ("all_reduce", "all_gather", "all_to_all"):
        spec = CollectiveSpec(collective, topology.num_ranks)
        for name in ("ring", "direct", "hierarchical", "pairwise"):
            algorithm = next((a for a in algorithms_for(collective) if a.name == name), None)
            if algorithm is None or algorithm.reject(spec, topology):
                continue
            schedule = build_verified(algorithm, spec, topology, dict(algorithm.variants[0]))
            for nbytes in sizes:
                sample = Sample(schedule, topology, nbytes, 1, 1.0)
                found.append(replace(sample, seconds=predicted_seconds(sample, true) * (1 + rng.uniform(-noise, noise))))
    return found


@pytest.mark.parametrize(("fabric", "seen"), [("cluster:4x1,net=1Gbit/s", "network"), ("cluster:1x4", "local")])
def test_planted_constants_are_found(fabric: str, seen: str) -> None:
    found = fit(samples(generate(fabric), with_constants(MPI, PLANTED), sizes=(64, 4096, 16 << 10, *SIZES)), MPI)
    assert spread(found.before) > 0.2
    assert spread(found.after) < 0.01
    assert {name.partition(".")[0] for name, _ in found.fitted.constants} == {seen, "copy_bandwidth", "reduce_bandwidth"}
    planted = dict(PLANTED)
    if seen == "network":  # nothing is copied where every rank is a host
        planted["copy_bandwidth"] = MPI.copy_bandwidth
    for name, value in found.fitted.constants:
        if seen == "network" and name == "reduce_bandwidth":  # a very small part of what takes time there
            continue
        assert value == pytest.approx(planted[name], rel=0.2 if name.endswith("call_overhead") else 0.06), name
    assert found.profile == with_constants(MPI, found.fitted.constants)


def test_other_sizes_and_placements_are_predicted_well_from_noisy_ones() -> None:
    topology = generate("cluster:2x2,net=1Gbit/s")
    true = with_constants(MPI, PLANTED)
    noisy = samples(topology, true, noise=0.03)
    noisy[3] = replace(noisy[3], seconds=10 * noisy[3].seconds)  # one that was disturbed counts for little
    found = fit(noisy, MPI)
    unseen = samples(topology.place([0, 2, 1, 3]), true, sizes=(16 << 10, 1 << 20))
    assert spread(relative_errors(unseen, MPI)) > 0.1
    assert spread(relative_errors(unseen, found.profile)) < 0.04


def test_what_is_not_seen_stays() -> None:
    host = generate("cluster:1x2")
    found = fit(samples(host, MPI, sizes=(1024, 1 << 20)), MPI)
    assert not any(name.startswith("network") for name, _ in found.fitted.constants)
    assert found.profile.network == MPI.network
    for name, value in found.fitted.constants:
        if name != "local.latency":
            assert value == pytest.approx(with_value(MPI, name), rel=0.02)


def with_value(profile: Profile, name: str) -> float:
    head, _, tail = name.rpartition(".")
    value = getattr(getattr(profile, head) if head else profile, tail)
    assert isinstance(value, float)
    return value


def test_a_fit_may_be_cut_short_and_needs_something() -> None:
    some = samples(generate("cluster:2x1"), MPI, sizes=(1024,))
    asked = iter([False, False, *[True] * 100])
    assert spread(fit(some, MPI, lambda: next(asked)).after) < 1
    with pytest.raises(ValueError, match="nothing was measured"):
        fit([], MPI)


def test_every_size_takes_its_turn() -> None:
    some = samples(generate("cluster:2x2"), MPI)
    chosen = pick(some, 9)
    assert len({(s.schedule.spec.collective, s.nbytes) for s in chosen}) == 9
    assert pick(some, 10**6) != []
    assert {id(s) for s in pick(some, 10**6)} == {id(s) for s in some}
