"""What a call says to buffers, roots, counts and numbers that it cannot use: one ConfigError before anything is sent."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from topoccl.collectives.communicator import Communicator
from topoccl.collectives.config import Config
from topoccl.collectives.errors import ConfigError
from topoccl.collectives.setup import connect
from topoccl.collectives.transports.memory import MemoryHub

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def alone() -> Iterator[Communicator]:
    communicator = connect(MemoryHub(1).transport(0), Config())
    yield communicator
    communicator.close()


def read_only(data: np.ndarray) -> np.ndarray:
    data.setflags(write=False)
    return data


ONES = np.ones(4, np.float32)
REFUSED: dict[str, tuple[Callable[[Communicator], Any], str]] = {
    "no array": (lambda c: c.all_reduce([1.0, 2.0]), "expected a torch tensor or a NumPy array, got list"),
    "nothing": (lambda c: c.all_gather(None, ONES), "expected a torch tensor or a NumPy array, got NoneType"),
    "a NumPy scalar": (lambda c: c.all_reduce(np.float32(3)), "got float32"),
    "read-only": (lambda c: c.all_reduce(read_only(np.ones(3))), r"all_reduce: the output, float64 of shape \(3,\), is read-only"),
    "read-only output": (lambda c: c.all_gather(ONES, read_only(np.ones(4, np.float32))), "all_gather: the output.*is read-only"),
    "read-only and strided": (lambda c: c.all_reduce(read_only(np.ones(6)[::2])), r"of shape \(3,\), is read-only"),
    "received into read-only": (lambda c: c.recv(read_only(np.ones(3)), 0), "recv: the output.*is read-only"),
    "expanded": (lambda c: c.all_reduce(torch.ones(1).expand(4)), "several elements in one place"),
    "sparse": (lambda c: c.all_reduce(torch.eye(3).to_sparse()), "not dense but torch.sparse_coo"),
    "compressed rows": (lambda c: c.all_reduce(torch.eye(3).to_sparse_csr()), "expected a dense torch tensor"),
    "without memory": (lambda c: c.all_reduce(torch.empty(3, device="meta")), "cannot be sent: it is on device meta"),
    "objects": (lambda c: c.all_reduce(np.array([None])), "dtype object cannot be sent"),
    "text": (lambda c: c.all_reduce(np.array(["a"])), "cannot be sent"),
    "big-endian": (lambda c: c.all_reduce(np.ones(3, ">f4")), "this machine's byte order"),
    "two types": (lambda c: c.all_reduce(ONES, np.ones(4)), "input is float32, output is float64"),
    "two sizes": (lambda c: c.all_reduce(ONES, np.ones(3, np.float32)), "output has 3 elements; expected 4"),
    "unknown reduction": (lambda c: c.all_reduce(ONES.copy(), op="mode"), "unknown reduction 'mode'; known: sum, avg"),
    "no reduction": (lambda c: c.all_reduce(ONES.copy(), op=None), "unknown reduction None; known: sum, avg"),
    "bits of floats": (lambda c: c.all_reduce(ONES.copy(), op="bxor"), "bxor has no meaning for float32"),
    "root as text": (lambda c: c.broadcast(ONES.copy(), "0"), "root '0' is not a rank of a group of 1; known are 0 to 0"),
    "root as a fraction": (lambda c: c.broadcast(ONES.copy(), 0.0), "root 0.0 is not a rank"),
    "no root": (lambda c: c.reduce(ONES.copy(), root=None), "root None is not a rank"),
    "root too large": (lambda c: c.gather(ONES, ONES.copy(), 1), "root 1 is not a rank"),
    "root below zero": (lambda c: c.scatter(ONES, ONES.copy(), -1), "root -1 is not a rank"),
    "counts as text": (lambda c: c.all_to_all(ONES, ONES.copy(), ["4"], [4]), r"input counts are \['4'\]; expected one whole number"),
    "counts as fractions": (lambda c: c.all_to_all(ONES, ONES.copy(), [4], [4.0]), r"output counts are \[4.0\]; expected"),
    "one number for counts": (lambda c: c.all_to_all(ONES, ONES.copy(), 4, 4), "input counts are 4; expected"),
    "counts that do not add up": (lambda c: c.all_to_all(ONES, ONES.copy(), [3], [4]), r"add up to 3, but the input buffer has 4"),
    "peer as text": (lambda c: c.send(ONES, "0"), "rank '0' is not a rank of a group of 1"),
    "peer too large": (lambda c: c.send(ONES, 1), "rank 1 is not a rank"),
    "tag as text": (lambda c: c.send(ONES, 0, "x"), "tag 'x' is out of range; known tags: 0 to"),
    "timeout as text": (lambda c: c.all_reduce(ONES.copy(), timeout="soon"), "timeout=.soon.: bad time"),
    "timeout of nothing": (lambda c: c.barrier(timeout=0), "timeout=0: a timeout of zero would fail every call"),
    "timeout below zero": (lambda c: c.barrier(timeout=-1.0), r"timeout=-1.0: .*not negative"),
    "no number": (lambda c: c.barrier(timeout=float("nan")), "timeout=nan"),
    "for ever": (lambda c: c.send(ONES, 0, timeout=float("inf")), "timeout=inf"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_call_that_cannot_be_made_is_refused_and_harms_nothing(case: str, alone: Communicator) -> None:
    call, text = REFUSED[case]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # sparse tensors are in beta state
        with pytest.raises(ConfigError, match=text):
            call(alone)
    assert alone.broken is None
    data = np.arange(5)
    alone.all_reduce(data)
    assert data.tolist() == [0, 1, 2, 3, 4]


def test_what_is_only_read_may_be_read_only(alone: Communicator) -> None:
    data, result = read_only(np.arange(6.0)), np.zeros(6)
    alone.all_reduce(data, result)
    alone.broadcast(data, 0)
    alone.all_reduce(np.broadcast_to(np.arange(2.0), (3, 2)), result.reshape(3, 2))
    assert result.tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_subclasses_of_arrays_are_their_data(alone: Communicator) -> None:
    matrix, result = np.matrix([[1.0, 2.0], [3.0, 4.0]]), np.zeros(4)
    alone.all_reduce(matrix, result)
    assert result.tolist() == [1, 2, 3, 4]
