"""Trees over all ways that a fabric has, not only those that the network takes by itself.

Switches are split off in whole units, which loses nothing where as much enters each of them as leaves it, and the ways behind every new
arc are kept. So trees with their ways cost exactly the bound, as many as it takes: mostly few more than there are roots.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from topoccl.algorithms.forest.laying import lay
from topoccl.algorithms.forest.packing import pack
from topoccl.algorithms.forest.pieces import bounded, over_ranks, shared_out, trees_of
from topoccl.algorithms.forest.scaling import GOOD, round_down, shrink
from topoccl.algorithms.forest.splitting import Splitter, feasible
from topoccl.algorithms.forest.spreading import Spread
from topoccl.algorithms.forest.trees import Piece
from topoccl.algorithms.forest.trimming import trimmed
from topoccl.algorithms.forest.ways import Arc, Way, WayMap, paired
from topoccl.topology.bounds.exchange import best_exchange
from topoccl.topology.bounds.network import Network, host_groups, network_of
from topoccl.topology.graph import Topology

MOST_EDGES = 1 << 15
"""Exact trees may have so many edges in all; else fewer trees are taken that lose a little."""
_ROUNDED = 8
"""Up to so many trees per root all numbers are tried."""

Widths = Mapping[Arc, Fraction]
Ways = Mapping[Arc, Sequence[tuple[Fraction, Way]]]


def free_pieces(topology: Topology, collective: str, root: int | None, k: int) -> list[Piece]:
    """The pieces of ``collective`` among the ranks of ``topology``, with the way of every message.

    Args:
        k: at most so many trees per root, before they are cut where they change ways; 0 takes as many as are exact.

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
    roots = {vertex: int(weight * scale) for vertex, weight in weights.items() if weight}
    rows: dict[Arc, dict[Way, int]] = {}
    for arc, row in ways.items():
        mine = rows[arc] = {}
        for part, way in row:
            mine[way] = mine.get(way, 0) + int(part * scale)
    split = _without_switches(rows, roots, ranks)
    whole, count = sum(roots.values()), len(roots)
    fits = feasible(split.capacities, roots, ranks)
    exact: Spread | None = None
    if fits and (not k or whole <= k * count):
        exact = _laid(split, roots, ranks, Fraction(1), 1.0)
        most = max(Counter(tree.root for tree in exact.trees).values())  # blocks get equally many pieces
        if k or most * count * len(ranks) <= MOST_EDGES:
            return exact
    totals = [count * each for each in sorted({*range(1, min(k or _ROUNDED, _ROUNDED) + 1), k or _ROUNDED})]
    rounded = [found for found in (_rounded_after(split, roots, ranks, totals), _rounded_before(rows, roots, ranks, totals)) if found]
    best = max(rounded, key=lambda found: found.share, default=exact)
    if best is None:
        raise ValueError(f"no {totals} trees fit among {len(ranks)} ranks")
    return exact if exact is not None and best.share < GOOD else best


def _without_switches(rows: Mapping[Arc, Mapping[Way, int]], weights: dict[int, int], ranks: Sequence[int]) -> Splitter:
    """What is left when all switches are split off, in whole units."""
    capacities = {arc: width for arc, row in rows.items() if (width := sum(row.values()))}
    splitter = Splitter(capacities, dict(weights), ranks, refine=False, ways=WayMap(rows))
    splitter.run()
    return splitter


def _laid(split: Splitter, weights: Mapping[int, int], ranks: Sequence[int], room: Fraction, share: float) -> Spread:
    assert split.ways is not None
    trees = lay(pack(split.capacities, weights, list(ranks)), split.ways.rows, room)
    sums: dict[int, int] = {}
    for tree in trees:
        sums[tree.root] = sums.get(tree.root, 0) + tree.weight
    return Spread(tuple(trees), sums, share)


def _rounded_after(split: Splitter, weights: Mapping[int, int], ranks: Sequence[int], totals: Sequence[int]) -> Spread | None:
    """Few trees in what is left without switches, rounded."""
    try:
        capacities, rounded, share = shrink(split.capacities, weights, ranks, totals)
    except ValueError:
        return None
    room = Fraction(sum(rounded.values()), sum(weights.values())) / Fraction(share).limit_denominator(1 << 13)
    return _laid(replace(split, capacities=capacities), rounded, ranks, room, share)


def _rounded_before(
    rows: Mapping[Arc, Mapping[Way, int]], weights: Mapping[int, int], ranks: Sequence[int], totals: Sequence[int]
) -> Spread | None:
    """Few trees in a network that is rounded first, as ForestColl does: a switch then gives its whole width to few arcs."""
    capacities = {arc: width for arc, row in rows.items() if (width := sum(row.values()))}
    found = round_down(capacities, weights, ranks, totals)
    if found is None:
        return None
    small, rounded, share = found
    scale = Fraction(sum(rounded.values()), sum(weights.values())) / Fraction(share).limit_denominator(1 << 16)
    split = _without_switches({arc: _rounded_row(rows[arc], scale, width) for arc, width in small.items()}, rounded, ranks)
    return _laid(split, rounded, ranks, Fraction(1), share) if feasible(split.capacities, rounded, ranks) else None


def _rounded_row(row: Mapping[Way, int], scale: Fraction, width: int) -> dict[Way, int]:
    """Whole numbers that sum to ``width``, near ``row`` times ``scale``."""
    parts = {way: math.floor(amount * scale) for way, amount in row.items()}
    for way in sorted(row, key=lambda way: parts[way] - row[way] * scale)[: width - sum(parts.values())]:
        parts[way] += 1
    return {way: part for way, part in parts.items() if part}
