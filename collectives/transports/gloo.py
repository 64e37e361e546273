"""Gloo point-to-point: the send and recv of a ``torch.distributed.ProcessGroupGloo`` of our own.

Such a send or receive cannot be polled: it says that it is complete only to a thread that waits for it, and a wait that times out
closes the connections. So threads of our own wait, without the interpreter's lock: one for each stream (direction, peer, tag) that
has messages open. Messages of a stream end in order, so no wait holds up the news of another.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from topoccl.collectives.errors import ConfigError, TransportError
from topoccl.collectives.transports.base import ANY_SOURCE, TAG_BITS, Bytes, Endpoint, Medium, Message, Request, Transport
from topoccl.collectives.transports.mailbox import Mailbox, transfer

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store, Work

_MAX_GROUP = (1 << (31 - TAG_BITS)) - 2  # Gloo's tags have 31 bits; the last group is ours
_OWN_TAG = (_MAX_GROUP + 1) << TAG_BITS
_GRACE = 10.0  # seconds that Gloo waits longer than callers, whose errors say more
_CLOSE_SECONDS = 5.0


def import_torch_distributed() -> Any:
    """``torch.distributed`` with Gloo; :class:`ConfigError` when it cannot be had."""
    try:
        import torch.distributed as dist
    except ImportError as exc:
        raise ConfigError(f"transport gloo: torch cannot be imported ({exc}); choose another of the transports: mpi, memory") from exc
    if not (dist.is_available() and dist.is_gloo_available()):
        raise ConfigError("transport gloo: this torch was built without Gloo; choose another of the transports: mpi, memory")
    return dist


def gloo_transport(store: Store, rank: int, size: int, timeout: float, address: str) -> Transport:
    """A transport over ``size`` ranks that meet in ``store`` (whose keys are for this transport alone).

    ``timeout`` (s) bounds the set-up and, roughly, the wait for any message. ``address`` is the local IP address that the peers
    can reach.
    """
    endpoint = Endpoint(_GlooMedium(import_torch_distributed(), store, rank, size, timeout, address))
    atexit.register(_close_at_exit, weakref.ref(endpoint))
    return endpoint


def _close_at_exit(ref: weakref.ref[Endpoint]) -> None:
    # Without this about one process in six aborts at exit: the group's threads outlive what they use.
    endpoint = ref()
    if endpoint is not None:
        endpoint.close()


class _Open:
    """A message that Gloo carries: the work to wait for and the tensor over the caller's bytes, kept alive for Gloo."""

    __slots__ = ("message", "tensor", "work")

    def __init__(self, message: Message, tensor: torch.Tensor, work: Work) -> None:
        self.message = message
        self.tensor = tensor
        self.work = work


class _Waiters:
    """Threads that wait for works, one per stream with open messages; started when needed, kept for the next stream."""

    def __init__(self, done: Any) -> None:
        self._done = done  # called with (message, error, source)
        self._changed = threading.Condition()
        self._wake = threading.Semaphore(0)
        self._streams: dict[tuple[bool, int, int], deque[_Open]] = {}
        self._ready: deque[tuple[bool, int, int] | None] = deque()
        self._idle = 0
        self._threads: list[threading.Thread] = []

    def add(self, item: _Open) -> None:
        message = item.message
        key = (message.is_send, message.peer, message.tag)
        with self._changed:
            stream = self._streams.get(key)
            if stream is not None:
                stream.append(item)
                return
            self._streams[key] = deque([item])
            self._ready.append(key)
            if self._idle:
                self._idle -= 1
            else:
                thread = threading.Thread(target=self._run, name=f"topoccl-gloo-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._wake.release()

    @property
    def busy(self) -> bool:
        return bool(self._streams)

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            with self._changed:
                key = self._ready.popleft()
            if key is None:
                return
            stream = self._streams[key]
            more = True
            while more:
                self._wait(stream[0])
                with self._changed:
                    stream.popleft()
                    more = bool(stream)
                    if not more:
                        del self._streams[key]
                        self._idle += 1
                        self._changed.notify_all()

    def _wait(self, item: _Open) -> None:
        error, source = None, ANY_SOURCE
        try:
            item.work.wait()
            if item.message.peer == ANY_SOURCE:
                source = item.work._source_rank()
        except RuntimeError as exc:
            error = exc
        self._done(item.message, error, source)

    def stop(self, seconds: float) -> None:
        """Ends the threads. Those that still wait after ``seconds``, or for a message from any source, which nothing can bring to
        an end, are left behind; they end with the process."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: all(peer == ANY_SOURCE for _, peer, _ in self._streams), seconds)
            stuck = len(self._streams)
            self._ready.extend([None] * len(self._threads))
        for _ in self._threads:
            self._wake.release()
        for thread in self._threads if not stuck else ():
            thread.join(max(0.0, deadline - time.monotonic()))
        self._threads.clear()


class _TagGate:
    """Keeps in order the receives of a tag for which any source and named ones mix, since Gloo gives a message to the named one first:
    a receive from any source starts when no named one with its tag is open, and the other way round."""

    def __init__(self) -> None:
        self._open: dict[int, list[int]] = {}  # by tag: named ones and those from any source that are open
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
        opened = self._open.setdefault(message.tag, [0, 0])
        kind = message.peer == ANY_SOURCE
        if opened[not kind]:
            return False
        opened[kind] += 1
        return True

    def ended(self, message: Message) -> list[Message]:
        """After the end of a receive that was admitted: those that may start now."""
        opened = self._open[message.tag]
        opened[message.peer == ANY_SOURCE] -= 1
        started: list[Message] = []
        waiting = self._waiting.get(message.tag)
        while waiting and (waiting[0].done or self._start(waiting[0])):
            started.append(waiting.popleft())
        if not waiting:
            self._waiting.pop(message.tag, None)
        if not any(opened):
            del self._open[message.tag]
        return [m for m in started if not m.done]


class _GlooMedium(Medium):
    name = "gloo"
    max_group = _MAX_GROUP

    def __init__(self, dist: Any, store: Store, rank: int, size: int, timeout: float, address: str) -> None:
        import torch

        self.rank = rank
        self.size = size
        self._from_numpy = torch.from_numpy
        self._timeout = timeout
        self._arrival = threading.Condition()
        self._begin_lock = threading.Lock()  # Gloo and the waiters are given messages in one order
        self._waiters = _Waiters(self._done)
        self._gate = _TagGate()
        self._self = Mailbox()
        gloo = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timedelta(seconds=timeout + _GRACE)
        options._threads = 1  # for collectives, of which there are none
        options._devices = [gloo.create_device(hostname=address)]
        self._store = store
        try:
            self._group = gloo(store, rank, size, options)
        except RuntimeError as exc:
            raise TransportError(
                f"gloo rank {rank} of {size}: could not connect to its peers from {address} within {timeout:g} s: {_reason(exc)}"
            ) from exc

    def begin(self, message: Message) -> None:
        if message.peer == self.rank or message.peer == ANY_SOURCE:
            pair = self._self.add(message, keep=message.peer == self.rank)
            if pair is not None:
                error = transfer(*pair)
                for part in pair:
                    self._finish(part, error, self.rank)
            if pair is not None or message.peer == self.rank:
                return
        with self._begin_lock:
            if message.is_send or self._gate.admit(message):
                self._start(message)

    def _start(self, message: Message) -> None:
        # A message of no bytes travels as one byte: Gloo cannot receive nothing from any source.
        tensor = self._from_numpy(_writable(message.data) if message.nbytes else np.empty(1, np.uint8))
        try:
            if message.is_send:
                work = self._group.send([tensor], message.peer, message.tag)
            elif message.peer == ANY_SOURCE:
                work = self._group.recv_anysource([tensor], message.tag)
            else:
                work = self._group.recv([tensor], message.peer, message.tag)
        except RuntimeError as exc:
            self._ended(message, exc, ANY_SOURCE)
        else:
            self._waiters.add(_Open(message, tensor, work))

    def _done(self, message: Message, exc: BaseException | None, source: int) -> None:
        with self._begin_lock:
            self._ended(message, exc, source)

    def _ended(self, message: Message, exc: BaseException | None, source: int) -> None:
        self._finish(message, None if exc is None else self._error(message, exc), source)
        if not message.is_send:
            for waiting in self._gate.ended(message):
                self._start(waiting)

    def _finish(self, message: Message, error: BaseException | None, source: int) -> None:
        with self._arrival:
            message.finish(error, source)
            self._arrival.notify_all()

    def _error(self, message: Message, exc: BaseException) -> TransportError:
        text = _reason(exc)
        if "Timed out" in text:
            text = f"nothing came within {self._timeout + _GRACE:g} s"
        elif "closed by peer" in text or "reset by peer" in text or "Broken pipe" in text:
            text = f"the connection was closed: the peer has died or has closed its transport ({text})"
        return TransportError(f"{message.endpoint}: {message} failed: {text}")

    def progress(self, requests: Sequence[Request], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with self._arrival:
            while requests and not any(request.done for request in requests):
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self._arrival.wait(left)

    def abandon(self, messages: Sequence[Message]) -> None:
        # Gloo cannot take back what it was given: the waiters keep those bytes alive.
        for message in messages:
            self._self.discard(message)
        with self._arrival:
            self._arrival.notify_all()

    def close(self) -> None:
        if self._waiters.busy:
            self._close_connections()
        self._waiters.stop(_CLOSE_SECONDS)
        del self._group, self._store

    def _close_connections(self) -> None:
        """Ends the waiters' waits: a wait that times out closes all connections of this rank, and nothing else does."""
        for peer in range(self.size):
            if peer == self.rank:
                continue
            try:
                self._group.recv([self._from_numpy(np.empty(1, np.uint8))], peer, _OWN_TAG).wait(timedelta(milliseconds=1))
            except RuntimeError as exc:
                if "Timed out" in str(exc):
                    return  # any other error: this connection was closed before, which closes no other


def _reason(exc: BaseException) -> str:
    """The part of Gloo's message that says what happened."""
    text = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
    return text.split("] ", 1)[-1].split(". This is typically", 1)[0]


class _Writable:
    """The same bytes, to be taken for writable: torch warns of arrays that are not, though a send only reads."""

    def __init__(self, data: Bytes) -> None:
        interface = dict(data.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self._owner = data


def _writable(data: Bytes) -> Bytes:
    return data if data.flags.writeable else np.asarray(_Writable(data))
