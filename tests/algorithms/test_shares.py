"""Shares of links among messages that leave at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from topoccl.algorithms.registry import ALGORITHMS
from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.shares import at_once, fair_shares
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology
from topoccl.topology.load import load
from topoccl.topology.routes import routes_of

FABRICS = sorted((Path(__file__).parents[2] / "bench" / "fabrics").glob("*.yaml"))


def _schedule(name: str, collective: str, topology: Topology) -> Schedule:
    algorithm = next(a for a in ALGORITHMS if a.name == name and collective in a.collectives)
    root = 0 if collective in ("gather", "scatter") else None
    return algorithm.build(CollectiveSpec(collective, topology.num_ranks, root), topology)


@pytest.mark.parametrize("file", FABRICS, ids=lambda f: f.stem)
@pytest.mark.parametrize(("name", "collective"), [("direct", "all_to_all"), ("pairwise", "all_to_all")])
def test_no_link_is_asked_for_more_than_it_carries_and_all_end_with_the_fullest_link(file: Path, name: str, collective: str) -> None:
    topology = load(file)
    schedule = _schedule(name, collective, topology)
    assert at_once(schedule, topology)
    shares = fair_shares(schedule, topology)
    hosts, routes, links = topology.host_of_rank, routes_of(topology), topology.links
    pairs = {(a, b) for a in range(topology.num_ranks) for b in range(topology.num_ranks) if hosts[a] != hosts[b]}
    assert set(shares) == pairs
    asked: dict[int, float] = defaultdict(float)
    messages: Counter[int] = Counter()
    rate = {}
    for pair, share in shares.items():
        way = [link for link in routes.path(*pair) if links[link].kind == "net"]
        rate[pair] = share * min(links[link].bandwidth for link in way)
        for link in way:
            asked[link] += rate[pair]
            messages[link] += 1
    for link, total in asked.items():
        assert total <= links[link].bandwidth * (1 + 1e-9)
    fullest = max(messages, key=lambda link: messages[link] / links[link].bandwidth)
    assert asked[fullest] >= 0.9 * links[fullest].bandwidth
    # Who is slowest takes as long as the fullest link needs for all that crosses it, with a little room.
    assert 1 / min(rate.values()) == pytest.approx(messages[fullest] / links[fullest].bandwidth / 0.94)


@pytest.mark.parametrize(
    ("name", "collective"), [("ring", "all_reduce"), ("bruck", "all_to_all"), ("two_level", "all_to_all"), ("direct", "gather")]
)
def test_messages_that_wait_for_others_or_go_one_way_are_not_slowed_down(name: str, collective: str) -> None:
    topology = load(FABRICS[0].parent / "cluster-4x2.yaml")
    assert not at_once(_schedule(name, collective, topology), topology)


def test_inside_a_host_nothing_is_shared() -> None:
    topology = load("cluster:1x4,net=200Mbit/s")
    assert not at_once(_schedule("direct", "all_to_all", topology), topology)
