"""Whether running a schedule tells every rank that all others are running it, too."""

from __future__ import annotations

from collections.abc import Sequence

from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.verify import happens_before_order
from topoccl.algorithms.verify.structure import pair_messages


def everyone_hears(schedule: Schedule, circles: Sequence[Sequence[int]]) -> bool:
    """Whether each rank, when it has run all its steps, has had a message from all others, or from ranks that had by then.

    Args:
        schedule: what is run, once, each rank's steps one at a time in
            :func:`~topoccl.algorithms.verify.happens_before_order`.
        circles: ranks that know of each other before they send anything; each rank is in one of these.
    """
    circle_of = {rank: number for number, ranks in enumerate(circles) for rank in ranks}
    knows = [1 << circle_of[rank] for rank in range(schedule.spec.ranks)]  # a bit for each circle
    messages = pair_messages(schedule)
    senders: dict[int, list[int]] = {}
    for sender, receiver in zip(messages.send_step.tolist(), messages.recv_step.tolist(), strict=True):
        senders.setdefault(receiver, []).append(sender)
    told: dict[int, int] = {}  # what the messages of a step tell
    _, order = happens_before_order(schedule, 1)
    ranks = schedule.step_rank
    for step in order.tolist():
        rank = int(ranks[step])
        for sender in senders.get(step, ()):
            knows[rank] |= told[sender]
        told[step] = knows[rank]
    return all(known == (1 << len(circles)) - 1 for known in knows)
