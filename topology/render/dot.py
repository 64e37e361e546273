"""Graphviz: hosts as clusters, pen width by bandwidth, what limits large all_reduces in red."""

from __future__ import annotations

from topoccl.topology.graph import Topology, Vertex, VertexKind
from topoccl.topology.render.cut import bottleneck
from topoccl.topology.render.edges import CUT_COLOR, color, edges, short, width

_SHAPES = {
    VertexKind.SLOT: "box",
    VertexKind.HOST: "point",
    VertexKind.NUMA: "box",
    VertexKind.PCIE: "diamond",
    VertexKind.NIC: "cds",
    VertexKind.SWITCH: "ellipse",
}


def to_dot(topology: Topology) -> str:
    """``topology`` for ``dot`` or ``neato``."""
    rank_of = {slot: rank for rank, slot in enumerate(topology.slots)}
    inside: dict[str, list[Vertex]] = {host: [] for host in topology.hosts}
    outside = []
    for vertex in topology.vertices.values():
        if vertex.kind is VertexKind.HOST or vertex.host is not None:
            inside[vertex.id if vertex.kind is VertexKind.HOST else str(vertex.host)].append(vertex)
        else:
            outside.append(vertex)
    lines = [f"digraph {_quote(topology.name)} {{", "  rankdir=BT;", '  node [fontname="sans-serif"];', '  edge [fontname="sans-serif"];']
    for number, (host, members) in enumerate(inside.items()):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quote(host)};"]
        lines += [f"    {_node(topology, vertex, rank_of)}" for vertex in members]
        lines.append("  }")
    lines += [f"  {_node(topology, vertex, rank_of)}" for vertex in outside]
    found = edges(topology)
    cut, limit = bottleneck(topology)
    if limit:
        lines.append(f"  label={_quote(limit)};")
    slowest = min((edge.rate for edge in found), default=1.0)
    for edge in found:
        arrow = "forward" if edge.back is None else "none"
        shade = CUT_COLOR if cut.intersection(edge.links) else color(edge.kind)
        look = f'dir={arrow}, penwidth={width(edge.rate, slowest):g}, color="{shade}"'
        lines.append(f"  {_quote(edge.a)} -> {_quote(edge.b)} [{look}, label={_quote(edge.label)}, tooltip={_quote(edge.kind)}];")
    return "\n".join([*lines, "}", ""])


def _node(topology: Topology, vertex: Vertex, rank_of: dict[str, int]) -> str:
    label = short(topology, vertex.id)
    if vertex.id in rank_of:
        label += f"\nrank {rank_of[vertex.id]}"
    return f"{_quote(vertex.id)} [shape={_SHAPES[vertex.kind]}, label={_quote(label)}];"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r").replace("\x00", "")
    return f'"{escaped}"'
