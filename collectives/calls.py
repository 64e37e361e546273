"""What a caller hands over, checked and brought into the form that plans run on: flat input, flat output, in place or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


def _contiguous(data: Any) -> Any:
    return np.ascontiguousarray(data) if isinstance(data, np.ndarray) else data.detach().contiguous()


def bind(what: str, src: Any, dst: Any, shift: int = 0) -> Bound:
    """Checks and flattens the buffers of a call.

    Args:
        what: the collective, for errors.
        src: input tensor or array, None where this rank has no input.
        dst: output, None where this rank has none; it may be ``src`` itself.
        shift: where the input lies in the output, in elements, when the call is in place (negative: the output in the input).

    Raises:
        ConfigError: not tensors or arrays, or of different types.
    """
    first = src if src is not None else dst
    dtype = dtype_of(first)
    if src is dst and is_contiguous(src):
        both = flat(src, dtype)
        return Bound(dtype, both, both, True)
    if src is not None and dst is not None and dtype_of(dst) is not dtype:
        raise ConfigError(f"{what}: input is {dtype.name}, output is {dtype_of(dst).name}; they must be the same")
    empty = np.empty(0, dtype.carrier)
    copy_back = None
    if dst is None:
        out = empty
    elif is_contiguous(dst):
        out = flat(dst, dtype)
    else:
        copy_back = dst
        out = np.empty(int(np.prod(dst.shape, dtype=np.int64)), dtype.carrier)
    if src is None:
        return Bound(dtype, empty, out, False, copy_back)
    inp = flat(src if is_contiguous(src) else _contiguous(src), dtype)
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


def counts_of(what: str, side: str, counts: Sequence[int], ranks: int, elements: int) -> list[int]:
    """Checked split sizes of an all_to_all.

    Raises:
        ConfigError: wrong number of counts, a negative one, or a sum that is not the buffer's size.
    """
    values = [int(n) for n in counts]
    if len(values) != ranks:
        raise ConfigError(f"{what}: {len(values)} {side} counts for {ranks} ranks")
    if any(n < 0 for n in values):
        raise ConfigError(f"{what}: {side} counts {values} have a negative one")
    if sum(values) != elements:
        raise ConfigError(f"{what}: {side} counts {values} add up to {sum(values)}, but the {side} buffer has {elements} elements")
    return values
