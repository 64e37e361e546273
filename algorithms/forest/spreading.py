"""Out-trees that carry blocks from their roots to all ranks of a network, as fast as its capacities allow or nearly so."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from topoccl.algorithms.forest.packing import Arborescence, pack
from topoccl.algorithms.forest.scaling import GOOD, round_down, shrink
from topoccl.algorithms.forest.splitting import Allowed, Capacities, Splitter, feasible


@dataclass(frozen=True)
class Spread:
    """Trees, and the share of the best rate that they keep; ``weights`` are what the trees of each root sum to."""

    trees: tuple[Arborescence, ...]
    weights: Mapping[int, int]
    share: float


def spread(
    capacities: Mapping[tuple[int, int], Fraction], weights: Mapping[int, Fraction], ranks: Sequence[int], totals: Sequence[int],
    allowed: Allowed,
) -> Spread:  # fmt: skip
    """Trees over ``ranks``, of which as many begin at each root as ``weights`` says.

    Args:
        capacities: of arcs between ranks and switches; what enters a switch must leave it.
        weights: of the roots, in the same unit: trees of these weights fit.
        ranks: the vertices to span.
        totals: how large the weights of all trees together may be, when made whole numbers: ascending.
        allowed: which ways through switches there are (:class:`~topoccl.algorithms.forest.splitting.Splitter`).

    Raises:
        ValueError: the trees do not fit.
    """
    common = math.lcm(*(c.denominator for c in capacities.values()), *(w.denominator for w in weights.values()))
    whole = {arc: int(c * common) for arc, c in capacities.items() if c}
    roots = {vertex: int(weight * common) for vertex, weight in weights.items() if weight}
    splitter = Splitter(dict(whole), dict(roots), ranks, allowed=allowed)
    splitter.run()
    found = shrink(splitter.capacities, splitter.weights, ranks, totals)
    if found[2] < GOOD and all(whole.get((head, tail)) == c for (tail, head), c in whole.items()) and len(set(roots.values())) == 1:
        rounded = _rounded_first(whole, roots, ranks, totals, allowed)
        if rounded is not None and rounded[2] > found[2]:
            found = rounded
    return Spread(tuple(pack(found[0], found[1], list(ranks))), found[1], found[2])


def _rounded_first(
    capacities: Capacities,
    weights: Mapping[int, int],
    ranks: Sequence[int],
    totals: Sequence[int],
    allowed: Allowed,
) -> tuple[Capacities, dict[int, int], float] | None:
    """Capacities rounded down before the switches go: arcs that are equal both ways stay so, and shares of switches are not lost."""
    best = round_down(capacities, weights, ranks, [total for total in totals if total % len(weights) == 0])
    if best is None:
        return None
    splitter = Splitter(best[0], best[1], ranks, refine=False, allowed=allowed)
    splitter.run()
    return (splitter.capacities, splitter.weights, best[2]) if feasible(splitter.capacities, splitter.weights, ranks) else None
