"""Ways for the blocks of an all_to_all over hosts that are wired to each other, so that the busiest cable carries as little as it can.

The flows of all pairs together are a linear programme (:mod:`topoccl.topology.bounds.concurrent`). Its fractions are rounded to whole
chunks, each of which takes one way.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topoccl.algorithms.grids import host_wiring
from topoccl.topology.bounds.concurrent import concurrent_flow
from topoccl.topology.graph import Topology, TopologyError
from topoccl.topology.routes import routes_of

Arc = tuple[int, int]
Path = tuple[int, ...]
_MOST_WAYS = 12
_LEAST_SHARE = 0.02
_PASSES = 20
_BUSY = 0.9  # arcs at least so busy, relative to the busiest one, are relieved


class Wires(NamedTuple):
    """Hosts numbered as in ``topology.ranks_by_host``: the links of each arc between neighbours, and every link's bytes/s."""

    links: Mapping[Arc, tuple[int, ...]]
    bandwidth: npt.NDArray[np.float64]

    def seconds(self, arc: Arc) -> float:
        """Seconds per byte on ``arc`` when nothing else is under way."""
        return float(max(1 / self.bandwidth[link] for link in self.links[arc]))


@lru_cache(maxsize=32)
def wires(topology: Topology) -> Wires | None:
    """The arcs between hosts that are wired to each other, None where hosts meet in switches."""
    wiring = host_wiring(topology)
    if wiring is None:
        return None
    first = [ranks[0] for ranks in topology.ranks_by_host]
    routes = routes_of(topology)
    links: dict[Arc, tuple[int, ...]] = {}
    for a, b in sorted((a, b) for ends in wiring.edges for a, b in (ends, ends[::-1])):
        try:
            path = routes.path(first[a], first[b])
        except TopologyError:
            continue  # wired in the other direction only
        hosts = {topology.vertices[end].host or end for link in path for end in (topology.links[link].src, topology.links[link].dst)}
        if len(hosts) == 2:
            links[a, b] = path
    return Wires(links, np.array([link.bandwidth for link in topology.links]))


def routed(topology: Topology, chunks: int) -> dict[Arc, list[Path]]:
    """For each ordered pair of hosts the ways of its ``chunks`` chunks, as hosts from the source to the destination.

    Args:
        topology: of hosts that are wired to each other; a pair's demand is the product of the two hosts' ranks.
        chunks: chunks per pair of ranks.

    Raises:
        ValueError: hosts meet in switches.
    """
    found = wires(topology)
    if found is None:
        raise ValueError("hosts are not wired to each other")
    sizes = [len(ranks) for ranks in topology.ranks_by_host]
    shares = {(a, b): _split(flow, a, b) for a, flow in enumerate(_flows(found, sizes)) for b in range(len(sizes)) if a != b}
    load = _Load(found, sizes)
    ways: dict[Arc, list[Path]] = {pair: [] for pair in shares}
    # Pairs with many ways last: they can make up for what the rounding of the others did.
    for pair in sorted(shares, key=lambda pair: (len(shares[pair]), pair)):
        left = {path: share * chunks for path, share in shares[pair].items()}
        for _ in range(chunks):
            chosen = min(left, key=lambda path: (load.with_chunk(path), -left[path], path))
            left[chosen] -= 1
            load.add(chosen, 1)
            ways[pair].append(chosen)
    for _ in range(_PASSES):
        if not _improve(load, ways, shares):
            break
    return ways


class _Load:
    """Seconds that each arc is busy for one byte a chunk."""

    def __init__(self, found: Wires, sizes: list[int]) -> None:
        self._sizes = sizes
        self._spent = {arc: found.seconds(arc) for arc in found.links}
        self.busy = dict.fromkeys(found.links, 0.0)

    def _more(self, path: Path, arc: Arc) -> float:
        return self._sizes[path[0]] * self._sizes[path[-1]] * self._spent[arc]

    def add(self, path: Path, times: int) -> None:
        for arc in pairwise(path):
            self.busy[arc] += times * self._more(path, arc)

    def with_chunk(self, path: Path) -> float:
        """The busiest arc of ``path`` when one more chunk takes it."""
        return max(self.busy[arc] + self._more(path, arc) for arc in pairwise(path))


def _improve(load: _Load, ways: dict[Arc, list[Path]], shares: Mapping[Arc, Mapping[Path, float]]) -> bool:
    """Moves chunks from the busiest arcs to ways on which they add to less busy ones; tells whether any could be moved."""
    moved = False
    for pair, paths in ways.items():
        for at, path in enumerate(paths):
            worst = max(load.busy[arc] for arc in pairwise(path))
            if worst < _BUSY * max(load.busy.values()):
                continue
            load.add(path, -1)
            better = min(shares[pair], key=lambda other: (load.with_chunk(other), other))
            if load.with_chunk(better) < worst * (1 - 1e-9):
                paths[at] = better
                moved = True
            load.add(paths[at], 1)
    return moved


def _flows(found: Wires, sizes: list[int]) -> list[dict[Arc, float]]:
    """Per source host, what each arc carries of its blocks, such that the busiest link is busy as briefly as possible."""
    arcs = list(found.links)
    demand = {a: {b: float(mine * theirs) for b, theirs in enumerate(sizes) if a != b} for a, mine in enumerate(sizes)}
    flows = concurrent_flow(len(sizes), arcs, [found.links[arc] for arc in arcs], found.bandwidth.tolist(), demand)
    return [{arcs[arc]: flow for arc, flow in row.items()} for row in flows.of_source]


def _split(flow: Mapping[Arc, float], source: int, target: int) -> dict[Path, float]:
    """Ways from ``source`` to ``target`` along ``flow``, with the share of each: the :data:`_MOST_WAYS` that take most.

    What enters a host leaves it in equal mixture. A way is followed back from the target, and given up when its share is small.
    """
    into: dict[int, list[tuple[int, float]]] = {}
    for (a, b), amount in flow.items():
        into.setdefault(b, []).append((a, amount))
    shares: dict[Path, float] = {}
    open_ends: list[tuple[Path, float]] = [((target,), 1.0)]
    while open_ends:
        path, share = open_ends.pop()
        if path[0] == source:
            shares[path] = shares.get(path, 0.0) + share
            continue
        entering = [(host, amount) for host, amount in into.get(path[0], ()) if host not in path]
        total = sum(amount for _, amount in entering)
        kept = [(host, amount) for host, amount in entering if share * amount >= _LEAST_SHARE * total] or entering[:1]
        open_ends += [((host, *path), share * amount / total) for host, amount in kept]
    if not shares:
        raise ValueError(f"no way from host {source} to host {target}")
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0]))[:_MOST_WAYS])
