"""Third part of a proof: which place every step touches, that no two accesses race, and which write each read sees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topoccl.algorithms.schedule import Buf, Schedule
from topoccl.algorithms.verify.order import Graph
from topoccl.algorithms.verify.structure import Bools, Ints, ScheduleError, places_per_rank

_CLOCK_ENTRIES = 1 << 24  # vector clocks are computed for as many lanes at once as fit this many entries

UNWRITTEN = -1


@dataclass(frozen=True)
class Places:
    """Storage as numbers: first all inputs, then all outputs (once a segment), and all scratch (once a slot).

    Attributes:
        base: ``base[buf, rank]`` is the number of the first place of a buffer.
        alias: the place that shares storage with an input or output place, itself for most.
        chunk: the chunk id an input or output place is for; ``scratch_chunk`` likewise, -1 for any.
    """

    base: Ints
    alias: Ints
    chunk: Ints
    scratch_chunk: Ints
    inputs: int
    outputs: int


def number_places(schedule: Schedule, in_place: bool) -> Places:
    spec, chunks = schedule.spec, schedule.chunks
    counts = places_per_rank(schedule)
    base = np.zeros((len(Buf), spec.ranks), dtype=np.int64)
    for buf, count in zip((Buf.INPUT, Buf.OUTPUT, Buf.SCRATCH), counts, strict=True):
        base[buf] = np.cumsum(count) - count
    inputs, outputs = int(counts[0].sum()), int(counts[1].sum())
    base[Buf.OUTPUT] += inputs
    blocks = [np.array(of(r), dtype=np.int64) for of in (spec.input_blocks, spec.output_blocks) for r in range(spec.ranks)]
    chunk = (np.concatenate(blocks)[:, None] * chunks + np.arange(chunks)).ravel()
    alias = np.arange(inputs + outputs)
    if in_place:
        for rank in range(spec.ranks):
            for position in range(len(spec.input_blocks(rank))):
                out = spec.aliased_output(rank, position)
                if out is not None:
                    at, to = int(base[Buf.INPUT, rank]) + position * chunks, int(base[Buf.OUTPUT, rank]) + out * chunks
                    alias[at : at + chunks] = np.arange(to, to + chunks)
    return Places(base, alias, chunk, schedule.scratch_like.astype(np.int64), inputs, outputs)


@dataclass(frozen=True)
class Elements:
    """The chunks that steps move in one segment. Step ``i`` makes elements ``ptr[i]:ptr[i+1]``, one for each chunk of its range (none
    without operands); operand ``o`` takes the operand elements ``operand_ptr[o]:operand_ptr[o+1]``."""

    ptr: Ints
    step: Ints
    index: Ints
    operand_ptr: Ints


def number_elements(schedule: Schedule) -> Elements:
    operands = np.diff(schedule.operand_ptr)
    count = schedule.count.astype(np.int64) * (operands > 0)
    step, index, ptr = _spread(count)
    operand_count = np.repeat(schedule.count.astype(np.int64), operands)
    return Elements(ptr, step, index, np.concatenate([[0], np.cumsum(operand_count)]))


def _spread(count: Ints) -> tuple[Ints, Ints, Ints]:
    """Owner and position of every unit of ``count``, and the pointers to each owner's first."""
    ptr = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(count)])
    owner = np.repeat(np.arange(len(count)), count)
    return owner, np.arange(len(owner)) - ptr[owner], ptr


@dataclass(frozen=True)
class Definitions:
    """What every read sees, in terms of unrolled elements (``segment * elements + element``).

    Attributes:
        read: for each operand element of each segment that reads a local place (see ``operand``), the element that wrote it, or
            ``-2 - place`` where the place still holds its input.
        operand: the unrolled operand element of each entry of ``read``.
        final: for each output place of each segment, the element or ``-2 - place`` it ends with, :data:`UNWRITTEN` without one.
    """

    read: Ints
    operand: Ints
    final: Ints


def resolve_reads(
    schedule: Schedule, places: Places, elements: Elements, graph: Graph, level: Ints, segments: int, in_place: bool
) -> Definitions:
    """Sorts all accesses by place and time and refuses races, reads of nothing and overlapping operands.

    Time is the topological order (segment, level, step). Between neighbours in it (a write and the accesses after it up to the next
    write) order must follow from the graph without the room of streams; then it does for all pairs.
    """
    s, n = schedule, schedule.num_steps
    owner = np.repeat(np.arange(n), np.diff(s.operand_ptr))
    local = np.flatnonzero(s.operand_buf != Buf.PEER)
    which, r_index, _ = _spread(s.count[owner[local]].astype(np.int64))
    r_operand = local[which]
    r_step = owner[r_operand]
    r_buf = s.operand_buf[r_operand]
    r_place = places.base[r_buf, s.step_rank[r_step]] + s.operand_off[r_operand] + r_index
    r_ref = elements.operand_ptr[r_operand] + r_index
    stores = (s.dst_buf[elements.step] != Buf.NONE) & ~_onto_itself(s, places)[elements.step]
    w_step, w_index, w_ref = elements.step[stores], elements.index[stores], np.flatnonzero(stores)
    w_buf = s.dst_buf[w_step]
    w_place = places.base[w_buf, s.step_rank[w_step]] + s.dst_off[w_step] + w_index

    step, index, ref = np.concatenate([r_step, w_step]), np.concatenate([r_index, w_index]), np.concatenate([r_ref, w_ref])
    place, scratch = np.concatenate([r_place, w_place]), np.concatenate([r_buf, w_buf]) == Buf.SCRATCH
    place[~scratch] = places.alias[place[~scratch]]
    writes = np.arange(len(step)) >= len(r_step)
    position = np.empty(n, dtype=np.int64)
    position[np.argsort(level, kind="stable")] = np.arange(n)

    # Unrolled over the segments; one row for each.
    segment = np.arange(segments)[:, None]
    own = places.inputs + places.outputs
    slot = segment % s.slots if s.slots else segment
    spot = np.where(scratch, segments * own + slot * len(places.scratch_chunk) + place, segment * own + place).ravel()
    node = (segment * n + step).ravel()
    time = (segment * n + position[step]).ravel()
    writes, index = np.tile(writes, segments), np.tile(index, segments)
    ref = (segment * np.where(writes[: len(ref)], len(elements.step), elements.operand_ptr[-1]) + ref).ravel()
    order = np.argsort((spot * (segments * n) + time) * 2 + writes, kind="stable")
    spot, node, writes, index, ref = spot[order], node[order], writes[order], index[order], ref[order]

    at = np.arange(len(spot))
    start = np.maximum.accumulate(np.where(np.diff(spot, prepend=-1) != 0, at, 0))
    last = np.maximum.accumulate(np.where(writes, at, -1))  # the latest write up to here
    before = np.concatenate([[-1], last[:-1]])[: len(spot)]
    before = np.where(before >= start, before, -1)
    upto = np.where(writes, at, len(spot))
    after = np.minimum.accumulate(upto[::-1])[::-1]
    after = np.where(after < len(spot), after, -1)
    after = np.where((after >= 0) & (spot[after] == spot), after, -1)

    written = np.flatnonzero(before >= 0)
    read_then = np.flatnonzero(~writes & (after >= 0))
    earlier = np.concatenate([before[written], read_then])
    later = np.concatenate([written, after[read_then]])
    same = (node[earlier] == node[later]) & (index[earlier] != index[later])
    if same.any():
        step_at = int(node[later[same]][0]) % n
        raise ScheduleError(s, step_at, f"its destination overlaps an operand at another position{_hint(in_place)}")
    _check_races(s, graph, level, node[earlier], node[later], in_place)

    reads = np.flatnonzero(~writes)
    source = np.where(before[reads] >= 0, ref[before[reads]], UNWRITTEN)
    initial = _initial(places, segments)
    held = spot[reads]
    from_input = (source == UNWRITTEN) & (held < segments * own)
    from_input[from_input] = initial[held[from_input]] >= 0
    source[from_input] = -2 - initial[held[from_input]]
    stale = (source >= 0) & (source // max(len(elements.step), 1) != node[reads] // max(n, 1))
    bad = np.flatnonzero((source == UNWRITTEN) | stale)
    if len(bad):
        step_at = int(node[reads[bad]][np.argmin(position[node[reads[bad]] % n])]) % n
        raise ScheduleError(s, step_at, "reads a place before anything has been written there")
    return Definitions(source, ref[reads], _finals(places, segments, spot, writes, ref, initial))


def _onto_itself(s: Schedule, places: Places) -> Bools:
    """Steps that copy a range to where it lies (in place, from the input to the output): they change nothing, so they only read."""
    single = np.flatnonzero((np.diff(s.operand_ptr) == 1) & (s.dst_buf != Buf.NONE))
    operand = s.operand_ptr[single]
    rank, buf, dst = s.step_rank[single], s.operand_buf[operand], s.dst_buf[single]
    source = places.base[buf, rank] + s.operand_off[operand]
    target = places.base[dst, rank] + s.dst_off[single]
    own = (buf <= Buf.OUTPUT) & (dst <= Buf.OUTPUT)
    same = (buf == dst) & (source == target) & (buf != Buf.PEER)
    same[own] |= places.alias[source[own]] == places.alias[target[own]]
    result = np.zeros(s.num_steps, dtype=bool)
    result[single] = same
    return result


def _hint(in_place: bool) -> str:
    return " (in place)" if in_place else ""


def _initial(places: Places, segments: int) -> Ints:
    """For each input and output place of each segment, the unrolled input place whose data it holds at the start, or -1."""
    own = places.inputs + places.outputs
    initial = np.full(segments * own, -1, dtype=np.int64)
    for segment in range(segments):
        inputs = np.arange(places.inputs)
        initial[segment * own + places.alias[inputs]] = segment * own + inputs
    return initial


def _finals(places: Places, segments: int, spot: Ints, writes: Bools, ref: Ints, initial: Ints) -> Ints:
    """What each output place of each segment ends with; see :class:`Definitions`."""
    own = places.inputs + places.outputs
    final = np.where(initial >= 0, -2 - initial, UNWRITTEN)
    stored = np.flatnonzero(writes & (spot < segments * own))
    final[spot[stored]] = ref[stored]  # in time order, so the last one stays
    return final.reshape(segments, own)[:, places.inputs :]


def _check_races(schedule: Schedule, graph: Graph, level: Ints, earlier: Ints, later: Ints, in_place: bool) -> None:
    """Refuses a pair of conflicting accesses that nothing orders."""
    n = max(schedule.num_steps, 1)
    a, b = earlier % n, later % n
    # The window orders segments that share a slot, and nothing else is shared between segments.
    open_pairs = (schedule.step_lane[a] != schedule.step_lane[b]) & (earlier // n == later // n)
    pair = np.unique(a[open_pairs] * n + b[open_pairs])
    a, b = np.divmod(pair, n)
    left = ~_ordered_by_deps(schedule, a, b)
    a, b = a[left], b[left]
    if not len(a):
        return
    raced = np.flatnonzero(~_reaches(schedule, graph, level, a, b))
    if len(raced):
        one, two = int(a[raced[0]]), int(b[raced[0]])
        raise ScheduleError(schedule, two, f"races{_hint(in_place)}: nothing orders it against {schedule.step(one)}")


def _ordered_by_deps(schedule: Schedule, a: Ints, b: Ints) -> Bools:
    """Whether ``b`` or an earlier step of its lane depends on ``a`` or a later step of its lane (enough, and quick)."""
    n, lanes, lane = max(schedule.num_steps, 1), schedule.num_lanes, schedule.step_lane.astype(np.int64)
    if not len(schedule.deps) or not len(a):
        return np.zeros(len(a), dtype=bool)
    waiter = np.repeat(np.arange(schedule.num_steps), np.diff(schedule.dep_ptr))
    group = lane[waiter] * lanes + lane[schedule.deps]
    key = group * n + waiter
    order = np.argsort(key, kind="stable")
    key, group = key[order], group[order]
    furthest = np.maximum.accumulate(group * n + schedule.deps[order])
    wanted = lane[b] * lanes + lane[a]
    at = np.searchsorted(key, wanted * n + b, side="right") - 1
    implied: Bools = (at >= 0) & (group[at] == wanted) & (furthest[at] >= wanted * n + a)
    return implied


def _reaches(schedule: Schedule, graph: Graph, level: Ints, a: Ints, b: Ints) -> Bools:
    """Whether a path leads from step ``a`` to step ``b`` in one segment, by vector clocks over the lanes of ``a``."""
    n, lane = schedule.num_steps, schedule.step_lane
    real = graph.kind != 3  # not the room of streams
    order = np.lexsort((graph.dst[real], level[graph.dst[real]]))
    src, dst = graph.src[real][order], graph.dst[real][order]
    bounds = np.searchsorted(level[dst], np.arange(int(level.max()) + 2))
    result = np.zeros(len(a), dtype=bool)
    lanes = np.unique(lane[a])
    width = max(1, _CLOCK_ENTRIES // n)
    for at in range(0, len(lanes), width):
        batch = lanes[at : at + width]
        column = np.full(schedule.num_lanes, -1)
        column[batch] = np.arange(len(batch))
        clock = np.full((n, len(batch)), -1, dtype=np.int32)  # the furthest step of a lane that is over before a step is
        inside = np.flatnonzero(column[lane] >= 0)
        clock[inside, column[lane[inside]]] = inside
        for lo, hi in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            if lo == hi:
                continue
            heads = dst[lo:hi]
            starts = np.flatnonzero(np.diff(heads, prepend=-1))
            arrived = np.maximum.reduceat(clock[src[lo:hi]], starts, axis=0)
            clock[heads[starts]] = np.maximum(clock[heads[starts]], arrived)
        mine = column[lane[a]] >= 0
        result[mine] = clock[b[mine], column[lane[a[mine]]]] >= a[mine]
    return result
