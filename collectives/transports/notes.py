"""Long messages of users inside a host: a note goes in their place, and receivers read the bytes where they lie.

The note is a short message like any other, so it meets the receive that the long one would have met, whatever carries it. It says where the
bytes are, and where a *seal* lies, a number that the sender erases when it gives the bytes up: what is read is a message only if the seal
is still there after that. A receipt ends the send, and says what was wrong with it.

A medium tells :meth:`Notes.meets` what receives have met, and reads messages when it holds no lock (:meth:`Medium.run_errands`).
"""

from __future__ import annotations

import ctypes
import itertools
import os
import secrets
import struct
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np

from topoccl.collectives.errors import TransportError
from topoccl.collectives.executor.reach import address_of
from topoccl.collectives.transports.base import ANY_SOURCE, CONTROL_TAG, LONG, OWN_BITS, USER_TAGS
from topoccl.collectives.transports.endpoint import Endpoint

if TYPE_CHECKING:
    from topoccl.collectives.executor.reach import Reader
    from topoccl.collectives.transports.base import Bytes, Transport
    from topoccl.collectives.transports.endpoint import Aside, Message

_MAGIC = bytes.fromhex("a708fa6ffc8dc868cf140a79b738b6e7")  # with which, by chance, no message of a user begins
RECEIPT_TAG = CONTROL_TAG - 2
_NOTE = struct.Struct("<16sQQQQ")  # that, bytes of the message, their address, the address of the seal, the seal
NOTE_BYTES = _NOTE.size
_RECEIPT = struct.Struct("<QQQ")  # the seal, one of the following, and the length that was expected or the number of the system's error
_READ, _OTHER_LENGTH, _UNREADABLE = range(3)

_lock = RLock()  # a signal handler may abort inside; a fork makes a new one, since who holds this one is not there to let go of it
_seals: list[ctypes.c_uint64] = []  # to be used again: their memory never becomes anything else's
_numbers = itertools.count(1 + secrets.randbits(62))


def _after_fork() -> None:
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_after_fork)


def exchange_notes(transport: Transport, readers: Mapping[int, Reader]) -> None:
    """From now on long messages of users to and from other ranks of a group, who do the same, go by notes, where what carries them can.

    Args:
        transport: of the group.
        readers: for each of these ranks what reads its memory; it must be able to read this rank's.
    """
    if isinstance(transport, Endpoint) and transport.medium.takes_notes:
        transport.notes = Notes(transport, {transport.members[rank]: reader for rank, reader in readers.items()})


class Notes:
    """The notes of one group. Thread-safe."""

    def __init__(self, endpoint: Endpoint, readers: Mapping[int, Reader]) -> None:
        """``readers`` read from the ranks, in the medium's numbers, that this rank exchanges notes with."""
        self._readers = readers
        self._endpoint = endpoint
        self._open: dict[int, tuple[Message, ctypes.c_uint64]] = {}  # sends, each with its seal, by that
        self._unbroken: dict[int, ctypes.c_uint64] = {}  # their seals, which break when this is collected without having been closed
        weakref.finalize(self, _break, self._unbroken).atexit = False  # the end of the process closes it
        self._closed = ""  # why nothing is sent any more

    def concern(self, message: Message) -> bool:
        """Whether a message is sent by a note; of one to be received, whether it may be."""
        near = message.peer in self._readers or (message.peer == ANY_SOURCE and not message.is_send)
        return near and message.nbytes >= LONG and message.tag & OWN_BITS in USER_TAGS and not message.rail

    # Sends

    def begin(self, send: Message) -> None:
        """Begins to send a message by a note. Raises TransportError."""
        with _lock:
            if self._closed:
                raise TransportError(f"{send.endpoint}: cannot {send}: {self._closed}")
            seal, number = _seals.pop() if _seals else ctypes.c_uint64(), next(_numbers)
            seal.value = number
            self._open[number] = send, seal
            self._unbroken[number] = seal
        note = _NOTE.pack(_MAGIC, send.nbytes, address_of(send.data), ctypes.addressof(seal), number)
        try:
            self._endpoint.aside(False, send.peer, RECEIPT_TAG, np.empty(_RECEIPT.size, np.uint8), self._heard)
            if not send.done:
                self._endpoint.aside(True, send.peer, send.tag & OWN_BITS, np.frombuffer(note, np.uint8), partial(self._left, number))
        except BaseException as error:  # the note may have left nevertheless
            self._end(number, str(error) or type(error).__name__)
            raise

    def _left(self, number: int, note: Aside) -> None:
        if note.error is not None:
            self._end(number, str(note.error))

    def _heard(self, receipt: Aside) -> None:
        """One of the receipts has come that a peer owes, of whichever message."""
        if receipt.error is not None:  # so none will
            with _lock:
                numbers = [number for number, (send, _) in self._open.items() if send.peer == receipt.peer]
            for number in numbers:
                self._end(number, str(receipt.error))
            return
        number, says, value = _RECEIPT.unpack(receipt.data.tobytes())
        why = {_OTHER_LENGTH: f"met a receive of {value} bytes", _UNREADABLE: f"the receiver cannot read it: {os.strerror(value)}"}
        self._end(number, why.get(says))

    def give_up(self, send: Message) -> None:
        """Takes the bytes of a message back, if it is one of these."""
        with _lock:
            numbers = [number for number, (message, _) in self._open.items() if message is send]
        for number in numbers:
            self._end(number, "it was given up")

    def _end(self, number: int, why: str | None) -> None:
        with _lock:
            found = self._open.pop(number, None)
            if found is None:
                return
            send, seal = found
            seal.value = 0
            del self._unbroken[number]
            _seals.append(seal)
        send.finish(None if why is None else TransportError(f"{send.endpoint}: {send} failed: {why}"))

    def close(self, why: str) -> None:
        """Breaks all seals; what is sent from now on fails."""
        with _lock:
            self._closed = self._closed or why
            numbers = list(self._open)
        for number in numbers:
            self._end(number, why)

    # Receives

    def meets(self, receive: Message, data: Bytes | memoryview, source: int) -> bool:
        """Whether what a receive has met, of :data:`NOTE_BYTES`, is a note of who sends such; then the message is read next, and its
        receive ends."""
        note = bytes(data)
        if not note.startswith(_MAGIC) or source not in self._readers:
            return False
        self._endpoint.medium.errands.append(partial(self._read, receive, note, source))
        return True

    def _read(self, receive: Message, note: bytes, source: int) -> None:
        _, nbytes, address, place, number = _NOTE.unpack(note)
        reader = self._readers[source]
        says, value, why = _READ, 0, ""
        if not receive.endpoint.is_open(receive):
            return  # its group was closed
        if receive.nbytes != nbytes:
            says, value, why = _OTHER_LENGTH, receive.nbytes, f"met a message of {nbytes} bytes"
        else:
            seal = ctypes.c_uint64()
            try:
                reader(address, nbytes, address_of(receive.data))
                reader(place, 8, ctypes.addressof(seal))
            except OSError as error:
                says, value = _UNREADABLE, error.errno or 0
                why = f"the memory of the sender (process {reader.pid}) cannot be read: {error.strerror}"
            else:
                why = "" if seal.value == number else "the sender has given it up"
        receive.finish(TransportError(f"{receive.endpoint}: {receive} failed: {why}") if why else None, source)
        with suppress(TransportError):  # the transport was closed, or the sender is gone
            self._endpoint.aside(True, source, RECEIPT_TAG, np.frombuffer(_RECEIPT.pack(number, says, value), np.uint8), _not_awaited)


def _break(seals: Mapping[int, ctypes.c_uint64]) -> None:
    for seal in seals.values():
        seal.value = 0
        _seals.append(seal)


def _not_awaited(receipt: Aside) -> None:
    return
