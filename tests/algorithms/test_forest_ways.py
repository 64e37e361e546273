"""Forests over all ways of a fabric cost exactly their bound, on every graph; schedules that name ways say which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_fabrics import bare, fabrics, lopsided

from topoccl.algorithms.builders import forest as builder
from topoccl.algorithms.cost import CostModel, block_bytes
from topoccl.algorithms.forest import Forest, keep_in, synthesise
from topoccl.algorithms.forest.pieces import MOST_WEIGHT
from topoccl.algorithms.forest.splitting import feasible
from topoccl.algorithms.forest.trimming import trimmed
from topoccl.algorithms.forest.ways import WayMap, straight
from topoccl.algorithms.msccl import MscclError, read_msccl, write_msccl
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder, Way
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.verify import ScheduleError, verify
from topoccl.algorithms.ways import links_of, name_way
from topoccl.topology import Topology
from topoccl.topology.bounds import certificate
from topoccl.topology.bounds.network import network_of
from topoccl.topology.load import load

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce")
ENDLESS = 1 << 50
MANY = 1 << 60
HANDED = Path(__file__).resolve().parents[3] / "shared" / "topologies"


class _Kept(dict[str, str]):
    """Forests that are asked for again, by the builder, are not made twice."""

    def put(self, key: str, text: str) -> None:
        self[key] = text


@pytest.fixture(autouse=True, scope="module")
def _kept() -> Iterator[None]:
    keep_in(_Kept())
    yield
    keep_in(None)


def check(topology: Topology, collective: str, root: int = 0, k: int = MANY) -> Forest:
    """The forest, whose proved schedule costs what it says, counted by the steps on the ways that they name."""
    where = root % topology.num_ranks if collective in ("broadcast", "reduce") else None
    forest = synthesise(topology, collective, where, k, "any")
    schedule = builder.build(CollectiveSpec(collective, topology.num_ranks, where), topology, k=k, ways="any")
    verify(schedule, topology=topology)
    model = CostModel(schedule, topology)
    pace = model.floor(block_bytes(schedule.spec, ENDLESS), ENDLESS) / ENDLESS
    assert pace == pytest.approx(forest.seconds_per_byte, rel=1e-6)
    assert float(certificate(topology, collective, where).seconds_per_byte) / pace == pytest.approx(forest.share, rel=1e-6)
    assert forest.share <= 1 + 1e-9
    return forest


def exactly(forest: Forest) -> object:
    """1, but for what weights lose that are too long for a schedule's columns."""
    weights: dict[int, int] = {}
    for piece in forest.pieces:
        weights[piece.block] = weights.get(piece.block, 0) + piece.weight
    return pytest.approx(1, rel=1e-9 if max(weights.values()) < MOST_WEIGHT // 2 else 1e-6)


def handed() -> list[Path]:
    return [path for path in sorted(HANDED.glob("*/*")) if path.parent.name != "msccl_xml"]


@pytest.mark.skipif(not HANDED.is_dir(), reason="the handed topologies are not here")
@pytest.mark.parametrize("part", range(4))
def test_every_handed_topology_exactly(part: int) -> None:
    """Files of 2 to 16 accelerators: all five collectives on some, on the others two each, from different roots; with few trees, what they
    say."""
    found = 0
    for at, path in enumerate(handed()):
        if at % 4 != part:
            continue
        try:
            topology = load(path)
        except ValueError:
            continue
        if not 2 <= topology.num_ranks <= 16:
            continue
        found += 1
        tried = COLLECTIVES if topology.num_ranks <= 8 and found % 4 == 0 else [COLLECTIVES[(at + shift) % 5] for shift in (0, 2)]
        for collective in tried:
            forest = check(topology, collective, root=at)
            assert forest.share == exactly(forest), (path.name, collective)
        check(topology, COLLECTIVES[at % 5], root=at + 1, k=1 + at % 3)
    assert found >= 10


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("spec", ["dgx-a100:2", "dgx-h100:1", "rails:4x2,net=1GB/s+500MB/s", "racks:2x2x2,oversub=4", "cluster:3+2+1"])
def test_generated_fabrics_exactly(spec: str, collective: str) -> None:
    forest = check(load(spec), collective, root=1)
    assert forest.share == exactly(forest)


def test_few_trees_lose_little() -> None:
    """ForestColl's figure for one tree per root on 2 x 8 A100, and a broadcast by one tree over eight accelerators on one switch."""
    assert check(load("dgx-a100:2"), "all_gather", k=1).share == pytest.approx(342.9 / 346.7, rel=1e-3)
    assert check(load("dgx-h100:1"), "broadcast", k=1).share > 0.98
    shares = [check(load("racks:2x2x2,oversub=4"), "broadcast", k=k).share for k in (1, 2, 4)]
    assert shares == sorted(shares)


@settings(deadline=None, derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(fabrics(switches=4), st.sampled_from(COLLECTIVES), st.integers(0, 4))
def test_any_graph_with_switches_exactly(topology: Topology, collective: str, root: int) -> None:
    """Several ways, parallel links, unequal rates."""
    forest = check(topology, collective, root)
    assert forest.share == exactly(forest)
    assert check(topology, collective, root, k=1).share > 0.1


@settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(lopsided(), st.sampled_from(["all_gather", "reduce_scatter", "broadcast", "reduce"]), st.integers(0, 4))
def test_switches_that_send_more_than_they_receive(topology: Topology, collective: str, root: int) -> None:
    """As fast as any trees: the rate of the linear programme, which may be less than the bound."""
    network = network_of(topology)
    turned = network.reversed() if collective.startswith("reduce") else network
    gathers = collective in ("all_gather", "reduce_scatter")
    roots = network.ranks if gathers else [network.ranks[root % topology.num_ranks]]
    rate, widths = trimmed(turned, dict.fromkeys(roots, 1))
    assert all(0 <= width <= capacity for width, capacity in zip(widths, network.capacity, strict=True))
    forest = check(topology, collective, root)
    assert forest.seconds_per_byte == pytest.approx(float(1 / (rate * len(roots) * network.unit)), rel=1e-6)


def test_where_no_trees_reach_the_bound() -> None:
    """A root feeds a switch with 4; the two ranks behind it can tell each other only 1, so that 3 is the most: rank 3, which receives
    and sends much, hides that from the bound."""
    topology = bare(4, [(0, 4, 4), (4, 1, 4), (4, 2, 4), (1, 4, 1), (2, 4, 1), (4, 0, 1), (0, 3, 20), (3, 0, 20)], 1)
    assert check(topology, "broadcast").share == pytest.approx(3 / 4)
    assert check(topology, "all_gather").share == pytest.approx(1)


def test_trimming_takes_only_what_is_not_needed() -> None:
    network = network_of(bare(3, [(0, 3, 2), (3, 1, 2), (3, 2, 2), (1, 3, 1), (2, 3, 1), (3, 0, 7)], 1))
    rate, widths = trimmed(network, {network.ranks[0]: 1})
    assert rate == 2
    switch = next(v for v in range(len(network.names)) if v not in network.ranks)
    into = sum(w for (_, head), w in zip(network.arcs, widths, strict=True) if head == switch)
    out = sum(w for (tail, _), w in zip(network.arcs, widths, strict=True) if tail == switch)
    assert into == out
    capacities = {arc: int(width * 60) for arc, width in zip(network.arcs, widths, strict=True)}
    assert feasible(capacities, {network.ranks[0]: 120}, network.ranks)


def test_few_equal_ways_are_the_networks_own() -> None:
    """Where there is one way, none is named, and the schedule is like any other."""
    topology = load("cluster:4x1")
    schedule = builder.build(CollectiveSpec("all_gather", 4), topology, ways="any")
    assert (schedule.ways, schedule.target_way) == ((), None)


def test_it_is_refused_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="ways is 'all'; known: own, any"):
        builder.build(CollectiveSpec("all_gather", 4), load("ring:4"), ways="all")


# Ways


def test_a_way_map_follows_the_capacity() -> None:
    ways = WayMap({(0, 9): {(1,): 3, (2,): 2}, (9, 5): {(3,): 4}, (9, 6): {(4,): 1}})
    ways.join(0, 9, 5, 4)
    ways.join(0, 9, 6, 1)
    assert sum(ways.rows[0, 5].values()) == 4
    assert {way[-1] for way in ways.rows[0, 5]} == {3}
    both = {
        first: sum(part for row in (ways.rows[0, 5], ways.rows[0, 6]) for way, part in row.items() if way[0] == first) for first in (1, 2)
    }
    assert both == {1: 3, 2: 2}


def test_rounds_are_left_out() -> None:
    topology = bare(2, [(0, 2, 1), (2, 3, 1), (3, 2, 1), (2, 1, 1), (1, 0, 1)], 2)
    assert straight(topology, (0, 1, 2, 3)) == (0, 3)
    assert straight(topology, (0, 3)) == (0, 3)


TWICE = bare(2, [(0, 2, 4), (0, 2, 2), (2, 1, 9), (0, 1, 1), (1, 0, 1)], 1)
SECOND: Way = (("s0", "s2", "s1"), (1, 0))


def sent(way: Way | None) -> Schedule:
    """A broadcast from rank 0 to rank 1 over ``way``."""
    b = ScheduleBuilder(CollectiveSpec("broadcast", 2, 0), "test")
    b.copy(b.lane(0, "copy"), (Buf.INPUT, 0), (Buf.OUTPUT, 0))
    b.step(b.lane(0), [(Buf.INPUT, 0)], None, [1], ways=(way,))
    b.recv(b.lane(1), 0, (Buf.OUTPUT, 0))
    return b.build()


def test_messages_cost_what_the_links_of_their_ways_do() -> None:
    assert name_way(TWICE, (1, 2)) == SECOND
    assert links_of(TWICE, SECOND) == (1, 2)
    named = CostModel(sent(SECOND), TWICE).predict(8)
    assert (named.bytes_by_link, named.bottleneck_link, named.seconds) == ({1: 8.0, 2: 8.0}, 1, 4.0)
    own = CostModel(sent(None), TWICE).predict(8)
    assert (own.bytes_by_link, own.seconds) == ({3: 8.0}, 8.0)
    assert sent(SECOND).digest != sent(None).digest


def test_ways_must_be_there() -> None:
    verify(sent(SECOND))
    verify(sent(SECOND), topology=TWICE)
    gone = sent((("s0", "s3", "s1"), (0, 0)))
    with pytest.raises(ScheduleError, match=r"step 1 .* takes way 0: topology 'bare' has no link s0->s3"):
        verify(gone, topology=TWICE)
    with pytest.raises(ValueError, match="has no link s0->s3"):
        CostModel(gone, TWICE)
    with pytest.raises(ScheduleError, match="2 links s0->s2, no number 2"):
        verify(sent((("s0", "s2", "s1"), (2, 0))), topology=TWICE)
    with pytest.raises(ScheduleError, match="sends from s0 to s1 by way 0, which leads from s0 to s2"):
        verify(sent((("s0", "s2"), (0,))), topology=TWICE)
    with pytest.raises(ScheduleError, match="way 0 has 1 vertices and 0 links"):
        verify(sent((("s0",), ())))
    with pytest.raises(ScheduleError, match="target_way must name ways 0 to 0"):
        verify(replace(sent(SECOND), target_way=np.array([1], dtype=np.int32)))
    with pytest.raises(ScheduleError, match="target_way has 2 entries; expected 1"):
        verify(replace(sent(SECOND), target_way=np.array([0, 0], dtype=np.int32)))


def test_ways_in_documents() -> None:
    schedule = builder.build(CollectiveSpec("all_gather", 8), load("dgx-a100:1,latency=0"), ways="any")
    for one in (schedule, sent(SECOND)):
        again = read_msccl(write_msccl(one))
        assert (again.digest, again.ways) == (one.digest, one.ways)
    text = write_msccl(sent(SECOND))
    for bad, message in (
        (text.replace("[[[&quot;s0&quot;", "[[[0"), "expected a list of .vertices, links. in JSON"),
        (text.replace('topoccl_target_ways="0"', 'topoccl_target_ways="0 0"'), "topoccl_target_ways has 2 entries; expected 1"),
    ):
        assert bad != text
        with pytest.raises(MscclError, match=message):
            read_msccl(bad)


def test_weights_are_kept_small() -> None:
    forest = synthesise(bare(2, [(0, 1, 1 << 40), (1, 0, (1 << 40) - 1), (0, 2, 3), (2, 1, 3)], 1), "all_gather", None, MANY, "any")
    assert max(piece.weight for piece in forest.pieces) <= MOST_WEIGHT
    assert Fraction(forest.share).limit_denominator(10**6) == 1
