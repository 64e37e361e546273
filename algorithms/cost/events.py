"""Discrete-event simulation of a lowered schedule: exact for a flow-level network with max-min fair sharing.

A step of a segment begins when its lane has reached it, its dependencies are complete and its messages have arrived (receives
are posted in time, and arrived messages are buffered). It then occupies in turn

1. its rank's processor, first come first served, for the overheads of its messages; where ranks share cores, all that are busy at a
   moment get as much of them;
2. its rank's memory, shared fairly, for the bytes it copies or reduces;
3. the links of its outgoing messages, shared max-min fairly, all of them at once.

The step is complete when the last byte has left; a message arrives one route's latency after that. With ``slots`` > 0 a lane
enters a segment only when all lanes of its rank have completed the segment ``slots`` before. Where a rank runs its steps in one order,
that order is its only lane, and messages that are handed over to the kernel hold no step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

import numpy as np

from topoccl.algorithms.cost.lowering import Floats, Lowering
from topoccl.algorithms.cost.sharing import Fabric, Sharing

_SAME_TIME = 1e-12  # events that are this close, relatively, are one moment
_PROCESSOR, _MESSAGE, _CLASS, _CORES = 0, 1, 2, 3
_Flow = tuple[int, list[tuple[float, int]], bool]  # class; what arrives how much later where; whether it holds its step


class Simulator:
    """Holds what simulations of one lowering share."""

    def __init__(self, lowering: Lowering) -> None:
        self._low = low = lowering
        s, n = low.schedule, low.schedule.num_steps
        self._rank: list[int] = s.step_rank.tolist()
        self._fabric = Fabric(low.classes, low.class_scale.tolist(), low.capacity.tolist(), low.solo.tolist())
        self._burst: list[tuple[int, ...]] = list(low.burst_links)
        self._scale: list[float] = low.class_scale.tolist()
        self._capacity: list[float] = low.capacity.tolist()
        self._deps: list[list[int]] = [[] for _ in range(n)]
        waits = np.diff(s.dep_ptr).astype(np.int64)
        for step, dep in zip(np.repeat(np.arange(n), waits).tolist(), s.deps.tolist(), strict=True):
            self._deps[dep].append(step)
        waits += np.bincount(low.messages.receiver, minlength=n)
        waits += 1  # the lane's previous step
        self._waits: list[int] = waits.tolist()
        flows: list[_Flow] = [(c, [], held) for c, held in zip(low.flow_class.tolist(), low.held.tolist(), strict=True)]
        latency = low.route_latency[low.messages.route].tolist()
        for flow, delay, receiver in zip(low.flow_of_message.tolist(), latency, low.messages.receiver.tolist(), strict=True):
            flows[flow][1].append((delay, receiver))
        self._sends: list[list[_Flow]] = [[] for _ in range(n)]
        for step, flow in zip(low.flow_step.tolist(), flows, strict=True):
            self._sends[step].append(flow)
        first = low.line_steps[low.line_ptr[:-1]]
        self._first: list[int] = first.tolist()
        self._first_of: list[int] = first[low.line_of_step].tolist()  # of each step's line
        following = np.full(n, -1)
        following[np.delete(low.line_steps, low.line_ptr[1:] - 1)] = np.delete(low.line_steps, low.line_ptr[:-1])
        self._next: list[int] = following.tolist()
        self._firsts_of: list[list[int]] = [[] for _ in range(s.spec.ranks)]  # of each rank's lines
        for step in self._first:
            self._firsts_of[self._rank[step]].append(step)

    def run(self, step_bytes: Floats, segments: int) -> float:
        """Seconds until everything is complete, when each step handles ``step_bytes`` in each of ``segments`` segments."""
        low, n, slots = self._low, self._low.schedule.num_steps, self._low.schedule.slots
        rank_of, deps, sends = self._rank, self._deps, self._sends
        first, first_of, following, firsts_of = self._first, self._first_of, self._next, self._firsts_of
        size: list[float] = step_bytes.tolist()
        cpu: list[float] = low.busy(step_bytes).tolist()
        work: list[float] = (low.work * step_bytes).tolist()
        memory_class, solo, scale, links_of = low.memory_class, self._fabric.solo, self._scale, self._burst
        sharing = Sharing(self._fabric)
        rate, count = sharing.rate, sharing.count

        waits = self._waits * segments
        if slots:
            for segment in range(slots, segments):
                for step in first:
                    waits[segment * n + step] += 1
        unfinished = [[len(lines)] * segments for lines in firsts_of]  # lines per rank and segment
        open_flows = [0] * (n * segments)
        processor_free = [0.0] * len(firsts_of)
        # Per class: how much service one of its flows has had, when that was true, and when its flows will have enough.
        served, since, version = [0.0] * len(rate), [0.0] * len(rate), [0] * len(rate)
        goals: list[list[tuple[float, int, int]]] = [[] for _ in rate]  # (service, node, flow within the step; -1 for memory)
        heap: list[tuple[float, int, int, int]] = []  # (time, kind, node or class, version of the class)
        cores = _Cores(low.cores, len(firsts_of)) if low.cores < inf else None
        arrivals = list(first)  # nodes that have one thing less to wait for
        delta: dict[int, int] = {}  # flows that begin (or end, negative) now
        buckets = _Buckets(low.burst, self._capacity) if low.burst > 0 else None
        now = 0.0
        completed, end = 0, 0.0

        def start_flow(node: int, number: int, c: int, nbytes: float) -> None:
            served[c] = served[c] + rate[c] * (now - since[c]) if count[c] else 0.0
            since[c] = now
            heappush(goals[c], (served[c] + nbytes, node, number))
            delta[c] = delta.get(c, 0) + 1

        def deliver(node: int, receivers: list[tuple[float, int]]) -> None:
            base = node - node % n
            for delay, receiver in receivers:
                if delay > 0:
                    heappush(heap, (now + delay, _MESSAGE, base + receiver, 0))
                else:
                    arrivals.append(base + receiver)

        def send(node: int) -> None:
            for number, (c, receivers, held) in enumerate(sends[node % n]):
                nbytes = size[node % n]
                if buckets is not None and nbytes > 0 and links_of[c]:
                    nbytes = buckets.left(now, links_of[c], nbytes * scale[c]) / scale[c]
                if nbytes > 0 and solo[c] < inf:
                    open_flows[node] += held
                    start_flow(node, number, c, nbytes)
                else:
                    deliver(node, receivers)
            if not open_flows[node]:
                complete(node)

        def after_processor(node: int) -> None:
            step = node % n
            if work[step] > 0:
                start_flow(node, -1, memory_class[rank_of[step]], work[step])
            else:
                send(node)

        def complete(node: int) -> None:
            nonlocal completed, end
            completed += 1
            end = now
            segment, step = divmod(node, n)
            for other in deps[step]:
                arrivals.append(node - step + other)
            if following[step] >= 0:
                arrivals.append(node - step + following[step])
                return
            if segment + 1 < segments:
                arrivals.append((segment + 1) * n + first_of[step])
            if slots:
                rank = rank_of[step]
                unfinished[rank][segment] -= 1
                if not unfinished[rank][segment] and segment + slots < segments:
                    arrivals.extend((segment + slots) * n + other for other in firsts_of[rank])

        while True:
            for node in arrivals:  # grows while it is walked through
                waits[node] -= 1
                if waits[node]:
                    continue
                if cpu[node % n] > 0 and cores is not None:
                    cores.enter(now, rank_of[node % n], node, cpu[node % n])
                elif cpu[node % n] > 0:
                    rank = rank_of[node % n]
                    processor_free[rank] = max(processor_free[rank], now) + cpu[node % n]
                    heappush(heap, (processor_free[rank], _PROCESSOR, node, 0))
                else:
                    after_processor(node)
            arrivals.clear()
            if delta:
                for c, old in sharing.change(delta):
                    served[c] += old * (now - since[c])
                    since[c] = now
                    delta.setdefault(c, 0)
                for c in delta:
                    if count[c]:
                        version[c] += 1
                        heappush(heap, (now + (goals[c][0][0] - served[c]) / rate[c], _CLASS, c, version[c]))
                delta.clear()
            if cores is not None and cores.changed:
                cores.schedule(now, heap)
            if not heap:
                break
            now = heap[0][0]
            moment = now * (1 + _SAME_TIME)
            while heap and heap[0][0] <= moment:
                _, kind, what, stamp = heappop(heap)
                if kind == _PROCESSOR:
                    after_processor(what)
                elif kind == _MESSAGE:
                    arrivals.append(what)
                elif kind == _CORES:
                    if cores is not None and stamp == cores.version:
                        for node in cores.leave(now):
                            after_processor(node)
                elif stamp == version[what]:
                    goal = goals[what]
                    served[what], since[what] = goal[0][0], now
                    enough = served[what] * (1 + _SAME_TIME)
                    while goal and goal[0][0] <= enough:
                        _, node, number = heappop(goal)
                        delta[what] = delta.get(what, 0) - 1
                        if number < 0:
                            send(node)
                            continue
                        if buckets is not None:
                            buckets.done(now, links_of[what])
                        _, receivers, held = sends[node % n][number]
                        deliver(node, receivers)
                        if held:
                            open_flows[node] -= 1
                            if not open_flows[node]:
                                complete(node)
        if completed != n * segments:
            raise ValueError(f"{low.schedule.label}: {n * segments - completed} of {n * segments} steps wait for each other for ever")
        return end  # outdated events may lie behind it


class _Cores:
    """Processors of ranks that share cores: of each rank one step at a time, in the order of arrival; all of these get as much."""

    def __init__(self, cores: float, ranks: int) -> None:
        self._cores = cores
        self._waiting: list[deque[tuple[int, float]]] = [deque() for _ in range(ranks)]
        self._busy = [False] * ranks
        self._goals: list[tuple[float, int, int]] = []  # (service, node, rank)
        self._served = self._since = 0.0
        self._rate = 1.0
        self.changed = False
        self.version = 0

    def enter(self, now: float, rank: int, node: int, seconds: float) -> None:
        """A step of ``rank`` needs ``seconds`` of a core."""
        if self._busy[rank]:
            self._waiting[rank].append((node, seconds))
            return
        self._advance(now)
        self._busy[rank] = True
        heappush(self._goals, (self._served + seconds, node, rank))

    def _advance(self, now: float) -> None:
        self._served += self._rate * (now - self._since) if self._goals else 0.0
        self._since = now
        self.changed = True

    def schedule(self, now: float, heap: list[tuple[float, int, int, int]]) -> None:
        """Adds the event at which the next steps are done, as things stand; it is outdated when :attr:`version` has changed."""
        self.changed = False
        self.version += 1
        if self._goals:
            self._rate = min(1.0, self._cores / len(self._goals))
            heappush(heap, (now + (self._goals[0][0] - self._served) / self._rate, _CORES, 0, self.version))

    def leave(self, now: float) -> list[int]:
        """The steps that are done."""
        self._served, self._since, self.changed = self._goals[0][0], now, True
        done = []
        enough = self._served * (1 + _SAME_TIME)
        while self._goals and self._goals[0][0] <= enough:
            _, node, rank = heappop(self._goals)
            done.append(node)
            self._busy[rank] = bool(self._waiting[rank])
            if self._waiting[rank]:
                following, seconds = self._waiting[rank].popleft()
                heappush(self._goals, (self._served + seconds, following, rank))
        return done


class _Buckets:
    """What links let pass at once after a pause: as much as they could have carried in it, up to ``depth`` bytes."""

    def __init__(self, depth: float, capacity: Sequence[float]) -> None:
        self._depth = depth
        self._capacity = capacity
        self._level: dict[int, float] = {}
        self._since: dict[int, float] = {}
        self._flows: dict[int, int] = {}

    def left(self, now: float, links: Sequence[int], nbytes: float) -> float:
        """What is left of ``nbytes`` when as many as may have passed all ``links`` at once: a flow that ends with :meth:`done`, if any."""
        depth, level, flows = self._depth, self._level, self._flows
        most = nbytes
        for link in links:
            if not flows.get(link):
                filled = level.get(link, depth) + self._capacity[link] * (now - self._since.get(link, 0.0))
                level[link] = min(depth, filled)
            most = min(most, level[link])
        for link in links:
            level[link] -= most
            self._since[link] = now
            if most < nbytes:
                flows[link] = flows.get(link, 0) + 1
        return nbytes - most

    def done(self, now: float, links: Sequence[int]) -> None:
        for link in links:
            self._flows[link] -= 1
            self._since[link] = now
