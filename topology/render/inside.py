"""Where the parts of one host go: from top to bottom its NICs, PCIe, the places of ranks, inner switches.

A NUMA node is a box around what hangs on it. Where accelerators are linked directly to each other they stand in rows of four, and NUMA
nodes are boxes around rows, if that is possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from topoccl.topology.graph import Topology, VertexKind
from topoccl.topology.render.boxes import Box
from topoccl.topology.render.edges import Edge, short
from topoccl.topology.wiring import owner

SLOT, GAP, NIC_HEIGHT, BAR, TITLE, MARGIN = 30.0, 8.0, 18.0, 18.0, 20.0, 10.0
_ROW = 8  # slots in one row
_MESH_ROW = 4
_PAD = 8.0  # inside a NUMA node's box
PCIE_WIDTH, PCIE_HEIGHT = 30.0, 12.0


@dataclass
class _Group:
    """What hangs on one NUMA node, or on none."""

    node: str | None
    slots: list[str] = field(default_factory=list)
    nics: list[str] = field(default_factory=list)
    pcie: list[str] = field(default_factory=list)


class Inside:
    """The parts of one host, placed from its top left corner; ``w`` and ``h`` are its size."""

    def __init__(self, topology: Topology, host: str, members: Sequence[str], found: Sequence[Edge]) -> None:
        self.topology = topology
        self.parts: dict[str, Box] = {}
        self.near: dict[str, list[str]] = {vertex: [] for vertex in (host, *members)}
        for edge in found:
            if edge.a in self.near and edge.b in self.near:
                self.near[edge.a].append(edge.b)
                self.near[edge.b].append(edge.a)
        self.kind = {vertex: self.shown_as(vertex, found) for vertex in members}
        direct = _dots(topology, found)
        slots = [vertex for vertex in members if self.kind[vertex] is VertexKind.SLOT]
        self.meshed = any(edge.a in self.near and {self.kind.get(edge.a), self.kind.get(edge.b)} == {VertexKind.SLOT} for edge in found)
        groups = self.groups(host, [vertex for vertex in members if vertex not in direct])
        nics = [vertex for group in groups for vertex in group.nics]
        self.nic_w = max([34.0, *(12 + 6.2 * len(short(topology, nic)) for nic in nics)])
        self.slot_gap = 26.0 if self.meshed else max(GAP, self.nic_w + 4 - SLOT) if nics and len(nics) == len(slots) else GAP
        self.w = max(6.6 * len(host), SLOT) + 2 * MARGIN
        y = self.mesh(groups) if self.meshed else self.columns(groups)
        for switch in members:
            if self.kind[switch] is VertexKind.SWITCH:
                y += 16
                self.parts[switch] = Box(self.w / 2, y + BAR / 2, self.w - 2 * MARGIN, BAR)
                y += BAR
        self.h = y + MARGIN

    def shown_as(self, vertex: str, found: Sequence[Edge]) -> VertexKind:
        """Cards with several ports are switches by kind, but stand among PCIe."""
        kind = self.topology.vertices[vertex].kind
        card = kind is VertexKind.SWITCH and any(edge.kind == "port" and vertex in (edge.a, edge.b) for edge in found)
        return VertexKind.PCIE if card else kind

    def groups(self, host: str, members: Sequence[str]) -> list[_Group]:
        """Parts by the NUMA node that they hang on without passing an inner switch or another slot; those on none come first."""
        nodes = [vertex for vertex in members if self.kind[vertex] is VertexKind.NUMA]
        home: dict[str, str] = {}
        order: list[str] = []
        for root in (*nodes, host):
            waiting = [root]
            while waiting:
                vertex = waiting.pop()
                if vertex == root or vertex not in home:
                    home.setdefault(vertex, root)
                    order.append(vertex)
                    if vertex == root or self.kind[vertex] in (VertexKind.PCIE, VertexKind.NIC):
                        inner = (VertexKind.PCIE, VertexKind.NIC, VertexKind.SLOT)
                        waiting += [one for one in reversed(self.near[vertex]) if self.kind.get(one) in inner and one not in home]
        groups = {node: _Group(node) for node in (None, *nodes)}
        rank = {vertex: position for position, vertex in enumerate(order)}
        for vertex in sorted(members, key=lambda one: rank.get(one, len(rank))):
            group = groups.get(home.get(vertex), groups[None])
            match self.kind[vertex]:
                case VertexKind.SLOT:
                    group.slots.append(vertex)
                case VertexKind.NIC:
                    group.nics.append(vertex)
                case VertexKind.PCIE:
                    group.pcie.append(vertex)
        for group in groups.values():
            group.pcie = self.in_order(group.pcie)
            if not any(self.near[pci] for pci in group.pcie):
                group.slots.sort(key=list(members).index)
        return [group for group in groups.values() if group.node or group.slots or group.nics or group.pcie]

    def in_order(self, pcie: list[str]) -> list[str]:
        """Bridges with those below them on both sides, so that links between neighbours are short."""
        below: dict[str, list[str]] = {one: [] for one in pcie}
        tops: list[str] = []
        for position, one in enumerate(pcie):
            above = next((other for other in pcie[:position] if other in self.near[one]), None)
            (tops if above is None else below[above]).append(one)
        found: list[str] = []

        def visit(one: str) -> None:
            half = len(below[one]) // 2
            for child in below[one][:half]:
                visit(child)
            found.append(one)
            for child in below[one][half:]:
                visit(child)

        for top in tops:
            visit(top)
        return found

    # Placing

    def columns(self, groups: Sequence[_Group]) -> float:
        """Groups side by side, each with its NICs, PCIe and slots; returns the lowest y."""
        widths = [max(self.widths(group), default=0.0) for group in groups]
        widths = [max(width, 56.0) if group.node else width for group, width in zip(groups, widths, strict=True)]
        spans = [width + (2 * _PAD if group.node else 0.0) for group, width in zip(groups, widths, strict=True)]
        self.w = max(self.w, sum(spans) + 10 * (len(spans) - 1) + 2 * MARGIN)
        x = self.w / 2 - (sum(spans) + 10 * (len(spans) - 1)) / 2
        top = TITLE + 4
        # Rows are level in all groups.
        title = 16.0 if any(group.node for group in groups) else 0.0
        nics_end = top + title + (NIC_HEIGHT + 12 if any(group.nics for group in groups) else 0.0)
        pcie_end = nics_end + (PCIE_HEIGHT + 16 if any(group.pcie for group in groups) else 0.0)
        rows = max([1, *(-(-len(group.slots) // _ROW) for group in groups)])
        deepest = pcie_end + rows * (SLOT + self.slot_gap) - self.slot_gap
        for group, span in zip(groups, spans, strict=True):
            centre = x + span / 2
            self.row(group.nics, self.nic_w, NIC_HEIGHT, self.nic_step(group), centre, top + title)
            self.row(group.pcie, PCIE_WIDTH, PCIE_HEIGHT, self.pcie_step(group, span), centre, nics_end)
            for start in range(0, len(group.slots), _ROW):
                some = group.slots[start : start + _ROW]
                shift = 0.0 if start == 0 else (len(some) - min(len(group.slots), _ROW)) * (SLOT + self.slot_gap) / 2
                self.row(some, SLOT, SLOT, SLOT + self.slot_gap, centre + shift, pcie_end + start // _ROW * (SLOT + self.slot_gap))
            if group.node:
                self.parts[group.node] = Box(centre, (top + deepest + _PAD) / 2, span, deepest + _PAD - top)
            x += span + 10
        return deepest + (_PAD if title else 0.0)

    def mesh(self, groups: Sequence[_Group]) -> float:
        """Rows of four slots under all NICs and PCIe; returns the lowest y."""
        nics = [nic for group in groups for nic in group.nics]
        pcie = [pci for group in groups for pci in group.pcie]
        whole = _Group(None, [slot for group in groups for slot in group.slots], nics, pcie)
        nodes = [group for group in groups if group.node]
        fits = bool(nodes) and not any(group.slots for group in groups if not group.node)
        fits = fits and all(len(group.slots) % _MESH_ROW == 0 for group in nodes)
        if not fits:
            whole.slots.sort(key=lambda slot: list(self.kind).index(slot))
        per_row = _MESH_ROW if len(whole.slots) > _MESH_ROW else max(1, len(whole.slots))
        pitch = SLOT + self.slot_gap
        wide = per_row * pitch - self.slot_gap
        side = 58.0 if fits else 0.0
        self.w = max(self.w, wide + 2 * side + 2 * MARGIN, *(width + 2 * MARGIN for width in self.widths(_Group(None, [], nics, pcie))))
        y = TITLE + 4
        self.row(nics, self.nic_w, NIC_HEIGHT, self.nic_step(whole), self.w / 2, y)
        y += NIC_HEIGHT + 12 if nics else 0.0
        self.row(pcie, PCIE_WIDTH, PCIE_HEIGHT, self.pcie_step(whole, self.w - 2 * MARGIN), self.w / 2, y)
        y += (PCIE_HEIGHT + 16 if pcie else 0.0) + 22
        rows = max(1, -(-len(whole.slots) // per_row))
        left = self.w / 2 - wide / 2
        for index, slot in enumerate(whole.slots):
            row, column = divmod(index, per_row)
            self.parts[slot] = Box(left + SLOT / 2 + column * pitch, y + SLOT / 2 + row * pitch, SLOT, SLOT)
        for group in nodes if fits else ():
            boxes = [self.parts[slot] for slot in group.slots]
            if boxes and group.node:
                upper, lower = min(box.top for box in boxes) - 6, max(box.bottom for box in boxes) + 6
                self.parts[group.node] = Box(self.w / 2, (upper + lower) / 2, wide + 2 * side, lower - upper)
        return y + rows * pitch - self.slot_gap + (22.0 if rows > 1 else 0.0)

    def widths(self, group: _Group) -> list[float]:
        """Of the rows of NICs, PCIe and slots."""
        found = []
        if group.nics:
            found.append((len(group.nics) - 1) * self.nic_step(group) + self.nic_w)
        if group.pcie:
            found.append(36.0 * len(group.pcie) - 6)
        if group.slots:
            found.append(min(len(group.slots), _ROW) * (SLOT + self.slot_gap) - self.slot_gap)
        return found

    def nic_step(self, group: _Group) -> float:
        """From one NIC to the next: as far as slots where there are as many."""
        if len(group.nics) == len(group.slots) <= _ROW and not self.meshed:
            return max(SLOT + self.slot_gap, self.nic_w + 4)
        return self.nic_w + max(4.0, 12 - self.nic_w / 8)

    def pcie_step(self, group: _Group, span: float) -> float:
        if len(group.pcie) == len(group.nics):
            return self.nic_step(group)
        return min(max(36.0, (span - 2 * _PAD) / max(1, len(group.pcie))), 90.0)

    def row(self, vertices: Sequence[str], w: float, h: float, step: float, centre: float, y: float) -> None:
        for index, vertex in enumerate(vertices):
            self.parts[vertex] = Box(centre + (index - (len(vertices) - 1) / 2) * step, y + h / 2, w, h)


def _dots(topology: Topology, found: Sequence[Edge]) -> set[str]:
    """NICs that are cabled to other hosts alone: they are dots on the border."""
    hosts = set(topology.hosts)
    ends = [(owner(topology, edge.a), owner(topology, edge.b), edge) for edge in found]
    direct = {end for a, b, edge in ends if a != b and {a, b} <= hosts for end in (edge.a, edge.b)}
    direct = {end for end in direct if topology.vertices[end].kind is VertexKind.NIC}
    return direct - {end for a, b, edge in ends if a != b and not {a, b} <= hosts for end in (edge.a, edge.b)}
