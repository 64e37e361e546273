"""Calls that come again and again take a shorter way: right on other buffers, in every type, and no less watchful."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import topoccl
from topoccl.collectives.repeats import OFTEN

TIMES = OFTEN + 6
DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64)


@pytest.fixture(params=["aaaa", "abab", "aabc"], ids="hosts {}".format)
def comm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[topoccl.Communicator]:
    """All ranks on one host, or on several: then their messages go over sockets, with stamps."""
    monkeypatch.setenv("TOPOCCL_HOSTID", request.param[MPI.COMM_WORLD.rank])
    if request.param != "aaaa":
        monkeypatch.setenv("TOPOCCL_TRANSPORT", "tcp")
    made = topoccl.init()
    yield made
    made.close()


def takes_the_short_way(comm: topoccl.Communicator) -> bool:
    return any(known.straight is not None for known in comm._group.repeats._known.values())


def everyones(ranks: int, count: int, time: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [((torch.arange(count) * (r + 2) + 3 * time) % 4).to(dtype) for r in range(ranks)]


def summed(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total = total | part if part.dtype is torch.bool else total + part
    return total


def blocks(ranks: int, rank: int, parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.chunk(ranks)[rank] for part in parts])


@pytest.mark.parametrize("block", [6, 1])
@pytest.mark.parametrize("kind", ["array", "tensor"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_right_on_new_data_and_other_buffers(comm: topoccl.Communicator, dtype: torch.dtype, kind: str, block: int) -> None:
    if kind == "array" and dtype is torch.bfloat16:
        pytest.skip("NumPy has no bfloat16")
    p, me, root, n = comm.size, comm.rank, comm.size - 1, block * comm.size
    give: Callable[[torch.Tensor], Any] = (lambda t: t.numpy()) if kind == "array" else (lambda t: t)

    def check(name: str, call: Callable[[Any, Any], Any], mine: torch.Tensor, count: int, right: torch.Tensor | None) -> None:
        out = torch.zeros(max(count, 1), dtype=dtype)
        call(give(mine), give(out))
        if right is not None:
            assert torch.equal(out, right), name

    for time in range(TIMES):
        parts = everyones(p, n, time, dtype)
        mine, total = parts[me].clone(), summed(parts)
        check("all_reduce", comm.all_reduce, mine, n, total)
        check("all_reduce of one", comm.all_reduce, mine[:1].clone(), 1, total[:1])
        check("reduce_scatter", comm.reduce_scatter, mine, n // p, total.chunk(p)[me])
        check("all_gather", comm.all_gather, mine, n * p, torch.cat(parts))
        check("all_to_all", comm.all_to_all, mine, n, blocks(p, me, parts))
        check("reduce", lambda a, b: comm.reduce(a, b, root), mine, n, total if me == root else None)
        check("gather", lambda a, b: comm.gather(a, b, root), mine, n * p, torch.cat(parts) if me == root else None)
        check("scatter", lambda a, b: comm.scatter(a, b, root), mine, n // p, parts[root].chunk(p)[me])
        assert torch.equal(mine, parts[me])
        comm.broadcast(give(mine), root)
        assert torch.equal(mine, parts[root])
        comm.all_reduce(give(mine))
        assert torch.equal(mine, summed([parts[root]] * p))
        whole = torch.cat(parts)
        whole[: n * me] = 0
        whole[n * (me + 1) :] = 0
        comm.all_gather(give(whole[n * me : n * (me + 1)]), give(whole))
        assert torch.equal(whole, torch.cat(parts))
    assert takes_the_short_way(comm) == (p > 1)


@pytest.mark.parametrize("count", [3, 1])
def test_sums_that_overflow_raise_no_warning(comm: topoccl.Communicator, count: int) -> None:
    data, out = np.full(count, 3e38, np.float32), np.empty(count, np.float32)
    with np.errstate(all="raise"):
        for _ in range(TIMES):
            comm.all_reduce(data, out)
        assert np.isinf(out).all() == (comm.size > 1)
        with pytest.raises(FloatingPointError):
            np.add(data, data)


def test_another_call_is_noticed(comm: topoccl.Communicator) -> None:
    data = np.ones(4, np.float32)
    for _ in range(TIMES):
        comm.all_reduce(data.copy())
        comm.all_reduce(data[:3].copy())
    if comm.size == 1:
        return
    with pytest.raises(topoccl.MismatchError, match=r"all_reduce\(float32, 4, SUM\)"):
        comm.all_reduce(data[: 4 if comm.rank else 3].copy())
    with pytest.raises(topoccl.TopocclError, match="cannot be used any more"):
        comm.all_reduce(data)


def test_a_rank_that_stays_away_is_named(comm: topoccl.Communicator) -> None:
    data = np.ones(4, np.float32)
    for _ in range(TIMES):
        comm.all_reduce(data)
    if comm.size == 1 or not comm.rank:
        return
    with pytest.raises(topoccl.TopocclError, match="rank 0"):
        comm.all_reduce(data, timeout=0.5)


def test_nothing_is_left_of_a_closed_group(comm: topoccl.Communicator) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:")

    data = np.ones(4, np.float32)
    comm.all_reduce(data)
    gc.collect()
    before = mapped()
    gc.disable()
    try:
        for number in range(1, 4):
            group = comm.subgroup(range(comm.size), number)
            for _ in range(TIMES):
                group.all_reduce(data)
            group.close()
            del group
            comm.barrier()
        assert mapped() == before
    finally:
        gc.enable()


def test_stats_count_them(comm: topoccl.Communicator) -> None:
    data = np.ones(4, np.float32)

    def sent() -> int:
        return sum(row.sent_messages for way in ("shared_memory", "transport") for row in comm.stats()[way].values())

    comm.all_reduce(data)  # which also has to be agreed on
    calls, before = comm.stats()["calls"], sent()
    comm.all_reduce(data)
    each = sent() - before
    for _ in range(TIMES):
        comm.all_reduce(data)
    assert comm.stats()["calls"] == calls + TIMES + 1
    assert sent() == before + each * (TIMES + 1)
    assert each or comm.size == 1
