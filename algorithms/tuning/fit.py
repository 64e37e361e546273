"""The constants of the cost model that explain measured times best: robust least squares over predicted against measured.

Whole schedules are what is measured, not pings and streams between pairs: a schedule's time holds all that a message costs once it is
sent by the executor, between ranks that are busy, and that is what has to be predicted. What the measurements do not tell stays where
it was, since a constant that is changed must pay for it by a better fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from topoccl.algorithms.calibration import STAMPED, Profile
from topoccl.algorithms.cost import CostModel, block_bytes
from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.tuning.measured import Fitted, with_constants
from topoccl.topology.graph import Topology

Floats = npt.NDArray[np.float64]

TOLERANCES = (1.0, 0.2, 0.05)
"""Relative errors far above this count less than in proportion to their squares: soft L1. The first makes the rough fit."""
JACOBIANS, STEPS = 3, 4
LONGEST, SMALLEST = 1.5, 1e-3  # logarithm of the factor by which a constant changes at once
RELUCTANCE = 0.03
"""Changing a constant by a factor of e costs as much as an error of this share in one measurement."""
TINY, FIRST = 1e-6, 20e-6  # seconds; a latency of zero cannot be scaled, so the first is added before, and the second is where it begins
FEW_BYTES, FIRST_BYTES = 1024.0, 4096.0  # the same for bursts
STEP = 0.02
_LIMITS = {"efficiency": (1e-4, 1.0), "both_ways": (0.5, 1.0)}
_ROOM = {"copy_bandwidth": 8.0, "reduce_bandwidth": 8.0, "pull_bandwidth": 8.0}  # memory is not that different from machine to machine
_WIDE = 1e4  # how many times more or less than at first another constant may become
NOTHING = 1e-9
QUICK = 1000  # steps that are simulated in some milliseconds


@dataclass(frozen=True)
class Sample:
    """A measured call: ``schedule`` on ``topology`` took ``seconds`` for ``nbytes`` in ``segments``, or by reading the senders' buffers.

    ``weight``: 1, or less where little was measured.
    """

    schedule: Schedule
    topology: Topology
    nbytes: int
    segments: int
    seconds: float
    pulls: bool = False
    weight: float = 1.0


@dataclass(frozen=True)
class Fit:
    """The outcome of :func:`fit`: ``profile`` is the one that was given with the constants of ``fitted``; ``before`` and ``after`` are
    predicted over measured, minus 1, for each sample."""

    fitted: Fitted
    profile: Profile
    before: tuple[float, ...]
    after: tuple[float, ...]


def predicted_seconds(sample: Sample, profile: Profile) -> float:
    """What the model says of a sample under ``profile``."""
    model = CostModel(sample.schedule, sample.topology, profile)
    block = block_bytes(sample.schedule.spec, sample.nbytes)
    pulled = model.pulled(block) if sample.pulls else None
    return (model.predict(block, sample.segments) if pulled is None else pulled).seconds


def relative_errors(samples: Sequence[Sample], profile: Profile) -> tuple[float, ...]:
    """Predicted over measured, minus 1."""
    return tuple(predicted_seconds(sample, profile) / sample.seconds - 1 for sample in samples)


@dataclass(frozen=True)
class _Constant:
    """Something that is fitted: ``names`` are scaled together, so that the overheads of both sides, which no schedule can tell apart,
    keep their ratio. What may be zero has an ``offset``, and begins at ``first`` if it is."""

    names: tuple[str, ...]
    offset: float = 0.0
    first: float = 0.0

    def get(self, profile: Profile, name: str) -> float:
        head, _, tail = name.rpartition(".")
        return float(getattr(getattr(profile, head) if head else profile, tail)) + self.offset


def constants(samples: Sequence[Sample], profile: Profile) -> list[_Constant]:
    """What can be seen in ``samples``: messages between hosts, within hosts, copies and reads."""
    found = []
    places = [sample.topology.ranks_by_host for sample in samples]
    media = []
    if any(len(hosts) > 1 for hosts in places):
        media.append("network")
    if any(len(ranks) > 1 for hosts in places for ranks in hosts) and profile.local is not profile.network:
        media.append("local")
    for medium in media:
        found += [_Constant((f"{medium}.send_overhead", f"{medium}.recv_overhead")), _Constant((f"{medium}.latency",), TINY, FIRST)]
    if "network" in media:
        found += [_Constant(("network.efficiency",)), _Constant(("network.both_ways",))]
        found.append(_Constant(("network.burst",), FEW_BYTES, FIRST_BYTES))
        if any(sample.nbytes <= STAMPED and sample.segments == 1 for sample in samples) and profile.network.stamped_overhead > 0:
            found += [_Constant(("network.stamped_overhead",)), _Constant(("network.stamped_call",), TINY, FIRST)]
            found.append(_Constant(("network.stamped_rate",)))
    if media:
        found.append(_Constant((f"{media[0]}.call_overhead",), TINY, FIRST))
    if math.isfinite(profile.copy_bandwidth):
        found += [_Constant(("copy_bandwidth",)), _Constant(("reduce_bandwidth",))]
    if any(sample.pulls for sample in samples) and profile.local.pull_bandwidth > 0:
        found += [_Constant(("local.pull_bandwidth",)), _Constant(("local.pull_overhead",))]
    return [c for c in found if all(0 < c.get(profile, name) < math.inf for name in c.names)]


class _EnoughError(Exception):
    """The time for fitting is over."""


def fit(samples: Sequence[Sample], profile: Profile, enough: Callable[[], bool] = lambda: False) -> Fit:
    """Fits the constants of ``profile`` that the samples tell of.

    Args:
        samples: measurements, of several schedules and sizes; every collective and size counts alike, however many candidates of it
            were measured.
        profile: where to begin, and what to keep where nothing tells.
        enough: asked now and then; when it is true the best constants so far are taken.

    Raises:
        ValueError: no samples.
    """
    if not samples:
        raise ValueError("nothing was measured; expected at least one sample to fit to")
    free = constants(samples, profile)
    cells: dict[Any, int] = {}
    for sample in samples:
        cells[_cell(sample)] = cells.get(_cell(sample), 0) + 1
    weights = np.array([sample.weight / math.sqrt(cells[_cell(sample)]) for sample in samples])
    measured = np.log([sample.seconds for sample in samples])
    before = relative_errors(samples, profile)
    if not free:
        return Fit(Fitted((), profile.crowd, profile.machine), profile, before, before)

    lower, upper, start = np.array([_range(c, profile) for c in free]).T

    def residuals(x: Floats) -> Floats:
        if enough():
            raise _EnoughError
        candidate = _applied(profile, free, x)
        off = weights * (np.log([predicted_seconds(sample, candidate) for sample in samples]) - measured)
        return np.append(off, RELUCTANCE * x)

    found = _applied(profile, free, _minimise(residuals, start, lower, upper))
    names = [name for constant in free for name in constant.names]
    fitted = Fitted(tuple(sorted((name, _rounded(name, _value(found, name))) for name in names)), profile.crowd, profile.machine)
    return Fit(fitted, with_constants(profile, fitted.constants), before, relative_errors(samples, found))


def _minimise(residuals: Callable[[Floats], Floats], x: Floats, lower: Floats, upper: Floats) -> Floats:
    """The least sum of soft L1 losses within bounds: Levenberg-Marquardt with reweighted residuals, for each tolerance of
    :data:`TOLERANCES` in turn. Between Jacobians secants improve them (Broyden), since each costs a simulation for each constant and
    sample."""
    damping = 1e-2
    try:
        r = residuals(x)
        for scale in TOLERANCES:
            for _ in range(JACOBIANS):
                jacobian = np.empty((len(r), len(x)))
                for i in range(len(x)):
                    step = STEP if x[i] + STEP <= upper[i] else -STEP
                    moved = x.copy()
                    moved[i] += step
                    jacobian[:, i] = (residuals(moved) - r) / step
                begun = _loss(r, scale)
                for _ in range(STEPS):
                    weight = 1 / np.sqrt(1 + (r / scale) ** 2)
                    normal = jacobian.T @ (weight[:, None] * jacobian)
                    gradient = jacobian.T @ (weight * r)
                    held = ((x <= lower) & (gradient > 0)) | ((x >= upper) & (gradient < 0))
                    move = np.zeros(len(x))
                    some = np.ix_(~held, ~held)
                    move[~held] = -np.linalg.solve(normal[some] + damping * np.diag(np.diag(normal[some])), gradient[~held])
                    move = np.clip(x + np.clip(move, -LONGEST, LONGEST), lower, upper) - x
                    length = float(move @ move)
                    if length < SMALLEST**2:
                        break
                    moved_r = residuals(x + move)
                    jacobian += np.outer(moved_r - r - jacobian @ move, move) / length
                    if _loss(moved_r, scale) < _loss(r, scale):
                        x, r, damping = x + move, moved_r, damping / 4
                    else:
                        damping *= 8
                if _loss(r, scale) > 0.99 * begun:
                    break
    except _EnoughError:
        pass
    return x


def _loss(r: Floats, scale: float) -> float:
    return float((np.sqrt(1 + (r / scale) ** 2) - 1).sum())


def _cell(sample: Sample) -> tuple[Any, ...]:
    return (sample.schedule.spec, sample.topology.digest, sample.nbytes)


def _range(constant: _Constant, profile: Profile) -> tuple[float, float, float]:
    """(least, most, where to begin) of the logarithm of the factor."""
    name = constant.names[0]
    tail = name.rpartition(".")[2]
    high = math.log(_ROOM.get(tail, _WIDE))
    if constant.offset:
        beyond = constant.get(profile, name) / constant.offset
        return -math.log(beyond), high, math.log(1 + constant.first / constant.offset) if beyond == 1 else 0.0
    if (limits := _LIMITS.get(tail)) is None:
        return -high, high, 0.0
    low, high = (math.log(limit / constant.get(profile, name)) for limit in limits)
    return low, high, min(0.0, high - 2 * STEP)  # at 1 nothing is felt of both ways


def _applied(profile: Profile, free: Sequence[_Constant], x: Floats) -> Profile:
    values = []
    for constant, exponent in zip(free, x.tolist(), strict=True):
        for name in constant.names:
            value = constant.get(profile, name) * math.exp(exponent) - constant.offset
            least, most = _LIMITS.get(name.rpartition(".")[2], (0.0, math.inf))
            values.append((name, min(max(value, least), most)))
    return with_constants(profile, values)


def _value(profile: Profile, name: str) -> float:
    head, _, tail = name.rpartition(".")
    return float(getattr(getattr(profile, head) if head else profile, tail))


def _rounded(name: str, value: float) -> float:
    """As a tuning file says it."""
    if name.endswith("burst"):
        return float(round(value))
    return 0.0 if value < NOTHING else float(f"{value:.4g}")


def spread(errors: Sequence[float]) -> float:
    """The median of the absolute errors."""
    return median(map(abs, errors)) if errors else 0.0


def pick(samples: Sequence[Sample], most: int) -> list[Sample]:
    """At most ``most`` samples for a fit: of every collective and size in turn the fastest, then the next; slow simulations last."""
    groups: dict[Any, list[Sample]] = {}
    for sample in sorted(samples, key=lambda s: (s.schedule.num_steps * min(s.segments, 8) > QUICK, s.seconds)):
        groups.setdefault(_cell(sample), []).append(sample)
    turns = [group[turn] for turn in range(max(map(len, groups.values()), default=0)) for group in groups.values() if turn < len(group)]
    return turns[:most]
