"""What a picture shines red on: the links that limit large all_reduces."""

from __future__ import annotations

from topoccl.topology.bounds import host_cut_bound, limiting_links
from topoccl.topology.graph import Topology
from topoccl.topology.units import format_rate

_SIZE = 1 << 40  # bytes: so many that latencies do not count


def bottleneck(topology: Topology) -> tuple[frozenset[int], str]:
    """Indices of the links of all tightest cuts (:mod:`topoccl.topology.bounds`), and a sentence; nothing for one rank."""
    if topology.num_ranks < 2:
        return frozenset(), ""
    bound = host_cut_bound(topology, "all_reduce", _SIZE)
    if not bound.links:
        return frozenset(), ""
    return limiting_links(topology, "all_reduce", _SIZE), f"red limits all_reduce: at best {format_rate(_SIZE / bound.seconds)}"
