"""Capacity that no forest needs taken away, until as much enters each switch as leaves it.

Switches do not copy: what leaves one has entered it. Where a switch can send more than it can receive (or the other way round), the
best rate of trees may lie below that of any cut: a root whose one link feeds a switch with two ranks behind it sends everything twice.
It is a linear programme: with ``x`` trees per unit of the roots' weights ``w``, and ``f`` of every arc's capacity ``c`` used,

    max x   such that   f <= c,   what enters a switch leaves it,   w(S) x <= f(out of S)  for every set S that leaves a rank out.

The sets are found as minimum cuts where a solution of scipy's HiGHS violates them; the solution is then made exact, and checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from topoccl.algorithms.forest.splitting import feasible
from topoccl.topology.bounds.cuts import tightest
from topoccl.topology.bounds.exchange import small_fractions
from topoccl.topology.bounds.flow import FlowGraph
from topoccl.topology.bounds.network import Network

_GRAIN = 1 << 40
_VIOLATION = 1e-7
_ROUNDS = 200


def trimmed(network: Network, weights: Mapping[int, int]) -> tuple[Fraction, list[Fraction]]:
    """(trees per unit of ``weights``, capacity of every arc): the best rate of out-trees with these roots, and what they may use.

    Raises:
        ValueError: no exact solution was found.
    """
    blocks, capacity, _ = tightest(network, weights, network.ranks)
    rate = Fraction(capacity, blocks)
    # No more than everything ever crosses a link once for each vertex; memory is often a hundred times wider than that.
    enough = rate * sum(weights.values()) * len(network.names)
    for limit in (enough, Fraction(max(network.capacity))):
        widths = [min(Fraction(width), limit) for width in network.capacity]
        if _balanced(network, widths):
            return rate, widths
    return _programme(network, weights, rate)


def _balanced(network: Network, widths: Sequence[Fraction]) -> bool:
    """Whether as much enters each switch as leaves it."""
    surplus = dict.fromkeys(set(range(len(network.names))) - set(network.ranks), Fraction(0))
    for (tail, head), width in zip(network.arcs, widths, strict=True):
        if tail in surplus:
            surplus[tail] -= width
        if head in surplus:
            surplus[head] += width
    return not any(surplus.values())


def _programme(network: Network, weights: Mapping[int, int], rate: Fraction) -> tuple[Fraction, list[Fraction]]:
    from scipy.optimize import linprog

    scale = float(rate)
    size, arcs = len(network.names), network.arcs
    limits = np.array([float(width) for width in network.capacity]) / scale
    switches = sorted(set(range(size)) - set(network.ranks))
    forwarding = np.zeros((len(switches), 1 + len(arcs)))
    row_of = {switch: row for row, switch in enumerate(switches)}
    for at, (tail, head) in enumerate(arcs):
        if tail in row_of:
            forwarding[row_of[tail], 1 + at] -= 1
        if head in row_of:
            forwarding[row_of[head], 1 + at] += 1
    near = [[vertex != rank for vertex in range(size)] for rank in network.ranks]
    rows = [_row(network, weights, side) for side in near if any(side[v] for v in weights)]
    objective = np.zeros(1 + len(arcs))
    objective[0] = -1
    for _ in range(_ROUNDS):
        result = linprog(
            objective, np.array(rows), np.zeros(len(rows)), forwarding if switches else None, np.zeros(len(switches)) if switches else None,
            [(0, 1), *((0, limit) for limit in limits)], method="highs-ds",
        )  # fmt: skip
        if result.status != 0:
            break
        new = _violated(network, weights, result.x)
        if not new:
            values = small_fractions(result.x * scale)
            if _reached(network, weights, values):
                return values[0], values[1:]
            break
        rows += new
    raise ValueError(f"no exact share of switches was found among {len(network.ranks)} ranks")


def _row(network: Network, weights: Mapping[int, int], near: Sequence[bool]) -> list[float]:
    """``w(S) x - f(out of S)`` of a near side ``S``."""
    sources = sum(weight for vertex, weight in weights.items() if near[vertex])
    return [float(sources), *(-1.0 if near[tail] and not near[head] else 0.0 for tail, head in network.arcs)]


def _violated(network: Network, weights: Mapping[int, int], values: npt.NDArray[np.float64]) -> list[list[float]]:
    """The cuts that a solution violates."""
    size = len(network.names)
    graph = FlowGraph(size + 1)
    for (tail, head), width in zip(network.arcs, values[1:].tolist(), strict=True):
        graph.add(tail, head, round(width * _GRAIN))
    wanted = 0
    for vertex, weight in weights.items():
        amount = round(weight * float(values[0]) * _GRAIN)
        wanted += amount
        graph.add(size, vertex, amount)
    found = []
    for sink in network.ranks:
        if graph.flow(size, sink, wanted) < wanted - _VIOLATION * _GRAIN:
            sides = {tuple(graph.reached(size)[:-1]), tuple(not far for far in graph.reaching(sink)[:-1])}
            found += [_row(network, weights, side) for side in sorted(sides)]
    return found


def _reached(network: Network, weights: Mapping[int, int], values: Sequence[Fraction]) -> bool:
    """Whether a solution satisfies everything, exactly."""
    rate, widths = values[0], values[1:]
    if any(not 0 <= width <= capacity for width, capacity in zip(widths, network.capacity, strict=True)) or not _balanced(network, widths):
        return False
    common = math.lcm(*(value.denominator for value in values))
    capacities = {arc: int(width * common) for arc, width in zip(network.arcs, widths, strict=True)}
    return rate > 0 and feasible(capacities, {vertex: int(rate * common) * weight for vertex, weight in weights.items()}, network.ranks)
