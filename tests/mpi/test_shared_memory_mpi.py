"""What shared memory promises a whole program: exact results by every way of reading, other threads that go on, no growth."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import topoccl

M = 1 << 20


@pytest.fixture(scope="module")
def comm() -> Iterator[topoccl.Communicator]:
    made = topoccl.init()
    yield made
    made.close()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def numbers(rank: int, count: int) -> np.ndarray:
    return (np.arange(count) % 1009 + rank).astype(np.float32)


@pytest.mark.parametrize("kind", ["array", "pool", "mixed"])
def test_long_messages_are_exact(comm: topoccl.Communicator, kind: str) -> None:
    """``mixed``: some ranks' buffers are mapped by the others, and some are not."""
    rank, size = comm.rank, comm.size
    block = 3 * M // 4 + 17

    def buffer(count: int) -> np.ndarray:
        pooled = kind == "pool" or (kind == "mixed" and rank % 2)
        made = topoccl.empty(count, np.float32) if pooled else np.empty(count, np.float32)
        made.fill(-1)
        return made

    whole = buffer(block * size)
    whole[:] = numbers(rank, block * size)
    everyone = [numbers(r, block * size) for r in range(size)]
    mine, out = slice(rank * block, (rank + 1) * block), buffer(block * size)
    comm.all_gather(whole[mine], out)
    np.testing.assert_array_equal(out, np.concatenate([e[r * block : (r + 1) * block] for r, e in enumerate(everyone)]))
    if size > 1 and len(set(comm.hosts)) == 1 and comm.planner.site.reach is not None:
        assert comm.last_choice is not None
        assert comm.last_choice.pulls
    comm.all_to_all(whole, out)
    np.testing.assert_array_equal(out, np.concatenate([e[mine] for e in everyone]))
    part = buffer(block)
    comm.reduce_scatter(whole, part)
    np.testing.assert_array_equal(part, sum(e[mine] for e in everyone))
    comm.all_reduce(whole, out)
    np.testing.assert_array_equal(out, sum(everyone))
    comm.broadcast(out, size - 1)
    comm.all_reduce(whole)
    np.testing.assert_array_equal(whole, out)


def test_half_precision_is_added_in_float32(comm: topoccl.Communicator) -> None:
    """2048 + 1 + ... + 1: each single step would round to 2048 in float16."""
    data = torch.full((1000,), 2048.0 if comm.rank == 0 else 1.0, dtype=torch.float16)
    comm.all_reduce(data)
    if comm.last_choice is not None and comm.last_choice.schedule.algorithm in ("direct", "two_shot"):
        wanted = torch.tensor(2048.0 + comm.size - 1).to(torch.float16)
        assert bool((data == wanted).all()), (data[0], wanted)


def test_another_thread_goes_on(comm: topoccl.Communicator) -> None:
    data = np.ones(16 * M, np.float32)
    turns, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before, calls, end = turns[0], 0, time.monotonic() + 0.5
        while comm.size > 1 and calls < 200:
            comm.all_reduce(data, op="max")
            calls += 1
            over = np.array([time.monotonic() > end])
            comm.broadcast(over)
            if over[0]:
                break
        assert comm.size == 1 or turns[0] - before > 20 * calls
    finally:
        stop.set()
        thread.join()


def test_waiting_leaves_the_core_alone(comm: topoccl.Communicator) -> None:
    data = np.ones(4, np.float32)
    comm.all_reduce(data)
    if comm.rank == 0:
        time.sleep(1)
        comm.all_reduce(data)
    else:
        begun = time.process_time()
        comm.all_reduce(data)
        assert time.process_time() - begun < 0.4


def test_calls_leave_nothing_behind(comm: topoccl.Communicator) -> None:
    small, large = np.ones(100, np.float32), np.ones(2 * M, np.float32)
    outs = [np.empty(n * comm.size, np.float32) for n in (100, 2 * M)]

    def some(calls: int) -> None:
        for _ in range(calls):
            comm.all_reduce(small, op="max")
            comm.all_gather(small, outs[0])
        for _ in range(calls // 100):
            comm.all_reduce(large, op="max")
            comm.all_gather(large, outs[1])

    some(500)
    before, pooled = resident(), comm.stats()["pool"]
    some(1000)
    assert resident() - before < M
    assert comm.stats()["pool"] == pooled
