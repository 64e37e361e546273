"""NCCL's classes of paths (``graph.h``, ``paths.cc``), read off the ways that :mod:`topoccl.topology.routes` takes.

From best to worst: LOC inside a device, NVL over NVLink (or xGMI, HCCS and their like), NVB over NVLinks past one more accelerator,
C2C over a chip-to-chip link to the processor, PIX over one PCIe switch, PXB over several, P2C over C2C and then PCIe, PXN to a NIC past
another accelerator, PHB through the processor, SYS between NUMA nodes, NET between hosts, DIS not at all. ``nvidia-smi topo -m``
calls PHB also NODE (between host bridges of a NUMA node), and does not let accelerators relay.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from topoccl.topology.graph import Link, Topology, VertexKind
from topoccl.topology.routes import Routes
from topoccl.topology.wiring import owner


class PathClass(IntEnum):
    """NCCL's order: a lower one is better."""

    LOC = 0
    NVL = 1
    NVB = 2
    C2C = 3
    PIX = 4
    PXB = 5
    P2C = 6
    PXN = 7
    PHB = 8
    SYS = 9
    NET = 10
    DIS = 11


_DIRECT = ("nvlink", "xgmi", "xelink", "hccs", "sio", "metaxlink", "mtlink")
_HUBS = (VertexKind.HOST, VertexKind.NUMA)


def classify(topology: Topology, path: Sequence[int]) -> PathClass:
    """The class of a path, given as indices into ``topology.links`` in order; LOC for an empty one."""
    worst, relays, c2c = PathClass.LOC, 0, False
    kinds = [topology.vertices[topology.links[link].dst].kind for link in path]
    ends = (topology.vertices[topology.links[path[0]].src].kind, kinds[-1]) if path else ()
    for position, index in enumerate(path):
        link = topology.links[index]
        worst = max(worst, _class_of(topology, link))
        c2c |= link.kind == "c2c"
        relays += position < len(path) - 1 and kinds[position] is VertexKind.SLOT
    if worst is PathClass.PHB and c2c:
        return PathClass.P2C
    if relays and VertexKind.NIC in ends and worst < PathClass.PXN:
        return PathClass.PXN
    return PathClass.NVB if relays and worst is PathClass.NVL else worst


def path_class(routes: Routes, a: str, b: str) -> PathClass:
    """The class of the way between two vertices (slots, NICs), ranks or not; DIS where there is none."""
    path = routes.between(a, b)
    return PathClass.DIS if path is None else classify(routes.topology, path)


def class_matrix(topology: Topology, vertices: Sequence[str] | None = None) -> list[list[PathClass]]:
    """The classes between ``vertices``, by default all ranks' slots and then all NICs: what ``nvidia-smi topo -m`` prints."""
    routes = Routes(topology)
    if vertices is None:
        nics = [vertex.id for vertex in topology.vertices.values() if vertex.kind is VertexKind.NIC]
        vertices = [*topology.slots, *nics]
    return [[path_class(routes, a, b) for b in vertices] for a in vertices]


def _class_of(topology: Topology, link: Link) -> PathClass:
    ends = topology.vertices[link.src], topology.vertices[link.dst]
    if link.kind in _DIRECT:
        return PathClass.NVL
    if link.kind == "port":
        return PathClass.LOC
    if link.kind == "c2c":
        return PathClass.C2C
    if link.kind == "numa":
        return PathClass.SYS
    if link.kind == "net" or owner(topology, link.src) != owner(topology, link.dst):
        return PathClass.NET
    if link.kind == "pcie" and not any(end.kind in _HUBS for end in ends):
        return PathClass.PXB if all(end.kind is VertexKind.PCIE for end in ends) else PathClass.PIX
    return PathClass.PHB
