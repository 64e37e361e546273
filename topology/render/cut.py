"""What a picture shines red on: the cut that limits large all_reduces."""

from __future__ import annotations

from topoccl.topology.bounds import tightest_cuts
from topoccl.topology.graph import Topology
from topoccl.topology.units import format_rate


def bottleneck(topology: Topology) -> tuple[frozenset[int], str]:
    """Indices of the links of the tightest cuts, and a sentence about them.

    No links where every rank's own ones limit alike, as in a torus or a single machine: then nothing stands out.
    """
    seconds, links = tightest_cuts(topology, "all_reduce")
    if not links:
        return frozenset(), ""
    rate = format_rate(1 / seconds)
    slots = set(topology.slots)
    own = {index for index, link in enumerate(topology.links) if link.src in slots or link.dst in slots}
    if own <= links:
        return frozenset(), f"every rank's own links limit all_reduce alike: at best {rate}"
    return links, f"red limits all_reduce: at best {rate}"
