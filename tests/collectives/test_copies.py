"""Copies of long ranges, and where arrays begin."""

from __future__ import annotations

import numpy as np
import pytest

from topoccl.collectives.executor.actions import copy_long
from topoccl.collectives.executor.reach import address_of

LONG = 9 << 20  # no multiple of a piece


@pytest.mark.parametrize("shift", [0, 4, 64])
@pytest.mark.parametrize("nbytes", [1 << 10, LONG, LONG + 8])
def test_a_copy_is_whole_however_arrays_lie(nbytes: int, shift: int) -> None:
    source = np.arange((nbytes + 64) // 4, dtype=np.float32)[shift // 4 :][: nbytes // 4]
    target = np.zeros(nbytes // 4 + 2, np.float32)
    copy_long(target[1:-1], source)
    assert np.array_equal(target[1:-1], source)
    assert target[0] == target[-1] == 0


def test_what_is_read_only_may_be_copied_from() -> None:
    source = np.arange(LONG // 8, dtype=np.int64)
    source.flags.writeable = False
    target = np.zeros_like(source)
    copy_long(target, source)
    assert np.array_equal(target, source)


@pytest.mark.parametrize("writeable", [True, False])
def test_an_array_begins_where_numpy_says(writeable: bool) -> None:
    array = np.arange(100, dtype=np.float32)[7:]
    array.flags.writeable = writeable
    assert address_of(array) == array.ctypes.data
    assert address_of(array[:0]) == array[:0].ctypes.data
