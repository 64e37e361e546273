"""How the messages of a schedule travel: inside a host through rings of slots in the arena of the ranks that share memory, between hosts
over the rails of the transport.

Every sending lane has one ring for each distinct set of local targets. A message is written once into the next slot of its
ring and announced by the ring's *published* counter; each reader announces in its own *taken* counter that the slot may be
used again. All counters have a cache line of their own and a single writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from topoccl.algorithms.hazards import Hazards
from topoccl.algorithms.schedule import Buf, Schedule
from topoccl.algorithms.shares import at_once, fair_shares
from topoccl.algorithms.turns import in_turn
from topoccl.algorithms.verify import happens_before_order
from topoccl.collectives.executor.geometry import Geometry
from topoccl.topology.graph import Topology
from topoccl.topology.rails import RailTable

_LINE = 64


@dataclass(slots=True)
class Ring:
    """One ring of slots. ``line`` is its first counter line within its owner's lines: published, then one per reader."""

    owner: int
    readers: tuple[int, ...]
    line: int
    steps: list[int] = field(default_factory=list)  # the send steps of one segment, in order


class Wiring:
    """What lowering needs of a schedule that does not depend on sizes: its rings among the ranks ``local`` that share memory, orders of
    its steps, the rails of its messages, of which ``rails`` knows what number the transport gives them (None: it has only one), and how
    messages share the links of ``topology``."""

    def __init__(
        self, schedule: Schedule, local: Sequence[int], rails: RailTable | None = None, topology: Topology | None = None
    ) -> None:  # fmt: skip
        self.schedule = schedule
        self.local = frozenset(local)
        self._rails = rails
        self._topology = topology
        self._sequences: dict[tuple[int, int, bool], list[tuple[int, int]]] = {}
        self._hazards: dict[tuple[int, bool], Hazards] = {}
        self.rings: dict[int, list[Ring]] = {rank: [] for rank in local}
        self.lines: dict[int, int] = dict.fromkeys(local, 0)
        self._sent: dict[int, tuple[Ring, int]] = {}
        streams: dict[tuple[int, int, int], list[tuple[Ring, int]]] = {}
        for rank in local:
            by_targets: dict[tuple[int, tuple[int, ...]], Ring] = {}
            for lane in schedule.lanes_of(rank):
                channel = int(schedule.lane_channel[lane])
                for index in range(int(schedule.lane_ptr[lane]), int(schedule.lane_ptr[lane + 1])):
                    targets = self._local_targets(index)
                    if not targets:
                        continue
                    ring = by_targets.get((lane, targets))
                    if ring is None:
                        ring = by_targets[lane, targets] = Ring(rank, targets, self.lines[rank])
                        self.lines[rank] += 1 + len(targets)
                        self.rings[rank].append(ring)
                    entry = (ring, len(ring.steps))
                    ring.steps.append(index)
                    self._sent[index] = entry
                    for target in targets:
                        streams.setdefault((rank, target, channel), []).append(entry)
        self._received: dict[tuple[int, int], tuple[Ring, int]] = {}
        for rank in local:
            taken: dict[tuple[int, int], int] = {}
            for lane in schedule.lanes_of(rank):
                channel = int(schedule.lane_channel[lane])
                for index in range(int(schedule.lane_ptr[lane]), int(schedule.lane_ptr[lane + 1])):
                    for i in range(int(schedule.operand_ptr[index]), int(schedule.operand_ptr[index + 1])):
                        peer = int(schedule.operand_off[i])
                        if schedule.operand_buf[i] == Buf.PEER and peer in self.local:
                            at = taken.get((peer, channel), 0)
                            taken[peer, channel] = at + 1
                            self._received[index, peer] = streams[peer, rank, channel][at]

    def rail(self, src: int, dst: int, channel: int) -> int:
        """The transport's number of the rail that the messages of a stream take: what the lane of the sender says, on its routes."""
        return 0 if self._rails is None else self._rails.number(src, dst, self._lane_rails.get((src, dst, channel), 0))

    @cached_property
    def _lane_rails(self) -> dict[tuple[int, int, int], int]:
        """The rail of each stream (source, destination, channel), all sends of which are in one lane; those on rail 0 are left out."""
        schedule = self.schedule
        railed = np.flatnonzero(schedule.lane_rail)
        found: dict[tuple[int, int, int], int] = {}
        for lane in railed.tolist():
            targets = schedule.targets[schedule.target_ptr[schedule.lane_ptr[lane]] : schedule.target_ptr[schedule.lane_ptr[lane + 1]]]
            src, channel, rail = int(schedule.lane_rank[lane]), int(schedule.lane_channel[lane]), int(schedule.lane_rail[lane])
            found.update(((src, dst, channel), rail) for dst in np.unique(targets).tolist())
        return found

    @cached_property
    def at_once(self) -> bool:
        """Whether all messages between hosts leave at once."""
        return self._topology is not None and at_once(self.schedule, self._topology)

    @cached_property
    def shares(self) -> dict[tuple[int, int], float]:
        """What share of the rate of the way from rank to rank their messages should take; only for those that leave :attr:`at_once`."""
        assert self._topology is not None
        return fair_shares(self.schedule, self._topology)

    def sequence(self, rank: int, segments: int, *, pulls: bool = False) -> list[tuple[int, int]]:
        """(segment, step) of all of a rank's steps, in an order in which every rank can run its own one after the other.

        ``pulls`` says that messages are read where they are: then sends must not wait until others have read what they overwrite.
        """
        found = self._sequences.get((rank, segments, pulls))
        if found is None:
            order, steps = happens_before_order(self.schedule, segments)
            if segments == 1 and not pulls:
                found = [(0, step) for step in in_turn(self.schedule, steps, rank, self.local)]
            else:
                mine = np.flatnonzero(self.schedule.step_rank[steps] == rank)
                found = list(zip(order[mine].tolist(), steps[mine].tolist(), strict=True))
            self._sequences[rank, segments, pulls] = found
        return found

    def hazards(self, rank: int, in_place: bool) -> Hazards:
        """Which of a rank's steps overwrite what its earlier sends still read."""
        found = self._hazards.get((rank, in_place))
        if found is None:
            found = self._hazards[rank, in_place] = Hazards(self.schedule, rank, in_place)
        return found

    def _local_targets(self, step: int) -> tuple[int, ...]:
        ptr = self.schedule.target_ptr
        return tuple(t for t in self.schedule.targets[ptr[step] : ptr[step + 1]].tolist() if t in self.local)

    def sent(self, step: int) -> tuple[Ring, int] | None:
        """The ring that a step publishes into and the message's place within its segment; None when no target is local."""
        return self._sent.get(step)

    def received(self, step: int, peer: int) -> tuple[Ring, int]:
        """The ring from which a step takes the message of a local peer, and the message's place within its segment."""
        return self._received[step, peer]


class Layout:
    """Slots of every ring for given sizes: where each lies in its owner's area, in bytes."""

    def __init__(self, wiring: Wiring, geometry: Geometry, area: int) -> None:
        schedule = wiring.schedule
        self.offset: dict[int, int] = {}  # by id(ring)
        self.slot: dict[int, int] = {}
        self.depth: dict[int, int] = {}
        self.extent: dict[int, int] = {}  # bytes that a rank's slots take in its area
        worst = 0
        for rank, rings in wiring.rings.items():
            slots = [max(self._message(schedule, geometry, rank, step) for step in ring.steps) for ring in rings]
            slots = [-(-nbytes // _LINE) * _LINE for nbytes in slots]
            least = sum(slots) * schedule.fifo
            worst = max(worst, least)
            spare = max(1, area // max(least, 1))
            at = 0
            for ring, nbytes in zip(rings, slots, strict=True):
                depth = schedule.fifo * min(spare, max(1, -(-8 // schedule.fifo)))
                self.offset[id(ring)], self.slot[id(ring)], self.depth[id(ring)] = at, nbytes, depth
                at += nbytes * depth
            self.extent[rank] = at
        self.fits = worst <= area

    @staticmethod
    def _message(schedule: Schedule, geometry: Geometry, rank: int, step: int) -> int:
        """The most bytes that a send step moves in any segment."""
        first = int(schedule.operand_ptr[step])
        count = int(schedule.count[step])
        for i in range(first, int(schedule.operand_ptr[step + 1])):
            if schedule.operand_buf[i] != Buf.PEER:
                ids = geometry.chunk_ids(rank, Buf(schedule.operand_buf[i]), int(schedule.operand_off[i]), count)
                break
        else:
            ids = geometry.chunk_ids(rank, Buf(schedule.dst_buf[step]), int(schedule.dst_off[step]), count)
        return sum(map(geometry.largest, ids)) * geometry.itemsize
