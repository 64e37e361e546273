"""Fabrics without switches between hosts: which hosts are wired to each other, and whether they form a line, ring, mesh or torus."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from topoccl.algorithms.layout import host_groups
from topoccl.topology.graph import Topology

if TYPE_CHECKING:
    import networkx as nx

MAX_HOSTS = 256
"""Above this many hosts no grid is looked for: that is a search for an isomorphism."""
_MOST_AXES = 3


@lru_cache(maxsize=64)
def host_wiring(topology: Topology) -> nx.Graph[int] | None:
    """The graph of hosts (numbered as in ``topology.ranks_by_host``) that are joined by links without a switch between them.

    None where some link between hosts goes through something that belongs to no host, and where there is only one host.
    """
    hosts = {topology.host_of_rank[ranks[0]]: at for at, ranks in enumerate(topology.ranks_by_host)}
    if len(hosts) < 2:
        return None
    import networkx as nx  # late: most fabrics need none of it, and ranks wait for it when they start

    wiring: nx.Graph[int] = nx.empty_graph(len(hosts))
    for link in topology.links:
        ends = [topology.vertices[end].host or end for end in (link.src, link.dst)]
        if ends[0] == ends[1]:
            continue
        if not hosts.keys() >= set(ends):
            return None
        wiring.add_edge(*(hosts[end] for end in ends))
    return wiring if nx.is_connected(wiring) else None


@lru_cache(maxsize=64)
def host_grid(topology: Topology) -> npt.NDArray[np.int64] | None:
    """The hosts (numbered as in ``topology.ranks_by_host``) as a grid of two or three axes whose neighbours are wired, else None.

    An axis may close to a ring or not; the rates of the links are not looked at. Of several shapes that fit, the one with the fewest
    axes and the most even lengths is taken. A ring or a line is no grid, also a ring of four.
    """
    wiring = host_wiring(topology)
    if wiring is None or wiring.number_of_nodes() > MAX_HOSTS or max(dict(wiring.degree()).values()) < 3:
        return None
    import networkx as nx

    for shape in _shapes(wiring.number_of_nodes()):
        for closed in product(*((False, True) if length > 2 else (False,) for length in shape)):
            model: nx.Graph[tuple[int, ...]] = nx.grid_graph(shape[::-1], periodic=closed[::-1])
            if model.number_of_edges() != wiring.number_of_edges():
                continue
            found = nx.vf2pp_isomorphism(model, wiring)
            if found is not None:
                grid: npt.NDArray[np.int64] = np.empty(shape, np.int64)
                for place, host in found.items():
                    grid[place] = host
                return grid
    return None


def _shapes(hosts: int) -> Iterator[tuple[int, ...]]:
    """Ways to write ``hosts`` as a product of two or three factors above one, the most even first among those of equal length."""
    for axes in range(2, _MOST_AXES + 1):
        divisors = [d for d in range(2, hosts) if hosts % d == 0]
        found = {tuple(sorted(shape)) for shape in product(divisors, repeat=axes - 1) if prod(shape) < hosts and hosts % prod(shape) == 0
                 for shape in [(*shape, hosts // prod(shape))]}  # fmt: skip
        yield from sorted(found, key=lambda shape: (shape[-1] - shape[0], shape))


def rank_grid(topology: Topology) -> npt.NDArray[np.int64]:
    """All ranks as a grid: the axes of :func:`host_grid` and, last, the ranks of a host.

    Where there is no such grid or hosts differ in their number of ranks, the ranks in the order of the layout are folded into the most
    even grid of two axes, which is one axis for a prime number of them.
    """
    hosts = host_grid(topology)
    sizes = set(map(len, topology.ranks_by_host))
    if hosts is not None and len(sizes) == 1:
        grid = np.array(topology.ranks_by_host, np.int64)[hosts]
        return grid[..., 0] if sizes == {1} else grid
    order = np.array([rank for group in host_groups(topology) for rank in group], np.int64)
    width = max(d for d in range(1, int(len(order) ** 0.5) + 1) if len(order) % d == 0)
    return order.reshape(-1) if width == 1 else order.reshape(len(order) // width, width)
