"""How fast a collective can be at best on a topology, whatever the algorithm.

Three arguments, the largest wins. ``n`` is the size of a call as nccl-tests counts it (the larger of a rank's buffers), ``p`` the
number of ranks, and data may be combined and duplicated at ranks only (switches and foreign hosts forward).

**Cuts.** Let a set of vertices hold ``k`` of the ranks, ``0 < k < p``. The bytes below must cross its border outwards and inwards;
divided by the bandwidth of the crossing links they bound the time. A block that others need leaves once (it can be duplicated
outside), a sum leaves once (it can be combined inside):

=================  ======================================  ======================================
collective         out of the set                          into the set
=================  ======================================  ======================================
all_reduce         n                                       n
all_gather         k n/p (own blocks)                      (p-k) n/p
reduce_scatter     (p-k) n/p (one sum per foreign block)   k n/p
all_to_all         k (p-k) n/p                             k (p-k) n/p
broadcast          n if the root is inside                 n if the root is outside
reduce             n if the root is outside                n if the root is inside
gather             k n/p if the root is outside            (p-k) n/p if the root is inside
scatter            (p-k) n/p if the root is inside         k n/p if the root is outside
=================  ======================================  ======================================

The sets tried: every rank's slot, every host, every switch with the hosts that hang on it alone (a rack), and the two sides of
every cable between hosts or switches whose loss would split the fabric (an uplink, a line).

**Sums.** Count receipts at all parties (hosts; and once more with ranks as parties) instead of one border. For each element of an
all_reduce over ``H`` parties, everyone must end up with a part from everyone; by messages from one party to another that takes
at least ``2 (H-1)`` of them (the one-way gossip problem), so ``T >= 2 (H-1) n / (sum of all parties' incoming bandwidth)``: the
familiar ``2 (H-1)/H n / b`` on equal hosts, and 4/5 of ``n/b`` on a ring of five. A block of an all_gather, a broadcast, a
reduce_scatter or a reduce is received ``H-1`` times. What neither splits nor merges (all_to_all, gather, scatter) is received
once per party that it enters on its shortest way. Between hosts the same count bounds by what they send in all; among ranks it
does not, since one copy in shared memory serves many readers.

**Latency.** A rank needs something from every rank (broadcast, scatter: from the root; reduce, gather: the root from all), so the
longest of the shortest latencies is a bound; on more than 64 ranks it is taken over a sample of ranks, which can only lower it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topoccl.topology.graph import Topology
from topoccl.topology.units import format_ranks, format_rate, format_time
from topoccl.topology.wiring import owner

if TYPE_CHECKING:
    import networkx as nx

_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", *_ROOTED, "barrier")
_MOST_PARTIES = 256  # beyond it every distance counts as 1
_ALL_RANKS = 64


@dataclass(frozen=True, slots=True)
class Bound:
    """No schedule is faster than ``seconds``; ``links`` (indices into ``topology.links``) are what limits it, none for latency."""

    seconds: float
    description: str
    links: tuple[int, ...]
    bandwidth_seconds: float
    latency_seconds: float


def host_cut_bound(topology: Topology, collective: str, nbytes: int, root: int | None = None) -> Bound:
    """The bound of this module for one call of ``collective`` with ``nbytes`` (nccl-tests' size) among all ranks of ``topology``.

    Raises:
        ValueError: unknown collective, negative size, or a root that does not fit.
    """
    if collective not in _COLLECTIVES:
        raise ValueError(f"unknown collective {collective!r}; known: {', '.join(_COLLECTIVES)}")
    if nbytes < 0:
        raise ValueError(f"{collective}: {nbytes} bytes; expected a size that is not negative")
    if (root is None) == (collective in _ROOTED) or (root is not None and not 0 <= root < topology.num_ranks):
        expected = f"expected a rank below {topology.num_ranks}" if collective in _ROOTED else "it has none"
        raise ValueError(f"{collective}: root is {root}; {expected}")
    latency, why = _latency(topology, collective, root)
    seconds, description, links = 0.0, "one rank: nothing to send", tuple[int, ...]()
    if topology.num_ranks > 1 and nbytes and collective != "barrier":
        for amount, crossing, text in _claims(topology, collective, nbytes, root):
            bandwidth = math.fsum(topology.links[link].bandwidth for link in crossing)
            bound = amount / bandwidth if bandwidth else math.inf
            if amount and bound > seconds:
                seconds, links = bound, tuple(crossing)
                description = f"{text()}: {amount:.0f} bytes over {_names(topology, crossing)} = {format_rate(bandwidth)}"
    if latency >= seconds and topology.num_ranks > 1:
        return Bound(latency, why, (), seconds, latency)
    return Bound(seconds, description, links, seconds, latency)


def tightest_cuts(topology: Topology, collective: str, nbytes: int, root: int | None = None) -> tuple[float, frozenset[int]]:
    """The largest bound by a single cut, in seconds, and the links of *all* cuts that are as tight: both uplinks of two equal racks.

    Sums over parties, which no cut shows, do not count. ``(0.0, frozenset())`` where there is nothing to send.
    """
    best, found = 0.0, set[int]()
    if topology.num_ranks > 1 and nbytes and collective != "barrier":
        for amount, crossing, _ in _cuts(topology, collective, nbytes, root):
            bandwidth = math.fsum(topology.links[link].bandwidth for link in crossing)
            seconds = amount / bandwidth if bandwidth else 0.0
            if seconds > best * (1 + 1e-9):
                best, found = seconds, set()
            if seconds and math.isclose(seconds, best, rel_tol=1e-9):
                found.update(crossing)
    return best, frozenset(found)


_Claim = tuple[float, Collection[int], Callable[[], str]]


def _claims(topology: Topology, collective: str, nbytes: int, root: int | None) -> Iterator[_Claim]:
    """All bounds tried: bytes, the links that must carry them together, and what to say."""
    yield from _cuts(topology, collective, nbytes, root)
    hosts = topology.host_of_rank
    if len(set(hosts)) > 1:
        arriving, leaving = _borders(topology, {v: owner(topology, v) for v in topology.vertices}, set(hosts))
        amount = _receipts(topology, collective, nbytes, root, hosts)
        yield amount, _union(arriving), lambda: "what all hosts together must receive"
        yield amount, _union(leaving), lambda: "what all hosts together must send"
    if topology.num_ranks <= _MOST_PARTIES:
        arriving, _ = _borders(topology, {v: v for v in topology.vertices}, set(topology.slots))
        amount = _receipts(topology, collective, nbytes, root, topology.slots)
        yield amount, _union(arriving), lambda: "what all ranks together must receive"


def _cut_bytes(collective: str, n: float, p: int, k: int, root_inside: bool) -> tuple[float, float]:
    """Bytes out of and into a set with ``k`` of ``p`` ranks: the table at the top."""
    own, foreign = k * n / p, (p - k) * n / p
    match collective:
        case "all_reduce":
            return n, n
        case "all_gather":
            return own, foreign
        case "reduce_scatter":
            return foreign, own
        case "all_to_all":
            return k * foreign, k * foreign
        case "broadcast":
            return (n, 0.0) if root_inside else (0.0, n)
        case "reduce":
            return (0.0, n) if root_inside else (n, 0.0)
        case "gather":
            return (0.0, foreign) if root_inside else (own, 0.0)
        case _:
            return (foreign, 0.0) if root_inside else (0.0, own)


def _cuts(topology: Topology, collective: str, nbytes: int, root: int | None) -> Iterator[_Claim]:
    rank_of = {slot: rank for rank, slot in enumerate(topology.slots)}
    owners = {vertex: owner(topology, vertex) for vertex in topology.vertices}
    members: dict[str, list[str]] = {}
    for vertex, group in owners.items():
        members.setdefault(group, []).append(vertex)

    def claims(arriving: Collection[int], leaving: Collection[int], ranks: Collection[int], what: str) -> Iterator[_Claim]:
        if 0 < len(ranks) < topology.num_ranks:
            out, into = _cut_bytes(collective, nbytes, topology.num_ranks, len(ranks), root in ranks)
            yield out, leaving, lambda: f"what must leave {what} ({format_ranks(ranks)})"
            yield into, arriving, lambda: f"what must enter {what} ({format_ranks(ranks)})"

    arriving, leaving = _borders(topology, {vertex: vertex for vertex in topology.vertices}, set(topology.slots))
    for slot, rank in rank_of.items():
        yield from claims(arriving[slot], leaving[slot], [rank], slot)
    hosts = {owners[slot] for slot in topology.slots}
    ranks_in = {host: [rank_of[v] for v in members[host] if v in rank_of] for host in members}
    arriving, leaving = _borders(topology, owners, hosts)
    for host in topology.hosts:
        if host in hosts:
            yield from claims(arriving[host], leaving[host], ranks_in[host], f"host {host}")
    for together in _groups(topology, owners):
        side = {vertex: "side" for name in together for vertex in members[name]}
        into, out = _borders(topology, side, {"side"})
        ranks = sorted(rank for name in together for rank in ranks_in[name])
        yield from claims(into["side"], out["side"], ranks, "the part with " + _few(sorted(together)))


def _borders(topology: Topology, party_of: dict[str, str], parties: Collection[str]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Links that enter and that leave each of ``parties``."""
    arriving: dict[str, list[int]] = {party: [] for party in parties}
    leaving: dict[str, list[int]] = {party: [] for party in parties}
    for index, link in enumerate(topology.links):
        a, b = party_of.get(link.src, ""), party_of.get(link.dst, "")
        if a != b:
            if a in leaving:
                leaving[a].append(index)
            if b in arriving:
                arriving[b].append(index)
    return arriving, leaving


def _union(links: dict[str, list[int]]) -> list[int]:
    return sorted(link for some in links.values() for link in some)


def _groups(topology: Topology, owners: dict[str, str]) -> Iterator[frozenset[str]]:
    """Sets of owners worth a cut: a switch with the hosts that hang on it alone, and the sides of cables that hold the fabric together."""
    import networkx as nx

    network: nx.Graph[str] = nx.Graph()
    network.add_nodes_from(owners.values())
    network.add_edges_from((owners[link.src], owners[link.dst]) for link in topology.links if owners[link.src] != owners[link.dst])
    hosts = set(topology.hosts)
    seen: set[frozenset[str]] = set()
    for switch in network:
        if switch not in hosts and network.degree(switch) > 1:
            seen.add(frozenset([switch, *(host for host in network[switch] if host in hosts and network.degree(host) == 1)]))
    inner = network.subgraph([node for node in network if network.degree(node) > 1])
    if len(inner) > 1:
        for a, b in list(nx.bridges(inner)):
            split = network.copy()
            split.remove_edge(a, b)
            seen.add(frozenset(nx.node_connected_component(split, a)))
    yield from sorted(seen, key=sorted)


def _receipts(topology: Topology, collective: str, n: float, root: int | None, parties: tuple[str, ...]) -> float:
    """Bytes that must be received by parties from other parties in all; ``parties[rank]`` is where a rank is."""
    names = list(dict.fromkeys(parties))
    count, p = len(names), topology.num_ranks
    match collective:
        case "all_reduce":
            return 2 * (count - 1) * n
        case "all_gather" | "broadcast" | "reduce_scatter" | "reduce":
            return (count - 1) * n
    size = dict.fromkeys(names, 0)
    for party in parties:
        size[party] += 1
    distance = _distances(topology, names)
    if root is None:
        return math.fsum(size[a] * size[b] * distance(a, b) for a in names for b in names if a != b) * n / p
    home = parties[root]
    ways = ((a, home) if collective == "gather" else (home, a) for a in names if a != home)
    return math.fsum(size[a] * size[b] / size[home] * distance(a, b) for a, b in ways) * n / p


def _distances(topology: Topology, parties: list[str]) -> Callable[[str, str], int]:
    """How many parties a message enters on the shortest way from one to another (itself not counted)."""
    if len(parties) > _MOST_PARTIES:
        return lambda a, b: 1
    inside = set(parties)
    hosts = inside <= set(topology.hosts)
    name = {vertex: owner(topology, vertex) if hosts else vertex for vertex in topology.vertices}
    edges: dict[str, dict[str, int]] = {}
    for link in topology.links:
        a, b = name[link.src], name[link.dst]
        if a != b:
            edges.setdefault(a, {})[b] = 1 if b in inside else 0
    tables = {party: _dijkstra(edges, party) for party in parties}
    return lambda a, b: int(tables[a].get(b, 1))


def _dijkstra(edges: dict[str, dict[str, int]] | dict[str, dict[str, float]], source: str) -> dict[str, float]:
    best: dict[str, float] = {source: 0.0}
    heap = [(0.0, source)]
    while heap:
        cost, vertex = heapq.heappop(heap)
        if cost > best[vertex]:
            continue
        for neighbour, weight in edges.get(vertex, {}).items():
            if cost + weight < best.get(neighbour, math.inf):
                best[neighbour] = cost + weight
                heapq.heappush(heap, (cost + weight, neighbour))
    return best


def _latency(topology: Topology, collective: str, root: int | None) -> tuple[float, str]:
    edges: dict[str, dict[str, float]] = {}
    for link in topology.links:
        a, b = (link.dst, link.src) if collective in ("reduce", "gather") else (link.src, link.dst)
        row = edges.setdefault(a, {})
        row[b] = min(link.latency, row.get(b, math.inf))
    slots = topology.slots

    def farthest(rank: int) -> tuple[float, int, int]:
        reach = _dijkstra(edges, slots[rank])
        return max(((reach.get(slot, math.inf), rank, other) for other, slot in enumerate(slots)), key=lambda found: found[0])

    if root is not None:
        found = [farthest(root)]
    elif len(slots) <= _ALL_RANKS:
        found = [farthest(rank) for rank in range(len(slots))]
    else:
        found = [farthest(0)]
        found.append(farthest(found[0][2]))
    seconds, rank, other = max(found, key=lambda one: one[0])
    return seconds, f"latency between ranks {rank} and {other}: {format_time(seconds)}"


def _few(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _names(topology: Topology, links: Collection[int]) -> str:
    return _few([topology.links[link].name for link in links]) or "no link"
