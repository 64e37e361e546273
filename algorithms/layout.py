"""Where ranks sit, as builders see it: orders of hosts and ranks in which neighbours are near, and the rails between hosts.

Everything here is a pure function of the topology and gives the same answer on every rank. The distance between two places is
the time that the links of the route spend on one byte (the sum of 1/bandwidth): it is what a tour should spare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from topoccl.topology.graph import Topology, VertexKind
from topoccl.topology.routes import routes_of

Matrix = npt.NDArray[np.float64]

MAX_TOUR = 64
"""Above this many places a tour follows a depth-first walk of the graph instead of a search over distances."""
_SEARCH_BUDGET = 20_000  # moves in the search for a tour of nearest places
_STARTS = 8  # tours that are improved until they get no shorter


@lru_cache(maxsize=256)
def host_groups(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """The ranks of each host, hosts in an order in which neighbours are near (cyclically), ranks of a host likewise.

    Racks and switches come out contiguous, and in fabrics without switches (ring, line, torus, mesh of hosts) consecutive hosts
    are adjacent where the graph has such a tour. On a fabric where all are equally far the order is that of the slots' declaration,
    so that the order of the ranks has no influence.
    """
    declared = {vertex: at for at, vertex in enumerate(topology.vertices)}
    by_host = [sorted(ranks, key=lambda r: declared[topology.slots[r]]) for ranks in topology.ranks_by_host]
    by_host.sort(key=lambda ranks: declared[topology.slots[ranks[0]]])
    local = [_tour(topology, ranks) for ranks in by_host]
    heads = _tour(topology, [ranks[0] for ranks in by_host])
    of_head = {ranks[0]: tour for ranks, tour in zip(by_host, local, strict=True)}
    return tuple(tuple(of_head[head]) for head in heads)


def ring_order(topology: Topology, channel: int = 0) -> list[int]:
    """All ranks in an order for a ring: host by host, so that a ring enters and leaves every host once.

    Args:
        channel: even channels run forwards and odd ones backwards, so that both directions of every link carry data. A pair of
            channels leaves hosts at two neighbouring ranks, the next pair at the next two, thus at other NICs.
    """
    order = [rank for group in host_groups(topology) for rank in rotated(group, channel - channel % 2)]
    return order[::-1] if channel % 2 else order


def rail_owners(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """For each host of :func:`host_groups`, the rank that owns each rail.

    There are as many rails as the host with the fewest ranks has (reference: uneven ranks per node); a host with more ranks
    spreads the rails evenly over them, so that its NUMA nodes and NICs share the work.
    """
    groups = host_groups(topology)
    rails = min(map(len, groups))
    return tuple(tuple(group[rail * len(group) // rails] for rail in range(rails)) for group in groups)


def rotated(ranks: Sequence[int], by: int) -> tuple[int, ...]:
    """``ranks`` starting at position ``by`` (modulo their number)."""
    by %= len(ranks)
    return (*ranks[by:], *ranks[:by])


def distances(topology: Topology, ranks: Sequence[int]) -> Matrix:
    """Seconds per byte summed over the links of the route between each two of ``ranks``, the mean of both directions.

    Raises:
        TopologyError: two ranks without a route.
    """
    routes = routes_of(topology)
    links = topology.links
    matrix: Matrix = np.array([[sum(1 / links[link].bandwidth for link in routes.path(a, b)) for b in ranks] for a in ranks])
    return (matrix + matrix.T) / 2


def _tour(topology: Topology, ranks: Sequence[int]) -> list[int]:
    """``ranks`` in the order of a short closed tour; the given order when it is as short as any found."""
    if len(ranks) <= 3:
        return list(ranks)
    if len(ranks) > MAX_TOUR:
        return _walk(topology, ranks)
    matrix = distances(topology, ranks)
    return [ranks[i] for i in _short_tour(matrix.tobytes())]


@lru_cache(maxsize=256)
def _short_tour(bits: bytes) -> tuple[int, ...]:
    """The tour over the places of a matrix of distances, given as its bytes: the hosts of a cluster are often alike."""
    flat: Matrix = np.frombuffer(bits)
    matrix = flat.reshape(math.isqrt(len(flat)), -1)
    found: list[list[int]] = [list(range(len(matrix)))]
    if not np.allclose(matrix[~np.eye(len(matrix), dtype=bool)], matrix[0, 1], rtol=1e-9, atol=0):
        hamiltonian = _hamiltonian(matrix)
        starts = [found[0], *(_nearest(matrix, first) for first in range(min(len(matrix), _STARTS)))]
        found += [hamiltonian] if hamiltonian else [_two_opt(matrix, start) for start in starts]
    best = min(found, key=lambda tour: (round(_length(matrix, tour) / matrix.max(), 9), found.index(tour)))
    return tuple(best)


def _length(matrix: Matrix, tour: Sequence[int]) -> float:
    return float(matrix[tour, [*tour[1:], tour[0]]].sum())


def _nearest(matrix: Matrix, first: int) -> list[int]:
    """Nearest neighbour next, from place ``first``; of equally near ones the lowest."""
    tour, left = [first], set(range(len(matrix))) - {first}
    while left:
        row = matrix[tour[-1]]
        nearest = min(row[i] for i in left) * (1 + 1e-9)
        tour.append(min(i for i in left if row[i] <= nearest))
        left.remove(tour[-1])
    return tour


def _two_opt(matrix: Matrix, tour: list[int]) -> list[int]:
    """Reverses stretches of the tour as long as that shortens it."""
    tour, n = list(tour), len(tour)
    gained = True
    while gained:
        gained = False
        for i in range(1, n - 1):
            before, first = tour[i - 1], tour[i]
            last, after = np.array(tour[i + 1 :]), np.array([*tour[i + 2 :], tour[0]])
            gain = matrix[before, first] + matrix[last, after] - matrix[before, last] - matrix[first, after]
            at = int(np.argmax(gain))
            if gain[at] > 1e-9 * matrix[before, first]:
                end = i + 1 + at
                tour[i : end + 1] = tour[i : end + 1][::-1]
                gained = True
    return tour


def _hamiltonian(matrix: Matrix) -> list[int] | None:
    """A closed tour that only steps between nearest places, searched with a budget; None when none was found."""
    n = len(matrix)
    off = matrix + np.diag(np.full(n, np.inf))
    near = [[int(j) for j in np.flatnonzero(row <= off.min() * (1 + 1e-6))] for row in off]
    if min(map(len, near)) < 2:
        return None
    path, used, budget = [0], {0}, _SEARCH_BUDGET

    def exits(place: int) -> int:
        return sum(other not in used for other in near[place])

    # The place with the fewest exits first (Warnsdorff), ties to the lowest: few dead ends on grids and tori.
    choices = [sorted(near[0], key=lambda j: (exits(j), j), reverse=True)]
    while path and budget:
        budget -= 1
        if len(path) == n and 0 in near[path[-1]]:
            return path
        if choices[-1] and len(path) < n:
            place = choices[-1].pop()
            path.append(place)
            used.add(place)
            choices.append(sorted((j for j in near[place] if j not in used), key=lambda j: (exits(j), j), reverse=True))
        else:
            choices.pop()
            used.discard(path.pop())
    return None


def _walk(topology: Topology, ranks: Sequence[int]) -> list[int]:
    """``ranks`` as a depth-first walk of the graph meets them: whatever hangs on one switch stays together."""
    neighbours: dict[str, list[str]] = {vertex: [] for vertex in topology.vertices}
    for link in topology.links:
        neighbours[link.src].append(link.dst)
    one_each = len({topology.host_of_rank[r] for r in ranks}) == len(ranks)
    places = topology.host_of_rank if one_each else topology.slots
    at = {places[r]: r for r in ranks}
    order: dict[int, None] = {}
    seen: set[str] = set()
    stack = [topology.slots[ranks[0]]]
    while stack:
        vertex = topology.vertices[stack.pop()]
        if vertex.id in seen:
            continue
        seen.add(vertex.id)
        place = vertex.host or vertex.id if one_each else vertex.id
        if place in at:
            order[at[place]] = None
        # The last one pushed is next: all that hangs here before what lies behind further switches, in the order of declaration.
        inner = [v for v in neighbours[vertex.id] if topology.vertices[v].kind is not VertexKind.SWITCH]
        outer = [v for v in neighbours[vertex.id] if topology.vertices[v].kind is VertexKind.SWITCH]
        stack.extend([*reversed(outer), *reversed(inner)])
    order.update(dict.fromkeys(ranks))
    return list(order)
