"""A tree for the terminal: hosts with their parts, then the network."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from topoccl.topology.graph import Topology, Vertex, VertexKind
from topoccl.topology.render.edges import Edge, edges, rate_text, short
from topoccl.topology.units import format_ranks, format_time
from topoccl.topology.wiring import owner

_MOST_HOSTS = 16
"""More hosts than this are folded where neighbours are alike."""


def to_text(topology: Topology, columns: int = 120) -> str:
    """The tree as plain text."""
    console = Console(file=io.StringIO(), width=columns, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(to_tree(topology))
    text = console.file.getvalue() if isinstance(console.file, io.StringIO) else ""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def to_tree(topology: Topology) -> Tree:
    """The tree as rich draws it."""
    return _Drawing(topology).tree()


class _Drawing:
    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.rank_of = {slot: rank for rank, slot in enumerate(topology.slots)}
        self.near: dict[str, list[tuple[str, Edge]]] = {vertex: [] for vertex in topology.vertices}
        for edge in edges(topology):
            self.near[edge.a].append((edge.b, edge))
            self.near[edge.b].append((edge.a, edge))
        self.members: dict[str, list[Vertex]] = {host: [] for host in topology.hosts}
        for vertex in topology.vertices.values():
            if vertex.host is not None and vertex.kind is not VertexKind.HOST:
                self.members[vertex.host].append(vertex)

    def tree(self) -> Tree:
        topology = self.topology
        switches = [v for v in topology.vertices.values() if v.kind is not VertexKind.HOST and v.host is None]
        counts = [(len(topology.hosts), "host"), (topology.num_ranks, "rank"), (len(switches), "switch")]
        summary = ", ".join(
            f"{number} {word}{'' if number == 1 else 'es' if word == 'switch' else 's'}" for number, word in counts if number
        )
        root = Tree(Text.assemble((topology.name, "bold"), f"  {summary}"))
        for hosts in self.runs():
            self.host(root, hosts[0])
            if len(hosts) > 1:
                ranks = [rank for host in hosts[1:] for rank in self.ranks(v.id for v in self.members[host])]
                root.add(Text(f"{hosts[1]} to {hosts[-1]}  {len(hosts) - 1} more like {hosts[0]}, {format_ranks(ranks)}", "dim"))
        if switches:
            network = root.add(Text("network", "bold"))
            for switch in switches:
                self.switch(network, switch.id)
        return root

    def runs(self) -> list[list[str]]:
        """Hosts one by one, or, where there are many, runs of neighbours that look alike."""
        if len(self.topology.hosts) <= _MOST_HOSTS:
            return [[host] for host in self.topology.hosts]
        runs: list[list[str]] = []
        last = None
        for host in self.topology.hosts:
            look = self.look(host)
            if look == last:
                runs[-1].append(host)
            else:
                runs.append([host])
            last = look
        return runs

    def look(self, host: str) -> object:
        """Equal for hosts that differ in nothing but names, ranks and peers."""
        vertices = [self.topology.vertices[host], *self.members[host]]
        return [
            (
                v.kind,
                short(self.topology, v.id) if v.id != host else "",
                sorted((e.kind, e.rate, e.back or 0.0, e.latency) for _, e in self.near[v.id]),
            )
            for v in vertices
        ]

    def ranks(self, vertices: Iterable[str]) -> list[int]:
        return [self.rank_of[vertex] for vertex in vertices if vertex in self.rank_of]

    def host(self, root: Tree, host: str) -> None:
        slots = [v.id for v in self.members[host] if v.kind is VertexKind.SLOT]
        notes = [format_ranks(self.ranks(slots))]
        free = len(slots) - len(self.ranks(slots))
        if free:
            notes.append(f"{free} free slot{'s' if free > 1 else ''}")
        notes += [
            f"{key} {value}"
            for key, value in self.topology.vertices[host].attrs.items()
            if isinstance(value, str | int | float) and key != "source"
        ]
        branch = root.add(Text.assemble((host, "bold cyan"), f"  {', '.join(notes)}"))
        self.hub(branch, host, "memory")
        for vertex in self.members[host]:
            name = short(self.topology, vertex.id)
            if vertex.kind in (VertexKind.NUMA, VertexKind.SWITCH):
                self.hub(branch, vertex.id, name)
            elif vertex.kind is VertexKind.NIC:
                self.nic(branch, vertex.id, name)
        self.direct(branch, slots)
        said = self.topology.vertices[host].attrs.get("notes")
        for note in said if isinstance(said, list) else ():
            branch.add(Text(str(note), "dim"))

    def hub(self, branch: Tree, hub: str, name: str) -> None:
        """What hangs on a hub inside a host: ranks, and the way on to the host's other hubs."""
        groups: dict[str, list[str]] = {}
        for other, edge in self.near[hub]:
            if self.topology.vertices[other].kind is VertexKind.SLOT:
                groups.setdefault(_figures(edge), []).append(other)
        texts = [f"{self.slots(slots)} by {figures}" for figures, slots in groups.items()]
        for other, edge in self.near[hub]:
            if self.topology.vertices[other].kind in (VertexKind.HOST, VertexKind.NUMA, VertexKind.SWITCH) and edge.a == hub:
                texts.append(f"to {'memory' if other == owner(self.topology, hub) else short(self.topology, other)} by {_figures(edge)}")
        for other, edge in self.near[hub]:
            if self.topology.vertices[other].kind is VertexKind.PCIE:
                texts.append(f"{self.behind(other, hub)} behind {_figures(edge)}")
        if texts:
            branch.add(Text.assemble((name, "magenta"), f"  {'; '.join(texts)}"))

    def behind(self, bridge: str, hub: str) -> str:
        """The ranks and NICs that reach ``hub`` through a PCIe bridge."""
        seen, waiting = {hub, bridge}, [bridge]
        slots: list[str] = []
        nics: list[str] = []
        while waiting:
            for other, _ in self.near[waiting.pop()]:
                kind = self.topology.vertices[other].kind
                if other not in seen and kind in (VertexKind.PCIE, VertexKind.SLOT, VertexKind.NIC):
                    seen.add(other)
                    if kind is VertexKind.PCIE:
                        waiting.append(other)
                    else:
                        (slots if kind is VertexKind.SLOT else nics).append(other)
        named = [self.slots(slots)] if slots else []
        return ", ".join([*named, *(short(self.topology, nic) for nic in nics)]) or "nothing"

    def slots(self, slots: list[str]) -> str:
        ranks = self.ranks(slots)
        return format_ranks(ranks) if len(ranks) == len(slots) else f"{len(slots)} slots"

    def nic(self, branch: Tree, nic: str, name: str) -> None:
        host = owner(self.topology, nic)
        out = [f"to {other} by {_figures(edge)}" for other, edge in self.near[nic] if owner(self.topology, other) != host]
        behind = []
        for other, edge in self.near[nic]:
            if self.topology.vertices[other].kind is VertexKind.PCIE:
                slots = [slot for slot, _ in self.near[other] if self.topology.vertices[slot].kind is VertexKind.SLOT]
                behind.append(f"{self.slots(slots)} by {_figures(edge)}" if slots else _figures(edge))
            elif owner(self.topology, other) == host:
                behind.append(_figures(edge) if other == host else f"{short(self.topology, other)} by {_figures(edge)}")
        attrs = self.topology.vertices[nic].attrs
        if not out and isinstance(attrs.get("rate"), float):
            out = [f"{rate_text(attrs['rate'], 'net')}, not plugged in"]
        note = [" (rate assumed)"] if attrs.get("source") == "default" else []
        branch.add(Text.assemble((name, "green"), f"  {'; '.join(out) or 'not plugged in'}", *note, *(f"; {text}" for text in behind)))

    def direct(self, branch: Tree, slots: list[str]) -> None:
        """Links from slot to slot: inside the host by rate, to other hosts by slot."""
        inside: dict[str, list[str]] = {}
        outside: dict[tuple[str, str], list[str]] = {}
        for slot in slots:
            for other, edge in self.near[slot]:
                if self.topology.vertices[other].kind is not VertexKind.SLOT:
                    continue
                if self.topology.vertices[other].host != self.topology.vertices[slot].host:
                    outside.setdefault((slot, _figures(edge)), []).append(other)
                elif edge.a == slot:
                    inside.setdefault(_figures(edge), []).append(f"{self.rank_of.get(slot, slot)}-{self.rank_of.get(other, other)}")
        for (slot, figures), others in outside.items():
            branch.add(Text(f"{self.slot(slot)} to {self.slots(others)} by {figures}"))
        for figures, pairs in inside.items():
            branch.add(Text(f"{figures}: {' '.join(pairs)}"))

    def slot(self, slot: str) -> str:
        return f"rank {self.rank_of[slot]}" if slot in self.rank_of else slot

    def switch(self, network: Tree, switch: str) -> None:
        ports: Counter[str] = Counter()
        hosts: dict[str, None] = {}
        others: dict[str, list[str]] = {}
        for other, edge in self.near[switch]:
            end = owner(self.topology, other)
            if end in self.members:
                ports[edge.label] += 1
                hosts[end] = None
            else:
                others.setdefault(_figures(edge), []).append(other)
        texts = [f"to {_listed(names)} by {figures}" for figures, names in others.items()]
        if hosts:
            rates = ", ".join(label if count == 1 else f"{count} x {label}" for label, count in ports.items())
            texts.insert(0, f"{_listed(list(hosts))} at {rates}")
        network.add(Text.assemble((switch, "yellow"), f"  {'; '.join(texts) or 'nothing plugged in'}"))


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{len(names)} from {names[0]} to {names[-1]}"


def _figures(edge: Edge) -> str:
    """``shm 10GB/s 1us``."""
    return f"{edge.kind} {edge.label}{f' {format_time(edge.latency)}' if edge.latency else ''}"
