"""GOAL, the text format of LogGOPSim, ATLAHS and their kin: what each rank sends, receives and computes, and what requires what.

A step of a segment becomes its receives, then a ``calc`` to which they and everything the step waits for lead, then its sends.
Receives require nothing, since ours are posted in time. A ``calc`` takes no time: how long copies and sums take depends on a machine,
and is for whoever simulates to say; ``cpu`` numbers the lane, so that lanes of a rank run side by side. Ways that a schedule names for its
messages are left out: GOAL has no word for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from topoccl.algorithms.calibration import IDEAL
from topoccl.algorithms.cost.lowering import lower
from topoccl.algorithms.schedule import Buf, Schedule
from topoccl.topology.graph import Topology

MAX_OPERATIONS = 20_000_000
"""A document with more operations than this is refused: it would have gigabytes."""


def write_goal(schedule: Schedule, topology: Topology, block: float | Sequence[float], segments: int = 1) -> Iterator[str]:
    """The lines of the GOAL document of a schedule, without line ends.

    Args:
        schedule: what to write, for any collective.
        topology: where its ranks sit.
        block: bytes of each block, one number or one for each; messages are rounded to whole bytes, at least one.
        segments: how many segments the data is cut into.

    Raises:
        ValueError: ``segments`` below 1, or more operations than :data:`MAX_OPERATIONS`.
    """
    if segments < 1:
        raise ValueError(f"{schedule.label}: {segments} segments; expected at least 1")
    operations = segments * (schedule.num_steps + int((schedule.operand_buf == Buf.PEER).sum()) + len(schedule.targets))
    if operations > MAX_OPERATIONS:
        raise ValueError(f"{schedule.label}: {operations} operations in {segments} segments; at most {MAX_OPERATIONS} are written")
    sizes = np.maximum(1, np.rint(lower(schedule, topology, IDEAL, None).step_bytes(block) / segments)).astype(np.int64)
    return _document(schedule, sizes.tolist(), segments)


def _document(schedule: Schedule, sizes: list[int], segments: int) -> Iterator[str]:
    yield f"num_ranks {schedule.spec.ranks}"
    for rank in range(schedule.spec.ranks):
        yield f"rank {rank} {{"
        yield from _rank(schedule, rank, sizes, segments)
        yield "}"


def _rank(schedule: Schedule, rank: int, sizes: list[int], segments: int) -> Iterator[str]:
    lanes = schedule.lanes_of(rank)
    steps = [index for lane in lanes for index in range(int(schedule.lane_ptr[lane]), int(schedule.lane_ptr[lane + 1]))]
    first = {int(schedule.lane_ptr[lane]) for lane in lanes}
    streams = _Streams(schedule)
    ended: dict[tuple[int, int], list[str]] = {}  # (segment, step): the operations after which it is complete
    label = 0
    for segment in range(segments):
        joins: dict[int, str] = {}
        requires: list[str] = []
        for index in steps:
            step, size = schedule.step(index), sizes[index]
            cpu = step.lane - lanes.start
            needs = []
            for peer in (off for buf, off in step.operands if buf is Buf.PEER):
                needs.append(f"l{label}")
                label += 1
                yield f"{needs[-1]}: recv {size}b from {peer} tag {streams.next('from', peer, step.channel)} cpu {cpu}"
            join = joins[index] = f"l{label}"
            label += 1
            yield f"{join}: calc 0 cpu {cpu}"
            requires += [f"{join} requires {other}" for other in needs]
            sends = []
            for target in step.targets:
                sends.append(f"l{label}")
                label += 1
                yield f"{sends[-1]}: send {size}b to {target} tag {streams.next('to', target, step.channel)} cpu {cpu}"
                requires.append(f"{sends[-1]} requires {join}")
            ended[segment, index] = sends or [join]
        for index in steps:
            earlier = [(segment, dep) for dep in schedule.step(index).deps]
            if index not in first:
                earlier.append((segment, index - 1))
            else:
                lane = int(schedule.step_lane[index])
                if segment:
                    earlier.append((segment - 1, int(schedule.lane_ptr[lane + 1]) - 1))
                if schedule.slots and segment >= schedule.slots:
                    earlier += [(segment - schedule.slots, int(schedule.lane_ptr[other + 1]) - 1) for other in lanes if other != lane]
            requires += [f"{joins[index]} requires {other}" for step_of in earlier for other in ended[step_of]]
        yield from requires


class _Streams:
    """Tags: a message is told by its stream and its place in it."""

    def __init__(self, schedule: Schedule) -> None:
        self._channels = int(schedule.lane_channel.max(initial=0)) + 1
        self._sent: defaultdict[tuple[str, int, int], int] = defaultdict(int)

    def next(self, way: str, peer: int, channel: int) -> int:
        number = self._sent[way, peer, channel]
        self._sent[way, peer, channel] = number + 1
        return number * self._channels + channel
