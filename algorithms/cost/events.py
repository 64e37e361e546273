"""Discrete-event simulation of a lowered schedule: exact for a flow-level network with max-min fair sharing.

A step of a segment begins when its lane has reached it, its dependencies are complete and its messages have arrived (receives
are posted in time, and arrived messages are buffered). It then occupies in turn

1. its rank's processor, first come first served, for the overheads of its messages;
2. its rank's memory, shared fairly, for the bytes it copies or reduces;
3. the links of its outgoing messages, shared max-min fairly, all of them at once.

The step is complete when the last byte has left; a message arrives one route's latency after that. With ``slots`` > 0 a lane
enters a segment only when all lanes of its rank have completed the segment ``slots`` before.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

import numpy as np

from topoccl.algorithms.cost.lowering import Floats, Lowering
from topoccl.algorithms.cost.sharing import Fabric, Sharing

_SAME_TIME = 1e-12  # events that are this close, relatively, are one moment
_PROCESSOR, _MESSAGE, _CLASS = 0, 1, 2


class Simulator:
    """Holds what simulations of one lowering share."""

    def __init__(self, lowering: Lowering) -> None:
        self._low = low = lowering
        s, n = low.schedule, low.schedule.num_steps
        self._rank: list[int] = s.step_rank.tolist()
        self._lane: list[int] = s.step_lane.tolist()
        self._cpu: list[float] = low.cpu.tolist()
        self._fabric = Fabric(low.classes, low.class_scale.tolist(), low.capacity.tolist(), low.solo.tolist())
        self._deps: list[list[int]] = [[] for _ in range(n)]
        waits = np.diff(s.dep_ptr).astype(np.int64)
        for step, dep in zip(np.repeat(np.arange(n), waits).tolist(), s.deps.tolist(), strict=True):
            self._deps[dep].append(step)
        waits += np.bincount(low.messages.receiver, minlength=n)
        waits += 1  # the lane's previous step
        self._waits: list[int] = waits.tolist()
        flows: list[tuple[int, list[tuple[float, int]]]] = [(c, []) for c in low.flow_class.tolist()]
        latency = low.route_latency[low.messages.route].tolist()
        for flow, delay, receiver in zip(low.flow_of_message.tolist(), latency, low.messages.receiver.tolist(), strict=True):
            flows[flow][1].append((delay, receiver))
        self._sends: list[list[tuple[int, list[tuple[float, int]]]]] = [[] for _ in range(n)]
        for step, flow in zip(low.flow_step.tolist(), flows, strict=True):
            self._sends[step].append(flow)
        self._first: list[int] = s.lane_ptr[:-1].tolist()
        self._last: list[int] = (s.lane_ptr[1:] - 1).tolist()
        self._lanes_of: list[list[int]] = [list(s.lanes_of(r)) for r in range(s.spec.ranks)]

    def run(self, step_bytes: Floats, segments: int) -> float:
        """Seconds until everything is complete, when each step handles ``step_bytes`` in each of ``segments`` segments."""
        low, n, slots = self._low, self._low.schedule.num_steps, self._low.schedule.slots
        rank_of, lane_of, cpu, deps, sends = self._rank, self._lane, self._cpu, self._deps, self._sends
        first, last, lanes_of = self._first, self._last, self._lanes_of
        size: list[float] = step_bytes.tolist()
        work: list[float] = (low.work * step_bytes).tolist()
        memory_class, solo = low.memory_class, self._fabric.solo
        sharing = Sharing(self._fabric)
        rate, count = sharing.rate, sharing.count

        waits = self._waits * segments
        if slots:
            for segment in range(slots, segments):
                for step in first:
                    waits[segment * n + step] += 1
        unfinished = [[len(lanes)] * segments for lanes in lanes_of]  # lanes per rank and segment
        open_flows = [0] * (n * segments)
        processor_free = [0.0] * len(lanes_of)
        # Per class: how much service one of its flows has had, when that was true, and when its flows will have enough.
        served, since, version = [0.0] * len(rate), [0.0] * len(rate), [0] * len(rate)
        goals: list[list[tuple[float, int, int]]] = [[] for _ in rate]  # (service, node, flow within the step; -1 for memory)
        heap: list[tuple[float, int, int, int]] = []  # (time, kind, node or class, version of the class)
        arrivals = list(first)  # nodes that have one thing less to wait for
        delta: dict[int, int] = {}  # flows that begin (or end, negative) now
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
            nbytes = size[node % n]
            for number, (c, receivers) in enumerate(sends[node % n]):
                if nbytes > 0 and solo[c] < inf:
                    open_flows[node] += 1
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
            lane = lane_of[step]
            if step != last[lane]:
                arrivals.append(node + 1)
                return
            if segment + 1 < segments:
                arrivals.append((segment + 1) * n + first[lane])
            if slots:
                rank = rank_of[step]
                unfinished[rank][segment] -= 1
                if not unfinished[rank][segment] and segment + slots < segments:
                    arrivals.extend((segment + slots) * n + first[other] for other in lanes_of[rank])

        while True:
            for node in arrivals:  # grows while it is walked through
                waits[node] -= 1
                if waits[node]:
                    continue
                if cpu[node % n] > 0:
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
                        deliver(node, sends[node % n][number][1])
                        open_flows[node] -= 1
                        if not open_flows[node]:
                            complete(node)
        if completed != n * segments:
            raise ValueError(f"{low.schedule.label}: {n * segments - completed} of {n * segments} steps wait for each other for ever")
        return end  # outdated events may lie behind it
