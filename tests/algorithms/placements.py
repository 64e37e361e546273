"""Placements of ranks on hosts, and what a schedule sends where: helpers for the tests of builders."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from topoccl.algorithms.schedule import Schedule
from topoccl.topology.generators import generate
from topoccl.topology.graph import Topology


def cluster(sizes: Sequence[int], order: Sequence[int] | None = None) -> Topology:
    """Hosts with ``sizes`` slots on one switch; rank i on slot ``order[i]``, by default on slot i."""
    topology = generate("cluster:" + ("+".join(map(str, sizes)) if len(sizes) > 1 else f"1x{sizes[0]}"))
    return topology if order is None else topology.place(order)


def round_robin(sizes: Sequence[int]) -> Topology:
    """Ranks dealt out over the hosts like cards."""
    starts = np.cumsum([0, *sizes[:-1]])
    order = [int(starts[h]) + turn for turn in range(max(sizes)) for h in range(len(sizes)) if turn < sizes[h]]
    return cluster(sizes, order)


@functools.cache
def placements(p: int) -> dict[str, Topology]:
    """One host, one rank a host, full hosts packed and dealt out, and uneven hosts packed and scattered."""
    found = {"one host": cluster([p])}
    if p > 1:
        found["one per host"] = cluster([1] * p)
    if p > 2:
        size = next((k for k in (4, 3, 2) if p % k == 0 and p > k), None)
        if size is not None:
            found["packed"] = cluster([size] * (p // size))
            found["round robin"] = round_robin([size] * (p // size))
        uneven = [1, 2] if p == 3 else [p - p // 2 - p // 4, p // 2, p // 4]
        stride = next(k for k in range(p // 2, 0, -1) if math.gcd(k, p) == 1)
        found["uneven"] = cluster(uneven)
        found["uneven, scattered"] = cluster(uneven, [i * stride % p for i in range(p)])
    return found


@st.composite
def uneven_placements(draw: st.DrawFn, most_hosts: int = 6, most_ranks: int = 6) -> Topology:
    """Up to ``most_hosts`` hosts of up to ``most_ranks`` ranks each, ranks in any order."""
    sizes = draw(st.lists(st.integers(1, most_ranks), min_size=1, max_size=most_hosts))
    return cluster(sizes, draw(st.permutations(range(sum(sizes)))))


def messages(schedule: Schedule) -> Iterator[tuple[int, int, Fraction]]:
    """(source, target, size in blocks) of every message."""
    assert schedule.weights is None
    sent = np.diff(schedule.target_ptr)
    sources, counts = np.repeat(schedule.step_rank, sent), np.repeat(schedule.count, sent)
    for source, target, count in zip(sources.tolist(), schedule.targets.tolist(), counts.tolist(), strict=True):
        yield source, target, Fraction(count, schedule.chunks)


def rank_traffic(schedule: Schedule) -> Counter[int]:
    """Blocks that each rank sends, to all its targets together."""
    total: Counter[int] = Counter()
    for source, _, size in messages(schedule):
        total[source] += size
    return total


def host_traffic(schedule: Schedule, topology: Topology) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
    """Blocks that leave and that enter each host."""
    host = topology.host_of_rank
    out: dict[str, Fraction] = dict.fromkeys(host, Fraction(0))
    into = dict(out)
    for source, target, size in messages(schedule):
        if host[source] != host[target]:
            out[host[source]] += size
            into[host[target]] += size
    return out, into
