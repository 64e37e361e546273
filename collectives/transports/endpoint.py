"""What every transport is made of: one :class:`Medium` carries messages between the ranks of one world, :class:`Endpoint` makes a
transport of it. Ranks of groups, tags, checks, counters and closing are done once, here.
"""

from __future__ import annotations

import atexit
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np

from topoccl.collectives.errors import TransportError
from topoccl.collectives.transports.base import (
    ANY_SOURCE,
    CONTROL_TAG,
    LONG,
    OWN_BITS,
    TAG_BITS,
    Bytes,
    Inbox,
    PeerCounters,
    Put,
    Request,
    Transport,
)

if TYPE_CHECKING:
    from topoccl.collectives.transports.notes import Notes

_process = [os.getpid()]  # this process; a list, so that a fork can put in its own number
os.register_at_fork(after_in_child=lambda: _process.__setitem__(0, os.getpid()))


class Message(Request):
    """A request together with what a medium needs to carry it. ``peer`` and ``tag`` are those of the medium (a receive's peer may
    be :data:`ANY_SOURCE`)."""

    __slots__ = ("data", "endpoint", "is_send", "nbytes", "peer", "rail", "share", "tag")

    def __init__(
        self, endpoint: Endpoint, is_send: bool, peer: int, tag: int, data: Bytes, rail: int = 0, share: float = 0.0
    ) -> None:  # fmt: skip
        self.done = False
        self.error = None
        self.endpoint = endpoint
        self.is_send = is_send
        self.peer = peer
        self.tag = tag
        self.data = data
        self.rail = rail
        self.share = share
        self.nbytes = len(data)

    def __str__(self) -> str:
        who = "any rank" if self.peer == ANY_SOURCE else f"rank {self.endpoint.local(self.peer)}"
        verb = "send to" if self.is_send else "receive from"
        way = f", rail {self.rail}" if self.rail else ""
        return f"{verb} {who} (tag {self.tag & ((1 << TAG_BITS) - 1)}, {self.nbytes} bytes{way})"

    def finish(self, error: BaseException | None = None, source: int = ANY_SOURCE) -> None:
        """Ends the message, once; ``source`` is the medium's rank of the sender."""
        self.endpoint.finish(self, error, source)


class Aside(Message):
    """A message about another one, which nobody counts. ``then`` is called with it when it has ended, maybe under the medium's lock."""

    __slots__ = ("then",)

    def __init__(self, endpoint: Endpoint, is_send: bool, peer: int, tag: int, data: Bytes, then: Callable[[Aside], None]) -> None:
        super().__init__(endpoint, is_send, peer, tag, data)
        self.then = then

    def finish(self, error: BaseException | None = None, source: int = ANY_SOURCE) -> None:
        if self.endpoint.drop(self):
            self.error = error
            self.done = True
            self.then(self)


class Rest(Message):
    """What is left to send of a stamped message, which nobody counts or closes."""

    __slots__ = ()

    def finish(self, error: BaseException | None = None, source: int = ANY_SOURCE) -> None:
        self.error = error
        self.done = True


class Medium(ABC):
    """What carries the messages of one rank among ``size``; shared by a world and its sub-groups.

    Where ``takes_notes`` is true, it tells the :class:`~topoccl.collectives.transports.notes.Notes` of receives of what they have met, and
    runs ``errands`` when it holds no lock: at the end of each look for messages.
    """

    name: str
    rank: int
    size: int
    max_group: int
    rails: int = 1
    stamps = False
    takes_notes = False

    def __init__(self) -> None:
        self.errands = deque[Callable[[], None]]()
        self._on_errand = RLock()

    @abstractmethod
    def begin(self, message: Message) -> None:
        """Begins to send or receive. :meth:`Message.finish` is called when it is over, from any thread; a :class:`TransportError`
        raised here becomes the message's error."""

    @abstractmethod
    def progress(self, requests: Sequence[Request], timeout: float) -> None:
        """As :meth:`Transport.progress`."""

    @abstractmethod
    def abandon(self, messages: Sequence[Message]) -> None:
        """``messages`` have failed because their group was closed: drop what can be dropped, keep their bytes alive if need be."""

    @abstractmethod
    def close(self) -> None:
        """Frees everything, in bounded time. Called once, after the open messages of the world were abandoned."""

    def run_errands(self) -> None:
        """Does what is to be done without a lock, unless another thread is at it, and wakes those who may wait for it."""
        while self.errands and self._on_errand.acquire(blocking=False):
            try:
                while self.errands:
                    self.errands.popleft()()
            finally:
                self._on_errand.release()
            self.wake()

    def end_errands(self) -> None:
        """Waits for the errand that is being run."""
        with self._on_errand:
            return

    def wake(self) -> None:
        """Has all that wait look at their requests."""
        return  # they do

    # Where ``stamps`` is true; peers and tags are the medium's, ``endpoint`` is for errors.

    def outlet(self, endpoint: Endpoint, peer: int, tag: int, rail: int) -> Put:
        """As :meth:`Transport.outlet`."""
        raise NotImplementedError(f"{self.name} messages have no stamps")

    def inbox(self, peer: int, tag: int, rail: int) -> Inbox:
        """As :meth:`Transport.inbox`."""
        raise NotImplementedError(f"{self.name} messages have no stamps")

    def fill(self, endpoint: Endpoint, inbox: Inbox, peer: int, rail: int, timeout: float) -> None:
        """As :meth:`Transport.fill`."""
        raise NotImplementedError(f"{self.name} messages have no stamps")

    def forget_stamped(self, group: int) -> None:
        """Drops the stamped messages of a group that is closed."""
        return  # there are none


class Endpoint(Transport):
    """A world or a sub-group over a :class:`Medium`: translates ranks and tags, checks arguments, counts.

    Attributes:
        medium: what carries the messages.
        notes: by which long messages are sent and received inside a host, if they are.
    """

    def __init__(self, medium: Medium, ranks: Sequence[int] | None = None, group: int = 0, family: WeakSet[Endpoint] | None = None) -> None:
        self.name = medium.name
        self.medium = medium
        self._ranks = tuple(range(medium.size)) if ranks is None else tuple(ranks)
        self._local = {world: rank for rank, world in enumerate(self._ranks)}
        self._base = group << TAG_BITS
        self.world_rank = medium.rank
        self.rank = self._local[medium.rank]
        self.size = len(self._ranks)
        self.max_group = medium.max_group
        self.rails = medium.rails
        self.stamps = medium.stamps
        self.counters = {peer: PeerCounters() for peer in range(self.size)}
        self.notes: Notes | None = None
        self._open: set[Message] = set()
        self._lock = RLock()  # a signal handler may abort inside
        self._closed = False
        self._pid = os.getpid()
        self._family: WeakSet[Endpoint] = WeakSet() if family is None else family  # the sub-groups of one world
        (_worlds if family is None else family).add(self)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks of this group, in the medium's numbers."""
        return self._ranks

    def local(self, world: int) -> int:
        """The rank in this group of a rank of the medium."""
        return self._local[world]

    def isend(self, peer: int, tag: int, data: Bytes, rail: int = 0, share: float = 0.0) -> Request:
        if not 0 <= peer < self.size:
            raise ValueError(f"{self}: cannot send to rank {peer}; known ranks are 0 to {self.size - 1}")
        return self._begin(True, self._ranks[peer], tag, data, rail, share)

    def irecv(self, peer: int, tag: int, data: Bytes, rail: int = 0) -> Request:
        if not -1 <= peer < self.size:
            raise ValueError(f"{self}: cannot receive from rank {peer}; known ranks are 0 to {self.size - 1}, and -1 for any")
        return self._begin(False, self._ranks[peer] if peer >= 0 else ANY_SOURCE, tag, data, rail)

    def aside(self, is_send: bool, world: int, tag: int, data: Bytes, then: Callable[[Aside], None]) -> None:
        """Begins an :class:`Aside` to or from a rank, in the medium's numbers. Raises TransportError."""
        self._begin(is_send, world, tag, data, 0, then=then)

    def _begin(
        self, is_send: bool, world: int, tag: int, data: Bytes, rail: int, share: float = 0.0, then: Callable[[Aside], None] | None = None
    ) -> Request:  # fmt: skip
        if not 0 <= tag < 1 << TAG_BITS:
            raise ValueError(f"{self}: tag {tag} is not in 0 to {(1 << TAG_BITS) - 1}")
        if not 0 <= rail < self.rails:
            raise ValueError(f"{self}: rail {rail} is not in 0 to {self.rails - 1}")
        if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
            raise ValueError(f"{self}: a message is a contiguous one-dimensional array of uint8, not {data.dtype} of shape {data.shape}")
        if not is_send and not data.flags.writeable:
            raise ValueError(f"{self}: cannot receive into a read-only array of {len(data)} bytes")
        if _process[0] != self._pid:
            raise TransportError(f"{self}: opened by process {self._pid}, cannot be used in its fork {_process[0]}")
        message: Message
        if then is None:
            message = Message(self, is_send, world, self._base | tag, data, rail, share)
        else:
            message = Aside(self, is_send, world, self._base | tag, data, then)
        message.source = self.rank if is_send else self._local.get(world, ANY_SOURCE)
        with self._lock:
            if self._closed:
                raise TransportError(f"{self}: cannot {message}: the transport is closed")
            self._open.add(message)
        try:
            if message.nbytes >= LONG and is_send and self.notes is not None and self.notes.concern(message):
                self.notes.begin(message)
            else:
                self.medium.begin(message)
        except TransportError as exc:
            message.finish(exc)
        except BaseException as exc:
            message.finish(exc)
            raise
        return message

    def drop(self, message: Message) -> bool:
        """Has an open message be one no more; whether it was."""
        with self._lock:
            if message not in self._open:
                return False  # failed already, by close
            self._open.discard(message)
            return True

    def is_open(self, message: Message) -> bool:
        """Whether a message has not ended, and may."""
        with self._lock:
            return message in self._open

    def give_up(self, request: Request) -> None:
        if self.notes is not None and isinstance(request, Message):
            self.notes.give_up(request)

    def give_up_all(self, why: str) -> None:
        if self.notes is not None:
            self.notes.close(why)

    def finish(self, message: Message, error: BaseException | None, source: int) -> None:
        with self._lock:
            if message not in self._open:
                return  # failed already, by close
            self._open.discard(message)
            if error is not None:
                message.error = error
            elif message.tag & OWN_BITS == CONTROL_TAG:
                pass
            elif message.is_send:
                counters = self.counters[self._local[message.peer]]
                counters.sent_messages += 1
                counters.sent_bytes += message.nbytes
            else:
                if message.peer == ANY_SOURCE:
                    message.source = self._local[source]
                counters = self.counters[message.source]
                counters.received_messages += 1
                counters.received_bytes += message.nbytes
            message.done = True

    def progress(self, requests: Sequence[Request], timeout: float) -> None:
        self.medium.progress(requests, timeout)

    def outlet(self, peer: int, tag: int, rail: int = 0) -> Put:
        return self.medium.outlet(self, self._ranks[peer], self._base | tag, rail)

    def inbox(self, peer: int, tag: int, rail: int = 0) -> Inbox:
        return self.medium.inbox(self._ranks[peer], self._base | tag, rail)

    def count(self, moved: Mapping[int, PeerCounters], times: int) -> None:
        with self._lock:
            for peer, row in moved.items():
                self.counters[peer].add(row, times)

    def fill(self, inbox: Inbox, peer: int, rail: int, timeout: float) -> None:
        if self._closed:
            raise TransportError(f"{self}: cannot receive from rank {peer}: the transport is closed")
        self.medium.fill(self, inbox, self._ranks[peer], rail, timeout)

    def subgroup(self, ranks: Sequence[int], group: int) -> Transport:
        if not 1 <= group <= self.medium.max_group:
            raise ValueError(f"{self}: group {group} is not in 1 to {self.medium.max_group}, what {self.name} has tags for")
        ranks = list(ranks)
        if len(set(ranks)) != len(ranks) or not all(0 <= rank < self.size for rank in ranks):
            raise ValueError(f"{self}: sub-group {ranks} is not a list of distinct ranks out of 0 to {self.size - 1}")
        if self.rank not in ranks:
            raise ValueError(f"{self}: sub-group {ranks} does not hold this rank {self.rank}")
        return Endpoint(self.medium, [self._ranks[rank] for rank in ranks], group, self._family)

    def close(self) -> None:
        if self._base == 0:
            for group in list(self._family):
                group.close()
        with self._lock:
            first, self._closed = not self._closed, True
            pending = list(self._open)
            self._open.clear()
        ours = _process[0] == self._pid
        if self.notes is not None and ours:  # before anybody hears that the bytes of a message are free again
            self.notes.close("the transport was closed")
            self.medium.end_errands()
        for message in pending:
            message.error = TransportError(f"{self}: {message} was still open when the transport was closed")
            message.done = True
        if not first or not ours:
            return
        self.medium.abandon(pending)
        self.medium.forget_stamped(self._base >> TAG_BITS)
        if self._base == 0:
            self.medium.close()


_worlds: WeakSet[Endpoint] = WeakSet()


@atexit.register
def close_worlds() -> None:
    """Closes what the program has left open. Without this about one process in six aborts at exit: Gloo's threads outlive what they
    use."""
    for world in list(_worlds):
        if world._pid == _process[0]:
            world.close()
