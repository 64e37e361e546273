"""What the fabric is: the frozen graph, its file format, generators, routes, bounds and discovery.

Pure, apart from ``discovery``: no environment, no clock, no sockets, no torch.
"""

from __future__ import annotations

if __name__ != "topoccl.topology":
    raise ImportError(f"import this package as topoccl.topology, not as {__name__!r}: a second copy would have other classes")

from topoccl.topology.graph import Link, Topology, TopologyError, Vertex, VertexKind

__all__ = ["Link", "Topology", "TopologyError", "Vertex", "VertexKind"]
