"""Every collective when messages are far longer than what MPI is given at once, as tensors beyond MPI's counts are; under mpirun."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from topoccl.collectives.communicator import Communicator
from topoccl.collectives.config import Config
from topoccl.collectives.setup import connect
from topoccl.collectives.transports.mpi import mpi_transport

pytestmark = pytest.mark.mpi(min_size=2)

COUNT = 10_007  # elements; no multiple of any limit
LIMITS = [(13, 3), (1000, 2), (4096, 16)]


@pytest.fixture(scope="module", params=LIMITS, ids=lambda limit: f"{limit[0]}x{limit[1]}")
def comm(request: pytest.FixtureRequest) -> Iterator[Communicator]:
    piece, window = request.param
    opened = connect(mpi_transport(max_piece=piece, window=window), Config(transport="mpi", shm=False))
    yield opened
    opened.close()


def data(rank: int, count: int = COUNT) -> np.ndarray:
    return np.random.default_rng(rank).integers(0, 256, count, np.uint8)


def total(comm: Communicator, count: int = COUNT) -> np.ndarray:
    return sum((data(rank, count) for rank in range(1, comm.size)), data(0, count)).astype(np.uint8)


def test_all_reduce(comm: Communicator) -> None:
    out = np.empty(COUNT, np.uint8)
    comm.all_reduce(data(comm.rank), out)
    assert np.array_equal(out, total(comm))


def test_reduce_scatter(comm: Communicator) -> None:
    out = np.empty(COUNT, np.uint8)
    comm.reduce_scatter(data(comm.rank, COUNT * comm.size), out)
    assert np.array_equal(out, total(comm, COUNT * comm.size)[comm.rank * COUNT :][:COUNT])


def test_all_gather(comm: Communicator) -> None:
    out = np.empty(COUNT * comm.size, np.uint8)
    comm.all_gather(data(comm.rank), out)
    assert np.array_equal(out, np.concatenate([data(rank) for rank in range(comm.size)]))


@pytest.mark.parametrize("root", [0, -1])
def test_rooted(comm: Communicator, root: int) -> None:
    root %= comm.size
    at_root = comm.rank == root
    buf = data(root) if at_root else np.empty(COUNT, np.uint8)
    comm.broadcast(buf, root)
    assert np.array_equal(buf, data(root))
    out = np.empty(COUNT, np.uint8)
    comm.reduce(data(comm.rank), out if at_root else None, root=root)
    assert not at_root or np.array_equal(out, total(comm))
    gathered = np.empty(COUNT * comm.size, np.uint8) if at_root else None
    comm.gather(data(comm.rank), gathered, root)
    assert not at_root or np.array_equal(gathered, np.concatenate([data(rank) for rank in range(comm.size)]))
    comm.scatter(data(root, COUNT * comm.size) if at_root else None, out, root)
    assert np.array_equal(out, data(root, COUNT * comm.size)[comm.rank * COUNT :][:COUNT])


def test_all_to_all(comm: Communicator) -> None:
    out = np.empty(COUNT * comm.size, np.uint8)
    comm.all_to_all(data(comm.rank, COUNT * comm.size), out)
    parts = [data(rank, COUNT * comm.size)[comm.rank * COUNT :][:COUNT] for rank in range(comm.size)]
    assert np.array_equal(out, np.concatenate(parts))


def test_uneven_all_to_all(comm: Communicator) -> None:
    sizes = [[(3001 * (src + 1) * (dst + 2)) % 7919 for dst in range(comm.size)] for src in range(comm.size)]
    mine = sizes[comm.rank]
    receiving = [row[comm.rank] for row in sizes]
    out = np.empty(sum(receiving), np.uint8)
    comm.all_to_all(data(comm.rank, sum(mine)), out, mine, receiving)
    parts = []
    for src, row in enumerate(sizes):
        start = sum(row[: comm.rank])
        parts.append(data(src, sum(row))[start : start + row[comm.rank]])
    assert np.array_equal(out, np.concatenate(parts))


def test_send_and_receive(comm: Communicator) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    got = np.empty(COUNT, np.uint8)
    sending = comm.send(data(comm.rank), right, tag=3, async_op=True)
    comm.recv(got, left, tag=3)
    sending.wait()
    assert np.array_equal(got, data(left))
