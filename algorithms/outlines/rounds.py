"""Rounds and rotations, and the time that they take on the links of a topology."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topoccl.topology.graph import Topology
from topoccl.topology.routes import Routes, routes_of

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MOST_MESSAGES = 400_000
"""Rounds with more messages than this are not outlined: each needs its route."""
SEGMENTS = tuple(1 << power for power in range(11))


class TooLarge(ValueError):
    """More messages at once than are looked at."""


@dataclass(frozen=True)
class Round:
    """Messages that are under way at once: rank ``src[i]`` sends ``share`` (or ``share[i]``) of the call's bytes to ``dst[i]``."""

    src: Ints
    dst: Ints
    share: float | Floats
    rail: Ints | int = 0

    @property
    def times(self) -> int:
        return 1


@dataclass(frozen=True)
class Rotation(Round):
    """Rings that turn ``steps`` times: the receiver of a message passes the next one on when it has this one.

    Message ``i`` goes from ``src[i]`` to ``dst[i]``, and ``following[i]`` is the message that leaves ``dst[i]`` in the same ring.
    """

    steps: int = 1
    following: Ints | None = None

    @property
    def times(self) -> int:
        return self.steps


@dataclass(frozen=True)
class Outline:
    """An algorithm as stages, each a sequence of rounds. Stages of different segments overlap; rounds of a stage do not.

    Attributes:
        label: the algorithm with its parameters, as in tables.
        stages: in order.
        pipelined: whether the data may be cut into segments.
    """

    label: str
    stages: tuple[tuple[Round, ...], ...]
    pipelined: bool = True


class Estimate(NamedTuple):
    """Seconds of an outline, the segments they are for, and the seconds that the busiest link is busy (and its index)."""

    seconds: float
    segments: int
    busy_seconds: float
    busiest_link: int | None


class _Cost(NamedTuple):
    """Of one round: seconds of latency, seconds per byte of the call, and bytes on each link per byte of the call."""

    rounds: Round
    latency: Floats
    rate: Floats
    links: Ints
    load: Floats


def estimate(plan: Outline, topology: Topology, nbytes: float) -> Estimate:
    """The time of ``plan`` for a call of ``nbytes`` bytes, with links alone (no overhead of software), for its best number of segments.

    A round takes its longest latency and as long as its busiest link; a rotation takes the longest way through its messages, each after the
    one before it on its link and in its ring. With S segments of a pipelined outline the first one passes all stages; the others follow at
    intervals of the slowest stage, or of the busiest link where several stages share it.

    Raises:
        TooLarge: more messages at once than :data:`MOST_MESSAGES`.
        TopologyError: two ranks without a route.
    """
    routes = routes_of(topology)
    bandwidth = np.array([link.bandwidth for link in topology.links])
    delays = np.array([link.latency for link in topology.links])
    stages = [[_cost(one, routes, bandwidth, delays) for one in stage] for stage in plan.stages]
    total = np.zeros(len(bandwidth))
    for stage in stages:
        for cost in stage:
            total[cost.links] += cost.load * cost.rounds.times
    busy = total * nbytes / bandwidth
    widest = int(busy.argmax()) if len(busy) and busy.max() > 0 else None
    best: tuple[float, int] | None = None
    for segments in SEGMENTS if plan.pipelined else (1,):
        each = [sum(_seconds(cost, nbytes / segments) for cost in stage) for stage in stages]
        period = max([*each, float(busy.max(initial=0.0)) / segments])
        seconds = sum(each) + (segments - 1) * period
        if best is None or seconds < best[0] * (1 - 1e-9):
            best = seconds, segments
    assert best is not None
    return Estimate(*best, 0.0 if widest is None else float(busy[widest]), widest)


def _cost(one: Round, routes: Routes, bandwidth: Floats, delays: Floats) -> _Cost:
    if len(one.src) > MOST_MESSAGES:
        raise TooLarge(f"{len(one.src)} messages at once; at most {MOST_MESSAGES} are looked at")
    rails = np.broadcast_to(np.asarray(one.rail), one.src.shape).tolist()
    paths = [routes.path(*ends) for ends in zip(one.src.tolist(), one.dst.tolist(), rails, strict=True)]
    lengths = np.fromiter(map(len, paths), np.int64, len(paths))
    flat = np.fromiter((link for path in paths for link in path), np.int64, int(lengths.sum()))
    owner = np.repeat(np.arange(len(paths)), lengths)
    load = np.bincount(flat, weights=np.broadcast_to(one.share, one.src.shape)[owner], minlength=len(bandwidth))
    rate = np.zeros(len(paths))
    np.maximum.at(rate, owner, load[flat] / bandwidth[flat])
    used = np.flatnonzero(load)
    latency = np.bincount(owner, weights=delays[flat], minlength=len(paths)).astype(np.float64)
    return _Cost(one, latency, rate, used, load[used].astype(np.float64))


def _seconds(cost: _Cost, nbytes: float) -> float:
    if not len(cost.latency):
        return 0.0
    if isinstance(cost.rounds, Rotation):
        return _rotation(cost.latency, cost.rate * nbytes, cost.rounds)
    return float(cost.latency.max() + cost.rate.max() * nbytes)


def _rotation(latency: Floats, transfer: Floats, rounds: Rotation) -> float:
    """The longest way: a message waits for the one before it on its link, and for the one that its sender had to receive first."""
    assert rounds.following is not None
    sent = np.zeros(len(transfer))  # when the sender is free
    held = np.zeros(len(transfer))  # when the sender has what it sends
    arrived = sent
    for _ in range(rounds.steps):
        begin = np.maximum(sent, held)
        sent = begin + transfer
        arrived = sent + latency
        if np.ptp(arrived) == 0 and np.ptp(transfer) == 0 and np.ptp(latency) == 0:
            return float(rounds.steps * arrived[0])  # all alike: every step takes as long as the first
        held = np.empty_like(arrived)
        held[rounds.following] = arrived
    return float(arrived.max())


def rotation(orders: Sequence[Sequence[int]], share: float, steps: int, rails: Sequence[int] | None = None) -> Rotation:
    """Rings over ``orders``, all of them at once, ``steps`` messages of ``share`` from each rank to its successor."""
    src, dst, following, rail = [], [], [], []
    base = 0
    for number, order in enumerate(orders):
        ring = np.asarray(order, np.int64)
        src.append(ring)
        dst.append(np.roll(ring, -1))
        following.append(base + np.roll(np.arange(len(ring)), -1))
        rail.append(np.full(len(ring), rails[number] if rails else 0))
        base += len(ring)
    columns = [np.concatenate(column) for column in (src, dst, rail, following)]
    return Rotation(columns[0], columns[1], share, columns[2], steps, columns[3])
