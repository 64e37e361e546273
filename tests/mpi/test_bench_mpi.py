"""The benchmarks' own loop on real ranks: every operation gives right results, and wrong ones are counted on all ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from topoccl.bench.suite.backends import CommunicatorBackend
from topoccl.bench.suite.measure import Measurement
from topoccl.bench.suite.operations import OPERATIONS
from topoccl.bench.suite.options import parse_options
from topoccl.bench.suite.results import Row, total_wrong


@pytest.fixture(scope="module")
def backend() -> Iterator[CommunicatorBackend]:
    opened = CommunicatorBackend(60)
    yield opened
    opened.close()


def measured(backend: Any, name: str, line: str = "-b 8 -e 300K -f 37") -> list[Row]:
    ranks = backend.communicator.size
    options = parse_options(f"{line} -n 2 -w 0 --seed 3".split(), "prog", ranks, OPERATIONS[name])
    begun: list[Row] = []
    rows = Measurement(backend, options).run(begun.append, lambda row: None)
    assert [(row.size, row.type, row.redop, row.root) for row in begun] == [(row.size, row.type, row.redop, row.root) for row in rows]
    return rows


def checked(rows: list[Row]) -> None:
    assert rows
    assert total_wrong(rows) == 0
    for row in rows:
        assert all(timing.seconds > 0 for timing in row.timings)
        assert all(timing.wrong == 0 for timing in row.timings), "everything was checked"


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "barrier"])
def test_every_operation_is_right(backend: CommunicatorBackend, name: str) -> None:
    rows = measured(backend, name)
    checked(rows)
    assert len(rows) == 3
    out_of_place, in_place = rows[0].out_of_place is not None, rows[0].in_place is not None
    assert (out_of_place, in_place) == {"broadcast": (False, True), "sendrecv": (True, False)}.get(name, (True, True))
    if name != "sendrecv" and backend.communicator.rank == 0:
        assert all(row.chosen is not None and row.chosen.predicted >= 0 for row in rows)


def test_barrier_is_timed(backend: CommunicatorBackend) -> None:
    (row,) = measured(backend, "barrier")
    assert (row.size, row.count, row.in_place) == (0, 0, None)
    assert row.out_of_place is not None
    assert row.out_of_place.wrong is None


@pytest.mark.parametrize(("name", "line"), [("all_reduce", "-d all -o all"), ("reduce_scatter", "-d all"), ("reduce", "-o all")])
def test_every_type_and_reduction(backend: CommunicatorBackend, name: str, line: str) -> None:
    checked(measured(backend, name, f"-b 500 -e 500 {line}"))


@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather", "scatter"])
def test_every_root(backend: CommunicatorBackend, name: str) -> None:
    rows = measured(backend, name, "-b 4000 -e 4000 -r all")
    checked(rows)
    assert [row.root for row in rows] == list(range(backend.communicator.size))


@pytest.mark.parametrize("name", ["all_reduce", "all_to_all", "sendrecv", "barrier"])
def test_calls_begun_together(backend: CommunicatorBackend, name: str) -> None:
    rows = measured(backend, name, "-b 1K -e 1K -m 3 -c 2 -a 3")
    assert total_wrong(rows) == 0


class Corrupting:
    """A backend whose last rank spoils one element of what it gets, in calls on data that is checked."""

    def __init__(self, inner: CommunicatorBackend) -> None:
        self.inner = inner
        self.communicator = inner.communicator
        self.tensors = inner.tensors
        self.offers = inner.offers
        self.spoilt = 0

    def prepare(self, operation: Any, inp: Any, out: Any, op: str, root: int) -> Any:
        call = self.inner.prepare(operation, inp, out, op, root)

        def corrupted(begin: bool) -> Any:
            checked = out.size and out.view("u1").any()  # timed calls run on zeros
            result = call(begin)
            if checked and self.communicator.rank == self.communicator.size - 1:
                out[-1] += 1
                self.spoilt += 1
            return result

        return corrupted


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "scatter", "sendrecv"])
def test_one_wrong_element_is_counted_by_all_ranks(backend: CommunicatorBackend, name: str) -> None:
    corrupting = Corrupting(backend)
    rows = measured(corrupting, name, "-b 4K -e 4K")
    assert [timing.wrong for timing in rows[0].timings] == [1] * len(rows[0].timings)
    if corrupting.communicator.rank == corrupting.communicator.size - 1:
        assert corrupting.spoilt == len(rows[0].timings)


def test_ranks_are_as_many_as_were_started(backend: CommunicatorBackend) -> None:
    assert backend.communicator.size == int(os.environ["OMPI_COMM_WORLD_SIZE"])
