"""How fast a collective can be at best on a topology, whatever the algorithm: the cut that says so, and the latency.

The bandwidth bound is the time in which the tightest cut passes what must cross it. For all_gather, reduce_scatter, broadcast,
reduce, gather and scatter that cut is found exactly (``cuts.py``), for all_reduce the best combination of cuts (``exchange.py``),
and for all_to_all the best lengths of links (``concurrent.py``). For fabrics too large to search, the likely cuts are tried
(``claims.py``). Data may be combined and duplicated at ranks only; what is written once into the memory of a host may be read by
several of its ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from topoccl.topology.bounds.certificate import Certificate, certificate, check_call
from topoccl.topology.bounds.claims import Cut, cuts
from topoccl.topology.bounds.latency import eccentricity
from topoccl.topology.graph import Topology

__all__ = ["Bound", "Certificate", "Cut", "certificate", "lower_bound", "tightest_cuts"]


@dataclass(frozen=True, slots=True)
class Bound:
    """No schedule is faster than ``seconds``; ``links`` (indices into ``topology.links``) are what limits it, none for latency."""

    seconds: float
    description: str
    links: tuple[int, ...]
    bandwidth_seconds: float
    latency_seconds: float


def lower_bound(topology: Topology, collective: str, nbytes: int, root: int | None = None, *, search: bool = True) -> Bound:
    """The bound for one call of ``collective`` with ``nbytes`` (nccl-tests' size) among all ranks of ``topology``.

    Args:
        search: as for :func:`certificate`.

    Raises:
        ValueError: unknown collective, negative size, or a root that does not fit.
        TopologyError: ranks that cannot reach each other.
    """
    check_call(topology, collective, root)
    if nbytes < 0:
        raise ValueError(f"{collective}: {nbytes} bytes; expected a size that is not negative")
    latency, why = eccentricity(topology, collective, root)
    proof = certificate(topology, collective, root, search=search)
    seconds = float(proof.seconds_per_byte * nbytes)
    if latency >= seconds and topology.num_ranks > 1:
        return Bound(latency, why, (), seconds, latency)
    return Bound(seconds, proof.text, proof.cut.links, seconds, latency)


def tightest_cuts(topology: Topology, collective: str, root: int | None = None) -> tuple[float, frozenset[int]]:
    """The largest bound by a single cut of those worth trying, in seconds per byte, and the links of *all* cuts that are as tight:
    both uplinks of two equal racks. ``(0.0, frozenset())`` where there is nothing to send.
    """
    best, found = 0.0, set[int]()
    if topology.num_ranks > 1 and collective != "barrier":
        for cut in cuts(topology, collective, root):
            bandwidth = math.fsum(topology.links[link].bandwidth for link in cut.links)
            seconds = float(cut.share) / bandwidth if bandwidth else 0.0
            if seconds > best * (1 + 1e-9):
                best, found = seconds, set()
            if seconds and math.isclose(seconds, best, rel_tol=1e-9):
                found.update(cut.links)
    return best, frozenset(found)
