"""MSCCL XML into a schedule."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from topoccl.algorithms.msccl.document import (
    BUFFERS,
    COLLECTIVES,
    FIFO,
    MAX_PLACES,
    READING,
    RECEIVING,
    SENDING,
    STORING,
    TYPES,
    Element,
    Meaning,
    Place,
    blocks_per_loop,
    meaning,
    parse,
)
from topoccl.algorithms.msccl.write import PREFIX, document
from topoccl.algorithms.schedule import Buf, IntArray, Schedule, Way
from topoccl.algorithms.spec import ROOTED, CollectiveSpec, canonical_collective

_NOWHERE: Place = (Buf.NONE, 0)
_MAX_RANKS = 65536


@dataclass(eq=False)
class _Step:
    """A step whose dependencies are still ``(thread block, step)`` of its gpu."""

    meaning: Meaning
    count: int
    waits: list[tuple[int, int]] = field(default_factory=list)
    deps: list[_Step] = field(default_factory=list)


@dataclass
class _Lane:
    rank: int
    channel: int
    rail: int
    steps: list[_Step]


def read_msccl(text: str) -> Schedule:
    """The schedule that an MSCCL XML document describes. It is not proved yet: call :func:`~topoccl.algorithms.verify.verify`.

    A document of :func:`~topoccl.algorithms.msccl.write_msccl` gives the very schedule that it was written from. Any other
    is read as MSCCL means it: each thread block is a lane, with room for :data:`FIFO` messages a stream. One for in-place calls
    (``inplace="1"``) finds its input in the output; it gets one lane more on each rank, which first copies what the output shares
    with the input to there, so that the schedule serves calls of both kinds (in place the copy is of a place onto itself).

    Raises:
        MscclError: malformed XML, an unknown collective or step type, sizes that disagree, a reference to what is not there.
    """
    root = parse(text, ("algo", "gpu", "tb", "step"))
    spec, chunks = _collective(root)
    ours = f"{PREFIX}version" in root.attributes
    if ours:
        root.number(f"{PREFIX}version", 1, 1)
    elif root.number("inplace", 0, 1, 0) and not spec.aliases:
        raise root.error(f"is in place, which {spec.collective} cannot be")
    lanes: list[_Lane] = []
    scratch: list[list[int]] = []
    for rank, gpu in enumerate(root.children):
        if ours:
            scratch.append(gpu.numbers(f"{PREFIX}scratch_like", -1, spec.num_blocks * chunks - 1))
            lanes += _our_lanes(gpu, spec, rank)
        else:
            scratch.append([-1] * gpu.number("s_chunks", 0, MAX_PLACES))
            lanes += _foreign_lanes(root, gpu, spec, rank, chunks)
    schedule = _columns(root, spec, chunks, lanes, scratch)
    if ours:
        _compare(root, document(schedule))
    return schedule


def _collective(root: Element) -> tuple[CollectiveSpec, int]:
    """The collective and the chunks per block; checks the gpus' numbers and buffer sizes."""
    name = root.text("coll")
    try:
        collective = canonical_collective(COLLECTIVES.get(name, name))
    except ValueError as error:
        raise root.error(f"coll: {error}") from None
    ranks = root.number("ngpus", 1, _MAX_RANKS)
    if [gpu.number("id", 0, ranks - 1) for gpu in root.children] != list(range(ranks)):
        raise root.error(f"must hold the gpus 0 to {ranks - 1} in order")
    in_place = bool(root.number("inplace", 0, 1, 0))
    sizes = [(gpu.number("i_chunks", 0, MAX_PLACES), gpu.number("o_chunks", 0, MAX_PLACES)) for gpu in root.children]
    the_root = root.number(f"{PREFIX}root", 0, ranks - 1) if f"{PREFIX}root" in root.attributes else _root_of(root, collective, sizes)
    try:
        spec = CollectiveSpec(collective, ranks, the_root, bool(root.number(f"{PREFIX}uneven", 0, 1, 0)))
    except ValueError as error:
        raise root.error(str(error)) from None
    total = root.number("nchunksperloop", 1, MAX_PLACES)
    blocks = blocks_per_loop(spec)
    if total % blocks:
        raise root.error(f"nchunksperloop is {total}; {collective} among {ranks} ranks needs a multiple of {blocks}")
    chunks = total // blocks
    scratch = sum(gpu.number("s_chunks", 0, MAX_PLACES) for gpu in root.children)
    if total * ranks * 2 + scratch > MAX_PLACES:
        raise root.error(f"has {total * ranks * 2 + scratch} chunks in all buffers; the limit is {MAX_PLACES}")
    for rank, (gpu, has) in enumerate(zip(root.children, sizes, strict=True)):
        wants = (len(spec.input_blocks(rank)) * chunks, len(spec.output_blocks(rank)) * chunks)
        for buffer, size, want in zip(("i_chunks", "o_chunks"), has, wants, strict=True):
            # An in-place document declares one of the buffers only.
            if size != want and not (in_place and (size == 0 or (not want and size == total))):
                raise gpu.error(f"{buffer} is {size}; {collective} with {chunks} chunks a block needs {want}")
    return spec, chunks


def _root_of(root: Element, collective: str, sizes: list[tuple[int, int]]) -> int | None:
    """The root of a rooted collective is the one rank that has input (or output)."""
    if collective not in ROOTED:
        return None
    side = 0 if collective in ("broadcast", "scatter") else 1
    holders = [rank for rank, size in enumerate(sizes) if size[side]]
    if len(holders) != 1:
        raise root.error(f"does not say which rank is the root: the ranks with {'io'[side]}_chunks are {holders}")
    return holders[0]


def _step(tb: Element, step: Element, number: int) -> tuple[str, Place, Place]:
    """The type and the places of a step; what its type does not use is not looked at."""
    if step.number("s", 0, 1 << 30) != number:
        raise step.error(f"is number {number} of its thread block; steps must be in order")
    kind = step.text("type")
    if kind not in TYPES:
        raise step.error(f"type is {kind!r}; known: {', '.join(sorted(TYPES))}")

    def place(side: str) -> Place:
        buffer = step.text(f"{side}buf")
        if buffer not in BUFFERS:
            raise step.error(f"{side}buf is {buffer!r}; known: {', '.join(BUFFERS)}")
        return BUFFERS[buffer], step.number(f"{side}off", 0, MAX_PLACES)

    src = place("src") if kind in READING else _NOWHERE
    return kind, src, place("dst") if kind in STORING else _NOWHERE


def _thread_block(gpu: Element, tb: Element, number: int, ranks: int) -> tuple[int, int, int]:
    """The send peer, receive peer (-1 for none) and channel of a thread block."""
    if tb.number("id", 0, 1 << 30) != number:
        raise tb.error(f"is number {number} of gpu {gpu.text('id')}; thread blocks must be in order")
    return tb.number("send", -1, ranks - 1), tb.number("recv", -1, ranks - 1), tb.number("chan", 0, 1 << 20)


def _waits(step: Element) -> list[tuple[int, int]]:
    block = step.number("depid", -1, 1 << 30, -1)
    return [(block, step.number("deps", 0, 1 << 30))] if block >= 0 else []


def _foreign_lanes(root: Element, gpu: Element, spec: CollectiveSpec, rank: int, chunks: int) -> list[_Lane]:
    """Each thread block of a document that is not ours is a lane, and each of its steps is a step."""
    in_place = bool(root.number("inplace", 0, 1, 0))
    blocks: list[list[_Step]] = []
    lanes: list[_Lane] = []
    for at, tb in enumerate(gpu.children):
        send, recv, channel = _thread_block(gpu, tb, at, spec.ranks)
        steps: list[_Step] = []
        for number, element in enumerate(tb.children):
            kind, src, dst = _step(tb, element, number)
            if (kind in SENDING and send < 0) or (kind in RECEIVING and recv < 0):
                raise element.error(f"of type {kind} needs a peer that its thread block has not (send {send}, recv {recv})")
            if in_place:
                src, dst = (_home(spec, rank, chunks, place) for place in (src, dst))
            count = element.number("cnt", 0, MAX_PLACES)
            steps.append(_Step(meaning(kind, send, recv, src, dst), count, _waits(element)))
        blocks.append(steps)
        lanes.append(_Lane(rank, channel, 0, steps))
    for at, (tb, steps) in enumerate(zip(gpu.children, blocks, strict=True)):
        for number, (element, step) in enumerate(zip(tb.children, steps, strict=True)):
            for block, earlier in step.waits:
                if block >= len(blocks) or earlier >= len(blocks[block]):
                    raise element.error(f"waits for step {earlier} of thread block {block}, which does not exist")
                if block != at:
                    step.deps.append(blocks[block][earlier])
                elif earlier >= number:
                    raise element.error(f"waits for step {earlier} of its own thread block")
    lanes = [lane for lane in lanes if lane.steps]
    return _with_input(lanes, spec, rank, chunks) if in_place else lanes


def _home(spec: CollectiveSpec, rank: int, chunks: int, place: Place) -> Place:
    """Where a place of an in-place document lies: in the output, if that shares it with the input."""
    buf, off = place
    if buf is not Buf.INPUT:
        return place
    block, chunk = divmod(off, chunks)
    if block >= len(spec.input_blocks(rank)):
        return (Buf.OUTPUT, off)  # a rank without input (of a broadcast) calls its one buffer so
    out = spec.aliased_output(rank, block)
    return place if out is None else (Buf.OUTPUT, out * chunks + chunk)


def _with_input(lanes: list[_Lane], spec: CollectiveSpec, rank: int, chunks: int) -> list[_Lane]:
    """Adds a lane that brings the input to where an in-place document expects it, before anybody touches it there."""
    copies: list[_Step] = []
    for position in range(len(spec.input_blocks(rank))):
        out = spec.aliased_output(rank, position)
        if out is not None:
            copies.append(_Step((((Buf.INPUT, position * chunks),), (Buf.OUTPUT, out * chunks), ()), chunks))
    if not copies:
        return lanes
    homes = [range(c.meaning[1][1], c.meaning[1][1] + c.count) for c in copies if c.meaning[1]]
    for lane in lanes:
        for step in lane.steps:
            operands, dst, _ = step.meaning
            places = [*operands, *([dst] if dst else [])]
            if any(buf is Buf.OUTPUT and off < home.stop and off + step.count > home.start for buf, off in places for home in homes):
                step.deps.append(copies[-1])
                break
    return [*lanes, _Lane(rank, 0, 0, copies)]


def _our_lanes(gpu: Element, spec: CollectiveSpec, rank: int) -> list[_Lane]:
    """The lanes of a document of ours: thread blocks of one lane are woven together again, and the parts of a step made one."""
    lanes: dict[int, _Lane] = {}
    woven: dict[int, list[tuple[int, int, int, Element]]] = {}
    peers: list[tuple[int, int]] = []
    for at, tb in enumerate(gpu.children):
        send, recv, channel = _thread_block(gpu, tb, at, spec.ranks)
        peers.append((send, recv))
        lane = tb.number(f"{PREFIX}lane", 0, at, at)
        lanes.setdefault(lane, _Lane(rank, channel, tb.number(f"{PREFIX}rail", 0, 1 << 30, 0), []))
        woven.setdefault(lane, []).extend((e.number(f"{PREFIX}at", 0, 1 << 30, i), at, i, e) for i, e in enumerate(tb.children))
    part_of: dict[tuple[int, int], _Step] = {}
    for lane, parts in woven.items():
        pending: list[tuple[int, int]] = []
        steps = lanes[lane].steps
        for _, at, number, element in sorted(parts, key=lambda part: part[:3]):
            kind, src, dst = _step(gpu.children[at], element, number)
            note = element.attributes.get(f"{PREFIX}step")
            waits = _waits(element)
            if note == "wait":
                pending += waits
                continue
            if note == "+":
                if not steps:
                    raise element.error("continues a step, but is the first of its lane")
            else:
                means = meaning(kind, *peers[at], src, dst) if note is None else _unnote(element, note)
                steps.append(_Step(means, element.number("cnt", 0, MAX_PLACES), pending + waits))
                pending = []
            part_of[at, number] = steps[-1]
    for lane_parts in lanes.values():
        mine = set(map(id, lane_parts.steps))
        for step in lane_parts.steps:
            known = [part_of[wait] for wait in step.waits if wait in part_of]
            step.deps = [dep for dep in known if id(dep) not in mine]
    return [lane for lane in lanes.values() if lane.steps]


def _unnote(element: Element, note: str) -> Meaning:
    """Operands, destination and targets from such a note as ``p1 i0 > o3 > 4 5``."""

    def place(word: str) -> Place:
        buffer = Buf.PEER if word[:1] == "p" else BUFFERS.get(word[:1])
        if buffer is None:
            raise element.error(f"{PREFIX}step is {note!r}: {word!r} is no place")
        return buffer, Element(element.tag, {"offset": word[1:]}, line=element.line).number("offset", 0, MAX_PLACES)

    parts = note.split(">")
    if len(parts) != 3 or len(parts[1].split()) > 1:
        raise element.error(f"{PREFIX}step is {note!r}; expected operands > destination > targets")
    dst = [place(word) for word in parts[1].split()]
    targets = Element(element.tag, {"targets": parts[2]}, line=element.line).numbers("targets", 0, _MAX_RANKS)
    return tuple(place(word) for word in parts[0].split()), dst[0] if dst else None, tuple(targets)


def _compare(given: Element, ours: Element) -> None:
    """A document of ours must be what we would write for its schedule: else its notes and its steps say different things."""
    if given.tag != ours.tag or given.attributes != ours.attributes or len(given.children) != len(ours.children):
        odd = sorted(k for k in given.attributes.keys() | ours.attributes.keys() if given.attributes.get(k) != ours.attributes.get(k))
        what = f"at {', '.join(odd)}" if odd else f"in the number of its parts ({len(given.children)}, not {len(ours.children)})"
        raise given.error(f"disagrees {what} with what its {PREFIX}* attributes say; without all of them it reads as plain MSCCL")
    for a, b in zip(given.children, ours.children, strict=True):
        _compare(a, b)


def _ints(values: Iterable[int]) -> IntArray:
    return np.fromiter(values, dtype=np.int32)


def _offsets(lengths: Iterable[int]) -> IntArray:
    return np.concatenate([np.zeros(1, dtype=np.int32), np.cumsum(_ints(lengths), dtype=np.int32)])


def _columns(root: Element, spec: CollectiveSpec, chunks: int, lanes: list[_Lane], scratch: list[list[int]]) -> Schedule:
    rows = [step for lane in lanes for step in lane.steps]
    index = {id(step): at for at, step in enumerate(rows)}
    operands = [place for step in rows for place in step.meaning[0]]
    dsts = [step.meaning[1] or _NOWHERE for step in rows]
    deps = [[index[id(dep)] for dep in step.deps] for step in rows]
    ids = spec.num_blocks * chunks
    weights = root.numbers(f"{PREFIX}weights", 0, 1 << 30)
    if weights and len(weights) != ids:
        raise root.error(f"{PREFIX}weights has {len(weights)} entries; expected {ids}")
    return Schedule(
        spec=spec, algorithm=root.attributes.get("name", "msccl"), chunks=chunks,
        slots=root.number(f"{PREFIX}slots", 0, 1 << 30, 2 if any(scratch) else 0), fifo=root.number(f"{PREFIX}fifo", 1, 1 << 30, FIFO),
        lane_rank=_ints(lane.rank for lane in lanes), lane_channel=_ints(lane.channel for lane in lanes),
        lane_rail=_ints(lane.rail for lane in lanes), lane_ptr=_offsets(len(lane.steps) for lane in lanes),
        operand_ptr=_offsets(len(step.meaning[0]) for step in rows),
        operand_buf=np.fromiter((buf for buf, _ in operands), dtype=np.uint8), operand_off=_ints(off for _, off in operands),
        dst_buf=np.fromiter((buf for buf, _ in dsts), dtype=np.uint8), dst_off=_ints(off for _, off in dsts),
        target_ptr=_offsets(len(step.meaning[2]) for step in rows), targets=_ints(t for step in rows for t in step.meaning[2]),
        count=_ints(step.count for step in rows), dep_ptr=_offsets(map(len, deps)), deps=_ints(dep for row in deps for dep in row),
        scratch_ptr=_offsets(map(len, scratch)), scratch_like=_ints(c for places in scratch for c in places),
        weights=_ints(weights) if weights else None, params=_params(root), ways=_ways(root), target_way=_target_ways(root, rows),
    )  # fmt: skip


def _ways(root: Element) -> tuple[Way, ...]:
    ways = _listed(root, f"{PREFIX}ways")
    if not isinstance(ways, tuple) or not all(map(_is_way, ways)):
        raise root.error(f"{PREFIX}ways is {root.text(f'{PREFIX}ways')[:80]!r}; expected a list of [vertices, links] in JSON")
    return ways


def _is_way(way: Any) -> bool:
    if not isinstance(way, tuple) or len(way) != 2 or not all(isinstance(part, tuple) for part in way):
        return False
    return all(isinstance(vertex, str) for vertex in way[0]) and all(type(place) is int and 0 <= place < 1 << 30 for place in way[1])


def _target_ways(root: Element, rows: list[_Step]) -> IntArray | None:
    name = f"{PREFIX}target_ways"
    if name not in root.attributes:
        return None
    column, targets = root.numbers(name, -1, 1 << 30), sum(len(step.meaning[2]) for step in rows)
    if len(column) != targets:
        raise root.error(f"{name} has {len(column)} entries; expected {targets}")
    return _ints(column)


def _listed(root: Element, name: str) -> Any:
    """The value of an attribute in JSON, with tuples for lists; None where that is what it cannot be."""

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    try:
        return frozen(json.loads(root.attributes.get(name, "[]")))
    except (ValueError, RecursionError):
        return None


def _params(root: Element) -> tuple[tuple[str, Any], ...]:
    text = root.attributes.get(f"{PREFIX}params", "[]")
    pairs = _listed(root, f"{PREFIX}params")
    if not isinstance(pairs, tuple) or not all(isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) for p in pairs):
        raise root.error(f"{PREFIX}params is {text[:80]!r}; expected a list of names and values in JSON")
    return pairs
