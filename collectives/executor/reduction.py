"""Reduction kernels: fold k operands into one destination, left to right.

float16, bfloat16 and float8 are added in float32 and rounded once per fold. MIN and MAX propagate NaN. Integers wrap around
as in C. AVG is a SUM whose result is divided by the number of ranks at the end (integers: rounded towards zero).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

import numpy as np

from topoccl.collectives.errors import ConfigError
from topoccl.collectives.executor.dtypes import Array, DType

Two = Callable[[Array, Array, Array], None]


class Fold:
    """``fold(destination, operands)``: the destination may be one of the first two operands, never a later one.

    Args:
        two: folds two operands: ``two(destination, a, b)``.
        several: folds more than two; None where that is one after the other.
        direct: what ``two`` comes down to, if that is one call: the function and first arguments, before ``a, b, out=destination``.
        single: the same for two numbers, ``single[0](single[1], a, b)``, which arrays of one element take several times as long for;
            empty where the outcome might not be the same to the last bit.

    Not for several threads at once.
    """

    __slots__ = ("_several", "direct", "single", "two")

    def __init__(
        self,
        two: Two,
        several: Callable[[Array, Sequence[Array]], None] | None = None,
        direct: tuple[Any, ...] = (),
        single: tuple[Any, ...] = (),
    ) -> None:
        self.two = two
        self._several = several
        self.direct = direct
        self.single = single

    def __call__(self, dst: Array, operands: Sequence[Array]) -> None:
        if self._several is not None and len(operands) > 2:
            self._several(dst, operands)
            return
        self.two(dst, operands[0], operands[1])
        for operand in operands[2:]:
            self.two(dst, dst, operand)


OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
_KNOWN_OPS = frozenset(OPS)


_UFUNCS: dict[str, Any] = {
    "sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip
# By ufunc: what does the same to two of NumPy's numbers.
_OPERATORS = {
    np.add: operator.add, np.multiply: operator.mul, np.bitwise_and: operator.and_, np.bitwise_or: operator.or_,
    np.bitwise_xor: operator.xor, np.logical_and: operator.and_, np.logical_or: operator.or_,
}  # fmt: skip
_TORCH = {"sum": "add", "product": "mul", "min": "minimum", "max": "maximum"}


def canonical_op(op: str) -> str:
    """The canonical name of a reduction.

    Raises:
        ConfigError: an unknown one.
    """
    if op in _KNOWN_OPS:
        return op
    name = str(op).lower()
    name = {"prod": "product", "mean": "avg", "add": "sum"}.get(name, name)
    if name not in _KNOWN_OPS:
        raise ConfigError(f"unknown reduction {op!r}; known: {', '.join(OPS)}")
    return name


def accumulating_op(op: str) -> str:
    """The operation that is applied between operands: AVG and PREMUL_SUM scale at the ends and sum in between."""
    return "sum" if op in ("avg", "premul_sum") else op


def check_op(op: str, dtype: DType) -> None:
    """Refuses a pair without meaning before anything is sent.

    Raises:
        ConfigError: bitwise operations on floating or complex elements, MIN or MAX of complex ones, types that torch cannot add.
    """
    if dtype.opaque:
        raise ConfigError(f"reduction {op} has no meaning for {dtype.name}: its elements can only be moved")
    if op in ("band", "bor", "bxor") and (dtype.is_floating or dtype.is_complex):
        raise ConfigError(f"reduction {op} has no meaning for {dtype.name}; it needs integers or bool")
    if op in ("min", "max") and dtype.is_complex:
        raise ConfigError(f"reduction {op} has no meaning for {dtype.name}: complex numbers have no order")


def fold_kernel(op: str, dtype: DType) -> Fold:
    """The kernel that folds ``op`` (an accumulating one) over operands of ``dtype``."""
    if not dtype.native:
        return _torch_fold(op, dtype)
    if dtype.name == "bool":
        # On bool a sum is "any", a product "all", as torch and NumPy both have it.
        ufunc = {"sum": np.logical_or, "product": np.logical_and, "min": np.logical_and, "max": np.logical_or}.get(op) or _UFUNCS[op]
    else:
        ufunc = _UFUNCS[op]

    run = _quietly()
    both = _OPERATORS.get(ufunc)
    rounds = dtype.is_complex and ufunc is np.multiply
    single = (run, both) if run is not None and both is not None and not rounds else ()

    if dtype.is_floating or dtype.is_complex:
        return _silent(ufunc, run, single)

    def two(dst: Array, a: Array, b: Array) -> None:
        ufunc(a, b, out=dst)

    return Fold(two, direct=(ufunc,), single=single)


def _quietly() -> Any:
    """``run(function, ...)`` calls a function of NumPy's that warns of nothing; None where that belongs to a thread, not to a context."""
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        return None
    context = Context()
    context.run(np.seterr, all="ignore")
    return context.run  # costs nothing, which np.errstate does not


def _silent(ufunc: Any, run: Any, single: tuple[Any, ...]) -> Fold:
    """Lets sums overflow and infinities cancel without a warning, as torch, MPI and C do."""
    if run is None:

        def guarded(dst: Array, a: Array, b: Array) -> None:
            with np.errstate(all="ignore"):
                ufunc(a, b, out=dst)

        return Fold(guarded)

    def silent(dst: Array, a: Array, b: Array) -> None:
        run(ufunc, a, b, out=dst)

    return Fold(silent, direct=(run, ufunc), single=single)


def _torch_fold(op: str, dtype: DType) -> Fold:
    import torch

    torch_dtype = dtype.torch
    kernel = getattr(torch, _TORCH[op])
    wide = torch.complex64 if dtype.is_complex else torch.float32
    direct = dtype.name in ("float16", "bfloat16")

    def several(dst: Array, operands: Sequence[Array]) -> None:
        views = [torch.from_numpy(x).view(torch_dtype) for x in operands]
        total = views[0].to(wide)
        for view in views[1:]:
            kernel(total, view.to(wide), out=total)
        torch.from_numpy(dst).view(torch_dtype).copy_(total)

    def two(dst: Array, a: Array, b: Array) -> None:
        x, y, out = (torch.from_numpy(one).view(torch_dtype) for one in (a, b, dst))
        kernel(x, y, out=out)  # computes in float32 and rounds once

    def two_wide(dst: Array, a: Array, b: Array) -> None:
        several(dst, (a, b))

    return Fold(two if direct else two_wide, several)


def divide(data: Array, dtype: DType, ranks: int) -> None:
    """Turns sums into averages in place; integers are rounded towards zero, bool keeps "any"."""
    if dtype.name == "bool":
        return
    if not dtype.native:
        import torch

        view = torch.from_numpy(data).view(dtype.torch)
        view.copy_(view.to(torch.complex64 if dtype.is_complex else torch.float32) / ranks)
    elif dtype.is_floating or dtype.is_complex:
        np.divide(data, ranks, out=data)
    else:
        negative = data < 0
        np.floor_divide(data + np.where(negative, ranks - 1, 0).astype(data.dtype), ranks, out=data)


def scaled(data: Array, dtype: DType, factor: float) -> Array:
    """``data * factor`` as a new array (PREMUL_SUM's input)."""
    if dtype.native:
        return np.multiply(data, np.asarray(factor).astype(data.dtype))
    import torch

    view = torch.from_numpy(data).view(dtype.torch)
    product: Array = (view.to(torch.float32) * factor).to(dtype.torch).view(getattr(torch, dtype.carrier.name)).numpy()
    return product
