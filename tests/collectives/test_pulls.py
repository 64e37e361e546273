"""Schedules whose messages are read straight from the senders' buffers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from executor_harness import execute, expected, inputs_for

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.hazards import pullable
from topoccl.algorithms.registry import ALGORITHMS
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import ROOTED, CollectiveSpec
from topoccl.collectives.errors import TransportError
from topoccl.collectives.executor import lowering
from topoccl.collectives.executor.reach import Door, Reach, address_of, hide, opens, show
from topoccl.topology.generators import generate

CASES = [(a, c) for a in ALGORITHMS for c in a.collectives]
DOOR = Door()
pytestmark = pytest.mark.skipif(not opens(DOOR.offer), reason="this system does not let processes read each other's memory")


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize(("algorithm", "collective"), CASES, ids=[f"{c}-{a.name}" for a, c in CASES])
def test_results_are_exact(algorithm: Algorithm, collective: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = generate(f"cluster:1x{ranks}")
    spec = CollectiveSpec(collective, ranks, ranks - 1 if collective in ROOTED else None)
    if algorithm.reject(spec, topology):
        pytest.skip(str(algorithm.reject(spec, topology)))
    monkeypatch.setattr(lowering, "_LEAST_PIECE", 8 * 100)  # so that folds take several pieces, the last one short
    monkeypatch.setattr(lowering, "_PIECE", 8 * 100)
    ran = 0
    for variant in algorithm.variants:
        schedule = algorithm.build(spec, topology, **variant)
        if not pullable(schedule):
            continue
        for elems, in_place in [(5, False), (1000, False), (999, True)]:
            if in_place and not spec.aliases:
                continue
            elems = 0 if collective == "barrier" else elems
            inputs = inputs_for(spec, elems, seed=elems)
            result = execute(schedule, topology.ranks_by_host, elems, inputs, in_place=in_place, pulls=True, calls=3)
            for rank, (got, want) in enumerate(zip(result.outputs, expected(spec, elems, inputs), strict=True)):
                np.testing.assert_array_equal(got, want, f"{schedule.label} on rank {rank}, in_place={in_place}")
            ran += 1
    if not ran:
        pytest.skip("sends what lies in scratch, or would wait in a circle")


def test_counts_of_its_own_for_every_pair() -> None:
    topology = generate("cluster:1x4")
    spec = CollectiveSpec("all_to_all", 4, uneven=True)
    elems = np.random.default_rng(7).integers(0, 40, 16).tolist()
    inputs = inputs_for(spec, elems)
    direct = next(a for a in ALGORITHMS if a.name == "direct" and "all_to_all" in a.collectives)
    result = execute(direct.build(spec, topology), topology.ranks_by_host, elems, inputs, pulls=True)
    for got, want in zip(result.outputs, expected(spec, elems, inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def exchange_in_place(overwrites: bool) -> Schedule:
    """Two ranks add up what both have. With ``overwrites`` the sum replaces what the other one must still read."""
    spec = CollectiveSpec("all_reduce", 2)
    b = ScheduleBuilder(spec, "exchange", chunks=2)
    for rank in (0, 1):
        b.send(b.lane(rank, "send"), (Buf.INPUT, 1 - rank), 1 - rank)
        mine = (Buf.INPUT, rank) if not overwrites else (Buf.INPUT, 1 - rank)
        b.recv_reduce(b.lane(rank, "fold"), 1 - rank, mine, (Buf.OUTPUT, mine[1]))
    return b.build()


def test_what_would_wait_in_a_circle_is_not_pulled() -> None:
    assert pullable(exchange_in_place(overwrites=False))
    assert not pullable(exchange_in_place(overwrites=True))


def test_what_lies_in_scratch_is_not_pulled() -> None:
    b = ScheduleBuilder(CollectiveSpec("broadcast", 2, 0), "through scratch")
    place = b.scratch(0, [0])
    lane = b.lane(0)
    b.copy(lane, (Buf.INPUT, 0), (Buf.SCRATCH, place))
    b.copy(lane, (Buf.INPUT, 0), (Buf.OUTPUT, 0))
    b.send(lane, (Buf.SCRATCH, place), 1)
    b.recv(b.lane(1), 0, (Buf.OUTPUT, 0))
    assert not pullable(b.build())


def shown(base: int, data: np.ndarray) -> memoryview:
    flags = memoryview(bytearray(64)).cast("q")
    show(flags, 0, base, address_of(data), 0)
    return flags


def test_reading_from_one_that_gave_up_fails() -> None:
    data, target = np.arange(100), np.zeros(100, np.int64)
    flags = shown(7, data)
    read = Reach({1: os.getpid()}).of(1, flags, 0)
    read(7, 0, 80, 160, address_of(target))
    assert target[:20].tolist() == list(range(10, 30))
    hide(flags, 0)
    flags[1] = address_of(data)
    with pytest.raises(TransportError, match="rank 1 gave up"):
        read(7, 0, 80, 160, address_of(target))


def test_reading_from_a_dead_process_or_a_wrong_place_fails() -> None:
    data, target = np.arange(100), np.zeros(100, np.int64)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    child.send_signal(signal.SIGKILL)
    child.wait()
    with pytest.raises(TransportError, match=f"the memory of rank 1 .process {child.pid}. cannot be read: No such process"):
        Reach({1: child.pid}).of(1, shown(7, data), 0)(7, 0, 0, 8, address_of(target))
    with pytest.raises(TransportError, match="cannot be read: Bad address"):
        Reach({1: os.getpid()}).of(1, shown(7, data), 0)(7, 1, 0, 8, address_of(target))


def test_a_door_opens_only_with_its_token() -> None:
    door = Door()
    pid, address, token = door.offer
    assert opens((pid, address, token))
    assert not opens((pid, address, bytes(len(token))))
    assert not opens((pid, 0, token))
