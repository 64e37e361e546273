"""TCP point-to-point over sockets of our own: no thread, no polling, no question before the data.

Gloo asks the receiver before each message, and the answer waits behind all data that leave the same NIC; MPI is polled, which costs the
cores that other ranks need. Here the kernel wakes whoever waits, and data leave as soon as they are begun.

* A rank opens a connection to a peer, and rail, when it first has something to do with it, and sends on it alone; what it receives comes
  on the one that the peer has opened. So both ends of a connection agree on its direction, and its end tells of the peer's.
* A message is a header (tag, length, stamp) and its bytes. A receive that was begun gets them where they belong; what comes before its
  receive is kept. Messages of a connection leave one after the other, in the order in which they were begun, and a later one never waits
  for the receive of an earlier one.
* Data leave no faster than the way to the peer carries (:class:`Pace`). Else they queue up ahead of its narrowest link, and where data go
  both ways the acknowledgements of one direction wait in the queue of the other: a window that fills the link alone then fills half.
* Stamped messages of two ranks go over a connection of their own, both ways, so that an acknowledgement seldom needs a packet of its own;
  the lower rank makes it when it first has something to send to or to take from the other. They are sent at once where nothing waits to
  leave, and lie in inboxes by sender, rail and tag until they are taken.
* Whoever waits for messages first becomes the *driver*, who sleeps in ``epoll`` and serves all connections; the other threads sleep until
  the driver has news, or until it leaves and one of them takes its place.
"""

from __future__ import annotations

import errno
import os
import select
import time
import weakref
from collections.abc import Sequence
from threading import Condition, Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from topoccl.collectives.errors import TransportError
from topoccl.collectives.transports.base import ANY_SOURCE, TAG_BITS, Inbox, Put, Request, Transport
from topoccl.collectives.transports.endpoint import Endpoint, Medium, Message, Rest
from topoccl.collectives.transports.matching import Matching
from topoccl.collectives.transports.sockets import Incoming, Listener, Outgoing, PeerLost, whole

_CONNECT_CHECK = 1.0  # seconds between two looks at connections that are not made yet
_NOTHING = np.empty(0, np.uint8)
_ENDED = (errno.ECONNREFUSED, errno.ECONNRESET)  # all ranks listened before any of them connected
_COARSE = 5e-3  # seconds from which epoll's own clock, of milliseconds, is fine enough


class Pace(Protocol):
    """How fast data may leave."""

    def __call__(self, peer: int, rail: int) -> float:
        """Bytes/s that the way to ``peer`` carries, 0 if that is not known."""


def unpaced(peer: int, rail: int) -> float:
    return 0.0


class Looks(NamedTuple):
    """How often somebody looks for a message, a microsecond each, and whether others have the core in between."""

    times: int
    yields: bool


NO_LOOKS = Looks(0, False)


def tcp_transport(
    rank: int,
    listeners: Sequence[Listener],
    book: Sequence[Sequence[tuple[str, int]]],
    token: bytes,
    timeout: float,
    pace: Pace = unpaced,
    looks: Looks = NO_LOOKS,
) -> Transport:
    """A transport over ``len(book)`` ranks.

    Args:
        rank: of this process.
        listeners: this rank's, one for each rail; the transport's from now on.
        book: for each rank, the address and port of its listener on each rail.
        token: a secret of this job, equal on all ranks.
        timeout: seconds that a connection may take to be made.
        pace: of what is sent.
        looks: what who waits for a stamped message does before it sleeps.
    """
    return Endpoint(TcpMedium(rank, listeners, book, token, timeout, pace, looks))


class TcpMedium(Medium):
    """Arguments as for :func:`tcp_transport`. All state is under ``_lock``."""

    name = "tcp"
    max_group = (1 << 31) - 1
    stamps = True
    takes_notes = True

    def __init__(
        self,
        rank: int,
        listeners: Sequence[Listener],
        book: Sequence[Sequence[tuple[str, int]]],
        token: bytes,
        timeout: float,
        pace: Pace,
        looks: Looks,
    ) -> None:
        super().__init__()
        self.rank = rank
        self.size = len(book)
        self.rails = len(listeners)
        self._listeners = {listener.fileno(): (rail, listener) for rail, listener in enumerate(listeners)}
        self._own = [listener.address for listener in listeners]
        self._book = book
        self._token = token
        self._timeout = timeout
        self._pace = pace
        self._looks = looks.times
        self._yields = looks.yields
        self._lock = Lock()
        self._news = Condition(self._lock)
        self._sleepers = 0
        self._driving = False
        self._closed = False
        self._outgoing: dict[tuple[int, int], Outgoing] = {}  # by peer and rail
        self._links: dict[int, Outgoing | Incoming] = {}  # by descriptor
        self._connecting: set[Outgoing] = set()
        self._pairs: dict[tuple[int, int], Outgoing] = {}  # for stamped messages, by peer and rail
        self._unmade: dict[tuple[int, int], list[tuple[memoryview, Rest]]] = {}  # what waits for such a connection
        self._matching = Matching()
        self._lost: dict[int, str] = {}  # peers that are gone, and why
        self._epoll = select.epoll()
        self._alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._alarm, select.EPOLLIN)
        for number in self._listeners:
            self._epoll.register(number, select.EPOLLIN)
        _media.add(self)

    # Messages begin

    def begin(self, message: Message) -> None:
        with self._lock:
            if not message.is_send:
                self._begin_receive(message)
            elif message.peer == self.rank:
                if self._matching.from_self(message):
                    self._tell()
            else:
                link = self._link(message.peer, message.rail, message)
                first = link.idle
                link.queue(message)
                if first:
                    self._push(link)
        if self.errands:
            self.run_errands()

    def _begin_receive(self, message: Message) -> None:
        if self._matching.claim(message):
            return
        if message.peer == ANY_SOURCE:
            if self._lost and (why := self._nobody_left(message)):
                raise TransportError(f"{message.endpoint}: cannot {message}: {why}")
        elif message.peer != self.rank and not (message.peer in self._lost and self._coming(message.peer)):
            self._link(message.peer, message.rail, message)  # whose end tells of the peer's
        self._matching.post(message)

    def _link(self, peer: int, rail: int, message: Message) -> Outgoing:
        """The connection on which this rank sends to ``peer``; begins to make it if there is none."""
        if peer in self._lost:
            raise TransportError(f"{message.endpoint}: cannot {message}: {self._lost[peer]}")
        if self._closed:
            raise TransportError(f"{message.endpoint}: cannot {message}: the transport is closed")
        link = self._outgoing.get((peer, rail))
        if link is None:
            link = self._outgoing[peer, rail] = self._connect(peer, rail, message)
            self._links[link.fileno()] = link
        return link

    def _connect(self, peer: int, rail: int, message: Message, both: bool = False) -> Outgoing:
        where = self._book[peer][rail]
        try:
            link = Outgoing.connect(peer, where, self._own[rail], self._token, self.rank, rail, self._pace(peer, rail), both)
        except OSError as error:
            raise TransportError(f"{message.endpoint}: cannot {message}: no connection to {_place(where)}: {error}") from error
        self._connecting.add(link)
        self._epoll.register(link.fileno(), select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP)
        return link

    # Stamped messages

    def outlet(self, endpoint: Endpoint, peer: int, tag: int, rail: int) -> Put:
        pairs, lost, lock, key = self._pairs, self._lost, self._lock, (peer, rail)

        def put(data: npt.NDArray[Any], stamp: int) -> Request | None:
            with lock:
                link = pairs.get(key)
                if link is not None and link.open and peer not in lost and not self._closed:
                    try:
                        rest = link.put(tag, data, stamp)
                    except OSError as error:
                        self._lose(peer, _closed(f" ({error.strerror or error})"))
                    else:
                        if rest is None:
                            return None
                        message = Rest(endpoint, True, peer, tag, data.view(np.uint8), rail)
                        link.put_behind(rest, message)
                        self._push(link)
                        return message
                return self._put_later(Rest(endpoint, True, peer, tag, data.view(np.uint8), rail), whole(tag, data, stamp))

        return put

    def _put_later(self, message: Rest, rest: memoryview) -> Request:
        """Sends a stamped message when its connection is made and free."""
        key = message.peer, message.rail
        self._pair(*key, message)
        link = self._pairs.get(key)
        if link is None:
            self._unmade.setdefault(key, []).append((rest, message))
        else:
            link.put_behind(rest, message)
            self._push(link)
        return message

    def _pair(self, peer: int, rail: int, message: Message) -> None:
        """Sees to it that there will be a connection for stamped messages: that the lower rank makes it, and the higher one hears of the
        other's end until it has. Raises TransportError."""
        self._link(peer, rail, message)
        if self.rank < peer and (peer, rail) not in self._pairs:
            going = self._pairs[peer, rail] = self._connect(peer, rail, message, both=True)
            self._links[going.fileno()] = Incoming.beside(going)

    def inbox(self, peer: int, tag: int, rail: int) -> Inbox:
        return self._matching.inboxes[peer, rail, tag]

    def fill(self, endpoint: Endpoint, inbox: Inbox, peer: int, rail: int, timeout: float) -> None:
        end = 0.0
        left = timeout
        while not inbox:
            with self._lock:
                if inbox:
                    return
                if self._closed or (peer, rail) not in self._pairs or peer in self._lost:
                    self._look_for(endpoint, peer, rail)
                drive = not self._driving
                if drive:
                    self._driving = True
                else:
                    self._sleepers += 1
                    self._news.wait(left)
                    self._sleepers -= 1
            if drive:
                self._drive(left, self._looks)
                if inbox:
                    return
            now = time.monotonic()
            end = end or now + timeout
            left = end - now
            if left <= 0:
                return

    def _look_for(self, endpoint: Endpoint, peer: int, rail: int) -> None:
        """Raises TransportError when nothing can come from ``peer``."""
        if self._closed or not (peer in self._lost and self._coming(peer)):
            self._pair(peer, rail, Rest(endpoint, False, peer, 0, _NOTHING, rail))

    def forget_stamped(self, group: int) -> None:
        with self._lock:
            self._matching.forget_stamped(lambda tag: tag >> TAG_BITS == group)

    # Connections

    def _push(self, link: Outgoing) -> None:
        """Sends what can be sent at once."""
        try:
            done, blocked = link.push()
        except OSError as error:
            self._lose(link.peer, _closed(f" ({error.strerror or error})"))
            return
        for message in done:
            message.finish()
        if blocked != link.armed:
            link.armed = blocked
            events = select.EPOLLIN | select.EPOLLRDHUP | (select.EPOLLOUT if blocked else 0)
            self._epoll.modify(link.fileno(), events)

    def _serve(self, number: int, events: int) -> None:
        if number == self._alarm:
            os.eventfd_read(self._alarm)
            return
        if number in self._listeners:
            self._accept_links(*self._listeners[number])
            return
        link = self._links.get(number)
        if isinstance(link, Incoming):
            going = link.going
            if going is not None and events & select.EPOLLOUT and (going not in self._connecting or self._made(going)):
                self._push(going)
            if events & ~select.EPOLLOUT:
                self._pull(link)
        elif link is not None:
            self._serve_outgoing(link, events)

    def _accept_links(self, rail: int, listener: Listener) -> None:
        for link in listener.accept(rail, self._token, self.size):
            self._links[link.fileno()] = link
            self._epoll.register(link.fileno(), select.EPOLLIN | select.EPOLLRDHUP)
            self._pull(link)

    def _pull(self, link: Incoming) -> None:
        try:
            link.pull(self._matching)
        except PeerLost as lost:
            self._drop(link)
            if link.source != ANY_SOURCE:
                self._lose(link.source, _closed(str(lost)), link.going)
            return
        if link.asks and link.source not in self._lost:
            self._answer(link)

    def _answer(self, link: Incoming) -> None:
        """A lower rank has made the connection for stamped messages."""
        key = link.source, link.rail
        going = self._pairs[key] = link.answer(self._pace(*key))
        for rest, message in self._unmade.pop(key, ()):
            going.put_behind(rest, message)
        self._push(going)

    def _serve_outgoing(self, link: Outgoing, events: int) -> None:
        if link in self._connecting:
            if not self._made(link):
                return
        elif events & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
            self._lose(link.peer, _closed())
            return
        self._push(link)

    def _made(self, link: Outgoing) -> bool:
        """Whether a connection that this rank has begun to make is made."""
        problem = link.connected()
        if problem:
            where = f"no connection to {_place(self._book[link.peer][link.rail])}: {os.strerror(problem)}"
            self._lose(link.peer, _closed(f" ({where})") if problem in _ENDED else where)
            return False
        self._connecting.discard(link)
        return True

    def _drop(self, link: Outgoing | Incoming) -> None:
        number = link.fileno()
        if self._links.pop(number, None) is not None:
            self._epoll.unregister(number)
            link.close()

    def _lose(self, peer: int, why: str, ended: Outgoing | None = None) -> None:
        """After the end of a peer: its connections are closed and what is open with it fails. ``ended`` went over one that is closed."""
        self._lost.setdefault(peer, why)
        stranded: list[Message] = [] if ended is None else ended.unsent()
        for key in [key for key in self._unmade if key[0] == peer]:
            stranded += [message for _, message in self._unmade.pop(key)]
        for link in list(self._links.values()):
            going = link if isinstance(link, Outgoing) else link.going
            if going is not None and going.peer == peer:
                stranded += going.unsent()
                if isinstance(link, Incoming) and going not in self._connecting:
                    link.going = None
                    continue
                self._connecting.discard(going)
                self._drop(link)
        # What the peer has sent before its end is still read, up to the end of each connection.
        for rail, listener in self._listeners.values():
            self._accept_links(rail, listener)
        for link in self._coming(ANY_SOURCE):  # they may be its own, and say so only now
            self._pull(link)
        coming = self._coming(peer)
        if not coming:
            stranded += self._matching.withdraw(lambda m: m.peer == peer or (m.peer == ANY_SOURCE and self._nobody_left(m) != ""))
        for link in coming:
            self._pull(link)
        for message in stranded:
            why = self._nobody_left(message) if message.peer == ANY_SOURCE else self._lost[peer]
            message.finish(TransportError(f"{message.endpoint}: {message} failed: {why}"))

    def _coming(self, peer: int) -> list[Incoming]:
        """The connections on which ``peer`` sends that have not ended."""
        return [link for link in self._links.values() if isinstance(link, Incoming) and link.source == peer]

    def _nobody_left(self, message: Message) -> str:
        """Why nobody can send to a receive from any source; empty when somebody can."""
        others = [rank for rank in message.endpoint.members if rank != self.rank]
        if others and all(rank in self._lost for rank in others):
            return f"all other ranks have died or have closed their transports ({self._lost[others[0]]})"
        return ""

    # Waiting

    def progress(self, requests: Sequence[Request], timeout: float) -> None:
        deadline = time.monotonic() + timeout if timeout > 0 else 0.0
        left = timeout if requests else 0.0
        while True:
            for request in requests:
                if request.done:
                    return
            with self._lock:
                if self._closed or any(request.done for request in requests):
                    return
                drive = not self._driving
                if drive:
                    self._driving = True
                elif left <= 0:
                    return
                else:
                    self._sleepers += 1
                    self._news.wait(left)
                    self._sleepers -= 1
            if drive:
                self._drive(left)
            if left <= 0:
                return
            left = deadline - time.monotonic()
            if left <= 0:
                return

    def _drive(self, left: float, looks: int = 0) -> None:
        """Serves the connections on which something happens within ``left`` seconds; looks ``looks`` times before it sleeps."""
        events: list[tuple[int, int]] = []
        try:
            poll, yields = self._epoll.poll, self._yields
            for _ in range(looks):
                events = poll(0)
                if events:
                    break
                if yields:
                    os.sched_yield()
            else:
                events = self._sleep(left)
        finally:
            with self._lock:
                self._driving = False
                if not self._closed:
                    for number, what in events:
                        link = self._links.get(number)
                        if what == select.EPOLLIN and isinstance(link, Incoming):
                            self._pull(link)
                        else:
                            self._serve(number, what)
                    if self._connecting:
                        self._check_connecting()
                if self._sleepers:
                    self._news.notify_all()
        if self.errands:
            self.run_errands()

    def wake(self) -> None:
        with self._lock:
            self._tell()

    def _sleep(self, left: float) -> list[tuple[int, int]]:
        if 0 < left < _COARSE and self._epoll.fileno() < 1024:
            select.select([self._epoll.fileno()], [], [], left)
            left = 0
        return self._epoll.poll(min(left, _CONNECT_CHECK) if self._connecting else left)

    def _check_connecting(self) -> None:
        now = time.monotonic()
        for link in [link for link in self._connecting if now - link.since > self._timeout]:
            where = _place(self._book[link.peer][link.rail])
            self._lose(link.peer, f"no connection to {where} within {self._timeout:g} s")

    def _tell(self) -> None:
        """Something was done outside the driver."""
        if self._driving:
            os.eventfd_write(self._alarm, 1)
        if self._sleepers:
            self._news.notify_all()

    # The end

    def abandon(self, messages: Sequence[Message]) -> None:
        gone = set(messages)
        if not gone:
            return
        with self._lock:
            self._matching.withdraw(gone.__contains__)
            self._matching.drop_from_self(gone)
            for link in self._links.values():
                link.abandon(gone)
            self._tell()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._tell()
            self._matching = Matching()
        end = time.monotonic() + 1.0
        while self._driving and time.monotonic() < end:  # it still sleeps in epoll, but was told
            time.sleep(1e-4)
        self.forget()

    def forget(self) -> None:
        """Closes the descriptors of this process, which says nothing to peers as long as another process holds them, too."""
        _media.discard(self)
        for link in self._links.values():
            link.close()
        for _, listener in self._listeners.values():
            listener.close()
        self._links.clear()
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._alarm)


def _closed(why: str = "") -> str:
    return f"the connection was closed: the peer has died or has closed its transport{why}"


def _place(where: tuple[str, int]) -> str:
    return f"[{where[0]}]:{where[1]}" if ":" in where[0] else f"{where[0]}:{where[1]}"


_media: weakref.WeakSet[TcpMedium] = weakref.WeakSet()


def _after_fork() -> None:
    """A child must not keep its parent's connections open beyond the parent's end."""
    for medium in list(_media):
        medium.forget()


os.register_at_fork(after_in_child=_after_fork)
