"""Waiting without ruin: spin while there is a core for every rank, else yield at once, and sleep when it takes long."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_BURN = 0.9e-3  # seconds a wait may keep a core busy, after it has spun, before it starts to sleep,
_BURN_BESIDE = 0.1e-3  # where a rank that shares the core may be waiting for another host: to yield does not make it next
FIRST_NAP = 20e-6
LONGEST_NAP = 500e-6
PATIENCE = 0.05  # seconds between looks at the other ranks, and for an abort, while a message is waited for


class Waiter:
    """Waits for counters in shared memory.

    Args:
        flags: the counters.
        crowded: whether there are more ranks than cores on this host; then spinning would only keep the others from running.
        several: whether what is waited for may depend on other hosts.
    """

    def __init__(self, flags: memoryview, crowded: bool, several: bool = False) -> None:
        self.flags = flags
        self._burn = _BURN_BESIDE if crowded and several else _BURN
        self.spins = 0 if crowded else 400
        self.crowded = crowded

    def wait(self, word: int, value: int, check: Callable[[], None]) -> None:
        """Returns when ``flags[word] >= value``; calls ``check`` now and then, which raises to give up."""
        flags = self.flags
        for _ in range(self.spins):
            if flags[word] >= value:
                return
        start = time.monotonic()
        while time.monotonic() - start < self._burn:
            for _ in range(4):
                if flags[word] >= value:
                    return
                os.sched_yield()
        nap = FIRST_NAP
        while flags[word] < value:
            check()
            time.sleep(nap)
            nap = min(nap * 1.5, LONGEST_NAP)
