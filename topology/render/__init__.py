"""Pictures and texts of a topology: a tree for the terminal, Graphviz, SVG, PNG, and the file format itself."""

from __future__ import annotations

from topoccl.topology.dump import dump
from topoccl.topology.graph import Topology
from topoccl.topology.render.dot import to_dot
from topoccl.topology.render.png import to_png
from topoccl.topology.render.svg import to_svg
from topoccl.topology.render.tree import to_text

FORMATS = ("tree", "json", "yaml", "dot", "svg")

__all__ = ["FORMATS", "render", "to_png"]


def render(topology: Topology, style: str = "tree") -> str:
    """``topology`` as text in one of :data:`FORMATS`, the last line ended.

    Raises:
        ValueError: unknown style.
        TopologyError: json and yaml: an attribute that no file can hold.
    """
    match style:
        case "tree":
            return to_text(topology)
        case "json" | "yaml":
            return dump(topology, style=style)
        case "dot":
            return to_dot(topology)
        case "svg":
            return to_svg(topology)
    raise ValueError(f"unknown format {style!r}; known: {', '.join(FORMATS)}")
