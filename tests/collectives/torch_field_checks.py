"""What users of other backends reported in public, tried on ours: ``torch_field_checks.py [REPORT...]`` is one rank.

Each function has the name of the report that it repeats, as its address on GitHub has it: owner/repository#number. All hold for any
number of ranks from 2 on.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from topoccl.collectives.errors import CollectiveTimeout, ConfigError, MismatchError, TopocclError

Check = Callable[[int, int], None]
REPORTS: dict[str, Check] = {}
Tensor = torch.Tensor


def report(name: str) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        assert name not in REPORTS
        REPORTS[name] = check
        return check

    return add


def equal(got: Tensor, want: Tensor) -> None:
    assert torch.equal(got, want), f"got {got}, expected {want}"


# Uneven, empty, nobody has anything


@report("pytorch/pytorch#146468")
def only_one_rank_sends(rank: int, size: int) -> None:
    data = torch.arange(2.0 * size).view(size, 2) if rank == 0 else torch.empty(0, 2)
    got = torch.full((1, 2), -1.0)
    dist.all_to_all_single(got, data, [1] + [0] * (size - 1), [1] * size if rank == 0 else [0] * size)
    equal(got, torch.arange(2.0 * rank, 2 * rank + 2).view(1, 2))


@report("pytorch/pytorch#117486")
def splits_that_do_not_fit(rank: int, size: int) -> None:
    begun = time.monotonic()
    with pytest.raises(MismatchError, match="rank 0 sends 1 elements to rank 1, which expects 2"):
        dist.all_to_all_single(torch.empty(size + (rank == 1)), torch.ones(size), [1 + (rank == 1)] + [1] * (size - 1), [1] * size)
    assert time.monotonic() - begun < 10


@report("pytorch/pytorch#101380")
def rows_that_cannot_be_divided(rank: int, size: int) -> None:
    with pytest.raises(ConfigError, match="cannot be divided among"):
        dist.all_to_all_single(torch.empty(size + 1), torch.empty(size + 1))
    dist.all_to_all_single(got := torch.empty(0, 3), torch.empty(0, 3), [0] * size, [0] * size)
    assert got.shape == (0, 3)


@report("pytorch/gloo#179")
def nothing_to_move(rank: int, size: int) -> None:
    nothing = torch.empty(0)
    dist.reduce(nothing, 0)
    dist.all_reduce(nothing)
    dist.broadcast(nothing, size - 1)
    dist.all_gather([torch.empty(0) for _ in range(size)], nothing)
    dist.all_gather_into_tensor(torch.empty(0), nothing)
    dist.reduce_scatter_tensor(torch.empty(0), nothing)
    dist.gather(nothing, [torch.empty(0) for _ in range(size)] if rank == 0 else None)
    dist.scatter(nothing, [torch.empty(0) for _ in range(size)] if rank == 0 else None)
    if rank < 2:
        dist.send(nothing, 1) if rank == 0 else dist.recv(nothing, 0)


@report("pytorch/pytorch#20421")
def chunks_of_a_tensor(rank: int, size: int) -> None:
    whole = torch.arange(4.0 * size * 3).view(4, 3 * size) + 100 * rank
    for dim in (0, 1):
        part = whole.chunk(2, dim)[1]
        got = [torch.zeros_like(part) for _ in range(size)]
        dist.all_gather(got, part)
        for other, one in enumerate(got):
            equal(one, part + 100 * (other - rank))


@report("PrimeIntellect-ai/prime-diloco#68")
def lists_that_differ_though_their_largest_do_not(rank: int, size: int) -> None:
    """Nobody's memory is overrun, and nobody gets what belongs to another."""
    group = dist.new_group()
    sizes = [5 if rank == 1 else 4, *[6] * (size - 1)]
    with pytest.raises(MismatchError, match=r"rank 1 calls all_gather\(float32, \[5, 6"):
        dist.all_gather([torch.empty(n) for n in sizes], torch.ones(4 if rank == 0 else 6), group=group)


# Layouts


@report("pytorch/pytorch#62283")
def from_a_transposed_tensor_to_another_layout(rank: int, size: int) -> None:
    whole = torch.arange(16, dtype=torch.int32).view(4, 4)
    if rank == 0:
        dist.send(whole.T, 1, tag=128)
    elif rank == 1:
        dist.recv(got := torch.zeros(4, 4, dtype=torch.int32), 0, tag=128)
        equal(got, whole.T)


@report("pytorch/pytorch#77554")
def results_of_linear_algebra(rank: int, size: int) -> None:
    q, _ = torch.linalg.qr(torch.arange(16.0).view(4, 4).cos())
    got = torch.zeros(4, 4)
    if rank == 0:
        dist.send(q, 1)
    elif rank == 1:
        dist.recv(got, 0)
        torch.testing.assert_close(got, q)
    dist.broadcast(mine := q.clone() if rank == 0 else torch.zeros(4, 4).T, 0)
    torch.testing.assert_close(mine, q)


@report("pytorch/pytorch#74809")
def from_a_permuted_numpy_array(rank: int, size: int) -> None:
    mine = torch.from_numpy(np.transpose(np.arange(10).reshape(2, 5), (1, 0))).float() + rank
    got = [torch.zeros(5, 2) for _ in range(size)] if rank == 1 else None
    dist.gather(mine, got, dst=1)
    for other, one in enumerate(got or ()):
        equal(one, mine + (other - rank))


@report("NVIDIA/nccl#1655")
def receiving_into_a_column(rank: int, size: int) -> None:
    grid = torch.zeros(4, 4)
    if rank == 1:
        dist.irecv(grid[:, 1], 0).wait()
        equal(grid.sum(0), torch.tensor([0.0, 10.0, 0.0, 0.0]))
    elif rank == 0:
        dist.isend(torch.arange(1.0, 5.0), 1).wait()


@report("mpi4py/mpi4py#274")
def strides_of_dimensions_of_one(rank: int, size: int) -> None:
    odd = torch.ones(8).as_strided((1, 2, 2), (77, 2, 1))
    assert odd.is_contiguous()
    dist.all_reduce(odd)
    equal(odd, torch.full((1, 2, 2), float(size)))


@report("NVIDIA/Megatron-LM#5337")
def reducing_what_is_not_contiguous(rank: int, size: int) -> None:
    grid = torch.arange(12.0).view(3, 4) * (rank + 1)
    dist.all_reduce(grid.T)
    equal(grid, torch.arange(12.0).view(3, 4) * (size * (size + 1) / 2))


@report("pytorch/pytorch#144060")
def gradients_of_what_is_not_contiguous(rank: int, size: int) -> None:
    from torch.distributed.nn.functional import all_reduce

    leaf = torch.arange(6.0).view(2, 3).requires_grad_()
    total = all_reduce(leaf.T)
    equal(total.detach(), size * torch.arange(6.0).view(2, 3).T)
    total.sum().backward()
    equal(leaf.grad, torch.full((2, 3), float(size)))


@report("pytorch/pytorch#173164")
def gathering_what_is_not_contiguous(rank: int, size: int) -> None:
    mine = (torch.arange(6.0).view(2, 3) + 10 * rank).T
    dist.all_gather(got := [torch.empty(3, 2) for _ in range(size)], mine)
    dist.all_gather_into_tensor(flat := torch.empty(3 * size, 2), mine)
    for other in range(size):
        equal(got[other], mine + 10 * (other - rank))
    equal(flat, torch.cat(got))


@report("pytorch/pytorch#86830")
def inside_inference_mode(rank: int, size: int) -> None:
    with torch.inference_mode():
        got = [torch.zeros(1) for _ in range(size)]
        dist.all_gather(got, torch.tensor([float(rank)]))
        dist.all_reduce(mine := torch.ones(2), async_op=True).wait()
    assert [one.item() for one in got] == list(range(size))
    assert mine.tolist() == [size, size]


# Values


@report("pytorch/pytorch#152300")
def halves_near_their_limits(rank: int, size: int) -> None:
    most = 65504 if size == 2 else 65504 / size  # what is passed on in between is of their own type

    def of(r: int) -> Tensor:
        return torch.from_numpy(np.random.default_rng(r).uniform(-most, most, 100_003).astype(np.float16))

    dist.all_reduce(got := of(rank))
    want = sum((of(r).float() for r in range(size)), torch.zeros(()))
    if size == 2:
        equal(got, want.half())
    torch.testing.assert_close(got.float(), want.half().float(), rtol=0, atol=32.0 * size)


@report("pytorch/pytorch#21480")
def reduce_leaves_the_others_alone(rank: int, size: int) -> None:
    dist.reduce(mine := torch.full((2, 2), rank + 1.0), 0)
    equal(mine, torch.full((2, 2), size * (size + 1) / 2 if rank == 0 else rank + 1.0))


@report("huggingface/transformers#22482")
def truth_values(rank: int, size: int) -> None:
    mask = torch.tensor([True, False, True]) if rank == 0 else torch.zeros(3, dtype=torch.bool)
    dist.broadcast(mask, 0)
    assert mask.tolist() == [True, False, True]
    layer = torch.nn.Linear(3, 1)
    layer.register_buffer("mask", torch.ones(3, 3, dtype=torch.bool).tril())
    torch.nn.parallel.DistributedDataParallel(layer)(torch.ones(2, 3)).sum().backward()


@report("meta-pytorch/torchcomms#287")
def averages(rank: int, size: int) -> None:
    dist.all_reduce(floats := torch.full((7,), float(rank)), op=dist.ReduceOp.AVG)
    equal(floats, torch.full((7,), (size - 1) / 2))
    dist.all_reduce(whole := torch.full((7,), -rank - 1), op=dist.ReduceOp.AVG)
    equal(whole, torch.full((7,), -int(sum(range(size + 1)) / size)))


# Sub-groups: ranks of the world and of the group


def _last_first(size: int) -> tuple[Any, list[int]]:
    """A group without rank 0 where there are enough ranks."""
    ranks = list(range(1, size)) if size > 2 else [0, 1]
    return dist.new_group(ranks), ranks


@report("pytorch/pytorch#74602")
def scattering_objects_in_a_group(rank: int, size: int) -> None:
    group, ranks = _last_first(size)
    if rank in ranks:
        got: list[Any] = [None]
        dist.scatter_object_list(got, [f"for {r}" for r in ranks] if rank == ranks[-1] else None, src=ranks[-1], group=group)
        assert got == [f"for {rank}"]


@report("pytorch/pytorch#118337")
def gathering_objects_in_a_group(rank: int, size: int) -> None:
    group, ranks = _last_first(size)
    if rank in ranks:
        got: list[Any] | None = [None] * len(ranks) if rank == ranks[-1] else None
        dist.gather_object({"rank": rank}, got, dst=ranks[-1], group=group)
        assert got is None or got == [{"rank": r} for r in ranks]
        into = [torch.empty(1) for _ in ranks] if rank == ranks[0] else None
        dist.gather(torch.tensor([float(rank)]), into, group=group, group_dst=0)
        assert into is None or [one.item() for one in into] == ranks


@report("pytorch/pytorch#149200")
def objects_from_a_rank_of_the_group(rank: int, size: int) -> None:
    group, ranks = _last_first(size)
    if rank in ranks:
        got = [rank, "x" * 1000]
        dist.broadcast_object_list(got, group_src=len(ranks) - 1, group=group)
        assert got == [ranks[-1], "x" * 1000]


@report("pytorch/pytorch#91760")
def roots_of_a_group(rank: int, size: int) -> None:
    group, ranks = _last_first(size)
    if rank in ranks:
        dist.broadcast(data := torch.tensor([rank]), src=ranks[-1], group=group)
        assert data.item() == ranks[-1]
        dist.reduce(data := torch.tensor([rank]), dst=ranks[0], group=group)
        assert data.item() == (sum(ranks) if rank == ranks[0] else rank)
        parts = [torch.tensor([r]) for r in ranks] if rank == ranks[0] else None
        dist.scatter(data, parts, src=ranks[0], group=group)
        assert data.item() == rank


# Messages


@report("NVIDIA/nccl#479")
def both_send_first(rank: int, size: int) -> None:
    if rank < 2:
        for count in (1, 10_000, 1_000_000):
            got = torch.empty(count)
            sent = dist.isend(torch.full((count,), float(rank)), 1 - rank)
            dist.recv(got, 1 - rank)
            sent.wait()
            equal(got, torch.full((count,), 1.0 - rank))
        dist.send(torch.tensor([rank]), 1 - rank)
        dist.recv(one := torch.tensor([7]), 1 - rank)
        assert one.item() == 1 - rank


@report("NVIDIA/nccl#2130")
def a_batch_that_one_side_makes(rank: int, size: int) -> None:
    later = torch.zeros(1)
    if rank == 0:
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.tensor([123.0]), 1), dist.P2POp(dist.irecv, later, 1)])
    elif rank == 1:
        dist.irecv(got := torch.zeros(1), 0).wait()
        assert got.item() == 123
    dist.barrier()  # the open receive is in nobody's way
    if rank == 0:
        [work.wait() for work in works]
        assert later.item() == 5
    elif rank == 1:
        dist.send(torch.tensor([5.0]), 0)


@report("meta-pytorch/torchcomms#2885")
def receives_listed_before_sends(rank: int, size: int) -> None:
    nxt, before = (rank + 1) % size, (rank - 1) % size
    got = torch.empty(200_000)
    ops = [dist.P2POp(dist.irecv, got, before), dist.P2POp(dist.isend, torch.full((200_000,), float(rank)), nxt)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    equal(got, torch.full((200_000,), float(before)))


@report("pytorch/pytorch#73960")
def growing_distances(rank: int, size: int) -> None:
    for distance in range(1, size):
        got = torch.empty(3)
        ops = [
            dist.P2POp(dist.isend, torch.full((3,), float(rank)), (rank + distance) % size),
            dist.P2POp(dist.irecv, got, (rank - distance) % size),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        equal(got, torch.full((3,), float((rank - distance) % size)))


@report("pytorch/pytorch#174942")
def very_many_messages_in_a_batch(rank: int, size: int) -> None:
    nxt, before = (rank + 1) % size, (rank - 1) % size
    got = [torch.empty(2) for _ in range(300)]
    ops = [dist.P2POp(dist.isend, torch.full((2,), 1000.0 * rank + i), nxt) for i in range(300)]
    ops += [dist.P2POp(dist.irecv, one, before) for one in got]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert [one[0].item() for one in got] == [1000.0 * before + i for i in range(300)]


@report("pytorch/gloo#344")
def messages_to_oneself(rank: int, size: int) -> None:
    work = dist.group.WORLD.send([torch.tensor([3.0, rank])], rank, 5)
    dist.group.WORLD.recv([got := torch.zeros(2)], rank, 5).wait()
    work.wait()
    assert got.tolist() == [3, rank]


@report("pytorch/gloo#308")
def handles_that_nobody_keeps(rank: int, size: int) -> None:
    if rank == 0:
        for i in range(3):
            dist.isend(torch.ones(1) * i, 1, tag=i)  # neither the handle nor the tensor is kept
        gc.collect()
    elif rank == 1:
        works = [(dist.irecv(got := torch.empty(1), 0, tag=i), got) for i in (2, 0, 1)]
        for (work, got), i in zip(works, (2, 0, 1), strict=True):
            work.wait()
            assert got.item() == i


@report("pytorch/pytorch#120741")
def a_message_that_never_comes(rank: int, size: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=1))
    dist.barrier(group)
    begun = time.monotonic()
    (work,) = dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.empty(1), (rank + 1) % size, group)])
    with pytest.raises(CollectiveTimeout, match=f"recv from rank {(rank + 1) % size}"):
        work.wait()
    assert 0.5 < time.monotonic() - begun < 10


# Works and futures


@report("pytorch/pytorch#68478")
def results_are_the_outputs(rank: int, size: int) -> None:
    got = [torch.zeros(2) for _ in range(size)]
    work = dist.all_gather(got, torch.full((2,), float(rank)), async_op=True)
    work.wait()
    (result,) = work.result()
    assert [one.data_ptr() for one in result] == [one.data_ptr() for one in got]
    work = dist.all_reduce(mine := torch.ones(1), async_op=True)
    work.wait()
    assert work.result()[0].data_ptr() == mine.data_ptr()


@report("pytorch/pytorch#42048")
def every_work_has_a_future(rank: int, size: int) -> None:
    outs, flat = [torch.empty(1) for _ in range(size)], torch.empty(size)
    at_root = outs if rank == 0 else None
    works = [
        dist.all_reduce(torch.ones(1), async_op=True),
        dist.broadcast(torch.ones(1), 0, async_op=True),
        dist.reduce(torch.ones(1), 0, async_op=True),
        dist.all_gather(outs, torch.ones(1), async_op=True),
        dist.all_gather_into_tensor(flat, torch.ones(1), async_op=True),
        dist.reduce_scatter_tensor(torch.empty(1), torch.ones(size), async_op=True),
        dist.gather(torch.ones(1), at_root, async_op=True),
        dist.scatter(torch.ones(1), at_root, async_op=True),
        dist.all_to_all_single(torch.empty(size), torch.ones(size), async_op=True),
        dist.barrier(async_op=True),
    ]
    over: list[int] = []
    futures = [work.get_future().then(lambda _, i=i: over.append(i)) for i, work in enumerate(works)]
    for future in futures:
        future.wait()
    assert sorted(over) == list(range(len(works)))


@report("pytorch/pytorch#37571")
def waiting_has_a_timeout(rank: int, size: int) -> None:
    group = dist.new_group()
    if rank == 0:
        work = dist.all_reduce(mine := torch.ones(3), group=group, async_op=True)
        with pytest.raises(CollectiveTimeout, match="still running"):
            work.wait(timedelta(milliseconds=50))
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        dist.all_reduce(mine := torch.ones(3), group=group)
    assert mine.tolist() == [size] * 3


@report("pytorch/pytorch#36140")
def memory_is_not_kept(rank: int, size: int) -> None:
    """Neither by works that are over nor by those whose handles are gone."""
    seen = []
    for make in (
        lambda t: dist.all_reduce(t, async_op=True).wait(),
        lambda t: dist.all_gather([torch.empty(50_000) for _ in range(size)], t, async_op=True).wait(),
        lambda t: (dist.isend(t, (rank + 1) % size), dist.recv(torch.empty(50_000), (rank - 1) % size)),
    ):
        tensor = torch.ones(50_000)
        seen.append(weakref.ref(tensor))
        make(tensor)
        del tensor
    end = time.monotonic() + 10
    while any(ref() is not None for ref in seen) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.05)
    assert [ref() for ref in seen] == [None] * 3


@report("pytorch/pytorch#5811")
def one_tensor_for_all_outputs(rank: int, size: int) -> None:
    target = [torch.zeros(100)] * size  # what it holds then is not said; nothing is to be overrun or kept
    for _ in range(3):
        dist.all_gather(target, torch.full((100,), float(rank)))
    assert 0 <= target[0][0].item() < size


# Groups come and go


@report("pytorch/gloo#155")
def barriers_before_the_end_of_a_group(rank: int, size: int) -> None:
    for _ in range(5):
        group = dist.new_group()
        dist.barrier(group)
        dist.destroy_process_group(group)


@report("pytorch/pytorch#129868")
def groups_open_no_files(rank: int, size: int) -> None:
    dist.barrier(dist.new_group())
    before, groups = len(os.listdir("/proc/self/fd")), []
    for _ in range(10):
        groups.append(group := dist.new_group())
        dist.all_reduce(torch.ones(1), group=group)
    shared = len({*dist.group.WORLD.communicator.hosts}) < size  # such a group's shared memory has a file
    assert len(os.listdir("/proc/self/fd")) - before <= (10 if shared else 0)
    for group in groups:
        dist.destroy_process_group(group)
    del groups, group
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


@report("pytorch/pytorch#107298")
def a_group_that_was_destroyed(rank: int, size: int) -> None:
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group(group)
    with pytest.raises((TopocclError, ValueError, RuntimeError)):
        dist.all_reduce(torch.ones(1), group=group)


@report("KempnerInstitute/KempnerForge#104")
def a_thread_that_uses_the_same_group(rank: int, size: int) -> None:
    """Orders that differ between ranks are named, instead of a deadlock."""
    group, errors = dist.new_group(), []

    def save() -> None:
        try:
            dist.all_reduce(torch.ones(4), group=group)
        except TopocclError as error:
            errors.append(error)

    thread = threading.Thread(target=save)
    if rank == 0:
        thread.start()
        thread.join(1.0)
    try:
        dist.barrier(group)
    except TopocclError as error:
        errors.append(error)
    if rank:
        thread.start()
    thread.join(20)
    assert any("all_reduce(float32, 4, SUM)" in str(error) and "barrier()" in str(error) for error in errors), errors


@report("pytorch/pytorch#132471")
def sharded_parameters(rank: int, size: int) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    layer = torch.nn.Linear(5, 3)
    want = layer.weight.detach().clone()
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    fully_shard(layer, mesh=mesh)
    equal(layer.weight.full_tensor().detach(), want)


@report("pytorch/pytorch#187494")
def the_backend_behind_a_group(rank: int, size: int) -> None:
    world = dist.group.WORLD
    assert dist.get_backend() == "topoccl"
    assert distributed_c10d._get_default_group()._get_backend(torch.device("cpu")) is world
    if hasattr(dist, "get_backend_impl"):
        assert dist.get_backend_impl(device=torch.device("cpu")) is world


def main(names: list[str]) -> int:
    torch.set_num_threads(1)
    dist.init_process_group("topoccl", timeout=timedelta(seconds=300))
    dist.barrier()  # the first call of all (pytorch/pytorch#124714)
    rank, size = dist.get_rank(), dist.get_world_size()
    failed = False
    for name in names or REPORTS:
        begun = time.monotonic()
        try:
            REPORTS[name](rank, size)
            said = f"{name}: right ({time.monotonic() - begun:.2f} s)"
        except BaseException:
            failed = True
            said = f"{name}: wrong\n{traceback.format_exc()}"
        print(said, flush=True)
        dist.barrier()
    dist.destroy_process_group()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
