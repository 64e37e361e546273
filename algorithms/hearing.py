"""Whether running a schedule tells every rank that all others are running it, too."""

from __future__ import annotations

from collections.abc import Sequence

from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.verify import happens_before_order
from topoccl.algorithms.verify.structure import pair_messages

MOST_STEPS = 20_000
"""Steps of a schedule up to which that is looked at: more take longer than they save."""
_MOST = 4096  # schedules of which it is remembered

_heard: dict[tuple[str, tuple[tuple[int, ...], ...]], bool] = {}


def everyone_hears(schedule: Schedule, circles: Sequence[Sequence[int]]) -> bool:
    """Whether each rank, when it has run all its steps, has had a message from all others, or from ranks that had by then; False for
    schedules of more than :data:`MOST_STEPS` steps. The answer is remembered.

    It holds in whatever order a rank runs its steps: a message tells only what came before it in its lane, or before what it depends on.

    Args:
        schedule: what is run, once.
        circles: ranks that know of each other before they send anything; each rank is in one of these.
    """
    if schedule.num_steps > MOST_STEPS:
        return False
    key = (schedule.digest, tuple(map(tuple, circles)))
    if key not in _heard:
        if len(_heard) >= _MOST:
            _heard.clear()
        _heard[key] = _everyone_hears(schedule, circles)
    return _heard[key]


def _everyone_hears(schedule: Schedule, circles: Sequence[Sequence[int]]) -> bool:
    circle_of = {rank: number for number, ranks in enumerate(circles) for rank in ranks}
    itself = [1 << circle_of[rank] for rank in range(schedule.spec.ranks)]  # a bit for each circle
    knows = list(itself)
    messages = pair_messages(schedule)
    senders: dict[int, list[int]] = {}
    for sender, receiver in zip(messages.send_step.tolist(), messages.recv_step.tolist(), strict=True):
        senders.setdefault(receiver, []).append(sender)
    told = [0] * schedule.num_steps  # what the messages of a step tell
    dep_ptr, deps, firsts = schedule.dep_ptr.tolist(), schedule.deps.tolist(), set(schedule.lane_ptr.tolist())
    _, order = happens_before_order(schedule, 1)
    ranks = schedule.step_rank
    for step in order.tolist():
        rank = int(ranks[step])
        known = itself[rank] if step in firsts else told[step - 1]
        for earlier in (*deps[dep_ptr[step] : dep_ptr[step + 1]], *senders.get(step, ())):
            known |= told[earlier]
        told[step] = known
        knows[rank] |= known
    return all(known == (1 << len(circles)) - 1 for known in knows)
