"""Threads of one process as ranks: for tests, and for programs that want every rank in one process.

A message is copied once, straight from the sender's bytes to the receiver's, when both sides have begun it: the strictest order
that a real medium may have (no message is ever buffered), so a schedule that runs here runs everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Condition

from topoccl.collectives.errors import TransportError
from topoccl.collectives.transports.base import ANY_SOURCE, Request, Transport
from topoccl.collectives.transports.endpoint import Endpoint, Medium, Message
from topoccl.collectives.transports.mailbox import Mailbox, transfer


class MemoryHub:
    """The meeting place of ``size`` ranks in one process; ``transport(rank)`` is each one's transport, for its own threads.

    When a rank closes its transport, its peers' open messages with it fail, as they do when a process dies.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"MemoryHub: size {size} is not at least 1")
        self.size = size
        self.boxes = [Mailbox() for _ in range(size)]
        self.closed: set[int] = set()
        self._media = [_MemoryMedium(self, rank) for rank in range(size)]

    def transport(self, rank: int) -> Transport:
        if not 0 <= rank < self.size:
            raise ValueError(f"MemoryHub: rank {rank} is not in 0 to {self.size - 1}")
        return Endpoint(self._media[rank])

    def finish(self, message: Message, error: BaseException | None = None, source: int = ANY_SOURCE) -> None:
        medium = self._media[message.endpoint.world_rank]
        with medium.arrival:
            message.finish(error, source)
            medium.arrival.notify_all()


class _MemoryMedium(Medium):
    name = "memory"
    max_group = (1 << 31) - 1

    def __init__(self, hub: MemoryHub, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.size = hub.size
        self.arrival = Condition()
        self._hub = hub

    def _box(self, message: Message) -> Mailbox:
        return self._hub.boxes[message.peer if message.is_send else self.rank]

    def begin(self, message: Message) -> None:
        box = self._box(message)
        pair = box.add(message)
        if pair is None:
            # Only now that it is in the box can the peer's close see it, so only now is it safe to look.
            if message.peer in self._hub.closed and box.discard(message):
                raise TransportError(f"{message.endpoint}: cannot {message}: the peer has closed its transport")
            return
        send, receive = pair
        error = transfer(send, receive)
        self._hub.finish(send, error)
        self._hub.finish(receive, error, send.endpoint.world_rank)

    def progress(self, requests: Sequence[Request], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with self.arrival:
            while requests and not any(request.done for request in requests):
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self.arrival.wait(left)

    def abandon(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._box(message).discard(message)
        with self.arrival:
            self.arrival.notify_all()

    def close(self) -> None:
        hub = self._hub
        hub.closed.add(self.rank)
        stranded = hub.boxes[self.rank].close()
        for box in hub.boxes:
            stranded += [m for m in box.waiting() if not m.is_send and m.peer == self.rank and box.discard(m)]
        for message in stranded:
            hub.finish(message, TransportError(f"{message.endpoint}: {message} failed: the peer has closed its transport"))
