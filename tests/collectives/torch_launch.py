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


def pause() -> None:
    threading.Event().wait(0.3)


def meet(*methods: str) -> None:
    """Begins, adds up, ends, and all that again; says over which transport."""
    for method in (None, *(methods or [None])):
        dist.init_process_group("topoccl", method, timeout=timedelta(seconds=120))
        size = dist.get_world_size()
        assert total() == size * (size + 1) / 2
        group = dist.new_group(list(range(size)))
        dist.barrier(group)
        transport = dist.group.WORLD.communicator.transport.name
        if dist.get_rank() == 0:  # the others are ahead, and must not lose rank 0's store, which torch holds a while longer
            world = dist.group.WORLD
            shut_down = world.shutdown
            world.shutdown = lambda do=shut_down: (pause(), do(), pause())
            del world, shut_down
        dist.destroy_process_group()
    assert not [thread for thread in threading.enumerate() if "topoccl" in thread.name]
    print(f"met over {transport}", flush=True)


def addresses(*urls: str) -> None:
    """Begins without anything in the environment, then a group of ours in a world of Gloo's."""
    variables = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: os.environ.pop(name) for name in variables}
    rank, size = int(kept["RANK"]), int(kept["WORLD_SIZE"])
    for url in urls:
        dist.init_process_group("topoccl", url, rank=rank, world_size=size)
        assert total() == size * (size + 1) / 2
        dist.destroy_process_group()
    os.environ.update(kept)
    dist.init_process_group("gloo")
    ours = dist.new_group(list(range(size)), backend="topoccl")
    dist.all_reduce(tensor := torch.tensor([rank]), group=ours)
    assert tensor.item() == sum(range(size))
    assert isinstance(ours.communicator, topoccl.Communicator)
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


def swapped() -> None:
    """Ranks make different groups at once, and groups to which not all members come; then all goes on."""
    rank, limit = int(os.environ["RANK"]), timedelta(seconds=2)
    dist.init_process_group("topoccl", timeout=timedelta(seconds=60))

    def attempt(*members: int) -> None:
        try:
            group = dist.new_group(list(members), timeout=limit)
            print("made" if rank in members and group else "none of", *members, flush=True)
        except topoccl.TopocclError as error:
            print(type(error).__name__, error, flush=True)

    attempt(0, 1) if rank else attempt(0, 1, 2)
    attempt(*((0, 1) if rank == 0 else (1, 2)))
    attempt(*((1, 2) if rank == 0 else (0, 1)))
    for late in (2, 0):
        dist.barrier()
        if rank == late:
            threading.Event().wait(3)
        attempt(0, 1, 2)
    dist.barrier()
    assert total() == 6
    dist.destroy_process_group()


def patient() -> None:
    """Groups, calls and messages with timeouts that are longer than the world's are waited for."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0)
    dist.init_process_group("topoccl", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20))
    dist.barrier()
    long = timedelta(seconds=60)
    group = dist.new_group(list(range(size)), timeout=long)

    def late() -> None:
        if rank == 0:
            threading.Event().wait(2.5)

    late()
    dist.all_reduce(tensor := torch.ones(2), group=group)
    assert tensor[0] == size
    late()
    dist.all_reduce(torch.ones(200), group=group)
    late()
    if rank == 0:
        dist.isend(torch.ones(3), 1).wait()
    elif rank == 1:
        work = dist.irecv(tensor := torch.zeros(3), 0)
        assert work is not None
        work.wait(long)
        assert tensor[0] == 1
    store.set(f"done/{rank}", "")
    store.wait([f"done/{r}" for r in range(size)])
    dist.destroy_process_group()
    print("patient", flush=True)


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


def fail(*settings: str) -> None:
    """Prints the errors with which groups fail to begin under settings of the form NAME=VALUE, one after the other."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0)
    for setting in settings:
        name, _, value = setting.partition("=")
        # A digit before the name stands for the rank that alone has the setting.
        if name[0].isdigit() and int(name[0]) != rank:
            name = ""
        if name:
            os.environ[name.lstrip("0123456789")] = value
        try:
            dist.init_process_group("topoccl", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
        except topoccl.TopocclError as error:
            print(type(error).__name__, error, flush=True)
        os.environ.pop(name.lstrip("0123456789"), None)
    store.set(f"done/{rank}", "")
    store.wait([f"done/{r}" for r in range(size)])


def sizes() -> None:
    """Ranks are told different numbers of ranks."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0)
    try:
        dist.init_process_group("topoccl", store=store, rank=rank, world_size=size + rank, timeout=timedelta(seconds=60))
    except topoccl.MismatchError as error:
        print(error, flush=True)
    store.set(f"done/{rank}", "")
    store.wait([f"done/{r}" for r in range(size)])


if __name__ == "__main__":
    known = (meet, addresses, leave, load_data, swapped, patient, sizes, alone_to_the_end, fail)
    what: dict[str, Any] = {function.__name__: function for function in known}
    what[sys.argv[1]](*sys.argv[2:])
