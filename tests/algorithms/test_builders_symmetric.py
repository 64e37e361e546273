"""The builders of all_reduce, all_gather, reduce_scatter and barrier: proofs on every size and many placements, in place too."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from placements import cluster, placements, uneven_placements

from topoccl.algorithms import registry
from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.schedule import Buf
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.verify import verify
from topoccl.topology.graph import Topology

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "barrier")
CANDIDATES = [
    pytest.param(collective, algorithm, dict(params), id=f"{collective}-{algorithm.name}{dict(params) or ''}")
    for collective in COLLECTIVES
    for algorithm in registry.algorithms_for(collective)
    for params in algorithm.variants
]


def prove(collective: str, algorithm: Algorithm, params: dict[str, Any], topology: Topology) -> None:
    schedule = algorithm.build(CollectiveSpec(collective, topology.num_ranks), topology, **params)
    assert schedule.algorithm == algorithm.name
    for in_place in (False, True):
        proof = verify(schedule, segments=(1, 3), in_place=in_place)
        assert proof.bitwise_equal or collective == "barrier"


@pytest.mark.parametrize("p", range(1, 34))
@pytest.mark.parametrize(("collective", "algorithm", "params"), CANDIDATES)
def test_every_size_and_placement(collective: str, algorithm: Algorithm, params: dict[str, Any], p: int) -> None:
    found = list(placements(p).values())
    # Four rings are two pairs of rings: the least regular placement is enough.
    for topology in found[-1:] if params.get("channels", 1) > 2 else found:
        prove(collective, algorithm, params, topology)


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [pytest.param(c, a, id=f"{c}-{a.name}") for c in COLLECTIVES for a in registry.algorithms_for(c)],
)
@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(topology=uneven_placements(5, 5), data=st.data())
def test_random_uneven_placements(collective: str, algorithm: Algorithm, topology: Topology, data: st.DataObject) -> None:
    prove(collective, algorithm, dict(data.draw(st.sampled_from(algorithm.variants))), topology)


@pytest.mark.parametrize(("collective", "algorithm", "params"), CANDIDATES)
def test_parameters_are_part_of_the_label(collective: str, algorithm: Algorithm, params: dict[str, Any]) -> None:
    schedule = algorithm.build(CollectiveSpec(collective, 6), cluster([4, 2]), **params)
    assert dict(schedule.params).items() >= params.items()


@pytest.mark.parametrize(("collective", "algorithm", "params"), CANDIDATES)
def test_one_rank_copies_and_sends_nothing(collective: str, algorithm: Algorithm, params: dict[str, Any]) -> None:
    schedule = algorithm.build(CollectiveSpec(collective, 1), cluster([1]), **params)
    assert [(s.operands, s.dst, s.targets) for s in schedule.steps()] == [(((Buf.INPUT, 0),), (Buf.OUTPUT, 0), ())]


@pytest.mark.parametrize(("collective", "algorithm", "params"), CANDIDATES)
def test_wrong_collective_or_size_is_refused(collective: str, algorithm: Algorithm, params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^{algorithm.name}: {collective} of 3 ranks, but the topology places 4$"):
        algorithm.build(CollectiveSpec(collective, 3), cluster([4]), **params)
    with pytest.raises(ValueError, match=rf"^{algorithm.name}: does not build scatter; it builds: .*{collective}"):
        algorithm.build(CollectiveSpec("scatter", 4, root=0), cluster([4]), **params)


@pytest.mark.parametrize(
    ("collective", "name", "params", "message"),
    [
        ("all_reduce", "ring", {"channels": 0}, "ring: channels is 0; expected a whole number, from 1 to 128"),
        ("all_reduce", "tree", {"intra": "star"}, "tree: intra is 'star'; known: chain, flat"),
        ("all_reduce", "hierarchical", {"inter": "tree"}, "hierarchical: inter is 'tree'; known: ring, direct, exchange"),
        ("all_reduce", "hierarchical", {"inter": "direct", "channels": 2}, "hierarchical: channels is 2 with inter=direct"),
        ("all_reduce", "hierarchical", {"channels": 0}, "hierarchical: channels is 0; expected a whole number, from 1 to 128"),
        ("all_gather", "hierarchical", {"inter": "exchange"}, "hierarchical: inter is 'exchange'; known: ring, direct"),
    ],
)
def test_wrong_parameters_are_refused(collective: str, name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.by_name(collective, name).build(CollectiveSpec(collective, 4), cluster([2, 2]), **params)
