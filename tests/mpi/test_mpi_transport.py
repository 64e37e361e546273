"""The contract of transports, over MPI; each test runs on all ranks of mpirun at once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from topoccl.collectives.errors import ConfigError, TransportError
from topoccl.collectives.transports.base import Transport
from topoccl.collectives.transports.mpi import mpi_transport

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "collectives"))
CHECKS: dict[str, Callable[[Transport], None]] = importlib.import_module("transport_contract").CHECKS


@pytest.fixture(scope="module", params=["default", "tiny pieces"])
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    opened = mpi_transport() if request.param == "default" else mpi_transport(max_piece=1000, window=2)
    yield opened
    opened.close()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("check", CHECKS)
def test_contract(check: str, transport: Transport) -> None:
    CHECKS[check](transport)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("sent", "expected"), [(3, 4), (100, 150_000), (70_000, 150_000)])
def test_a_message_that_is_too_short_is_an_error_of_the_receiver(sent: int, expected: int) -> None:
    transport = mpi_transport()
    right, left = (transport.rank + 1) % transport.size, (transport.rank - 1) % transport.size
    send = transport.isend(right, 1, np.zeros(sent, np.uint8))
    receive = transport.irecv(left, 1, np.zeros(expected, np.uint8))
    with pytest.raises(TransportError, match=rf"receive from rank {left} \(tag 1, {expected} bytes\) failed"):
        transport.wait([receive], 30.0)
    assert send.error is None
    transport.close()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("size", [1000, 50_000, 2_000_000])
def test_what_is_open_at_a_close_does_not_disturb_the_next_transport(size: int) -> None:
    for _ in range(3):
        transport = mpi_transport()
        right, left = (transport.rank + 1) % transport.size, (transport.rank - 1) % transport.size
        requests = [transport.irecv(left, 1, np.zeros(size, np.uint8)), transport.irecv(-1, 2, np.zeros(size, np.uint8))]
        requests.append(transport.isend(right, 3, np.zeros(size, np.uint8)))
        transport.progress(requests[:1], 0.0)
        transport.close()
        assert all(request.done for request in requests)
        assert all(isinstance(request.error, TransportError) for request in requests[:2])
        transport = mpi_transport()
        got = np.zeros(100_000, np.uint8)
        transport.wait([transport.irecv(left, 1, got), transport.isend(right, 1, np.full(100_000, transport.rank, np.uint8))], 30.0)
        assert (got == left).all()
        transport.close()


def test_two_worlds_do_not_meet() -> None:
    first, second = mpi_transport(), mpi_transport()
    right, left = (first.rank + 1) % first.size, (first.rank - 1) % first.size
    got = [np.zeros(1, np.uint8), np.zeros(1, np.uint8)]
    sends = [first.isend(right, 1, np.array([1], np.uint8)), second.isend(right, 1, np.array([2], np.uint8))]
    second.wait([second.irecv(left, 1, got[1])], 30.0)
    first.wait([first.irecv(left, 1, got[0]), *sends], 30.0)
    assert [data[0] for data in got] == [1, 2]
    first.close()
    second.close()


def test_another_mpi_than_the_launchers_is_named() -> None:
    from mpi4py import MPI

    with pytest.raises(ConfigError, match=rf"the launcher started {MPI.COMM_WORLD.size + 1} ranks but MPI sees {MPI.COMM_WORLD.size}"):
        mpi_transport(MPI.COMM_WORLD.size + 1)


def test_group_numbers_end_where_mpi_has_no_more_tags() -> None:
    from mpi4py import MPI

    transport = mpi_transport()
    last = (MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) + 1 >> 17) - 1
    transport.subgroup([transport.rank], last).close()
    with pytest.raises(ValueError, match=f"group {last + 1} is not in 1 to {last}, what mpi has tags for"):
        transport.subgroup([transport.rank], last + 1)
    transport.close()
