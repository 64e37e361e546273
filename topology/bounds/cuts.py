"""The tightest cut of what ranks spread or collect, exactly: Newton's method on violated cuts, found as minimum cuts.

Every source ``v`` has ``w_v`` blocks that each sink must get. They fit ``x`` times a second exactly when from a source of all
sources, with an arc of capacity ``w_v x`` to each, a flow of ``W x`` reaches every sink (ForestColl, from Edmonds' theorem on
disjoint arborescences; ``W`` is the sum of ``w``). If a minimum cut ``S`` falls short, ``x`` cannot exceed ``capacity out of S /
blocks in S``: take that for ``x`` and try again. Only whole numbers are compared, and a few rounds suffice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topoccl.topology.bounds.flow import FlowGraph
from topoccl.topology.bounds.network import Network
from topoccl.topology.graph import TopologyError


def tightest(
    network: Network, weights: Mapping[int, int], sinks: Sequence[int], start: tuple[int, int] | None = None
) -> tuple[int, int, list[bool] | None]:
    """The largest (blocks, capacity) ratio of any cut, and the vertices on its far side.

    Args:
        weights: the blocks ``w_v`` of each source vertex.
        sinks: the vertices that must get them all.
        start: the ratio of a cut that is known; it is returned, with None for its far side, when none is tighter.

    Raises:
        TopologyError: a sink that nothing reaches.
    """
    total = sum(weights.values())
    blocks, capacity = start if start is not None else (1, network.total(range(len(network.arcs))) + 1)
    far: list[bool] | None = None
    graph = FlowGraph(len(network.names) + 1)
    source = len(network.names)
    for (tail, head), width in zip(network.arcs, network.capacity, strict=True):
        graph.add(tail, head, width * blocks)
    taps = {vertex: graph.add(source, vertex, weight * capacity) for vertex, weight in weights.items()}
    done: list[int] = []
    for sink in sinks:
        while graph.flow(source, sink, total * capacity) < total * capacity:
            near = graph.reached(source)
            far = [not inside for inside in near[:-1]]
            capacity = network.total(network.into(far))
            blocks = sum(weight for vertex, weight in weights.items() if near[vertex])
            if not capacity:
                raise TopologyError(f"no way from {network.names[next(v for v in weights if near[v])]!r} to {network.names[sink]!r}")
            for arc, width in enumerate(network.capacity):
                graph.set(arc, width * blocks)
            for vertex, tap in taps.items():
                graph.set(tap, weights[vertex] * capacity)
            for vertex in done:
                graph.set(taps[vertex], total * capacity)
        # Cuts that leave this sink on the far side are all wide enough now: for the others it is as good as the source.
        done.append(sink)
        if sink not in taps:
            taps[sink] = graph.add(source, sink, 0)
            weights = {**weights, sink: 0}
        graph.set(taps[sink], total * capacity)
    return blocks, capacity, far
