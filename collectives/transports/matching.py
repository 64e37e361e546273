"""Which receive a message is for: by sender and tag, each in the order in which it was begun."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable

import numpy as np

from topoccl.collectives.errors import TransportError
from topoccl.collectives.transports.base import ANY_SOURCE, Inbox
from topoccl.collectives.transports.endpoint import Message
from topoccl.collectives.transports.notes import NOTE_BYTES

Key = tuple[int, int]  # tag on the wire and rail


class Arrival:
    """A message that comes in, or has come. ``into`` is where its bytes go, None where they are thrown away; ``sender`` is set when it
    is from this rank itself; ``stamp`` is not 0 when it has one."""

    __slots__ = ("at", "into", "key", "nbytes", "receive", "sender", "source", "stamp")

    def __init__(self, source: int, key: Key, nbytes: int, sender: Message | None = None, stamp: int = 0) -> None:
        self.source = source
        self.key = key
        self.nbytes = nbytes
        self.at = 0  # bytes that have come
        self.into: memoryview | None = None
        self.receive: Message | None = None
        self.sender = sender
        self.stamp = stamp


class Matching:
    """Receives that wait for messages, and messages that came before their receives, or with a stamp, which need none."""

    def __init__(self) -> None:
        self._posted: dict[Key, list[Message]] = {}  # in the order in which they were begun
        self._early: dict[Key, list[Arrival]] = {}  # in the order in which they began to come
        self.inboxes: defaultdict[tuple[int, int, int], Inbox] = defaultdict(deque)  # by sender, rail and tag on the wire

    # Receives

    def claim(self, receive: Message) -> bool:
        """Gives ``receive`` what has come for it already; whether something has."""
        key = (receive.tag, receive.rail)
        for arrival in self._early.get(key, ()):
            if receive.peer in (ANY_SOURCE, arrival.source):
                self._forget(arrival)
                self._deliver(arrival, receive)
                return True
        return False

    def post(self, receive: Message) -> None:
        self._posted.setdefault((receive.tag, receive.rail), []).append(receive)

    def withdraw(self, unwanted: Callable[[Message], bool]) -> list[Message]:
        """Takes back receives."""
        gone = []
        for key, posted in list(self._posted.items()):
            found = [message for message in posted if unwanted(message)]
            if found:
                gone += found
                left = [message for message in posted if message not in found]
                if left:
                    self._posted[key] = left
                else:
                    del self._posted[key]
        return gone

    # Messages

    def keep(self, source: int, rail: int, tag: int, stamp: int, data: bytearray | memoryview) -> None:
        """A message with a stamp has come; ``data`` is nobody else's."""
        self.inboxes[source, rail, tag].append((stamp, data))

    def forget_stamped(self, unwanted: Callable[[int], bool]) -> None:
        """Drops what has come with a stamp and an ``unwanted`` tag."""
        for key in [key for key in self.inboxes if unwanted(key[2])]:
            del self.inboxes[key]

    def starts(self, source: int, rail: int, tag: int, nbytes: int, stamp: int) -> Arrival:
        """A message of ``nbytes`` begins to come."""
        arrival = Arrival(source, (tag, rail), nbytes, None, stamp)
        if stamp:
            arrival.into = memoryview(bytearray(nbytes))
            return arrival
        receive = self._take(arrival)
        if receive is None:
            arrival.into = np.empty(nbytes, np.uint8).data
            self._early.setdefault(arrival.key, []).append(arrival)
        else:
            _accept(arrival, receive)
        return arrival

    def complete(self, arrival: Arrival) -> None:
        """All bytes of a message have come."""
        if arrival.stamp:
            assert arrival.into is not None
            tag, rail = arrival.key
            self.keep(arrival.source, rail, tag, arrival.stamp, arrival.into)
            return
        receive = arrival.receive
        if receive is not None:
            if arrival.nbytes == NOTE_BYTES and arrival.into is not None:
                notes = receive.endpoint.notes
                if notes is not None and notes.meets(receive, arrival.into, arrival.source):
                    return
            wrong = None
            if receive.nbytes != arrival.nbytes:
                wrong = TransportError(f"{receive.endpoint}: {receive} failed: met a message of {arrival.nbytes} bytes")
            receive.finish(wrong, arrival.source)

    def cut(self, arrival: Arrival) -> None:
        """The rest of a message will not come."""
        receive = arrival.receive
        if arrival.stamp:
            return
        if receive is None:
            self._forget(arrival)
            return
        come = f"the connection was closed after {arrival.at} bytes of {arrival.nbytes}"
        receive.finish(TransportError(f"{receive.endpoint}: {receive} failed: {come}"))

    def from_self(self, send: Message) -> bool:
        """A message of this rank to itself; whether its receive had been begun."""
        arrival = Arrival(send.peer, (send.tag, send.rail), send.nbytes, send)
        arrival.at, arrival.into = send.nbytes, send.data.data
        receive = self._take(arrival)
        if receive is None:
            self._early.setdefault(arrival.key, []).append(arrival)
            return False
        self._deliver(arrival, receive)
        return True

    def drop_from_self(self, sends: Iterable[Message]) -> None:
        """Forgets messages to oneself that nobody has asked for."""
        gone = set(sends)
        for early in list(self._early.values()):
            for arrival in [arrival for arrival in early if arrival.sender in gone]:
                self._forget(arrival)

    def _take(self, arrival: Arrival) -> Message | None:
        """The receive that a message is for, out of those that were begun."""
        posted = self._posted.get(arrival.key)
        if posted is None:
            return None
        for at, message in enumerate(posted):
            if message.peer in (ANY_SOURCE, arrival.source):
                del posted[at]
                if not posted:
                    del self._posted[arrival.key]
                return message
        return None

    def _forget(self, arrival: Arrival) -> None:
        early = self._early[arrival.key]
        early.remove(arrival)
        if not early:
            del self._early[arrival.key]

    def _deliver(self, arrival: Arrival, receive: Message) -> None:
        """Gives a message that has come, or begun to, to a receive."""
        held, sender = arrival.into, arrival.sender
        _accept(arrival, receive)
        if arrival.at and arrival.into is not None and held is not None:
            arrival.into[: arrival.at] = held[: arrival.at]
        if arrival.at == arrival.nbytes:
            self.complete(arrival)
        if sender is not None:
            sender.finish(receive.error)


def _accept(arrival: Arrival, receive: Message) -> None:
    arrival.receive = receive
    if receive.nbytes == arrival.nbytes:
        arrival.into = receive.data.data
    else:
        arrival.into = memoryview(bytearray(NOTE_BYTES)) if arrival.nbytes == NOTE_BYTES else None  # it may be a note
