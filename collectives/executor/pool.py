"""Memory that other ranks of the host can map: one pool of a process, for tensors that need no staging and for scratch.

Blocks are multiples of 2 MiB, on huge pages where the system offers them, in anonymous files without a name (nothing is left when
the process dies). Their pages exist before a block is handed out, so that a lack of memory is an error here and no signal later.
What is given back is handed out again, to any shape.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from bisect import bisect_right, insort
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from topoccl.collectives.errors import ConfigError, TopocclError
from topoccl.collectives.executor.dtypes import Array

BLOCK = 2 << 20
_SEGMENT = 64 << 20  # address space that is taken at once
_POPULATE_WRITE = 23  # Linux 5.14
_FD_BITS = 24


def reserve(memory: mmap.mmap, fd: int, start: int, nbytes: int) -> None:
    """Makes sure that pages of a mapped file exist.

    Raises:
        OSError: there is no memory for them.
    """
    try:
        memory.madvise(_POPULATE_WRITE, start, nbytes)
    except ValueError as error:  # beyond the mapping
        raise OSError(str(error)) from None
    except OSError:
        if fd < 0:
            raise
        os.posix_fallocate(fd, start, nbytes)


@dataclass(frozen=True)
class Place:
    """Where a buffer lies in the pool of its process: the ``key`` of a segment, which holds its descriptor, and an offset."""

    key: int
    offset: int


class _Segment:
    def __init__(self, nbytes: int, serial: int) -> None:
        self.nbytes = nbytes
        self.fd = os.memfd_create("topoccl-pool", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, nbytes)
        self.map = mmap.mmap(self.fd, nbytes)
        with suppress(OSError, AttributeError):
            self.map.madvise(mmap.MADV_HUGEPAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.key = serial << _FD_BITS | self.fd
        self.touched = 0  # bytes from the start whose pages exist
        self.free: list[tuple[int, int]] = [(0, nbytes)]  # (start, bytes), by start, never adjacent

    def take(self, nbytes: int) -> int | None:
        for at, (start, size) in enumerate(self.free):
            if size >= nbytes:
                if start + nbytes > self.touched:
                    reserve(self.map, self.fd, self.touched, start + nbytes - self.touched)
                    self.touched = start + nbytes
                self.free[at : at + 1] = [(start + nbytes, size - nbytes)] if size > nbytes else []
                return start
        return None

    def give_back(self, start: int, nbytes: int) -> None:
        insort(self.free, (start, nbytes))
        at = self.free.index((start, nbytes))
        for left in (at, at - 1):
            if 0 <= left < len(self.free) - 1:
                (a, n), (b, m) = self.free[left : left + 2]
                if a + n == b:
                    self.free[left : left + 2] = [(a, n + m)]


class Pool:
    """The pool of a process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._segments: list[_Segment] = []
        self._starts: list[tuple[int, int]] = []  # (address, index), sorted
        self._returned: deque[tuple[_Segment, int, int]] = deque()
        self.in_use = 0
        self.peak = 0
        self.blocks = 0

    def bytes(self, nbytes: int) -> Array:
        """A new array of bytes; its memory comes back when nothing refers to it any more.

        Raises:
            OSError: there is no memory.
        """
        size = max(-(-nbytes // BLOCK), 1) * BLOCK
        with self._lock:
            self._collect()
            segment, start = self._take(size)
            self.in_use += size
            self.peak = max(self.peak, self.in_use)
            self.blocks += 1
        owner = (ctypes.c_char * nbytes).from_buffer(segment.map, start)
        weakref.finalize(owner, self._returned.append, (segment, start, size)).atexit = False
        found: Array = np.frombuffer(memoryview(owner), np.uint8)
        return found

    def _take(self, size: int) -> tuple[_Segment, int]:
        for segment in self._segments:
            start = segment.take(size)
            if start is not None:
                return segment, start
        segment = _Segment(max(size, _SEGMENT), len(self._segments) + 1)
        self._segments.append(segment)
        insort(self._starts, (segment.address, len(self._segments) - 1))
        start = segment.take(size)
        assert start is not None
        return segment, start

    def _collect(self) -> None:
        """Takes back what nothing refers to any more. Garbage may be collected anywhere, also under the lock: so not before."""
        while self._returned:
            segment, start, size = self._returned.popleft()
            segment.give_back(start, size)
            self.in_use -= size
            self.blocks -= 1

    def where(self, address: int) -> Place | None:
        """Where in the pool an address is; None outside it."""
        at = bisect_right(self._starts, (address, len(self._starts))) - 1
        if at < 0:
            return None
        segment = self._segments[self._starts[at][1]]
        offset = address - segment.address
        return Place(segment.key, offset) if offset < segment.nbytes else None

    def stats(self) -> dict[str, int]:
        """Bytes in use now and at most, bytes whose pages are kept, and the number of blocks in use."""
        with self._lock:
            self._collect()
        kept = sum(segment.touched for segment in self._segments)
        return {"in_use": self.in_use, "peak": self.peak, "kept": kept, "blocks": self.blocks}


class Windows:
    """Segments of other processes' pools, mapped when they are first read."""

    def __init__(self) -> None:
        self._maps: dict[tuple[int, int], Array] = {}

    def view(self, pid: int, key: int) -> Array:
        """All bytes of a segment.

        Raises:
            OSError: it cannot be opened.
        """
        found = self._maps.get((pid, key))
        if found is None:
            fd = os.open(f"/proc/{pid}/fd/{key & ((1 << _FD_BITS) - 1)}", os.O_RDWR | os.O_CLOEXEC)
            try:
                found = self._maps[pid, key] = np.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size), np.uint8)
            finally:
                os.close(fd)
        return found


_pool = Pool()


def pool() -> Pool:
    """The pool of this process; a fork begins with an empty one."""
    return _pool


def _fresh() -> None:
    global _pool
    _pool = Pool()


os.register_at_fork(after_in_child=_fresh)


def empty(shape: int | tuple[int, ...], dtype: Any = None) -> Any:
    """A tensor (or, for a NumPy ``dtype``, an array) whose memory other ranks of the host read directly.

    Calls on such buffers copy long messages once, at the speed of memory. The values are arbitrary. The memory comes from a pool in
    blocks of 2 MiB and goes back to it when the last view of it is gone.

    Args:
        shape: elements, one number or one per dimension.
        dtype: a torch dtype; None takes torch's default; a NumPy dtype makes an array.

    Raises:
        ConfigError: a negative size or a type without a fixed size.
        TopocclError: there is no memory for it.
    """
    sizes = (int(shape),) if isinstance(shape, int) else tuple(int(n) for n in shape)
    if any(n < 0 for n in sizes):
        raise ConfigError(f"empty: shape {sizes} has a negative size")
    count = int(np.prod(sizes, dtype=np.int64))
    torch_dtype = dtype
    if dtype is None or type(dtype).__module__ == "torch":
        import torch

        torch_dtype = torch.get_default_dtype() if dtype is None else dtype
        itemsize = torch_dtype.itemsize
    else:
        dtype = np.dtype(dtype)
        torch_dtype, itemsize = None, dtype.itemsize
        if dtype.kind not in "biufc":
            raise ConfigError(f"empty: dtype {dtype} is not one of plain numbers")
    try:
        memory = _pool.bytes(max(count * itemsize, 1))
    except OSError as error:
        raise TopocclError(f"empty: no memory for {count * itemsize} bytes: {error}") from None
    data = memory[: count * itemsize]
    if torch_dtype is None:
        return data.view(dtype).reshape(sizes)
    import torch

    return torch.from_numpy(data).view(torch_dtype).reshape(sizes)
