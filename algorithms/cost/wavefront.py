"""Cheap looks at a lowered schedule, level by level: a lower bound, an estimate, and the model for very many ranks.

The *level* of a step is the length of the longest chain of steps before it in one segment.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from topoccl.algorithms.cost.lowering import Floats, Ints, Lowering


class Wavefront:
    """Levels of one lowering, and what they cost.

    Raises:
        ValueError: steps that wait for each other in a circle.
    """

    def __init__(self, lowering: Lowering) -> None:
        self._low = low = lowering
        n = low.schedule.num_steps
        source, target, delay = low.edges
        by_source = np.argsort(source, kind="stable")
        self._edge_source, self._edge_target, self._edge_delay = source[by_source], target[by_source], delay[by_source]
        self._edge_ptr = np.searchsorted(self._edge_source, np.arange(n + 1))
        self._waves = self._level()

    def _level(self) -> list[tuple[Ints, Ints]]:
        """(steps, outgoing edges) of each level."""
        n = self._low.schedule.num_steps
        waiting = np.bincount(self._edge_target, minlength=n)
        waves: list[tuple[Ints, Ints]] = []
        front: Ints = np.flatnonzero(waiting == 0)
        seen = 0
        while len(front):
            begin, lengths = self._edge_ptr[front], self._edge_ptr[front + 1] - self._edge_ptr[front]
            edges = np.repeat(begin - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
            waves.append((front, edges))
            seen += len(front)
            targets = self._edge_target[edges]
            np.subtract.at(waiting, targets, 1)
            front = np.unique(targets[waiting[targets] == 0])
        if seen != n:
            raise ValueError(f"{self._low.schedule.label}: {n - seen} of {n} steps wait for each other for ever")
        return waves

    def alone(self, step_bytes: Floats) -> Floats:
        """Seconds that each step takes when nothing else runs, without the latency of its messages."""
        low = self._low
        seconds = low.cpu + self._work(step_bytes)
        flows = np.zeros(low.schedule.num_steps)
        np.maximum.at(flows, low.flow_step, step_bytes[low.flow_step] / low.solo[low.flow_class])
        return seconds + flows

    def _work(self, step_bytes: Floats) -> Floats:
        return self._low.work * step_bytes / self._low.profile.copy_bandwidth

    def loads(self, step_bytes: Floats) -> Floats:
        """Seconds for which one segment keeps each resource busy."""
        low = self._low
        volume = np.bincount(low.flow_class, weights=step_bytes[low.flow_step], minlength=len(low.classes)) * low.class_scale
        memory = np.bincount(low.schedule.step_rank, weights=low.work * step_bytes, minlength=low.schedule.spec.ranks)
        np.add.at(volume, np.array(low.memory_class, dtype=np.int64), memory)
        owner, resource = low.incidence
        return np.bincount(resource, weights=volume[owner], minlength=len(low.capacity)) / low.capacity

    def path(self, step_bytes: Floats) -> tuple[float, float]:
        """(seconds of the longest chain of steps and messages, seconds that the busiest rank's own steps span), uncontended."""
        low = self._low
        alone = self.alone(step_bytes)
        start = np.zeros(low.schedule.num_steps)
        for _, edges in self._waves:
            ends = start[self._edge_source[edges]] + alone[self._edge_source[edges]] + self._edge_delay[edges]
            np.maximum.at(start, self._edge_target[edges], ends)
        end = start + alone
        ranks = low.schedule.spec.ranks
        first, last = np.full(ranks, np.inf), np.zeros(ranks)
        np.minimum.at(first, low.schedule.step_rank, start)
        np.maximum.at(last, low.schedule.step_rank, end)
        return float(end.max(initial=0.0)), float((last - np.minimum(first, last)).max(initial=0.0))

    def pace(self, step_bytes: Floats) -> float:
        """Seconds by which each further segment must lengthen the whole: its busiest resource, lane or processor."""
        low = self._low
        lanes = np.bincount(low.schedule.step_lane, weights=self.alone(step_bytes), minlength=low.schedule.num_lanes)
        processors = np.bincount(low.schedule.step_rank, weights=low.cpu)
        return float(max(self.loads(step_bytes).max(initial=0.0), lanes.max(initial=0.0), processors.max(initial=0.0)))

    def floor(self, step_bytes: Floats, segments: int) -> float:
        """Seconds that :class:`~topoccl.algorithms.cost.events.Simulator` cannot undercut."""
        return max(self.path(step_bytes)[0], segments * self.pace(step_bytes))

    def estimate(self, step_bytes: Floats, segments: int) -> float:
        """A guess that ranks numbers of segments well; between the floor and the truth for most schedules."""
        chain, span = self.path(step_bytes)
        pace = self.pace(step_bytes)
        slots = self._low.schedule.slots
        return max(chain, pace) + (segments - 1) * max(pace, span / slots if slots else 0.0)

    def seconds(self, step_bytes: Floats, segments: int) -> float:
        """The wavefront model: levels run one after the other, each as long as its busiest resource and slowest step need.

        Further segments follow at the pace of :meth:`estimate`.
        """
        low = self._low
        own = low.cpu + self._work(step_bytes)
        np.maximum.at(own, self._edge_source, (low.cpu + self._work(step_bytes))[self._edge_source] + self._edge_delay)
        chain, span = self.path(step_bytes)
        pace = self.pace(step_bytes)
        total = 0.0
        owner, resource, ptr = self._flow_resources
        volume = step_bytes[low.flow_step] * low.class_scale[low.flow_class]
        for (steps, _), begin, end in zip(self._waves, ptr[:-1], ptr[1:], strict=True):
            part = slice(begin, end)
            load = np.bincount(resource[part], weights=volume[owner[part]], minlength=1)
            total += float(own[steps].max(initial=0.0)) + float((load / low.capacity[: len(load)]).max(initial=0.0))
        slots = low.schedule.slots
        return max(total, chain, pace) + (segments - 1) * max(pace, span / slots if slots else 0.0)

    @cached_property
    def _flow_resources(self) -> tuple[Ints, Ints, Ints]:
        """(flow, resource) for every resource of every flow, sorted by level, and where each level begins."""
        low = self._low
        level = np.empty(low.schedule.num_steps, dtype=np.int64)
        for number, (steps, _) in enumerate(self._waves):
            level[steps] = number
        owner, resource = low.incidence
        ptr = np.searchsorted(owner, np.arange(len(low.classes) + 1))
        order = np.argsort(level[low.flow_step], kind="stable")
        classes = low.flow_class[order]
        lengths = ptr[classes + 1] - ptr[classes]
        flat = np.repeat(ptr[classes] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        flow = np.repeat(order, lengths)
        return flow, resource[flat], np.searchsorted(level[low.flow_step][flow], np.arange(len(self._waves) + 1))
