"""Every builder's schedules, run for real with one thread per rank: shared memory inside hosts, rendezvous messages between them.

The memory transport completes no send before its receive is begun, the strictest order a medium may have.
"""

from __future__ import annotations

import numpy as np
import pytest
from executor_harness import execute, expected, inputs_for

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.registry import ALGORITHMS
from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.spec import ROOTED, CollectiveSpec
from topoccl.topology.generators import generate

FABRICS = ["cluster:1x2", "cluster:1x3", "cluster:3+2+1", "cluster:4x2,placement=round_robin", "cluster:5x1"]
CASES = [(a, c) for a in ALGORITHMS for c in a.collectives]


def count_messages(schedule: Schedule) -> dict[tuple[int, int], int]:
    """Messages of one segment by (sender, receiver), counted from the columns."""
    found: dict[tuple[int, int], int] = {}
    for step in schedule.steps():
        for target in step.targets:
            found[step.rank, target] = found.get((step.rank, target), 0) + 1
    return found


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize(("algorithm", "collective"), CASES, ids=[f"{c}-{a.name}" for a, c in CASES])
def test_results_are_exact_and_messages_are_those_of_the_schedule(algorithm: Algorithm, collective: str, fabric: str) -> None:
    topology = generate(fabric)
    ranks = topology.num_ranks
    spec = CollectiveSpec(collective, ranks, ranks - 1 if collective in ROOTED else None)
    if algorithm.reject(spec, topology):
        pytest.skip(str(algorithm.reject(spec, topology)))
    for variant in algorithm.variants:
        schedule = algorithm.build(spec, topology, **variant)
        for elems, segments, in_place, shared in [(5, 1, False, True), (1000, 3, False, True), (999, 2, True, True), (64, 2, False, False)]:
            if in_place and not spec.aliases:
                continue
            elems = 0 if collective == "barrier" else elems
            inputs = inputs_for(spec, elems, seed=elems)
            result = execute(schedule, topology.ranks_by_host, elems, inputs, segments=segments, in_place=in_place, shared=shared)
            for rank, (got, want) in enumerate(zip(result.outputs, expected(spec, elems, inputs), strict=True)):
                np.testing.assert_array_equal(got, want, f"{schedule.label} on rank {rank}, in_place={in_place}, segments={segments}")
            if not shared:
                calls = 2
                wanted = {pair: n * segments * calls for pair, n in count_messages(schedule).items()}
                sent = {
                    (r, peer): c.sent_messages for r, t in enumerate(result.transports) for peer, c in t.counters.items() if c.sent_messages
                }
                assert sent == wanted


@pytest.mark.parametrize("fabric", ["cluster:1x4", "cluster:3+2+1", "cluster:2x2,placement=round_robin"])
def test_all_to_all_with_counts_of_its_own_for_every_pair(fabric: str) -> None:
    topology = generate(fabric)
    p = topology.num_ranks
    spec = CollectiveSpec("all_to_all", p, uneven=True)
    rng = np.random.default_rng(7)
    counts = rng.integers(0, 40, p * p)
    counts[rng.integers(0, p * p, p)] = 0
    counts[0:p] = 0  # a rank that sends nothing
    elems = counts.tolist()
    inputs = inputs_for(spec, elems)
    ran = 0
    for algorithm in (a for a in ALGORITHMS if "all_to_all" in a.collectives):
        if algorithm.reject(spec, topology):
            continue
        for segments in (1, 2):
            schedule = algorithm.build(spec, topology, **algorithm.variants[0])
            result = execute(schedule, topology.ranks_by_host, elems, inputs, segments=segments)
            for got, want in zip(result.outputs, expected(spec, elems, inputs), strict=True):
                np.testing.assert_array_equal(got, want)
            ran += 1
    assert ran >= 4


def test_messages_larger_than_the_arena_are_cut_into_segments() -> None:
    topology = generate("cluster:1x2")
    spec = CollectiveSpec("broadcast", 2, 0)
    chain = next(a for a in ALGORITHMS if "broadcast" in a.collectives and a.name == "chain")
    elems = 5 << 20  # 40 MB of int64, far above one rank's area
    inputs = inputs_for(spec, elems)
    result = execute(chain.build(spec, topology), topology.ranks_by_host, elems, inputs)
    np.testing.assert_array_equal(result.outputs[1], inputs[0])
    assert len(result.programs[0].lanes[0]) > 4
