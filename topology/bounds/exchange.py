"""The best all_reduce: in-trees that sum and out-trees that hand the sums on share every link.

Root ``v`` sums and hands on ``x_v`` units of the vector per second. With ``f`` the capacity that the out-trees get on each arc, and
``g`` what the in-trees get, the rate is

    max sum x   such that   f + g <= c on every arc,
                            x(S) <= f(out of S)  and  x(S) <= g(into S)  for every set S that leaves a rank out,
                            what enters a vertex without a rank leaves it, for f and for g.

Shards need not be equal and the two phases overlap, so this is more than half of the rate of an all_gather. The sets are found as
minimum cuts where a solution of scipy's HiGHS violates them. The numbers are then made exact: solution and dual solution are
rounded to small fractions and checked in whole numbers. The dual solution, weights on cuts, is the proof that nothing is faster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from topoccl.topology.bounds.cuts import tightest
from topoccl.topology.bounds.flow import FlowGraph
from topoccl.topology.bounds.network import Network

Floats = npt.NDArray[np.float64]

_GRAIN = 1 << 40  # of flows that look for violated cuts
_VIOLATION = 1e-7
_ROUNDS = 40
_SAME = 1e-9
_SPREAD = 1e-3
_DENOMINATORS = 4000
_MANY_DENOMINATORS = 1 << 14


@dataclass(frozen=True, slots=True)
class WeightedCut:
    """``weight`` times one claim of the programme: ``x(inside)`` is at most ``g(into inside)`` if ``up``, else ``f(out of inside)``."""

    weight: Fraction
    inside: frozenset[int]
    up: bool


@dataclass(frozen=True)
class Exchange:
    """The best rate, how it is reached, and the proof.

    Attributes:
        rate: units of capacity; no schedule of trees is faster.
        exact: whether ``roots``, ``down`` and ``up`` reach it; they always satisfy the programme.
        roots: what each rank sums.
        down, up: the capacity of every arc that the out-trees and the in-trees get.
        proof: the cuts whose weighted sum shows ``rate``.
        arcs: the weight of each arc in that sum; ``rate`` is the sum of weight times capacity.
    """

    rate: Fraction
    exact: bool
    roots: tuple[Fraction, ...]
    down: tuple[Fraction, ...]
    up: tuple[Fraction, ...]
    proof: tuple[WeightedCut, ...]
    arcs: tuple[Fraction, ...]


class _Programme:
    """The linear programme with the cuts found so far. Variables: x per rank, then f, then g per arc."""

    def __init__(self, network: Network, publish: bool) -> None:
        self.network = network
        self.ranks, self.arcs = len(network.ranks), len(network.arcs)
        rank_at = set(network.ranks)
        self.scale = float(max(1, min(network.total(network.into([v == r for v in range(len(network.names))])) for r in network.ranks)))
        self.capacity = np.array([width / self.scale for width in network.capacity])
        self.cuts: list[tuple[frozenset[int], bool]] = []  # (near side, whether of the in-trees)
        self._seen: set[tuple[frozenset[int], bool]] = set()
        self.forwarding = [
            (vertex, up)
            for vertex in range(len(network.names))
            if vertex not in rank_at
            for up in (False, True)
            if up or not (publish and network.memory[vertex])
        ]

    def add(self, inside: Iterable[int], up: bool) -> bool:
        """A cut with sources ``inside``; False if it is known."""
        key = (frozenset(inside), up)
        if key in self._seen:
            return False
        self._seen.add(key)
        self.cuts.append(key)
        return True

    def crossing(self, inside: frozenset[int], up: bool) -> list[int]:
        """The arcs that a cut's blocks must use: out of the set for out-trees, into it for in-trees."""
        pairs = enumerate(self.network.arcs)
        if up:
            return [arc for arc, (tail, head) in pairs if head in inside and tail not in inside]
        return [arc for arc, (tail, head) in pairs if tail in inside and head not in inside]

    def solve(self, spread: bool = False) -> Any:
        """scipy's result, with variables in units of ``scale``; of the best solutions, if ``spread``, one whose largest root is small."""
        from scipy.optimize import linprog
        from scipy.sparse import csr_array

        p, e = self.ranks, self.arcs
        rows: list[int] = []
        columns: list[int] = []
        values: list[float] = []

        def put(row: int, column: int, value: float) -> None:
            rows.append(row)
            columns.append(column)
            values.append(value)

        for row, (inside, up) in enumerate(self.cuts):
            for rank, vertex in enumerate(self.network.ranks):
                if vertex in inside:
                    put(row, rank, 1.0)
            for arc in self.crossing(inside, up):
                put(row, p + (e if up else 0) + arc, -1.0)
        for arc in range(e):
            put(len(self.cuts) + arc, p + arc, 1.0)
            put(len(self.cuts) + arc, p + e + arc, 1.0)
        for rank in range(p) if spread else ():
            put(len(self.cuts) + e + rank, rank, 1.0)
            put(len(self.cuts) + e + rank, p + 2 * e, -1.0)
        width, height = p + 2 * e + spread, len(self.cuts) + e + p * spread
        upper = csr_array((values, (rows, columns)), shape=(height, width))
        limits = np.concatenate([np.zeros(len(self.cuts)), self.capacity, np.zeros(p * spread)])
        equal = None
        if self.forwarding:
            rows, columns, values = [], [], []
            at = {key: row for row, key in enumerate(self.forwarding)}
            for arc, (tail, head) in enumerate(self.network.arcs):
                for up in (False, True):
                    for vertex, sign in ((tail, 1.0), (head, -1.0)):
                        if (vertex, up) in at:
                            put(at[vertex, up], p + (e if up else 0) + arc, sign)
            equal = csr_array((values, (rows, columns)), shape=(len(self.forwarding), width))
        objective = np.concatenate([-np.ones(p), np.zeros(2 * e), np.full(int(spread), _SPREAD)])
        result = linprog(
            objective, upper, limits, equal, None if equal is None else np.zeros(len(self.forwarding)), bounds=(0, None), method="highs-ds"
        )
        if result.status != 0:
            raise ArithmeticError(f"the linear programme of an all_reduce among {p} ranks was not solved: {result.message}")
        return result

    def start(self) -> list[Fraction]:
        """A solution that violates nothing, in units: half of every arc for each part, if that is conserved, and equal roots. It is
        the best one on many regular fabrics."""
        network = self.network
        turned = network.reversed()
        for vertex in {vertex for vertex, _ in self.forwarding}:
            flags = [v == vertex for v in range(len(network.names))]
            if network.total(network.into(flags)) != turned.total(turned.into(flags)):
                return [Fraction(0)] * (self.ranks + 2 * self.arcs)
        weights = dict.fromkeys(network.ranks, 1)
        ratios = (tightest(n, weights, network.ranks) for n in (network, turned))
        rate = min(Fraction(capacity, blocks) for blocks, capacity, _ in ratios) / 2
        return [*[rate] * self.ranks, *(Fraction(width, 2) for width in network.capacity * 2)]

    def floats(self, solution: Sequence[Fraction]) -> Floats:
        """A solution as scipy sees it."""
        return np.array([float(value) for value in solution]) / self.scale

    def separate(self, values: Floats, probe: bool = False) -> bool:
        """Adds the cuts that a solution violates; False if there are none. A ``probe`` adds none, and only looks."""
        network, p, e = self.network, self.ranks, self.arcs
        found = False
        for up in (False, True):
            graph = FlowGraph(len(network.names) + 1)
            source = len(network.names)
            widths = values[p + e :] if up else values[p : p + e]
            for (tail, head), width in zip(network.arcs, widths.tolist(), strict=True):
                graph.add(*((head, tail) if up else (tail, head)), round(width * _GRAIN))
            wanted = 0
            for rank, vertex in enumerate(network.ranks):
                amount = round(float(values[rank]) * _GRAIN)
                wanted += amount
                graph.add(source, vertex, amount)
            for sink in network.ranks:
                got = graph.flow(source, sink, wanted)
                if got < wanted - _VIOLATION * _GRAIN:
                    if probe:
                        return True
                    for side in (graph.reached(source)[:-1], [not far for far in graph.reaching(sink)[:-1]]):
                        found |= self.add((vertex for vertex, near in enumerate(side) if near), up)
        return found


def best_exchange(network: Network, publish: bool = True, groups: Iterable[Collection[int]] = ()) -> Exchange:
    """The optimum of this module.

    Args:
        publish: what enters memory once may be read by several ranks of the host (a bound must allow for it); else the memory
            only forwards, as the trees of a forest have it.
        groups: sets of vertices whose borders may be the narrowest cuts, to begin with.
    """
    programme = _Programme(network, publish)
    everything = set(range(len(network.names)))
    for group in (*([vertex] for vertex in network.ranks), *groups):
        for up in (False, True):
            for near in (everything & set(group), everything - set(group)):
                if not near.isdisjoint(network.ranks) and not near.issuperset(network.ranks):
                    programme.add(near, up)
    start = programme.start()
    inside = programme.floats(start)
    result = programme.solve()
    # Solutions lie at corners, where many cuts are violated that hardly matter. Halfway to a point inside those that matter are left.
    while inside[: programme.ranks].sum() < -result.fun * (1 - _SAME) and programme.separate(result.x, probe=True):
        halfway = (inside + result.x) / 2
        if not programme.separate(halfway):
            inside = halfway
            programme.separate(result.x)
        result = programme.solve()
    rate, proof, arcs = _prove(programme, result)
    p, e = programme.ranks, programme.arcs
    solutions = [start]
    if sum(start[:p]) < rate:
        solutions.append(small_fractions(result.x * programme.scale))
        if not publish:
            solutions.insert(1, _spread_out(programme))
    for solution in solutions:
        roots, lower, upper = solution[:p], solution[p : p + e], solution[p + e :]
        if sum(roots) == rate and _reaches(programme, roots, lower, upper):
            return Exchange(rate, True, tuple(roots), tuple(lower), tuple(upper), proof, arcs)
    return Exchange(rate, False, tuple(start[:p]), tuple(start[p : p + e]), tuple(start[p + e :]), proof, arcs)


def _spread_out(programme: _Programme) -> list[Fraction]:
    """A solution with many roots, if there is one as good: trees with different roots are shallow, and busy at the same time."""
    size = programme.ranks + 2 * programme.arcs
    result = programme.solve(spread=True)
    for _ in range(_ROUNDS):
        if not programme.separate(result.x[:size]):
            break
        result = programme.solve(spread=True)
    return small_fractions(result.x[:size] * programme.scale)


def _prove(programme: _Programme, result: Any) -> tuple[Fraction, tuple[WeightedCut, ...], tuple[Fraction, ...]]:
    """The rate that the dual solution, rounded, proves to be an upper limit: right whatever the rounding, tight if it was good."""
    network = programme.network
    duals = small_fractions(-result.ineqlin.marginals[: len(programme.cuts)])
    potentials = small_fractions(-result.eqlin.marginals) if programme.forwarding else []
    weights = [max(Fraction(0), dual) for dual in duals]
    covered = {vertex: Fraction(0) for vertex in network.ranks}
    needed = {up: [Fraction(0)] * programme.arcs for up in (False, True)}
    for weight, (inside, up) in zip(weights, programme.cuts, strict=True):
        if weight:
            for vertex in inside & covered.keys():
                covered[vertex] += weight
            for arc in programme.crossing(inside, up):
                needed[up][arc] += weight
    least = min(covered.values())
    height = dict(zip(programme.forwarding, potentials, strict=True))
    zero = Fraction(0)
    arcs = []
    for arc, (tail, head) in enumerate(network.arcs):
        # Arcs pay for the cuts that they cross; what is conserved may move the payment along.
        parts = (needed[up][arc] - height.get((tail, up), zero) + height.get((head, up), zero) for up in (False, True))
        arcs.append(max(zero, *parts) / least)
    rate = sum((width * arc for width, arc in zip(network.capacity, arcs, strict=True)), zero)
    proof = tuple(WeightedCut(w / least, inside, up) for w, (inside, up) in zip(weights, programme.cuts, strict=True) if w)
    return rate, proof, tuple(arcs)


def _reaches(programme: _Programme, roots: Sequence[Fraction], down: Sequence[Fraction], up: Sequence[Fraction]) -> bool:
    """Whether a solution satisfies everything, exactly."""
    network = programme.network
    if any(a < 0 or b < 0 or a + b > c for a, b, c in zip(down, up, network.capacity, strict=True)):
        return False
    balance = dict.fromkeys(programme.forwarding, Fraction(0))
    for (tail, head), a, b in zip(network.arcs, down, up, strict=True):
        for upwards, value in ((False, a), (True, b)):
            for vertex, sign in ((tail, 1), (head, -1)):
                if (vertex, upwards) in balance:
                    balance[vertex, upwards] += sign * value
    if any(balance.values()):
        return False
    scale = 1
    for value in (*roots, *down, *up):
        scale = scale * value.denominator // np.gcd.reduce([scale, value.denominator], dtype=object)
    for turned, widths in ((network, down), (network.reversed(), up)):
        graph = FlowGraph(len(network.names) + 1)
        source = len(network.names)
        for (tail, head), width in zip(turned.arcs, widths, strict=True):
            graph.add(tail, head, int(width * scale))
        wanted = int(sum(roots) * scale)
        taps = {v: graph.add(source, v, int(root * scale)) for v, root in zip(network.ranks, roots, strict=True)}
        for sink in network.ranks:
            if graph.flow(source, sink, wanted) < wanted:
                return False
            graph.set(taps[sink], wanted)
    return True


def small_fractions(values: Floats) -> list[Fraction]:
    """``values`` as fractions with one small denominator, the smallest that fits; the nearest ones of a large denominator else."""
    flat = np.asarray(values, dtype=np.float64)
    distinct = np.unique(flat)
    largest = max(1.0, float(np.abs(distinct).max(initial=0.0)))
    denominators = np.arange(1, _DENOMINATORS + 1)
    off = np.zeros(len(denominators))
    for value in distinct:
        scaled = value * denominators
        np.maximum(off, np.abs(scaled - np.rint(scaled)) / denominators, out=off)
    fit = np.flatnonzero(off <= 1e-9 * largest)
    denominator = int(denominators[fit[0]]) if len(fit) else _MANY_DENOMINATORS
    return [Fraction(round(value * denominator), denominator) for value in flat.tolist()]
