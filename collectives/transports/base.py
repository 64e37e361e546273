"""The contract of a transport: ordered point-to-point messages, begun without blocking, completed by polling.

``tests/collectives/transport_contract.py`` states it as tests that every transport passes; :mod:`~topoccl.collectives.transports.endpoint`
is what all of them are made of.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from topoccl.collectives.errors import CollectiveTimeout

Bytes = npt.NDArray[np.uint8]  # one-dimensional and contiguous
Inbox = deque[tuple[int, bytearray | memoryview]]  # what has come with a stamp: that, and the bytes

ANY_SOURCE = -1
TAG_BITS = 16  # of a group's own tags; the group's number lies above them on the wire
USER_TAGS = range(1 << (TAG_BITS - 1), (1 << TAG_BITS) - 2)  # above them lie those of roll calls and of the bootstrap
CONTROL_TAG = USER_TAGS[0] - 1  # of the messages that keep calls in step, which are not counted
LONG = 1024 * 1024  # bytes from which a message of a user may be read where it lies

CHECK_SECONDS = 0.02  # longest time between two looks at what else may have happened
OWN_BITS = (1 << TAG_BITS) - 1  # of a tag on the wire


class Request:
    """A message on its way. ``done`` turns true once, also on failure, when ``error`` holds the exception.

    A send is done when its bytes may be overwritten, a receive when they have arrived. ``source`` is the sender's rank (of
    interest after a receive from any source).
    """

    __slots__ = ("done", "error", "source")

    def __init__(self, source: int = ANY_SOURCE) -> None:
        self.done = False
        self.error: BaseException | None = None
        self.source = source


@dataclass
class PeerCounters:
    """What went to and came from one peer: messages and payload bytes as the caller counts them (never pieces or headers).

    A message is counted when its request is done without error, unless its tag is :data:`CONTROL_TAG`.
    """

    sent_messages: int = 0
    sent_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0

    def add(self, other: PeerCounters, times: int) -> None:
        """Counts what ``other`` says, so many times."""
        self.sent_messages += times * other.sent_messages
        self.sent_bytes += times * other.sent_bytes
        self.received_messages += times * other.received_messages
        self.received_bytes += times * other.received_bytes


Put = Callable[[npt.NDArray[Any], int], "Request | None"]
"""Sends a contiguous array with a stamp. Its bytes may be overwritten at once; the request, if there is one, ends when they have left."""


class Transport(ABC):
    """Point-to-point messages among ``size`` ranks.

    Messages with one (sender, receiver, tag) arrive in the order in which they were begun; different tags are independent.
    The receiver names the exact length. A message of zero bytes is a message, and so is one to oneself. Any number of sends and
    receives may be open at once, and the bytes handed over stay the caller's until the request is done. Messages longer than what
    the medium takes well at once are cut into pieces inside. All methods may be called from several threads.

    A host may have several NICs, on networks of their own: ``rails`` ways to every peer, of which a send and its receive must name the
    same. Messages that name none take rail 0; those of different rails are independent of each other.

    Wrong arguments raise; what goes wrong with a peer becomes the ``error`` (a :class:`TransportError`) of the requests it befalls.
    A transport never runs a collective of its medium.

    Where ``stamps`` is true, short messages may bear a *stamp*, a number of 64 bits that is not 0. They need no receive, and meet none:
    what has come lies in an :meth:`inbox` until it is taken out.
    """

    name: str
    rank: int
    size: int
    max_group: int  # the largest number that a sub-group can have
    rails: int
    counters: dict[int, PeerCounters]  # by peer, in the ranks of this transport
    stamps: bool

    def __str__(self) -> str:
        return f"{self.name} rank {self.rank} of {self.size}"

    @abstractmethod
    def isend(self, peer: int, tag: int, data: Bytes, rail: int = 0, share: float = 0.0) -> Request:
        """Begins to send ``data``; ``0 <= tag < 2**16``. ``share`` of the rate of the way is what it should take, beside others that
        leave at the same time, where the medium can see to that; 0 for what those before it take."""

    @abstractmethod
    def irecv(self, peer: int, tag: int, data: Bytes, rail: int = 0) -> Request:
        """Begins to receive exactly ``len(data)`` bytes. ``peer`` -1 takes the next message with this tag from any rank."""

    @abstractmethod
    def progress(self, requests: Sequence[Request], timeout: float) -> None:
        """Makes progress and returns when one of ``requests`` is done (before the call, too) or ``timeout`` seconds are over.

        ``timeout`` 0 polls, and so does a call without requests. Waiting is polite: it neither burns a core for long nor sleeps
        while messages arrive.
        """

    @abstractmethod
    def give_up(self, request: Request) -> None:
        """Takes back the bytes of a send that its receiver was to read where they lie, which fails on both sides; leaves others alone."""

    @abstractmethod
    def give_up_all(self, why: str) -> None:
        """As :meth:`give_up` for all such sends, those that are begun later as well. May be called from any thread."""

    @abstractmethod
    def subgroup(self, ranks: Sequence[int], group: int) -> Transport:
        """The same medium among ``ranks`` (this rank included), renumbered in the given order; ``group`` (>= 1) is the same on its
        members and differs from that of every other open sub-group, and keeps their messages apart."""

    @abstractmethod
    def outlet(self, peer: int, tag: int, rail: int = 0) -> Put:
        """What sends stamped messages to another rank, uncounted. It raises :class:`TransportError`."""

    @abstractmethod
    def inbox(self, peer: int, tag: int, rail: int = 0) -> Inbox:
        """Where stamped messages of another rank arrive, first the first."""

    @abstractmethod
    def count(self, moved: Mapping[int, PeerCounters], times: int) -> None:
        """Counts what has gone to and come from peers with stamps, ``times`` times."""

    @abstractmethod
    def fill(self, inbox: Inbox, peer: int, rail: int, timeout: float) -> None:
        """Makes progress and returns when something lies in ``inbox``, that of ``peer``, or ``timeout`` seconds are over.

        Raises:
            TransportError: nothing will come any more.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees everything; open requests fail. A sub-group's close leaves its parent open. Safe to call twice."""

    def wait(self, requests: Iterable[Request], timeout: float, check: Callable[[], None] | None = None) -> None:
        """Waits until all ``requests`` are done; raises the first error met, or :class:`CollectiveTimeout` after ``timeout`` seconds.

        ``check`` is called now and then while this waits, and raises to give up.
        """
        deadline = time.monotonic() + timeout
        pending = list(requests)
        total = len(pending)
        while True:
            for request in pending:
                if request.error is not None:
                    raise request.error
            pending = [request for request in pending if not request.done]
            if not pending:
                return
            left = deadline - time.monotonic()
            if left <= 0:
                some = "; ".join(map(str, pending[:4])) + ("; ..." if len(pending) > 4 else "")
                raise CollectiveTimeout(f"{self}: {len(pending)} of {total} messages still open after {timeout:g} s: {some}")
            if check is not None:
                check()
                left = min(left, CHECK_SECONDS)
            self.progress(pending, left)
