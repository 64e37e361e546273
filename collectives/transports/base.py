"""The contract of a transport: ordered point-to-point messages, begun without blocking, completed by polling.

``tests/collectives/test_transport_contract.py`` states it as tests that every transport passes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]  # one-dimensional and contiguous


class Request:
    """A message on its way. ``done`` turns true once, also on failure, when ``error`` holds the exception.

    A send is done when its bytes may be overwritten, a receive when they have arrived. ``source`` is the sender's rank (of
    interest after a receive from any source).
    """

    __slots__ = ("done", "error", "source")

    def __init__(self, source: int = -1) -> None:
        self.done = False
        self.error: BaseException | None = None
        self.source = source


@dataclass
class PeerCounters:
    """What went to and came from one peer: messages and payload bytes as the caller counts them (never pieces or headers)."""

    sent_messages: int = 0
    sent_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0


class Transport(ABC):
    """Point-to-point messages among ``size`` ranks.

    Messages with one (sender, receiver, tag) arrive in the order in which they were begun; different tags are independent.
    The receiver names the exact length. A message of zero bytes is a message. Any number of sends and receives may be open
    at once, and the bytes handed over stay the caller's until the request is done. Messages longer than what the medium takes
    well at once are cut into pieces inside. All methods may be called from several threads.

    A transport never runs a collective of its medium.
    """

    name: str
    rank: int
    size: int
    counters: dict[int, PeerCounters]  # by peer

    @abstractmethod
    def isend(self, peer: int, tag: int, data: Bytes) -> Request:
        """Begins to send ``data``; ``0 <= tag < 2**16``."""

    @abstractmethod
    def irecv(self, peer: int, tag: int, data: Bytes) -> Request:
        """Begins to receive exactly ``len(data)`` bytes. ``peer`` -1 takes the next message with this tag from any rank."""

    @abstractmethod
    def progress(self, requests: Sequence[Request], timeout: float) -> None:
        """Makes progress and returns when one of ``requests`` is newly done or ``timeout`` seconds are over.

        ``timeout`` 0 polls. Waiting is polite: it neither burns a core for long nor sleeps while messages arrive.
        """

    @abstractmethod
    def subgroup(self, ranks: Sequence[int], group: int) -> Transport:
        """The same medium among ``ranks`` (this rank included), renumbered in the given order; ``group`` (>= 1) is the same on its
        members and differs from that of every other open sub-group, and keeps their messages apart."""

    @abstractmethod
    def close(self) -> None:
        """Frees everything; open requests fail. A sub-group's close leaves its parent open. Safe to call twice."""
