"""Order between receives from any source and from named ones."""

from __future__ import annotations

from collections import deque

from topoccl.collectives.transports.base import ANY_SOURCE
from topoccl.collectives.transports.endpoint import Message


class TagGate:
    """Keeps in order the receives of a tag for which any source and named ones mix, since Gloo gives a message to the named one first:
    a receive from any source starts when no named one with its tag is open, and the other way round. One of more than ``short`` bytes
    from any source is the only one with its tag, since only its first part says where the rest comes from."""

    def __init__(self, short: int) -> None:
        self._short = short
        self._open: dict[int, list[int]] = {}  # by tag: named ones that are open, those from any source, and of these the long ones
        self._waiting: dict[int, deque[Message]] = {}

    def admit(self, message: Message) -> bool:
        """Whether a new receive may start now; if not, :meth:`ended` will return it."""
        waiting = self._waiting.get(message.tag)
        if waiting is not None:
            waiting.append(message)
            return False
        if self._start(message):
            return True
        self._waiting[message.tag] = deque([message])
        return False

    def _start(self, message: Message) -> bool:
        opened = self._open.setdefault(message.tag, [0, 0, 0])
        kind = message.peer == ANY_SOURCE
        long = kind and message.nbytes > self._short
        if opened[not kind] or opened[2] or (long and opened[1]):
            return False
        opened[kind] += 1
        opened[2] += long
        return True

    def ended(self, message: Message) -> list[Message]:
        """After the end of a receive that was admitted: those that may start now."""
        opened = self._open[message.tag]
        kind = message.peer == ANY_SOURCE
        opened[kind] -= 1
        opened[2] -= kind and message.nbytes > self._short
        started: list[Message] = []
        waiting = self._waiting.get(message.tag)
        while waiting and (waiting[0].done or self._start(waiting[0])):
            started.append(waiting.popleft())
        if not waiting:
            self._waiting.pop(message.tag, None)
        if not any(opened):
            del self._open[message.tag]
        return [m for m in started if not m.done]
