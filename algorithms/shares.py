"""How fast the messages of a schedule should leave when all of them leave at once, so that they end together."""

from __future__ import annotations

import numpy as np

from topoccl.algorithms.schedule import Buf, Schedule
from topoccl.topology.graph import Topology
from topoccl.topology.routes import routes_of

_PAYLOAD = 0.94  # of a link's rate: the rest are headers, and acknowledgements of what comes the other way
_MOST = 1 << 14  # messages that are looked at


def at_once(schedule: Schedule, topology: Topology) -> bool:
    """Whether nothing holds up any message between hosts: all are parts of inputs, and no other step comes before them.

    Not for collectives with a root: nothing comes the other way there that queues could hold up, and they are over sooner when messages
    leave one after the other.
    """
    if schedule.spec.root is not None:
        return False
    host = np.unique(topology.host_of_rank, return_inverse=True)[1]
    per_step = np.diff(schedule.target_ptr)
    sender = np.repeat(schedule.step_rank, per_step)
    remote = np.flatnonzero(host[sender] != host[schedule.targets])
    if not 0 < len(remote) <= _MOST or schedule.ways or schedule.lane_rail.any():
        return False
    steps = np.unique(np.repeat(np.arange(len(per_step)), per_step)[remote])
    if (np.diff(schedule.dep_ptr)[steps] > 0).any() or (np.diff(schedule.operand_ptr)[steps] != 1).any():
        return False
    if (schedule.operand_buf[schedule.operand_ptr[steps]] != Buf.INPUT).any() or (schedule.dst_buf[steps] != Buf.NONE).any():
        return False
    # In their lanes only such steps come before them.
    first = schedule.lane_ptr[np.searchsorted(schedule.lane_ptr, steps, side="right") - 1]
    before = np.zeros(len(per_step) + 1, np.int64)
    before[steps + 1] = 1
    before = np.cumsum(before)
    return bool((before[steps] - before[first] == steps - first).all())


def fair_shares(schedule: Schedule, topology: Topology) -> dict[tuple[int, int], float]:
    """For each pair of ranks on different hosts, the share of the rate of the way between them at which their messages should leave; for
    a schedule whose messages are :func:`at_once`, with equal blocks.

    On each link l the messages of all pairs together take ``load(l) / bandwidth(l)``; a pair's messages need not come sooner than the
    slowest of its links lets them, and if they do not, no link has to queue more than it carries. Where they do, queues that are the
    fault of some messages hold up others, and acknowledgements most of all.
    """
    routes, links = routes_of(topology), topology.links
    counts: dict[tuple[int, int], int] = {}
    hosts = topology.host_of_rank
    for step, (lo, hi) in enumerate(zip(schedule.target_ptr[:-1].tolist(), schedule.target_ptr[1:].tolist(), strict=True)):
        rank = int(schedule.step_rank[step])
        for target in schedule.targets[lo:hi].tolist():
            if hosts[rank] != hosts[target]:
                counts[rank, target] = counts.get((rank, target), 0) + int(schedule.count[step])
    ways = {pair: [link for link in routes.path(*pair) if links[link].kind == "net"] for pair in counts}
    load: dict[int, float] = {}
    for pair, way in ways.items():
        for link in way:
            load[link] = load.get(link, 0.0) + counts[pair]
    shares: dict[tuple[int, int], float] = {}
    for pair, way in ways.items():
        if way:
            slowest = max(load[link] / links[link].bandwidth for link in way)
            share = counts[pair] / slowest / min(links[link].bandwidth for link in way)
            shares[pair] = 1.0 if share > _PAYLOAD else share * _PAYLOAD
    return shares
