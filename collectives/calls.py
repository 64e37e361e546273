"""What a caller hands over, checked and brought into the form that plans run on: flat input, flat output, in place or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from topoccl.collectives.errors import ConfigError
from topoccl.collectives.executor.dtypes import Array, DType, dtype_of, flat, is_contiguous


@dataclass(slots=True)
class Bound:
    """Buffers of one call. ``copy_back`` is the caller's own output when ``out`` is a contiguous stand-in for it."""

    dtype: DType
    inp: Array
    out: Array
    in_place: bool
    copy_back: Any = None

    def finish(self) -> None:
        """Brings the result to where the caller wants it."""
        if self.copy_back is not None:
            store(self.copy_back, self.out, self.dtype)


def store(target: Any, values: Array, dtype: DType) -> None:
    """Copies flat carrier ``values`` into a tensor or array of any layout."""
    if isinstance(target, np.ndarray):
        target[...] = values.view(target.dtype).reshape(target.shape)
    else:
        import torch

        target.detach().copy_(torch.from_numpy(values).view(dtype.torch).reshape(target.shape))


def contiguous(data: Any) -> Any:
    """A tensor or array of the same elements that lie in memory as they are, one after the other."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data)
    return data.detach().resolve_conj().resolve_neg().contiguous()


def landing(what: str, dst: Any, dtype: DType) -> tuple[Array, Any]:
    """Where the result of a call goes at first: a flat view of ``dst`` or, where there is none, a stand-in for it and ``dst`` itself.

    Raises:
        ConfigError: ``dst`` cannot be written to.
    """
    if is_contiguous(dst):
        out = flat(dst, dtype)
        if not out.flags.writeable:
            raise ConfigError(f"{what}: the output, {_said(dst, dtype)}, is read-only")
        return out, None
    array = isinstance(dst, np.ndarray)
    if array and not dst.flags.writeable:
        raise ConfigError(f"{what}: the output, {_said(dst, dtype)}, is read-only")
    if not array and "strided" not in str(dst.layout):
        raise ConfigError(f"{what}: the output, {_said(dst, dtype)}, is not dense but {dst.layout}")
    if any(size > 1 and stride == 0 for size, stride in zip(dst.shape, dst.strides if array else dst.stride(), strict=True)):
        raise ConfigError(f"{what}: the output, {_said(dst, dtype)}, has several elements in one place; hand over a copy")
    return np.empty(int(np.prod(dst.shape, dtype=np.int64)), dtype.carrier), dst


def _said(data: Any, dtype: DType) -> str:
    return f"{dtype.name} of shape {tuple(data.shape)}"


def bind(what: str, src: Any, dst: Any, shift: int = 0, *, writes: bool = True) -> Bound:
    """Checks and flattens the buffers of a call.

    Args:
        what: the collective, for errors.
        src: input tensor or array, None where this rank has no input.
        dst: output, None where this rank has none; it may be ``src`` itself.
        shift: where the input lies in the output, in elements, when the call is in place (negative: the output in the input).
        writes: False for an in-place call that leaves this rank's buffer as it is.

    Raises:
        ConfigError: not tensors or arrays, of different types, or an output that cannot be written to.
    """
    first = src if src is not None else dst
    dtype = dtype_of(first)
    if src is dst and is_contiguous(src):
        both = flat(src, dtype) if not writes else landing(what, src, dtype)[0]
        return Bound(dtype, both, both, True)
    if src is not None and dst is not None and dtype_of(dst) is not dtype:
        raise ConfigError(f"{what}: input is {dtype.name}, output is {dtype_of(dst).name}; they must be the same")
    empty = np.empty(0, dtype.carrier)
    out, copy_back = (empty, None) if dst is None else landing(what, dst, dtype)
    if src is None:
        return Bound(dtype, empty, out, False, copy_back)
    inp = flat(src if is_contiguous(src) else contiguous(src), dtype)
    if dst is None or copy_back is not None:
        return Bound(dtype, inp, out, False, copy_back)
    if np.may_share_memory(inp, out):
        if inp.ctypes.data - out.ctypes.data == shift * dtype.itemsize:
            return Bound(dtype, inp, out, True)
        inp = inp.copy()
    return Bound(dtype, inp, out, False)


def expect(what: str, side: str, have: int, want: int, meaning: str) -> None:
    """Raises ConfigError when a buffer has another number of elements than the call needs."""
    if have != want:
        raise ConfigError(f"{what}: {side} has {have} elements; expected {want} ({meaning})")


def below(number: Any, end: int) -> bool:
    """Whether ``number`` is a whole number from 0 to ``end`` - 1."""
    try:
        return 0 <= index(number) < end
    except TypeError:
        return False


def check_root(what: str, root: int, size: int) -> None:
    """Raises ConfigError for a ``root`` that is not a rank of a group of ``size``."""
    if not below(root, size):
        raise ConfigError(f"{what}: root {root!r} is not a rank of a group of {size}; known are 0 to {size - 1}")


def counts_of(what: str, side: str, counts: Sequence[int], ranks: int, elements: int) -> list[int]:
    """Checked split sizes of an all_to_all.

    Raises:
        ConfigError: no whole numbers, too many or few of them, a negative one, or a sum that is not the buffer's size.
    """
    try:
        values = [index(n) for n in counts]
    except TypeError:
        raise ConfigError(f"{what}: the {side} counts are {counts!r}; expected one whole number per rank") from None
    if len(values) != ranks:
        raise ConfigError(f"{what}: {len(values)} {side} counts for {ranks} ranks")
    if any(n < 0 for n in values):
        raise ConfigError(f"{what}: {side} counts {values} have a negative one")
    if sum(values) != elements:
        raise ConfigError(f"{what}: {side} counts {values} add up to {sum(values)}, but the {side} buffer has {elements} elements")
    return values
