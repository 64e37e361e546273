"""Gloo point-to-point: the send and recv of a ``torch.distributed.ProcessGroupGloo`` of our own.

Such a send or receive cannot be polled: it says that it is complete only to a thread that waits for it, and a wait that times out
closes the connections. Handing a message to a waiting thread and back costs several times what the message does. So:

* A message of up to :data:`SMALL` bytes is sent from a copy with one byte more, which is set, and the send is done at once. It is
  received into a copy whose last byte is not; when that byte changes the wait will be over in no time, and is made.
* Longer messages, and short ones that have not come for a while, are waited for by threads, without the interpreter's lock: one
  for each stream (direction, peer, tag). Messages of a stream end in order, so no wait holds up the news of another.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from topoccl.collectives.errors import ConfigError, TransportError
from topoccl.collectives.transports.base import ANY_SOURCE, TAG_BITS, Bytes, Endpoint, Medium, Message, Request, Transport
from topoccl.collectives.transports.mailbox import Mailbox, transfer
from topoccl.collectives.transports.tag_gate import TagGate
from topoccl.collectives.transports.waiters import Waiters
from topoccl.collectives.transports.waiting import Patience

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store, Work

SMALL = 128 * 1024  # bytes
_MAX_COPIES = 8 * 1024 * 1024  # bytes of small sends to one peer that Gloo may still hold when the next one is done at once
_POLL_SECONDS = 5e-3  # seconds without a message after which threads wait for small ones, too
_UNCONFIRMED = 32  # small sends to one peer, after which a thread looks whether Gloo is done with their copies
_MAX_GROUP = (1 << (31 - TAG_BITS)) - 2  # Gloo's tags have 31 bits; the last group is ours
_OWN_TAG = (_MAX_GROUP + 1) << TAG_BITS
_CONFIRM = -1  # in the place of a tag: the stream that looks after small sends
_GRACE = 10.0  # seconds that Gloo waits longer than callers, whose errors say more
_CLOSE_SECONDS = 2.0


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
    return Endpoint(_GlooMedium(import_torch_distributed(), store, rank, size, timeout, address))


class _Open:
    """A message that Gloo carries."""

    __slots__ = ("copy", "flag", "message", "tensor", "work")

    def __init__(self, message: Message, tensor: torch.Tensor, work: Work, copy: Bytes | None = None) -> None:
        self.message = message
        self.tensor = tensor  # keeps alive what Gloo uses
        self.work = work
        self.copy = copy  # of a small receive; else None: Gloo uses the caller's bytes
        self.flag: Any = None if copy is None else copy.data


_groups: weakref.WeakKeyDictionary[_GlooMedium, tuple[Any, Store]] = weakref.WeakKeyDictionary()


def _after_fork() -> None:
    """A child has not got Gloo's threads, for which the end of these objects would wait for ever: they get no end."""
    for held in _groups.values():
        for thing in held:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


os.register_at_fork(after_in_child=_after_fork)


class _GlooMedium(Medium):
    """All state is under ``_lock``, so that Gloo is given messages in the order in which they are begun."""

    name = "gloo"
    max_group = _MAX_GROUP

    def __init__(self, dist: Any, store: Store, rank: int, size: int, timeout: float, address: str) -> None:
        import torch

        self.rank = rank
        self.size = size
        self._from_numpy = torch.from_numpy
        self._timeout = timeout
        self._lock = threading.Lock()
        self._arrival = threading.Condition()
        self._sleepers = 0
        self._gate = TagGate()
        self._self = Mailbox()
        self._polled: list[_Open] = []  # small receives
        self._patience = Patience()  # for these
        self._unconfirmed: dict[int, list[tuple[Work, Bytes]]] = {}  # small sends by peer
        self._copied: dict[int, int] = {}  # bytes of these by peer, also of those that a thread is waiting for
        self._waiters = Waiters("topoccl-gloo")
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
        _groups[self] = (self._group, self._store)

    def begin(self, message: Message) -> None:
        if message.peer == self.rank or message.peer == ANY_SOURCE:
            pair = self._self.add(message, keep=message.peer == self.rank)
            if pair is not None:
                error = transfer(*pair)
                for part in pair:
                    self._finish(part, error, self.rank)
            if pair is not None or message.peer == self.rank:
                return
        with self._lock:
            if message.is_send or self._gate.admit(message):
                self._start(message)

    def _start(self, message: Message) -> None:
        try:
            if message.is_send:
                self._start_send(message)
            else:
                self._start_receive(message)
        except RuntimeError as exc:
            self._ended(message, exc, ANY_SOURCE)

    def _start_send(self, message: Message) -> None:
        if message.nbytes > SMALL:
            tensor = self._from_numpy(_writable(message.data))
            self._hand_over(_Open(message, tensor, self._group.send([tensor], message.peer, message.tag)))
            return
        copy = np.empty(message.nbytes + 1, np.uint8)
        copy[:-1] = message.data
        copy[-1] = 1
        peer = message.peer
        tensor = self._from_numpy(copy)
        work = self._group.send([tensor], peer, message.tag)
        copied = self._copied.get(peer, 0) + len(copy)
        if copied > _MAX_COPIES:  # the peer is far behind: this one is done when it is sent
            self._hand_over(_Open(message, tensor, work))
            return
        self._copied[peer] = copied
        self._ended(message, None, ANY_SOURCE)
        sent = self._unconfirmed.setdefault(peer, [])
        sent.append((work, copy))
        if len(sent) >= _UNCONFIRMED:
            self._confirm(peer)

    def _start_receive(self, message: Message) -> None:
        copy = None
        data = message.data
        if message.nbytes <= SMALL:
            copy = data = np.empty(message.nbytes + 1, np.uint8)
            copy[-1] = 0
        tensor = self._from_numpy(data)
        if message.peer == ANY_SOURCE:
            work = self._group.recv_anysource([tensor], message.tag)
        else:
            work = self._group.recv([tensor], message.peer, message.tag)
        item = _Open(message, tensor, work, copy)
        if copy is None:
            self._hand_over(item)
        else:
            self._polled.append(item)
            self._patience.renew()
            if self._sleepers:
                with self._arrival:
                    self._arrival.notify_all()

    def _hand_over(self, item: _Open) -> None:
        message = item.message
        self._waiters.add((message.is_send, message.peer, message.tag), partial(self._wait, item))

    def _wait(self, item: _Open) -> None:
        exc, source = _outcome(item)
        with self._lock:
            self._complete(item, exc, source)

    def _complete(self, item: _Open, exc: RuntimeError | None, source: int) -> None:
        message = item.message
        if item.copy is not None and exc is None:
            if not item.flag[-1]:
                exc = RuntimeError("met a shorter message")
            elif not message.done:  # its group may have been closed
                message.data[:] = item.copy[:-1]
        self._ended(message, exc, source)

    def _confirm(self, peer: int) -> None:
        """Has the copies of small sends dropped when Gloo is done with them."""
        self._waiters.add((True, peer, _CONFIRM), partial(self._wait_for_copies, peer, self._unconfirmed.pop(peer)))

    def _wait_for_copies(self, peer: int, sent: list[tuple[Work, Bytes]]) -> None:
        for work, _ in sent:
            with contextlib.suppress(RuntimeError):  # the next message with this peer fails, too
                work.wait()
        with self._lock:
            self._copied[peer] -= sum(len(copy) for _, copy in sent)

    def _ended(self, message: Message, exc: BaseException | None, source: int) -> None:
        self._finish(message, None if exc is None else self._error(message, exc), source)
        if not message.is_send:
            for waiting in self._gate.ended(message):
                self._start(waiting)

    def _finish(self, message: Message, error: BaseException | None, source: int) -> None:
        message.finish(error, source)
        if self._sleepers:
            with self._arrival:
                self._arrival.notify_all()

    def _error(self, message: Message, exc: BaseException) -> TransportError:
        text = _reason(exc)
        if "Timed out" in text:
            text = f"nothing came within {self._timeout + _GRACE:g} s"
        elif "closed by peer" in text or "reset by peer" in text or "Broken pipe" in text:
            text = f"the connection was closed: the peer has died or has closed its transport ({text})"
        return TransportError(f"{message.endpoint}: {message} failed: {text}")

    def _poll(self) -> bool:
        """Looks once at the small receives; whether one was complete."""
        with self._lock:
            polled = self._polled
            ready = [item for item in polled if item.flag[-1]]
            if ready:
                # Not by their flags again: more may have changed by now.
                gone = set(ready)
                self._polled = [item for item in polled if item not in gone] if len(ready) < len(polled) else []
                self._patience.renew()
                for item in ready:
                    self._complete(item, *_outcome(item))
            elif polled and time.monotonic() - self._patience.since > _POLL_SECONDS:
                self._polled = []
                for item in polled:
                    self._hand_over(item)
            return bool(ready)

    def progress(self, requests: Sequence[Request], timeout: float) -> None:
        def sleep(seconds: float) -> None:
            with self._arrival:
                self._sleepers += 1
                if not any(request.done for request in requests):
                    self._arrival.wait(seconds)
                self._sleepers -= 1

        deadline = None
        while True:
            arrived = bool(self._polled) and self._poll()
            for request in requests:
                if request.done:
                    return
            if not requests or timeout <= 0:
                return
            now = time.monotonic()
            if deadline is None:
                deadline = now + timeout
            elif now >= deadline:
                return
            if not self._polled:
                sleep(deadline - now)
            elif not arrived:
                self._patience.rest(deadline - now, sleep)

    def abandon(self, messages: Sequence[Message]) -> None:
        # Gloo cannot take back what it was given: works and waiters keep those bytes alive.
        for message in messages:
            self._self.discard(message)
        with self._arrival:
            self._arrival.notify_all()

    def close(self) -> None:
        with self._lock:
            for peer in list(self._unconfirmed):
                self._confirm(peer)
            open_receives, self._polled = self._polled, []
        # What was said to be sent is given time to leave, before connections close.
        self._waiters.settle(_CLOSE_SECONDS, lambda stream: stream[2] == _CONFIRM)
        if self._waiters.busy:
            self._close_connections()
            self._waiters.settle(_CLOSE_SECONDS, lambda stream: stream[1] != ANY_SOURCE)
        self._waiters.stop(_CLOSE_SECONDS)
        open_receives.clear()
        _groups.pop(self, None)
        del self._group, self._store

    def _close_connections(self) -> None:
        """Ends the waiters' waits, save for messages from any source: a wait that times out closes all connections of this rank,
        and nothing else does."""
        for peer in range(self.size):
            if peer == self.rank:
                continue
            try:
                self._group.recv([self._from_numpy(np.empty(1, np.uint8))], peer, _OWN_TAG).wait(timedelta(milliseconds=1))
            except RuntimeError as exc:
                if "Timed out" in str(exc):
                    return  # any other error: this connection was closed before, which closes no other


def _outcome(item: _Open) -> tuple[RuntimeError | None, int]:
    """Waits for the end of a message: its error and its source."""
    try:
        item.work.wait()
        return None, item.work._source_rank() if item.message.peer == ANY_SOURCE else ANY_SOURCE
    except RuntimeError as exc:
        return exc, ANY_SOURCE


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
