"""Trees over all ways that a fabric has, not only those that the network takes by itself.

Switches are split off in whole units, which loses nothing where as much enters each of them as leaves it, and the ways behind every new
arc are kept. So trees with their ways cost exactly the bound, as many as it takes: mostly few more than there are roots.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

from topoccl.algorithms.forest.laying import lay
from topoccl.algorithms.forest.packing import Arborescence, pack
from topoccl.algorithms.forest.pieces import bounded, over_ranks, paired, shared_out, trees_of
from topoccl.algorithms.forest.scaling import GOOD, shrink
from topoccl.algorithms.forest.splitting import Splitter, feasible
from topoccl.algorithms.forest.spreading import Spread
from topoccl.algorithms.forest.trees import Piece
from topoccl.algorithms.forest.trimming import trimmed
from topoccl.algorithms.forest.ways import Arc, Way, WayMap
from topoccl.topology.bounds.exchange import best_exchange
from topoccl.topology.bounds.network import Network, host_groups, network_of
from topoccl.topology.graph import Topology

MOST_EDGES = 1 << 14
"""Exact trees may have so many edges in all; else fewer trees are taken that lose a little."""
_ROUNDED = 8

Widths = Mapping[Arc, Fraction]
Ways = Mapping[Arc, Sequence[tuple[Fraction, Way]]]


def free_pieces(topology: Topology, collective: str, root: int | None, k: int) -> list[Piece]:
    """The pieces of ``collective`` among the ranks of ``topology``, with the way of every message.

    Args:
        k: trees per root before they are cut where they change ways; 0 takes as many as are exact.

    Raises:
        ValueError: the trees do not fit.
    """
    network = network_of(topology)
    ranks_at = {vertex: [rank] for rank, vertex in enumerate(network.vertex_of_rank)}
    turned = network.reversed()
    match collective:
        case "all_gather" | "reduce_scatter":
            backwards = collective == "reduce_scatter"
            trees = _best(turned if backwards else network, dict.fromkeys(network.ranks, 1), k)
            pieces = shared_out(topology, ranks_at, trees, backwards)
        case "broadcast" | "reduce":
            assert root is not None
            backwards = collective == "reduce"
            trees = _best(turned if backwards else network, {network.ranks[root]: 1}, k)
            grown = [(tree.weight, over_ranks(topology, ranks_at, tree, root, 0, turned=backwards)) for tree in trees.trees]
            pieces = [Piece(0, weight, tree if backwards else None, None if backwards else tree) for weight, tree in grown]
        case _:
            pieces = _exchange(topology, network, ranks_at, k)
    return bounded(pieces)


def _exchange(topology: Topology, network: Network, ranks_at: dict[int, list[int]], k: int) -> list[Piece]:
    best = best_exchange(network, publish=False, groups=host_groups(topology, network))
    roots = {vertex: x for vertex, x in zip(network.ranks, best.roots, strict=True) if x}
    turned = network.reversed()
    spreads = []
    for net, widths, above in ((network, best.down, None), (turned, best.up, best.down)):
        skipped = [Fraction(0)] * len(widths) if above is None else above
        ways = {
            arc: _part(branches, skip, width) for arc, branches, skip, width in zip(net.arcs, _branches(net), skipped, widths, strict=True)
        }
        spreads.append(_spread(dict(zip(net.arcs, widths, strict=True)), ways, roots, network.ranks, k))
    down, up = spreads
    pieces = []
    for vertex in roots:
        rank = ranks_at[vertex][0]
        for weight, over, under in paired(trees_of(up, down, vertex), trees_of(down, up, vertex)):
            up_tree = over_ranks(topology, ranks_at, over, rank, 0, turned=True)
            pieces.append(Piece(0, weight, up_tree, over_ranks(topology, ranks_at, under, rank, 0)))
    return pieces


def _branches(network: Network) -> list[list[tuple[Fraction, Way]]]:
    return [[(Fraction(branch.capacity), branch.links) for branch in row] for row in network.branches]


def _part(row: Sequence[tuple[Fraction, Way]], skip: Fraction, width: Fraction) -> list[tuple[Fraction, Way]]:
    """``width`` of a row of ways, after ``skip`` of it."""
    found = []
    for amount, way in row:
        over = min(skip, amount)
        part = min(width, amount - over)
        skip -= over
        width -= part
        if part:
            found.append((part, way))
    return found


def _best(network: Network, weights: dict[int, int], k: int) -> Spread:
    """The fastest out-trees with roots of these weights."""
    rate, capacities = trimmed(network, weights)
    widths = dict(zip(network.arcs, capacities, strict=True))
    ways = {arc: _part(row, Fraction(0), widths[arc]) for arc, row in zip(network.arcs, _branches(network), strict=True)}
    return _spread(widths, ways, {vertex: rate * weight for vertex, weight in weights.items()}, network.ranks, k)


def _spread(widths: Widths, ways: Ways, weights: Mapping[int, Fraction], ranks: Sequence[int], k: int) -> Spread:
    """Trees over ``ranks`` with their ways; ``ways`` of each arc sum to its width."""
    amounts = [part for row in ways.values() for part, _ in row]
    common = math.lcm(*(x.denominator for x in (*widths.values(), *weights.values(), *amounts)))
    shared = math.gcd(*(int(x * common) for x in (*widths.values(), *weights.values(), *amounts)))
    scale = Fraction(common, shared)
    rows: dict[Arc, dict[Way, int]] = {}
    for arc, row in ways.items():
        mine = rows[arc] = {}
        for part, way in row:
            mine[way] = mine.get(way, 0) + int(part * scale)
    splitter = Splitter(
        {arc: int(width * scale) for arc, width in widths.items() if width},
        {vertex: int(weight * scale) for vertex, weight in weights.items() if weight},
        ranks,
        refine=False,
        ways=WayMap(rows),
    )
    splitter.run()
    assert splitter.ways is not None
    rows = splitter.ways.rows
    whole, count = sum(splitter.weights.values()), len(splitter.weights)
    exact: Spread | None = None
    if feasible(splitter.capacities, splitter.weights, ranks) and (not k or whole <= k * count):
        trees = lay(pack(splitter.capacities, splitter.weights, list(ranks)), rows, Fraction(1))
        exact = _made(trees, 1.0)
        most = max(Counter(tree.root for tree in trees).values())  # blocks get equally many pieces
        if k or most * count * len(ranks) <= MOST_EDGES:
            return exact
    found = shrink(splitter.capacities, splitter.weights, ranks, [count * each for each in ([k] if k else range(1, _ROUNDED + 1))])
    if exact is not None and found[2] < GOOD:
        return exact
    room = Fraction(sum(found[1].values()), whole) / Fraction(found[2]).limit_denominator(1 << 13)
    return _made(lay(pack(found[0], found[1], list(ranks)), rows, room), found[2])


def _made(trees: Sequence[Arborescence], share: float) -> Spread:
    weights: dict[int, int] = {}
    for tree in trees:
        weights[tree.root] = weights.get(tree.root, 0) + tree.weight
    return Spread(tuple(trees), weights, share)
