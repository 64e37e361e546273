"""Waiting for messages that only polling can bring."""

from __future__ import annotations

import os
import time
from collections.abc import Callable


class Backoff:
    """How long to rest between two polls that brought nothing, for at most ``timeout`` seconds together.

    First the core is only yielded, since the peer may share it; after :data:`YIELD_SECONDS` without a message the rests become
    sleeps that double up to :data:`LONGEST_SLEEP`. A message that arrives takes it back to yielding.
    """

    YIELD_SECONDS = 300e-6
    SHORTEST_SLEEP = 20e-6
    LONGEST_SLEEP = 500e-6

    def __init__(self, timeout: float, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep_for = sleep
        self._now = time.monotonic()
        self._deadline = self._now + timeout
        self.reset()

    def reset(self) -> None:
        """Something came."""
        self._since = self._now
        self._sleep = 0.0

    def over(self) -> bool:
        """Whether the time is up."""
        self._now = time.monotonic()
        return self._now >= self._deadline

    @property
    def left(self) -> float:
        """Seconds left when :meth:`over` was called."""
        return self._deadline - self._now

    def rest(self) -> None:
        """Rests once, after :meth:`over` said that there is time left."""
        if self._sleep:
            self._sleep_for(min(self._sleep, self.left))
            self._sleep = min(self._sleep * 2, self.LONGEST_SLEEP)
        elif self._now - self._since > self.YIELD_SECONDS:
            self._sleep = self.SHORTEST_SLEEP
        else:
            os.sched_yield()
