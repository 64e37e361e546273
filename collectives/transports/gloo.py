"""Gloo point-to-point: the send and recv of a ``torch.distributed.ProcessGroupGloo`` of our own.

Such a send or receive cannot be polled: it says that it is complete only to a thread that waits for it, and a wait that times out
closes the connections. Handing a message to a waiting thread and back costs several times what the message does. And a message that
is longer than its receive ends the process, in a thread of Gloo's. So:

* A message of up to :data:`SMALL` bytes is sent as a frame: a copy with its length ahead and one byte more behind, which is set, and
  the send is done at once. It is received into a buffer as large as any frame, in which the byte where that one belongs is not; when
  it changes the wait will be over in no time, and is made.
* Of a longer message the frame holds the bytes that are left over when the rest is cut into pieces of a few fixed sizes
  (:data:`PIECES`). The tag of a piece tells its size, so no piece meets a receive of another length, and the frame tells when the
  message is not what was expected.
* Pieces, and frames that have not come for a while though someone waits for them, are waited for by threads, without the
  interpreter's lock: one for each stream (direction, peer, tag). Messages of a stream end in order, so no wait holds up the news of
  another.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from topoccl.collectives.errors import ConfigError, TransportError
from topoccl.collectives.transports.base import ANY_SOURCE, CONTROL_TAG, OWN_BITS, TAG_BITS, Bytes, Request, Transport
from topoccl.collectives.transports.endpoint import Endpoint, Medium, Message
from topoccl.collectives.transports.mailbox import Mailbox, transfer
from topoccl.collectives.transports.tag_gate import TagGate
from topoccl.collectives.transports.waiters import Waiters
from topoccl.collectives.transports.waiting import Arrivals

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store, Work

SMALL = 128 * 1024  # bytes
PIECES = (64 * SMALL, 8 * SMALL, SMALL)  # bytes
_HEAD = 8  # bytes of a frame ahead of the message's, its length
_FRAME = _HEAD + SMALL + 1
_MAX_COPIES = 8 * 1024 * 1024  # bytes of small sends to one peer that Gloo may still hold when the next one is done at once
_POLL_SECONDS = 5e-3  # seconds without a message after which threads wait for small ones, too
_CONTROL_SECONDS = 1.0  # ... for the messages of :data:`CONTROL_TAG`, beside which others are under way
_UNCONFIRMED = 32  # small sends to one peer, after which a thread looks whether Gloo is done with their copies
_PIECE_SHIFT = 29  # Gloo's tags have 31 bits: the highest two tell a frame from the sizes of pieces
_MAX_GROUP = (1 << (_PIECE_SHIFT - TAG_BITS)) - 2  # the last group is ours
_BUFFERS = 16  # for frames, that are kept
_OWN_TAG = (_MAX_GROUP + 1) << TAG_BITS
_CONFIRM = -1  # in the place of a tag: the stream that looks after small sends
_NEVER = timedelta(days=3650)  # callers have timeouts of their own, and Gloo's would close connections that others use
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

    ``timeout`` (s) bounds the set-up; messages are waited for as long as callers say. ``address`` is the local IP address that the
    peers can reach.
    """
    return Endpoint(GlooMedium(store, rank, size, timeout, address))


class _Transfer:
    """A message on its way; ``left`` of its parts are not complete."""

    __slots__ = ("ended", "left", "message", "source")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.left = 0
        self.source = ANY_SOURCE
        self.ended = False


class _Part:
    """A frame or a piece that Gloo carries. ``buffer`` is that of a frame to be received, else None."""

    __slots__ = ("buffer", "flag", "tensor", "transfer", "work")

    def __init__(self, transfer: _Transfer, tensor: torch.Tensor, work: Work, buffer: _Buffer | None = None) -> None:
        self.transfer = transfer
        self.tensor = tensor  # keeps alive what Gloo uses
        self.work = work
        self.buffer = buffer
        self.flag = 0 if buffer is None else _HEAD + _frame_bytes(transfer.message.nbytes)


class _Buffer:
    """Memory for any frame, used again."""

    __slots__ = ("array", "tensor", "view")

    def __init__(self, from_numpy: Callable[[Bytes], torch.Tensor]) -> None:
        self.array: Bytes = np.empty(_FRAME, np.uint8)
        self.view = self.array.data
        self.tensor = from_numpy(self.array)


def _frame_bytes(nbytes: int) -> int:
    """How many of a message's bytes its frame holds."""
    return nbytes if nbytes <= SMALL else nbytes % SMALL


def _pieces(nbytes: int) -> list[tuple[int, int, int]]:
    """The other ones' pieces: offset, end, and the number by which their tags tell their size."""
    found = []
    at = _frame_bytes(nbytes)
    for number, size in enumerate(PIECES, 1):
        while nbytes - at >= size:
            found.append((at, at + size, number))
            at += size
    return found


_groups: weakref.WeakKeyDictionary[GlooMedium, tuple[Any, Store]] = weakref.WeakKeyDictionary()


def _after_fork() -> None:
    """A child has not got Gloo's threads, for which the end of these objects would wait for ever: they get no end."""
    for held in _groups.values():
        for thing in held:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


os.register_at_fork(after_in_child=_after_fork)


class GlooMedium(Medium):
    """All state is under ``_lock``, so that Gloo is given messages in the order in which they are begun. Arguments as for
    :func:`gloo_transport`; media that are waited for together share their ``arrivals``."""

    name = "gloo"
    max_group = _MAX_GROUP

    def __init__(self, store: Store, rank: int, size: int, timeout: float, address: str, arrivals: Arrivals | None = None) -> None:
        dist = import_torch_distributed()
        import torch

        super().__init__()
        self.rank = rank
        self.size = size
        self._from_numpy = torch.from_numpy
        self._profiler: Any = torch._C._autograd
        self._lock = threading.Lock()
        self._arrivals = Arrivals() if arrivals is None else arrivals
        self._gate = TagGate(SMALL)
        self._self = Mailbox()
        self._polled: list[_Part] = []  # frames to be received
        self._buffers: list[_Buffer] = []  # for them
        self._spoilt: set[tuple[int, int]] = set()  # peers and tags of which receives may be open that nobody wants any more
        self._unconfirmed: dict[int, list[tuple[Work, Bytes]]] = {}  # frames sent, by peer
        self._copied: dict[int, int] = {}  # bytes of these by peer, also of those that a thread is waiting for
        self._waiters = Waiters("topoccl-gloo")
        gloo = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timedelta(seconds=timeout)
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
        # Gloo's own events end with the message, which crashes a profiler that has been stopped by then.
        profiled = self._profiler._profiler_enabled()
        if profiled:
            self._profiler._enable_record_function(False)
        try:
            if message.is_send:
                self._start_send(message)
            else:
                self._start_receive(message)
        except RuntimeError as exc:
            self._ended(message, exc, ANY_SOURCE)
        finally:
            if profiled:
                self._profiler._enable_record_function(True)

    def _start_send(self, message: Message) -> None:
        transfer = _Transfer(message)
        size = _frame_bytes(message.nbytes)
        frame = np.empty(_HEAD + size + 1, np.uint8)
        frame[:_HEAD].view(np.int64)[0] = message.nbytes
        frame[_HEAD:-1] = message.data[:size]
        frame[-1] = 1
        peer = message.peer
        tensor = self._from_numpy(frame)
        work = self._group.send([tensor], peer, message.tag)
        parts = []
        copied = self._copied.get(peer, 0) + len(frame)
        if copied > _MAX_COPIES:  # the peer is far behind: this one is done when it is sent
            parts.append(_Part(transfer, tensor, work))
        else:
            self._copied[peer] = copied
            sent = self._unconfirmed.setdefault(peer, [])
            sent.append((work, frame))
            if len(sent) >= _UNCONFIRMED:
                self._confirm(peer)
        if message.nbytes > SMALL:
            parts += self._send_or_receive_pieces(transfer, peer)
        elif not parts:
            self._ended(message, None, ANY_SOURCE)
            return
        transfer.left = len(parts)
        for part in parts:
            self._hand_over(part)

    def _send_or_receive_pieces(self, transfer: _Transfer, peer: int) -> list[_Part]:
        message = transfer.message
        begin = self._group.send if message.is_send else self._group.recv
        data = _writable(message.data) if message.is_send else message.data
        parts = []
        for lo, hi, number in _pieces(message.nbytes):
            tensor = self._from_numpy(data[lo:hi])
            parts.append(_Part(transfer, tensor, begin([tensor], peer, message.tag | number << _PIECE_SHIFT)))
        return parts

    def _start_receive(self, message: Message) -> None:
        if (message.peer, message.tag) in self._spoilt:
            raise RuntimeError("an earlier message with this tag had another length than expected")
        transfer = _Transfer(message)
        buffer = self._buffers.pop() if self._buffers else _Buffer(self._from_numpy)
        part = _Part(transfer, buffer.tensor, None, buffer)
        buffer.view[part.flag] = 0
        if message.peer == ANY_SOURCE:
            part.work = self._group.recv_anysource([buffer.tensor], message.tag)
        else:
            part.work = self._group.recv([buffer.tensor], message.peer, message.tag)
        transfer.left = 1
        self._polled.append(part)
        self._arrivals.patience.renew()
        if message.nbytes > SMALL and message.peer != ANY_SOURCE:
            self._receive_pieces(transfer, message.peer)
        self._arrivals.tell()

    def _receive_pieces(self, transfer: _Transfer, peer: int) -> None:
        parts = self._send_or_receive_pieces(transfer, peer)
        transfer.left += len(parts)
        for part in parts:
            self._hand_over(part)

    def _hand_over(self, part: _Part) -> None:
        message = part.transfer.message
        kind = 0 if part.buffer is not None or message.nbytes <= SMALL else part.tensor.numel()
        self._waiters.add((message.is_send, message.peer, message.tag, kind), partial(self._wait, part))

    def _wait(self, part: _Part) -> None:
        exc, source = _outcome(part)
        with self._lock:
            self._complete(part, exc, source)

    def _complete(self, part: _Part, exc: BaseException | None, source: int) -> None:
        """After the end of a part: the message's, if it was the last one or has failed."""
        transfer, message = part.transfer, part.transfer.message
        transfer.left -= 1
        if part.buffer is not None and exc is None:
            exc = self._open_frame(part, part.buffer, source)
        if transfer.ended or (transfer.left and exc is None):
            return
        transfer.ended = True
        if exc is not None and not message.is_send and message.nbytes > SMALL:
            # What was begun for this message's pieces may meet another's.
            self._spoilt.add((message.peer if transfer.source == ANY_SOURCE else transfer.source, message.tag))
        self._ended(message, exc, transfer.source)

    def _open_frame(self, part: _Part, buffer: _Buffer, source: int) -> BaseException | None:
        """Takes what has come out of a frame; returns what is wrong with it."""
        transfer, message = part.transfer, part.transfer.message
        transfer.source = source
        length = int.from_bytes(buffer.view[:_HEAD], "little")
        wrong = None
        if length != message.nbytes:
            wrong = RuntimeError(f"met a message of {length} bytes")
        else:
            size = _frame_bytes(length)
            if size and not message.done:  # its group may have been closed
                message.data[:size] = buffer.array[_HEAD : _HEAD + size]
            if length > SMALL and message.peer == ANY_SOURCE:
                self._receive_pieces(transfer, source)
        if len(self._buffers) < _BUFFERS:
            self._buffers.append(buffer)
        return wrong

    def _confirm(self, peer: int) -> None:
        """Has the copies of small sends dropped when Gloo is done with them."""
        self._waiters.add((True, peer, _CONFIRM, 0), partial(self._wait_for_copies, peer, self._unconfirmed.pop(peer)))

    def _wait_for_copies(self, peer: int, sent: list[tuple[Work, Bytes]]) -> None:
        for work, _ in sent:
            with contextlib.suppress(RuntimeError):  # the next message with this peer fails, too
                work.wait(_NEVER)
        with self._lock:
            self._copied[peer] -= sum(len(copy) for _, copy in sent)

    def _ended(self, message: Message, exc: BaseException | None, source: int) -> None:
        self._finish(message, None if exc is None else self._error(message, exc), source)
        if not message.is_send:
            for waiting in self._gate.ended(message):
                self._start(waiting)

    def _finish(self, message: Message, error: BaseException | None, source: int) -> None:
        message.finish(error, source)
        self._arrivals.tell()

    def _error(self, message: Message, exc: BaseException) -> TransportError:
        text = _reason(exc)
        if "closed by peer" in text or "reset by peer" in text or "Broken pipe" in text:
            text = f"the connection was closed: the peer has died or has closed its transport ({text})"
        return TransportError(f"{message.endpoint}: {message} failed: {text}")

    @property
    def polls(self) -> bool:
        """Whether something can only be had by :meth:`poll`."""
        return bool(self._polled)

    def poll(self, requests: Sequence[Request]) -> bool:
        """Looks once at the frames to be received; whether one was complete. Of the others, those that ``requests`` wait for for long
        are given to threads; the rest may stay open for ever, as a wait must not."""
        if not self._polled:
            return False
        patience = self._arrivals.patience
        with self._lock:
            polled = self._polled
            ready = [part for part in polled if part.buffer.view[part.flag]]  # type: ignore[union-attr]
            if ready:
                # Not by their flags again: more may have changed by now.
                gone = set(ready)
                self._polled = [part for part in polled if part not in gone] if len(ready) < len(polled) else []
                patience.renew()
                for part in ready:
                    self._complete(part, *_outcome(part))
            elif requests and polled and (idle := time.monotonic() - patience.since) > _POLL_SECONDS:
                late = [part for part in polled if part.transfer.message in requests]
                if idle < _CONTROL_SECONDS:
                    late = [part for part in late if part.transfer.message.tag & OWN_BITS != CONTROL_TAG]
                if late:
                    self._polled = [part for part in polled if part not in late]
                    for part in late:
                        self._hand_over(part)
            return bool(ready)

    def progress(self, requests: Sequence[Request], timeout: float) -> None:
        self._arrivals.wait([self], requests, timeout)

    def abandon(self, messages: Sequence[Message]) -> None:
        # Gloo cannot take back what it was given: works and waiters keep those bytes alive.
        for message in messages:
            self._self.discard(message)
        self._arrivals.tell()

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


def _outcome(part: _Part) -> tuple[RuntimeError | None, int]:
    """Waits for the end of a part: its error and, of the frame of a message from any source, its source."""
    try:
        part.work.wait(_NEVER)
        anyone = part.buffer is not None and part.transfer.message.peer == ANY_SOURCE
        return None, part.work._source_rank() if anyone else ANY_SOURCE
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
