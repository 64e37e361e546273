"""Waiting for messages that only polling can bring."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from topoccl.collectives.transports.base import Request

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


class Polled(Protocol):
    """A medium some of whose messages only polling can bring."""

    @property
    def polls(self) -> bool:
        """Whether it has such messages open."""

    def poll(self, requests: Sequence[Request]) -> bool:
        """Looks once, on behalf of those who wait for ``requests``; whether something has come."""


class Arrivals:
    """Where threads wait for messages of one or several media."""

    def __init__(self) -> None:
        self.patience = Patience()
        self._news = threading.Condition()
        self._sleepers = 0

    def tell(self) -> None:
        """Wakes those who wait: something is done, or there is something to poll."""
        if self._sleepers:
            with self._news:
                self._news.notify_all()

    def wait(self, media: Sequence[Polled], requests: Sequence[Request], timeout: float) -> None:
        """As :meth:`Transport.progress`, for requests of any of ``media``."""

        def sleep(seconds: float) -> None:
            with self._news:
                self._sleepers += 1
                if not any(request.done for request in requests):
                    self._news.wait(seconds)
                self._sleepers -= 1

        deadline = None
        while True:
            arrived = False
            for medium in media:
                arrived |= medium.poll(requests)
            for request in requests:
                if request.done:
                    return
            if not requests or timeout <= 0:
                return
            now = time.monotonic()
            if deadline is None:
                deadline = now + timeout
            elif now >= deadline:
                return
            if not any(medium.polls for medium in media):
                sleep(deadline - now)
            elif not arrived:
                self.patience.rest(deadline - now, sleep)
