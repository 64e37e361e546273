"""MPI point-to-point through mpi4py: ``Isend`` and ``Irecv`` of bytes on a communicator of our own, completed by one ``Testsome``.

Long messages travel as pieces: over TCP, Open MPI's two-way exchange of 1 to 4 MB messages reached half of what the link carries,
and all of it with pieces that stay below its eager limit of 64 KB. A few pieces of each message are in flight at a time, so that
the list that ``Testsome`` looks through stays short.

A message that is longer than its receive ends the process inside Open MPI 5 when they share memory, so none may be: the first piece,
the head, is received into a buffer as large as any, and so is what may be shorter than the others, the last one. The head of a long
message has its length ahead, which makes it longer than any message of one piece. Other pieces have a tag of their own. They are received
after the head where a note may come in its place.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from topoccl.collectives.errors import CollectiveTimeout, ConfigError, TransportError
from topoccl.collectives.transports.base import ANY_SOURCE, LONG, TAG_BITS, Bytes, Request, Transport
from topoccl.collectives.transports.endpoint import Endpoint, Medium, Message
from topoccl.collectives.transports.mpi_process import abort_on_uncaught, import_mpi, leave_without_others
from topoccl.collectives.transports.notes import NOTE_BYTES
from topoccl.collectives.transports.waiting import Patience

if TYPE_CHECKING:
    from mpi4py import MPI

MAX_PIECE = 60 * 1024
WINDOW = 16
_HEAD = 8  # bytes of a long message's length

_process_lock = Lock()  # for an MPI that takes calls from one thread at a time
_kept_alive: list[Any] = []  # what MPI may still use though the transport was closed


def mpi_transport(
    size: int | None = None, max_piece: int = MAX_PIECE, window: int = WINDOW, timeout: float = 600.0, for_transport: str = "mpi"
) -> Transport:
    """A transport over all ranks of this MPI job. Every rank must call it, in the same order as other communicators are made.

    From then on an exception that nobody catches ends all ranks (see :mod:`~topoccl.collectives.transports.mpi_process`).

    Args:
        size: what the launcher said, to be compared with what MPI sees.
        max_piece: bytes; may differ from call to call but not between ranks.
        window: pieces in flight per message; as ``max_piece``.
        timeout: seconds that this waits for the other ranks (once MPI is initialised, which may wait for them, too).
        for_transport: what it is opened for, in errors.

    Raises:
        ConfigError: mpi4py or its MPI cannot be used.
        CollectiveTimeout: not all ranks have come.
    """
    MPI = import_mpi(for_transport)
    world = MPI.COMM_WORLD
    if size is not None and size != world.size:
        vendor = MPI.Get_library_version().split(",")[0]
        raise ConfigError(
            f"transport mpi: the launcher started {size} ranks but MPI sees {world.size}: mpi4py runs on another MPI library "
            f"({vendor}) than that of the mpirun that started this process"
        )
    abort_on_uncaught(MPI)
    return Endpoint(_MpiMedium(MPI, _duplicate(world, timeout), max_piece, window))


def _duplicate(world: MPI.Comm, timeout: float) -> MPI.Comm:
    comm, request = world.Idup()
    patience = Patience()
    end = time.monotonic() + timeout
    while not request.Test():
        left = end - time.monotonic()
        if left <= 0:
            _kept_alive.append((comm, request))
            why = f"transport mpi: not all {world.size} ranks came within {timeout:g} s to set it up (rank {world.rank} did)"
            leave_without_others(why)
            raise CollectiveTimeout(why)
        patience.rest(left)
    return comm


class _Piece:
    """Bytes ``lo:hi`` of a message; ``buffer`` is where they are received if not where they belong."""

    __slots__ = ("buffer", "flow", "hi", "lo")

    def __init__(self, flow: _Flow, lo: int, hi: int, buffer: Bytes | None) -> None:
        self.flow = flow
        self.lo = lo
        self.hi = hi
        self.buffer = buffer


class _Flow:
    """A message as pieces: those before ``offset`` were begun, ``in_flight`` of them are not complete. One that is ``held`` is received up
    to its head."""

    __slots__ = ("held", "in_flight", "message", "offset", "source", "started")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.source = message.peer  # of a receive; known only after the first piece when it may come from anywhere
        self.offset = 0
        self.in_flight = 0
        self.started = False
        self.held = False

    @property
    def begun(self) -> bool:
        """Whether no piece is left to begin (a message of no bytes is one piece)."""
        return self.started and self.offset >= self.message.nbytes

    def stop(self) -> None:
        self.started = True
        self.offset = self.message.nbytes


class _MpiMedium(Medium):
    """All state is under one lock. MPI matches pieces in the order in which they are begun, so:

    * pieces of one stream (direction, peer, tag) are begun in order: while a message has pieces left, later ones queue behind it;
    * a receive from any source waits until receives with its tag have no pieces left to begin, and, being long, holds up later
      receives with its tag until its first piece has said where the rest will come from (``_gates``).
    """

    name = "mpi"
    takes_notes = True

    def __init__(self, MPI: Any, comm: MPI.Comm, max_piece: int, window: int) -> None:
        if max_piece < 1 or window < 1:
            raise ValueError(f"transport mpi: max_piece {max_piece} and window {window} must be at least 1")
        super().__init__()
        self.rank = comm.rank
        self.size = comm.size
        tag_ub = int(comm.Get_attr(MPI.TAG_UB) or 0)
        self.max_group = ((tag_ub + 1) >> (TAG_BITS + 1)) - 1
        if self.max_group < 0:
            raise ConfigError(f"transport mpi: this MPI has tags up to {tag_ub} only; {(2 << TAG_BITS) - 1} are needed")
        self._mpi = MPI
        self._comm = comm
        self._max_piece = max_piece
        self._window = window
        self._lock: AbstractContextManager[Any] = Lock() if MPI.Query_thread() == MPI.THREAD_MULTIPLE else _process_lock
        self._patience = Patience()
        self._requests: list[Any] = []  # the pieces in flight, and for each
        self._pieces: list[_Piece] = []
        self._piece_bit = (self.max_group + 1) << TAG_BITS  # of the tags of all pieces but heads
        self._buffers: list[Bytes] = []  # for heads, used again
        self._spoilt: set[tuple[int, int]] = set()  # peers and tags with pieces left of messages that were not expected
        self._statuses: list[MPI.Status] = []
        self._queues: dict[tuple[bool, int, int], deque[_Flow]] = {}  # by stream; the head has pieces left to begin
        self._gates: dict[int, deque[_Flow]] = {}  # by tag
        self._unresolved: dict[int, _Flow] = {}  # by tag: the receive from any source whose first piece the gate waits for

    def begin(self, message: Message) -> None:
        flow = _Flow(message)
        if message.nbytes >= LONG and not message.is_send:
            notes = message.endpoint.notes
            flow.held = notes is not None and notes.concern(message)
        self._patience.renew()
        with self._lock:
            if not message.is_send and (message.peer == ANY_SOURCE or message.tag in self._gates):
                self._gates.setdefault(message.tag, deque()).append(flow)
                self._open_gate(message.tag)
            else:
                self._enqueue(flow)

    def _enqueue(self, flow: _Flow) -> None:
        message = flow.message
        if not self._queues and message.nbytes <= self._max_piece:
            self._begin_piece(flow)
            return
        key = (message.is_send, flow.source, message.tag)
        queue = self._queues.get(key)
        if queue is not None:
            queue.append(flow)
        elif not self._begin_pieces(flow):
            self._queues[key] = deque([flow])

    def _open_gate(self, tag: int) -> None:
        gate = self._gates[tag]
        while gate:
            if tag in self._unresolved:
                return
            flow = gate[0]
            if flow.source == ANY_SOURCE:
                if any(not is_send and queued == tag for is_send, _, queued in self._queues):
                    return
                self._begin_piece(flow)
                if not flow.begun:
                    self._unresolved[tag] = flow
            else:
                self._enqueue(flow)
            gate.popleft()
        if tag not in self._unresolved:
            del self._gates[tag]

    def _begin_pieces(self, flow: _Flow) -> bool:
        """Begins as many pieces as the window allows; whether none is left to begin."""
        while not flow.begun:
            if flow.in_flight >= self._window or (flow.held and flow.started):
                return False
            self._begin_piece(flow)
        return True

    def _begin_piece(self, flow: _Flow) -> None:
        message = flow.message
        lo, hi = flow.offset, min(flow.offset + self._max_piece, message.nbytes)
        tag = message.tag if not lo else message.tag | self._piece_bit
        buffer = None
        if not message.is_send and (not lo or hi - lo < self._max_piece):
            if (flow.source, message.tag) in self._spoilt:
                self._fail(flow, "an earlier message with this tag had another length than expected")
                return
            buffer = self._buffers.pop() if self._buffers else np.empty(_HEAD + self._max_piece, np.uint8)
        try:
            if message.is_send:
                data = message.data[lo:hi]
                if not lo and hi < message.nbytes:
                    data = np.empty(_HEAD + hi, np.uint8)
                    data[:_HEAD].view(np.int64)[0] = message.nbytes
                    data[_HEAD:] = message.data[:hi]
                request = self._comm.Isend((data, self._mpi.BYTE), message.peer, tag)
            else:
                source = self._mpi.ANY_SOURCE if flow.source == ANY_SOURCE else flow.source
                request = self._comm.Irecv((message.data[lo:hi] if buffer is None else buffer, self._mpi.BYTE), source, tag)
        except self._mpi.Exception as exc:
            self._fail(flow, str(exc))
            return
        flow.started = True
        flow.offset = hi
        flow.in_flight += 1
        self._requests.append(request)
        self._pieces.append(_Piece(flow, lo, hi, buffer))

    def _fail(self, flow: _Flow, reason: str) -> None:
        flow.stop()
        flow.message.finish(TransportError(f"{flow.message.endpoint}: {flow.message} failed: {reason}"))

    def _poll(self) -> bool:
        """Looks once at all pieces in flight; whether one was complete. Called under the lock."""
        if not self._requests:
            return False
        statuses = self._statuses
        while len(statuses) < len(self._requests):
            statuses.append(self._mpi.Status())
        try:
            indices = self._mpi.Request.Testsome(self._requests, statuses[: len(self._requests)])
        except self._mpi.Exception as exc:
            self._drop_failed(str(exc))
            return True
        if not indices:
            return False
        complete = [(self._pieces[index], status) for index, status in zip(indices, statuses, strict=False)]
        for index in sorted(indices, reverse=True):
            self._remove(index)
        for piece, status in complete:
            self._piece_complete(piece, status)
        return True

    def _remove(self, index: int) -> None:
        column: list[Any]
        for column in (self._requests, self._pieces):
            column[index] = column[-1]
            column.pop()

    def _drop_failed(self, reason: str) -> None:
        """After an error MPI has made null the requests that ended, but does not say which of them failed: all of them do."""
        ended = [index for index, request in enumerate(self._requests) if request == self._mpi.REQUEST_NULL]
        if not ended:  # nor which may still touch their bytes
            _kept_alive.append((self._requests.copy(), self._pieces.copy()))
        for index in reversed(ended or range(len(self._requests))):
            flow = self._pieces[index].flow
            self._remove(index)
            flow.in_flight -= 1
            self._fail(flow, reason)
            self._continue(flow)

    def _piece_complete(self, piece: _Piece, status: MPI.Status) -> None:
        flow = piece.flow
        flow.in_flight -= 1
        message = flow.message
        if not message.is_send:
            if status.Is_cancelled():
                flow.stop()
            else:
                if flow.source == ANY_SOURCE:
                    flow.source = status.Get_source()
                self._arrived(piece, status.Get_count(self._mpi.BYTE))
            if piece.buffer is not None and len(self._buffers) < self._window:
                self._buffers.append(piece.buffer)
        if flow.begun and not flow.in_flight:
            message.finish(None, flow.source)
        if self._queues or self._gates:
            self._continue(flow)

    def _arrived(self, piece: _Piece, count: int) -> None:
        """Checks the length of a piece that was received and takes it out of its buffer."""
        flow, buffer = piece.flow, piece.buffer
        message = flow.message
        size, ahead, told = piece.hi - piece.lo, 0, message.nbytes
        if not piece.lo:
            assert buffer is not None
            if count == NOTE_BYTES and self._noted(flow, buffer[:count]):
                return
            flow.held = False
            long = count > self._max_piece
            told = int(buffer[:_HEAD].view(np.int64)[0]) if long else count
            ahead = _HEAD if long else 0
        if told != message.nbytes or count != size + ahead:
            if max(told, message.nbytes) > self._max_piece:
                self._spoilt.add((flow.source, message.tag))
            self._fail(flow, f"met a message of {told} bytes" if told != message.nbytes else f"met a piece of {count} bytes, not {size}")
        elif buffer is not None and not message.done:
            message.data[piece.lo : piece.hi] = buffer[ahead : ahead + size]

    def _noted(self, flow: _Flow, head: Bytes) -> bool:
        """Whether a note has come in a message's place; it is over when that is read."""
        message, notes = flow.message, flow.message.endpoint.notes
        if notes is None or not notes.meets(message, head, flow.source):
            return False
        if flow.in_flight:  # for pieces, which will not come
            self._spoilt.add((flow.source, message.tag))
        flow.stop()
        flow.in_flight += 1
        return True

    def _continue(self, flow: _Flow) -> None:
        """Begins what was waiting for a piece of ``flow``."""
        message = flow.message
        key = (message.is_send, flow.source, message.tag)
        if self._unresolved.get(message.tag) is flow:
            del self._unresolved[message.tag]
            if not flow.begun:
                self._enqueue(flow)
        else:
            queue = self._queues.get(key)
            while queue and self._begin_pieces(queue[0]):
                queue.popleft()
            if queue is not None and not queue:
                del self._queues[key]
        if not message.is_send and message.tag in self._gates:
            self._open_gate(message.tag)

    def progress(self, requests: Sequence[Request], timeout: float) -> None:
        deadline = None
        while True:
            with self._lock:
                arrived = self._poll()
            if self.errands:
                self.run_errands()
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
            if arrived:
                self._patience.renew()
            else:
                self._patience.rest(deadline - now)

    def abandon(self, messages: Sequence[Message]) -> None:
        gone = set(messages)
        if not gone or self._mpi.Is_finalized():
            return
        with self._lock:
            for request, piece in zip(self._requests, self._pieces, strict=True):
                if piece.flow.message in gone:
                    piece.flow.stop()
                    if not piece.flow.message.is_send:
                        request.Cancel()
            for waiting in (*self._queues.values(), *self._gates.values()):
                for flow in waiting:
                    if flow.message in gone:
                        flow.stop()
            self._queues = {key: kept for key, queue in self._queues.items() if (kept := deque(f for f in queue if not f.begun))}
            for tag, gate in list(self._gates.items()):
                self._gates[tag] = deque(flow for flow in gate if not flow.begun)
                self._open_gate(tag)

    def close(self) -> None:
        if self._mpi.Is_finalized():
            return
        with self._lock:
            self._poll()
            # MPI may still read these bytes. And the communicator is never freed: its number would be given to another one, into
            # which messages would stray that nobody had received here.
            _kept_alive.append((self._comm, self._requests, self._pieces))
            self._requests, self._pieces = [], []
