"""Calls like earlier ones: what was checked and planned for those holds for them, so that most of a short call is left out."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from topoccl.collectives.executor.dtypes import Array, DType, memory_of, plain_tensors

if TYPE_CHECKING:
    from topoccl.collectives.calls import Bound
    from topoccl.collectives.planner import Plan

_MOST = 1024  # kinds of calls that are remembered
_IN_PLACE = -2  # stands for the size of an output that is the input
_NONE = -1  # ... of a buffer that this rank does not have


class Known(NamedTuple):
    """What is known of a kind of calls: their plan, the type of their elements, and whether their input is copied first."""

    plan: Plan
    dtype: DType
    copies: bool
    absent: Array  # stands for a buffer that this rank does not have


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
        self._known[key] = Known(plan, bound.dtype, copies, np.empty(0, bound.dtype.carrier))

    def find(self, what: str, root: int | None, op: str | None, src: Any, dst: Any) -> tuple[Known, Array, Array] | None:
        """What is known of such a call, and its flat input and output; None when it must be checked as one never seen."""
        first = dst if src is None else src
        try:
            kind = first.dtype
            if type(first) is not np.ndarray:
                return self._find_tensors(what, root, op, src, dst, kind)
            size = _NONE if src is None else src.size
            known = self._known.get((what, root, op, kind, size, _NONE if dst is None else _IN_PLACE if src is dst else dst.size))
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
            out = memory_of(dst, begin, count, dtype)
            if src is dst:
                return known, out, out
        if src is None:
            return known, known.absent, out
        if not _dense(src, dtype):
            return None
        address = src.data_ptr()
        if address < end and begin < address + size * dtype.itemsize:
            return None
        return known, memory_of(src, address, size, dtype), out


def _arrays(known: Known, src: Any, dst: Any, kind: np.dtype[Any]) -> tuple[Known, Array, Array] | None:
    out = known.absent
    owned = True
    if dst is not None:
        flags = dst.flags
        if type(dst) is not np.ndarray or not flags.carray or dst.dtype is not kind:
            return None
        owned = flags.owndata
        out = dst if dst.ndim == 1 else dst.reshape(-1)
        if not known.dtype.native:
            out = out.view(known.dtype.carrier)
        if src is dst:
            return known, out, out
    if src is None:
        return known, known.absent, out
    flags = src.flags
    if not flags.c_contiguous:
        return None
    # Arrays that own their memory are apart from all others.
    if dst is not None and not (owned and flags.owndata) and np.may_share_memory(src, dst):
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
