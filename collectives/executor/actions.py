"""The data movement of one lowered step as one callable over the buffers of a call.

A *ref* says where a contiguous range lies: ``(buffer, lo, hi)`` in the call's input (0), output (1) or scratch (2), sliced
anew at each call since the caller's storage is never kept; a ready view of the arena; or a range of a peer's buffer that is
read straight from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from topoccl.collectives.executor.dtypes import Array
from topoccl.collectives.executor.reach import Read, address_of
from topoccl.collectives.executor.reduction import Fold

_LONG = 8 << 20  # bytes from which a copy goes in pieces of
_PIECE = 512 << 10
_CACHE_LINE = 64


@dataclass(frozen=True, slots=True)
class Remote:
    """Elements ``lo:hi`` of a peer's input (0) or output (1), which ``read`` fetches."""

    read: Read
    buf: int
    lo: int
    hi: int


class Frame:
    """What reads of peers' buffers need to know of the call that is run: the addresses of its own buffers, and the number that
    peers show with theirs."""

    __slots__ = ("addresses", "base")

    def __init__(self) -> None:
        self.addresses = (0, 0, 0)
        self.base = 0


Bufs = tuple[Array, Array, Array]
Local = tuple[int, int, int]
Ref = Local | Array | Remote
Act = Callable[[Bufs], None]
Whole = tuple[int, int, int]  # elements of the whole input, output and scratch; -1 for what is never used whole


def length(ref: Ref) -> int:
    if isinstance(ref, tuple):
        return ref[2] - ref[1]
    return ref.hi - ref.lo if isinstance(ref, Remote) else len(ref)


def _cut(ref: Ref, lo: int, hi: int) -> Ref:
    if isinstance(ref, tuple):
        return (ref[0], ref[1] + lo, ref[1] + hi)
    return replace(ref, lo=ref.lo + lo, hi=ref.lo + hi) if isinstance(ref, Remote) else ref[lo:hi]


def aligned_pieces(values: Sequence[Sequence[Ref]]) -> list[list[Ref]]:
    """Cuts several scattered values of equal length at each other's seams: rows of refs, one ref per value in each row."""
    if all(len(value) == 1 for value in values):
        return [[value[0] for value in values]]
    seams = {0}
    for value in values:
        at = 0
        for ref in value:
            at += length(ref)
            seams.add(at)
    order = sorted(seams)
    columns = []
    for value in values:
        column: list[Ref] = []
        at = 0
        for ref in value:
            end = at + length(ref)
            column.extend(_cut(ref, lo - at, hi - at) for lo, hi in pairwise(order) if at <= lo and hi <= end)
            at = end
        columns.append(column)
    return [list(row) for row in zip(*columns, strict=True)]


def _take(ref: Ref, bufs: Bufs) -> Array:
    assert not isinstance(ref, Remote)
    return bufs[ref[0]][ref[1] : ref[2]] if isinstance(ref, tuple) else ref


@dataclass(frozen=True, slots=True)
class Copy:
    """Copies one range to another; neither is a peer's."""

    src: Local | Array
    dst: Local | Array


@dataclass(frozen=True, slots=True)
class Folding:
    """Folds several ranges into one; none is a peer's."""

    kernel: Fold
    operands: tuple[Local | Array, ...]
    dst: Local | Array


Move = Copy | Folding | Act
"""What a step does, one thing after the other: as it can be looked at, or ready to be called where peers' buffers are read."""


def copy(src: Ref, dst: Ref) -> Copy:
    assert not isinstance(src, Remote)
    assert not isinstance(dst, Remote)
    return Copy(src, dst)


def folding(kernel: Fold, operands: Sequence[Ref], dst: Ref) -> Folding:
    into, *local = [ref for ref in (dst, *operands) if not isinstance(ref, Remote)]
    return Folding(kernel, tuple(local), into)


def act_of(move: Move, whole: Whole) -> Act:
    """A move as a callable."""
    if isinstance(move, Copy):
        return _copy_act(move.src, move.dst, whole)
    if isinstance(move, Folding):
        return _fold_act(move.kernel, move.operands, move.dst, whole)
    return move


def copy_long(dst: Array, src: Array) -> None:
    """``np.copyto`` of flat arrays of one type; what is long goes in pieces, which is up to a tenth faster.

    Only where both lie alike in their cache lines: where they do not, pieces take up to twice as long as the whole.
    """
    if dst.nbytes < _LONG or (address_of(dst) - address_of(src)) % _CACHE_LINE:
        np.copyto(dst, src)
        return
    step = _PIECE // dst.itemsize
    for at in range(0, len(dst), step):
        np.copyto(dst[at : at + step], src[at : at + step])


def _copy_act(src: Local | Array, dst: Local | Array, whole: Whole) -> Act:
    """What is all of a buffer is not sliced: that is a good part of a short call."""
    if isinstance(src, tuple):
        b, lo, hi = src
        all_of_src = (lo, hi) == (0, whole[b])
        if isinstance(dst, tuple):
            db, dlo, dhi = dst
            all_of_dst = (dlo, dhi) == (0, whole[db])

            def move(bufs: Bufs) -> None:
                if not (all_of_src and all_of_dst):
                    copy_long(bufs[db][dlo:dhi], bufs[b][lo:hi])  # which lets what is read-only be copied to itself
                elif bufs[db] is not bufs[b]:
                    bufs[db][...] = bufs[b]

            return move

        def store(bufs: Bufs) -> None:
            dst[...] = bufs[b] if all_of_src else bufs[b][lo:hi]

        return store
    if isinstance(dst, tuple):
        db, dlo, dhi = dst
        all_of_dst = (dlo, dhi) == (0, whole[db])

        def load(bufs: Bufs) -> None:
            (bufs[db] if all_of_dst else bufs[db][dlo:dhi])[...] = src

        return load

    def pass_on(_: Bufs) -> None:
        dst[...] = src

    return pass_on


def _fold_act(kernel: Fold, sources: Sequence[Local | Array], target: Local | Array, whole: Whole) -> Act:
    if len(sources) == 2:
        return _fold_two(kernel, target, sources[0], sources[1], whole)

    def act(bufs: Bufs) -> None:
        kernel(_take(target, bufs), [_take(ref, bufs) for ref in sources])

    return act


def _fold_two(kernel: Fold, target: Local | Array, first: Local | Array, second: Local | Array, whole: Whole) -> Act:
    """Most folds, with what all of them have in common left out."""
    two = kernel.two

    def place(ref: Local | Array) -> tuple[int, int, int, bool, Any]:
        if isinstance(ref, tuple):
            return *ref, ref[1:] == (0, whole[ref[0]]), None
        return 0, 0, 0, False, ref

    t, tlo, thi, all_of_t, into = place(target)
    a, alo, ahi, all_of_a, one = place(first)
    b, blo, bhi, all_of_b, other = place(second)

    def act(bufs: Bufs) -> None:
        two(
            (bufs[t] if all_of_t else bufs[t][tlo:thi]) if into is None else into,
            (bufs[a] if all_of_a else bufs[a][alo:ahi]) if one is None else one,
            (bufs[b] if all_of_b else bufs[b][blo:bhi]) if other is None else other,
        )

    return act


def pull_act(src: Remote, dst: Local, frame: Frame, itemsize: int) -> Act:
    """Copies a range of a peer's buffer."""
    read, buf, offset, nbytes = src.read, src.buf, src.lo * itemsize, (src.hi - src.lo) * itemsize
    into, shift = dst[0], dst[1] * itemsize

    def act(_: Bufs) -> None:
        read(frame.base, buf, offset, nbytes, frame.addresses[into] + shift)

    return act


def pull_fold_act(
    kernel: Fold, operands: Sequence[Ref], dst: Local, apart: Sequence[bool], temp: Local, frame: Frame, itemsize: int
) -> Act:
    """Folds several ranges, some of peers' buffers, into one, in pieces that stay in cache.

    Args:
        kernel: the fold.
        operands: what is folded, in order.
        dst: where to.
        apart: for each operand of this rank, whether it must be copied before the fold, since ``dst`` overwrites it.
        temp: room for the pieces of all operands that are a peer's or ``apart``; its size determines that of the pieces.
        frame: of the call.
        itemsize: bytes per element.
    """
    n = length(dst)
    piece = length(temp) // sum(isinstance(ref, Remote) or away for ref, away in zip(operands, apart, strict=True))

    def act(bufs: Bufs) -> None:
        scratch, base, where = bufs[temp[0]], frame.base, frame.addresses[temp[0]]
        for at in range(0, n, piece):
            size = min(piece, n - at)
            views = []
            mapped: list[Remote] = []
            free = temp[1]
            for ref, away in zip(operands, apart, strict=True):
                if isinstance(ref, Remote):
                    offset, nbytes = (ref.lo + at) * itemsize, size * itemsize
                    there = ref.read(base, ref.buf, offset, nbytes, 0)
                    if there is not None:
                        views.append(there.view(scratch.dtype))
                        mapped.append(ref)
                        continue
                    ref.read(base, ref.buf, offset, nbytes, where + free * itemsize)
                else:
                    view = _take(ref, bufs)[at : at + size]
                    if not away:
                        views.append(view)
                        continue
                    np.copyto(scratch[free : free + size], view)
                views.append(scratch[free : free + size])
                free += piece
            kernel(_take(dst, bufs)[at : at + size], views)
            for ref in mapped:  # is it still what was shown?
                ref.read(base, ref.buf, 0, 0, 0)

    return act


def sequence(acts: Sequence[Act]) -> Act | None:
    """One callable that does all in order; None for nothing to do."""
    if not acts:
        return None
    if len(acts) == 1:
        return acts[0]
    together = tuple(acts)

    def act(bufs: Bufs) -> None:
        for one in together:
            one(bufs)

    return act
