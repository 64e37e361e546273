"""In which order a rank runs its steps where it runs them one after the other, whatever lanes they are in."""

from __future__ import annotations

from collections.abc import Collection
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from topoccl.algorithms.schedule import Buf, Schedule

FEW = 200
"""Steps of a rank that are put in a better order than that of their levels."""

Ints = npt.NDArray[np.int64]


def in_turn(schedule: Schedule, order: Ints, rank: int, local: Collection[int]) -> list[int]:
    """The steps of ``rank`` in one segment, in an order in which every rank can run its own one after the other.

    Steps that wait for nobody come as early as they can, those first that others wait for: each wait costs a turn on the core where ranks
    share it. Steps that wait stay in the order of ``order``, so that no rank waits that did not before.

    Args:
        order: all steps, as :func:`~topoccl.algorithms.verify.happens_before_order` sorts them.
        local: the ranks of its host, with whom it shares memory that has room for so many messages.
    """
    steps: list[int] = order[schedule.step_rank[order] == rank].tolist()
    if len(steps) > FEW:
        return steps
    place = {step: at for at, step in enumerate(steps)}
    haste = _haste(schedule, rank, local)
    waits = dict.fromkeys(steps, 0)
    then: dict[int, list[int]] = {step: [] for step in steps}
    for lane in schedule.lanes_of(rank):
        begin, end = int(schedule.lane_ptr[lane]), int(schedule.lane_ptr[lane + 1])
        for step in range(begin, end):
            before = set(schedule.deps[schedule.dep_ptr[step] : schedule.dep_ptr[step + 1]].tolist())
            before |= {step - 1} if step > begin else set()
            waits[step] = len(before)
            for other in before:
                then[other].append(step)
    ready = [(haste[step], place[step], step) for step in steps if not waits[step]]
    heapify(ready)
    ordered = []
    while ready:
        step = heappop(ready)[2]
        ordered.append(step)
        for other in then[step]:
            waits[other] -= 1
            if not waits[other]:
                heappush(ready, (haste[other], place[other], other))
    return ordered


def _haste(schedule: Schedule, rank: int, local: Collection[int]) -> dict[int, int]:
    """Of each step of ``rank``: 0 when others wait for it and it for nobody, 1 when it waits for nobody, 2 when it waits."""
    found: dict[int, int] = {}
    for lane in schedule.lanes_of(rank):
        under_way: dict[tuple[int, ...], int] = {}
        for step in range(int(schedule.lane_ptr[lane]), int(schedule.lane_ptr[lane + 1])):
            operands = schedule.operand_buf[schedule.operand_ptr[step] : schedule.operand_ptr[step + 1]]
            targets = schedule.targets[schedule.target_ptr[step] : schedule.target_ptr[step + 1]].tolist()
            here = tuple(target for target in targets if target in local)
            full = bool(here) and under_way.get(here, 0) >= schedule.fifo
            under_way[here] = under_way.get(here, 0) + 1
            found[step] = 2 if full or (operands == Buf.PEER).any() else 0 if targets else 1
    return found
