"""Waits of the executor that a schedule's own proof does not cover."""

from __future__ import annotations

import pytest
from placements import placements

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.hazards import Hazards, blocking_steps
from topoccl.algorithms.registry import ALGORITHMS
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import ROOTED, CollectiveSpec
from topoccl.algorithms.verify import verify

CASES = [(a, c) for a in ALGORITHMS for c in a.collectives]


def needs_buffers() -> Schedule:
    """Right where sends are buffered: rank 0 overwrites what it sends first before it sends what rank 1 takes first."""
    b = ScheduleBuilder(CollectiveSpec("broadcast", 2, 0), "needs_buffers", chunks=2, in_place=False)
    place = b.scratch(0, [0])
    b.copy(b.lane(0, "copy"), (Buf.INPUT, 0), (Buf.SCRATCH, place))
    b.send(b.lane(0, "first"), (Buf.SCRATCH, place), 1)
    b.copy(b.lane(0, "copy"), (Buf.INPUT, 0), (Buf.SCRATCH, place))
    last = b.copy(b.lane(0, "copy"), (Buf.INPUT, 0), (Buf.OUTPUT, 0))
    b.send(b.lane(0, "second", channel=1), (Buf.INPUT, 1), 1, deps=[last])
    b.copy(b.lane(0, "copy"), (Buf.INPUT, 1), (Buf.OUTPUT, 1))
    taken = b.recv(b.lane(1, "second", channel=1), 0, (Buf.OUTPUT, 1))
    b.recv(b.lane(1, "first"), 0, (Buf.OUTPUT, 0), deps=[taken])
    return b.build()


def test_a_schedule_that_needs_buffered_sends_is_found() -> None:
    schedule = needs_buffers()
    verify(schedule)
    blocked = blocking_steps(schedule, in_place=False)
    assert {schedule.step(i).rank for i in blocked} == {0, 1}


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize(("algorithm", "collective"), CASES, ids=[f"{c}-{a.name}" for a, c in CASES])
def test_no_builder_needs_buffered_sends(algorithm: Algorithm, collective: str, ranks: int) -> None:
    spec = CollectiveSpec(collective, ranks, ranks // 2 if collective in ROOTED else None)
    for topology in placements(ranks).values():
        if algorithm.reject(spec, topology):
            continue
        for variant in algorithm.variants:
            schedule = algorithm.build(spec, topology, **variant)
            assert blocking_steps(schedule, in_place=False) == []
            if spec.aliases:
                assert blocking_steps(schedule, in_place=True) == []


def test_only_real_overwriting_waits_for_a_send() -> None:
    b = ScheduleBuilder(CollectiveSpec("all_reduce", 2), "swap")
    for rank in (0, 1):
        b.send(b.lane(rank, "send"), (Buf.INPUT, 0), 1 - rank)
        b.recv_reduce(b.lane(rank, "recv"), 1 - rank, (Buf.INPUT, 0), (Buf.OUTPUT, 0))
    schedule = b.build()
    fold = next(s.index for s in schedule.steps() if s.rank == 0 and s.dst is not None)
    send = next(s.index for s in schedule.steps() if s.rank == 0 and s.targets)
    assert Hazards(schedule, 0, in_place=True).overwritten_sends(fold) == [send]
    assert Hazards(schedule, 0, in_place=False).overwritten_sends(fold) == []


def test_a_copy_onto_itself_overwrites_nothing() -> None:
    b = ScheduleBuilder(CollectiveSpec("broadcast", 2, 0), "root")
    b.send(b.lane(0, "send"), (Buf.INPUT, 0), 1)
    copy = b.copy(b.lane(0, "copy"), (Buf.INPUT, 0), (Buf.OUTPUT, 0))
    b.recv(b.lane(1), 0, (Buf.OUTPUT, 0))
    schedule = b.build()
    index = next(s.index for s in schedule.steps() if s.rank == 0 and s.dst is not None)
    assert copy is not None
    assert Hazards(schedule, 0, in_place=True).overwritten_sends(index) == []
