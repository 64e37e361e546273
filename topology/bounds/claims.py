"""Bounds that are found by counting, without a search: fast at any scale, and the first guess of the exact ones.

``n`` is the size of a call as nccl-tests counts it (the larger of a rank's buffers), ``p`` the number of ranks, and data may be
combined and duplicated at ranks only (switches and foreign hosts forward).

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
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from topoccl.topology.bounds.latency import shortest
from topoccl.topology.graph import Topology
from topoccl.topology.wiring import owner

if TYPE_CHECKING:
    import networkx as nx

_MOST_PARTIES = 256  # beyond it every distance counts as 1


@dataclass(frozen=True, slots=True)
class Cut:
    """What limits a collective: for each byte of a call, ``share`` bytes must cross ``links`` together.

    Attributes:
        share: see above; ``seconds >= share * nbytes / bandwidth of the links``.
        links: indices into ``topology.links``.
        ranks: the ranks on one side, that can only be reached over the links (``inward``), or only be heard over them.
        inward: whether the data goes towards these ranks.
        together: empty for one cut; for a sum over several parties, who must do what, in words.
        weights: how often each link's bandwidth counts; empty when all count once.
    """

    share: Fraction
    links: tuple[int, ...]
    ranks: tuple[int, ...]
    inward: bool
    together: str = ""
    weights: tuple[Fraction, ...] = ()


def claims(topology: Topology, collective: str, root: int | None) -> Iterator[Cut]:
    """All bounds tried for one collective."""
    yield from cuts(topology, collective, root)
    hosts, everybody = topology.host_of_rank, tuple(range(topology.num_ranks))
    if len(set(hosts)) > 1:
        arriving, leaving = _borders(topology, {v: owner(topology, v) for v in topology.vertices}, set(hosts))
        share = _receipts(topology, collective, root, hosts)
        yield Cut(share, _union(arriving), everybody, True, "all hosts together must receive")
        yield Cut(share, _union(leaving), everybody, False, "all hosts together must send")
    if topology.num_ranks <= _MOST_PARTIES:
        arriving, _ = _borders(topology, {v: v for v in topology.vertices}, set(topology.slots))
        yield Cut(
            _receipts(topology, collective, root, topology.slots), _union(arriving), everybody, True, "all ranks together must receive"
        )


def _cut_bytes(collective: str, p: int, k: int, root_inside: bool) -> tuple[Fraction, Fraction]:
    """Shares out of and into a set with ``k`` of ``p`` ranks: the table at the top."""
    own, foreign, zero, one = Fraction(k, p), Fraction(p - k, p), Fraction(0), Fraction(1)
    match collective:
        case "all_reduce":
            return one, one
        case "all_gather":
            return own, foreign
        case "reduce_scatter":
            return foreign, own
        case "all_to_all":
            return k * foreign, k * foreign
        case "broadcast":
            return (one, zero) if root_inside else (zero, one)
        case "reduce":
            return (zero, one) if root_inside else (one, zero)
        case "gather":
            return (zero, foreign) if root_inside else (own, zero)
        case _:
            return (foreign, zero) if root_inside else (zero, own)


def cuts(topology: Topology, collective: str, root: int | None) -> Iterator[Cut]:
    """The cuts tried, without those that nothing needs to cross."""
    rank_of = {slot: rank for rank, slot in enumerate(topology.slots)}
    owners = {vertex: owner(topology, vertex) for vertex in topology.vertices}
    members: dict[str, list[str]] = {}
    for vertex, group in owners.items():
        members.setdefault(group, []).append(vertex)

    def both(arriving: Collection[int], leaving: Collection[int], ranks: Collection[int]) -> Iterator[Cut]:
        if 0 < len(ranks) < topology.num_ranks:
            out, into = _cut_bytes(collective, topology.num_ranks, len(ranks), root in ranks)
            for share, links, inward in ((into, arriving, True), (out, leaving, False)):
                if share:
                    yield Cut(share, tuple(links), tuple(ranks), inward)

    arriving, leaving = _borders(topology, {vertex: vertex for vertex in topology.vertices}, set(topology.slots))
    for slot, rank in rank_of.items():
        yield from both(arriving[slot], leaving[slot], [rank])
    hosts = {owners[slot] for slot in topology.slots}
    ranks_in = {host: [rank_of[v] for v in members[host] if v in rank_of] for host in members}
    arriving, leaving = _borders(topology, owners, hosts)
    for host in topology.hosts:
        if host in hosts:
            yield from both(arriving[host], leaving[host], ranks_in[host])
    for together in _groups(topology, owners):
        side = {vertex: "side" for name in together for vertex in members[name]}
        into, out = _borders(topology, side, {"side"})
        ranks = sorted(rank for name in together for rank in ranks_in[name])
        yield from both(into["side"], out["side"], ranks)


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


def _union(links: dict[str, list[int]]) -> tuple[int, ...]:
    return tuple(sorted(link for some in links.values() for link in some))


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


def _receipts(topology: Topology, collective: str, root: int | None, parties: tuple[str, ...]) -> Fraction:
    """What parties must receive from other parties in all, for each byte of the call; ``parties[rank]`` is where a rank is."""
    names = list(dict.fromkeys(parties))
    count, p = len(names), topology.num_ranks
    match collective:
        case "all_reduce":
            return Fraction(2 * (count - 1))
        case "all_gather" | "broadcast" | "reduce_scatter" | "reduce":
            return Fraction(count - 1)
    size = dict.fromkeys(names, 0)
    for party in parties:
        size[party] += 1
    distance = _distances(topology, names)
    if root is None:
        return Fraction(sum(size[a] * size[b] * distance(a, b) for a in names for b in names if a != b), p)
    home = parties[root]
    ways = ((a, home) if collective == "gather" else (home, a) for a in names if a != home)
    return Fraction(sum(size[a] * size[b] // size[home] * distance(a, b) for a, b in ways), p)


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
    tables = {party: shortest(edges, party) for party in parties}
    return lambda a, b: int(tables[a].get(b, 1))
