"""First part of a proof: the columns are well formed, and the messages of every stream pair up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from topoccl.algorithms.schedule import Buf, Schedule
from topoccl.algorithms.ways import links_of
from topoccl.topology.graph import Topology

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class ScheduleError(ValueError):
    """A schedule is wrong.

    Attributes:
        step: index of the step to blame, or None where no single step is (a malformed column).
        problem: what is wrong with it.
    """

    def __init__(self, schedule: Schedule, step: int | None, problem: str) -> None:
        self.step = step
        self.problem = problem
        where = f"{schedule.spec.collective} by {schedule.label} on {schedule.spec.ranks} ranks"
        super().__init__(f"{where}: {problem}" if step is None else f"{where}: {schedule.step(step)}: {problem}")


@dataclass(frozen=True)
class Messages:
    """All messages of one segment, sorted by stream and then by their order in it.

    Attributes:
        send_step, recv_step: the step that sends, and the one that receives, each message.
        operand: index of the operand that takes it.
        number: its number within its stream.
        length: how many messages its stream has in a segment.
    """

    send_step: Ints
    recv_step: Ints
    operand: Ints
    number: Ints
    length: Ints


def places_per_rank(schedule: Schedule) -> tuple[Ints, Ints, Ints]:
    """How many places the input, output and scratch buffers of each rank have."""
    spec, ranks = schedule.spec, range(schedule.spec.ranks)
    inputs = np.array([len(spec.input_blocks(r)) for r in ranks], dtype=np.int64) * schedule.chunks
    outputs = np.array([len(spec.output_blocks(r)) for r in ranks], dtype=np.int64) * schedule.chunks
    return inputs, outputs, np.diff(schedule.scratch_ptr).astype(np.int64)


def check_columns(schedule: Schedule) -> None:
    """Lengths, pointers, lanes and scalar fields: whatever must hold before a step can even be printed."""

    def refuse(problem: str) -> None:
        raise ScheduleError(schedule, None, problem)

    def pointer(name: str, column: npt.NDArray[Any], length: int, values: int) -> None:
        if len(column) != length + 1 or column[0] != 0 or column[-1] != values or (np.diff(column) < 0).any():
            refuse(f"{name} must rise from 0 to {values} in {length + 1} entries")

    s, n, ranks = schedule, schedule.num_steps, schedule.spec.ranks
    if s.chunks < 1 or s.fifo < 1 or s.slots < 0:
        refuse(f"chunks {s.chunks}, fifo {s.fifo}, slots {s.slots}: expected at least 1, 1 and 0")
    pointer("lane_ptr", s.lane_ptr, s.num_lanes, n)
    pointer("operand_ptr", s.operand_ptr, n, len(s.operand_buf))
    pointer("target_ptr", s.target_ptr, n, len(s.targets))
    pointer("dep_ptr", s.dep_ptr, n, len(s.deps))
    pointer("scratch_ptr", s.scratch_ptr, ranks, len(s.scratch_like))
    for name, column, length in (
        ("lane_channel", s.lane_channel, s.num_lanes),
        ("lane_rail", s.lane_rail, s.num_lanes),
        ("operand_off", s.operand_off, len(s.operand_buf)),
        ("dst_buf", s.dst_buf, n),
        ("dst_off", s.dst_off, n),
    ):
        if len(column) != length:
            refuse(f"{name} has {len(column)} entries; expected {length}")
    for name, values in (("operand_buf", s.operand_buf), ("dst_buf", s.dst_buf)):
        if len(values) and values.max() > Buf.NONE:
            refuse(f"{name} holds {values.max()}, which is no buffer")
    if s.num_lanes and (s.lane_rank.min() < 0 or s.lane_rank.max() >= ranks or (np.diff(s.lane_rank) < 0).any()):
        refuse(f"lanes must be sorted by rank, 0 to {ranks - 1}; lane_rank is {s.lane_rank.tolist()}")
    if s.target_way is not None:
        if len(s.target_way) != len(s.targets):
            refuse(f"target_way has {len(s.target_way)} entries; expected {len(s.targets)}")
        if len(s.target_way) and (s.target_way.min() < -1 or s.target_way.max() >= len(s.ways)):
            refuse(f"target_way must name ways 0 to {len(s.ways) - 1}, or be -1")
    for at, (vertices, places) in enumerate(s.ways):
        if len(vertices) < 2 or len(places) != len(vertices) - 1:
            refuse(f"way {at} has {len(vertices)} vertices and {len(places)} links between them; expected one link less, and at least one")
    empty = np.flatnonzero(np.diff(s.lane_ptr) == 0)
    if len(empty):
        refuse(f"lane {empty[0]} has no steps")
    if s.num_lanes and s.lane_channel.min() < 0:
        refuse(f"lane {int(s.lane_channel.argmin())} has channel {s.lane_channel.min()}")
    ids = s.spec.num_blocks * s.chunks
    if len(s.scratch_like) and (s.scratch_like.min() < -1 or s.scratch_like.max() >= ids):
        refuse(f"scratch_like must name chunks 0 to {ids - 1}, or be -1")
    if len(s.scratch_like) and s.slots == 0:
        refuse("scratch needs a finite number of slots; slots is 0")
    if s.weights is not None and (len(s.weights) != ids or (s.weights < 0).any()):
        refuse(f"weights must be {ids} numbers that are not negative, one for each chunk")
    if s.needs_equal_chunks and (s.spec.uneven or s.weights is not None):
        refuse("a scratch place of no chunk's size (-1) needs equal chunks; these have weights or counts of their own")


def check_steps(schedule: Schedule) -> None:
    """Every operand, destination, target and dependency names something that exists and that the step may use."""
    s, n, ranks = schedule, schedule.num_steps, schedule.spec.ranks
    rank, lane = s.step_rank, s.step_lane
    sizes = np.zeros((len(Buf), ranks), dtype=np.int64)
    sizes[Buf.INPUT], sizes[Buf.OUTPUT], sizes[Buf.SCRATCH] = places_per_rank(s)

    def refuse(step: Any, problem: str) -> None:
        raise ScheduleError(s, int(step), problem)

    def first(bad: Bools) -> int:
        return int(bad.argmax()) if bad.any() else -1

    if (i := first(s.count < 0)) >= 0:
        refuse(i, f"moves {s.count[i]} chunks; expected 0 (an empty message) or more")
    owner = np.repeat(np.arange(n), np.diff(s.operand_ptr))
    if (o := first(s.operand_buf == Buf.NONE)) >= 0:
        refuse(owner[o], "an operand lies in no buffer")
    peer = s.operand_buf == Buf.PEER
    off = s.operand_off
    if (o := first(~peer & ((off < 0) | (off + s.count[owner] > sizes[s.operand_buf, rank[owner]])))) >= 0:
        refuse(owner[o], _outside(s, int(owner[o]), Buf(s.operand_buf[o]), sizes))
    if (o := first(peer & ((off < 0) | (off >= ranks) | (off == rank[owner])))) >= 0:
        refuse(owner[o], f"receives from rank {off[o]}; a peer is another of the ranks 0 to {ranks - 1}")
    key = owner[peer].astype(np.int64) * ranks + off[peer]
    if (o := _repeated(key)) >= 0:
        refuse(key[o] // ranks, f"takes two messages of rank {key[o] % ranks} at once")
    dst = s.dst_buf
    if (i := first(dst == Buf.PEER)) >= 0:
        refuse(i, "its destination is a peer; those are targets")
    if (i := first(dst == Buf.INPUT)) >= 0:
        refuse(i, "writes into the input")
    if (i := first((dst != Buf.NONE) & ((s.dst_off < 0) | (s.dst_off + s.count > sizes[dst, rank])))) >= 0:
        refuse(i, _outside(s, i, Buf(dst[i]), sizes))
    sender = np.repeat(np.arange(n), np.diff(s.target_ptr))
    if (t := first((s.targets < 0) | (s.targets >= ranks) | (s.targets == rank[sender]))) >= 0:
        refuse(sender[t], f"sends to rank {s.targets[t]}; a peer is another of the ranks 0 to {ranks - 1}")
    key = sender.astype(np.int64) * ranks + s.targets
    if (t := _repeated(key)) >= 0:
        refuse(sender[t], f"sends to rank {s.targets[t]} twice")
    operands, sends = np.diff(s.operand_ptr), np.diff(s.target_ptr)
    if (i := first((operands == 0) & ((dst != Buf.NONE) | (sends > 0)))) >= 0:
        refuse(i, "has no operand to store or send")
    receives = np.bincount(owner[peer], minlength=n)
    if (i := first((operands > 0) & (receives == 0) & (dst == Buf.NONE) & (sends == 0))) >= 0:
        refuse(i, "has no effect: neither a destination nor a target")
    if (i := first((operands > 0) & (receives == 0) & (sends == 0) & (s.count == 0))) >= 0:
        refuse(i, "moves 0 chunks; only messages may be empty")
    if not s.spec.reduces and (i := first(operands > 1)) >= 0:
        refuse(i, f"reduces {operands[i]} operands, but {s.spec.collective} reduces nothing")
    waiter = np.repeat(np.arange(n), np.diff(s.dep_ptr))
    if (d := first((s.deps < 0) | (s.deps >= n))) >= 0:
        refuse(waiter[d], f"depends on step {s.deps[d]}, which does not exist")
    if (d := first(rank[s.deps] != rank[waiter])) >= 0:
        refuse(waiter[d], f"depends on step {s.deps[d]} of rank {rank[s.deps[d]]}; dependencies order the lanes of one rank")
    if (d := first(lane[s.deps] == lane[waiter])) >= 0:
        refuse(waiter[d], f"depends on step {s.deps[d]} of its own lane, whose steps run in order anyway")


def check_ways(schedule: Schedule, topology: Topology) -> None:
    """Every way that a message names is one of ``topology``, from the slot of its sender to that of its receiver."""
    s, slots = schedule, topology.slots
    if s.target_way is None:
        return
    sender = np.repeat(np.arange(s.num_steps), np.diff(s.target_ptr))
    for at in np.flatnonzero(s.target_way >= 0).tolist():
        step, way = int(sender[at]), int(s.target_way[at])
        src, dst = slots[s.step_rank[step]], slots[s.targets[at]]
        vertices = s.ways[way][0]
        if (vertices[0], vertices[-1]) != (src, dst):
            raise ScheduleError(s, step, f"sends from {src} to {dst} by way {way}, which leads from {vertices[0]} to {vertices[-1]}")
    for way in np.unique(s.target_way[s.target_way >= 0]).tolist():
        try:
            links_of(topology, s.ways[way])
        except ValueError as error:
            raise ScheduleError(s, int(sender[int((s.target_way == way).argmax())]), f"takes way {way}: {error}") from None


def _outside(schedule: Schedule, step: int, buf: Buf, sizes: Ints) -> str:
    rank = int(schedule.step_rank[step])
    return f"rank {rank}'s {buf.name.lower()} has {sizes[buf, rank]} places"


def _repeated(key: Ints) -> int:
    """Position of an entry that occurs a second time, or -1."""
    order = np.argsort(key, kind="stable")
    same = key[order[1:]] == key[order[:-1]]
    return int(order[1:][same].min()) if same.any() else -1


def pair_messages(schedule: Schedule) -> Messages:
    """Matches the k-th send of every stream (source, destination, channel) with its k-th receive."""
    s, n, ranks = schedule, schedule.num_steps, schedule.spec.ranks
    channels = int(s.lane_channel.max()) + 1 if s.num_lanes else 1
    rank, lane = s.step_rank.astype(np.int64), s.step_lane
    channel = s.lane_channel[lane].astype(np.int64)
    sender = np.repeat(np.arange(n), np.diff(s.target_ptr))
    operand = np.flatnonzero(s.operand_buf == Buf.PEER)
    receiver = np.repeat(np.arange(n), np.diff(s.operand_ptr))[operand]
    send_key = (rank[sender] * ranks + s.targets) * channels + channel[sender]
    recv_key = (s.operand_off[operand].astype(np.int64) * ranks + rank[receiver]) * channels + channel[receiver]
    by_send, by_recv = np.argsort(send_key, kind="stable"), np.argsort(recv_key, kind="stable")
    sender, send_key = sender[by_send], send_key[by_send]
    receiver, recv_key, operand = receiver[by_recv], recv_key[by_recv], operand[by_recv]
    for verb, step, key in (("sends", sender, send_key), ("receives", receiver, recv_key)):
        split = np.flatnonzero((key[1:] == key[:-1]) & (lane[step[1:]] != lane[step[:-1]]))
        if len(split):
            a, b = int(step[split[0]]), int(step[split[0] + 1])
            raise ScheduleError(s, b, f"stream {_stream(key[split[0]], ranks, channels)} {verb} from two lanes; the other has step {a}")
    if len(send_key) != len(recv_key) or (send_key != recv_key).any():
        _refuse_unpaired(s, sender, send_key, receiver, recv_key, ranks, channels)
    unequal = np.flatnonzero(s.count[sender] != s.count[receiver])
    if len(unequal):
        a, b = int(sender[unequal[0]]), int(receiver[unequal[0]])
        raise ScheduleError(s, b, f"expects {s.count[b]} chunks, but {s.step(a)} sends it {s.count[a]}")
    starts = np.flatnonzero(np.diff(send_key, prepend=-1))
    lengths = np.diff(np.append(starts, len(send_key)))
    number = np.arange(len(send_key)) - np.repeat(starts, lengths)
    return Messages(sender, receiver, operand, number, np.repeat(lengths, lengths))


def _stream(key: Any, ranks: int, channels: int) -> str:
    pair, channel = divmod(int(key), channels)
    return f"{pair // ranks} -> {pair % ranks} on channel {channel}"


def _refuse_unpaired(s: Schedule, sender: Ints, send_key: Ints, receiver: Ints, recv_key: Ints, ranks: int, channels: int) -> None:
    """Names the first message that only one side knows."""
    for key in np.union1d(send_key, recv_key).tolist():
        sends, receives = sender[send_key == key], receiver[recv_key == key]
        if len(sends) == len(receives):
            continue
        paired = min(len(sends), len(receives))
        lost = sends[paired] if len(sends) > paired else receives[paired]
        what = "a message that is never received" if len(sends) > paired else "waits for a message that is never sent"
        raise ScheduleError(
            s, int(lost), f"{what}: stream {_stream(key, ranks, channels)} has {len(sends)} sends and {len(receives)} receives"
        )
