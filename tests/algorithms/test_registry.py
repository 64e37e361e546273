"""The registry: names, and that nothing unproved comes out of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from placements import cluster, round_robin

from topoccl.algorithms import registry
from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders import ring
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import COLLECTIVES, ROOTED, CollectiveSpec
from topoccl.algorithms.verify import ScheduleError
from topoccl.topology.graph import Topology


def spec_of(collective: str, p: int) -> CollectiveSpec:
    return CollectiveSpec(collective, p, p // 2 if collective in ROOTED else None)


def test_names_are_unique_per_collective_and_every_collective_has_some() -> None:
    for collective, names in registry.known_names().items():
        assert names
        assert len(set(names)) == len(names), collective
    assert tuple(registry.known_names()) == COLLECTIVES
    assert {"ring", "tree", "hierarchical"} <= set(registry.known_names()["all_reduce"])
    assert "two_level" in registry.known_names()["all_to_all"]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_by_name_finds_each_and_lists_the_known_ones(collective: str) -> None:
    for algorithm in registry.algorithms_for(collective):
        assert registry.by_name(collective, algorithm.name) is algorithm
    known = ", ".join(registry.known_names()[collective])
    with pytest.raises(ValueError, match=f"^unknown algorithm 'rings' for {collective}; known: {known}$"):
        registry.by_name(collective, "rings")


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_variant_is_built_and_proved(collective: str) -> None:
    topology = round_robin([3, 2, 2])
    usable = [a for a in registry.algorithms_for(collective) if a.reject(spec_of(collective, 7), topology) is None]
    assert len(usable) >= 3
    for algorithm in usable:
        for params in algorithm.variants:
            schedule = registry.build_verified(algorithm, spec_of(collective, 7), topology, params)
            assert schedule.algorithm == algorithm.name
            assert registry.build_verified(algorithm, spec_of(collective, 7), round_robin([3, 2, 2]), params) is schedule


def forgetful(spec: CollectiveSpec, topology: Topology, forgets_from: int = 0) -> Schedule:
    """A broken all_reduce: each rank returns its own vector; only from ``forgets_from`` ranks on."""
    if spec.ranks < forgets_from:
        return ring.build(spec, topology)
    b = ScheduleBuilder(spec, "forgetful")
    for rank in range(spec.ranks):
        b.copy(b.lane(rank), (Buf.INPUT, 0), (Buf.OUTPUT, 0))
    return b.build()


def test_a_wrong_schedule_does_not_come_out() -> None:
    broken = Algorithm("forgetful", ("all_reduce",), forgetful)
    with pytest.raises(ScheduleError, match="forgetful"):
        registry.build_verified(broken, spec_of("all_reduce", 3), cluster([3]))


def test_large_schedules_are_proved_on_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "PROOF_LIMIT", 1000)
    monkeypatch.setattr(registry, "SAMPLE_RANKS", 6)
    proved: list[int] = []
    original = registry.verify

    def watched(schedule: Schedule, **options: Any) -> Any:
        proved.append(schedule.spec.ranks)
        return original(schedule, **options)

    monkeypatch.setattr(registry, "verify", watched)
    topology = round_robin([7, 5, 4])
    assert registry.build_verified(ring.ALGORITHMS[0], spec_of("all_reduce", 16), topology).spec.ranks == 16
    assert proved == [6]
    with pytest.raises(ScheduleError, match="forgetful"):
        registry.build_verified(Algorithm("forgetful", ("all_reduce",), forgetful), spec_of("all_reduce", 40), cluster([40]))


def test_samples_keep_the_root_and_several_hosts() -> None:
    topology = round_robin([7, 5, 4])
    for root in range(16):
        spec, part = registry.sample(CollectiveSpec("broadcast", 16, root), topology, 6)
        assert spec.ranks == part.num_ranks == 6
        assert spec.root is not None
        assert part.slots[spec.root] == topology.slots[root]
        assert len(part.ranks_by_host) >= 2
        places = [topology.slots.index(slot) for slot in part.slots]
        assert np.all(np.diff(places) > 0), "ranks keep their order"
    assert registry.sample(CollectiveSpec("all_reduce", 9), cluster([9]), 6)[0].ranks == 6
    assert len(registry.sample(CollectiveSpec("barrier", 20), cluster([1] * 20), 6)[1].ranks_by_host) == 6


@pytest.mark.parametrize(
    ("collective", "name", "topology", "reason"),
    [
        ("all_reduce", "hierarchical", cluster([4]), "all ranks are on one host: this is two_shot"),
        ("all_gather", "hierarchical", cluster([4]), "all ranks are on one host: this is direct"),
        ("reduce_scatter", "hierarchical", cluster([1] * 4), "no two ranks share a host: this is ring or direct"),
        ("barrier", "hierarchical", cluster([1] * 4), "no two ranks share a host"),
        ("all_reduce", "direct", cluster([33, 33]), "66 ranks on 2 hosts"),
    ],
)
def test_rejections_say_why(collective: str, name: str, topology: Topology, reason: str) -> None:
    algorithm = registry.by_name(collective, name)
    with pytest.raises(ValueError, match=f"^{name} cannot serve {collective} here: {reason}"):
        registry.build_verified(algorithm, spec_of(collective, topology.num_ranks), topology)
    assert algorithm.reject(spec_of(collective, 6), cluster([3, 3])) is None
