"""The cost model for short calls between hosts, in which a rank runs its steps one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from topoccl.algorithms.calibration import STAMPED, Medium, Profile, default_profile
from topoccl.algorithms.cost import CostModel, block_bytes
from topoccl.algorithms.cost.lowering import lower
from topoccl.algorithms.registry import build_verified, by_name
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.turns import in_turn
from topoccl.algorithms.verify import happens_before_order
from topoccl.topology.generators import generate
from topoccl.topology.graph import Link, Topology, Vertex, VertexKind

RATE, NEAR, FAR = 1e9, 1e-5, 1e-3
IN_LANES = Profile("in lanes")
IN_ONE_ORDER = Profile("in one order", network=Medium(stamped_overhead=1e-12))


def triangle() -> Topology:
    """Three hosts of a rank, each with a link to both others; that between 0 and 1 is long."""
    slots = ["a", "b", "c"]
    vertices = [*(Vertex(f"host-{s}", VertexKind.HOST) for s in slots), *(Vertex(s, VertexKind.SLOT, f"host-{s}") for s in slots)]
    ends = [("a", "b", FAR), ("b", "c", NEAR), ("a", "c", NEAR)]
    links = [Link(x, y, RATE, latency, "net") for p, q, latency in ends for x, y in ((p, q), (q, p))]
    return Topology("triangle", vertices, links, slots)


def relay(far_first: bool) -> Schedule:
    """Rank 0 takes a message of rank 1, from far, and passes one of rank 2, which is near, on to it: each in a lane of its own."""
    b = ScheduleBuilder(CollectiveSpec("all_gather", 3), f"relay, far {'first' if far_first else 'last'}")
    b.send(b.lane(0, "out"), (Buf.INPUT, 0), 2)
    b.send(b.lane(1, "out"), (Buf.INPUT, 0), [0, 2])
    b.send(b.lane(2, "out"), (Buf.INPUT, 0), 0)
    if far_first:
        b.recv(b.lane(0, "far"), 1, (Buf.OUTPUT, 1))
    b.recv(b.lane(0, "near"), 2, (Buf.OUTPUT, 2))
    b.send(b.lane(0, "near"), (Buf.OUTPUT, 2), 1)
    if not far_first:
        b.recv(b.lane(0, "far"), 1, (Buf.OUTPUT, 1))
    b.recv(b.lane(1, "in"), 0, (Buf.OUTPUT, 2))
    b.recv(b.lane(2, "in 0"), 0, (Buf.OUTPUT, 0))
    b.recv(b.lane(2, "in 1"), 1, (Buf.OUTPUT, 1))
    return b.build()


@pytest.mark.parametrize("far_first", [True, False])
def test_a_rank_waits_for_what_comes_first_in_its_order(far_first: bool) -> None:
    schedule = relay(far_first)
    assert CostModel(schedule, triangle(), IN_LANES).predict(0.0).seconds == pytest.approx(NEAR + FAR)
    waited = CostModel(schedule, triangle(), IN_ONE_ORDER).predict(0.0).seconds
    assert waited == pytest.approx(2 * FAR if far_first else NEAR + FAR)


def to_both() -> Schedule:
    """All send to both others, one after the other."""
    b = ScheduleBuilder(CollectiveSpec("all_gather", 3), "to both")
    for rank in range(3):
        for other in ((rank + 1) % 3, (rank + 2) % 3):
            b.send(b.lane(rank, "out"), (Buf.INPUT, 0), other)
    for rank in range(3):
        for other in ((rank + 2) % 3, (rank + 1) % 3):
            b.recv(b.lane(rank, other), other, (Buf.OUTPUT, other))
    return b.build()


def test_what_is_handed_over_holds_no_rank() -> None:
    schedule, block = to_both(), 20_000.0
    in_lanes, in_one_order = CostModel(schedule, triangle(), IN_LANES), CostModel(schedule, triangle(), IN_ONE_ORDER)
    # Rank 0 sends to 1, over the long link, first; rank 1 to 0 last.
    assert in_lanes.predict(block).seconds == pytest.approx(FAR + 2 * block / RATE)
    assert in_one_order.predict(block).seconds == pytest.approx(FAR + block / RATE)
    # Only short calls in one segment are run so.
    for arguments in ((STAMPED, 1), (block, 2)):
        assert in_one_order.predict(*arguments).seconds == pytest.approx(in_lanes.predict(*arguments).seconds)


def test_what_is_copied_into_shared_memory_holds_its_rank() -> None:
    topology = generate("cluster:2x2")
    schedule = build_verified(by_name("all_gather", "ring"), CollectiveSpec("all_gather", 4), topology, {"channels": 1})
    low = lower(schedule, topology, default_profile("tcp"), one_order=True)
    ends = [low.route_ends[route] for route in low.messages.route.tolist()]
    here = np.array([topology.host_of_rank[src] == topology.host_of_rank[dst] for src, dst, _ in ends])
    assert set(low.held[low.flow_of_message[here]]) == {True}
    assert set(low.held[low.flow_of_message[~here]]) == {False}
    assert sorted(low.line_steps.tolist()) == list(range(schedule.num_steps))
    assert (schedule.step_rank[low.line_steps] == np.repeat(np.arange(4), np.diff(low.line_ptr))).all()


@pytest.mark.parametrize("shape", ["cluster:3+2", "mesh:2x3", "ring:4"])
def test_no_prediction_of_a_short_call_is_below_its_floor(shape: str) -> None:
    topology = generate(f"{shape},net=25MB/s")
    profile = default_profile("tcp")
    profile = replace(profile, network=replace(profile.network, burst=4096.0))
    for collective, name in (
        ("all_reduce", "ring"),
        ("all_gather", "pat"),
        ("all_to_all", "pairwise"),
        ("all_reduce", "direct"),
    ):
        algorithm = by_name(collective, name)
        spec = CollectiveSpec(collective, topology.num_ranks)
        if algorithm.reject(spec, topology) is not None:
            continue
        for variant in algorithm.variants:
            schedule = build_verified(algorithm, spec, topology, variant)
            costs = CostModel(schedule, topology, profile)
            for size in (4, 4096, 16 << 10, 64 << 10):
                block = block_bytes(spec, size)
                assert costs.floor(block, 1) <= costs.predict(block).seconds * (1 + 1e-9), (schedule.label, size)


def test_steps_that_wait_come_late_and_in_order() -> None:
    schedule = relay(True)
    _, order = happens_before_order(schedule, 1)
    steps = in_turn(schedule, order, 0, {0})
    kinds = [
        "receive" if (schedule.operand_buf[schedule.operand_ptr[s] : schedule.operand_ptr[s + 1]] == Buf.PEER).any() else "send"
        for s in steps
    ]
    assert kinds == ["send", "receive", "receive", "send"]
    assert sorted(steps) == np.flatnonzero(schedule.step_rank == 0).tolist()
