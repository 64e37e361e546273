"""Waiting for messages that only polling can bring."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

YIELD_SECONDS = 300e-6
LONGEST_SLEEP = 500e-6


class Patience:
    """How to rest between two polls that brought nothing: the longer nothing has happened, the longer.

    At first the core is only yielded, since a peer may share it; after :data:`YIELD_SECONDS` the rests are sleeps of an eighth of
    the idle time, up to :data:`LONGEST_SLEEP`. One object serves a whole transport, so that many short waits rest like a long one.
    """

    def __init__(self) -> None:
        self.since = time.monotonic()

    def renew(self) -> None:
        """Something was begun or came."""
        self.since = time.monotonic()

    def rest(self, left: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Rests once, for at most ``left`` seconds."""
        idle = time.monotonic() - self.since
        if idle < YIELD_SECONDS:
            os.sched_yield()
        else:
            sleep(min(idle / 8, LONGEST_SLEEP, left))
