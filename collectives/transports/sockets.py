"""The connections of the TCP transport: frames out of and into sockets that never block."""

from __future__ import annotations

import errno
import hmac
import os
import socket
import struct
import time
from collections import deque
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, NoReturn, TypeVar

from topoccl.collectives.transports.base import ANY_SOURCE
from topoccl.collectives.transports.congestion import IDLE, hold_back, rouse, settle, take

if TYPE_CHECKING:
    from collections.abc import Callable

    from topoccl.collectives.executor.dtypes import Array
    from topoccl.collectives.transports.endpoint import Message
    from topoccl.collectives.transports.matching import Arrival, Matching

T = TypeVar("T")

_HEADER = struct.Struct("<QQQ")  # tag and bytes of a message, and its stamp, 0 for none
_HELLO = struct.Struct("<8s16sII")  # magic, token, rank, rail: the first bytes on a connection
_BOTH = 1 << 31  # with the rail: of a connection on which both ends send
_MAGIC = b"topoccl1"
TOKEN_BYTES = 16
_BUFFER = 64 * 1024  # bytes read ahead of what is known to come
_BATCH = 16  # messages that are handed to the kernel at once
_JOINED = 8 * 1024  # bytes that are sooner copied behind their header than handed over beside it
_BURST = 1 << 20  # bytes after which another connection has its turn
_BACKLOG = 4096
# Each time that somebody is woken costs 50 to 150 us of processor time, and takes the interpreter from those who compute. So of a long
# message so many bytes are let come before, and so many are handed over at once, where the system lets us have such buffers.
_WAKE = 512 * 1024
_UNSENT = 1 << 20  # the kernel doubles it
_LONG = 256 * 1024  # bytes from which a message takes its share of the rate: queues of shorter ones are over before they hold up others
# A host that has vanished without a word is noticed after a minute.
_KEEPALIVE = (
    ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), 30),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPINTVL), 10),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPCNT), 3),
)


class PeerLost(Exception):
    """The other end of a connection is gone; the text, if any, says why."""


class Listener:
    """Takes connections at a local address."""

    def __init__(self, address: str) -> None:
        """Raises OSError."""
        self.address = address
        self._socket = socket.socket(_family(address), socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind((address, 0))
            self._socket.listen(_BACKLOG)
        except OSError:
            self._socket.close()
            raise
        self.port = int(self._socket.getsockname()[1])

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self, rail: int, token: bytes, size: int) -> list[Incoming]:
        found: list[Incoming] = []
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # none left, or one that has gone again
                return found
            found.append(Incoming(connection, rail, token, size))

    def close(self) -> None:
        self._socket.close()


class Outgoing:
    """What leaves on a connection."""

    def __init__(self, peer: int, rail: int, connection: socket.socket, pace: float, hello: bytes) -> None:
        """``hello`` is what this rank says first, as soon as it is connected; without it, it is. ``pace`` is in bytes/s, 0 for no limit."""
        self.peer = peer
        self.rail = rail
        self.since = time.monotonic()
        self.armed = bool(hello)  # whether it is to be told when there is room
        self._ready = not hello
        self._waiting: deque[Message] = deque()  # not begun
        # Bytes that leave next, each with the message that has left after it.
        self._views: deque[tuple[memoryview, Message | None]] = deque()
        if hello:
            self._views.append((memoryview(hello), None))
        self._staged = 0  # bytes of them
        self._pace = pace
        self._share = 1.0  # of that
        self._last = self.since  # when something left
        self.socket = connection

    @classmethod
    def connect(
        cls, peer: int, where: tuple[str, int], own: str, token: bytes, rank: int, rail: int, pace: float, both: bool = False
    ) -> Outgoing:  # fmt: skip
        """Begins to connect; where it is for ``both`` ways, the peer sends as well. Raises OSError."""
        connection = socket.socket(_family(where[0]), socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            _hurry(connection, pace)
            if _most_unsent() >= _UNSENT:  # else the kernel's own choice is better
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNSENT)
            connection.bind((own, 0))
            problem = connection.connect_ex(where)
            if problem not in (0, errno.EINPROGRESS):
                raise OSError(problem, os.strerror(problem))
        except OSError:
            connection.close()
            raise
        return cls(peer, rail, connection, pace, _HELLO.pack(_MAGIC, token, rank, rail | _BOTH if both else rail))

    def fileno(self) -> int:
        return self.socket.fileno()

    def connected(self) -> int:
        """After the end of connecting: the number of the error, 0 for none."""
        problem = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._ready = not problem
        if not problem:
            settle(self.socket)
        return problem

    @property
    def idle(self) -> bool:
        """Nothing waits to leave."""
        return not self._views and not self._waiting

    def queue(self, message: Message) -> None:
        self._waiting.append(message)

    def put(self, tag: int, data: Array, stamp: int) -> memoryview | None:
        """Sends a short message out of turn, which is only right while this is :attr:`open`; returns what there was no room for.
        Raises OSError."""
        nbytes = data.nbytes
        head = _HEADER.pack(tag, nbytes, stamp)
        if nbytes <= _JOINED:
            left = self._hand_over(self.socket.send, head + data.tobytes())
        else:
            left = self._hand_over(self.socket.sendmsg, (head, data.data))
        if left == len(head) + nbytes:
            return None
        return whole(tag, data, stamp)[left:]

    @property
    def open(self) -> bool:
        """Whether what is sent now leaves now."""
        return self._ready and not self._views and not self._waiting

    def put_behind(self, rest: memoryview, message: Message) -> None:
        """Sends ``rest`` after all that waits."""
        while self._waiting:
            self._stage(self._waiting.popleft())
        self._views.append((rest, message))
        self._staged += len(rest)

    def push(self) -> tuple[list[Message], bool]:
        """Sends as much as there is room for: the messages that have left, and whether something is left over. Raises OSError."""
        done: list[Message] = []
        if not self._ready:
            return done, True
        views = self._views
        while True:
            while self._waiting and self._staged < _BURST:
                self._stage(self._waiting.popleft())
            if not views:
                return done, False
            left = self._hand_over(self.socket.sendmsg, [view for view, _ in islice(views, _BATCH)])
            if not left:
                return done, True
            self._staged -= left
            while views and left >= len(views[0][0]):
                view, message = views.popleft()
                left -= len(view)
                if message is not None:
                    done.append(message)
            if left:
                view, message = views[0]
                views[0] = view[left:], message

    def _hand_over(self, send: Callable[[T], int], data: T) -> int:
        """How many bytes of ``data``, which is not empty, the kernel had room for. Raises OSError."""
        before, self._last = self._last, time.monotonic()
        usual = rouse(self.socket) if self._last - before > IDLE else None
        try:
            return send(data)
        except BlockingIOError:
            return 0
        finally:
            if usual:
                take(self.socket, usual)

    def _stage(self, message: Message) -> None:
        if self._pace and message.share:
            share = message.share if message.nbytes >= _LONG else 1.0
            if share != self._share:
                self._share = share
                hold_back(self.socket, self._pace * share)
        head = memoryview(_HEADER.pack(message.tag, message.nbytes, 0))
        self._staged += len(head) + message.nbytes
        if message.nbytes:
            self._views.append((head, None))
            self._views.append((message.data.data, message))
        else:
            self._views.append((head, message))

    def unsent(self) -> list[Message]:
        """The messages that have not left."""
        return [message for _, message in self._views if message is not None] + list(self._waiting)

    def abandon(self, gone: set[Message]) -> None:
        """Forgets messages; of those that have begun to leave the rest follows, out of a copy."""
        self._waiting = deque(message for message in self._waiting if message not in gone)
        for at, (view, message) in enumerate(self._views):
            if message in gone:
                self._views[at] = memoryview(bytes(view)), None

    def close(self) -> None:
        self.socket.close()


def whole(tag: int, data: Array, stamp: int) -> memoryview:
    """A message as it goes over a connection."""
    return memoryview(_HEADER.pack(tag, data.nbytes, stamp) + data.tobytes())


def _hurry(connection: socket.socket, pace: float) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if pace:
        hold_back(connection, pace)


class Incoming:
    """A connection on which a peer sends; ``source`` is known once it has said who it is. ``going`` is what this rank sends on it, None
    where it does not."""

    def __init__(self, connection: socket.socket, rail: int, token: bytes, size: int) -> None:
        self.source = ANY_SOURCE
        self.asks = False  # for an answer
        self.going: Outgoing | None = None
        self.rail = rail
        self._token = token
        self._size = size
        self._socket = connection
        self._socket.setblocking(False)
        for option, value in _KEEPALIVE:
            self._socket.setsockopt(*option, value)
        self._buffer = memoryview(bytearray(_BUFFER))
        self._have = 0  # bytes in the buffer: the beginning of a header, at most, between two calls
        self._arrival: Arrival | None = None
        self._wake = 1  # bytes that have to be there before somebody is woken
        self._wide = False

    def fileno(self) -> int:
        return self._socket.fileno()

    @classmethod
    def beside(cls, going: Outgoing) -> Incoming:
        """What the peer sends on a connection for both ways that this rank makes."""
        coming = cls(going.socket, going.rail, b"", 0)
        coming.source, coming.going = going.peer, going
        return coming

    def answer(self, pace: float) -> Outgoing:
        """What this rank sends on a connection for both ways that the peer has made; ``pace`` in bytes/s, 0 for no limit."""
        _hurry(self._socket, pace)
        settle(self._socket)
        self.asks = False
        self.going = Outgoing(self.source, self.rail, self._socket, pace, b"")
        return self.going

    def pull(self, matching: Matching) -> None:
        """Takes what has come, up to a fair share. Raises PeerLost."""
        self._take(matching)
        arrival = self._arrival
        if arrival is None and self._wake == 1:
            return
        wake = 1 if arrival is None else max(1, min(arrival.nbytes - arrival.at, _WAKE))  # never more than is sure to come
        if wake != self._wake:
            self._wake = wake
            if wake == _WAKE and not self._wide:  # the kernel makes room for this, so that data come on while the first are awaited
                self._wide = True
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2 * wake)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake)

    def _take(self, matching: Matching) -> None:
        taken = 0
        while taken < _BURST:
            arrival, buffer = self._arrival, self._buffer[self._have :] if self._have else self._buffer
            straight = 0
            try:
                if arrival is None or arrival.into is None:
                    count = self._socket.recv_into(buffer)
                else:
                    rest = arrival.into[arrival.at :]
                    straight = len(rest)
                    count = self._socket.recvmsg_into([rest, buffer])[0]
            except BlockingIOError:
                return
            except OSError as error:
                self._lost(matching, f" ({error.strerror or error})")
            if not count:
                self._lost(matching, "")
            short = count < straight + len(buffer)
            taken += count
            if arrival is not None and straight:
                direct = min(count, straight)
                arrival.at += direct
                count -= direct
                if arrival.at == arrival.nbytes:
                    self._arrival = None
                    matching.complete(arrival)
            self._have += count
            self._parse(matching)
            if short:
                return  # it was all that there is, for now

    def _lost(self, matching: Matching, why: str) -> NoReturn:
        if self._arrival is not None:
            matching.cut(self._arrival)
            self._arrival = None
        raise PeerLost(why)

    def _parse(self, matching: Matching) -> None:
        """Takes messages out of the buffer."""
        buffer, have, at = self._buffer, self._have, 0
        if self.source == ANY_SOURCE:
            if have < _HELLO.size:
                return
            self._meet(buffer)
            at = _HELLO.size
        while at < have:
            arrival = self._arrival
            if arrival is None:
                if have - at < _HEADER.size:
                    break
                tag, nbytes, stamp = _HEADER.unpack_from(buffer, at)
                at += _HEADER.size
                if stamp and nbytes <= have - at:
                    matching.keep(self.source, self.rail, tag, stamp, bytearray(buffer[at : at + nbytes]))
                    at += nbytes
                    continue
                arrival = self._arrival = matching.starts(self.source, self.rail, tag, nbytes, stamp)
            count = min(have - at, arrival.nbytes - arrival.at)
            if count:
                if arrival.into is not None:
                    arrival.into[arrival.at : arrival.at + count] = buffer[at : at + count]
                arrival.at += count
                at += count
            if arrival.at == arrival.nbytes:
                self._arrival = None
                matching.complete(arrival)
        if at == have:
            self._have = 0
        elif at:
            buffer[: have - at] = bytes(buffer[at:have])
            self._have = have - at

    def _meet(self, buffer: memoryview) -> None:
        magic, token, rank, rail = _HELLO.unpack_from(buffer)
        self.asks, rail = bool(rail & _BOTH), rail & ~_BOTH
        if magic != _MAGIC or not hmac.compare_digest(token, self._token) or rank >= self._size or rail != self.rail:
            raise PeerLost(" (it is none of this job's)")
        self.source = rank

    def abandon(self, gone: set[Message]) -> None:
        """What comes for receives that are abandoned is thrown away."""
        if self._arrival is not None and self._arrival.receive in gone:
            self._arrival.into = None

    def close(self) -> None:
        self._socket.close()


@cache
def _most_unsent() -> int:
    """Bytes of a send buffer that a process may ask for."""
    try:
        with open("/proc/sys/net/core/wmem_max") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
