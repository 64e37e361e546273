"""Pictures and texts of a topology: a tree for the terminal, Graphviz, SVG, PNG, and the file format itself.

What one of them needs is imported when it is asked for: pictures take the bounds, and these numpy, which would double the time of a text.
"""

from __future__ import annotations

from topoccl.topology.graph import Topology

FORMATS = ("tree", "json", "yaml", "dot", "svg")

__all__ = ["FORMATS", "render", "to_png"]


def to_png(topology: Topology) -> bytes:
    """``topology`` as a PNG picture; see :func:`topoccl.topology.render.png.to_png`."""
    from topoccl.topology.render import png

    return png.to_png(topology)


def render(topology: Topology, style: str = "tree") -> str:
    """``topology`` as text in one of :data:`FORMATS`, the last line ended.

    Raises:
        ValueError: unknown style.
        TopologyError: json and yaml: an attribute that no file can hold.
    """
    match style:
        case "tree":
            from topoccl.topology.render.tree import to_text

            return to_text(topology)
        case "json" | "yaml":
            from topoccl.topology.dump import dump

            return dump(topology, style=style)
        case "dot":
            from topoccl.topology.render.dot import to_dot

            return to_dot(topology)
        case "svg":
            from topoccl.topology.render.svg import to_svg

            return to_svg(topology)
    raise ValueError(f"unknown format {style!r}; known: {', '.join(FORMATS)}")
