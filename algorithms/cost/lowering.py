"""A schedule on a topology as the cost model sees it: steps, what they wait for, and the resources that they occupy.

Nothing here depends on the size of the data: one lowering serves all sizes and numbers of segments.

*Resources* are things with a capacity in bytes/s: every link, the memory of every rank and, where a medium is slower both ways
than one way, a pair of ranks. A *class* is a set of resources that bytes occupy together: a route, or a rank's memory. A *flow*
is what one step moves through one class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from topoccl.algorithms.calibration import Medium, Profile
from topoccl.algorithms.schedule import Buf, Schedule
from topoccl.algorithms.turns import in_turn
from topoccl.algorithms.verify import happens_before_order
from topoccl.algorithms.ways import named_paths
from topoccl.topology.graph import Topology
from topoccl.topology.routes import Routes, routes_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Messages:
    """The messages of one segment: message ``i`` leaves step ``sender[i]``, and step ``receiver[i]`` consumes it."""

    sender: Ints
    receiver: Ints
    route: Ints
    """Index into ``routes`` of the lowering."""

    def __len__(self) -> int:
        return len(self.sender)


@dataclass(frozen=True)
class Lowering:
    """A schedule ready to be costed; made by :func:`lower`.

    Attributes:
        cpu, handled: per step, seconds of the rank's processor (overheads of its messages), and further seconds for each byte of the step.
        work: per step, bytes through the rank's memory for each byte of the step.
        memory_class: per rank, the class of its memory.
        routes, route_ends, route_latency: links, (source, destination, rail) and seconds of each route in use. Routes are the network's
            own, or what the schedule names.
        flow_step, flow_class, flow_of_message: the step and the class of each flow, and the flow that carries each message.
        classes: the resources of each class; ``class_scale`` is bytes on the wire for each byte of payload.
        capacity: bytes/s of each resource; the first ``len(topology.links)`` are the links.
        cores: how many cores all ranks share, infinite where each has one of its own.
        fixed: seconds of a call besides all its steps.
        line_ptr, line_steps: what runs one after the other: the lanes, or all steps of a rank in one order.
        held: of each flow, whether its step lasts until it has left. What is handed over to the kernel does not hold ranks that run their
            steps in one order.
        burst: bytes on the wire that a link passes at once after a pause; ``burst_links`` of each class are those that do.
        one_order: whether ranks run their steps in one order.
    """

    schedule: Schedule
    topology: Topology
    profile: Profile
    messages: Messages
    cpu: Floats
    handled: Floats
    work: Floats
    memory_class: tuple[int, ...]
    routes: tuple[tuple[int, ...], ...]
    route_ends: tuple[tuple[int, int, int], ...]
    route_latency: Floats
    flow_step: Ints
    flow_class: Ints
    flow_of_message: Ints
    classes: tuple[tuple[int, ...], ...]
    class_scale: Floats
    capacity: Floats
    line_ptr: Ints
    line_steps: Ints
    held: npt.NDArray[np.bool_]
    cores: float = math.inf
    fixed: float = 0.0
    burst: float = 0.0
    burst_links: tuple[tuple[int, ...], ...] = ()
    one_order: bool = False

    @cached_property
    def solo(self) -> Floats:
        """Bytes/s of payload that a flow of each class gets when it is alone."""
        rates = [min((self.capacity[r] for r in resources), default=math.inf) for resources in self.classes]
        return np.array(rates, dtype=np.float64) / self.class_scale

    def busy(self, step_bytes: Floats) -> Floats:
        """Seconds of its rank's processor that each step takes."""
        return self.cpu + self.handled * step_bytes

    def fill(self, step_bytes: Floats) -> float:
        """How many times the messages of one segment fill the room that their medium has for one rank."""
        ranks, host = self.schedule.spec.ranks, self.topology.host_of_rank
        src = self.schedule.step_rank[self.flow_step]
        local = np.array([host[a] == host[b] for a, b, _ in self.route_ends], dtype=bool)[self._flow_route]
        fullest = 0.0
        for mine, medium in ((local, self.profile.local), (~local, self.profile.network)):
            sent = np.bincount(src[mine], weights=step_bytes[self.flow_step[mine]], minlength=ranks)
            fullest = max(fullest, float(sent.max(initial=0.0)) / medium.room)
        return fullest

    @cached_property
    def line_of_step(self) -> Ints:
        line = np.empty(self.schedule.num_steps, dtype=np.int64)
        line[self.line_steps] = np.repeat(np.arange(len(self.line_ptr) - 1), np.diff(self.line_ptr))
        return line

    @cached_property
    def _flow_route(self) -> Ints:
        route = np.empty(len(self.flow_step), dtype=np.int64)
        route[self.flow_of_message] = self.messages.route
        return route

    @cached_property
    def incidence(self) -> tuple[Ints, Ints]:
        """Pairs (class, resource), as two columns sorted by class."""
        lengths = [len(resources) for resources in self.classes]
        flat = np.fromiter((r for resources in self.classes for r in resources), dtype=np.int64, count=sum(lengths))
        return np.repeat(np.arange(len(lengths)), lengths), flat

    @cached_property
    def edges(self) -> tuple[Ints, Ints, Floats]:
        """What waits for what within one segment: (earlier step, later step, seconds in between).

        Steps wait for their predecessor in line, for their dependencies, and for messages, which take a route's latency.
        """
        s, m = self.schedule, self.messages
        earlier, later = np.delete(self.line_steps, self.line_ptr[1:] - 1), np.delete(self.line_steps, self.line_ptr[:-1])
        waiting = np.repeat(np.arange(s.num_steps), np.diff(s.dep_ptr))
        source = np.concatenate([earlier, s.deps, m.sender])
        target = np.concatenate([later, waiting, m.receiver])
        delay = np.concatenate([np.zeros(len(later) + len(waiting)), self.route_latency[m.route]])
        return source, target, delay

    @cached_property
    def _places(self) -> tuple[Ints, Ints]:
        """The chunk id at every place of every buffer (-1: the largest), and where the places of [rank, buffer] begin."""
        s, spec = self.schedule, self.schedule.spec
        pieces: list[Ints] = []
        base = np.empty((spec.ranks, 3), dtype=np.int64)
        total = 0
        for rank in range(spec.ranks):
            for buf in (Buf.INPUT, Buf.OUTPUT, Buf.SCRATCH):
                if buf is Buf.SCRATCH:
                    ids = s.scratch_places(rank).astype(np.int64)
                else:
                    blocks = spec.input_blocks(rank) if buf is Buf.INPUT else spec.output_blocks(rank)
                    ids = (np.asarray(blocks, dtype=np.int64)[:, None] * s.chunks + np.arange(s.chunks)).ravel()
                base[rank, buf] = total
                total += len(ids)
                pieces.append(ids)
        return np.concatenate(pieces), base

    def step_bytes(self, block_bytes: float | Sequence[float] | Floats) -> Floats:
        """Bytes that each step handles when blocks have ``block_bytes`` bytes: one number for all, or one for each block."""
        s, spec = self.schedule, self.schedule.spec
        blocks = np.broadcast_to(np.asarray(block_bytes, dtype=np.float64), (spec.num_blocks,))
        even = bool((blocks == blocks[0]).all())
        if s.weights is None and even:
            return s.count.astype(np.float64) * (float(blocks[0]) / s.chunks)
        weights = np.ones((spec.num_blocks, s.chunks)) if s.weights is None else s.weights.reshape(spec.num_blocks, s.chunks)
        chunk_bytes = (weights * (blocks / np.maximum(weights.sum(axis=1), 1))[:, None]).ravel()
        return self._sum_places(chunk_bytes)

    def _sum_places(self, chunk_bytes: Floats) -> Floats:
        s = self.schedule
        places, base = self._places
        largest = chunk_bytes.max(initial=0.0)
        sizes = np.append(np.where(places < 0, largest, chunk_bytes[places]), 0.0)
        ends = np.concatenate([[0.0], np.cumsum(sizes)])
        # A step's size is that of its first place in local memory; a step that only forwards has its message's.
        buf, off = s.dst_buf.astype(np.int64), s.dst_off.astype(np.int64)
        step = np.repeat(np.arange(s.num_steps), np.diff(s.operand_ptr))
        here = np.flatnonzero(s.operand_buf != Buf.PEER)[::-1]  # backwards: the first operand is written last
        buf[step[here]], off[step[here]] = s.operand_buf[here], s.operand_off[here]
        known = buf < Buf.PEER
        first = np.where(known, base[s.step_rank, np.where(known, buf, 0)] + off, 0)
        result = np.where(known, ends[np.where(known, first + s.count, 0)] - ends[first], 0.0)
        while not known.all():
            ready = known[self.messages.sender] & ~known[self.messages.receiver]
            if not ready.any():
                break
            result[self.messages.receiver[ready]] = result[self.messages.sender[ready]]
            known[self.messages.receiver[ready]] = True
        return result


def lower(
    schedule: Schedule, topology: Topology, profile: Profile, routes: Routes | None = None, *, pulls: bool = False, one_order: bool = False
) -> Lowering:  # fmt: skip
    """Lowers ``schedule`` for ranks that sit on ``topology.slots`` in order.

    Args:
        routes: the routes of ``topology``, when the caller has them already.
        pulls: receivers read what is sent straight from the senders' buffers; for ranks of one host.
        one_order: a rank runs its steps one after the other, whatever lanes they are in, and leaves its messages for other hosts to the
            kernel (:mod:`~topoccl.algorithms.turns`); for one segment.

    Raises:
        ValueError: another number of ranks, a stream whose sends and receives do not pair up, or a way that the topology does not have.
    """
    if topology.num_ranks != schedule.spec.ranks:
        raise ValueError(f"{schedule.label} is for {schedule.spec.ranks} ranks, but the topology places {topology.num_ranks}")
    messages, ends, ways = _pair(schedule)
    find = routes if routes is not None else routes_of(topology)
    named = named_paths(schedule, topology)
    paths = tuple(
        (named[way] if way >= 0 else tuple(find.path(src, dst, rail))) if src != dst else ()
        for (src, dst, rail), way in zip(ends, ways, strict=True)
    )
    host = topology.host_of_rank
    media = tuple(profile.local if host[src] == host[dst] else profile.network for src, dst, _ in ends)
    cpu, work = _local_work(schedule, messages, media, profile, pulls)
    table = _ClassTable([link.bandwidth for link in topology.links], profile, host)
    of_route = np.full(len(ends), table.add((), 1.0)) if pulls else table.add_routes(ends, paths, media, host)
    memory_class = tuple(table.add(table.memory(rank), 1.0) for rank in range(topology.num_ranks))
    flow_step, flow_class, flow_of_message = _flows(messages, media, of_route, table)
    line_ptr, line_steps = schedule.lane_ptr.astype(np.int64), np.arange(schedule.num_steps)
    held = np.ones(len(flow_step), dtype=bool)
    if one_order:
        line_ptr, line_steps = _orders(schedule, topology.ranks_by_host)
        held[flow_of_message] = np.array([medium.staged for medium in media], dtype=bool)[messages.route]
    cores = max(1.0, topology.num_ranks / profile.machine) if profile.machine > 1 and len(set(host)) > 1 else math.inf
    fixed = max((medium.call_overhead for medium in media), default=0.0) * max(1.0, topology.num_ranks / cores)
    return Lowering(
        schedule=schedule,
        topology=topology,
        profile=profile,
        messages=messages,
        cpu=cpu,
        handled=_handled(messages, media, schedule.num_steps) if one_order else np.zeros(schedule.num_steps),
        work=work,
        memory_class=memory_class,
        routes=paths,
        route_ends=ends,
        route_latency=np.array([find.latency(path) + medium.latency for path, medium in zip(paths, media, strict=True)], dtype=np.float64),
        flow_step=flow_step,
        flow_class=flow_class,
        flow_of_message=flow_of_message,
        classes=tuple(resources for resources, _ in table.classes),
        class_scale=np.array([scale for _, scale in table.classes]),
        capacity=np.array(table.capacity),
        line_ptr=line_ptr,
        line_steps=line_steps,
        held=held,
        cores=cores,
        fixed=fixed,
        burst=profile.network.burst,
        burst_links=_burst_links(paths, media, topology, of_route, len(table.classes)),
        one_order=one_order,
    )


def _orders(schedule: Schedule, hosts: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """``line_ptr`` and ``line_steps`` of ranks that run all their steps in one order."""
    _, order = happens_before_order(schedule, 1)
    found = [in_turn(schedule, order, rank, set(ranks)) for ranks in hosts for rank in ranks]
    lengths = [len(steps) for steps in found if steps]
    return np.cumsum([0, *lengths]), np.array([step for steps in found for step in steps], dtype=np.int64)


def _burst_links(
    paths: Sequence[tuple[int, ...]], media: Sequence[Medium], topology: Topology, of_route: Ints, classes: int
) -> tuple[tuple[int, ...], ...]:
    """Of each class the links that pass what its medium lets pass at once: those of the network, not what ranks share inside."""
    links: list[tuple[int, ...]] = [()] * classes
    for path, medium, number in zip(paths, media, of_route.tolist(), strict=True):
        if medium.burst > 0:
            links[number] = tuple(link for link in path if topology.links[link].kind == "net")
    return tuple(links)


def _pair(schedule: Schedule) -> tuple[Messages, tuple[tuple[int, int, int], ...], list[int]]:
    """Matches the i-th send of each stream (source, destination, channel) with its i-th receive; also the routes in use, each with the way
    that is named for it, or -1."""
    p, channels = schedule.spec.ranks, int(schedule.lane_channel.max(initial=0)) + 1
    rank, lane = schedule.step_rank.astype(np.int64), schedule.step_lane
    channel, rail = schedule.lane_channel.astype(np.int64)[lane], schedule.lane_rail.astype(np.int64)[lane]
    sender = np.repeat(np.arange(schedule.num_steps), np.diff(schedule.target_ptr))
    dst = schedule.targets.astype(np.int64)
    is_peer = schedule.operand_buf == Buf.PEER
    receiver = np.repeat(np.arange(schedule.num_steps), np.diff(schedule.operand_ptr))[is_peer]
    out_key = (rank[sender] * p + dst) * channels + channel[sender]
    in_key = (schedule.operand_off[is_peer].astype(np.int64) * p + rank[receiver]) * channels + channel[receiver]
    out_order, in_order = np.argsort(out_key, kind="stable"), np.argsort(in_key, kind="stable")
    if not np.array_equal(out_key[out_order], in_key[in_order]):
        keys, at = np.unique(np.concatenate([out_key, in_key]), return_inverse=True)
        sends, receives = (np.bincount(part, minlength=len(keys)) for part in np.split(at, [len(out_key)]))
        odd = int(np.flatnonzero(sends != receives)[0])
        a, b = divmod(int(keys[odd]) // channels, p)
        stream = f"rank {a} sends {sends[odd]} messages to rank {b} on channel {int(keys[odd]) % channels}"
        raise ValueError(f"{schedule.label}: {stream}, which receives {receives[odd]}")
    partner = np.empty(len(sender), dtype=np.int64)
    partner[out_order] = receiver[in_order]
    rails = int(rail.max(initial=0)) + 1
    ways = len(schedule.ways) + 1
    way = 0 if schedule.target_way is None else schedule.target_way.astype(np.int64) + 1
    keys, route = np.unique(((rank[sender] * p + dst) * rails + rail[sender]) * ways + way, return_inverse=True)
    ends = tuple((key // ways // rails // p, key // ways // rails % p, key // ways % rails) for key in keys.tolist())
    return Messages(sender, partner, route.reshape(-1)), ends, (keys % ways - 1).tolist()


def _handled(messages: Messages, media: Sequence[Medium], steps: int) -> Floats:
    """``handled`` of :class:`Lowering` for stamped calls."""
    each = np.array([0.0 if medium.staged else 1 / medium.stamped_rate for medium in media])[messages.route]
    sent, received = (np.bincount(ends, weights=each, minlength=steps) for ends in (messages.sender, messages.receiver))
    return np.asarray(sent + received, dtype=np.float64)


def _local_work(schedule: Schedule, messages: Messages, media: Sequence[Medium], profile: Profile, pulls: bool) -> tuple[Floats, Floats]:
    """``cpu`` and ``work`` of :class:`Lowering`."""
    n = schedule.num_steps
    operand_step = np.repeat(np.arange(n), np.diff(schedule.operand_ptr))
    operands, has_dst = np.diff(schedule.operand_ptr), schedule.dst_buf != Buf.NONE
    cpu = np.zeros(n)
    copied_out = np.zeros(n, dtype=bool)
    for medium in dict.fromkeys(media):
        mine = np.array([m == medium for m in media], dtype=bool)[messages.route]
        received, sent = (np.bincount(steps[mine], minlength=n) for steps in (messages.receiver, messages.sender))
        # One copy into shared memory and one flag serve all who read it.
        cpu += medium.recv_overhead * received + medium.send_overhead * (np.minimum(sent, 1) if medium.staged else sent)
        cpu += medium.pull_overhead * received if pulls else 0.0
        if medium.staged:
            copied_out |= received > 0
    if math.isinf(profile.copy_bandwidth):
        return cpu, np.zeros(n)
    messages_in = np.bincount(operand_step, weights=schedule.operand_buf == Buf.PEER, minlength=n)
    from_peer = messages_in > 0
    copies = (operands == 1) & has_dst & (~from_peer | copied_out & (not pulls))
    if schedule.spec.collective == "broadcast":  # callers have one buffer: what the root copies lies there already
        copies &= from_peer
    reads = messages_in * (profile.copy_bandwidth / profile.local.pull_bandwidth) if pulls else 0.0
    # A fold of k operands reads k and writes one; the rate is stated for two operands.
    folds = np.where(operands >= 2, (operands + 1) / 3, 0.0)
    return cpu, copies + reads + folds * (profile.copy_bandwidth / profile.reduce_bandwidth)


class _ClassTable:
    """Collects classes and resources, each once."""

    def __init__(self, links: Sequence[float], profile: Profile, host: Sequence[str]) -> None:
        self.capacity = [*links, *[profile.copy_bandwidth] * len(host)]
        self._links = len(links)
        self._index: dict[tuple[tuple[int, ...], float], int] = {}
        self._host = host
        self._cores: dict[str, int] = {}
        if profile.crowd > 1 and math.isfinite(profile.copy_bandwidth):
            for name in dict.fromkeys(host):
                self._cores[name] = len(self.capacity)
                self.capacity.append(profile.copy_bandwidth * max(1.0, host.count(name) / profile.crowd))

    def memory(self, rank: int) -> tuple[int, ...]:
        """What a rank's copies occupy: its memory, and where ranks share cores those of its host."""
        own = self._links + rank
        return (own, self._cores[self._host[rank]]) if self._cores else (own,)

    @property
    def classes(self) -> list[tuple[tuple[int, ...], float]]:
        return list(self._index)

    def add(self, resources: tuple[int, ...], scale: float) -> int:
        return self._index.setdefault((resources, scale), len(self._index))

    def add_routes(
        self, ends: Sequence[tuple[int, int, int]], paths: Sequence[tuple[int, ...]], media: Sequence[Medium], host: Sequence[str]
    ) -> Ints:
        """The class of each route. What is left of both directions is shared by all messages between two hosts."""
        directions = {(host[src], host[dst]) for src, dst, _ in ends}
        exchanges: dict[tuple[str, str], int] = {}
        found = []
        for (src, dst, _), path, medium in zip(ends, paths, media, strict=True):
            resources = list(path)
            if medium.staged and math.isfinite(self.capacity[self._links + src]):
                resources += self.memory(src)
            if medium.both_ways < 1 and path and (host[dst], host[src]) in directions:
                pair = (min(host[src], host[dst]), max(host[src], host[dst]))
                if pair not in exchanges:
                    exchanges[pair] = len(self.capacity)
                    self.capacity.append(2 * medium.both_ways * min(self.capacity[link] for link in path))
                resources.append(exchanges[pair])
            found.append(self.add(tuple(resources), 1 / medium.efficiency))
        return np.array(found, dtype=np.int64)


def _flows(messages: Messages, media: Sequence[Medium], of_route: Ints, table: _ClassTable) -> tuple[Ints, Ints, Ints]:
    """(step, class) of each flow and the flow of each message: what a step publishes in shared memory is written once."""
    staged = np.array([medium.staged for medium in media], dtype=bool)[messages.route]
    kind = np.array([media.index(medium) for medium in media], dtype=np.int64)[messages.route]
    key = messages.sender * len(media) + kind
    # Every message that is not staged is a flow of its own; staged ones join the first with their step and medium.
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    leader = np.where(staged, first[group.reshape(-1)], np.arange(len(messages)))
    leaders, flow_of_message = np.unique(leader, return_inverse=True)
    flow_of_message = flow_of_message.reshape(-1)
    flow_class = of_route[messages.route[leaders]]
    shared = np.flatnonzero(np.bincount(flow_of_message) > 1)
    if len(shared):
        classes = table.classes
        order = np.argsort(flow_of_message, kind="stable")
        starts = np.searchsorted(flow_of_message[order], np.arange(len(leaders) + 1))
        for flow in shared.tolist():
            routes = messages.route[order[starts[flow] : starts[flow + 1]]]
            union = dict.fromkeys(r for c in of_route[routes].tolist() for r in classes[c][0])
            flow_class[flow] = table.add(tuple(union), classes[flow_class[flow]][1])
    return messages.sender[leaders], flow_class, flow_of_message
