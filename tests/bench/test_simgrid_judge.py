"""The cost model against SimGrid, where SimGrid is installed: schedules with and without contention, latency, segments and windows."""

from __future__ import annotations

from typing import Any

import pytest

from topoccl.algorithms.cost.model import CostModel, block_bytes
from topoccl.algorithms.registry import build_verified, by_name
from topoccl.algorithms.spec import ROOTED, CollectiveSpec
from topoccl.bench.suite.simgrid_judge import agreement, available, simgrid_seconds
from topoccl.topology.generators import generate

MISSING = available()
NEEDS_SIMGRID = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

PAIRS: list[tuple[str, str, str, dict[str, Any], int]] = [
    ("cluster:2x2", "all_reduce", "ring", {"channels": 1}, 1),
    ("cluster:4x2", "all_reduce", "ring", {"channels": 2}, 4),
    ("cluster:4x2", "all_reduce", "halving_doubling", {}, 1),
    ("cluster:4x2", "all_reduce", "tree", {"intra": "chain"}, 8),
    ("cluster:4x2", "all_reduce", "hierarchical", {"inter": "ring"}, 4),
    ("cluster:4x2", "all_reduce", "hierarchical", {"inter": "direct"}, 1),
    ("cluster:4x2", "all_reduce", "two_shot", {}, 2),
    ("cluster:3+2+1", "all_reduce", "hierarchical", {"inter": "ring"}, 4),
    ("cluster:3+2+1", "all_reduce", "ring", {"channels": 1}, 2),
    ("cluster:4x2", "all_gather", "ring", {"channels": 2}, 1),
    ("cluster:4x2", "all_gather", "pat", {}, 1),
    ("cluster:3+2+1", "all_gather", "hierarchical", {"inter": "direct"}, 1),
    ("cluster:4x2", "reduce_scatter", "pat", {}, 1),
    ("cluster:4x2", "reduce_scatter", "ring", {"channels": 2}, 2),
    ("cluster:4x2", "all_to_all", "pairwise", {}, 1),
    ("cluster:4x2", "all_to_all", "bruck", {}, 1),
    ("cluster:4x2", "all_to_all", "two_level", {}, 1),
    ("cluster:4x2", "broadcast", "chain", {}, 8),
    ("cluster:4x2", "reduce", "binomial", {}, 2),
    ("cluster:4x2", "gather", "direct", {}, 1),
    ("fattree:2x2x2", "all_reduce", "halving_doubling", {}, 1),
    ("fattree:2x2x2", "all_to_all", "pairwise", {}, 1),
    ("ring:5", "all_reduce", "ring", {"channels": 2}, 1),
    ("ring:8", "all_reduce", "swing", {}, 1),
    ("ring:8", "all_reduce", "halving_doubling", {}, 2),
    ("ring:8", "broadcast", "bine", {}, 4),
    ("ring:8", "all_to_all", "pairwise", {}, 1),
    ("line:4", "all_reduce", "two_shot", {}, 4),
    ("torus:3x3", "all_reduce", "torus", {"channels": 4}, 2),
    ("torus:4x4", "all_reduce", "ring", {"channels": 2}, 1),
    ("mesh:2x3", "all_reduce", "torus", {"channels": 2}, 1),
    ("mesh:2x3", "broadcast", "binomial", {}, 8),
    ("mesh:2x3", "all_to_all", "bruck", {}, 1),
    ("dgx-a100:1", "all_reduce", "ring", {"channels": 4}, 1),
    ("dgx-1v:1", "all_reduce", "two_shot", {}, 2),
    ("dgx-a100:2", "all_gather", "pat", {}, 1),
]


@NEEDS_SIMGRID
@pytest.mark.parametrize(("fabric", "collective", "name", "params", "segments"), PAIRS)
@pytest.mark.parametrize("chunk", [1000, 200_000])
def test_simgrid_predicts_the_same(fabric: str, collective: str, name: str, params: dict[str, Any], segments: int, chunk: int) -> None:
    topology = generate(fabric)
    spec = CollectiveSpec(collective, topology.num_ranks, 0 if collective in ROOTED else None)
    schedule = build_verified(by_name(collective, name), spec, topology, params)
    block = float(chunk * segments * schedule.chunks)
    ours = CostModel(schedule, topology).predict(block, segments).seconds
    theirs = simgrid_seconds(schedule, topology, block, segments)
    assert agreement(ours, theirs) < 0.05, f"{schedule.label} on {fabric}: {ours} s, SimGrid {theirs} s"


def test_there_are_enough_pairs_and_all_can_be_built() -> None:
    assert len(PAIRS) >= 30
    for fabric, collective, name, params, _ in PAIRS:
        topology = generate(fabric)
        spec = CollectiveSpec(collective, topology.num_ranks, 0 if collective in ROOTED else None)
        algorithm = by_name(collective, name)
        assert algorithm.reject(spec, topology) is None
        assert block_bytes(spec, 1000) > 0
        build_verified(algorithm, spec, topology, params)


@NEEDS_SIMGRID
def test_what_simgrid_is_spared() -> None:
    topology = generate("cluster:4x2")
    schedule = build_verified(by_name("all_to_all", "direct"), CollectiveSpec("all_to_all", 8), topology)
    with pytest.raises(ValueError, match="actors are threads, at most"):
        simgrid_seconds(schedule, topology, 1024.0, 1000)
    with pytest.raises(ValueError, match="a fraction of a byte"):
        simgrid_seconds(schedule, topology, 1000.5)


def test_agreement() -> None:
    assert agreement(1.0, 1.0) == 0
    assert agreement(1.0, 2.0) == agreement(2.0, 1.0) == 0.5
    assert agreement(0.0, 0.0) == 0
