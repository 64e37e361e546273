"""What checks of the torch backend share: the list of them, what ranks put in, and what must come out.

Expected values are computed by each rank for itself, from what every rank is known to put in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

Tensor = torch.Tensor
Op = dist.ReduceOp

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
INTS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
DTYPES = [torch.bool, *INTS, *FLOATS, *COMPLEX]

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def values(rank: int, count: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """What ``rank`` puts in: 0, 1 and 2, whose sums and products over few ranks every type holds exactly."""
    numbers = torch.tensor([(rank * 7 + i * 5 + seed * 3 + i * rank) % 3 for i in range(count)])
    if dtype.is_complex:
        return torch.complex(numbers.double(), numbers.flip(0).double()).to(dtype)
    return numbers.to(dtype)


def exact(tensor: Tensor) -> Tensor:
    """In a type in which the reference is computed."""
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.dtype.is_floating_point else tensor.to(torch.int64)


def reduced(inputs: list[Tensor], op: Any) -> Tensor:
    dtype = inputs[0].dtype
    rows = torch.stack([exact(t) for t in inputs])
    if dtype == torch.bool:
        result = {
            Op.SUM: rows.any(0), Op.AVG: rows.any(0), Op.PRODUCT: rows.all(0), Op.MIN: rows.all(0), Op.MAX: rows.any(0),
            Op.BAND: rows.all(0), Op.BOR: rows.any(0), Op.BXOR: rows.sum(0) % 2 == 1,
        }[op]  # fmt: skip
    elif op == Op.AVG:
        total = rows.sum(0)
        result = (
            total / len(inputs) if dtype.is_floating_point or dtype.is_complex else torch.div(total, len(inputs), rounding_mode="trunc")
        )
    elif op in (Op.BAND, Op.BOR, Op.BXOR):
        kernel = {Op.BAND: torch.bitwise_and, Op.BOR: torch.bitwise_or, Op.BXOR: torch.bitwise_xor}[op]
        result = rows[0]
        for row in rows[1:]:
            result = kernel(result, row)
    else:
        result = {
            Op.SUM: lambda: rows.sum(0),
            Op.PRODUCT: lambda: rows.prod(0),
            Op.MIN: lambda: rows.amin(0),
            Op.MAX: lambda: rows.amax(0),
        }[op]()
    return result.to(dtype)


def same(got: Tensor, want: Tensor, what: str = "") -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    assert torch.equal(exact(got), exact(want)), f"{what}: got {got}, expected {want}"


def layouts(flat: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Writable tensors with these values (of which there are 12) in several layouts."""
    yield "plain", flat.clone()
    wide = flat.new_zeros(24)
    wide[::2] = flat
    yield "strided", wide[::2]
    yield "transposed", flat.clone().view(3, 4).t().contiguous().t()
    yield "channels last", flat.clone().view(1, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    room = flat.new_zeros(5, 6)
    room[1:4, 1:5] = flat.view(3, 4)
    yield "a part", room[1:4, 1:5]


def world() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


COLLECTIVES = (
    "allreduce", "allgather", "gather", "scatter", "reduce", "broadcast", "bcast", "alltoall", "barrier", "scan", "all_gather",
    "all_to_all",
)  # fmt: skip


def forbid_collectives(patch: Callable[[Any, str, Any], None]) -> None:
    """Makes every collective of Gloo and of MPI raise in this process; ``patch`` is ``setattr`` or one that can be undone."""

    def refuse(name: str) -> Callable[..., Any]:
        def refused(*args: Any, **kwargs: Any) -> Any:
            raise AssertionError(f"{name} was called")

        return refused

    group = dist.ProcessGroupGloo
    for name in dir(group):
        if any(word in name.lower() for word in COLLECTIVES):
            patch(group, name, refuse(f"ProcessGroupGloo.{name}"))
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        from mpi4py import MPI

        patch(MPI, "COMM_WORLD", Guard(MPI.COMM_WORLD))


class Guard:
    """An MPI communicator without collectives, and so are those made from it."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator

    def __getattr__(self, name: str) -> Any:
        if any(word in name.lower() for word in COLLECTIVES):
            raise AssertionError(f"MPI's {name} was called")
        return getattr(self._communicator, name)

    def Dup(self, *args: Any) -> Guard:
        return Guard(self._communicator.Dup(*args))


def forbidding_works() -> None:
    """Fails unless :func:`forbid_collectives` is in force."""
    for name in ("allreduce", "allgather", "barrier", "alltoall_base"):
        with pytest.raises(AssertionError, match="was called"):
            getattr(dist.ProcessGroupGloo, name)()
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        from mpi4py import MPI

        with pytest.raises(AssertionError, match="was called"):
            MPI.COMM_WORLD.Dup().Allreduce(None, None)
