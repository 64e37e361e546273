"""Calls like earlier ones: what was checked and planned for those holds for them, so that most of a short call is left out."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

from topoccl.collectives.executor.dtypes import Array, DType, memory_at, plain_tensors

if TYPE_CHECKING:
    from topoccl.collectives.calls import Bound
    from topoccl.collectives.executor.straight import Straight
    from topoccl.collectives.planner import Plan

_MOST = 1024  # kinds of calls that are remembered
OFTEN = 4
"""Calls of a kind after which it gets a function of its own."""
_IN_PLACE = -2  # stands for the size of an output that is the input
_NONE = -1  # ... of a buffer that this rank does not have
_NUMPY = np.ndarray
# Bits of NumPy's flags: elements one after the other, memory that belongs to the array, aligned and writable.
_DENSE, _OWN, _PLAIN = 0x1, 0x4, 0x501


class Known:
    """What is known of a kind of calls.

    Attributes:
        plan: theirs.
        dtype: of their elements.
        copies: whether their input is copied first.
        absent: stands for a buffer that this rank does not have.
        straight: functions that make such a call, for even and odd numbers of calls; None until :attr:`waits` more were made, and where
            that takes more than a function.
        waits: a function of its own is for those that come again and again.
    """

    __slots__ = ("absent", "copies", "dtype", "inp", "out", "plan", "straight", "waits")

    def __init__(self, plan: Plan, dtype: DType, copies: bool) -> None:
        self.plan = plan
        self.dtype = dtype
        self.copies = copies
        self.absent: Array = np.empty(0, dtype.carrier)
        self.straight: tuple[Straight, Straight] | None = None
        self.waits = OFTEN
        # Where the last tensors lay, and arrays that stood for them. These keep no tensor, and are looked at only where one lies again.
        self.inp = self.out = (0, self.absent)


class Repeats:
    """The kinds of calls that a group has made: what, root, reduction, type and sizes. Buffers are looked at anew for each call."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Known] = {}

    def clear(self) -> None:
        self._known.clear()

    def add(self, what: str, root: int | None, op: str | None, src: Any, dst: Any, bound: Bound, plan: Plan) -> None:
        """Remembers a call on ``src`` and ``dst`` (None for what this rank does not have) that was bound to ``bound``."""
        if bound.in_place != (src is dst):
            return  # a copy, or a buffer that is part of the other
        if len(self._known) >= _MOST:
            self._known.clear()
        first = dst if src is None else src
        if isinstance(first, np.ndarray):
            sizes = [_NONE if one is None else one.size for one in (src, dst)]
        else:
            sizes = [_NONE if one is None else one.numel() for one in (src, dst)]
        if 0 in sizes:
            return
        copies = bound.in_place and not plan.agreed.in_place
        key = what, root, op, first.dtype, sizes[0], _IN_PLACE if src is dst else sizes[1]
        self._known[key] = Known(plan, bound.dtype, copies)

    def find(self, what: str, root: int | None, op: str | None, src: Any, dst: Any) -> tuple[Known, Array, Array] | None:
        """What is known of such a call, and its flat input and output; None when it must be checked as one never seen."""
        first = dst if src is None else src
        try:
            kind = first.dtype
            if type(first) is not _NUMPY:
                return self._find_tensors(what, root, op, src, dst, kind)
            known = self._known.get(
                (what, root, op, kind, _NONE if src is None else src.size, _NONE if dst is None else _IN_PLACE if src is dst else dst.size)
            )
            return None if known is None else _arrays(known, src, dst, kind)
        except (AttributeError, RuntimeError, TypeError):  # neither an array nor a dense tensor: said where it is bound
            return None

    def _find_tensors(
        self, what: str, root: int | None, op: str | None, src: Any, dst: Any, kind: Any
    ) -> tuple[Known, Array, Array] | None:  # fmt: skip
        size = _NONE if src is None else src.numel()
        other = _NONE if dst is None else _IN_PLACE if src is dst else dst.numel()
        known = self._known.get((what, root, op, kind, size, other))
        if known is None:
            return None
        dtype = known.dtype
        out = known.absent
        end = begin = 0
        if dst is not None:
            if not _dense(dst, dtype) or dst.dtype is not kind:
                return None
            begin = dst.data_ptr()
            count = size if src is dst else other
            end = begin + count * dtype.itemsize
            seen = known.out
            if seen[0] != begin:
                seen = known.out = begin, memory_at(begin, count, dtype)
            out = seen[1]
            if src is dst:
                return known, out, out
        if src is None:
            return known, known.absent, out
        if not _dense(src, dtype):
            return None
        address = src.data_ptr()
        if address < end and begin < address + size * dtype.itemsize:
            return None
        seen = known.inp
        if seen[0] != address:
            seen = known.inp = address, memory_at(address, size, dtype)
        return known, seen[1], out


def _arrays(known: Known, src: Any, dst: Any, kind: np.dtype[Any]) -> tuple[Known, Array, Array] | None:
    out = known.absent
    flags = _OWN
    if dst is not None:
        flags = dst.flags.num
        if flags & _PLAIN != _PLAIN or type(dst) is not _NUMPY or dst.dtype is not kind:
            return None
        out = dst if dst.ndim == 1 else dst.reshape(-1)
        if not known.dtype.native:
            out = out.view(known.dtype.carrier)
        if src is dst:
            return known, out, out
    if src is None:
        return known, known.absent, out
    other = src.flags.num
    if not other & _DENSE:
        return None
    # Arrays that own their memory are apart from all others.
    if not flags & other & _OWN and dst is not None and np.may_share_memory(src, dst):
        return None
    inp = src if src.ndim == 1 else src.reshape(-1)
    return known, inp if known.dtype.native else inp.view(known.dtype.carrier), out


def _dense(tensor: Any, dtype: DType) -> bool:
    """Whether a tensor's elements lie in this process's memory as they are, one after the other."""
    return (
        type(tensor) in plain_tensors
        and tensor.is_contiguous()
        and tensor.is_cpu
        and not tensor.is_neg()
        and not (dtype.is_complex and tensor.is_conj())
    )
