"""The memory that the ranks of one host share: counters and message slots, in an anonymous file without a name.

The lowest rank of each host makes a memfd; the others open it through /proc, so nothing is ever visible in /dev/shm and
nothing is left when ranks die. Every member owns a table of counters and an area for messages, each twice (for calls with
even and odd sequence numbers), so that a call rarely waits for slow readers of the one before.

Memory ordering: counters are aligned 8-byte words, written by one rank each. A writer stores the data (or where its buffers lie)
and then the counter; a reader sees the counter and then reads the data; a reader that is done stores its own counter, and the
writer sees that before it writes again. So what is needed is that stores are seen in the order in which they were made, and loads made in
the order in which they are written. x86-64 guarantees both for ordinary stores and loads (total store order), ``rep movsb`` and what
the kernel copies for process_vm_readv included, since the system call returns before the next store; NumPy and the C library end
non-temporal stores with a fence. Nobody needs a load to wait for an earlier store of its own to another place, which is what x86-64 does
reorder. Other processors reorder more, and nothing in Python gives a release/acquire pair between processes; there
:func:`supported` says no, and ranks use the transport.
"""

from __future__ import annotations

import mmap
import os
import platform
import secrets
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from topoccl.collectives.errors import TopocclError
from topoccl.collectives.executor.dtypes import Array
from topoccl.collectives.executor.pool import reserve

LINE = 64
WORDS = LINE // 8
LINES = 4096  # counters per member and parity
_SHOWN = LINES  # behind the counters: the line in which a member shows where its buffers lie
CONTROL = 4096  # bytes per member in which ranks tell each other of their calls (control.board)
_HEADER = 4096
LEAST_AREA = 64 << 10  # bytes of the smallest message area


def supported() -> str | None:
    """The reason why shared memory cannot be used on this machine, or None."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"memory ordering between processes is not guaranteed from Python on {platform.machine()}"
    if not hasattr(os, "memfd_create"):
        return "this system has no memfd"
    return None


@dataclass(frozen=True)
class ArenaOffer:
    """How other ranks of the host find an arena; ``token`` proves that they opened the same memory."""

    pid: int
    fd: int
    token: bytes
    area: int


def area_bytes(members: int) -> int:
    """The size of one member's message area: large enough for a few chunks that stay in cache to be under way."""
    return max(1 << 20, min(8 << 20, (256 << 20) // max(members, 1)))


class Arena:
    """One mapping of the shared memory of ``members`` ranks, with message areas of ``area`` bytes."""

    def __init__(self, fd: int, members: int, area: int) -> None:
        self.members = members
        self.area = area
        size = arena_size(members, area)
        self._map = mmap.mmap(fd, size)
        self._fd = fd
        self.bytes: Array = np.frombuffer(self._map, dtype=np.uint8)
        counters = members * 2 * (LINES + 1) * WORDS * 8
        with suppress(OSError, AttributeError):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._reserved: dict[tuple[int, int], int] = {}
        self.flags = memoryview(self._map)[_HEADER : _HEADER + counters].cast("q")
        self._data = _HEADER + counters + members * CONTROL
        self.control = memoryview(self._map)[_HEADER + counters : self._data]

    @property
    def nbytes(self) -> int:
        """All of it; pages that nothing was written to take no memory."""
        return arena_size(self.members, self.area)

    def close_fd(self) -> None:
        """Closes the descriptor once everyone has mapped the memory; the mapping stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def word(self, member: int, parity: int, line: int) -> int:
        """The index in ``flags`` of a counter."""
        return ((member * 2 + parity) * (LINES + 1) + line) * WORDS

    def shown(self, member: int, parity: int) -> int:
        """The index in ``flags`` of the line in which a member shows its buffers."""
        return self.word(member, parity, _SHOWN)

    def reserve(self, member: int, parity: int, nbytes: int) -> None:
        """Makes sure that the first ``nbytes`` of a member's area exist, so that a lack of memory is an error here and no signal later.

        Raises:
            TopocclError: there is no memory.
        """
        have = self._reserved.get((member, parity), 0)
        if nbytes <= have:
            return
        start = self._data + (member * 2 + parity) * self.area
        begin = (start + have) // mmap.PAGESIZE * mmap.PAGESIZE
        try:
            reserve(self._map, self._fd, begin, start + nbytes - begin)
        except OSError as error:
            raise TopocclError(f"{nbytes} bytes of memory for messages to ranks of this host cannot be had: {error}") from None
        self._reserved[member, parity] = nbytes

    def slot(self, member: int, parity: int, offset: int, nbytes: int) -> Array:
        """A message slot as bytes."""
        start = self._data + (member * 2 + parity) * self.area + offset
        return self.bytes[start : start + nbytes]


def arena_size(members: int, area: int) -> int:
    return _HEADER + members * (2 * ((LINES + 1) * LINE + area) + CONTROL)


def _room() -> int | None:
    """Bytes that an arena may take: a quarter of what is free, an eighth of what the control group may have; None where nobody says."""
    found = []
    with suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        found += [int(line.split()[1]) * 1024 // 4 for line in file if line.startswith("MemAvailable:")]
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError), open(limit, encoding="ascii") as file:  # ValueError: "max"
            found.append(int(file.read()) // 8)
    return min(found, default=None)


def smaller(area: int) -> int:
    """The size of message areas that is tried when ``area`` is too much."""
    return max(area // 4, LEAST_AREA)


def create(members: int, most: int | None = None) -> tuple[Arena, ArenaOffer]:
    """Makes the arena of a host with ``members`` ranks, with smaller message areas where memory is short, of at most ``most`` bytes.

    Raises:
        OSError: there is not even memory for small ones.
    """
    area, room = min(area_bytes(members), area_bytes(members) if most is None else most), _room()
    while area > LEAST_AREA and room is not None and arena_size(members, area) > room:
        area = smaller(area)
    while True:
        try:
            return _create(members, area)
        except OSError:
            if area <= LEAST_AREA:
                raise
            area = smaller(area)


def _create(members: int, area: int) -> tuple[Arena, ArenaOffer]:
    size = arena_size(members, area)
    fd = os.memfd_create("topoccl", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        os.posix_fallocate(fd, 0, size - members * 2 * area)  # the counters: all ranks touch them
        arena = Arena(fd, members, area)
    except OSError:
        os.close(fd)
        raise
    token = secrets.token_bytes(16)
    os.pwrite(fd, token, 0)
    return arena, ArenaOffer(os.getpid(), fd, token, area)


def join(offer: ArenaOffer, members: int) -> Arena | None:
    """Opens an offered arena, or returns None when this process does not share memory with the one that offers it.

    Raises:
        OSError: there is no room for it.
    """
    try:
        fd = os.open(f"/proc/{offer.pid}/fd/{offer.fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(fd).st_size != arena_size(members, offer.area) or os.pread(fd, len(offer.token), 0) != offer.token:
        os.close(fd)
        return None
    try:
        return Arena(fd, members, offer.area)
    except OSError:
        os.close(fd)
        raise
