"""Where chunks lie: from (block, segment, chunk) to ranges of elements in the buffers of one rank.

A block of n elements is cut into S segments and each segment into chunks by weight. Cuts fall on multiples of ``align``
elements, so that pieces of large messages start on cache lines; every rank computes the same cuts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topoccl.algorithms.schedule import Buf, Schedule

Span = tuple[int, int]

_LINE = 64  # bytes


class Geometry:
    """The cuts of one schedule for given block sizes.

    Args:
        schedule: what is run.
        block_elems: elements of each block: one number, or one per block when they differ.
        segments: number of segments, at least 1.
        itemsize: bytes per element.
    """

    def __init__(self, schedule: Schedule, block_elems: int | Sequence[int], segments: int, itemsize: int) -> None:
        self.schedule = schedule
        self.segments = segments
        self.itemsize = itemsize
        self.chunks = schedule.chunks
        self._sizes = None if isinstance(block_elems, int) else [int(n) for n in block_elems]
        self._size = block_elems if isinstance(block_elems, int) else 0
        self._cuts: dict[tuple[int, int], list[list[int]]] = {}
        self._same_weights = schedule.weights is None
        self._starts: dict[tuple[int, Buf], list[int]] = {}
        self._scratch: dict[tuple[int, int], list[int]] = {}

    def block_size(self, block: int) -> int:
        """Elements of a block."""
        return self._size if self._sizes is None else self._sizes[block]

    @property
    def equal(self) -> bool:
        """Whether all blocks are of one size."""
        return self._sizes is None or len(set(self._sizes)) == 1

    def cuts(self, block: int) -> list[list[int]]:
        """``cuts(b)[s][j]:cuts(b)[s][j + 1]`` is chunk j of segment s, in elements from the start of block b."""
        size = self.block_size(block)
        key = (size, -1 if self._same_weights else block)
        found = self._cuts.get(key)
        if found is None:
            found = self._cuts[key] = self._cut(size, block)
        return found

    def _cut(self, size: int, block: int) -> list[list[int]]:
        pieces = self.segments * self.chunks
        align = max(1, _LINE // self.itemsize)
        if size < 4 * align * pieces or self.schedule.needs_equal_chunks:
            align = 1
        starts = np.arange(self.segments + 1, dtype=np.int64) * size // self.segments
        starts[1:-1] -= starts[1:-1] % align
        weights = self.schedule.weights
        if weights is None:
            shares = np.ones(self.chunks, dtype=np.int64)
        else:
            shares = weights[block * self.chunks : (block + 1) * self.chunks].astype(np.int64)
        total = max(int(shares.sum()), 1)
        before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(shares)])
        lengths = np.diff(starts)[:, None]
        inner = lengths * before[None, :] // total
        inner[:, 1:-1] -= inner[:, 1:-1] % align
        inner[:, -1:] = lengths
        rows: list[list[int]] = (starts[:-1, None] + inner).tolist()
        return rows

    def chunk_elems(self, chunk_id: int, segment: int) -> int:
        block, chunk = divmod(chunk_id, self.chunks)
        row = self.cuts(block)[segment]
        return row[chunk + 1] - row[chunk]

    def largest(self, chunk_id: int) -> int:
        """The most elements that a chunk has in any segment."""
        block, chunk = divmod(chunk_id, self.chunks)
        return max(row[chunk + 1] - row[chunk] for row in self.cuts(block))

    def chunk_ids(self, rank: int, buf: Buf, off: int, count: int) -> list[int]:
        """The chunk ids whose sizes the places ``off:off + count`` of a buffer have."""
        if buf is Buf.SCRATCH:
            return [max(int(c), 0) for c in self.schedule.scratch_places(rank)[off : off + count]]
        spec = self.schedule.spec
        blocks = spec.input_blocks(rank) if buf is Buf.INPUT else spec.output_blocks(rank)
        return [blocks[i // self.chunks] * self.chunks + i % self.chunks for i in range(off, off + count)]

    def _block_starts(self, rank: int, buf: Buf) -> list[int]:
        key = (rank, buf)
        if key not in self._starts:
            spec = self.schedule.spec
            blocks = spec.input_blocks(rank) if buf is Buf.INPUT else spec.output_blocks(rank)
            starts = [0]
            for block in blocks:
                starts.append(starts[-1] + self.block_size(block))
            self._starts[key] = starts
        return self._starts[key]

    def buffer_elems(self, rank: int, buf: Buf) -> int:
        """Elements of a rank's whole input or output."""
        return self._block_starts(rank, buf)[-1]

    def scratch_starts(self, rank: int, segment: int) -> list[int]:
        """Offsets of the scratch places within their slot, for one segment; the last entry is the slot's use."""
        key = (rank, segment)
        if key not in self._scratch:
            starts = [0]
            for chunk_id in self.schedule.scratch_places(rank).tolist():
                starts.append(starts[-1] + self.chunk_elems(max(chunk_id, 0), segment))
            self._scratch[key] = starts
        return self._scratch[key]

    def scratch_slot_elems(self, rank: int) -> int:
        """Elements that one slot of a rank's scratch needs, over all segments."""
        return sum(self.largest(max(c, 0)) for c in self.schedule.scratch_places(rank).tolist())

    def spans(self, rank: int, buf: Buf, off: int, count: int, segment: int) -> list[Span]:
        """The contiguous element ranges, in order, of places ``off:off + count`` (scratch: within the slot)."""
        if buf is Buf.SCRATCH:
            starts = self.scratch_starts(rank, segment)
            return [(starts[off], starts[off + count])]
        spec = self.schedule.spec
        blocks = spec.input_blocks(rank) if buf is Buf.INPUT else spec.output_blocks(rank)
        starts = self._block_starts(rank, buf)
        spans: list[Span] = []
        while count > 0:
            position, chunk = divmod(off, self.chunks)
            take = min(count, self.chunks - chunk)
            row = self.cuts(blocks[position])[segment]
            lo, hi = starts[position] + row[chunk], starts[position] + row[chunk + take]
            if spans and spans[-1][1] == lo:
                spans[-1] = (spans[-1][0], hi)
            else:
                spans.append((lo, hi))
            off += take
            count -= take
        return spans
