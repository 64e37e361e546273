"""Which schedules tell every rank that all others run them."""

from __future__ import annotations

import pytest
from placements import placements

from topoccl.algorithms.hearing import everyone_hears
from topoccl.algorithms.registry import ALGORITHMS
from topoccl.algorithms.schedule import Buf, ScheduleBuilder
from topoccl.algorithms.spec import ROOTED, CollectiveSpec

MEETING = [(a, c) for a in ALGORITHMS for c in a.collectives if c not in ROOTED]


@pytest.mark.parametrize(("algorithm", "collective"), MEETING, ids=[f"{c}-{a.name}" for a, c in MEETING])
def test_a_result_that_all_contribute_to_comes_from_all(algorithm, collective) -> None:  # type: ignore[no-untyped-def]
    spec = CollectiveSpec(collective, 6, None)
    for topology in placements(6).values():
        if not algorithm.reject(spec, topology):
            for variant in algorithm.variants:
                assert everyone_hears(algorithm.build(spec, topology, **variant), [[rank] for rank in range(6)])


def relay(back: bool) -> ScheduleBuilder:
    """Rank 0 to 1, which passes it on to 2; and back from 2 to 0."""
    b = ScheduleBuilder(CollectiveSpec("broadcast", 3, 0), "relay")
    b.send(b.lane(0), (Buf.INPUT, 0), 1)
    b.copy(b.lane(0), (Buf.INPUT, 0), (Buf.OUTPUT, 0))
    b.recv(b.lane(1), 0, (Buf.OUTPUT, 0))
    b.send(b.lane(1), (Buf.OUTPUT, 0), 2)
    b.recv(b.lane(2), 1, (Buf.OUTPUT, 0))
    if back:
        b.send(b.lane(2), (Buf.OUTPUT, 0), 0)
        b.recv(b.lane(0), 2, (Buf.OUTPUT, 0))
    return b


def test_what_is_sent_beside_a_receive_tells_nothing_of_it() -> None:
    """Rank 1 may run its lanes in any order: what it sends to 2 may leave before 0 has told it anything, however late in its lane."""
    b = ScheduleBuilder(CollectiveSpec("all_gather", 3), "beside")
    for rank in (0, 1, 1, 1, 1, 2):
        b.copy(b.lane(rank, "own"), (Buf.INPUT, 0), (Buf.OUTPUT, rank))
    for src, dst in ((0, 1), (2, 0), (2, 1), (1, 0)):
        b.send(b.lane(src, dst), (Buf.INPUT, 0), dst)
        b.recv(b.lane(dst, src), src, (Buf.OUTPUT, src))
    b.send(b.lane(1, "own"), (Buf.OUTPUT, 1), 2)
    b.recv(b.lane(2, 1), 1, (Buf.OUTPUT, 1))
    schedule = b.build()
    assert not everyone_hears(schedule, [[0], [1], [2]])
    assert everyone_hears(schedule, [[0, 1], [2]])


def test_who_hears_nothing_of_some() -> None:
    alone = [[0], [1], [2]]
    assert not everyone_hears(relay(back=False).build(), alone)
    assert not everyone_hears(relay(back=True).build(), alone)  # rank 1 hears nothing of 2
    assert everyone_hears(relay(back=True).build(), [[0], [1, 2]])
    assert not everyone_hears(relay(back=False).build(), [[0], [1, 2]])  # rank 0 hears nothing
