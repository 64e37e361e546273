"""How far predictions were off where calls were measured, carried over to sizes and placements that were not.

What the cost model misses of an algorithm it misses again at a size nearby, and in another placement on the same fabric: each measurement
says by what share, on a logarithmic scale. Of several the mean counts, each the less the more octaves lie between the sizes, and
none at all where all are far: then the prediction stands. First comes what all algorithms of a collective share, then what is left of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

OCTAVES = 1.5
"""Measurements so many octaves away count by exp(-1/2) = 0.6, twice as many by 0.14."""
DOUBT = 0.5
"""Counts in the mean as a measurement at that very size would that found nothing to correct."""
MOST = math.log(3)
"""No time is corrected by more than a factor of three: what is off by more was disturbed."""


class Evidence(NamedTuple):
    """``label`` took exp(``off``) times as long as was predicted, at 2 to the power of ``octave`` bytes."""

    label: str
    octave: float
    off: float


def factor(evidence: Sequence[Evidence], label: str, nbytes: int) -> float:
    """By what to multiply the predicted seconds of ``label`` for a call of ``nbytes``, given what was seen of its collective."""
    if not evidence or nbytes <= 0:
        return 1.0
    sizes: dict[float, list[float]] = {}
    for one in evidence:
        sizes.setdefault(one.octave, []).append(one.off)
    shared = [(octave, median(offs)) for octave, offs in sorted(sizes.items())]
    own = [(one.octave, one.off - _mean(shared, one.octave)) for one in evidence if one.label == label]
    octave = math.log2(nbytes)
    return math.exp(min(max(_mean(shared, octave) + _mean(own, octave), -MOST), MOST))


def _mean(points: Sequence[tuple[float, float]], octave: float) -> float:
    weights = [(math.exp(-(((at - octave) / OCTAVES) ** 2) / 2), off) for at, off in points]
    return math.fsum(weight * off for weight, off in weights) / (math.fsum(weight for weight, _ in weights) + DOUBT)
