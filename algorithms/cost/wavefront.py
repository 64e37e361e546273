"""Cheap looks at a lowered schedule, level by level: a lower bound, and the model for very many messages.

The *level* of a step is the length of the longest chain of steps before it in one segment.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

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
        # A message leaves with its own flow, everything else when its step is complete (flow -1).
        self._edge_flow = np.concatenate([np.full(len(source) - len(low.messages), -1), low.flow_of_message])[by_source]
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

    @cached_property
    def width(self) -> int:
        """How many flows may be under way at once: the most of any level, or the lanes that send if they are more."""
        low = self._low
        sending = len(np.unique(low.line_of_step[low.flow_step]))
        return max(sending, int(np.bincount(self._level_of_step[low.flow_step], minlength=1).max(initial=0)))

    @cached_property
    def _level_of_step(self) -> Ints:
        level = np.empty(self._low.schedule.num_steps, dtype=np.int64)
        for number, (steps, _) in enumerate(self._waves):
            level[steps] = number
        return level

    def _own(self, step_bytes: Floats) -> Floats:
        """Seconds of each step before its messages leave."""
        return self._low.busy(step_bytes) + self._low.work * step_bytes / self._low.profile.copy_bandwidth

    def _alone(self, step_bytes: Floats, burst: float = 0.0) -> Floats:
        """Seconds of each flow when nothing else runs, ``burst`` bytes on the wire of it aside."""
        low = self._low
        payload = step_bytes[low.flow_step]
        if burst > 0:
            payload = np.maximum(0.0, payload - np.where(self._bursts, burst, 0.0) / low.class_scale[low.flow_class])
        return payload / low.solo[low.flow_class]

    @cached_property
    def _bursts(self) -> npt.NDArray[np.bool_]:
        return np.array([bool(links) for links in self._low.burst_links], dtype=bool)[self._low.flow_class]

    def _among_peers(self, step_bytes: Floats) -> Floats:
        """Seconds of each flow when all flows of its level share its resources: as long as the busiest of them needs for all."""
        low = self._low
        owner, resource, ptr = self._flow_resources
        volume = step_bytes[low.flow_step] * low.class_scale[low.flow_class]
        seconds = np.zeros(len(low.flow_step))
        for begin, end in pairwise(ptr.tolist()):
            flows, used = owner[begin:end], resource[begin:end]
            load = np.bincount(used, weights=volume[flows], minlength=len(low.capacity)) / low.capacity
            np.maximum.at(seconds, flows, load[used])
        return seconds

    def _sending(self, flows: Floats) -> Floats:
        """Seconds for which each step sends what holds it."""
        seconds = np.zeros(self._low.schedule.num_steps)
        held = self._low.held
        np.maximum.at(seconds, self._low.flow_step[held], flows[held])
        return seconds

    def loads(self, step_bytes: Floats) -> Floats:
        """Seconds for which one segment keeps each resource busy."""
        low = self._low
        volume = np.bincount(low.flow_class, weights=step_bytes[low.flow_step], minlength=len(low.classes)) * low.class_scale
        memory = np.bincount(low.schedule.step_rank, weights=low.work * step_bytes, minlength=low.schedule.spec.ranks)
        np.add.at(volume, np.array(low.memory_class, dtype=np.int64), memory)
        owner, resource = low.incidence
        return np.bincount(resource, weights=volume[owner], minlength=len(low.capacity)) / low.capacity

    def busiest(self, step_bytes: Floats, segments: int) -> float:
        """Seconds for which ``segments`` keep the busiest resource busy."""
        return segments * float(self.loads(step_bytes).max(initial=0.0))

    def _chain(self, step_bytes: Floats, flows: Floats) -> tuple[float, float]:
        """(seconds of the longest chain of steps and messages, seconds that the busiest rank's own steps span), given the flows'."""
        low = self._low
        own = self._own(step_bytes)
        whole = own + self._sending(flows)
        leaving = own[self._edge_source] + np.append(flows, 0.0)[self._edge_flow]
        length = np.where(self._edge_flow < 0, whole[self._edge_source], leaving) + self._edge_delay
        start = np.zeros(low.schedule.num_steps)
        for _, edges in self._waves:
            np.maximum.at(start, self._edge_target[edges], start[self._edge_source[edges]] + length[edges])
        end = start + whole
        first, last = np.full(low.schedule.spec.ranks, np.inf), np.zeros(low.schedule.spec.ranks)
        np.minimum.at(first, low.schedule.step_rank, start)
        np.maximum.at(last, low.schedule.step_rank, end)
        return float(end.max(initial=0.0)), float((last - np.minimum(first, last)).max(initial=0.0))

    def pace(self, step_bytes: Floats) -> float:
        """Seconds by which each further segment must lengthen the whole: its busiest resource, lane or processor."""
        return max(self.busiest(step_bytes, 1), self._paced(step_bytes, 0.0))

    def floor(self, step_bytes: Floats, segments: int) -> float:
        """Seconds that :class:`~topoccl.algorithms.cost.events.Simulator` cannot undercut, with what a call takes besides its steps."""
        low = self._low
        chain = self._chain(step_bytes, self._alone(step_bytes, low.burst))[0]
        steps = max(chain, segments * self._paced(step_bytes, low.burst)) + low.fixed
        return max(steps, self.busiest(step_bytes, segments))

    def _paced(self, step_bytes: Floats, burst: float) -> float:
        """Seconds for which the busiest lane or processor is busy with one segment, when links pass ``burst`` bytes at once."""
        low = self._low
        own = self._own(step_bytes) + self._sending(self._alone(step_bytes, burst))
        lanes = np.bincount(low.line_of_step, weights=own)
        processors = np.bincount(low.schedule.step_rank, weights=low.busy(step_bytes))
        return float(max(lanes.max(initial=0.0), processors.max(initial=0.0), processors.sum() / low.cores))

    def seconds(self, step_bytes: Floats, segments: int) -> float:
        """The wavefront model: the longest chain, when every flow shares its resources with all flows of its level.

        Further segments follow at the pace of the busiest resource, lane or processor, and as the window allows.
        """
        chain, span = self._chain(step_bytes, self._among_peers(step_bytes))
        pace = self.pace(step_bytes)
        slots = self._low.schedule.slots
        return max(chain, pace) + (segments - 1) * max(pace, span / slots if slots else 0.0)

    @cached_property
    def _flow_resources(self) -> tuple[Ints, Ints, Ints]:
        """(flow, resource) for every resource of every flow, sorted by level, and where each level begins."""
        low = self._low
        level = self._level_of_step
        owner, resource = low.incidence
        ptr = np.searchsorted(owner, np.arange(len(low.classes) + 1))
        order = np.argsort(level[low.flow_step], kind="stable")
        classes = low.flow_class[order]
        lengths = ptr[classes + 1] - ptr[classes]
        flat = np.repeat(ptr[classes] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        flow = np.repeat(order, lengths)
        return flow, resource[flat], np.searchsorted(level[low.flow_step][flow], np.arange(len(self._waves) + 1))
