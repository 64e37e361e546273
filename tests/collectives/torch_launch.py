"""A process that is one rank, for tests of how groups begin and end: ``torch_launch.py WHAT [ARGUMENT...]``."""

from __future__ import annotations

import os
import sys
import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import topoccl


def total() -> float:
    dist.all_reduce(tensor := torch.tensor([float(dist.get_rank() + 1)]))
    return tensor.item()


def meet(method: str | None = None, *expected: str) -> None:
    """Begins, adds up, ends, and all that again; says over which transport."""
    for _ in range(2):
        dist.init_process_group("topoccl", method, timeout=timedelta(seconds=30))
        size = dist.get_world_size()
        assert total() == size * (size + 1) / 2
        group = dist.new_group(list(range(size)))
        dist.barrier(group)
        transport = dist.group.WORLD.communicator.transport.name
        if dist.get_rank() == 0:
            threading.Event().wait(0.3)  # the others are ahead, and must not lose rank 0's store
        dist.destroy_process_group()
    assert not [thread for thread in threading.enumerate() if "topoccl" in thread.name]
    print(f"met over {transport}", flush=True)


def address(url: str) -> None:
    """Begins without anything in the environment."""
    rank, size = int(os.environ.pop("RANK")), int(os.environ.pop("WORLD_SIZE"))
    os.environ.pop("MASTER_ADDR")
    os.environ.pop("MASTER_PORT")
    dist.init_process_group("topoccl", url, rank=rank, world_size=size)
    assert total() == size * (size + 1) / 2
    dist.destroy_process_group()
    print("met", flush=True)


def leave() -> None:
    """Ends the program in the middle, with calls open, without destroying anything."""
    dist.init_process_group("topoccl")
    assert total() > 0
    dist.new_group(list(range(dist.get_world_size())))
    dist.all_reduce(torch.ones(10), async_op=True)
    dist.irecv(torch.ones(1), (dist.get_rank() + 1) % dist.get_world_size())
    print("left", flush=True)


def load_data() -> None:
    """Forks workers, and uses the group in a fork, after it has begun."""
    from torch.utils.data import DataLoader

    dist.init_process_group("topoccl")
    loader: Any = DataLoader(list(range(20)), batch_size=5, num_workers=2)  # type: ignore[arg-type]
    seen = sum(int(batch.sum()) for batch in loader)
    assert seen == 190
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(1))
        except topoccl.TopocclError as error:
            os._exit(0 if "of which this is a fork" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert total() > 0
    dist.destroy_process_group()
    print("loaded", flush=True)


def beside_gloo() -> None:
    """A group of ours in a world of Gloo's."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    ours = dist.new_group(list(range(size)), backend="topoccl")
    dist.all_reduce(tensor := torch.tensor([rank]), group=ours)
    assert tensor.item() == sum(range(size))
    assert isinstance(ours.communicator, topoccl.Communicator)
    dist.destroy_process_group()
    print("side by side", flush=True)


def swapped() -> None:
    """Ranks make different groups at once."""
    dist.init_process_group("topoccl", timeout=timedelta(seconds=5))
    try:
        dist.new_group([0, 1] if dist.get_rank() else [0, 1, 2], timeout=timedelta(seconds=3))
    except topoccl.TopocclError as error:
        print(type(error).__name__, error, flush=True)
    threading.Event().wait(4)  # a dead peer would be another error
    os._exit(0)


def alone_to_the_end() -> None:
    """One rank destroys the world, the others do not."""
    dist.init_process_group("topoccl")
    assert total() > 0
    if dist.get_rank() == 0:
        dist.destroy_process_group()
        print("destroyed", flush=True)
    else:
        threading.Event().wait(8)
    os._exit(0)


def fail() -> None:
    """Prints the error with which the group fails to begin."""
    try:
        dist.init_process_group("topoccl", timeout=timedelta(seconds=20))
    except topoccl.TopocclError as error:
        print(type(error).__name__, error, flush=True)
        os._exit(0)
    os._exit(1)


if __name__ == "__main__":
    what: dict[str, Any] = {
        function.__name__: function for function in (meet, address, leave, load_data, beside_gloo, swapped, alone_to_the_end, fail)
    }
    what[sys.argv[1]](*sys.argv[2:])
