"""The data movement of one lowered step as one callable over the buffers of a call.

A *ref* says where a contiguous range lies: ``(buffer, lo, hi)`` in the call's input (0), output (1) or scratch (2), sliced
anew at each call since the caller's storage is never kept, or a ready view of the arena.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from topoccl.collectives.executor.dtypes import Array
from topoccl.collectives.executor.reduction import Fold

Ref = tuple[int, int, int] | Array
Bufs = tuple[Array, Array, Array]
Act = Callable[[Bufs], None]


def length(ref: Ref) -> int:
    return ref[2] - ref[1] if isinstance(ref, tuple) else len(ref)


def _cut(ref: Ref, lo: int, hi: int) -> Ref:
    return (ref[0], ref[1] + lo, ref[1] + hi) if isinstance(ref, tuple) else ref[lo:hi]


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
    return bufs[ref[0]][ref[1] : ref[2]] if isinstance(ref, tuple) else ref


def copy_act(src: Ref, dst: Ref) -> Act:
    """Copies one range."""
    copyto = np.copyto
    if isinstance(src, tuple):
        b, lo, hi = src
        if isinstance(dst, tuple):
            db, dlo, dhi = dst
            return lambda bufs: copyto(bufs[db][dlo:dhi], bufs[b][lo:hi])
        return lambda bufs: copyto(dst, bufs[b][lo:hi])
    if isinstance(dst, tuple):
        db, dlo, dhi = dst
        return lambda bufs: copyto(bufs[db][dlo:dhi], src)
    return lambda bufs: copyto(dst, src)


def fold_act(kernel: Fold, operands: Sequence[Ref], dst: Ref) -> Act:
    """Folds several ranges into one."""
    sources = tuple(operands)
    return lambda bufs: kernel(_take(dst, bufs), [_take(ref, bufs) for ref in sources])


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
