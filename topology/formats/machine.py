"""One machine from what a vendor's tool knows: how near devices are on PCIe, and which accelerators are linked directly.

Nearness comes in NVIDIA's classes: PIX (one PCIe switch), PXB (several), PHB (a host bridge), NODE (several host bridges of one NUMA
node), SYS (between NUMA nodes). They make a tree: devices within PIX of one another hang on one ``pcie`` vertex, those within PXB on
one above it, those within NODE on one NUMA node. PHB and NODE both lead through the NUMA node, as in NCCL, whose own trees do not
tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from topoccl.topology import constants
from topoccl.topology import fabric as fb
from topoccl.topology.formats.draft import Draft
from topoccl.topology.formats.support import DEFAULT
from topoccl.topology.graph import Topology, VertexKind

LEVELS = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4, "SOC": 4}
_PIX, _PXB, _NODE, _SYS = 0, 1, 3, 4
_PCIE = constants.pcie(None, 0)


@dataclass
class Device:
    """An accelerator or a NIC; ``name`` is the last part of its id."""

    name: str
    nic: bool = False
    cpus: str | None = None
    numa: int | None = None
    coherent: bool = False
    """Whether its memory is a NUMA node of the host: a chip-to-chip link (Grace) makes it one."""
    attrs: dict[str, Any] = field(default_factory=dict)


class Machine:
    """Collects devices, nearness and direct links; :meth:`build` makes a topology of one host ``h0``."""

    def __init__(self, source: str, devices: list[Device]) -> None:
        self.draft = Draft(source)
        self.host = self.draft.host(self.draft.free("h0"))
        self.devices = devices
        self.near: dict[tuple[int, int], int] = {}
        self.vertices: list[str] = []
        self._direct: list[tuple[int, int, float, str, Mapping[str, Any]]] = []
        self._switches: list[tuple[str, dict[int, float], str, Mapping[str, Any]]] = []

    def note(self, text: str) -> None:
        self.draft.note(self.host, text)

    def link(self, a: int, b: int, rate: float, kind: str, attrs: Mapping[str, Any]) -> None:
        """A direct link between two accelerators, ``rate`` bytes/s per direction."""
        self._direct.append((a, b, rate, kind, attrs))

    def switch(self, name: str, members: dict[int, float], kind: str, attrs: Mapping[str, Any]) -> None:
        """A switch of direct links, with each member's rate into it."""
        self._switches.append((name, members, kind, attrs))

    def build(self) -> Topology:
        """The topology; slots are in the order of the accelerators."""
        for device in self.devices:
            said = {"rate": constants.net(0), **DEFAULT} if device.nic else {}
            part = VertexKind.NIC if device.nic else VertexKind.SLOT
            self.vertices.append(self.draft.put(self.host, device.name, part, {"cpus": device.cpus, **device.attrs, **said}))
        nodes = self._numa_nodes()
        for numa, members in nodes:
            self._pcie(numa, members)
            self._chip_to_chip(numa, [index for index in members if self.devices[index].coherent])
        self._contradictions([members for _, members in nodes])
        for a, b, rate, kind, attrs in self._direct:
            self.draft.link(self.vertices[a], self.vertices[b], rate, 2 * constants.NVLINK_LATENCY, kind, attrs=attrs)
        for name, ports, kind, attrs in self._switches:
            switch = self.draft.switch(self.draft.free(f"{self.host}.{name}"), self.host)
            for index, rate in ports.items():
                self.draft.link(self.vertices[index], switch, rate, constants.NVLINK_LATENCY, kind, attrs=attrs)
        self.note("rates on PCIe are not in the matrix: 16 lanes of generation 3 assumed, as NCCL does")
        if any(device.nic for device in self.devices):
            self.note("rates of NICs, and what they are plugged into, are not in the matrix: 10 Gbit/s assumed")
        return self.draft.finish()

    def _numa_nodes(self) -> list[tuple[str, list[int]]]:
        """Adds the NUMA nodes; returns their vertices and devices."""
        groups = self._groups(range(len(self.devices)), _NODE)
        owner = {index: number for number, members in enumerate(groups) for index in members}
        keys: dict[object, int] = {}
        for index, device in enumerate(self.devices):  # same node, or same CPUs, though the matrix does not say how near
            for key in (device.numa, device.cpus):
                first = keys.setdefault(key, index) if key is not None else index
                if owner[first] != owner[index] and not self._apart(groups[owner[first]], groups[owner[index]]):
                    gone = owner[index]
                    for member in groups[gone]:
                        owner[member] = owner[first]
                    groups[owner[first]] += groups[gone]
                    groups[gone] = []
        groups = [members for members in groups if members]
        lost = [members for members in groups if self._nowhere(members)]
        if lost and len(groups) > 1:
            names = ", ".join(self.devices[index].name for members in lost for index in members)
            self.note(f"the NUMA node of {names[:120]} is not stated: one for all assumed")
            rest = [members for members in groups if members not in lost]
            merged = [index for members in lost for index in members]
            groups = [*rest, merged] if len(rest) > 1 else [sum(rest, merged)]
        groups = [sorted(members) for members in groups]
        taken: set[int] = set()
        found = []
        for members in sorted(groups):
            stated = [n for n in dict.fromkeys(self.devices[index].numa for index in members) if n is not None and n not in taken]
            number = stated[0] if stated else next(n for n in range(len(self.devices) + 1) if n not in taken and not self._states(n))
            taken.add(number)
            node = self.draft.put(self.host, f"numa{number}", VertexKind.NUMA)
            self.draft.link(node, self.host, fb.NUMA_BANDWIDTH, fb.NUMA_LATENCY, "numa", attrs=DEFAULT)
            found.append((node, members))
        return found

    def _nowhere(self, members: list[int]) -> bool:
        """Whether neither an affinity nor the matrix says where on PCIe they are."""
        if any(self.devices[index].numa is not None or self.devices[index].cpus is not None for index in members):
            return False
        return not any((a in members) != (b in members) for a, b in self.near)

    def _states(self, numa: int) -> bool:
        return any(device.numa == numa for device in self.devices)

    def _apart(self, some: Iterable[int], others: Iterable[int]) -> bool:
        """Whether the matrix puts any two of them on different nodes."""
        return any(self._level(a, b) == _SYS for a in some for b in others)

    def _level(self, a: int, b: int) -> int | None:
        return self.near.get((a, b), self.near.get((b, a)))

    def _groups(self, members: Iterable[int], level: int) -> list[list[int]]:
        """Parts of ``members`` that are joined by pairs as near as ``level``."""
        parent = {index: index for index in members}

        def root(index: int) -> int:
            while parent[index] != index:
                parent[index] = index = parent[parent[index]]
            return index

        for (a, b), found in self.near.items():
            if found <= level and a in parent and b in parent:
                low, high = sorted((root(a), root(b)))
                parent[high] = low
        groups: dict[int, list[int]] = {}
        for index in parent:
            groups.setdefault(root(index), []).append(index)
        return list(groups.values())

    def _pcie(self, numa: str, members: list[int]) -> None:
        """The switches below one NUMA node."""
        for outer in self._groups(members, _PXB):
            inner = self._groups(outer, _PIX)
            top = self._bridge(numa) if len(inner) > 1 else numa
            for group in inner:
                hub = self._bridge(top) if len(group) > 1 or top != numa else top
                for index in group:
                    self.draft.below(hub, self.vertices[index], _PCIE, DEFAULT)

    def _chip_to_chip(self, numa: str, members: list[int]) -> None:
        for index in members:
            rate = constants.GRACE_C2C / len(members)
            self.draft.link(self.vertices[index], numa, rate, constants.C2C_LATENCY, "c2c", attrs=DEFAULT)
        if members:
            self.note(f"memory of accelerators is a NUMA node: {constants.GRACE_C2C / 1e9:g} GB/s of NVLink-C2C per processor assumed")

    def _contradictions(self, nodes: list[list[int]]) -> None:
        """Notes pairs that the tree brings nearer than the matrix does (nearness that is not transitive makes no tree)."""
        everything = range(len(self.devices))
        places = []
        for groups in (self._groups(everything, _PIX), self._groups(everything, _PXB), nodes):
            places.append({index: number for number, members in enumerate(groups) for index in members})
        reached = (_PIX, _PXB, _NODE)
        wrong = []
        for (a, b), stated in self.near.items():
            found = next((level for level, place in zip(reached, places, strict=True) if place[a] == place[b]), _SYS)
            if found < stated:
                wrong.append(f"{self.devices[a].name} and {self.devices[b].name}")
        if wrong:
            self.note(f"nearness in the matrix makes no tree: {len(wrong)} pairs are counted as nearer than it says, such as {wrong[0]}")

    def _bridge(self, above: str) -> str:
        number = sum(vertex.kind is VertexKind.PCIE for vertex in self.draft.vertices)
        vertex = self.draft.put(self.host, f"pcie{number}", VertexKind.PCIE)
        self.draft.below(above, vertex, _PCIE, DEFAULT)
        return vertex
