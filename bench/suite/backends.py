"""What is timed: the calls of a communicator, or those of torch.distributed on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from topoccl.algorithms.calibration import default_profile
from topoccl.algorithms.choice import Choice
from topoccl.algorithms.cost import CostModel, block_bytes
from topoccl.bench.suite.operations import Operation
from topoccl.collectives.bootstrap import LaunchInfo
from topoccl.collectives.communicator import Communicator

Call = Callable[[bool], Any]
"""Makes one call; with True it only begins it and returns something to ``wait()`` for."""


class Backend(Protocol):
    """A way to call collectives.

    Attributes:
        communicator: of all ranks.
        tensors: buffers are tensors, also of types that NumPy has.
    """

    communicator: Communicator
    tensors: bool

    def offers(self, operation: Operation, in_place: bool) -> bool:
        """Whether there is such a call."""

    def prepare(self, operation: Operation, inp: Any, out: Any, op: str, root: int) -> Call:
        """The call, ready to be made any number of times; ``op`` and ``root`` count where the operation takes them."""

    def close(self) -> None: ...


class Both:
    """Several messages to wait for."""

    def __init__(self, *messages: Any) -> None:
        self.messages = messages

    def wait(self) -> None:
        for message in self.messages:
            message.wait()


class CommunicatorBackend:
    """The methods of a :class:`~topoccl.collectives.communicator.Communicator`."""

    tensors = False

    def __init__(self, timeout: float | None) -> None:
        from topoccl.collectives.setup import init

        self.communicator = init(**({} if timeout is None else {"timeout": timeout}))

    def offers(self, operation: Operation, in_place: bool) -> bool:
        return operation.name not in ("sendrecv", "barrier") if in_place else operation.name != "broadcast"

    def prepare(self, operation: Operation, inp: Any, out: Any, op: str, root: int) -> Call:
        comm = self.communicator
        rank, size = comm.rank, comm.size

        def sendrecv(begin: bool) -> Any:
            coming = comm.recv(out, (rank - 1) % size, async_op=True)
            going = comm.send(inp, (rank + 1) % size, async_op=True)
            both = Both(coming, going)
            return both if begin else both.wait()

        calls: dict[str, Call] = {
            "all_reduce": lambda begin: comm.all_reduce(inp, out, op, async_op=begin),
            "all_gather": lambda begin: comm.all_gather(inp, out, async_op=begin),
            "reduce_scatter": lambda begin: comm.reduce_scatter(inp, out, op, async_op=begin),
            "all_to_all": lambda begin: comm.all_to_all(inp, out, async_op=begin),
            "broadcast": lambda begin: comm.broadcast(out, root, async_op=begin),
            "reduce": lambda begin: comm.reduce(inp, out, root, op, async_op=begin),
            "gather": lambda begin: comm.gather(inp, out, root, async_op=begin),
            "scatter": lambda begin: comm.scatter(inp, out, root, async_op=begin),
            "barrier": lambda begin: comm.barrier(async_op=begin),
            "sendrecv": sendrecv,
        }
        return calls[operation.name]

    def close(self) -> None:
        self.communicator.close()


class TorchBackend:
    """The functions of torch.distributed, in a process group of the backend ``topoccl``."""

    tensors = True

    def __init__(self, timeout: float | None, info: LaunchInfo) -> None:
        from datetime import timedelta

        import torch.distributed as dist

        limit = None if timeout is None else timedelta(seconds=timeout)
        if info.kind == "single":
            dist.init_process_group("topoccl", timeout=limit, store=dist.HashStore(), rank=0, world_size=1)
        else:
            dist.init_process_group("topoccl", timeout=limit)
        self._dist: Any = dist
        self.communicator: Communicator = dist.group.WORLD.communicator

    def offers(self, operation: Operation, in_place: bool) -> bool:
        if in_place:
            return operation.name not in ("all_to_all", "sendrecv", "barrier")
        return operation.name not in ("all_reduce", "reduce", "broadcast")

    def prepare(self, operation: Operation, inp: Any, out: Any, op: str, root: int) -> Call:
        dist = self._dist
        rank, size = self.communicator.rank, self.communicator.size
        redop = getattr(dist.ReduceOp, {"prod": "PRODUCT"}.get(op, op.upper())) if operation.reduces else None
        # Newer names of the same functions; the older ones warn there.
        all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        blocks = {"gather": out, "scatter": inp}.get(operation.name)
        rows = list(blocks.view(size, -1)) if blocks is not None and rank == root else None

        def sendrecv(begin: bool) -> Any:
            both = Both(dist.irecv(out, (rank - 1) % size), dist.isend(inp, (rank + 1) % size))
            return both if begin else both.wait()

        calls: dict[str, Call] = {
            "all_reduce": lambda begin: dist.all_reduce(out, redop, async_op=begin),
            "all_gather": lambda begin: all_gather(out, inp, async_op=begin),
            "reduce_scatter": lambda begin: reduce_scatter(out, inp, redop, async_op=begin),
            "all_to_all": lambda begin: dist.all_to_all_single(out, inp, async_op=begin),
            "broadcast": lambda begin: dist.broadcast(out, root, async_op=begin),
            "reduce": lambda begin: dist.reduce(out, root, redop, async_op=begin),
            "gather": lambda begin: dist.gather(inp, rows, root, async_op=begin),
            "scatter": lambda begin: dist.scatter(out, rows, root, async_op=begin),
            "barrier": lambda begin: dist.barrier(async_op=begin),
            "sendrecv": sendrecv,
        }
        return calls[operation.name]

    def close(self) -> None:
        self._dist.destroy_process_group()


def predicted_seconds(communicator: Communicator, choice: Choice, nbytes: int) -> float:
    """The prediction for ``nbytes``, which may be another size of the class that ``choice`` was made for."""
    if nbytes == choice.nbytes:
        return choice.seconds
    profile = default_profile(communicator.transport.name)
    if profile.name != choice.profile:
        profile = profile.without_shared_memory()
    model = CostModel(choice.schedule, communicator.topology, profile)
    return model.predict(block_bytes(choice.schedule.spec, nbytes), choice.segments).seconds
