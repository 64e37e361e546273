"""The pool of memory that other ranks map, and tensors in it."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import topoccl
from topoccl.collectives.errors import ConfigError, TopocclError
from topoccl.collectives.executor.pool import BLOCK, Pool, Windows, pool
from topoccl.collectives.executor.reach import Reach, address_of, show


def test_blocks_are_aligned_disjoint_and_come_back() -> None:
    own = Pool()
    arrays = [own.bytes(n) for n in (1, BLOCK, BLOCK + 1, 5 * BLOCK)]
    for i, array in enumerate(arrays):
        array[:] = i
    assert [int(a.min()) for a in arrays] == [int(a.max()) for a in arrays] == [0, 1, 2, 3]
    places = [own.where(address_of(a)) for a in arrays]
    assert all(p is not None and p.offset % BLOCK == 0 for p in places)
    assert own.stats() == {"in_use": 9 * BLOCK, "peak": 9 * BLOCK, "kept": 9 * BLOCK, "blocks": 4}
    del array
    arrays.clear()
    assert own.stats() == {"in_use": 0, "peak": 9 * BLOCK, "kept": 9 * BLOCK, "blocks": 0}
    for n in (9 * BLOCK, 3, 4 * BLOCK, 7):  # other shapes, the same pages
        own.bytes(n)
    assert own.stats()["kept"] == own.stats()["peak"] == 9 * BLOCK


def test_random_use_never_overlaps_and_never_leaks() -> None:
    own, rng = Pool(), np.random.default_rng(5)
    live: list[tuple[int, np.ndarray]] = []
    for turn in range(300):
        if live and rng.random() < 0.5:
            mark, array = live.pop(int(rng.integers(len(live))))
            assert array[0] == array[-1] == mark
        else:
            array = own.bytes(int(rng.integers(1, 6 * BLOCK)))
            array[0] = array[-1] = turn % 251
            live.append((turn % 251, array))
        del array
    live.clear()
    assert own.stats()["in_use"] == own.stats()["blocks"] == 0
    assert all(segment.free == [(0, segment.nbytes)] for segment in own._segments)


def test_views_keep_a_block() -> None:
    before = pool().stats()["blocks"]
    tensor = topoccl.empty((3, 4), torch.bfloat16)
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == ((3, 4), torch.bfloat16, True)
    row = tensor[1]
    del tensor
    assert pool().stats()["blocks"] == before + 1
    row.fill_(2)
    del row
    assert pool().stats()["blocks"] == before


def test_kinds_of_empty() -> None:
    assert topoccl.empty(5).dtype == torch.get_default_dtype()
    array = topoccl.empty((2, 0, 3), np.int16)
    assert isinstance(array, np.ndarray)
    assert (array.shape, array.dtype) == ((2, 0, 3), np.int16)
    assert topoccl.empty((), np.float64).shape == ()
    with pytest.raises(ConfigError, match="negative size"):
        topoccl.empty((2, -1))
    with pytest.raises(ConfigError, match="not one of plain numbers"):
        topoccl.empty(3, np.dtype("U3"))
    with pytest.raises(TopocclError, match="no memory for"):
        topoccl.empty(1 << 60, np.int8)


def test_others_see_it_through_a_window() -> None:
    array = topoccl.empty(1000, np.int64)
    array[:] = range(1000)
    place = pool().where(address_of(array[10:]))
    assert place is not None
    view = Windows().view(os.getpid(), place.key)[place.offset :][:80].view(np.int64)
    assert view.tolist() == list(range(10, 20))
    assert pool().where(address_of(np.zeros(9))) is None


def test_reads_map_what_lies_in_the_pool() -> None:
    array = topoccl.empty(1000, np.int64)
    array[:] = range(1000)
    flags = memoryview(bytearray(64)).cast("q")
    show(flags, 0, 7, 0, address_of(array))
    read = Reach({1: os.getpid()}).of(1, flags, 0)
    mapped = read(7, 1, 80, 16, 0)
    assert mapped is not None
    assert mapped.view(np.int64).tolist() == [10, 11]
    target = np.zeros(3, np.int64)
    read(7, 1, 8 * 997, 24, address_of(target))
    assert target.tolist() == [997, 998, 999]
