"""Mutants of right schedules are refused, or are right all the same.

What decides "right all the same" is an executor that shares nothing with the verifier: it runs the schedule on concrete numbers,
one lane beside another in random interleavings, with real queues of ``fifo`` messages, stale scratch and garbage in what has not
been written. So a race or a wrong sum that the verifier overlooked shows up here as a wrong number or as a run that stands still.
"""

from __future__ import annotations

import copy
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from topoccl.algorithms.registry import by_name
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder, Step
from topoccl.algorithms.spec import ROOTED, CollectiveSpec
from topoccl.algorithms.verify import ScheduleError, verify
from topoccl.topology.generators import generate

INPUT, OUTPUT, SCRATCH, PEER, NONE = Buf.INPUT, Buf.OUTPUT, Buf.SCRATCH, Buf.PEER, Buf.NONE
MASK = 2**64 - 1

Value = tuple[int, int]  # size, contents
Wait = Callable[[], bool]


class Wrong(Exception):
    """The run went wrong in a way that no later step can mend."""


class Run:
    """One run of a schedule on concrete data, as an executor with one thread for each lane might do it."""

    def __init__(self, schedule: Schedule, rng: random.Random, segments: int, in_place: bool, spare_room: int = 0) -> None:
        self.schedule, self.rng, self.segments = schedule, rng, segments
        self.room = schedule.fifo + spare_room
        self.steps = list(schedule.steps())
        self.slots = schedule.slots or segments
        self.queue: dict[tuple[int, int, int], deque[list[Value]]] = defaultdict(deque)
        self.done: set[tuple[int, int]] = set()
        self.memory: dict[tuple, Value] = {}
        self.size: dict[tuple, int] = {}
        self.alias: dict[tuple, tuple] = {}
        spec, chunks = schedule.spec, schedule.chunks

        def size_of(chunk: int) -> int:
            """All chunks differ in size where they may: those of one number only where blocks do not differ."""
            if schedule.needs_equal_chunks:
                return 1
            return 1 + (chunk if spec.uneven or schedule.weights is not None else chunk % chunks)

        self.inputs: dict[tuple[int, int, int], int] = {}
        for s in range(segments):
            for r in range(spec.ranks):
                for at, block in enumerate(spec.output_blocks(r)):
                    for j in range(chunks):
                        key = (s, r, OUTPUT, at * chunks + j)
                        self.size[key] = size_of(block * chunks + j)
                        self.memory[key] = (self.size[key], rng.getrandbits(64))
                for at, block in enumerate(spec.input_blocks(r)):
                    for j in range(chunks):
                        key, chunk = (s, r, INPUT, at * chunks + j), block * chunks + j
                        out = spec.aliased_output(r, at) if in_place else None
                        if out is not None:
                            self.alias[key] = (s, r, OUTPUT, out * chunks + j)
                        self.inputs[s, r, chunk] = 1 << r if spec.idempotent else rng.getrandbits(64)
                        self.memory[self.at(key)] = (size_of(chunk), self.inputs[s, r, chunk])
        for r in range(spec.ranks):
            for at, like in enumerate(schedule.scratch_places(r).tolist()):
                for slot in range(self.slots):
                    key = (slot, r, SCRATCH, at)
                    self.size[key] = size_of(max(like, 0))
                    self.memory[key] = (self.size[key], rng.getrandbits(64))

    def at(self, key: tuple) -> tuple:
        return self.alias.get(key, key)

    def key(self, segment: int, rank: int, buf: Buf, off: int) -> tuple:
        return self.at((segment % self.slots if buf is SCRATCH else segment, rank, buf, off))

    def lane(self, lane: int) -> Iterator[Wait | None]:
        """Yields before every access: None, or what the next one waits for."""
        schedule = self.schedule
        indices = range(schedule.lane_ptr[lane], schedule.lane_ptr[lane + 1])
        rank = int(schedule.lane_rank[lane])
        mine = [i for i in range(schedule.num_steps) if schedule.step_rank[i] == rank]
        for segment in range(self.segments):
            if schedule.slots and segment >= schedule.slots:
                yield lambda s=segment: all((s - schedule.slots, i) in self.done for i in mine)
            for i in indices:
                yield from self.step(self.steps[i], segment)
                self.done.add((segment, i))

    def step(self, step: Step, segment: int) -> Iterator[Wait | None]:
        for dep in step.deps:
            yield lambda d=dep: (segment, d) in self.done
        value: list[Value] | None = None
        streams = []
        for buf, off in step.operands:
            if buf is PEER:
                stream = self.queue[off, step.rank, step.channel]
                streams.append(stream)
                yield lambda q=stream: bool(q)
                got = stream[0]
                if len(got) != step.count:
                    raise Wrong(f"{step}: {len(got)} chunks arrived")
            else:
                got = []
                for k in range(off, off + step.count):
                    yield None
                    got.append(self.memory[self.key(segment, step.rank, buf, k)])
            value = got if value is None else [self.fold(a, b) for a, b in zip(value, got, strict=True)]
        effects = [("store", k) for k in range(step.count)] if step.dst else []
        effects += [("send", t) for t in step.targets]
        self.rng.shuffle(effects)
        for kind, where in effects:
            if kind == "store":
                yield None
                key = self.key(segment, step.rank, step.dst[0], step.dst[1] + where)
                if value[where][0] != self.size[key]:
                    raise Wrong(f"{step}: a chunk of size {value[where][0]} stored in a place of size {self.size[key]}")
                self.memory[key] = value[where]
            else:
                stream = self.queue[step.rank, where, step.channel]
                yield lambda q=stream: len(q) < self.room
                stream.append(list(value))
        for stream in streams:
            stream.popleft()

    def fold(self, a: Value, b: Value) -> Value:
        if a[0] != b[0]:
            raise Wrong(f"sizes {a[0]} and {b[0]} added")
        return a[0], a[1] | b[1] if self.schedule.spec.idempotent else (a[1] + b[1]) & MASK

    def problem(self) -> str | None:
        """Runs to the end; says what went wrong, or None."""
        lanes = [self.lane(i) for i in range(self.schedule.num_lanes)]
        pace = [self.rng.choice((0.03, 0.3, 1.0)) for _ in lanes]  # some lanes lag far behind
        waits: dict[int, Wait | None] = dict.fromkeys(range(len(lanes)))
        try:
            while waits:
                ready = [i for i, wait in waits.items() if wait is None or wait()]
                if not ready:
                    return "deadlock"
                i = self.rng.choices(ready, [pace[i] for i in ready])[0]
                try:
                    waits[i] = next(lanes[i])
                except StopIteration:
                    del waits[i]
        except Wrong as wrong:
            return str(wrong)
        return self.difference()

    def difference(self) -> str | None:
        spec, chunks = self.schedule.spec, self.schedule.chunks
        if any(self.queue.values()):
            return "messages are left over"
        for s in range(self.segments):
            for r in range(spec.ranks):
                for at, block in enumerate(spec.output_blocks(r)):
                    for chunk in range(block * chunks, block * chunks + chunks):
                        parts = [self.inputs[s, f, chunk] for f in spec.contributors(block)]
                        expected = 0
                        for part in parts:
                            expected = expected | part if spec.idempotent else (expected + part) & MASK
                        if self.memory[s, r, OUTPUT, at * chunks + chunk - block * chunks][1] != expected:
                            return f"rank {r} has a wrong chunk {chunk} in segment {s}"
                for at, block in enumerate(spec.input_blocks(r)):
                    for j in range(chunks):
                        key = (s, r, INPUT, at * chunks + j)
                        if key not in self.alias and self.memory[key][1] != self.inputs[s, r, block * chunks + j]:
                            return f"rank {r}'s input has changed"
        return None


@dataclass(eq=False)
class Part:
    """A step that can be changed; dependencies are references, so that they survive moves."""

    operands: list[tuple[Buf, int]]
    dst: tuple[Buf, int] | None
    targets: list[int]
    count: int
    deps: list[Part] = field(default_factory=list)

    @property
    def moves_data(self) -> bool:
        return bool(self.operands)

    @property
    def has_peer(self) -> bool:
        return bool(self.targets) or any(buf is PEER for buf, _ in self.operands)


@dataclass
class LaneParts:
    rank: int
    channel: int
    rail: int
    steps: list[Part]


def take_apart(schedule: Schedule) -> list[LaneParts]:
    parts = [Part(list(s.operands), s.dst, list(s.targets), s.count) for s in schedule.steps()]
    for part, step in zip(parts, schedule.steps(), strict=True):
        part.deps = [parts[d] for d in step.deps]
    bounds = zip(schedule.lane_ptr[:-1], schedule.lane_ptr[1:], strict=True)
    heads = zip(schedule.lane_rank.tolist(), schedule.lane_channel.tolist(), schedule.lane_rail.tolist(), strict=True)
    return [LaneParts(*head, parts[lo:hi]) for head, (lo, hi) in zip(heads, bounds, strict=True)]


def put_together(schedule: Schedule, lanes: list[LaneParts]) -> Schedule:
    """A schedule of the changed parts; lanes without steps and dependencies on removed steps are left out."""
    lanes = sorted((lane for lane in lanes if lane.steps), key=lambda lane: lane.rank)
    steps = [step for lane in lanes for step in lane.steps]
    index = {id(step): i for i, step in enumerate(steps)}
    deps = [[index[id(d)] for d in step.deps if id(d) in index] for step in steps]

    def ints(values) -> np.ndarray:
        return np.array(list(values), dtype=np.int32)

    def ptr(lengths) -> np.ndarray:
        return ints([0, *np.cumsum(list(lengths), dtype=np.int64)])

    return replace(
        schedule,
        lane_rank=ints(lane.rank for lane in lanes), lane_channel=ints(lane.channel for lane in lanes),
        lane_rail=ints(lane.rail for lane in lanes), lane_ptr=ptr(len(lane.steps) for lane in lanes),
        operand_ptr=ptr(len(s.operands) for s in steps), operand_buf=np.array([b for s in steps for b, _ in s.operands], dtype=np.uint8),
        operand_off=ints(o for s in steps for _, o in s.operands),
        dst_buf=np.array([(s.dst or (NONE, 0))[0] for s in steps], dtype=np.uint8), dst_off=ints((s.dst or (NONE, 0))[1] for s in steps),
        target_ptr=ptr(len(s.targets) for s in steps), targets=ints(t for s in steps for t in s.targets),
        count=ints(s.count for s in steps), dep_ptr=ptr(map(len, deps)), deps=ints(d for row in deps for d in row),
    )  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    kind: str
    fatal: frozenset[bool]  # where no such change can leave a schedule right: out of place (False), in place (True), both
    schedule: Schedule


def mutants(schedule: Schedule) -> Iterator[Mutant]:
    """All single changes of every step of ``schedule``."""
    spec = schedule.spec
    shape = take_apart(schedule)
    exact = spec.reduces and not spec.idempotent

    def changed(kind: str, fatal: bool, change: Callable[[list[LaneParts]], None], in_place_too: bool = True) -> Mutant:
        lanes = copy.deepcopy(shape)
        change(lanes)
        modes = (False, True) if in_place_too else (False,)
        return Mutant(kind, frozenset(modes if fatal else ()), put_together(schedule, lanes))

    for li, lane in enumerate(shape):
        for si, part in enumerate(lane.steps):

            def at(lanes, li=li, si=si) -> Part:
                return lanes[li].steps[si]

            def drop(lanes, li=li, si=si) -> None:
                del lanes[li].steps[si]

            def duplicate(lanes, li=li, si=si) -> None:
                part = lanes[li].steps[si]
                again = Part(list(part.operands), part.dst, list(part.targets), part.count, list(part.deps))
                lanes[li].steps.insert(si + 1, again)

            def swap(lanes, li=li, si=si) -> None:
                steps = lanes[li].steps
                steps[si], steps[si + 1] = steps[si + 1], steps[si]

            def part_ways(lanes, li=li, si=si) -> None:
                lanes.append(LaneParts(lanes[li].rank, lanes[li].channel, 0, [lanes[li].steps.pop(si)]))

            # In place the input may be at home already; a copy there is no loss.
            yield changed("drop", part.has_peer or (part.moves_data and not spec.idempotent), drop, part.has_peer)
            yield changed("duplicate", part.has_peer or (exact and part.dst in part.operands), duplicate)
            if si + 1 < len(lane.steps):
                yield changed("swap with the next", False, swap)
            yield changed("give a lane of its own", False, part_ways)
            for d in range(len(part.deps)):
                yield changed("drop a dependency", False, lambda x, d=d, at=at: at(x).deps.pop(d))
            for t, target in enumerate(part.targets):
                for other in range(spec.ranks):
                    if other not in (lane.rank, target):
                        yield changed("retarget", True, lambda x, t=t, o=other, at=at: at(x).targets.__setitem__(t, o))
                yield changed("drop a target", True, lambda x, t=t, at=at: at(x).targets.pop(t))
            for o, (buf, off) in enumerate(part.operands):
                if buf is PEER:
                    for other in range(spec.ranks):
                        if other not in (lane.rank, off):
                            yield changed("other source", True, lambda x, o=o, v=other, at=at: at(x).operands.__setitem__(o, (PEER, v)))
                    continue
                if not part.count:
                    continue  # where nothing lies is all the same
                for delta in (-1, 1):
                    yield changed("operand moved", False, lambda x, o=o, v=(buf, off + delta), at=at: at(x).operands.__setitem__(o, v))
                for other in (INPUT, OUTPUT, SCRATCH):
                    if other is not buf:
                        yield changed("other operand buffer", False, lambda x, o=o, v=(other, off), at=at: at(x).operands.__setitem__(o, v))
                if len(part.operands) > 1:
                    yield changed("drop an operand", exact, lambda x, o=o, at=at: at(x).operands.pop(o))
                    yield changed("operand twice", exact, lambda x, v=(buf, off), at=at: at(x).operands.append(v))
            if len(part.operands) > 1:
                yield changed("operands reversed", False, lambda x, at=at: at(x).operands.reverse())
            if part.dst is not None and part.count:
                buf, off = part.dst
                for value in ((buf, off - 1), (buf, off + 1), (OUTPUT if buf is SCRATCH else SCRATCH, off), (INPUT, off), None):
                    yield changed("other destination", False, lambda x, v=value, at=at: setattr(at(x), "dst", v))
            for count in (part.count - 1, part.count + 1):
                yield changed("other count", part.has_peer, lambda x, c=count, at=at: setattr(at(x), "count", c))
        if any(part.has_peer for part in lane.steps):
            yield changed("other channel", True, lambda x, li=li: setattr(x[li], "channel", 97))


def two_rank_fused() -> Schedule:
    b = ScheduleBuilder(CollectiveSpec("all_reduce", 2), "fused", chunks=2, fifo=2)
    for r in range(2):
        lane = b.lane(r)
        b.send(lane, (INPUT, r), 1 - r)
        b.step(lane, [(PEER, 1 - r), (INPUT, 1 - r)], (OUTPUT, 1 - r), [1 - r])
        b.recv(lane, 1 - r, (OUTPUT, r))
    return b.build()


def relay_with_scratch() -> Schedule:
    """Rank 0's vector to all, in two chunks that share one scratch place of rank 1, which two lanes use in turn."""
    b = ScheduleBuilder(CollectiveSpec("broadcast", 4, 0), "relay", chunks=2, fifo=1)
    hold = b.scratch(1, [-1])
    for chunk in range(2):
        b.step(b.lane(0), [(INPUT, chunk)], (OUTPUT, chunk), [1])
        b.recv(b.lane(1, "in"), 0, (SCRATCH, hold))
        b.step(b.lane(1, "out"), [(SCRATCH, hold)], (OUTPUT, chunk), [2, 3])
        b.recv(b.lane(2), 1, (OUTPUT, chunk))
        b.recv(b.lane(3), 1, (OUTPUT, chunk))
    return b.build()


def built(name: str, collective: str, cluster: str, **params) -> Schedule:
    topology = generate(cluster)
    root = topology.num_ranks - 1 if collective in ROOTED else None
    return by_name(collective, name).build(CollectiveSpec(collective, topology.num_ranks, root), topology, **params)


SCHEDULES: dict[str, Callable[[], Schedule]] = {
    "fused": two_rank_fused,
    "relay": relay_with_scratch,
    "ring": lambda: built("ring", "all_reduce", "cluster:2+1"),
    "ring, two channels": lambda: built("ring", "all_reduce", "cluster:2x1", channels=2),
    "ring, reduce_scatter": lambda: built("ring", "reduce_scatter", "cluster:2+2"),
    "tree": lambda: built("tree", "all_reduce", "cluster:2+1+2"),
    "halving-doubling": lambda: built("halving_doubling", "all_reduce", "cluster:2+1"),
    "hierarchical": lambda: built("hierarchical", "all_reduce", "cluster:2+2+1"),
    "hierarchical, all_gather": lambda: built("hierarchical", "all_gather", "cluster:2+1"),
    "direct": lambda: built("direct", "all_reduce", "cluster:1x4"),
    "pat": lambda: built("pat", "reduce_scatter", "cluster:3+2"),
    "pairwise": lambda: built("pairwise", "all_to_all", "cluster:2+1"),
    "bruck": lambda: built("bruck", "all_to_all", "cluster:2+2"),
    "two-level": lambda: built("two_level", "all_to_all", "cluster:2+2"),
    "chain": lambda: built("chain", "broadcast", "cluster:2+2"),
    "binomial reduce": lambda: built("binomial", "reduce", "cluster:3+2"),
    "binomial scatter": lambda: built("binomial", "scatter", "cluster:3+2"),
    "empty messages": lambda: built("dissemination", "broadcast", "cluster:2+2+1"),
    "empty messages, reduce": lambda: built("dissemination", "reduce", "cluster:2+2+1"),
    "barrier": lambda: built("dissemination", "barrier", "cluster:2+1"),
}
MOST = 200  # mutants of one schedule; a random choice where there are more
WRONG_VALUE = (
    "reads a place", "stores chunk", "never been written", "lacks the contribution", "adds chunk", "counts the contribution", "deadlock",
)  # fmt: skip


def verdict(schedule: Schedule, in_place: bool) -> str | None:
    """The verifier's objection, or None."""
    try:
        verify(schedule, in_place=in_place)
    except ScheduleError as error:
        return error.problem
    return None


@pytest.mark.parametrize("name", SCHEDULES)
def test_mutants_are_refused_or_right(name):
    """And the other way round: what is refused for its values or as a deadlock goes wrong in every run, and most races do in some."""
    schedule = SCHEDULES[name]()
    rng = random.Random(name)
    modes = [False, True] if schedule.spec.aliases else [False]
    for in_place in modes:
        assert verdict(schedule, in_place) is None
        for spare in (0, 0, 1, 9):
            assert Run(schedule, rng, 3, in_place, spare).problem() is None

    everything = list(mutants(schedule))
    count: Counter[str] = Counter()
    for mutant in everything if len(everything) <= MOST else rng.sample(everything, MOST):
        for in_place in modes:
            objection = verdict(mutant.schedule, in_place)
            if objection is None:
                count["accepted"] += 1
                assert in_place not in mutant.fatal, f"{mutant.kind}: accepted"
                for spare in (0, 0, 0, 3):
                    problem = Run(mutant.schedule, rng, 3, in_place, spare).problem()
                    assert problem is None, f"{mutant.kind}: accepted, yet {problem}"
                continue
            count["refused"] += 1
            if any(words in objection for words in WRONG_VALUE):
                problem = Run(mutant.schedule, rng, 1, in_place).problem()
                assert problem is not None, f"{mutant.kind}: refused ({objection}), yet it ran right"
                assert (problem == "deadlock") == objection.startswith("deadlock"), f"{mutant.kind}: {objection}; the run: {problem}"
            elif "races" in objection and not in_place and not schedule.spec.idempotent:
                count["races"] += 1
                count["races seen"] += any(Run(mutant.schedule, rng, 2, in_place).problem() for _ in range(4))
    assert count["refused"] >= 0.8 * (count["refused"] + count["accepted"]), count
    assert count["races seen"] >= 0.6 * count["races"], count
