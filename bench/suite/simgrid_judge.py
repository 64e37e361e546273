"""The same schedule on the same fabric in SimGrid: an independent opinion on the seconds that the cost model predicts.

What is judged is the flow level: which bytes share which links at which time, and what waits for what, without any overhead of software
(the profile ``ideal``). SimGrid shares links max-min fairly, too, but has its own solver and its own event loop. Its own extras are off:
no cross traffic of acknowledgements, no TCP window, no preference for short round trips. Latency is spent by whoever receives, so that a
sender is free when its last byte has left, as the model says.
"""

from __future__ import annotations

import math
import multiprocessing
from typing import Any

import numpy as np

from topoccl.algorithms.calibration import IDEAL
from topoccl.algorithms.cost.lowering import Lowering, lower
from topoccl.algorithms.schedule import Schedule
from topoccl.topology.graph import Topology

MOST_MESSAGES = 4000
"""SimGrid's Python actors are threads: larger schedules are too many of them."""
_CONFIG = (
    "network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0", "network/weight-S:0", "network/latency-factor:1",
    "network/bandwidth-factor:1", "maxmin/precision:1e-9", "surf/precision:1e-12",
)  # fmt: skip
_TINY = 1e-9  # the latency that every route has in SimGrid: equal, so that its sharing has no preference


def available() -> str | None:
    """Why SimGrid cannot be used here, or None."""
    try:
        import simgrid  # noqa: F401
    except ImportError as error:
        return f"SimGrid's Python module is missing ({error}); Debian has it as python3-simgrid"
    return None


def simgrid_seconds(schedule: Schedule, topology: Topology, block: float, segments: int = 1) -> float:
    """The seconds that SimGrid gives for blocks of ``block`` bytes in ``segments`` segments; runs in a process of its own.

    Raises:
        ValueError: too many messages for it, or a step whose bytes are not whole.
        RuntimeError: the simulation did not end well.
    """
    low = lower(schedule, topology, IDEAL, None)
    sizes = low.step_bytes(block) / segments
    if len(low.messages) * segments > MOST_MESSAGES:
        raise ValueError(
            f"{schedule.label}: {len(low.messages) * segments} messages; SimGrid's actors are threads, at most {MOST_MESSAGES}"
        )
    if not np.array_equal(sizes, np.rint(sizes)):
        raise ValueError(f"{schedule.label}: {block} bytes per block in {segments} segments make messages of a fraction of a byte")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_simulate, args=(low, sizes.astype(np.int64), segments, theirs))
    process.start()
    theirs.close()
    try:
        return float(ours.recv())
    except EOFError:
        process.join()
        raise RuntimeError(f"{schedule.label}: SimGrid ended with exit code {process.exitcode}") from None
    finally:
        ours.close()
        process.join()


def _simulate(low: Lowering, sizes: Any, segments: int, result: Any) -> None:
    import simgrid

    engine = simgrid.Engine(["judge", "--log=root.thres:error", *(f"--cfg={option}" for option in _CONFIG)])
    hosts = _platform(simgrid, low)
    _Run(simgrid, low, sizes, segments, hosts).begin()
    engine.run()
    result.send(engine.clock)


def _platform(simgrid: Any, low: Lowering) -> list[Any]:
    """One SimGrid host per rank; a route has the links that our route has, and its own private one for the latency."""
    zone = simgrid.NetZone.create_full_zone("zone")
    hosts = [zone.create_host(f"rank{rank}", 1e9) for rank in range(low.schedule.spec.ranks)]
    links = []
    for number, link in enumerate(low.topology.links):
        made = zone.create_link(f"link{number}", link.bandwidth)
        made.set_latency(0)
        links.append(made.seal())
    joined = set()
    for (source, destination, _), route in zip(low.route_ends, low.routes, strict=True):
        if (source, destination) in joined:
            raise ValueError(f"{low.schedule.label}: rails give ranks {source} and {destination} several routes, which SimGrid has not")
        joined.add((source, destination))
        own = zone.create_link(f"route{source}-{destination}", 1e15)
        own.set_latency(_TINY)
        own.set_sharing_policy(simgrid.Link.SharingPolicy.FATPIPE, None)
        path = [simgrid.LinkInRoute(own.seal()), *(simgrid.LinkInRoute(links[number]) for number in route)]
        zone.add_route(hosts[source].netpoint, hosts[destination].netpoint, None, None, path, False)
    zone.seal()
    return hosts


class _Run:
    """One actor per lane and one per message on its way to a step."""

    def __init__(self, simgrid: Any, low: Lowering, sizes: Any, segments: int, hosts: list[Any]) -> None:
        self.sg, self.low, self.sizes, self.segments, self.hosts = simgrid, low, sizes.tolist(), segments, hosts
        schedule = low.schedule
        self.total = schedule.num_steps
        self.lane_rank = schedule.lane_rank.tolist()
        waits = np.diff(schedule.dep_ptr) + np.bincount(low.messages.receiver, minlength=self.total)
        self.waits = waits.tolist()
        self.ready = [[simgrid.Semaphore(0) for _ in range(self.total)] for _ in range(segments)]
        self.followers: list[list[int]] = [[] for _ in range(self.total)]
        for step, dep in zip(np.repeat(np.arange(self.total), np.diff(schedule.dep_ptr)).tolist(), schedule.deps.tolist(), strict=True):
            self.followers[dep].append(step)
        self.sends: list[list[int]] = [[] for _ in range(self.total)]
        for message, step in enumerate(low.messages.sender.tolist()):
            self.sends[step].append(message)
        self.entry = [[simgrid.Semaphore(0) for _ in range(segments)] for _ in hosts]
        self.open = [[len(schedule.lanes_of(rank))] * segments for rank in range(len(hosts))]

    def begin(self) -> None:
        for lane, rank in enumerate(self.lane_rank):
            self.sg.Actor.create(f"lane{lane}", self.hosts[rank], self._lane, lane)
        for message, (step, route) in enumerate(zip(self.low.messages.receiver.tolist(), self.low.messages.route.tolist(), strict=True)):
            rank = int(self.low.schedule.step_rank[step])
            latency = max(float(self.low.route_latency[route]) - _TINY, 0.0)
            for segment in range(self.segments):
                self.sg.Actor.create(f"message{message}", self.hosts[rank], self._receive, segment, message, step, latency)

    def _box(self, segment: int, message: int) -> Any:
        return self.sg.Mailbox.by_name(f"{segment}/{message}")

    def _receive(self, segment: int, message: int, step: int, latency: float) -> None:
        self._box(segment, message).get()
        if latency > 0:
            self.sg.this_actor.sleep_for(latency)
        self.ready[segment][step].release()

    def _lane(self, lane: int) -> None:
        schedule, slots = self.low.schedule, self.low.schedule.slots
        rank = self.lane_rank[lane]
        for segment in range(self.segments):
            if slots and segment >= slots:
                self.entry[rank][segment].acquire()
            for step in range(int(schedule.lane_ptr[lane]), int(schedule.lane_ptr[lane + 1])):
                for _ in range(self.waits[step]):
                    self.ready[segment][step].acquire()
                sent = [self._box(segment, message).put_async(message, self.sizes[step]) for message in self.sends[step]]
                for comm in sent:
                    comm.wait()
                for follower in self.followers[step]:
                    self.ready[segment][follower].release()
            self.open[rank][segment] -= 1
            if slots and not self.open[rank][segment] and segment + slots < self.segments:
                for _ in schedule.lanes_of(rank):
                    self.entry[rank][segment + slots].release()


def agreement(ours: float, theirs: float) -> float:
    """How far apart two predictions are, as a share of the larger one."""
    return abs(ours - theirs) / max(ours, theirs) if max(ours, theirs) > 0 and math.isfinite(ours + theirs) else 0.0
