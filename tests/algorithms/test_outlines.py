"""Outlines against the schedules that they stand for: the same bytes from rank to rank, and nearly the same times."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from placements import messages, placements, round_robin

from topoccl.algorithms.algorithm import read_label
from topoccl.algorithms.cost.model import CostModel
from topoccl.algorithms.outlines import OUTLINES, estimate, outline, rounds
from topoccl.algorithms.registry import build_verified, by_name
from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.generators import generate
from topoccl.topology.graph import Topology


def scheduled(label: str, topology: Topology) -> Schedule | None:
    name, params = read_label(label)
    algorithm, spec = by_name("all_reduce", name), CollectiveSpec("all_reduce", topology.num_ranks)
    return None if algorithm.reject(spec, topology) else build_verified(algorithm, spec, topology, params)


FABRICS = [
    *placements(8).values(),
    *placements(11).values(),
    round_robin([4, 2, 3]),
    *map(generate, ("dgx-h100:2", "ring:8", "ring:5", "torus:3x3", "fattree:2x2x2")),
]


@pytest.mark.parametrize("label", OUTLINES)
def test_the_bytes_between_ranks_are_the_schedules(label: str) -> None:
    compared = 0
    for topology in FABRICS:
        schedule = scheduled(label, topology)
        if schedule is None:
            with pytest.raises(ValueError, match=r"host|wired"):
                outline(label, topology)
            continue
        wanted: Counter[tuple[int, int]] = Counter()
        for source, target, size in messages(schedule):
            wanted[source, target] += float(size)
        found: Counter[tuple[int, int]] = Counter()
        for stage in outline(label, topology).stages:
            for one in stage:
                shares = np.broadcast_to(one.share, one.src.shape).tolist()
                for source, target, share in zip(one.src.tolist(), one.dst.tolist(), shares, strict=True):
                    found[source, target] += share * one.times
        assert found == pytest.approx(wanted)
        compared += 1
    assert compared >= 3


# Fabrics on which rounds keep out of each other's way, or share links evenly; elsewhere rounds are a rougher picture.
@pytest.mark.parametrize(
    ("text", "tolerance"), [("cluster:1x4", 0.03), ("cluster:4x2", 0.03), ("dgx-h100:4", 0.12), ("fattree:2x2x2", 0.03)]
)
@pytest.mark.parametrize("nbytes", [4096, 64 << 20])
def test_times_are_near_the_simulated_ones(text: str, tolerance: float, nbytes: int) -> None:
    topology = generate(text)
    for label in OUTLINES:
        schedule = scheduled(label, topology)
        if schedule is not None:
            seconds = CostModel(schedule, topology).choose_segments(nbytes).seconds
            assert estimate(outline(label, topology), topology, nbytes).seconds == pytest.approx(seconds, rel=tolerance), label


def test_times_order_the_algorithms_of_a_ring_alike() -> None:
    topology = generate("ring:8")
    kept = [label for label in OUTLINES if label not in ("two_shot", "hierarchical[inter=direct]")]  # many messages per link: rough
    simulated = {label: CostModel(s, topology).choose_segments(1 << 20).seconds for label in kept if (s := scheduled(label, topology))}
    estimated = {label: estimate(outline(label, topology), topology, 1 << 20).seconds for label in simulated}
    assert all(estimated[label] == pytest.approx(seconds, rel=0.25) for label, seconds in simulated.items())


def test_a_ring_waits_for_its_slowest_link_and_for_its_latencies() -> None:
    topology = generate("cluster:2x4")
    fast = estimate(outline("ring[channels=1]", topology), topology, 8).seconds
    links = [link for link in topology.links if link.kind == "net"]
    assert fast > 14 * max(link.latency for link in links) / 4  # seven of eight hops stay inside a host
    large = estimate(outline("ring[channels=1]", topology), topology, 1 << 30)
    assert large.busiest_link is not None
    assert topology.links[large.busiest_link].kind == "net"
    assert large.seconds == pytest.approx(2 * 7 / 8 * (1 << 30) / min(link.bandwidth for link in links), rel=0.01)


def test_a_thousand_ranks_and_what_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = generate("dgx-h100:128")
    found = {}
    for label in ("ring[channels=1]", "ring[channels=4]", "hierarchical[inter=ring]", "halving_doubling"):
        found[label] = estimate(outline(label, topology), topology, 1 << 30)
        assert found[label].seconds >= found[label].busy_seconds > 0
    assert found["ring[channels=1]"].seconds == pytest.approx(4 * found["ring[channels=4]"].seconds, rel=0.01)
    assert found["hierarchical[inter=ring]"].seconds < found["ring[channels=4]"].seconds
    with pytest.raises(ValueError, match="make sense up to 64 ranks"):
        outline("two_shot", topology)
    with pytest.raises(ValueError, match="33538048 messages between 2048 hosts at once; at most"):
        outline("hierarchical[inter=direct]", generate("dgx-h100:2048"))
    monkeypatch.setattr(rounds, "MOST_MESSAGES", 1000)
    with pytest.raises(ValueError, match="1024 messages at once; at most 1000"):
        estimate(outline("ring[channels=1]", topology), topology, 1 << 30)


def test_one_rank_takes_no_time_and_unknown_labels_are_refused() -> None:
    one = generate("cluster:1x1")
    assert estimate(outline("ring[channels=1]", one), one, 1 << 20).seconds == 0
    with pytest.raises(ValueError, match=r"no outline of 'ring'; known: ring\[channels=1\], "):
        outline("ring", one)
