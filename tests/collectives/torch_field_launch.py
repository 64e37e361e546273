"""What users of other backends reported of how programs begin and end, as a process that is one rank: ``torch_field_launch.py WHAT``."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from topoccl.collectives.errors import TopocclError

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def begin(url: str | None = None) -> None:
    more = {} if url is None else {"rank": RANK, "world_size": SIZE}
    dist.init_process_group("topoccl", url, timeout=timedelta(seconds=60), **more)


def total() -> float:
    dist.all_reduce(tensor := torch.ones(1))
    return tensor.item()


def send_and_leave(count: str) -> None:
    """Rank 0 ends as soon as its message has left; it does not wait for anything where that is short."""
    begin()
    if RANK == 0:
        work = dist.isend(torch.full((int(count),), 3.0), 1)
        if int(count) > 1000:
            work.wait()
    else:
        time.sleep(0.5)
        dist.recv(got := torch.zeros(int(count)), 0)
        assert (got == 3).all()


def leave_with_open_calls() -> None:
    begin()
    works = [dist.all_reduce(torch.ones(50_000), async_op=True) for _ in range(8)]
    works[-1].get_future().then(lambda future: future.value())


def in_detail() -> None:
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    begin()
    group = dist.new_group([0, 1])
    assert total() == SIZE
    dist.all_reduce(torch.ones(3), group=group)
    dist.barrier()
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))(torch.ones(1, 3)).sum().backward()
    dist.all_gather_object(told := [None] * SIZE, RANK)
    assert told == list(range(SIZE))
    dist.destroy_process_group()


def address(url: str) -> None:
    begin(url.replace("PORT", os.environ["MASTER_PORT"]))
    assert total() == SIZE
    dist.destroy_process_group()


def die_before_a_groups_first_call() -> None:
    begin()
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1))
    if RANK == 0:
        os._exit(0)
    with pytest.raises(TopocclError, match="rank 0"):
        dist.all_reduce(torch.ones(1), group=group)
    print("noticed", flush=True)
    os._exit(0)


def one_leaves_before_the_barrier() -> None:
    begin()
    if RANK == SIZE - 1:
        return
    with pytest.raises(TopocclError, match=f"rank {SIZE - 1}"):
        dist.barrier()


def beside_rpc(port: str) -> None:
    import torch.distributed.rpc as rpc

    begin()
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", _transports=["uv"])
    rpc.init_rpc(f"rank{RANK}", rank=RANK, world_size=SIZE, rpc_backend_options=options)
    assert rpc.rpc_sync(f"rank{(RANK + 1) % SIZE}", torch.add, (torch.ones(2), total())).tolist() == [SIZE + 1] * 2
    assert total() == SIZE
    rpc.shutdown()
    dist.destroy_process_group()


def by_other_names() -> None:
    """The first group names no backend; ours is asked for by device, and by a mesh."""
    dist.init_process_group(timeout=timedelta(seconds=60))
    group = dist.new_group(backend="cpu:topoccl")
    dist.all_reduce(tensor := torch.ones(1), group=group)
    assert (tensor.item(), dist.get_backend(group)) == (SIZE, "cpu:topoccl")
    mesh = dist.device_mesh.init_device_mesh("cpu", (SIZE,), mesh_dim_names=("all",), backend_override={"all": "topoccl"})
    assert dist.get_backend(mesh.get_group()) == "topoccl"
    dist.all_reduce(tensor, group=mesh.get_group())
    assert tensor.item() == SIZE * SIZE
    dist.destroy_process_group()


def restarted() -> None:
    """Under torchrun: fails on another rank in each of two attempts, in the midst of calls."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    begin()
    dist.all_reduce(torch.ones(1), group=dist.new_group())
    if attempt == RANK:
        os._exit(3)
    print(f"attempt {attempt}: {total():g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]](*sys.argv[2:])
