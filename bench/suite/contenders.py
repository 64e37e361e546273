"""Who is compared: topoccl through torch.distributed and its communicator, Gloo, Open MPI, and a plain memory copy.

Each contender prepares a call for a collective and a size as nccl-tests counts it; buffers are float32.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from topoccl.collectives.executor.reach import address_of

Call = Callable[[], Any]
ELEMENT = 4  # bytes

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "sendrecv")


def counts(collective: str, nbytes: int, ranks: int) -> tuple[int, int]:
    """Elements of the input and of the output of one rank for a size as nccl-tests counts it."""
    n = max(nbytes // ELEMENT, 1)
    block = max(n // ranks, 1)
    match collective:
        case "all_gather" | "gather":
            return block, block * ranks
        case "reduce_scatter" | "scatter":
            return block * ranks, block
        case "all_to_all":
            return block * ranks, block * ranks
        case _:
            return n, n


def ones(count: int, dtype: Any = np.float32) -> Any:
    """An array of ones that begins with a page. Where NumPy's begin differs, and some copies take twice as long between arrays that do
    not lie alike in their cache lines: contenders would not be given the same."""
    itemsize = np.dtype(dtype).itemsize
    room = np.empty(count * itemsize + mmap.PAGESIZE, np.uint8)
    start = -address_of(room) % mmap.PAGESIZE
    found = room[start : start + count * itemsize].view(dtype)
    found[...] = 1
    return found


def copied_bytes(collective: str, nbytes: int, ranks: int, rank: int) -> float:
    """The copy limit: what one rank copies while all do, as many bytes as its output holds; 2.5 times the vector where all ranks'
    are combined for all."""
    inp, out = counts(collective, nbytes, ranks)
    if collective in ("all_reduce", "reduce_scatter"):
        return 2.5 * inp * ELEMENT
    return 0.0 if collective in ("reduce", "gather") and rank else out * ELEMENT


class TorchContender:
    """``torch.distributed`` calls on one process group."""

    def __init__(self, name: str, group: Any) -> None:
        import torch
        import torch.distributed as dist

        self.name = name
        self._torch, self._dist, self._group = torch, dist, group
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)

    def prepare(self, collective: str, nbytes: int) -> Call:
        dist, group, rank, ranks = self._dist, self._group, self._rank, self._ranks
        n, m = counts(collective, nbytes, ranks)
        inp, out = self._torch.ones(n), self._torch.ones(m)
        parts_in, parts_out = list(inp.chunk(ranks)), list(out.chunk(ranks))
        root = rank == 0
        # Older names only where there are no others: torch 2.13 spends time on warnings that nobody sees.
        all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

        def sendrecv() -> None:
            works = [dist.isend(inp, (rank + 1) % ranks, group=group), dist.irecv(out, (rank - 1) % ranks, group=group)]
            for work in works:
                work.wait()

        calls: dict[str, Call] = {
            "all_reduce": lambda: dist.all_reduce(inp, group=group),
            "all_gather": lambda: all_gather(out, inp, group=group),
            "reduce_scatter": lambda: reduce_scatter(out, inp, group=group),
            "all_to_all": lambda: dist.all_to_all_single(out, inp, group=group),
            "broadcast": lambda: dist.broadcast(inp, 0, group=group),
            "reduce": lambda: dist.reduce(inp, 0, group=group),
            "gather": lambda: dist.gather(inp, parts_out if root else None, 0, group=group),
            "scatter": lambda: dist.scatter(out, parts_in if root else None, 0, group=group),
            "sendrecv": sendrecv,
        }
        return calls[collective]


class CommunicatorContender:
    """A topoccl communicator on NumPy arrays, out of place."""

    def __init__(self, name: str, communicator: Any) -> None:
        self.name = name
        self.communicator = communicator

    def prepare(self, collective: str, nbytes: int) -> Call:
        comm = self.communicator
        n, m = counts(collective, nbytes, comm.size)
        inp, out = ones(n), ones(m)
        root = comm.rank == 0

        def sendrecv() -> None:
            sending = comm.send(inp, (comm.rank + 1) % comm.size, async_op=True)
            comm.recv(out, (comm.rank - 1) % comm.size)
            sending.wait()

        calls: dict[str, Call] = {
            "all_reduce": lambda: comm.all_reduce(inp, out),
            "all_gather": lambda: comm.all_gather(inp, out),
            "reduce_scatter": lambda: comm.reduce_scatter(inp, out),
            "all_to_all": lambda: comm.all_to_all(inp, out),
            "broadcast": lambda: comm.broadcast(inp),
            "reduce": lambda: comm.reduce(inp, out),
            "gather": lambda: comm.gather(inp, out if root else None),
            "scatter": lambda: comm.scatter(inp if root else None, out),
            "sendrecv": sendrecv,
        }
        return calls[collective]


class MpiContender:
    """Open MPI's own collectives through mpi4py's buffer calls, out of place."""

    def __init__(self, name: str) -> None:
        from mpi4py import MPI

        self.name = name
        self._comm = MPI.COMM_WORLD.Dup()

    def prepare(self, collective: str, nbytes: int) -> Call:
        comm = self._comm
        rank, ranks = comm.rank, comm.size
        n, m = counts(collective, nbytes, ranks)
        inp, out = ones(n), ones(m)
        root = rank == 0
        calls: dict[str, Call] = {
            "all_reduce": lambda: comm.Allreduce(inp, out),
            "all_gather": lambda: comm.Allgather(inp, out),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(inp, out),
            "all_to_all": lambda: comm.Alltoall(inp, out),
            "broadcast": lambda: comm.Bcast(inp),
            "reduce": lambda: comm.Reduce(inp, out if root else None),
            "gather": lambda: comm.Gather(inp, out if root else None),
            "scatter": lambda: comm.Scatter(inp if root else None, out),
            "sendrecv": lambda: comm.Sendrecv(inp, (rank + 1) % ranks, recvbuf=out, source=(rank - 1) % ranks),
        }
        return calls[collective]


class CopyContender:
    """A copy in memory by all ranks at once: the limit that others are measured by.

    Ranks that share cores take turns after each copy, as they do when a call ends for all of them. Otherwise a batch of copies is over
    within a rank's own turn, and those of the others on its core are not in its time.
    """

    name = "copy"

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._shares = ranks > len(os.sched_getaffinity(0))

    def prepare(self, collective: str, nbytes: int) -> Call:
        size = max(int(copied_bytes(collective, nbytes, self._ranks, self._rank)), 1)
        src, dst = ones(size, np.uint8), ones(size, np.uint8)

        def copy_and_yield() -> None:
            np.copyto(dst, src)
            os.sched_yield()

        return copy_and_yield if self._shares else lambda: np.copyto(dst, src)
