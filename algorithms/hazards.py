"""Which steps of a rank overwrite what earlier sends still read.

A schedule's step is complete when its operands may be overwritten. The executor lets a lane go on as soon as a send has been
handed to the transport; so it must know which later steps would overwrite what such a send reads, and hold only those.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from topoccl.algorithms.schedule import Buf, Schedule
from topoccl.algorithms.verify import happens_before_order
from topoccl.algorithms.verify.structure import pair_messages

Place = tuple[Buf, int]


class Hazards:
    """Overlaps among the steps of one rank, for one segment."""

    def __init__(self, schedule: Schedule, rank: int, in_place: bool) -> None:
        self.schedule = schedule
        self.rank = rank
        self.in_place = in_place
        _, steps = happens_before_order(schedule, 1)
        mine = steps[np.flatnonzero(schedule.step_rank[steps] == rank)].tolist()
        readers: dict[Place, list[int]] = {}
        self._overwritten: dict[int, list[int]] = {}
        for step in mine:
            writes = self.writes(step)
            held = list(dict.fromkeys(other for place in writes for other in readers.get(place, ()) if other != step))
            if held:
                self._overwritten[step] = held
            if schedule.target_ptr[step] < schedule.target_ptr[step + 1]:
                # A step with a destination sends what it has stored there.
                for place in writes or self.reads(step):
                    readers.setdefault(place, []).append(step)

    def overwritten_sends(self, step: int) -> list[int]:
        """Earlier steps with targets whose data ``step`` overwrites."""
        return self._overwritten.get(step, [])

    def independent(self, first: int, second: int) -> bool:
        """Whether ``second`` writes nothing that ``first`` reads or writes."""
        return not set(self.writes(second)) & set(self.writes(first) + self.reads(first))

    def writes(self, step: int) -> list[Place]:
        buf = Buf(self.schedule.dst_buf[step])
        places = [] if buf is Buf.NONE else self._places(step, buf, int(self.schedule.dst_off[step]))
        alone = self.schedule.operand_ptr[step + 1] - self.schedule.operand_ptr[step] == 1
        # In place, the copy of an input to where it lies already writes nothing.
        return [] if alone and places == self.reads(step) else places

    def reads(self, step: int) -> list[Place]:
        schedule = self.schedule
        places: list[Place] = []
        for i in range(schedule.operand_ptr[step], schedule.operand_ptr[step + 1]):
            if schedule.operand_buf[i] != Buf.PEER:
                places += self._places(step, Buf(schedule.operand_buf[i]), int(schedule.operand_off[i]))
        return places

    def _places(self, step: int, buf: Buf, off: int) -> list[Place]:
        return [self._place(buf, i) for i in range(off, off + int(self.schedule.count[step]))]

    def _place(self, buf: Buf, off: int) -> Place:
        """One name per storage place: in an in-place call an input chunk may be an output chunk."""
        if buf is Buf.INPUT and self.in_place:
            block, chunk = divmod(off, self.schedule.chunks)
            out = self.schedule.spec.aliased_output(self.rank, block)
            if out is not None:
                return (Buf.OUTPUT, out * self.schedule.chunks + chunk)
        return (buf, off)


def blocking_steps(schedule: Schedule, in_place: bool) -> list[int]:
    """Steps that could wait for each other for ever where no send completes before its receive is begun; empty if there are none.

    A schedule's proof lets sends run ahead by ``fifo`` messages. The executor hands sends to the transport and goes on, but a
    step that overwrites what a send still reads waits for it, and a transport without buffers (MPI above its eager limit,
    Gloo) completes it only when the peer has posted the receive. This draws who waits for whom under those rules, all
    messages going over the transport, and looks for a circle. Node ``2 i`` is "step i has posted its receives", ``2 i + 1``
    "step i is done".
    """
    after: list[list[int]] = [[] for _ in range(2 * schedule.num_steps)]
    hazards = [Hazards(schedule, rank, in_place) for rank in range(schedule.spec.ranks)]
    senders: dict[tuple[int, int, int], list[int]] = {}
    takers: dict[tuple[int, int, int], list[int]] = {}
    for lane in range(schedule.num_lanes):
        rank, channel = int(schedule.lane_rank[lane]), int(schedule.lane_channel[lane])
        for i in range(int(schedule.lane_ptr[lane]), int(schedule.lane_ptr[lane + 1])):
            posted, done = 2 * i, 2 * i + 1
            after[posted].append(done)
            if i > schedule.lane_ptr[lane]:
                after[done - 2].append(posted)
            operands = range(int(schedule.operand_ptr[i]), int(schedule.operand_ptr[i + 1]))
            staged = len(operands) > 1 or bool(hazards[rank].overwritten_sends(i))
            for dep in schedule.deps[schedule.dep_ptr[i] : schedule.dep_ptr[i + 1]].tolist():
                after[2 * dep + 1].append(done if staged else posted)
            for target in schedule.targets[schedule.target_ptr[i] : schedule.target_ptr[i + 1]].tolist():
                senders.setdefault((rank, target, channel), []).append(i)
            for at in operands:
                if schedule.operand_buf[at] == Buf.PEER:
                    takers.setdefault((int(schedule.operand_off[at]), rank, channel), []).append(i)
    receivers: dict[int, list[int]] = {}
    for stream, sending in senders.items():
        for sender, receiver in zip(sending, takers[stream], strict=True):
            after[2 * sender + 1].append(2 * receiver + 1)
            receivers.setdefault(sender, []).append(receiver)
    for i, rank in enumerate(schedule.step_rank.tolist()):
        for send in hazards[rank].overwritten_sends(i):
            after[2 * send + 1].append(2 * i + 1)
            for receiver in receivers.get(send, ()):
                after[2 * receiver].append(2 * i + 1)
    return sorted({node // 2 for node in _circles(after)})


def pullable(schedule: Schedule) -> bool:
    """Whether ranks of one host may run ``schedule`` by reading what others send straight from their buffers, in place too.

    Then nothing is copied for a send: it says where its value lies, and its receivers fetch it. So everything that is sent must lie
    in inputs or outputs, and a step that overwrites what an earlier send still shows waits for its readers, while each rank
    runs its steps one at a time in :func:`~topoccl.algorithms.verify.happens_before_order`: that must not end in a circle.
    """
    ranks = schedule.spec.ranks
    for i in np.flatnonzero(np.diff(schedule.target_ptr)).tolist():
        at = int(schedule.operand_ptr[i])
        buf = schedule.dst_buf[i] if schedule.dst_buf[i] != Buf.NONE else schedule.operand_buf[at]
        if buf not in (Buf.INPUT, Buf.OUTPUT) or (schedule.dst_buf[i] == Buf.NONE and schedule.operand_ptr[i + 1] - at > 1):
            return False
    _, order = happens_before_order(schedule, 1)
    messages = pair_messages(schedule)
    readers: dict[int, list[int]] = {}
    for sender, receiver in zip(messages.send_step.tolist(), messages.recv_step.tolist(), strict=True):
        readers.setdefault(sender, []).append(receiver)
    after: list[list[int]] = [[] for _ in range(schedule.num_steps)]
    for rank in range(ranks):
        hazards = Hazards(schedule, rank, schedule.spec.aliases)
        mine = order[schedule.step_rank[order] == rank].tolist()
        for before, step in pairwise(mine):
            after[before].append(step)
        for step in mine:
            after[step] += readers.get(step, [])
            for send in hazards.overwritten_sends(step):
                for receiver in readers.get(send, ()):
                    after[receiver].append(step)
    return not _circles(after)


def _circles(after: list[list[int]]) -> list[int]:
    """The nodes on or behind a circle, when ``after`` are the successors of each."""
    waits = np.zeros(len(after), np.int64)
    for successors in after:
        for node in successors:
            waits[node] += 1
    free = np.flatnonzero(waits == 0).tolist()
    while free:
        for node in after[free.pop()]:
            waits[node] -= 1
            if not waits[node]:
                free.append(node)
    return np.flatnonzero(waits > 0).tolist()
