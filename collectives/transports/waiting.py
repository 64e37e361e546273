"""Waiting for messages that only polling can bring."""

from __future__ import annotations

import os
import time


class Backoff:
    """How long to rest between two polls that brought nothing.

    First the core is only yielded, since the peer may share it; after :data:`YIELD_SECONDS` without a message the waits become
    sleeps that double up to :data:`LONGEST_SLEEP`. A message that arrives takes it back to yielding.
    """

    YIELD_SECONDS = 300e-6
    SHORTEST_SLEEP = 20e-6
    LONGEST_SLEEP = 500e-6

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._since = time.monotonic()
        self._sleep = 0.0

    def rest(self, deadline: float) -> None:
        """Rests once, not beyond ``deadline`` (of ``time.monotonic()``)."""
        if self._sleep == 0.0:
            os.sched_yield()
            if time.monotonic() - self._since > self.YIELD_SECONDS:
                self._sleep = self.SHORTEST_SLEEP
            return
        time.sleep(max(0.0, min(self._sleep, deadline - time.monotonic())))
        self._sleep = min(self._sleep * 2, self.LONGEST_SLEEP)
