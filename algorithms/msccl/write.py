"""A schedule into MSCCL XML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from topoccl.algorithms.msccl.document import BUFFERS, COLLECTIVES, Element, Place, blocks_per_loop, meaning
from topoccl.algorithms.schedule import Buf, Schedule, Step

PREFIX = "topoccl_"
"""What MSCCL has no attribute for is in attributes of this prefix, which its readers pass over."""

_LETTERS = {**{buf: letter for letter, buf in BUFFERS.items()}, Buf.PEER: "p"}
_NAMES = {ours: theirs for theirs, ours in COLLECTIVES.items()}
_NOWHERE: Place = (Buf.NONE, 0)


def write_msccl(schedule: Schedule) -> str:
    """``schedule`` as MSCCL XML, which :func:`~topoccl.algorithms.msccl.read_msccl` reads back unchanged (the digest is equal).

    A lane is a thread block, or several where it has more than one peer to send to or to receive from. A step is a step, or several
    where MSCCL has no type for it (more targets or operands); partial results it cannot keep otherwise go to scratch places of
    their own. Without its ``topoccl_*`` attributes the document means the same to MSCCL, as long as chunks are equal.

    The schedule must be well formed, as a proof says it is.
    """
    return document(schedule).render()


def document(schedule: Schedule) -> Element:
    """The document as elements."""
    s, spec = schedule, schedule.spec
    root = Element("algo", {
        "name": s.algorithm, "proto": "Simple", "nchannels": str(int(s.lane_channel.max(initial=0)) + 1),
        "nchunksperloop": str(blocks_per_loop(spec) * s.chunks), "ngpus": str(spec.ranks),
        "coll": _NAMES.get(spec.collective, spec.collective), "inplace": "0", "outofplace": "1",
        f"{PREFIX}version": "1", f"{PREFIX}slots": str(s.slots), f"{PREFIX}fifo": str(s.fifo),
    })  # fmt: skip
    if spec.root is not None:
        root.attributes[f"{PREFIX}root"] = str(spec.root)
    if spec.uneven:
        root.attributes[f"{PREFIX}uneven"] = "1"
    if s.weights is not None:
        root.attributes[f"{PREFIX}weights"] = _join(s.weights.tolist())
    if s.target_way is not None:
        root.attributes[f"{PREFIX}ways"] = json.dumps(s.ways)
        root.attributes[f"{PREFIX}target_ways"] = _join(s.target_way.tolist())
    if s.params:
        root.attributes[f"{PREFIX}params"] = json.dumps(s.params)
    steps = list(s.steps())
    root.children = [_gpu(s, rank, steps) for rank in range(spec.ranks)]
    return root


def _join(values: Sequence[int]) -> str:
    return " ".join(map(str, values))


@dataclass(eq=False)
class _Part:
    """One step of a thread block."""

    kind: str
    count: int
    src: Place = _NOWHERE
    dst: Place = _NOWHERE
    send: int = -1
    recv: int = -1
    note: str | None = None
    after: _Part | int | None = None  # what it waits for: a part of its own lane, or a step of another


@dataclass(eq=False)
class _Block:
    """A thread block: the parts of a lane with one peer on each side, with their numbers in the lane."""

    send: int = -1
    recv: int = -1
    parts: list[tuple[int, _Part]] = field(default_factory=list)


def _gpu(s: Schedule, rank: int, steps: Sequence[Step]) -> Element:
    places = s.scratch_places(rank).tolist()
    spare = len(places)
    lanes: list[list[_Block]] = []
    ends: dict[int, _Part] = {}  # the last part of each step
    for lane in s.lanes_of(rank):
        mine = steps[s.lane_ptr[lane] : s.lane_ptr[lane + 1]]
        blocks, used = _thread_blocks(mine, spare, ends)
        lanes.append(blocks)
        spare += used
    where: dict[int, tuple[int, int]] = {}
    first = 0
    for blocks in lanes:
        for at, block in enumerate(blocks):
            where.update((id(part), (first + at, number)) for number, (_, part) in enumerate(block.parts))
        first += len(blocks)

    def target(part: _Part) -> tuple[int, int]:
        if part.after is None:
            return (-1, -1)
        return where[id(part.after if isinstance(part.after, _Part) else ends[part.after])]

    waited_for = {target(part) for blocks in lanes for block in blocks for _, part in block.parts}
    gpu = Element("gpu", {"id": str(rank)})
    sizes = len(s.spec.input_blocks(rank)) * s.chunks, len(s.spec.output_blocks(rank)) * s.chunks, spare
    gpu.attributes.update(zip(("i_chunks", "o_chunks", "s_chunks"), map(str, sizes), strict=True))
    if places:
        gpu.attributes[f"{PREFIX}scratch_like"] = _join(places)
    for lane, blocks in zip(s.lanes_of(rank), lanes, strict=True):
        lane_id = len(gpu.children)
        for block in blocks:
            tb = Element(
                "tb", {"id": str(len(gpu.children)), "send": str(block.send), "recv": str(block.recv), "chan": str(s.lane_channel[lane])}
            )
            if len(blocks) > 1:
                tb.attributes[f"{PREFIX}lane"] = str(lane_id)
            if s.lane_rail[lane]:
                tb.attributes[f"{PREFIX}rail"] = str(s.lane_rail[lane])
            for number, (at, part) in enumerate(block.parts):
                element = _step(part, number, target(part), (int(tb.attributes["id"]), number) in waited_for)
                if len(blocks) > 1:
                    element.attributes[f"{PREFIX}at"] = str(at)
                tb.children.append(element)
            gpu.children.append(tb)
    return gpu


def _step(part: _Part, number: int, target: tuple[int, int], waited_for: bool) -> Element:
    # MSCCL wants all attributes; those a type does not use are as msccl-tools leaves them.
    src, dst = (("i", 0) if place is _NOWHERE else (_LETTERS[place[0]], place[1]) for place in (part.src, part.dst))
    element = Element("step", {
        "s": str(number), "type": part.kind, "srcbuf": src[0], "srcoff": str(src[1]), "dstbuf": dst[0], "dstoff": str(dst[1]),
        "cnt": str(part.count), "depid": str(target[0]), "deps": str(target[1]), "hasdep": str(int(waited_for)),
    })  # fmt: skip
    if part.note is not None:
        element.attributes[f"{PREFIX}step"] = part.note
    return element


def _thread_blocks(steps: Sequence[Step], spare: int, ends: dict[int, _Part]) -> tuple[list[_Block], int]:
    """The thread blocks of a lane and how many scratch places its partial results need; notes the last part of each step in ``ends``.

    Where the lane goes on in another block, the first part there waits for the last one before.
    """
    fused, senders, receivers, blocks = _assign(steps)
    block, before, number, used = blocks[0], None, 0, 0
    for step in steps:
        parts = _split(step, step.index in fused, (Buf.SCRATCH, spare))
        if any((Buf.SCRATCH, spare) in (part.src, part.dst) for part in parts):
            used = max(used, step.count)
        for at, part in enumerate(parts):
            last = block
            block = senders[part.send] if part.send >= 0 else receivers[part.recv] if part.recv >= 0 else block
            waits: list[_Part | int] = [] if before is None or block is last else [before]
            waits += step.deps if at == 0 else ()
            extra = [_Part("nop", 1, note="wait", after=wait) for wait in waits[:-1]]
            part.after = waits[-1] if waits else None
            for one in (*extra, part):
                block.parts.append((number, one))
                number += 1
            before = part
        ends[step.index] = parts[-1]
    return blocks, used


def _assign(steps: Sequence[Step]) -> tuple[set[int], dict[int, _Block], dict[int, _Block], list[_Block]]:
    """Which steps stay fused, and the block that sends to, and that receives from, each peer."""
    senders: dict[int, _Block] = {}
    receivers: dict[int, _Block] = {}
    blocks: list[_Block] = []
    fused: set[int] = set()
    peers = [[off for buf, off in step.operands if buf is Buf.PEER] for step in steps]
    for step, sources in zip(steps, peers, strict=True):
        if len(sources) != 1 or len(step.targets) != 1 or len(step.operands) > 2:
            continue
        source, target = sources[0], step.targets[0]
        if source not in receivers and target not in senders:
            senders[target] = receivers[source] = _Block(target, source)
            blocks.append(senders[target])
        if receivers.get(source) is senders.get(target):
            fused.add(step.index)
    for step, sources in zip(steps, peers, strict=True):
        for source in sources:
            if source not in receivers:
                receivers[source] = _free(blocks, "recv")
                receivers[source].recv = source
        for target in step.targets:
            if target not in senders:
                senders[target] = _free(blocks, "send")
                senders[target].send = target
    return fused, senders, receivers, blocks or [_Block()]


def _free(blocks: list[_Block], side: str) -> _Block:
    """The first block without a peer on one side, or a new one."""
    for block in blocks:
        if getattr(block, side) < 0:
            return block
    blocks.append(_Block())
    return blocks[-1]


def _split(step: Step, fused: bool, spare: Place) -> list[_Part]:
    """The parts that do what ``step`` does, the first with a note of the whole where MSCCL's types do not say it."""
    parts = _fused(step, spare) if fused else _chain(step, spare)
    head = parts[0]
    means = meaning(head.kind, head.send, head.recv, head.src, head.dst)
    if len(parts) > 1 or means != (step.operands, step.dst, step.targets):
        fields = ([*map(_word, step.operands)], [_word(step.dst)] if step.dst else [], [*map(str, step.targets)])
        head.note = ">".join(" ".join(words) for words in fields)
        for part in parts[1:]:
            part.note = "+"
    return parts


def _word(place: Place) -> str:
    return f"{_LETTERS[place[0]]}{place[1]}"


def _fused(step: Step, spare: Place) -> list[_Part]:
    """One message in, perhaps folded with a local operand, and out to one target."""
    source = next(off for buf, off in step.operands if buf is Buf.PEER)
    local = [place for place in step.operands if place[0] is not Buf.PEER]
    kind = ("rrs" if step.dst is None else "rrcs") if local else "rcs"
    dst = _NOWHERE if kind == "rrs" else step.dst or spare
    return [_Part(kind, step.count, local[0] if local else _NOWHERE, dst, step.targets[0], source)]


def _chain(step: Step, spare: Place) -> list[_Part]:
    """Fold into an accumulator, an operand at a time; then send from there."""
    count, operands, dst = step.count, step.operands, step.dst
    if not operands:
        return [_Part("nop", count)]
    (buf, off), rest = operands[0], operands[1:]
    peer = buf is Buf.PEER
    pair = bool(rest) and peer != (rest[0][0] is Buf.PEER)  # a message and a local operand make one part
    # The accumulator may not be a place that a later part still reads.
    total = spare if dst is None or dst in rest[pair:] else dst
    parts: list[_Part] = []
    if pair:
        source, local = (off, rest[0]) if peer else (rest[0][1], operands[0])
        parts.append(_Part("rrc", count, local, total, recv=source))
    elif peer:
        parts.append(_Part("r", count, dst=total, recv=off))
    elif not rest and dst is None:
        total = operands[0]
    elif operands[0] != total:
        parts.append(_Part("cpy", count, operands[0], total))
    elif not rest:
        parts.append(_Part("cpy", count, total, total))
    for buf, off in rest[pair:]:
        parts.append(_Part("rrc", count, total, total, recv=off) if buf is Buf.PEER else _Part("re", count, (buf, off), total))
    if dst is not None and dst != total:
        parts.append(_Part("cpy", count, total, dst))
    return parts + [_Part("s", count, total, send=target) for target in step.targets]
