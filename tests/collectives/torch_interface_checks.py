"""Checks of the backend: what torch offers around collectives - ways to make groups, other devices' backends, the profiler, memory."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_reference import check, same, world

from topoccl.collectives.errors import CollectiveTimeout, TopocclError


def total(group: Any, value: float) -> float:
    dist.all_reduce(tensor := torch.tensor([value]), group=group)
    return tensor.item()


# Ways to make groups


@check
def groups_that_are_split() -> None:
    rank, size = world()
    if size == 1:
        return
    other = dist.new_group([0])  # ranks need not have equally many groups
    halves = [list(range(size // 2)), list(range(size // 2, size))]
    for _ in range(2):
        part = dist.split_group(split_ranks=halves)
        mine = halves[0] if rank < size // 2 else halves[1]
        assert dist.get_process_group_ranks(part) == mine
        assert total(part, rank) == sum(mine)
        assert "split" in part.group_desc
        dist.barrier(part)
    # Ranks count within the parent, and some are in no part.
    parent = dist.new_group(list(range(1, size)), timeout=timedelta(seconds=77))
    if rank:
        part = dist.split_group(parent, [[0]], timeout=timedelta(seconds=33), group_desc="the first")
        assert (part is None) == (rank != 1)
        if part is not None:
            assert (part.group_desc, part.communicator.timeout) == ("the first", 33.0)
            assert total(part, rank) == 1
            dist.destroy_process_group(part)
        with pytest.raises(ValueError, match="named twice"):
            dist.split_group(parent, [[0], [0]])
        with pytest.raises(ValueError, match="the parent has ranks"):
            dist.split_group(parent, [[size]])
    with pytest.raises(ValueError, match="cannot be None or empty"):
        dist.split_group()
    dist.barrier()
    if rank == 0:
        dist.destroy_process_group(other)


@check
def groups_made_by_their_members_only() -> None:
    rank, size = world()
    pairs = [[r, r + 1] for r in range(0, size - 1, 2)]
    uneven = dist.new_group([0])  # torch's names for such groups count a rank's groups
    for _ in range(3):
        mine = next((pair for pair in pairs if rank in pair), None)
        if mine is not None:  # the others do not call it
            group = dist.new_group(mine, use_local_synchronization=True)
            assert total(group, rank) == sum(mine)
            dist.destroy_process_group(group)
    dist.barrier()
    if rank == 0:
        dist.destroy_process_group(uneven)


@check
def subgroups_by_number_and_by_name() -> None:
    rank, size = world()
    mine, everyone = dist.new_subgroups(1)
    assert (total(mine, rank), len(everyone)) == (rank, size)
    if size % 2 == 0:
        mine, everyone = dist.new_subgroups(2)
        assert total(mine, rank) == 2 * (rank - rank % 2) + 1
        mine, everyone = dist.new_subgroups_by_enumeration([[r, r + size // 2] for r in range(size // 2)])
        assert total(mine, rank) == 2 * (rank % (size // 2)) + size // 2
    told: list[Any] = [None] * size
    dist.all_gather_object(told, dist.get_process_group_ranks(dist.group.WORLD))
    assert told == [list(range(size))] * size


@check
def overlapping_groups_in_any_order() -> None:
    rank, size = world()
    if size < 3:
        return
    chain = [dist.new_group([r, (r + 1) % size]) for r in range(size)]
    mine = [(r, chain[r]) for r in (rank, (rank - 1) % size)]
    works = [(r, tensor := torch.tensor([float(rank)]), dist.all_reduce(tensor, group=group, async_op=True)) for r, group in mine]
    for r, tensor, work in works:
        work.wait()
        assert tensor.item() == r + (r + 1) % size
    for root in range(size):
        group = chain[root]
        if rank in dist.get_process_group_ranks(group):
            dist.broadcast(word := torch.tensor([rank]), src=root, group=group)
            assert word.item() == root
            dist.broadcast(word := torch.tensor([rank]), group_src=1, group=group)
            assert word.item() == dist.get_global_rank(group, 1)
    for group in chain:
        dist.destroy_process_group(group)


# Timeouts


@check
def timeouts_of_groups() -> None:
    rank, size = world()
    group = dist.new_group(list(range(size)), timeout=timedelta(seconds=40))
    assert group.communicator.timeout == 40
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=41), group)
    assert group.communicator.timeout == 41
    if size > 1:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.2), group)
        if rank:
            with pytest.raises(CollectiveTimeout):
                dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    dist.destroy_process_group(group)


@check
def monitored_barrier_of_a_subgroup() -> None:
    rank, size = world()
    group = dist.new_group(list(range(size))[::-1])
    dist.monitored_barrier(group, timeout=20)
    part = dist.new_group([size - 1])
    dist.monitored_barrier(part)  # does nothing elsewhere
    dist.monitored_barrier()
    dist.destroy_process_group(group)
    if rank == size - 1:
        dist.destroy_process_group(part)


# Backends of other devices


@check
def a_backend_for_another_device() -> None:
    """CPU tensors go over ours, those of another device over that device's backend, which here is one that does nothing."""
    rank, size = world()
    import torch.testing._internal.distributed.fake_pg  # registers the backend "fake"

    for order in ("cpu:topoccl,meta:fake", "meta:fake,cpu:topoccl"):
        group = dist.new_group(list(range(size)), backend=order)
        assert group._device_types == [torch.device("cpu"), torch.device("meta")]
        assert total(group, rank) == sum(range(size))
        absent = torch.ones(4, device="meta")
        dist.all_reduce(absent, group=group)
        dist.broadcast(absent, 0, group=group)
        dist.all_gather([torch.ones(4, device="meta") for _ in range(size)], absent, group=group)
        dist.all_gather_into_tensor(torch.empty(4 * size, device="meta"), absent, group=group)
        outputs = [torch.empty(1) for _ in range(size)]
        dist.all_gather(outputs, torch.tensor([float(rank)]), group=group)
        assert [t.item() for t in outputs] == list(range(size))
        dist.barrier(group)
        told: list[Any] = [None] * size
        dist.all_gather_object(told, rank, group=group)
        assert told == list(range(size))
        assert dist.get_backend_config(group) == "cpu:topoccl,meta:fake"
        group.set_timeout(timedelta(seconds=50))
        assert group.communicator.timeout == 50
        dist.destroy_process_group(group)
    group = dist.new_group(list(range(size)), backend="cpu:topoccl,cuda:gloo")
    assert "gloo" in type(group._get_backend(torch.device("cuda"))).__name__.lower()
    assert group._get_backend(torch.device("cpu")) is group
    assert total(group, rank) == sum(range(size))
    dist.destroy_process_group(group)
    assert dist.get_backend(dist.new_group([rank], backend="gloo", use_local_synchronization=True)) == "gloo"


# Memory


@check
def storages_stay_resizable() -> None:
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    assert tensor.untyped_storage().resizable()
    tensor.untyped_storage().resize_(0)


@check
def buffers_in_flight_are_kept_alive() -> None:
    rank, size = world()
    works = []
    for i in range(20):  # nobody else holds the tensors
        works.append(dist.all_reduce(torch.full((5000,), float(i)), async_op=True))
        torch.full((5000,), -1.0)  # would take the place of one that was freed
    gc.collect()
    for i, work in enumerate(works):
        work.wait()
        same(work.result()[0], torch.full((5000,), float(i * size)))
    # Inputs that are copies, made by the call.
    outputs = torch.empty(size, 3000)
    work = dist.all_gather_into_tensor(outputs, torch.full((3000, 2), float(rank))[:, 0], async_op=True)
    gc.collect()
    work.wait()
    same(outputs[:, 0], torch.arange(float(size)))
    if size > 1:
        works = [dist.isend(torch.full((40000,), float(rank)), (rank + 1) % size, tag=3)]
        gc.collect()
        dist.recv(got := torch.empty(40000), (rank - 1) % size, tag=3)
        assert got[-1] == (rank - 1) % size
        works[0].wait()


@check
def aliases() -> None:
    """Outputs that are inputs, or share storage with them."""
    rank, size = world()
    room = torch.arange(float(4 * size)) + 100 * rank
    dist.reduce_scatter_tensor(room[4 * rank : 4 * rank + 4], room)  # in place
    want = torch.arange(4.0 * rank, 4.0 * rank + 4) * size + 100 * sum(range(size))
    same(room[4 * rank : 4 * rank + 4], want, "reduce_scatter in place")
    room = torch.arange(float(4 * size)) + 100 * rank
    dist.reduce_scatter_tensor(room[:4], room)  # in place only on rank 0
    same(room[:4], want, "reduce_scatter into the beginning")
    room = torch.zeros(size, 4)
    room[0] = rank + 1.0
    dist.all_gather_into_tensor(room, room[0])
    same(room[:, 0], torch.arange(1.0, size + 1), "all_gather from the beginning")
    room = torch.arange(float(2 * size)) + 100 * rank
    dist.all_to_all_single(room, room)
    want = torch.cat([torch.arange(2.0 * rank, 2.0 * rank + 2) + 100 * r for r in range(size)])
    same(room, want, "all_to_all in place")
    whole = torch.zeros(3, 4)
    whole[1] = rank
    dist.all_reduce(whole[1])  # a view; its neighbours are left alone
    assert whole.tolist() == [[0.0] * 4, [float(sum(range(size)))] * 4, [0.0] * 4]
    one = torch.full((2,), float(rank))
    outputs = [one if r == rank else torch.empty(2) for r in range(size)]
    dist.all_gather(outputs, one)
    assert [t[0].item() for t in outputs] == list(range(size))
    scattered = [torch.full((3,), float(10 * rank + r)) for r in range(size)]
    dist.scatter(scattered[0] if rank == 0 else one.new_empty(3), scattered if rank == 0 else None, src=0)
    dist.barrier()


@check
def two_threads_on_one_group() -> None:
    """Their calls take turns. Which thread is first may differ between ranks, so both call the same."""
    _, size = world()
    wrong: list[float] = []

    def work() -> None:
        for _ in range(30):
            dist.all_reduce(tensor := torch.ones(100))
            if not (tensor == size).all():
                wrong.append(tensor[0].item())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong, wrong


@check
def groups_used_in_different_order() -> None:
    """The calls wait for each other for ever; each rank is told which of its calls it was, and for whom it waited."""
    rank, size = world()
    if size == 1:
        return
    groups = [dist.new_group(list(range(size)), timeout=timedelta(seconds=2)) for _ in range(2)]
    first = groups[1] if rank == 0 else groups[0]
    with pytest.raises(TopocclError, match="all_reduce") as raised:
        dist.all_reduce(torch.ones(3), group=first)
    assert first.communicator.name in str(raised.value)
    dist.barrier()
    for group in groups:
        dist.destroy_process_group(group)


@check
def results_are_bitwise_the_same() -> None:
    """On all ranks and from run to run."""
    rank, size = world()
    for count in (7, 5000, 300_000):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            torch.manual_seed(rank)
            mine = torch.randn(count).to(dtype)
            runs = []
            for _ in range(3):
                dist.all_reduce(total := mine.clone())
                runs.append(total)
            assert torch.equal(runs[0], runs[1])
            assert torch.equal(runs[0], runs[2])
            dist.broadcast(first := runs[0].clone(), 0)
            assert torch.equal(runs[0], first), f"{count} of {dtype} on rank {rank} of {size}"


@check
def more_than_two_billion_elements() -> None:
    rank, size = world()
    count = 2**31 + 5
    big = torch.zeros(count, dtype=torch.uint8)
    big[-1] = rank + 1
    big[0] = 7
    dist.broadcast(big, size - 1)
    assert (big[0].item(), big[1].item(), big[-1].item()) == (7, 0, size)
    dist.barrier()


# The profiler


@check
def the_profiler_shows_calls() -> None:
    from torch.profiler import ProfilerActivity, profile

    rank, size = world()
    group = dist.group.WORLD
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        dist.all_reduce(torch.ones(3, 5))
        dist.all_gather_into_tensor(torch.empty(7 * size, dtype=torch.float64), torch.ones(7, dtype=torch.float64))
        dist.all_reduce(torch.ones(11), async_op=True).wait()
        dist.all_to_all_single(torch.empty(2 * size), torch.ones(2 * size))
        dist.barrier()
        group.allreduce_coalesced([torch.ones(2), torch.ones(4)]).wait()
        if size > 1:
            work = dist.isend(torch.ones(6), (rank + 1) % size)
            dist.recv(torch.ones(6), (rank - 1) % size)
            work.wait()
    events = profiled.events()
    assert events is not None
    shapes = {}
    for event in events:
        if event.name.startswith("topoccl:"):
            shapes.setdefault(event.name, []).append(event.input_shapes)
    assert [[3, 5]] in shapes["topoccl:all_reduce"], shapes
    assert any([7] in found for found in shapes["topoccl:all_gather"]), shapes
    for name in ("topoccl:all_to_all", "topoccl:barrier", *(["topoccl:send", "topoccl:recv"] if size > 1 else [])):
        assert name in shapes, f"{name} not in {list(shapes)}"
    labels = [name for name in shapes if name.startswith("topoccl:all_reduce ")]
    assert labels, f"no algorithm in {list(shapes)}"
    assert "topoccl:all_reduce wait" in shapes
    for i in range(5):  # calls that end after the profiler, over shared memory and as messages
        with profile(activities=[ProfilerActivity.CPU]):
            open_calls = [dist.all_reduce(torch.ones(3 * 10**i), async_op=True)]
            if size > 1:
                open_calls += [dist.irecv(torch.ones(6), (rank - 1) % size), dist.isend(torch.ones(6), (rank + 1) % size)]
        for call in open_calls:
            assert call is not None
            call.wait()


# Ends


@check
def a_thousand_groups_leave_nothing() -> None:
    _, size = world()

    def make(count: int) -> None:
        for i in range(count):
            group = dist.new_group(list(range(size)))
            if i % 100 == 0:
                dist.all_reduce(torch.ones(2), group=group, async_op=True).wait()
            dist.destroy_process_group(group)

    def held() -> tuple[int, int, int]:
        with open("/proc/self/maps") as lines:
            arenas = sum("topoccl" in line for line in lines)
        # The transport's own threads are few, and are started when several messages are waited for at once.
        threads = sum(not thread.name.startswith("topoccl-gloo-") for thread in threading.enumerate())
        return threads, len(os.listdir("/proc/self/fd")), arenas

    make(3)
    before = held()
    make(1000)
    after = held()
    assert all(a <= b for a, b in zip(after, before, strict=True)), (
        f"{before} threads, descriptors and maps became {after}: {threading.enumerate()}"
    )
