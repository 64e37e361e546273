"""Candidates measured side by side in alternating batches, of which the slow ones are dropped early. Pure.

The rules:

* every candidate runs one batch, then another, in turns, so that a disturbance hits all alike;
* after its first batch a candidate is dropped that took more than :data:`FAR` times as long as the fastest;
* from :data:`EARLY` batches on a candidate is dropped whose median is more than :data:`CLEAR` above the best median and whose fastest
  batch was slower than the slowest one of the best;
* it ends with :data:`MOST` batches, or with :data:`EARLY` when only one of several candidates is left, or when the time is over; what
  ran no batch has the time of its first call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

FAR = 2.0
CLEAR = 0.03
EARLY = 3
MOST = 7
BATCH_SECONDS = 0.02
MOST_CALLS = 200

Round = Callable[[Sequence[tuple[int, int]]], list[float]]
"""Runs a batch of each of some candidates, given as (number, calls), and returns seconds per call of the slowest rank."""


@dataclass
class Entrant:
    """One candidate's batches, in seconds per call."""

    number: int
    calls: int
    times: list[float] = field(default_factory=list)
    dropped: bool = False

    @property
    def seconds(self) -> float:
        return median(self.times)


def race(first: Sequence[float], run: Round, over: Callable[[int], bool], most: int = MOST) -> list[Entrant]:
    """Measures candidates 0, 1, ..., of which one call each took about ``first`` seconds.

    Args:
        run: see :data:`Round`.
        over: whether the time for this race is over; asked before every round, with the number of rounds so far.
        most: batches of each candidate at most.

    Returns:
        All candidates, in order; those that were never measured have no times, or their first call's if nobody has any.
    """
    quick = min(first)
    entrants = [Entrant(n, _calls(s), dropped=s > FAR * quick) for n, s in enumerate(first)]
    for turn in range(most):
        running = [entrant for entrant in entrants if not entrant.dropped]
        if over(turn) or (turn >= EARLY and len(running) == 1 < len(entrants)):
            break
        for entrant, seconds in zip(running, run([(e.number, e.calls) for e in running]), strict=True):
            entrant.times.append(seconds)
        _drop(running)
    for entrant, seconds in zip(entrants, first, strict=True):
        if not entrant.times:
            entrant.times.append(seconds)
            entrant.dropped = entrant.dropped or any(len(other.times) > 1 for other in entrants)
    return entrants


def in_turns(first: Sequence[float], run: Round, over: Callable[[int], bool], rounds: int) -> list[list[float]]:
    """Seconds per call of each round's batch of all candidates, none of which is dropped; every other round goes the other way round.

    Args:
        first, run, over: as for :func:`race`.
        rounds: at most.
    """
    batches = [(number, _calls(seconds)) for number, seconds in enumerate(first)]
    times: list[list[float]] = [[] for _ in first]
    for turn in range(rounds):
        if over(turn):
            break
        order = batches[::-1] if turn % 2 else batches
        for (number, _), seconds in zip(order, run(order), strict=True):
            times[number].append(seconds)
    return times


def _drop(running: Sequence[Entrant]) -> None:
    best = min(running, key=lambda entrant: entrant.seconds)
    for entrant in running:
        far = entrant.seconds > FAR * best.seconds
        clear = len(entrant.times) >= EARLY and entrant.seconds > (1 + CLEAR) * best.seconds and min(entrant.times) > max(best.times)
        entrant.dropped = far or clear


def _calls(seconds: float) -> int:
    """How many calls of so many seconds make a batch."""
    return max(1, min(MOST_CALLS, int(BATCH_SECONDS / max(seconds, 1e-9))))
