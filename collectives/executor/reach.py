"""Reading the buffers of other processes of this host: Linux's cross-memory attach, where it is allowed.

A rank that takes part in such a call shows, in a line of its table in the arena, where its input and output lie; others read
them with ``process_vm_readv`` (one copy, made by the reader, which lets go of the GIL meanwhile) once the counter that announces a message
says so. What lies in its owner's pool (:mod:`~topoccl.collectives.executor.pool`) they map and read like memory of their own. The line is
erased when its owner gives up, and readers look at it again after each read: what they then have is what was announced, or they fail.
"""

from __future__ import annotations

import ctypes
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from topoccl.collectives.errors import TransportError
from topoccl.collectives.executor.dtypes import Array
from topoccl.collectives.executor.pool import Windows, pool

_TOKEN = 32  # bytes that a probe reads
_HUGE = 2 << 20  # bytes of a huge page
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_PTRACER = 0x59616D61
_MOST = 1 << 30  # bytes of one system call; the kernel takes at most 2 GiB

# read(number of the call, buffer, offset in it, bytes, where to): fetches bytes of a buffer that a peer shows. Returns a view of them
# instead when they are mapped and nothing says where to (0).
Read = Callable[[int, int, int, int, int], Array | None]


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _system_call() -> Any:
    call = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)
        call.restype = ctypes.c_ssize_t
    return call


_readv = _system_call()
_byte_at = ctypes.c_char.from_buffer
_prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
if _prctl is not None:
    _prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)


def _admit_siblings() -> None:
    """Lets what this process's parent has started read this process's memory, where Yama wants that said (``ptrace_scope`` 1).

    Launchers start the ranks of a host, so that is them. Elsewhere the attempt to read fails, and ranks do without.
    """
    try:
        with open(_YAMA, encoding="ascii") as file:
            scope = file.read().strip()
    except OSError:
        return
    if scope == "1" and _prctl is not None:
        _prctl(_PR_SET_PTRACER, os.getppid(), 0, 0, 0)


class Door:
    """What others read to find out whether they can read this process's memory; tells the system that they may."""

    def __init__(self) -> None:
        _admit_siblings()
        self.token = secrets.token_bytes(_TOKEN)
        self._bytes = np.frombuffer(bytearray(self.token), np.uint8)

    @property
    def offer(self) -> tuple[int, int, bytes]:
        """(process, address, what is there)."""
        return os.getpid(), address_of(self._bytes), self.token


def opens(offer: tuple[int, int, bytes]) -> bool:
    """Whether this process can read the memory of the one that made the ``offer``."""
    pid, address, token = offer
    if _readv is None:
        return False
    found = np.zeros(len(token), np.uint8)
    try:
        Reader(pid)(address, len(token), address_of(found))
    except OSError:
        return False
    return found.tobytes() == token


def address_of(array: Array) -> int:
    """Where the elements of a contiguous array begin in this process."""
    if array.size and array.flags.writeable:
        return ctypes.addressof(_byte_at(array.data))  # four times as fast
    address: int = array.__array_interface__["data"][0]
    return address


def on_huge_pages(array: Array) -> bool:
    """Whether an array of some MiB lies mostly on huge pages, or in the pool: others find its pages fast then."""
    if array.nbytes < _HUGE:
        return False
    address = address_of(array)
    if pool().where(address) is not None:
        return True
    middle = address + array.nbytes // 2
    size = 0
    inside = False
    try:
        with open("/proc/self/smaps", encoding="ascii", errors="replace") as file:
            for line in file:
                head = line.split(None, 1)[0]
                if not head.endswith(":"):  # a mapping: its addresses
                    if inside:
                        break
                    begin, _, end = head.partition("-")
                    inside = int(begin, 16) <= middle < int(end, 16)
                    size = int(end, 16) - int(begin, 16)
                elif inside and head == "AnonHugePages:":
                    return 2 * int(line.split()[1]) * 1024 >= min(size, array.nbytes)
    except (OSError, ValueError):
        return False
    return False


class Reader:
    """Reads from one process. Not for several threads at once."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._here, self._there = _Range(), _Range()
        self._at = ctypes.addressof(self._here), ctypes.addressof(self._there)

    def __call__(self, source: int, nbytes: int, target: int) -> None:
        here, there = self._here, self._there
        while nbytes > 0:
            here.base, there.base = target, source
            here.length = there.length = min(nbytes, _MOST)
            got = _readv(self.pid, self._at[0], 1, self._at[1], 1, 0)
            if got <= 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            source, target, nbytes = source + got, target + got, nbytes - got


class Reach:
    """The ranks whose memory this rank reads, by rank, with their processes (``pids``); made when all ranks of a host can read each
    other's."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        self.pids = dict(pids)
        self._readers = {rank: Reader(pid) for rank, pid in pids.items()}
        self._windows = Windows()

    def of(self, rank: int, flags: memoryview, line: int) -> Read:
        """What reads from ``rank``, whose buffers are shown in the line that begins at ``flags[line]`` (see :func:`show`)."""
        reader, windows = self._readers[rank], self._windows

        def read(base: int, buf: int, offset: int, nbytes: int, target: int) -> Array | None:
            source, key = flags[line + 1 + buf] + offset, flags[line + 3 + buf]
            view = None
            try:
                if key:
                    view = windows.view(reader.pid, key)[source : source + nbytes]
                    if target:
                        ctypes.memmove(target, address_of(view), nbytes)
                elif target:
                    reader(source, nbytes, target)
            except OSError as error:
                raise TransportError(f"the memory of rank {rank} (process {reader.pid}) cannot be read: {error.strerror}") from error
            if flags[line] != base:
                raise TransportError(f"rank {rank} gave up while its data was read")
            return view

        return read


def show(flags: memoryview, line: int, base: int, inp: int, out: int) -> None:
    """Shows where the buffers of the call ``base`` lie: their addresses, or offsets in a segment of the pool and its key."""
    for at, address in ((line + 1, inp), (line + 2, out)):
        place = pool().where(address)
        flags[at], flags[at + 2] = (address, 0) if place is None else (place.offset, place.key)
    flags[line] = base


def hide(flags: memoryview, line: int) -> None:
    """Says that the buffers that were shown must not be read any more."""
    flags[line] = 0
