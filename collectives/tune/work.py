"""What every rank does for a tuner: prepares calls, checks that they are right, and times batches of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from topoccl.algorithms.calibration import STAMPED
from topoccl.algorithms.choice import Choice
from topoccl.algorithms.select import Selector
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.verify import ScheduleError
from topoccl.collectives.communicator import Communicator
from topoccl.collectives.errors import TopocclError
from topoccl.collectives.planner import Planner
from topoccl.collectives.repeats import OFTEN

ITEM = 4  # bytes of a float32
PERIOD = 61  # of the values; sums over 2 ** 18 ranks are exact in float32
TUNED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter")

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Cell:
    """Calls that candidates are measured with: a collective, the elements of each block, and the root of one that has it."""

    collective: str
    block: int
    root: int | None = None

    def nbytes(self, ranks: int) -> int:
        """The size of the call as nccl-tests counts it."""
        return self.block * ITEM * (1 if self.collective in ("all_reduce", "broadcast", "reduce") else ranks)


def cell_of(collective: str, nbytes: int, ranks: int, root: int | None) -> Cell:
    """The cell whose calls have ``nbytes`` bytes, or somewhat less where ranks do not divide them."""
    blocks = 1 if collective in ("all_reduce", "broadcast", "reduce") else ranks
    return Cell(collective, max(1, nbytes // ITEM // blocks), root)


class Given(Selector):
    """Chooses what it was given."""

    def __init__(self, selector: Selector, choice: Choice | None) -> None:
        super().__init__(selector.topology, None, selector.profile)
        self._choice = choice

    def choose(self, spec: CollectiveSpec, nbytes: int, itemsize: int = 1, small_pages: bool = False) -> Choice:
        assert self._choice is not None  # rank 0 chooses, and has it
        return self._choice


class Worker:
    """One rank's buffers and plans for the cell that is measured."""

    def __init__(self, communicator: Communicator) -> None:
        self._comm = communicator
        self._usual = communicator.planner
        self._planners: list[Planner] = []
        self._cell = Cell("all_reduce", 1)
        self._inp: Floats = np.empty(0, np.float32)
        self._out: Floats = self._inp
        self._right: Floats | None = None

    def begin(self, cell: Cell) -> None:
        """Makes buffers for calls of ``cell`` and forgets those of the one before."""
        self._planners.clear()
        self._inp = self._out = np.empty(0, np.float32)
        self._right = None
        self._cell = cell
        comm, n = self._comm, cell.block
        inp, out = _elements(cell, comm.rank, comm.size)
        self._inp, self._out = _values(comm.rank, 0, inp), np.empty(out, np.float32)
        if cell.collective == "broadcast":
            self._out = self._inp
        self._right = _expected(cell, comm.rank, comm.size, n)

    def admit(self, choice: Choice | None) -> float:
        """Adds a candidate, runs it three times, or if it is short a few more, and checks what came out; rank 0 passes the choice.

        Returns seconds of a call.

        Raises:
            TopocclError: a result that is wrong.
            ScheduleError: it cannot run here; then it is as if nothing had been added.
        """
        self._planners.append(self._usual.with_selector(Given(self._usual.selector, choice)))
        number = len(self._planners) - 1
        if self._right is not None:
            self._out.fill(-1)
            if self._cell.collective == "broadcast" and self._comm.rank == self._cell.root:
                self._out[:] = self._right
        try:
            self.batch(number, 1)
        except ScheduleError:
            self._planners.pop()
            raise
        if self._right is not None and not np.array_equal(self._out, self._right):
            at = int(np.flatnonzero(self._out != self._right)[0])
            label = self._comm.last_choice.algorithm if self._comm.last_choice else "?"
            raise TopocclError(
                f"{label} gives a wrong result for {self._cell.collective} of {self._cell.nbytes(self._comm.size)} bytes: "
                f"element {at} is {self._out[at]}, expected {self._right[at]}"
            )
        seconds = min(self.batch(number, 1), self.batch(number, 1))
        if self._cell.nbytes(self._comm.size) <= STAMPED:
            self.batch(number, OFTEN)  # short calls become functions of their own, which takes longer than they do
        return seconds

    def batch(self, number: int, calls: int) -> float:
        """Seconds per call of ``calls`` calls in a row of a candidate, begun by all ranks at about the same time."""
        comm, call = self._comm, self._call()
        comm.planner = self._usual
        comm.barrier()
        comm.planner = self._planners[number]
        try:
            start = time.perf_counter()
            for _ in range(calls):
                call()
            return (time.perf_counter() - start) / calls
        finally:
            comm.planner = self._usual

    def _call(self) -> Callable[[], Any]:
        comm, inp, out = self._comm, self._inp, self._out
        name, root = self._cell.collective, self._cell.root or 0
        mine = comm.rank == root
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: comm.all_reduce(inp, out),
            "all_gather": lambda: comm.all_gather(inp, out),
            "reduce_scatter": lambda: comm.reduce_scatter(inp, out),
            "all_to_all": lambda: comm.all_to_all(inp, out),
            "broadcast": lambda: comm.broadcast(out, root),
            "reduce": lambda: comm.reduce(inp, out if mine else None, root),
            "gather": lambda: comm.gather(inp, out if mine else None, root),
            "scatter": lambda: comm.scatter(inp if mine else None, out, root),
        }
        return calls[name]


def _elements(cell: Cell, rank: int, ranks: int) -> tuple[int, int]:
    """Elements of a rank's input and output."""
    n, many = cell.block, cell.block * ranks
    match cell.collective:
        case "all_gather" | "gather":
            return n, many
        case "reduce_scatter" | "scatter":
            return many, n
        case "all_to_all":
            return many, many
        case _:
            return n, n


def _values(rank: int, begin: int, count: int) -> Floats:
    """Elements ``begin`` and following of a rank's input: small whole numbers."""
    return np.resize(_pattern(rank, begin), count)


def _pattern(rank: int, begin: int) -> Floats:
    return ((np.arange(begin, begin + PERIOD) * 7 + rank * 13) % PERIOD).astype(np.float32)


def _expected(cell: Cell, rank: int, ranks: int, n: int) -> Floats | None:
    """What a rank's output must hold; None for one that has none."""
    root = cell.root or 0

    def total(begin: int) -> Floats:
        return np.resize(np.sum([_pattern(r, begin) for r in range(ranks)], axis=0), n)

    match cell.collective:
        case "all_reduce":
            return total(0)
        case "reduce":
            return total(0) if rank == root else None
        case "reduce_scatter":
            return total(rank * n)
        case "broadcast":
            return _values(root, 0, n)
        case "scatter":
            return _values(root, rank * n, n)
        case "gather" if rank != root:
            return None
        case "all_to_all":
            return np.concatenate([_values(source, rank * n, n) for source in range(ranks)])
        case _:
            return np.concatenate([_values(source, 0, n) for source in range(ranks)])


def slowest(rows: Sequence[Sequence[float]]) -> list[float]:
    """For every measurement the time of the slowest rank; one row per rank."""
    return [max(times) for times in zip(*rows, strict=True)]
