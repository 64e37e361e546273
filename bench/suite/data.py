"""Random inputs that every rank can make again for any rank, piece by piece, and whose reductions need no rounding.

Sums of floating numbers are sums of integers that stay below two to the number of significant bits in every partial sum, products
are products of small integers and powers of two. So every order of operations gives the same bits, and the one right answer is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from topoccl.bench.suite.elements import Element

Array = npt.NDArray[Any]

CHUNK = 1 << 16
"""Elements that one random stream makes; a piece never goes over the edge of a chunk."""


def _power(number: int) -> int:
    """The exponent of the largest power of two that is at most ``number``."""
    return number.bit_length() - 1


@dataclass(frozen=True)
class Inputs:
    """The inputs of all ranks to one call.

    Attributes:
        element: the type.
        op: the reduction they are for; None when data is only moved.
        ranks: how many ranks there are.
        seed: numbers that tell this call's data from other data's.
    """

    element: Element
    op: str | None
    ranks: int
    seed: tuple[int, ...] = (0,)

    def piece(self, rank: int, start: int, stop: int) -> Array:
        """Elements ``start`` to ``stop`` of ``rank``'s input, within one chunk; of type ``element.exact``."""
        chunk, first = divmod(start, CHUNK)
        last = stop - chunk * CHUNK
        if not first <= last <= CHUNK:
            raise ValueError(f"elements {start} to {stop} are not within one chunk of {CHUNK}")
        random = np.random.Generator(np.random.SFC64([*self.seed, rank, chunk]))
        exact = np.dtype(self.element.exact)
        if not self.element.floating:
            return self._integers(random, last, exact)[first:]
        bits = random.integers(0, 1 << 63, last, np.int64) if exact.itemsize == 8 else random.integers(0, 1 << 31, last, np.int32)
        return self._floats(bits, rank, chunk * CHUNK)[first:].astype(exact)

    def _integers(self, random: np.random.Generator, count: int, exact: np.dtype[Any]) -> Array:
        """All values, as sums and products wrap around; small enough not to for averages, which wrapping would make meaningless."""
        limits = np.iinfo(exact)
        low, high = int(limits.min), int(limits.max)
        if self.op == "avg":
            low, high = -(-low // self.ranks), high // self.ranks
        return random.integers(low, high, count, exact, endpoint=True)

    def _floats(self, bits: Array, rank: int, base: int) -> Array:
        """Values made of random ``bits``, of which the sign bit is clear; ``base`` is the index of the first."""
        width = bits.dtype.itemsize * 8 - 1
        digits = self.element.digits
        if self.op in ("sum", "avg"):
            summed = max(1, 1 + _power(max(1, (1 << digits) // self.ranks)))
            values = (bits >> (width - summed)) - (1 << (summed - 1))
            return self._sparse(values, rank, base, (1 << digits) >> (summed - 1), 0)
        if self.op != "prod":
            return (bits >> (width - digits)) - (1 << (digits - 1))
        factor_bits = digits // self.ranks
        factors = 1 + (bits >> 4 & ((1 << factor_bits) - 1))
        exponents = self._sparse((bits >> (width - 16)) % 3 - 1, rank, base, self.element.top - digits, 0)
        return np.ldexp(np.where(bits & 1, -factors, factors).astype(np.float64), exponents.astype(np.int32))

    def _sparse(self, values: Array, rank: int, base: int, most: int, neutral: int) -> Array:
        """At each index the values of at most ``most`` ranks, in turn; ``neutral`` for the others."""
        if most >= self.ranks:
            return values
        turn = (np.arange(base, base + len(values)) + rank) % self.ranks
        return np.where(turn < most, values, neutral)


FOLDS: dict[str, Callable[..., Array]] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def reduced(inputs: Inputs, sources: tuple[int, ...], start: int, stop: int) -> Array:
    """The reduction of a piece of the inputs of ``sources``, by definition."""
    total = inputs.piece(sources[0], start, stop)
    for rank in sources[1:]:
        FOLDS[inputs.op or ""](total, inputs.piece(rank, start, stop), out=total)
    if inputs.op != "avg":
        return total
    if inputs.element.floating:
        return total / total.dtype.type(len(sources))
    return np.sign(total) * (np.abs(total) // total.dtype.type(len(sources)))  # towards zero
