"""The operations that can be timed: the sizes of their buffers and the factor of their bus bandwidth, as nccl-tests has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Parts = Literal["whole", "gathers", "scatters", "exchanges", "none"]


@dataclass(frozen=True)
class Shape:
    """Elements of one rank's buffers.

    Attributes:
        count: what nccl-tests' column ``count`` shows: the count argument of the call.
        inp, out: elements of the input and of the output.
        inp_at, out_at: in an in-place call of rank r the input begins at element ``r * inp_at`` of the output, or the output at
            element ``r * out_at`` of the input.
    """

    count: int
    inp: int
    out: int
    inp_at: int = 0
    out_at: int = 0

    @property
    def largest(self) -> int:
        """Elements of the larger buffer, which the size of a call means."""
        return max(self.inp, self.out)


@dataclass(frozen=True)
class Operation:
    """One thing to time.

    Attributes:
        name: as the scripts and the API call it.
        parts: how buffers divide: every buffer is ``whole``, or one rank's input is a block of the output (``gathers``), or its
            output is a block of the input (``scatters``), or both have one block per rank (``exchanges``).
        factor: of the bus bandwidth: what the busiest port carries, over the size of the call; a function of the number of ranks.
        reduces, rooted: whether it takes a reduction, a root.
    """

    name: str
    parts: Parts
    factor: Callable[[int], float]
    reduces: bool = False
    rooted: bool = False

    def shape(self, elements: int, ranks: int) -> Shape:
        """Buffers of at most ``elements`` elements: where they hold one block per rank, rounded down to a multiple of ``ranks``."""
        block = elements // ranks
        match self.parts:
            case "whole":
                return Shape(elements, elements, elements)
            case "gathers":
                return Shape(block, block, block * ranks, inp_at=block)
            case "scatters":
                return Shape(block, block * ranks, block, out_at=block)
            case "exchanges":
                return Shape(block, block * ranks, block * ranks)
            case "none":
                return Shape(0, 0, 0)

    def has_input(self, rank: int, root: int) -> bool:
        """Whether ``rank`` contributes data."""
        return rank == root or self.name not in ("broadcast", "scatter")

    def has_output(self, rank: int, root: int) -> bool:
        """Whether ``rank`` gets a result."""
        return rank == root or self.name not in ("reduce", "gather")


def _one(ranks: int) -> float:
    return 1.0


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


def _twice_others(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("all_reduce", "whole", _twice_others, reduces=True),
        Operation("all_gather", "gathers", _others),
        Operation("reduce_scatter", "scatters", _others, reduces=True),
        Operation("all_to_all", "exchanges", _others),
        Operation("broadcast", "whole", _one, rooted=True),
        Operation("reduce", "whole", _one, reduces=True, rooted=True),
        Operation("gather", "gathers", _others, rooted=True),
        Operation("scatter", "scatters", _others, rooted=True),
        Operation("barrier", "none", _one),
        Operation("sendrecv", "whole", _one),
    )
}
"""By name. ``sendrecv`` sends to the next rank and receives from the one before."""


def operation_named(name: str) -> Operation:
    """The operation called ``name``; spellings without the underscore (``allreduce``) or with a hyphen are understood.

    Raises:
        ValueError: there is none; the message lists the known ones.
    """
    plain = name.strip().lower().replace("_", "").replace("-", "")
    for operation in OPERATIONS.values():
        if operation.name.replace("_", "") == plain:
            return operation
    raise ValueError(f"unknown operation {name!r}; known: {', '.join(OPERATIONS)}")
