"""Shortest paths towards destinations, spread over the links. Pure.

What routers do, and what the virtual cluster is set up to do: the next host on the way to a host (IP routes), and the next switch on
the way to an interface (the bridges' static forwarding tables, which is also what keeps loops of switches from flooding).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)

PASSES = 4


def distances(graph: Mapping[Node, Mapping[Node, float]], target: Node) -> dict[Node, int]:
    """Hops from every node that can reach ``target``; ``graph[a][b]`` is the rate of the link from a to b."""
    sources: dict[Node, list[Node]] = {node: [] for node in graph}
    for a, ends in graph.items():
        for b in ends:
            sources[b].append(a)
    found = {target: 0}
    queue = deque([target])
    while queue:
        node = queue.popleft()
        for a in sources[node]:
            if a not in found:
                found[a] = found[node] + 1
                queue.append(a)
    return found


def spread(graph: Mapping[Node, Mapping[Node, float]], targets: Sequence[Node]) -> list[dict[Node, Node]]:
    """Next hops along shortest paths to each of ``targets`` (a node may be a target several times: its ports, say).

    Among equally short ways a node takes the one whose fullest link, counted in flows laid over it per unit of rate, is emptiest, then
    the first in the order of ``graph``: the same on every run, and even over the links. Targets are gone through :data:`PASSES` times,
    since the first ones could not know of the later ones' flows.

    Returns:
        For each target a table ``{node: next node}`` of the nodes that can reach it, without the target itself.
    """
    load = {(a, b): 0.0 for a, ends in graph.items() for b in ends}
    position = {node: i for i, node in enumerate(graph)}
    hops = [distances(graph, target) for target in targets]
    tables: list[dict[Node, Node]] = [{} for _ in targets]
    for _ in range(PASSES):
        for number, target in enumerate(targets):
            _lay(load, tables[number], hops[number], target, -1)
            tables[number] = _table(graph, load, position, hops[number], target)
            _lay(load, tables[number], hops[number], target, 1)
    return tables


def _table(
    graph: Mapping[Node, Mapping[Node, float]], load: Mapping[tuple[Node, Node], float], position: Mapping[Node, int],
    hops: Mapping[Node, int], target: Node,
) -> dict[Node, Node]:  # fmt: skip
    table: dict[Node, Node] = {}
    # for each node: how full the fullest link of its way is, and all links of its way together
    fullness: dict[Node, tuple[float, float]] = {target: (0.0, 0.0)}
    for node in sorted((n for n in graph if n in hops and n != target), key=lambda n: (hops[n], position[n])):
        best: tuple[tuple[float, float], int, Node] | None = None
        for nxt in graph[node]:
            if hops.get(nxt, -1) != hops[node] - 1:
                continue
            own = load[node, nxt] / graph[node][nxt]
            worst, total = fullness[nxt]
            candidate = ((max(worst, own), total + own), position[nxt], nxt)
            if best is None or candidate[:2] < best[:2]:
                best = candidate
        assert best is not None  # hops says that a neighbour is nearer
        fullness[node], _, table[node] = best
    return table


def _lay(load: dict[tuple[Node, Node], float], table: Mapping[Node, Node], hops: Mapping[Node, int], target: Node, sign: int) -> None:
    """Adds (or takes away) the flows of all nodes to ``target``."""
    flows = dict.fromkeys(table, 1)
    for node in sorted(table, key=lambda n: -hops[n]):
        load[node, table[node]] += sign * flows[node]
        if table[node] != target:
            flows[table[node]] += flows[node]
