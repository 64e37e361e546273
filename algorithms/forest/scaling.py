"""Fewer, larger trees: whole capacities and weights small enough for a schedule, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from topoccl.algorithms.forest.splitting import Capacities, feasible

GOOD = 0.985
"""Small numbers that keep this share of the rate are taken; else the best of those tried."""
_STEPS = 256
_FINE_STEPS = 1 << 12


def shrink(
    capacities: Mapping[tuple[int, int], int], weights: Mapping[int, int], vertices: Sequence[int], totals: Sequence[int]
) -> tuple[Capacities, dict[int, int], float]:
    """Capacities and weights for trees of one of ``totals`` (ascending) together, and the share of the rate that is left.

    The first that is good enough, or large enough for the numbers as they are, without their common factor; else the best.
    """
    shared = math.gcd(*capacities.values(), *weights.values())
    whole = sum(weights.values())
    fits = feasible(capacities, weights, vertices)
    best: tuple[Capacities, dict[int, int], float] | None = None
    for total in totals:
        if fits and whole // shared <= total:
            return {a: c // shared for a, c in capacities.items()}, {v: w // shared for v, w in weights.items()}, 1.0
        rounded = _in_proportion(weights, total)
        found = _fit(capacities, rounded, vertices, total, whole)
        if found is not None and (best is None or found[1] > best[2] * 1.002):
            best = (found[0], rounded, found[1])
            if best[2] >= GOOD:
                break
    if best is None:
        raise ValueError(f"no trees with a weight of {totals} in all fit at a sixteenth of the rate")
    return best


def _fit(
    capacities: Mapping[tuple[int, int], int], weights: Mapping[int, int], vertices: Sequence[int], total: int, whole: int
) -> tuple[Capacities, float] | None:
    """The capacities rounded down, scaled as little as makes the trees fit, and the share of the rate."""

    def scaled(step: int) -> Capacities:
        return {a: c * total * (_STEPS + step) // (whole * _STEPS) for a, c in capacities.items()}

    low, high = -1, 15 * _STEPS  # ``low`` does not fit
    if not feasible(scaled(high), weights, vertices):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if feasible(scaled(middle), weights, vertices):
            high = middle
        else:
            low = middle
    return {a: c for a, c in scaled(high).items() if c}, _STEPS / (_STEPS + high)


def round_down(
    capacities: Mapping[tuple[int, int], int], weights: Mapping[int, int], vertices: Sequence[int], totals: Sequence[int]
) -> tuple[Capacities, dict[int, int], float] | None:
    """As :func:`shrink` in a network that has switches yet; scaled more finely, and at most by three. None where nothing fits."""
    whole = sum(weights.values())
    best: tuple[Capacities, dict[int, int], float] | None = None
    for total in totals:
        rounded = _in_proportion(weights, total)

        def scaled(step: int, total: int = total) -> Capacities:
            found = {a: c * total * (_FINE_STEPS + step) // (whole * _FINE_STEPS) for a, c in capacities.items()}
            return {a: c for a, c in found.items() if c}

        low, high = -1, 2 * _FINE_STEPS
        if not feasible(scaled(high), rounded, vertices):
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if feasible(scaled(middle), rounded, vertices) else (middle, high)
        share = _FINE_STEPS / (_FINE_STEPS + high)
        if best is None or share > best[2] * 1.002:
            best = (scaled(high), rounded, share)
            if share >= GOOD:
                break
    return best


def _in_proportion(weights: Mapping[int, int], total: int) -> dict[int, int]:
    """Whole weights that sum to ``total``, by largest remainders."""
    whole = sum(weights.values())
    rounded = {vertex: weight * total // whole for vertex, weight in weights.items()}
    order = sorted(weights, key=lambda vertex: (-(weights[vertex] * total % whole), vertex))
    for vertex in order[: total - sum(rounded.values())]:
        rounded[vertex] += 1
    return rounded
