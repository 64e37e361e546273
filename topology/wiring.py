"""The cables between hosts and switches: what a laboratory must lay, and what a picture of the network shows."""

from __future__ import annotations

from dataclasses import dataclass

from topoccl.topology.graph import Topology, TopologyError


@dataclass(frozen=True, slots=True)
class Port:
    """One end of a cable: ``owner`` is a host or a switch outside hosts, ``vertex`` the NIC, slot or switch it ends at."""

    owner: str
    vertex: str


@dataclass(frozen=True, slots=True)
class Cable:
    """A link both ways between two owners. ``rate_ab`` and ``rate_ba`` in bytes/s, ``latency`` in seconds (the larger of both)."""

    a: Port
    b: Port
    rate_ab: float
    rate_ba: float
    latency: float


def owner(topology: Topology, vertex: str) -> str:
    """The host that contains ``vertex``, or the vertex itself outside hosts (a switch)."""
    return topology.vertices[vertex].host or vertex


def cables(topology: Topology) -> tuple[Cable, ...]:
    """All cables between different owners, in the order of their first direction's link.

    Raises:
        TopologyError: a link between owners has no link back.
    """
    waiting: dict[tuple[str, str], list[int]] = {}
    found: dict[int, Cable] = {}
    for index, link in enumerate(topology.links):
        ends = Port(owner(topology, link.src), link.src), Port(owner(topology, link.dst), link.dst)
        if ends[0].owner == ends[1].owner:
            continue
        forward = waiting.get((link.dst, link.src))
        if forward:
            first = topology.links[forward[0]]
            found[forward.pop(0)] = Cable(ends[1], ends[0], first.bandwidth, link.bandwidth, max(first.latency, link.latency))
        else:
            waiting.setdefault((link.src, link.dst), []).append(index)
    for pending in waiting.values():
        for index in pending:
            link = topology.links[index]
            raise TopologyError(f"topology {topology.name!r}: link {link.name} has no link back; a cable carries both directions")
    return tuple(found[index] for index in sorted(found))
