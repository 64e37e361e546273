"""Folds of two numbers are those of two arrays, to the last bit and without a warning."""

from __future__ import annotations

import numpy as np
import pytest

from topoccl.collectives.executor.dtypes import dtype_of
from topoccl.collectives.executor.reduction import fold_kernel

NUMBERS = (np.bool_, np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64, np.complex64)
NUMPY_2 = np.lib.NumpyVersion(np.__version__) >= "2.0.0"


def samples(kind: type[np.generic]) -> np.ndarray:
    """Values of which some overflow when they are added or multiplied, as one rank's and, reversed, another's."""
    if kind is np.bool_:
        return np.array([False, True, False, True, True])
    if np.issubdtype(kind, np.integer):
        limits = np.iinfo(kind)
        return np.array([limits.min, limits.max, 0, 1, 7, limits.max // 2 + 1, limits.max], kind)
    largest = np.finfo(kind).max
    values = np.array([0.1, -0.0, largest, largest, np.inf, -np.inf, np.nan, 1 / 3, 1e-30], kind)
    return values * kind(1 + 2j) if np.issubdtype(kind, np.complexfloating) else values


@pytest.mark.parametrize("op", ["sum", "product", "min", "max", "band", "bor", "bxor"])
@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the samples
def test_single_numbers_fold_as_arrays_do(kind: type[np.generic], op: str) -> None:
    inexact = np.issubdtype(kind, np.inexact)
    if (inexact and op.startswith("b")) or (np.issubdtype(kind, np.complexfloating) and op in ("min", "max")):
        pytest.skip("has no meaning")
    ours, theirs = samples(kind), samples(kind)[::-1].copy()
    kernel = fold_kernel(op, dtype_of(ours))
    rounds = np.issubdtype(kind, np.complexfloating) and op == "product"
    other = op in ("min", "max") and kind is not np.bool_
    assert bool(kernel.single) == (NUMPY_2 and not rounds and not other)
    if not kernel.single:
        return
    together = np.empty_like(ours)
    kernel(together, (ours, theirs))
    call, function = kernel.single
    one = np.empty_like(ours)
    with np.errstate(all="raise"):
        for at in range(len(ours)):
            one[at] = call(function, ours[at], theirs[at])
    defined = ~np.isnan(together) if inexact else np.ones(len(ours), bool)
    bits, wanted = (x[defined].view(np.uint8) for x in (one, together))
    np.testing.assert_array_equal(bits, wanted)
    np.testing.assert_array_equal(one, together)
