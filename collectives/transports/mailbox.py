"""Messages between ranks, or within one, that share memory: sends are paired with receives and copied once."""

from __future__ import annotations

from collections import deque
from threading import Lock

import numpy as np

from topoccl.collectives.errors import TransportError
from topoccl.collectives.transports.base import ANY_SOURCE
from topoccl.collectives.transports.endpoint import Message


def transfer(send: Message, receive: Message) -> TransportError | None:
    """Copies a paired message; returns what is wrong with the pair, if anything is."""
    if send.nbytes != receive.nbytes:
        return TransportError(f"{receive.endpoint}: {receive} met a message of {send.nbytes} bytes")
    np.copyto(receive.data, send.data)
    return None


class Mailbox:
    """Pairs the sends to one rank with its receives, in order; finishes neither, save that a closed box takes no more."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sends: dict[int, deque[Message]] = {}  # by tag
        self._receives: dict[int, deque[Message]] = {}
        self._closed = False

    def add(self, message: Message, keep: bool = True) -> tuple[Message, Message] | None:
        """Adds a send or a receive; returns the send and the receive that it completes, or None when it has to wait (here, if ``keep``)."""
        mine, others = (self._sends, self._receives) if message.is_send else (self._receives, self._sends)
        with self._lock:
            if self._closed:
                raise TransportError(f"{message.endpoint}: cannot {message}: the peer has closed its transport")
            for other in others.get(message.tag, ()):
                send, receive = (message, other) if message.is_send else (other, message)
                if receive.peer in (ANY_SOURCE, send.endpoint.world_rank):
                    others[message.tag].remove(other)
                    if not others[message.tag]:
                        del others[message.tag]
                    return send, receive
            if keep:
                mine.setdefault(message.tag, deque()).append(message)
            return None

    def discard(self, message: Message) -> bool:
        """Forgets ``message``; False when it is not here (any more)."""
        with self._lock:
            side = self._sends if message.is_send else self._receives
            queue = side.get(message.tag)
            if queue is None or message not in queue:
                return False
            queue.remove(message)
            if not queue:
                del side[message.tag]
            return True

    def waiting(self) -> list[Message]:
        """All that is not paired yet."""
        with self._lock:
            return [m for side in (self._sends, self._receives) for queue in side.values() for m in queue]

    def close(self) -> list[Message]:
        """Takes no more, and returns what was waiting."""
        with self._lock:
            self._closed = True
        return self.waiting()
