"""The tuner of a running job: rank 0 decides and the others do as it says."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from topoccl.algorithms.choice import Choice
from topoccl.algorithms.select import Selector
from topoccl.algorithms.verify import ScheduleError
from topoccl.collectives.bootstrap import agree, exchange_or_raise
from topoccl.collectives.communicator import Communicator
from topoccl.collectives.errors import ConfigError
from topoccl.collectives.tune.check import Check, Checked
from topoccl.collectives.tune.session import Bench, Report, Session, Tuned
from topoccl.collectives.tune.work import Cell, Worker, slowest

_Found = TypeVar("_Found")

_PATIENCE = 2.0  # budgets that ranks wait for rank 0, which may plan for long


@dataclass(frozen=True)
class _Command:
    """What all ranks do next: ``begin`` a cell, ``admit`` a candidate that rank 0 has chosen, ``run`` batches, or ``end``."""

    kind: str
    cell: Cell | None = None
    batches: tuple[tuple[int, int], ...] = ()


def tune(
    communicator: Communicator, collectives: Sequence[str], sizes: Sequence[int], budget: float,
    asked: Callable[[str, int], Collection[str]] = lambda collective, nbytes: (), report: Report = lambda *_: None,
) -> Tuned | None:  # fmt: skip
    """Measures ``collectives`` at ``sizes`` in the group of ``communicator``; every rank calls it.

    Args:
        sizes: bytes as nccl-tests counts them, ascending.
        budget: seconds for all of it.
        asked, report: see :class:`~topoccl.collectives.tune.session.Session`; on rank 0.

    Returns:
        What was found, on rank 0; None on the others.

    Raises:
        ConfigError: fewer than two ranks.
        TopocclError: a wrong result, or a rank that failed; on every rank.
    """

    def lead(bench: Bench) -> Tuned:
        where = (communicator.topology, communicator.planner.selector.profile, communicator.transport.name)
        return Session(bench, *where, collectives, sizes, budget, asked, report).run()

    return _lead(communicator, "tune", budget, lead)


def check(
    communicator: Communicator, ways: Mapping[str, Selector], collectives: Sequence[str], sizes: Sequence[int], budget: float,
    report: Report = lambda *_: None,
) -> list[Checked] | None:  # fmt: skip
    """Measures what each of ``ways`` would choose, and what it might have chosen; arguments, results and errors as for :func:`tune`."""

    def lead(bench: Bench) -> list[Checked]:
        return Check(bench, communicator.topology, ways, collectives, sizes, budget, report).run()

    return _lead(communicator, "tune --check", budget, lead)


def _lead(communicator: Communicator, command: str, budget: float, lead: Callable[[Bench], _Found]) -> _Found | None:
    """Runs ``lead`` on rank 0 while the others do what its bench asks for."""
    if communicator.size < 2:
        raise ConfigError(f"{command} measures calls among ranks, and this job has only one; start it with mpirun -n N or torchrun")
    bench = _Bench(communicator, communicator.timeout + _PATIENCE * budget)
    if communicator.rank:
        bench.serve()
        exchange_or_raise(communicator.transport, None, communicator.timeout)
        return None
    problem: Exception | None = None
    found: _Found | None = None
    try:
        found = lead(bench)
    except Exception as error:
        if bench.failed:  # all ranks know
            raise
        problem = error
    bench.end()
    exchange_or_raise(communicator.transport, problem, communicator.timeout)
    return found


class _Bench:
    """Measures with all ranks of the group."""

    def __init__(self, communicator: Communicator, patience: float) -> None:
        self._comm = communicator
        self._patience = patience
        self._worker = Worker(communicator)
        self.failed = False

    clock = staticmethod(time.monotonic)

    def begin(self, cell: Cell) -> None:
        self._do(_Command("begin", cell))

    def admit(self, choice: Choice) -> tuple[float, int] | None:
        told = self._do(_Command("admit"), choice)
        if None in told:
            return None
        return max(seconds for seconds, _ in told), told[0][1]

    def run(self, batches: Sequence[tuple[int, int]]) -> list[float]:
        return slowest(self._do(_Command("run", batches=tuple(batches))))

    def end(self) -> None:
        agree(self._comm.transport, _Command("end"), self._patience)

    def serve(self) -> None:
        """What ranks other than 0 do until it ends."""
        while (command := agree(self._comm.transport, None, self._patience)).kind != "end":
            self._perform(command, None)

    def _do(self, command: _Command, choice: Choice | None = None) -> list[Any]:
        agree(self._comm.transport, command, self._patience)
        return self._perform(command, choice)

    def _perform(self, command: _Command, choice: Choice | None) -> list[Any]:
        """Does this rank's part and returns everyone's result; what one rank raises, all raise."""
        mine: Any = None
        try:
            if command.cell is not None:
                self._worker.begin(command.cell)
            elif command.kind == "admit":
                mine = self._admit(choice)
            else:
                mine = [self._worker.batch(number, calls) for number, calls in command.batches]
        except Exception as error:
            mine = error
            if self._comm.broken is None:  # the others may be waiting for this rank in a call
                self._comm.abort(f"rank {self._comm.rank}: {type(error).__name__}: {error}")
        try:
            return exchange_or_raise(self._comm.transport, mine, self._patience)
        except BaseException:
            self.failed = True
            raise

    def _admit(self, choice: Choice | None) -> tuple[float, int] | None:
        try:
            return self._worker.admit(choice), self._comm.last_segments
        except ScheduleError:  # cannot run here, which all ranks find alike; the group goes on
            return None
