"""Lowering: a schedule becomes the program of one rank for given sizes, segments and element type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from topoccl.algorithms.hazards import Hazards
from topoccl.algorithms.schedule import Buf, Schedule
from topoccl.collectives.errors import ConfigError
from topoccl.collectives.executor import actions
from topoccl.collectives.executor.actions import Frame, Move, Ref, Remote, act_of, aligned_pieces, copy, folding, length, sequence
from topoccl.collectives.executor.arena import LINES, Arena
from topoccl.collectives.executor.dtypes import DType
from topoccl.collectives.executor.geometry import Geometry
from topoccl.collectives.executor.program import AHEAD, SHORT, Item, Mark, NetMessage, Program, Shows, Step
from topoccl.collectives.executor.reach import Reach
from topoccl.collectives.executor.reduction import Fold
from topoccl.collectives.executor.wiring import Layout, Wiring
from topoccl.collectives.transports.base import PeerCounters

_SCRATCH = 2
_MAX_SEGMENTS = 1 << 14
_PIECE = 512 << 10  # bytes of a peer's buffer that are folded at once
_PIECES = 1 << 20  # ... and of all peers' buffers, unless that makes them shorter than
_LEAST_PIECE = 128 << 10
_LEAST_SHARE = 1 / 64


@dataclass(frozen=True)
class Site:
    """Where a rank runs: its arena and who shares it. ``member`` maps a local rank to its place in the arena; ``reach`` reads their
    memory, where that is allowed."""

    rank: int
    arena: Arena | None
    member: dict[int, int]
    reach: Reach | None = None


def least_segments(schedule: Schedule, wiring: Wiring, block_elems: int | Sequence[int], itemsize: int, area: int, wanted: int) -> int:
    """The smallest number of segments, at least ``wanted``, with which all messages fit into the arena.

    Raises:
        ConfigError: not even very small segments fit, since the schedule keeps too many messages in flight.
    """
    segments = max(wanted, 1)
    while True:
        if Layout(wiring, Geometry(schedule, block_elems, segments, itemsize), area).fits:
            return segments
        if segments >= _MAX_SEGMENTS:
            raise ConfigError(f"{schedule.label}: its messages do not fit into {area} bytes of shared memory even in {segments} segments")
        segments *= 2


class Lowering:
    """Lowers one schedule for one rank; see :func:`lower`."""

    def __init__(
        self, schedule: Schedule, geometry: Geometry, wiring: Wiring, site: Site, parity: int, kernel: Fold | None, dtype: DType,
        in_place: bool, pulls: bool,
    ) -> None:  # fmt: skip
        self.schedule = schedule
        self.geometry = geometry
        self.wiring = wiring
        self.site = site
        self.parity = parity
        self.kernel = kernel
        self.dtype = dtype
        self.in_place = in_place
        self.frame = Frame() if pulls else None
        self.whole = geometry.buffer_elems(site.rank, Buf.INPUT), geometry.buffer_elems(site.rank, Buf.OUTPUT), -1
        self.layout = None if pulls else Layout(wiring, geometry, site.arena.area if site.arena else 0)
        if site.arena is not None and self.layout is not None and self.layout.extent.get(site.rank):
            site.arena.reserve(site.member[site.rank], parity, self.layout.extent[site.rank])
        self.slot_elems = geometry.scratch_slot_elems(site.rank)
        self.slots = 1 if not self.slot_elems else min(schedule.slots, geometry.segments) or geometry.segments
        self.scratch = self.slots * self.slot_elems
        self.hazards: Hazards | None = None  # only needed where messages go over the transport, or are read where they are
        self.traffic: dict[int, PeerCounters] = {}
        self.waits_for: dict[int, int] = {}
        self._temps: dict[tuple[int, str, int], tuple[int, int]] = {}
        self._uses: dict[tuple[int, str], int] = {}
        self._packed: dict[tuple[int, int], Item] = {}  # (temp start): the item whose sends read it

    # Refs

    def _local(self, buf: Buf, off: int, count: int, segment: int) -> list[Ref]:
        spans = self.geometry.spans(self.site.rank, buf, off, count, segment)
        shift = (segment % self.slots) * self.slot_elems if buf is Buf.SCRATCH else 0
        return [(int(buf), lo + shift, hi + shift) for lo, hi in spans]

    def _temp(self, lane: int, kind: str, elems: int) -> tuple[Ref, tuple[int, int]]:
        """A temporary range: each lane has two of a kind, used in turn. Also returns the key of the one used."""
        use = self._uses.get((lane, kind), 0)
        self._uses[lane, kind] = use + 1
        key = (lane, kind, use % 2)
        start, size = self._temps.get(key, (0, -1))
        if size < elems:
            start = self.scratch
            self.scratch += elems
            self._temps[key] = (start, elems)
        return (_SCRATCH, start, start + elems), (start, lane)

    # Shared memory

    def _word(self, owner: int, line: int) -> int:
        arena = self.site.arena
        assert arena is not None
        return arena.word(self.site.member[owner], self.parity, line)

    def _slot_view(self, ring_owner: int, offset: int, elems: int) -> Ref:
        arena = self.site.arena
        assert arena is not None
        return arena.slot(self.site.member[ring_owner], self.parity, offset, elems * self.dtype.itemsize).view(self.dtype.carrier)

    def _publish(self, step: int, segment: int, elems: int) -> tuple[Ref | None, list[Mark], Mark] | None:
        """The slot that a step sends through (None: peers read its value where it is), and what it waits for and announces."""
        entry = self.wiring.sent(step)
        if entry is None:
            return None
        ring, index = entry
        at = segment * len(ring.steps) + index
        guards = []
        depth = self.layout.depth[id(ring)] if self.layout is not None else at + 1
        for i, reader in enumerate(ring.readers):
            word = self._word(ring.owner, ring.line + 1 + i)
            self.waits_for[word] = reader
            if at >= depth:
                guards.append((word, at - depth + 1))
            self._count(reader, elems, sent=True)
        view = None
        if self.layout is not None:
            view = self._slot_view(ring.owner, self.layout.offset[id(ring)] + at % depth * self.layout.slot[id(ring)], elems)
        return view, guards, (self._word(ring.owner, ring.line), at + 1)

    def _take(self, step: int, peer: int, segment: int, elems: int) -> tuple[list[Ref], Mark, Mark | None]:
        """Where a message lies, the counter that announces it, and the one that says that it was read, if anybody asks."""
        ring, index = self.wiring.received(step, peer)
        at = segment * len(ring.steps) + index
        published = self._word(ring.owner, ring.line)
        self.waits_for[published] = peer
        self._count(peer, elems, sent=False)
        taken = self._word(ring.owner, ring.line + 1 + ring.readers.index(self.site.rank))
        refs: list[Ref]
        if self.layout is None:
            refs = self._remote(ring.steps[index], peer, segment)
        else:
            depth = self.layout.depth[id(ring)]
            refs = [self._slot_view(ring.owner, self.layout.offset[id(ring)] + at % depth * self.layout.slot[id(ring)], elems)]
        asked = self.layout is None or len(ring.steps) * self.geometry.segments > self.layout.depth[id(ring)]
        return refs, (published, at + 1), (taken, at + 1) if asked else None

    def _remote(self, step: int, peer: int, segment: int) -> list[Ref]:
        """The value of a peer's step, where it lies in the peer's buffers."""
        schedule, arena, reach = self.schedule, self.site.arena, self.site.reach
        assert arena is not None
        assert reach is not None
        buf, off = Buf(schedule.dst_buf[step]), int(schedule.dst_off[step])
        if buf is Buf.NONE:
            at = int(schedule.operand_ptr[step])
            buf, off = Buf(schedule.operand_buf[at]), int(schedule.operand_off[at])
        read = reach.of(peer, arena.flags, arena.shown(self.site.member[peer], self.parity))
        spans = self.geometry.spans(peer, buf, off, int(schedule.count[step]), segment)
        return [Remote(read, int(buf), lo, hi) for lo, hi in spans]

    def _unread(self, step: int, segment: int) -> list[Mark]:
        """The counters that say that all have read what ``step`` overwrites."""
        if self.frame is None or self.hazards is None:
            return []
        guards = []
        for send in self.hazards.overwritten_sends(step):
            entry = self.wiring.sent(send)
            assert entry is not None
            ring, index = entry
            count = segment * len(ring.steps) + index + 1
            guards += [(self._word(ring.owner, ring.line + 1 + i), count) for i in range(len(ring.readers))]
        return guards

    def _count(self, peer: int, elems: int, *, sent: bool) -> None:
        row = self.traffic.setdefault(peer, PeerCounters())
        if sent:
            row.sent_messages += 1
            row.sent_bytes += elems * self.dtype.itemsize
        else:
            row.received_messages += 1
            row.received_bytes += elems * self.dtype.itemsize

    # Steps

    def _item(self, step: int, lane: int, segment: int) -> Item:
        schedule = self.schedule
        count = int(schedule.count[step])
        channel = int(schedule.lane_channel[lane])
        item = Item(segment, step)
        dst: list[Ref] | None = None
        if schedule.dst_buf[step] != Buf.NONE:
            dst = self._local(Buf(schedule.dst_buf[step]), int(schedule.dst_off[step]), count, segment)
        at = range(int(schedule.operand_ptr[step]), int(schedule.operand_ptr[step + 1]))
        places = [(Buf(schedule.operand_buf[i]), int(schedule.operand_off[i])) for i in at]
        local = {i: self._local(buf, off, count, segment) for i, (buf, off) in enumerate(places) if buf is not Buf.PEER}
        known = dst if dst is not None else next(iter(local.values()), None)
        elems = 0 if known is None else sum(map(length, known))  # None: an empty message that is only heard
        targets = schedule.targets[schedule.target_ptr[step] : schedule.target_ptr[step + 1]].tolist()
        remote = [t for t in targets if t not in self.wiring.local]
        guards: list[Mark] = []
        signals: list[Mark] = []
        receives: list[NetMessage] = []
        operands: list[list[Ref]] = []
        in_dst = False
        for i, (buf, off) in enumerate(places):
            if buf is not Buf.PEER:
                operands.append(local[i])
            elif off in self.wiring.local:
                message, published, taken = self._take(step, off, segment, elems)
                guards.append(published)
                if taken is not None:
                    signals.append(taken)
                operands.append(message)
            else:
                assert self.hazards is not None
                if len(places) == 1 and dst is not None and len(dst) == 1 and not self.hazards.overwritten_sends(step):
                    ref = dst[0]
                    in_dst = True
                else:
                    # Also where earlier sends still read dst: two ranks that waited for these before they receive could block each other.
                    ref, _ = self._temp(lane, f"receive{off}", elems)
                assert isinstance(ref, tuple)
                receives.append(NetMessage(off, channel, *ref, self.wiring.rail(off, self.site.rank, channel)))
                operands.append([ref])
        published_at = self._publish(step, segment, elems)
        slot = None
        if published_at is not None:
            slot, room, announced = published_at
            guards.extend(room)
            signals.append(announced)
        guards.extend(self._unread(step, segment))
        moves: list[Move] = []
        value = operands[0] if operands else None
        if value is not None:
            if self.frame is not None and dst is not None:
                moves += self._pulls(operands, dst, lane, elems, self.frame)
                value = dst
            elif len(operands) > 1:
                assert self.kernel is not None
                into: list[Ref]
                if dst is not None and not self._late_operand_in(dst, operands):
                    into = dst
                elif slot is not None and dst is None:
                    into = [slot]
                else:
                    temp, key = self._temp(lane, "fold", elems)
                    item.awaits += self._previous(key, item, remote)
                    into = [temp]
                moves += [folding(self.kernel, row[1:], row[0]) for row in aligned_pieces([into, *operands])]
                value = into
            if dst is not None and value is not dst and not in_dst:
                moves += [copy(*row) for row in aligned_pieces([value, dst])]
                value = dst
            elif dst is not None:
                value = dst
            if slot is not None and not (len(value) == 1 and value[0] is slot):
                moves += [copy(*row) for row in aligned_pieces([value, [slot]])]
            if remote:
                if len(value) != 1 or not isinstance(value[0], tuple):
                    packed, key = self._temp(lane, "pack", elems)
                    item.awaits += self._previous(key, item, remote)
                    moves += [copy(*row) for row in aligned_pieces([value, [packed]])]
                    value = [packed]
                source = value[0]
                assert isinstance(source, tuple)
                rails = [self.wiring.rail(self.site.rank, peer, channel) for peer in remote]
                item.sends = tuple(NetMessage(peer, channel, *source, rail) for peer, rail in zip(remote, rails, strict=True))
        item.guards = tuple(guards)
        item.signals = tuple(signals)
        item.receives = tuple(receives)
        item.staged = not in_dst
        if elems:
            item.moves = tuple(moves)
            item.act = sequence([act_of(move, self.whole) for move in moves])
        return item

    def _pulls(self, operands: list[list[Ref]], dst: list[Ref], lane: int, elems: int, frame: Frame) -> list[Move]:
        """Fetches, copies or folds ``operands`` into ``dst`` when peers' are read where they are."""
        itemsize = self.dtype.itemsize
        apart = [bool(at >= 2 and self._late_operand_in(dst, [[], [], operand])) for at, operand in enumerate(operands)]
        moved = sum(away or any(isinstance(ref, Remote) for ref in operand) for operand, away in zip(operands, apart, strict=True))
        temp: Ref | None = None
        if len(operands) > 1 and moved:
            piece = max(min(_PIECE, _PIECES // moved), _LEAST_PIECE) // itemsize
            temp, _ = self._temp(lane, "pull", min(piece, max(elems, 1)) * moved)
        moves: list[Move] = []
        for into, *row in aligned_pieces([dst, *operands]):
            assert isinstance(into, tuple)
            if len(row) == 1:
                first = row[0]
                if isinstance(first, Remote):
                    moves.append(actions.pull_act(first, into, frame, itemsize))
                elif first != into:
                    moves.append(copy(first, into))
                continue
            assert self.kernel is not None
            if isinstance(temp, tuple):
                moves.append(actions.pull_fold_act(self.kernel, row, into, apart, temp, frame, itemsize))
            else:
                moves.append(folding(self.kernel, row, into))
        return moves

    def _late_operand_in(self, dst: list[Ref], operands: list[list[Ref]]) -> bool:
        """Whether an operand after the second may share storage with ``dst``: a fold into it would destroy that operand."""
        late = [ref for operand in operands[2:] for ref in operand if isinstance(ref, tuple)]
        return any(ref in dst or (self.in_place and ref[0] != _SCRATCH) for ref in late)

    def _previous(self, key: tuple[int, int], item: Item, remote: list[int]) -> tuple[Item, ...]:
        """The item whose sends still read a temporary, which ``item`` takes over."""
        before = self._packed.pop(key, None)
        if remote:
            self._packed[key] = item
        return (before,) if before is not None else ()

    def run(self) -> Program:
        schedule, rank = self.schedule, self.site.rank
        lanes = list(schedule.lanes_of(rank))
        position = {int(step): (at, index) for at, lane in enumerate(lanes) for index, step in enumerate(self._steps(lane))}
        length_of = [len(self._steps(lane)) for lane in lanes]
        items: list[list[Item]] = [[] for _ in lanes]
        if self.frame is not None or self._networked(lanes):
            self.hazards = self.wiring.hazards(rank, self.in_place)
        for segment in range(self.geometry.segments):
            for at, lane in enumerate(lanes):
                items[at].extend(self._item(step, lane, segment) for step in self._steps(lane))
        flat = None
        if self.hazards is not None and self.frame is None:
            self._add_orders(items, position, length_of)
            self._share_out(items)
        else:
            ordered = self._flatten(items, position, length_of)
            flat = _fused(ordered)
        shows = None
        if self.frame is not None:
            assert self.site.arena is not None
            drained = tuple(
                (self._word(rank, ring.line + 1 + i), self.geometry.segments * len(ring.steps))
                for ring in self.wiring.rings.get(rank, ())
                for i in range(len(ring.readers))
            )
            shows = Shows(self.site.arena.shown(self.site.member[rank], self.parity), self.frame, drained)
        short = None
        if flat is not None and len(flat) <= SHORT and not self.scratch and shows is None:
            short = ordered
        return Program(items, flat, self.scratch, shows, self.waits_for, self.traffic, self.whole, short)

    def _networked(self, lanes: Sequence[int]) -> bool:
        """Whether this rank has messages to or from ranks whose memory it does not share."""
        schedule, local = self.schedule, self.wiring.local
        lo, hi = (int(schedule.lane_ptr[lanes[0]]), int(schedule.lane_ptr[lanes[-1] + 1])) if lanes else (0, 0)
        operands = slice(int(schedule.operand_ptr[lo]), int(schedule.operand_ptr[hi]))
        peers = schedule.operand_off[operands][schedule.operand_buf[operands] == Buf.PEER].tolist()
        peers += schedule.targets[schedule.target_ptr[lo] : schedule.target_ptr[hi]].tolist()
        return any(peer not in local for peer in peers)

    def _steps(self, lane: int) -> range:
        return range(int(self.schedule.lane_ptr[lane]), int(self.schedule.lane_ptr[lane + 1]))

    def _flatten(self, items: list[list[Item]], position: dict[int, tuple[int, int]], length_of: list[int]) -> list[Item]:
        if len(items) == 1:
            return items[0]
        flat = []
        for segment, step in self.wiring.sequence(self.site.rank, self.geometry.segments, pulls=self.frame is not None):
            lane, index = position[step]
            flat.append(items[lane][segment * length_of[lane] + index])
        return flat

    def _add_orders(self, items: list[list[Item]], position: dict[int, tuple[int, int]], length_of: list[int]) -> None:
        """Dependencies between lanes, the window of segments, and items that overwrite what earlier sends still read."""
        schedule, window, hazards = self.schedule, self.schedule.slots, self.hazards
        assert hazards is not None

        def at(step: int, segment: int) -> tuple[int, int]:
            lane, index = position[step]
            return lane, segment * length_of[lane] + index

        for lane_items, steps in zip(items, length_of, strict=True):
            for number, item in enumerate(lane_items):
                segment = item.segment
                deps = [at(dep, segment) for dep in schedule.deps[schedule.dep_ptr[item.step] : schedule.dep_ptr[item.step + 1]].tolist()]
                awaits = list(item.awaits)
                for step in hazards.overwritten_sends(item.step):
                    lane, where = at(step, segment)
                    if items[lane][where].sends:
                        awaits.append(items[lane][where])
                if window and segment >= window and number % steps == 0:
                    for lane, count in enumerate(length_of):
                        where = (segment - window + 1) * count
                        deps.append((lane, where - 1))
                        awaits.extend(other for other in items[lane][where - count : where] if other.sends)
                item.deps = tuple(deps)
                item.awaits = tuple(dict.fromkeys(awaits))
                if item.receives and number:
                    item.ahead = 1 if item.staged else self._ahead(lane_items, number)

    def _share_out(self, items: list[list[Item]]) -> None:
        """Has messages that leave at once share the links between hosts: as is best for all ranks where blocks are equal, else by their
        sizes among those of this rank."""
        sending = [item for lane in items for item in lane if item.sends]
        if not sending or not self.wiring.at_once:
            return
        shares: dict[int, float] = {}
        if self.geometry.equal:
            shares = {to: share for (rank, to), share in self.wiring.shares.items() if rank == self.site.rank}
        else:
            for item in sending:
                for message in item.sends:
                    shares[message.peer] = shares.get(message.peer, 0.0) + message.hi - message.lo
            total = sum(shares.values())
            shares = {to: max(size / total, _LEAST_SHARE) for to, size in shares.items()} if total else {}
        for item in sending:
            item.sends = tuple(replace(message, share=shares.get(message.peer, 1.0)) for message in item.sends)

    def _ahead(self, lane: list[Item], number: int) -> int:
        """How many of the items before ``number`` of its lane may still run when its messages begin to arrive where they belong."""
        hazards, window = self.hazards, self.schedule.slots
        assert hazards is not None
        item, ahead = lane[number], 0
        while ahead < min(number, AHEAD):
            before = lane[number - ahead - 1]
            apart = before.segment != item.segment and window != 1
            if not apart and not hazards.independent(before.step, item.step):
                break
            ahead += 1
        return ahead


def _fused(items: list[Item]) -> list[Step]:
    """Items as steps, fewer of them: what neither waits nor does anything is announced by the one before."""
    fused: list[Step] = []
    for item in items:
        if fused and not item.guards and item.act is None:
            guards, act, signals = fused[-1]
            fused[-1] = guards, act, signals + item.signals
        else:
            fused.append((item.guards, item.act, item.signals))
    return fused


def lower(
    schedule: Schedule, wiring: Wiring, block_elems: int | Sequence[int], segments: int, dtype: DType, kernel: Fold | None, site: Site,
    parity: int, in_place: bool, pulls: bool = False,
) -> Program:  # fmt: skip
    """Lowers ``schedule`` to the program of ``site.rank``.

    Args:
        schedule: a verified schedule.
        wiring: its rings among the ranks that share memory with this one.
        block_elems: elements per block, one number or one per block.
        segments: from :func:`least_segments` when shared memory is used.
        dtype: the element type.
        kernel: the fold for reducing collectives, else None.
        site: this rank's arena.
        parity: which half of the arena the call uses.
        in_place: whether input and output share storage.
        pulls: read messages straight from the buffers of the peers, who all must be in reach, in one segment; for schedules that are
            :func:`~topoccl.algorithms.hazards.pullable`.

    Raises:
        ConfigError: more counters than the arena has.
    """
    if wiring.lines.get(site.rank, 0) > LINES:
        needed = wiring.lines[site.rank]
        raise ConfigError(f"{schedule.label}: rank {site.rank} needs {needed} counters in shared memory; there are {LINES}")
    geometry = Geometry(schedule, block_elems, segments, dtype.itemsize)
    return Lowering(schedule, geometry, wiring, site, parity, kernel, dtype, in_place, pulls).run()
