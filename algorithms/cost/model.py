"""Seconds for a schedule on a topology, and how many pipeline segments suit it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from topoccl.algorithms.calibration import IDEAL, PULL_FROM, STAMPED, Profile
from topoccl.algorithms.cost.events import Simulator
from topoccl.algorithms.cost.lowering import Floats, Lowering, lower
from topoccl.algorithms.cost.wavefront import Wavefront
from topoccl.algorithms.hazards import pullable
from topoccl.algorithms.hearing import everyone_hears
from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology
from topoccl.topology.routes import Routes

Mode = Literal["flow", "wavefront"]

FLOW_LIMIT = 30_000
"""Schedules with more messages per segment than this are predicted level by level instead of event by event,"""
FLOW_WIDTH = 450
"""and so are schedules with more messages than this under way at once, for which levels are a good picture anyway."""
SIMULATED_STEPS = 6000
"""As many segments are simulated as make about so many steps; the time of more is extrapolated."""
SEARCH_STEPS = 600
"""The same while the number of segments is searched for."""
SEGMENT_GAIN = 0.01
"""More segments must be better by this share; predictions are not exact to less, and processors may be busier than they know."""
NORM = 8
"""Where links pass bytes at once after a pause, calls in a row that need as long as a link find it less rested than is simulated; how much,
nobody knows. Stamped calls are predicted, and numbers of segments compared, by this norm of what the steps take and what the busiest link
needs, not by the larger of both."""
SEARCH_LIMIT = 1500
"""For schedules with more messages than this the number of segments is chosen level by level."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a schedule is expected to take.

    Attributes:
        seconds: from the moment at which all ranks call until the last one is done.
        segments: the pipeline segments this is for.
        mode: ``flow`` (simulated, contention by max-min sharing) or ``wavefront`` (level by level, for very many messages).
        messages: all messages, in all segments.
        partners: ordered pairs of hosts one of which sends to the other.
        bytes_by_kind: payload bytes that cross each kind of link; a message counts once for each kind on its route.
        bytes_by_link: payload bytes on each link in use, by index into ``topology.links``; what one step publishes to several
            ranks through shared memory counts once on a link that they share.
        bottleneck_link: the link that its bytes keep busy longest, None when no link is used.
        bottleneck_seconds: for how long.
        pulls: whether receivers read straight from the senders' buffers, which needs no copies into shared memory and no segments.
    """

    seconds: float
    segments: int
    mode: Mode
    messages: int
    partners: int
    bytes_by_kind: dict[str, float]
    bytes_by_link: dict[int, float]
    bottleneck_link: int | None
    bottleneck_seconds: float
    pulls: bool = False


def block_bytes(spec: CollectiveSpec, nbytes: float) -> float:
    """The bytes of one block of a call of ``nbytes`` (nccl-tests' size: the larger of a rank's two buffers)."""
    return nbytes / _blocks(spec)


def call_bytes(spec: CollectiveSpec, block: float) -> float:
    """The inverse of :func:`block_bytes`."""
    return block * _blocks(spec)


@lru_cache(maxsize=64)
def _blocks(spec: CollectiveSpec) -> int:
    """How many blocks the larger of a rank's two buffers holds."""
    per_call = max(len(buffer(rank)) for buffer in (spec.input_blocks, spec.output_blocks) for rank in range(min(spec.ranks, 2)))
    if spec.root is not None:
        per_call = max(per_call, len(spec.input_blocks(spec.root)), len(spec.output_blocks(spec.root)))
    return per_call


class _View:
    """A lowered schedule and the ways to predict it."""

    def __init__(self, low: Lowering) -> None:
        self.low = low
        self.wavefront = Wavefront(low)

    @cached_property
    def simulator(self) -> Simulator:
        return Simulator(self.low)

    @property
    def mode(self) -> Mode:
        return "flow" if len(self.low.messages) <= FLOW_LIMIT and self.wavefront.width <= FLOW_WIDTH else "wavefront"

    def seconds(self, part: Floats, segments: int, steps: int) -> float:
        """Of one of many calls in a row: besides its steps there is what it takes in any case; and what links passed at once in one call
        they must have made up for before the next."""
        both = self.both(part, segments, steps)
        return self.joined(both) if self.low.one_order else max(both)

    def joined(self, both: tuple[float, float]) -> float:
        """One number of both: not less than the larger one, and more where they are close and links pass bytes at once."""
        largest = max(both)
        if self.low.burst == 0 or largest == 0:
            return largest
        return float(largest * sum((part / largest) ** NORM for part in both) ** (1 / NORM))

    def both(self, part: Floats, segments: int, steps: int) -> tuple[float, float]:
        """Seconds of a call that finds all links rested, and seconds for which it keeps the busiest resource busy."""
        return self._steps(part, segments, steps) + self.low.fixed, self.wavefront.busiest(part, segments)

    def _steps(self, part: Floats, segments: int, steps: int) -> float:
        """All segments if that is cheap, else T(S) = T(k) + (S - k) (T(k) - T(k/2)) / (k/2): the cost does not grow with S.

        ``k`` is such that about ``steps`` steps are simulated. The slope is a mean, since with shared links segments do not finish
        evenly; and never less than the pace of the busiest resource, which the first segments, filling an empty pipeline, may hide.
        """
        if self.mode == "wavefront":
            return self.wavefront.seconds(part, segments)
        n = self.low.schedule.num_steps
        k = max(steps // max(1, n), 4 if n <= steps else 2) // 2 * 2
        if segments <= k:
            return self.simulator.run(part, segments)
        now, before = self.simulator.run(part, k), self.simulator.run(part, k // 2)
        slope = max(2 * (now - before) / k, self.wavefront.pace(part))
        return now + (segments - k) * slope


class CostModel:
    """The costs of one schedule on one topology; what does not depend on the size is computed once.

    Args:
        schedule: a schedule that was proved right.
        topology: where its ranks sit.
        profile: what the transport costs beyond the links.
        routes: the routes of ``topology``, when the caller has them.

    Raises:
        ValueError: another number of ranks than the topology's, or sends and receives that do not pair up.
    """

    def __init__(self, schedule: Schedule, topology: Topology, profile: Profile = IDEAL, routes: Routes | None = None) -> None:
        self.schedule = schedule
        self.topology = topology
        self.profile = profile
        self._routes = routes
        self._staged = _View(lower(schedule, topology, profile, routes))
        self._low, self._wavefront = self._staged.low, self._staged.wavefront

    @property
    def mode(self) -> Mode:
        """How this schedule is predicted."""
        return self._staged.mode

    @cached_property
    def _stamped(self) -> _View | None:
        """The schedule when its messages tell every rank that all others make the same call; None where they do not."""
        network, hosts = self.profile.network, self.topology.ranks_by_host
        if network.stamped_overhead == 0 or len(hosts) == 1 or not everyone_hears(self.schedule, hosts):
            return None
        each = network.stamped_overhead
        medium = replace(network, send_overhead=each, recv_overhead=each, call_overhead=network.stamped_call)
        return _View(lower(self.schedule, self.topology, replace(self.profile, network=medium), self._routes, one_order=True))

    def _view(self, block: float | Sequence[float], segments: int) -> _View:
        """How a call with such blocks is run."""
        if segments > 1 or call_bytes(self.schedule.spec, float(np.mean(block))) > STAMPED:
            return self._staged
        return self._stamped or self._staged

    @cached_property
    def _pulled(self) -> _View | None:
        """The schedule when receivers read straight from the senders' buffers; None where they cannot."""
        here = self.profile.local.pull_bandwidth > 0 and len(self.topology.ranks_by_host) == 1 and len(self._low.messages) > 0
        if not here or not pullable(self.schedule):
            return None
        return _View(lower(self.schedule, self.topology, self.profile, self._routes, pulls=True))

    def _pulled_for(self, block: float | Sequence[float]) -> _View | None:
        spec = self.schedule.spec
        least = PULL_FROM * (4 if spec.collective == "broadcast" else 2 if spec.reduces else 1)
        return self._pulled if float(np.mean(block)) / self.schedule.chunks >= least else None

    def pulled(self, block: float | Sequence[float]) -> Prediction | None:
        """The prediction when receivers read straight from the senders' buffers, in one segment; None where that is not done."""
        view = self._pulled_for(block)
        if view is None:
            return None
        whole = self._low.step_bytes(block)
        return replace(self._prediction(whole, 1, view.seconds(whole, 1, SIMULATED_STEPS)), mode=view.mode, pulls=True)

    def predict(self, block: float | Sequence[float], segments: int = 1) -> Prediction:
        """The prediction for blocks of ``block`` bytes (one number, or one for each block), cut into ``segments`` segments."""
        if segments < 1:
            raise ValueError(f"{self.schedule.label}: {segments} segments; expected at least 1")
        whole = self._low.step_bytes(block)
        return self._prediction(whole, segments, self._view(block, segments).seconds(whole / segments, segments, SIMULATED_STEPS))

    def _prediction(self, whole: Floats, segments: int, seconds: float) -> Prediction:
        low, links = self._low, self.topology.links
        volume = np.bincount(low.flow_class, weights=whole[low.flow_step], minlength=len(low.classes))
        owner, resource = low.incidence
        on_link = np.bincount(resource, weights=volume[owner], minlength=len(low.capacity))[: len(links)]
        busy = on_link / low.capacity[: len(links)]
        widest = int(busy.argmax()) if len(busy) and busy.max() > 0 else None
        return Prediction(
            seconds=seconds,
            segments=segments,
            mode=self.mode,
            messages=len(low.messages) * segments,
            partners=self._partners,
            bytes_by_kind=self._bytes_by_kind(whole),
            bytes_by_link={i: float(on_link[i]) for i in np.flatnonzero(on_link).tolist()},
            bottleneck_link=widest,
            bottleneck_seconds=0.0 if widest is None else float(busy[widest]),
        )

    def link_seconds(self, block: float | Sequence[float]) -> Floats:
        """Seconds for which one call keeps each link of the topology busy, headers included."""
        return self._wavefront.loads(self._low.step_bytes(block))[: len(self.topology.links)]

    def floor(self, block: float | Sequence[float], segments: int) -> float:
        """Seconds that no prediction for these arguments undercuts (in ``flow`` mode); much cheaper than a prediction."""
        return self._view(block, segments).wavefront.floor(self._low.step_bytes(block) / segments, segments)

    def least(self, block: float | Sequence[float]) -> float:
        """Seconds that no number of segments undercuts."""
        view = self._pulled_for(block)
        pulled = math.inf if view is None else view.wavefront.floor(self._low.step_bytes(block), 1)
        return min(pulled, *(self.floor(block, segments) for segments in self.ladder(block)))

    def ladder(self, block: float | Sequence[float]) -> tuple[int, ...]:
        """The numbers of segments worth trying: powers of two, and between hosts, where pieces need not fit caches, also 3 times these.

        The least is the one whose messages fit the ``room`` of their medium; the others leave pieces of at least the profile's
        ``min_segment`` bytes. A schedule without messages has nothing to overlap, and padded blocks are not cut further than needed.
        """
        fill = self._low.fill(self._low.step_bytes(block))
        steps = [1 << max(0, math.ceil(math.log2(fill)))] if fill > 1 else [1]
        smallest = float(np.mean(block)) / self.schedule.chunks
        if len(self._low.messages) and not self.schedule.needs_equal_chunks:
            alone = len(self.topology.ranks_by_host) == 1
            least = max(self.profile.local.piece if alone else 1, self.profile.min_segment)
            most = min(self.profile.max_segments, smallest / least)
            power = steps[0]
            while power <= most:
                between = [] if alone or power == 1 else [power * 3 // 2]
                steps += [segments for segments in (*between, power * 2) if segments <= most]
                power *= 2
        return tuple(steps)

    def choose_segments(self, block: float | Sequence[float], hopeless: float = math.inf) -> Prediction:
        """The prediction with the best number of segments of the ladder, or without staging where that is better.

        Found coarse to fine: every fourth step of the ladder (for many messages only the best by levels), then those halfway to the next
        on both sides of the best, then its neighbours, then the two best in full, and the one with the fewest segments of those that seem
        nearly as good. What cannot be better by its floor is skipped. Of those that are nearly equal the one with the fewest segments is
        taken.

        Args:
            hopeless: when the search finds nothing below so many seconds, its rough result will do.
        """
        pulled = self.pulled(block)
        if pulled is None:
            return self._best_segments(block, hopeless)
        staged = self._best_segments(block, min(hopeless, pulled.seconds))
        return pulled if pulled.seconds <= staged.seconds else staged

    def _best_segments(self, block: float | Sequence[float], hopeless: float) -> Prediction:
        whole = self._low.step_bytes(block)
        ladder = self.ladder(block)
        found: dict[int, float] = {}
        seconds: dict[int, float] = {}

        def best() -> int:
            return min(found, key=lambda segments: (found[segments], segments))

        def judge(segments: int, steps: int) -> None:
            view = self._view(block, segments)
            both = view.both(whole / segments, segments, steps)
            found[segments] = view.joined(both)
            seconds[segments] = found[segments] if view.low.one_order else max(both)

        def look(steps: Sequence[int]) -> None:
            for segments in steps:
                floor = self._view(block, segments).wavefront.floor(whole / segments, segments)
                if segments not in found and not (found and floor * (1 + SEGMENT_GAIN) >= found[best()]):
                    judge(segments, SEARCH_STEPS)

        if len(self._low.messages) <= SEARCH_LIMIT:
            look(ladder[::4])
            for stride in (2, 1):
                at = ladder.index(best())
                look([ladder[other] for other in (at - stride, at + stride) if 0 <= other < len(ladder)])
        else:
            look([ladder[0], min(ladder, key=lambda s: (self._wavefront.seconds(whole / s, s), s))])
        if seconds[best()] > hopeless:
            return self._prediction(whole, best(), seconds[best()])
        chosen = sorted(found, key=lambda s: (found[s], s))[:2]
        fewest = min(segments for segments, judged in found.items() if judged <= found[chosen[0]] * (1 + SEGMENT_GAIN))
        finals = tuple(dict.fromkeys((*chosen, fewest)))
        for segments in finals:
            judge(segments, SIMULATED_STEPS)
        least = min(found[segments] for segments in finals)
        taken = min(segments for segments in finals if found[segments] <= least * (1 + SEGMENT_GAIN))
        return self._prediction(whole, taken, seconds[taken])

    @cached_property
    def _partners(self) -> int:
        hosts = {host: number for number, host in enumerate(dict.fromkeys(self.topology.host_of_rank))}
        host = np.array([hosts[name] for name in self.topology.host_of_rank])[self.schedule.step_rank]
        source, target = host[self._low.messages.sender], host[self._low.messages.receiver]
        return len(np.unique((source * len(hosts) + target)[source != target]))

    def _bytes_by_kind(self, whole: Floats) -> dict[str, float]:
        low, links = self._low, self.topology.links
        per_route = np.bincount(low.messages.route, weights=whole[low.messages.sender], minlength=len(low.routes))
        totals: dict[str, float] = {}
        for path, nbytes in zip(low.routes, per_route.tolist(), strict=True):
            for kind in dict.fromkeys(links[link].kind for link in path):
                totals[kind] = totals.get(kind, 0.0) + nbytes
        return dict(sorted(totals.items()))


def predict(
    schedule: Schedule, topology: Topology, *, nbytes: float | None = None, block_elems: float | Sequence[float] | None = None,
    itemsize: int = 1, profile: Profile = IDEAL, segments: int = 1, routes: Routes | None = None,
) -> Prediction:  # fmt: skip
    """One prediction, for a size given as the ``nbytes`` of the call or as the elements of its blocks.

    Raises:
        ValueError: both sizes or none, or what :class:`CostModel` raises.
    """
    return CostModel(schedule, topology, profile, routes).predict(_block(schedule.spec, nbytes, block_elems, itemsize), segments)


def choose_segments(
    schedule: Schedule, topology: Topology, *, nbytes: float | None = None, block_elems: float | Sequence[float] | None = None,
    itemsize: int = 1, profile: Profile = IDEAL, routes: Routes | None = None,
) -> Prediction:  # fmt: skip
    """The prediction for the best number of segments; arguments and errors as for :func:`predict`."""
    return CostModel(schedule, topology, profile, routes).choose_segments(_block(schedule.spec, nbytes, block_elems, itemsize))


def _block(
    spec: CollectiveSpec, nbytes: float | None, block_elems: float | Sequence[float] | None, itemsize: int
) -> float | Sequence[float]:
    if (nbytes is None) == (block_elems is None):
        raise ValueError(f"{spec.collective}: give either nbytes or block_elems")
    if nbytes is not None:
        return block_bytes(spec, nbytes)
    if isinstance(block_elems, Sequence):
        return [elems * itemsize for elems in block_elems]
    assert block_elems is not None
    return block_elems * itemsize
