"""All pairs send at once and nothing is merged or duplicated: the fastest flows, and the weights on arcs that prove nothing is faster.

If every arc has a length, a unit from ``s`` to ``t`` uses up at least the distance between them. So for any lengths

    seconds >= sum of demand(s, t) * distance(s, t) / sum of length * capacity,

and by the duality of linear programmes some lengths give the exact optimum of flows that may be split. scipy's HiGHS finds them; they are
rounded to fractions, for which the bound is then computed exactly: rounding can weaken it but never make it wrong.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Arcs = Sequence[tuple[int, int]]
Demand = Mapping[int, Mapping[int, int]]
_NOTHING = 1e-7
_DENOMINATORS = (1, 2, 3, 4, 6, 8, 12, 24, 60, 840, 1 << 12)


@dataclass(frozen=True)
class Flows:
    """What each arc carries of each source's data (``of_source[source][arc]``), and the price of each resource."""

    of_source: tuple[dict[int, float], ...]
    prices: Floats


def concurrent_flow(
    vertices: int, arcs: Arcs, uses: Sequence[Sequence[int]], capacity: Sequence[float], demand: Mapping[int, Mapping[int, float]]
) -> Flows:
    """Flows for all of ``demand`` (source: target: amount) that keep the busiest resource busy as briefly as possible.

    Args:
        vertices: how many there are.
        arcs: (tail, head) of each arc.
        uses: the resources that each arc occupies.
        capacity: units per second of each resource.
        demand: what each source has for each target.

    Raises:
        ValueError: a target cannot be reached.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    sources = list(demand)
    number = {resource: row for row, resource in enumerate(sorted({resource for resources in uses for resource in resources}))}
    unit = min(capacity[resource] for resource in number)
    width, columns = len(arcs), len(arcs) * len(sources) + 1  # the last variable is the time
    tails, heads = (np.array(side, np.int64) for side in zip(*arcs, strict=True))
    each = np.arange(width)
    rows = np.concatenate([end + s * vertices for s in range(len(sources)) for end in (tails, heads)])
    where = np.concatenate([each + s * width for s in range(len(sources)) for _ in range(2)])
    signs = np.tile(np.concatenate([np.full(width, -1.0), np.ones(width)]), len(sources))
    conserve = coo_array((signs, (rows, where)), shape=(vertices * len(sources), columns)).tocsr()
    wanted = np.zeros((len(sources), vertices))
    for s, source in enumerate(sources):
        for target, amount in demand[source].items():
            wanted[s, target] += amount
            wanted[s, source] -= amount
    pairs = np.array([(number[resource], arc) for arc, resources in enumerate(uses) for resource in resources], np.int64)
    rows = np.concatenate([*(pairs[:, 0] for _ in sources), np.arange(len(number))])
    where = np.concatenate([*(pairs[:, 1] + s * width for s in range(len(sources))), np.full(len(number), columns - 1)])
    values = np.concatenate([np.ones(len(pairs) * len(sources)), [-capacity[resource] / unit for resource in number]])
    limit = coo_array((values, (rows, where)), shape=(len(number), columns)).tocsr()
    cost = np.full(columns, 1e-6 / width)  # of equal solutions the one without detours
    cost[-1] = 1.0
    # The interior-point method: the simplex takes twenty times as long for 64 sources.
    solved = linprog(
        cost, A_ub=limit, b_ub=np.zeros(len(number)), A_eq=conserve, b_eq=wanted.ravel(), bounds=(0, None), method="highs-ipm"
    )  # fmt: skip
    if not solved.success:
        raise ValueError(f"no flow between all vertices: {solved.message}")
    flat = solved.x[:-1].reshape(len(sources), width)
    prices = np.zeros(len(capacity))
    prices[list(number)] = np.maximum(0.0, -solved.ineqlin.marginals)
    return Flows(tuple({arc: float(row[arc]) for arc in np.flatnonzero(row > _NOTHING).tolist()} for row in flat), prices)


def best_lengths(vertices: int, arcs: Arcs, capacity: Sequence[int], demand: Demand) -> tuple[Fraction, list[Fraction]]:
    """(seconds, lengths of the arcs): the bound above for the best lengths that were found."""
    flows = concurrent_flow(vertices, arcs, [[arc] for arc in range(len(arcs))], [float(c) for c in capacity], demand)
    top = float(flows.prices.max())
    best = Fraction(0), [Fraction(0)] * len(arcs)
    for denominator in _DENOMINATORS:
        lengths = [Fraction(round(price / top * denominator), denominator) for price in flows.prices.tolist()]
        if any(lengths):
            seconds = length_bound(vertices, arcs, capacity, demand, lengths)
            if seconds > best[0]:
                best = seconds, lengths
    return best


def length_bound(vertices: int, arcs: Arcs, capacity: Sequence[int], demand: Demand, lengths: Sequence[Fraction]) -> Fraction:
    """The seconds that ``lengths`` prove, exactly."""
    out: list[list[tuple[int, Fraction]]] = [[] for _ in range(vertices)]
    for (tail, head), length in zip(arcs, lengths, strict=True):
        out[tail].append((head, length))
    spent = Fraction(0)
    for source, targets in demand.items():
        distance = _distances(out, source)
        spent += sum(amount * distance[target] for target, amount in targets.items())
    return spent / sum(length * c for length, c in zip(lengths, capacity, strict=True))


def _distances(out: Sequence[Sequence[tuple[int, Fraction]]], source: int) -> dict[int, Fraction]:
    found: dict[int, Fraction] = {}
    heap = [(Fraction(0), source)]
    while heap:
        far, vertex = heapq.heappop(heap)
        if vertex in found:
            continue
        found[vertex] = far
        for head, length in out[vertex]:
            if head not in found:
                heapq.heappush(heap, (far + length, head))
    return found
