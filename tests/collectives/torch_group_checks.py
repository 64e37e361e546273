"""Checks of the torch backend: objects, messages, asynchronous calls, groups, errors."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_reference import Op, check, same, world

import topoccl
from topoccl.collectives.errors import CollectiveTimeout, ConfigError, TopocclError


@check
def objects() -> None:
    rank, size = world()
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, {"rank": rank, "text": "x" * rank * 100})
    assert everyone == [{"rank": r, "text": "x" * r * 100} for r in range(size)]
    told = [{"from": rank}, rank] if rank == size - 1 else [None, None]
    dist.broadcast_object_list(told, size - 1)
    assert told == [{"from": size - 1}, size - 1]
    gathered: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object((rank, "y" * rank), gathered, dst=0)
    assert gathered is None or gathered == [(r, "y" * r) for r in range(size)]
    got: list[Any] = [None]
    dist.scatter_object_list(got, [f"for {r}" for r in range(size)] if rank == 0 else None, src=0)
    assert got == [f"for {rank}"]


@check
def messages() -> None:
    rank, size = world()
    right, left = (rank + 1) % size, (rank - 1) % size
    if size > 1:
        first, second = torch.full((3,), 1.0 + rank), torch.full((4, 2), 2.0 + rank).t()
        sends = [dist.isend(first, right, tag=1), dist.isend(second, right, tag=2)]
        got_second, got_first = torch.zeros(2, 8)[:, ::2], torch.zeros(3)
        later = dist.irecv(got_second, left, tag=2)  # in the other order
        assert dist.recv(got_first, left, tag=1) == left
        later.wait()
        assert later.is_completed()
        for send in sends:
            send.wait()
        same(got_first, torch.full((3,), 1.0 + left), "tag 1")
        same(got_second, torch.full((2, 4), 2.0 + left), "tag 2")
        ops = [
            dist.P2POp(dist.isend, torch.full((5,), rank, dtype=torch.int16), right),
            dist.P2POp(dist.irecv, got := torch.zeros(5, dtype=torch.int16), left),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        same(got, torch.full((5,), left, dtype=torch.int16), "batch")
        if rank == 0:
            sources = set()
            for _ in range(size - 1):
                source = dist.recv(word := torch.zeros(1, dtype=torch.int64), tag=7)
                assert word.item() == source
                sources.add(source)
            assert sources == set(range(1, size))
        else:
            dist.send(torch.tensor([rank]), 0, tag=7)
        future = dist.isend(torch.ones(2), right, tag=9).get_future()
        dist.recv(torch.zeros(2), left, tag=9)
        future.wait()
    dist.barrier()


@check
def calls_in_one() -> None:
    rank, size = world()
    tensors = [torch.full((n,), float(rank), dtype=dtype) for n, dtype in ((3, torch.float32), (4, torch.float64), (5, torch.float32))]
    dist.group.WORLD.allreduce_coalesced(tensors).wait()
    for tensor in tensors:
        assert (tensor == sum(range(size))).all()
    for device in (None, torch.device("cpu")):
        ones = [torch.ones(2), torch.ones(3)]
        with dist._coalescing_manager(device=device, async_ops=True) as manager:
            for tensor in ones:
                dist.all_reduce(tensor)
        manager.wait()
        assert [tensor.tolist() for tensor in ones] == [[size] * 2, [size] * 3]
        outputs, mine = [torch.empty(size * 2), torch.empty(size * 3)], [torch.full((2,), float(rank)), torch.full((3,), float(rank))]
        with dist._coalescing_manager(device=device):
            for output, tensor in zip(outputs, mine, strict=True):
                dist.all_gather_into_tensor(output, tensor)
        assert [output[-1].item() for output in outputs] == [size - 1] * 2
        scattered, whole = [torch.empty(2), torch.empty(3)], [torch.ones(2 * size), torch.ones(3 * size)]
        with dist._coalescing_manager(device=device):
            for output, tensor in zip(scattered, whole, strict=True):
                dist.reduce_scatter_tensor(output, tensor)
        assert [tensor.tolist() for tensor in scattered] == [[size] * 2, [size] * 3]
    group = dist.group.WORLD
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
    group.allgather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((3,), float(rank))]).wait()
    assert [[t[0].item() for t in row] for row in lists] == [[r, r] for r in range(size)]


@check
def methods_by_old_names_and_without_options() -> None:
    rank, size = world()
    group = dist.group.WORLD
    group.allreduce(one := torch.ones(2)).wait()
    group.allreduce([two := torch.full((2,), float(rank))], Op.MAX).wait()
    assert (one.tolist(), two.tolist()) == ([size] * 2, [size - 1] * 2)
    for name in ("_allgather_base", "all_gather_single"):
        getattr(group, name)(output := torch.empty(size), torch.tensor([float(rank)])).wait()
        same(output, torch.arange(float(size)), name)
    for name in ("_reduce_scatter_base", "reduce_scatter_single"):
        getattr(group, name)(output := torch.empty(1), torch.ones(size)).wait()
        assert output.item() == size
    for name in ("alltoall_base", "all_to_all_single"):
        getattr(group, name)(output := torch.empty(size), torch.full((size,), float(rank)), [], []).wait()
        same(output, torch.arange(float(size)), name)
    group.broadcast(word := torch.tensor([rank]), 0).wait()
    assert word.item() == 0
    group.barrier().wait()


@check
def functional_collectives() -> None:
    import torch.distributed._functional_collectives as functional

    rank, size = world()
    group = dist.group.WORLD
    same(functional.all_reduce(torch.ones(3), "sum", group) + 0, torch.full((3,), float(size)), "all_reduce")
    same(functional.all_gather_tensor(torch.tensor([float(rank)]), 0, group) + 0, torch.arange(float(size)), "all_gather")
    same(
        functional.reduce_scatter_tensor(torch.arange(float(size)), "sum", 0, group) + 0,
        torch.tensor([float(size * rank)]),
        "reduce_scatter",
    )
    got = functional.all_to_all_single(torch.full((size,), float(rank)), None, None, group) + 0
    same(got, torch.arange(float(size)), "all_to_all")
    same(functional.broadcast(torch.tensor([float(rank)]), size - 1, group) + 0, torch.tensor([float(size - 1)]), "broadcast")


# Asynchronous calls


@check
def asynchronous_calls() -> None:
    rank, size = world()
    tensors = [torch.full((100 * (i + 1),), float(rank + i)) for i in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    last = torch.ones(4)
    dist.all_reduce(last)  # waits for its turn
    assert all(work.is_completed() for work in works)
    for i, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        assert work.wait() in (True, None)
        assert work.is_success()
        assert work.exception() is None
        assert work.result()[0] is tensor
        same(tensor, torch.full((100 * (i + 1),), float(sum(range(size)) + i * size)))
    assert last.tolist() == [size] * 4


@check
def futures() -> None:
    _, size = world()
    for async_op in (True, False):
        tensor = torch.ones(3)
        work = dist.group.WORLD.allreduce([tensor]) if async_op else None
        if work is None:
            options = dist.AllreduceOptions()
            options.asyncOp = False
            work = dist.group.WORLD.allreduce([tensor], options)
        doubled = work.get_future().then(lambda f: f.value()[0] * 2)
        assert doubled.wait().tolist() == [2 * size] * 3
        assert work.get_future() is work.get_future()

    def chain(future: Any) -> Any:
        again = future.value()[0]
        dist.all_reduce(again)  # a callback may call collectives, and wait for asynchronous ones
        dist.all_reduce(again, async_op=True).wait()
        return again

    chained = [dist.all_reduce(torch.ones(2), async_op=True).get_future().then(chain) for _ in range(3)]
    for future in chained:
        assert future.wait().tolist() == [size**3] * 2
    dist.barrier()


@check
def threads_and_groups_at_once() -> None:
    rank, size = world()
    groups = [dist.new_group(list(range(size))) for _ in range(3)]
    wrong: list[str] = []

    def work(group: Any, number: int) -> None:
        for i in range(20):
            tensor = torch.full((50,), float(rank + number + i))
            dist.all_reduce(tensor, group=group)
            if tensor[0] != sum(range(size)) + size * (number + i):
                wrong.append(f"group {number}, call {i}: {tensor[0]}")

    threads = [threading.Thread(target=work, args=(group, number)) for number, group in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong, wrong
    for group in groups:
        dist.destroy_process_group(group)


# Groups


@check
def subgroups() -> None:
    rank, size = world()
    for ranks in itertools.chain.from_iterable(itertools.combinations(range(size), n) for n in range(1, size + 1)):
        group = dist.new_group(list(ranks))
        if rank in ranks:
            assert group.size() == len(ranks)
            assert dist.get_group_rank(group, rank) == ranks.index(rank)
            dist.all_reduce(tensor := torch.tensor([float(rank)]), group=group)
            assert tensor.item() == sum(ranks)
            dist.broadcast(word := torch.tensor([rank]), src=ranks[-1], group=group)
            assert word.item() == ranks[-1]
            dist.destroy_process_group(group)
    turned = dist.new_group(list(range(size))[::-1], sort_ranks=False) if "sort_ranks" in dist.new_group.__code__.co_varnames else None
    if turned is not None:
        everyone = [torch.empty(1) for _ in range(size)]
        dist.all_gather(everyone, torch.tensor([float(rank)]), group=turned)
        assert [t.item() for t in everyone] == list(range(size))[::-1]
    local = dist.new_group([rank], use_local_synchronization=True)
    dist.all_reduce(tensor := torch.ones(1), group=local)
    assert tensor.item() == 1
    assert local.group_name
    assert local.group_desc
    assert local.name() == "topoccl" or local.getBackendName() == "topoccl"


@check
def meshes() -> None:
    _, size = world()
    mesh = dist.init_device_mesh("cpu", (1, size), mesh_dim_names=("outer", "inner"))
    dist.all_reduce(tensor := torch.ones(1), group=mesh.get_group("inner"))
    assert tensor.item() == size
    dist.all_reduce(tensor := torch.ones(1), group=mesh.get_group("outer"))
    assert tensor.item() == 1


def resources() -> tuple[int, int]:
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


@check
def many_groups_leave_nothing() -> None:
    _, size = world()

    def make(count: int) -> None:
        for _ in range(count):
            group = dist.new_group(list(range(size)))
            dist.all_reduce(torch.ones(2), group=group, async_op=True).wait()
            dist.destroy_process_group(group)

    make(3)
    before, maps = resources(), arenas()
    make(60)
    after = resources()
    assert after[0] <= before[0] + 3  # a crowded machine makes for more messages that are late at a time, for which threads wait
    assert after[1] <= before[1]
    assert arenas() <= maps


def arenas() -> int:
    with open("/proc/self/maps") as lines:
        return sum("topoccl" in line for line in lines)


# What is asked and told


@check
def looking_in() -> None:
    group = dist.group.WORLD
    dist.all_reduce(torch.ones(1000))
    assert "all_reduce" in group.explain()
    assert group.communicator.last_choice is not None
    stats = group.communicator.stats()
    assert set(stats["transport"]) == set(range(group.size()))
    assert dist.get_backend() == "topoccl"
    assert group._device_types == [torch.device("cpu")]
    assert isinstance(group.communicator, topoccl.Communicator)


@check
def monitored_barriers() -> None:
    rank, size = world()
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)
    if size > 1:
        if rank == 0:
            with pytest.raises(CollectiveTimeout, match="Rank 1 failed to pass monitoredBarrier"):
                dist.monitored_barrier(timeout=timedelta(milliseconds=50))
        dist.barrier()
        dist.monitored_barrier(timeout=timedelta(seconds=20))


@check
def wrong_arguments_are_refused() -> None:
    rank, size = world()
    wrong: list[tuple[str, Callable[[], Any]]] = [
        ("expected one per rank", lambda: dist.group.WORLD.allgather([[torch.ones(1)] * (size + 1)], [torch.ones(1)])),
        ("add up to", lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size), [2] * size, [1] * size)),
        ("cannot be divided", lambda: dist.all_to_all_single(torch.ones(size + 1), torch.ones(size + 1))),
        ("expected", lambda: dist.all_gather_into_tensor(torch.ones(size + 1), torch.ones(1))),
        ("tag", lambda: dist.isend(torch.ones(1), (rank + 1) % size, tag=1 << 20)),
    ]
    for text, call in wrong[: None if size > 1 else 1]:
        with pytest.raises(ConfigError, match=text):
            call()
    dist.barrier()


@check
def a_missing_rank_is_named_in_time() -> None:
    """Ends the group that it uses, and nothing else."""
    rank, size = world()
    if size == 1:
        return
    group = dist.new_group(list(range(size)))
    group.set_timeout(timedelta(seconds=1))
    if rank != size - 1:
        begun = time.monotonic()
        work = dist.all_reduce(torch.ones(5), group=group, async_op=True)
        with pytest.raises(CollectiveTimeout, match="all_reduce") as raised:
            work.wait()
        assert time.monotonic() - begun < 30
        assert work.exception() is raised.value
        assert work.is_completed()
        assert not work.is_success()
        with pytest.raises(RuntimeError):
            work.get_future().wait()
        with pytest.raises(TopocclError, match="cannot be used any more"):
            dist.all_reduce(torch.ones(5), group=group)
    dist.barrier()
    dist.destroy_process_group(group)
    dist.barrier()


@check
def aborting_from_another_thread() -> None:
    rank, size = world()
    if size == 1:
        return
    for used_before in (False, True):
        group = dist.new_group(list(range(size)))
        if used_before:
            dist.all_reduce(torch.ones(5), group=group)
        if rank != size - 1:
            threading.Timer(0.2, group.abort).start()
            begun = time.monotonic()
            with pytest.raises(TopocclError):
                dist.all_reduce(torch.ones(5), group=group)
            assert time.monotonic() - begun < 20
        dist.barrier()
        dist.destroy_process_group(group)


@check
def timeouts_can_be_changed() -> None:
    rank, size = world()
    if size == 1:
        return
    group = dist.new_group(list(range(size)))
    dist.all_reduce(torch.ones(5), group=group)
    group.set_timeout(timedelta(milliseconds=300))
    if rank != 0:
        with pytest.raises(CollectiveTimeout, match=r"timeout of 0\.3 s"):
            dist.all_reduce(torch.ones(5), group=group)
    dist.barrier()
    dist.destroy_process_group(group)
