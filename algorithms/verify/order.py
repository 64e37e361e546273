"""Second part of a proof: who waits for whom. Also the linear order in which a rank may run its steps one at a time.

Nodes of the graph are the steps of every segment. Edges: program order in a lane, segment after segment; dependencies within a
segment; a message's send before its receive; with ``slots`` > 0, the end of all lanes of a rank in segment ``s - slots`` before
their start in segment ``s``; and, for deadlocks only, the receive of message ``k - fifo`` of a stream before the send of message
``k`` (there is no room for it earlier).

A step is atomic here: it frees the room of the messages it takes only when its own sends have found room. That is exact for an
executor that folds straight from the slots of one stream into those of another, and the cautious reading of one that frees a
slot earlier, which only removes edges. So a ring of fused steps (receive, reduce, send) needs a ``fifo`` of 2: with room for one
message each of its ranks would wait for the next one to take the last message.

No edge leads to an earlier segment, so a circle lies within one segment, and so does every path between steps of one segment.
The graph of one segment therefore settles deadlocks and races for any number of segments.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.verify.structure import Ints, Messages, ScheduleError, check_columns, check_steps, pair_messages

_REASONS = ("runs after", "depends on", "needs the message of", "needs room made by", "")


@dataclass(frozen=True)
class Graph:
    """Edges ``src -> dst`` over ``nodes``; node ``s * steps + i`` is step ``i`` of segment ``s``. ``kind`` indexes the reasons."""

    nodes: int
    src: Ints
    dst: Ints
    kind: Ints


def build_graph(schedule: Schedule, messages: Messages, segments: int) -> Graph:
    """The graph of ``segments`` segments; nodes beyond the steps are the window's, one for each rank and segment."""
    n = schedule.num_steps
    base = (np.arange(segments) * n)[:, None]
    first, last = schedule.lane_ptr[:-1].astype(np.int64), schedule.lane_ptr[1:].astype(np.int64) - 1
    follows = np.ones(n, dtype=bool)
    follows[first] = False
    second = np.flatnonzero(follows)
    waiter = np.repeat(np.arange(n), np.diff(schedule.dep_ptr))
    parts = [
        (second - 1 + base, second + base),
        (schedule.deps + base, waiter + base),
        (messages.send_step + base, messages.recv_step + base),
        _room(messages, schedule.fifo, segments, n),
        (last + base[:-1], first + base[1:]),
    ]
    kinds = [0, 1, 2, 3, 0]
    nodes = n * segments
    slots = schedule.slots
    if 0 < slots < segments:
        gates = nodes + np.arange(segments - slots)[:, None] * schedule.spec.ranks + schedule.lane_rank
        parts += [(last + base[:-slots], gates), (gates, first + base[slots:])]
        kinds += [4, 4]
        nodes += (segments - slots) * schedule.spec.ranks
    return Graph(
        nodes,
        np.concatenate([a.ravel() for a, _ in parts]).astype(np.int64),
        np.concatenate([b.ravel() for _, b in parts]).astype(np.int64),
        np.repeat(kinds, [b.size for _, b in parts]),
    )


def _room(messages: Messages, fifo: int, segments: int, n: int) -> tuple[Ints, Ints]:
    """Receive of message ``k - fifo`` before send of message ``k``, numbered through all segments."""
    index = np.arange(len(messages.number))
    start = index - messages.number
    serial = messages.number + messages.length * np.arange(segments)[:, None] - fifo
    segment, number = np.divmod(serial, messages.length)
    at, message = np.nonzero(serial >= 0)
    earlier = (start + number)[at, message]
    return messages.recv_step[earlier] + segment[at, message] * n, messages.send_step[message] + at * n


def levels(graph: Graph) -> Ints:
    """The length of the longest path to each node, by wavefronts; -1 for nodes on or behind a circle."""
    order = np.argsort(graph.src, kind="stable")
    heads = graph.dst[order]
    out = np.bincount(graph.src, minlength=graph.nodes)
    start = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(out)])
    waiting = np.bincount(graph.dst, minlength=graph.nodes)
    level = np.full(graph.nodes, -1, dtype=np.int64)
    seen = np.zeros(graph.nodes, dtype=np.int64)
    front = np.flatnonzero(waiting == 0)
    depth = 0
    while len(front):
        level[front] = depth
        degree = out[front]
        ends = np.cumsum(degree)
        spread = np.repeat(start[front] - (ends - degree), degree)
        reached = heads[spread + np.arange(len(spread))]
        np.subtract.at(waiting, reached, 1)
        ready = reached[waiting[reached] == 0]
        serial = np.arange(len(ready))
        seen[ready] = serial  # one of the entries of a node that became ready by several edges at once
        front = ready[seen[ready] == serial]
        depth += 1
    return level


def order_steps(schedule: Schedule, messages: Messages) -> Ints:
    """The level of each step in the graph of one segment.

    Raises:
        ScheduleError: steps wait for each other in a circle.
    """
    graph = build_graph(schedule, messages, 1)
    level = levels(graph)
    if len(level) and level.min() < 0:
        _refuse_circle(schedule, graph, level)
    return level


def _refuse_circle(schedule: Schedule, graph: Graph, level: Ints) -> None:
    """Walks backwards from a stuck node until a node recurs; every stuck node has a stuck predecessor."""
    stuck = np.flatnonzero((level[graph.src] < 0) & (level[graph.dst] < 0))
    before = {int(d): (int(s), int(k)) for s, d, k in zip(graph.src[stuck], graph.dst[stuck], graph.kind[stuck], strict=True)}
    node = int(np.flatnonzero(level < 0)[0])
    path: list[int] = []
    where: dict[int, int] = {}
    while node not in where:
        where[node] = len(path)
        path.append(node)
        node = before[node][0]
    circle = path[where[node] :]
    text = [f"{_REASONS[before[a][1]]} {schedule.step(before[a][0])}" for a in circle]
    shown = [*text[:6], f"... ({len(text)} in all)"] if len(text) > 6 else text
    problem = "deadlock: it " + ", which ".join(shown)
    if any(before[a][1] == 3 for a in circle):
        problem += f"; fifo is {schedule.fifo}{_enough_room(schedule, graph)}"
    raise ScheduleError(schedule, circle[0], problem)


def _enough_room(schedule: Schedule, graph: Graph) -> str:
    """The advice to raise ``fifo``, where that helps."""
    messages, keep = pair_messages(schedule), graph.kind != 3

    def enough(fifo: int) -> bool:
        src, dst = _room(messages, fifo, 1, schedule.num_steps)
        edges = np.concatenate([graph.src[keep], src]), np.concatenate([graph.dst[keep], dst])
        return bool(levels(Graph(graph.nodes, *edges, np.zeros(len(edges[0]), dtype=np.int64))).min() >= 0)

    sizes = range(schedule.fifo + 1, int(messages.length.max()) + 1)
    at = bisect_left(sizes, True, key=enough)
    return f", {sizes[at]} would do" if at < len(sizes) else ""


def happens_before_order(schedule: Schedule, segments: int) -> tuple[Ints, Ints]:
    """A global order of all steps of ``segments`` segments that respects every edge, the room of ``fifo`` messages included.

    A rank that runs its own steps one at a time in this order, each to its end, never deadlocks with others that do the same.
    Steps are sorted by level (the longest path to them), then segment, then index, so that segments follow one another through
    the lanes as in a pipeline. The order depends on nothing but the schedule.

    Returns:
        The segment and the step index at each position; both have ``segments * schedule.num_steps`` entries.

    Raises:
        ScheduleError: a malformed schedule, or one that deadlocks.
    """
    if segments < 1:
        raise ValueError(f"{segments} segments; expected at least 1")
    check_columns(schedule)
    check_steps(schedule)
    messages = pair_messages(schedule)
    graph = build_graph(schedule, messages, segments)
    level = levels(graph)[: segments * schedule.num_steps]
    if len(level) and level.min() < 0:
        order_steps(schedule, messages)  # raises, since a circle lies within one segment
    segment, step = np.divmod(np.argsort(level, kind="stable"), max(schedule.num_steps, 1))
    return segment, step
