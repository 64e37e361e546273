"""A schedule: for each rank, lanes of steps over chunks. Pure data, in columns.

One step is: fold the operands, left to right; store the value in ``dst`` if there is one; send it to ``targets`` if there are
any. An operand is a range of chunks of a local buffer or the next message of a peer. So a send is one local operand with
targets, a receive is one peer operand with a dst, a receive-and-reduce has both kinds of operand, a publish has several
targets, a reduction of k sources has k operands, and MSCCL's fused steps (rcs, rrs, rrcs) need nothing more.

* Steps of a lane run in order; lanes of a rank run side by side; ``deps`` order steps of different lanes of one rank.
* A step of no chunks (``count`` 0) sends or receives an empty message: it tells that its sender has come so far.
* A message belongs to the stream (source, destination, channel of the lane) and streams are first-in, first-out. All sends of
  a stream are in one lane, and so are all its receives.
* A step is complete when its dst is written and its operands may be overwritten.
* The whole schedule is run once for every *segment* of the data, each lane looping over the segments. With ``slots`` > 0 a
  lane starts segment ``s`` only when all lanes of its rank have completed segment ``s - slots``: that many copies of the
  scratch buffer exist. ``slots`` = 0 means no limit, and needs a schedule without scratch.
* A sender may run ahead of its receiver by ``fifo`` messages per stream; proofs hold for any transport with at least that.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from topoccl.algorithms.spec import CollectiveSpec

IntArray = npt.NDArray[np.int32]

Way = tuple[tuple[str, ...], tuple[int, ...]]
"""Vertices from the sender's slot to the receiver's, and for each step between two of them which of their parallel links (from 0)."""


class Buf(IntEnum):
    """Where an operand or a destination lies. ``PEER`` is the next message of a peer; its offset is the peer's rank."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2
    PEER = 3
    NONE = 4


@dataclass(frozen=True, slots=True)
class Step:
    """One step as an object: a view for printing, proofs' messages and lowering, not how a schedule stores it."""

    index: int
    rank: int
    lane: int
    channel: int
    operands: tuple[tuple[Buf, int], ...]
    dst: tuple[Buf, int] | None
    targets: tuple[int, ...]
    count: int
    deps: tuple[int, ...]

    def __str__(self) -> str:
        def where(place: tuple[Buf, int]) -> str:
            buf, off = place
            return f"message of rank {off}" if buf is Buf.PEER else f"{buf.name.lower()}[{off}:{off + self.count}]"

        text = " + ".join(map(where, self.operands)) or "nothing"
        if self.dst is not None:
            text += f" -> {where(self.dst)}"
        if self.targets:
            text += f" -> ranks {', '.join(map(str, self.targets))}"
        return f"step {self.index} (rank {self.rank}, lane {self.lane}, channel {self.channel}): {text}"


@dataclass(frozen=True)
class Schedule:
    """A collective's schedule in columns; see the module for what the columns mean.

    ``lane_ptr[i]:lane_ptr[i+1]`` are the steps of lane ``i``; lanes are sorted by rank. ``*_ptr`` columns index their value
    columns in the usual compressed way. ``weights`` has one integer weight per chunk id (a chunk's share of its block), or is
    None when a block's chunks are equal. ``scratch_like[scratch_ptr[r] + i]`` is the chunk id whose size place ``i`` of rank
    ``r``'s scratch has, or -1 for "the largest": then chunks must be equal, and callers pad.

    ``ways`` are ways through the fabric that messages are meant to take: ``target_way`` has for each of ``targets`` an index into it, or
    -1 for whatever way the network takes by itself, as all messages do when it is None. Where nobody can choose the way of a message (a
    program that leaves it to the network), the schedule is as right, and as fast as the network's own ways let it be.
    """

    spec: CollectiveSpec
    algorithm: str
    chunks: int
    slots: int
    fifo: int
    lane_rank: IntArray
    lane_channel: IntArray
    lane_rail: IntArray
    lane_ptr: IntArray
    operand_ptr: IntArray
    operand_buf: npt.NDArray[np.uint8]
    operand_off: IntArray
    dst_buf: npt.NDArray[np.uint8]
    dst_off: IntArray
    target_ptr: IntArray
    targets: IntArray
    count: IntArray
    dep_ptr: IntArray
    deps: IntArray
    scratch_ptr: IntArray
    scratch_like: IntArray
    weights: IntArray | None = None
    params: tuple[tuple[str, Any], ...] = ()
    ways: tuple[Way, ...] = ()
    target_way: IntArray | None = None

    def __post_init__(self) -> None:
        for column in self._columns():
            if column is not None:
                column.setflags(write=False)

    def _columns(self) -> tuple[npt.NDArray[Any] | None, ...]:
        return (
            self.lane_rank, self.lane_channel, self.lane_rail, self.lane_ptr, self.operand_ptr, self.operand_buf, self.operand_off,
            self.dst_buf, self.dst_off, self.target_ptr, self.targets, self.count, self.dep_ptr, self.deps, self.scratch_ptr,
            self.scratch_like, self.weights, *(() if self.target_way is None else (self.target_way,)),
        )  # fmt: skip

    @property
    def num_steps(self) -> int:
        return len(self.count)

    @property
    def num_lanes(self) -> int:
        return len(self.lane_rank)

    @cached_property
    def step_lane(self) -> IntArray:
        """The lane of each step."""
        return np.repeat(np.arange(self.num_lanes, dtype=np.int32), np.diff(self.lane_ptr))

    @cached_property
    def step_rank(self) -> IntArray:
        """The rank of each step."""
        return self.lane_rank[self.step_lane]

    @property
    def needs_equal_chunks(self) -> bool:
        """Whether callers must pad blocks to a multiple of ``chunks`` (some scratch place holds chunks of several sizes)."""
        return bool((self.scratch_like < 0).any())

    @property
    def label(self) -> str:
        """The algorithm with its parameters, such as ``ring[channels=2]``."""
        inside = ",".join(f"{k}={v}" for k, v in self.params)
        return f"{self.algorithm}[{inside}]" if inside else self.algorithm

    def step(self, index: int) -> Step:
        lane = int(self.step_lane[index])
        ops = range(self.operand_ptr[index], self.operand_ptr[index + 1])
        dst = Buf(self.dst_buf[index])
        return Step(
            index=index,
            rank=int(self.lane_rank[lane]),
            lane=lane,
            channel=int(self.lane_channel[lane]),
            operands=tuple((Buf(self.operand_buf[i]), int(self.operand_off[i])) for i in ops),
            dst=None if dst is Buf.NONE else (dst, int(self.dst_off[index])),
            targets=tuple(self.targets[self.target_ptr[index] : self.target_ptr[index + 1]].tolist()),
            count=int(self.count[index]),
            deps=tuple(self.deps[self.dep_ptr[index] : self.dep_ptr[index + 1]].tolist()),
        )

    def steps(self) -> Iterator[Step]:
        return (self.step(i) for i in range(self.num_steps))

    def lanes_of(self, rank: int) -> range:
        """Indices of ``rank``'s lanes."""
        lo, hi = np.searchsorted(self.lane_rank, [rank, rank + 1])
        return range(int(lo), int(hi))

    def scratch_places(self, rank: int) -> IntArray:
        """``scratch_like`` of one rank."""
        return self.scratch_like[self.scratch_ptr[rank] : self.scratch_ptr[rank + 1]]

    @cached_property
    def digest(self) -> str:
        """A hash of the whole schedule; ranks compare it before they first use one together."""
        h = hashlib.sha256(repr((self.spec, self.algorithm, self.chunks, self.slots, self.fifo)).encode())
        for column in self._columns():
            h.update(b"none" if column is None else np.ascontiguousarray(column).tobytes() + b"|")
        if self.ways:
            h.update(repr(self.ways).encode())
        return h.hexdigest()


@dataclass(slots=True)
class _Lane:
    rank: int
    channel: int
    rail: int
    waited: dict[int, int] = field(default_factory=dict)
    """Per other lane, the last of its steps that a step of this lane waits for."""


class _Rows:
    """A column of rows of any length, flat: many small objects would keep the garbage collector busy."""

    def __init__(self) -> None:
        self.ends = array("q")
        self.values = array("i")

    def end_row(self) -> None:
        self.ends.append(len(self.values))

    def take(self, order: npt.NDArray[np.intp]) -> tuple[IntArray, npt.NDArray[np.intp]]:
        """The offsets of the rows in a new ``order``, and where in ``values`` each of their elements is."""
        ends = np.frombuffer(self.ends, dtype=np.int64)
        lengths = np.diff(ends, prepend=0)[order]
        offsets = _offsets(lengths)
        at = np.arange(offsets[-1]) + np.repeat(ends[order] - lengths - offsets[:-1], lengths)
        return offsets, at


class ScheduleBuilder:
    """Collects steps in program order and adds the dependencies between lanes that the data needs.

    Call :meth:`step` (or one of its short forms) for each rank in an order in which a single thread could run that rank's steps.
    A step that reads what another lane wrote, or overwrites what another lane still reads or wrote, gets a dependency on it;
    with ``in_place`` the input and output buffers are treated as the overlapping storage that an in-place call gives.
    """

    def __init__(
        self, spec: CollectiveSpec, algorithm: str, *, chunks: int = 1, weights: Sequence[int] | None = None, slots: int = 2, fifo: int = 1,
        in_place: bool = True, params: Iterable[tuple[str, Any]] = (), window: bool = False,
    ) -> None:  # fmt: skip
        """``window`` keeps ``slots`` as a limit of how many segments a rank has under way, also when there is no scratch."""
        if chunks < 1:
            raise ValueError(f"{algorithm}: {chunks} chunks per block; expected at least 1")
        if weights is not None and len(weights) != spec.num_blocks * chunks:
            raise ValueError(f"{algorithm}: {len(weights)} weights for {spec.num_blocks} blocks of {chunks} chunks")
        self.spec = spec
        self.algorithm = algorithm
        self.chunks = chunks
        self.weights = weights
        self.slots = slots
        self.fifo = fifo
        self.in_place = in_place and spec.aliases
        self.params = tuple(params)
        self._window = window
        self._lanes: list[_Lane] = []
        self._lane_key: dict[tuple[int, Any], int] = {}
        self._step_lane, self._count, self._dst_buf, self._dst_off = array("i"), array("i"), array("B"), array("i")
        self._operand_buf = array("B")
        self._operands, self._targets, self._deps = _Rows(), _Rows(), _Rows()
        self._ways: dict[Way, int] = {}
        self._target_way = array("i")
        self._scratch: list[list[int]] = [[] for _ in range(spec.ranks)]
        # Per rank and place: the last writer, and the readers since.
        self._writer: list[dict[int, int]] = [{} for _ in range(spec.ranks)]
        self._readers: list[dict[int, list[int]]] = [{} for _ in range(spec.ranks)]

    def lane(self, rank: int, name: Any = 0, *, channel: int = 0, rail: int = 0) -> int:
        """The lane of ``rank`` called ``name``; made at its first use, with the given channel and rail."""
        key = (rank, name)
        if key not in self._lane_key:
            self._lane_key[key] = len(self._lanes)
            self._lanes.append(_Lane(rank, channel, rail))
        return self._lane_key[key]

    def scratch(self, rank: int, like: Iterable[int]) -> int:
        """Reserves consecutive scratch places with the sizes of the chunk ids ``like``; returns the first one's offset."""
        places = self._scratch[rank]
        offset = len(places)
        places.extend(like)
        return offset

    def _places(self, rank: int, buf: Buf, off: int, count: int) -> Iterable[int]:
        """One number for each storage place, so that an input chunk and the output chunk it shares storage with meet."""
        if buf is Buf.INPUT and self.in_place:
            return [self._input_place(rank, i) for i in range(off, off + count)]
        return range(off * 4 + buf, (off + count) * 4 + buf, 4)

    def _input_place(self, rank: int, off: int) -> int:
        block, chunk = divmod(off, self.chunks)
        out = self.spec.aliased_output(rank, block)
        return off * 4 + Buf.INPUT if out is None else (out * self.chunks + chunk) * 4 + Buf.OUTPUT

    def step(
        self, lane: int, operands: Sequence[tuple[Buf, int]], dst: tuple[Buf, int] | None = None, targets: Sequence[int] = (),
        count: int = 1, deps: Iterable[int] = (), ways: Sequence[Way | None] = (),
    ) -> int:  # fmt: skip
        """Appends a step to ``lane`` and returns its number, which later steps may name in ``deps``.

        ``ways`` has the way to each of ``targets`` (None: the network's own); empty, the network's own for all.
        """
        number = len(self._step_lane)
        rank = self._lanes[lane].rank
        writer, readers = self._writer[rank], self._readers[rank]
        wanted = list(deps)
        for buf, off in operands:
            self._operand_buf.append(buf)
            self._operands.values.append(off)
            if buf is not Buf.PEER:
                for place in self._places(rank, buf, off, count):
                    if place in writer:
                        wanted.append(writer[place])
                    if place in readers:
                        readers[place].append(number)
                    else:
                        readers[place] = [number]
        if dst is not None:
            for place in self._places(rank, *dst, count):
                if place in writer:
                    wanted.append(writer[place])
                wanted.extend(readers.pop(place, ()))
                writer[place] = number
        self._wait(lane, number, wanted)
        self._operands.end_row()
        self._targets.values.extend(targets)
        self._targets.end_row()
        for way in ways or (None,) * len(targets):
            self._target_way.append(-1 if way is None else self._ways.setdefault(way, len(self._ways)))
        self._step_lane.append(lane)
        self._count.append(count)
        self._dst_buf.append(Buf.NONE if dst is None else dst[0])
        self._dst_off.append(0 if dst is None else dst[1])
        return number

    def _wait(self, lane: int, number: int, wanted: list[int]) -> None:
        """Keeps what ``wanted`` adds to the lane's own order and to what its earlier steps waited for: the latest step of each lane."""
        latest: dict[int, int] = {}
        for dep in wanted:
            if dep < number:
                other = self._step_lane[dep]
                if other != lane and dep > latest.get(other, -1):
                    latest[other] = dep
            elif dep > number:
                raise ValueError(f"{self.algorithm}: step {number} depends on step {dep}, which does not exist yet")
        waited = self._lanes[lane].waited
        for other in sorted(latest):
            if latest[other] > waited.get(other, -1):
                waited[other] = latest[other]
                self._deps.values.append(latest[other])
        self._deps.end_row()

    def send(self, lane: int, src: tuple[Buf, int], targets: int | Sequence[int], count: int = 1, deps: Iterable[int] = ()) -> int:
        return self.step(lane, [src], None, [targets] if isinstance(targets, int) else targets, count, deps)

    def recv(self, lane: int, peer: int, dst: tuple[Buf, int], count: int = 1, deps: Iterable[int] = ()) -> int:
        return self.step(lane, [(Buf.PEER, peer)], dst, (), count, deps)

    def recv_reduce(
        self, lane: int, peer: int, src: tuple[Buf, int], dst: tuple[Buf, int], count: int = 1, deps: Iterable[int] = ()
    ) -> int:
        """``dst = message of peer + src``: the accumulated partial is on the left, so chains sum in the order of their ranks."""
        return self.step(lane, [(Buf.PEER, peer), src], dst, (), count, deps)

    def copy(self, lane: int, src: tuple[Buf, int], dst: tuple[Buf, int], count: int = 1, deps: Iterable[int] = ()) -> int:
        return self.step(lane, [src], dst, (), count, deps)

    def build(self) -> Schedule:
        """The finished columns, lanes sorted by rank (stable), dependencies within one lane and implied ones dropped."""
        step_lane = _ints(self._step_lane)
        steps_of = np.bincount(step_lane, minlength=len(self._lanes))
        lanes = sorted((i for i in range(len(self._lanes)) if steps_of[i]), key=lambda i: self._lanes[i].rank)
        lane_at = np.zeros(len(self._lanes), dtype=np.intp)
        lane_at[lanes] = np.arange(len(lanes))
        order = np.argsort(lane_at[step_lane], kind="stable")
        new_index = np.empty(len(order), dtype=np.int32)
        new_index[order] = np.arange(len(order), dtype=np.int32)
        operand_ptr, operand_at = self._operands.take(order)
        target_ptr, target_at = self._targets.take(order)
        dep_ptr, dep_at = self._deps.take(order)
        slots = self.slots if any(self._scratch) or self._window else 0
        return Schedule(
            spec=self.spec, algorithm=self.algorithm, chunks=self.chunks, slots=slots, fifo=self.fifo,
            lane_rank=_ints(self._lanes[i].rank for i in lanes), lane_channel=_ints(self._lanes[i].channel for i in lanes),
            lane_rail=_ints(self._lanes[i].rail for i in lanes), lane_ptr=_offsets(steps_of[lanes]),
            operand_ptr=operand_ptr, operand_buf=_bytes(self._operand_buf)[operand_at],
            operand_off=_ints(self._operands.values)[operand_at],
            dst_buf=_bytes(self._dst_buf)[order], dst_off=_ints(self._dst_off)[order],
            target_ptr=target_ptr, targets=_ints(self._targets.values)[target_at],
            count=_ints(self._count)[order], dep_ptr=dep_ptr, deps=new_index[_ints(self._deps.values)[dep_at]],
            scratch_ptr=_offsets([len(s) for s in self._scratch]), scratch_like=_ints(c for s in self._scratch for c in s),
            weights=None if self.weights is None else _ints(self.weights), params=self.params,
            ways=tuple(self._ways), target_way=_ints(self._target_way)[target_at] if self._ways else None,
        )  # fmt: skip


def _ints(values: Iterable[int]) -> IntArray:
    return np.frombuffer(values, dtype=np.int32) if isinstance(values, array) and values else np.fromiter(values, dtype=np.int32)


def _bytes(values: array[int]) -> npt.NDArray[np.uint8]:
    return np.fromiter(values, dtype=np.uint8) if not values else np.frombuffer(values, dtype=np.uint8)


def _offsets(lengths: Sequence[int] | npt.NDArray[np.int64]) -> IntArray:
    return np.concatenate([np.zeros(1, dtype=np.int32), np.cumsum(np.asarray(lengths, dtype=np.int32), dtype=np.int32)])
