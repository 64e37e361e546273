"""The bandwidth bound of one collective on one topology, with the cut that proves it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from topoccl.topology.bounds.claims import Cut, claims
from topoccl.topology.bounds.concurrent import best_lengths
from topoccl.topology.bounds.cuts import tightest
from topoccl.topology.bounds.exchange import Exchange, best_exchange
from topoccl.topology.bounds.network import Branch, Network, by_host, host_groups, network_of, unit_of
from topoccl.topology.graph import Topology, TopologyError
from topoccl.topology.units import format_ranks, format_rate

ROOTED = ("broadcast", "reduce", "gather", "scatter")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", *ROOTED, "barrier")
REVERSED = ("reduce_scatter", "reduce", "scatter")
"""All_gather, broadcast and gather with every link turned around."""
_BLOCKS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
CUT_WORK = 4_000_000
"""Ranks times arcs above which cuts are only tried, not searched for: about five seconds."""
PROGRAMME_WORK = 20_000
"""The same for the programme of all_reduce: about three seconds. Beyond it hosts count as one rank each, if that is enough."""


@dataclass(frozen=True)
class Certificate:
    """Why nothing is faster.

    Attributes:
        topology, collective, root: what it is for.
        seconds_per_byte: exact; times the call's size (nccl-tests'), the least seconds.
        cut: what proves it.
        searched: whether the best of all cuts (of an all_to_all: of all lengths of links) was found; else the best of those tried.
    """

    topology: Topology
    collective: str
    root: int | None
    seconds_per_byte: Fraction
    cut: Cut
    searched: bool

    @property
    def unit(self) -> Fraction:
        """The largest rate that divides the rate of every link, bytes/s."""
        return unit_of(link.bandwidth for link in self.topology.links)

    @property
    def per_block(self) -> bool:
        """Whether the collective has one block per rank."""
        return self.collective in _BLOCKS

    def inverse_throughput(self, unit: Fraction | None = None) -> Fraction:
        """Seconds for one unit of data at links measured in ``unit`` bytes/s: ``1/x*`` of ForestColl.

        For collectives with one block per rank (all_gather, reduce_scatter, gather, scatter, all_to_all) the data is one block,
        else the whole vector.
        """
        blocks = self.topology.num_ranks if self.per_block else 1
        return self.seconds_per_byte * blocks * (self.unit if unit is None else unit)

    @property
    def text(self) -> str:
        """The cut in words."""
        cut, topology = self.cut, self.topology
        if not cut.links:
            return "one rank: nothing to send"
        names = _few([topology.links[link].name for link in cut.links])
        rate = format_rate(float(cut.share / self.seconds_per_byte))
        if cut.together:
            times = f"{float(cut.share):.4g} bytes for each byte of a call"
            return f"{cut.together} {times} over {names}: {rate}"
        return f"{format_ranks(cut.ranks)} can only be {'reached' if cut.inward else 'heard'} over {names}: {rate}"

    def as_dict(self, unit: Fraction | None = None) -> dict[str, Any]:
        """For JSON; fractions as text, numbers without units."""
        unit = self.unit if unit is None else unit
        links = [self.topology.links[link].name for link in self.cut.links]
        cut: dict[str, Any] = {"ranks": list(self.cut.ranks), "links": links, "direction": "into" if self.cut.inward else "out of"}
        if self.cut.weights:
            cut["weights"] = [str(weight) for weight in self.cut.weights]
        return {
            "topology": self.topology.name,
            "collective": self.collective,
            "ranks": self.topology.num_ranks,
            "root": self.root,
            "inverse_throughput": str(self.inverse_throughput(unit)),
            "unit_bandwidth": float(unit),
            "cut": cut,
            "seconds_per_byte": float(self.seconds_per_byte),
            "searched": self.searched,
            "text": self.text,
        }


def check_call(topology: Topology, collective: str, root: int | None) -> None:
    """Refuses what is no collective, and a root that does not fit.

    Raises:
        ValueError: saying what is wrong.
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"unknown collective {collective!r}; known: {', '.join(COLLECTIVES)}")
    if (root is None) == (collective in ROOTED) or (root is not None and not 0 <= root < topology.num_ranks):
        expected = f"expected a rank below {topology.num_ranks}" if collective in ROOTED else "it has none"
        raise ValueError(f"{collective}: root is {root}; {expected}")


@lru_cache(maxsize=64)
def certificate(topology: Topology, collective: str, root: int | None = None, *, search: bool = True) -> Certificate:
    """The bandwidth bound for calls of ``collective`` among all ranks of ``topology``.

    Args:
        search: look for the best cut, exactly, where the fabric is small enough for it (:data:`CUT_WORK`, :data:`PROGRAMME_WORK`);
            else only try the likely ones, which is always fast.

    Raises:
        ValueError: unknown collective, or a root that does not fit.
        TopologyError: ranks that cannot reach each other.
    """
    check_call(topology, collective, root)
    if topology.num_ranks == 1 or collective == "barrier":
        return Certificate(topology, collective, root, Fraction(0), Cut(Fraction(0), (), (), True), True)
    seconds, cut = _tried(topology, collective, root)
    searched = False
    if search and collective == "all_reduce":
        network = _of_programme(topology)
        if network is not None:
            exchange = best_exchange(network, groups=host_groups(topology, network))
            searched = len(network.ranks) == topology.num_ranks
            exact, proof = 1 / (exchange.rate * network.unit), _cut_of(topology, network, exchange)
            if exact > seconds or (exact == seconds and cut.together and not proof.together):
                seconds, cut = exact, proof
    elif search and collective == "all_to_all":
        proved = _all_to_all(topology)
        if proved is not None:
            exact, proof, searched = proved
            if exact > seconds or (exact == seconds and cut.together and not proof.together):
                seconds, cut = exact, proof
    elif search:
        network = network_of(topology)
        sources = [network.ranks[root]] if root is not None and collective in ("broadcast", "reduce") else network.ranks
        sinks = [network.ranks[root]] if root is not None and collective in ("gather", "scatter") else network.ranks
        if len(sinks) * len(network.arcs) <= CUT_WORK:
            searched = True
            turned = network.reversed() if collective in REVERSED else network
            share = Fraction(1, 1 if root is not None and len(sources) == 1 else topology.num_ranks)
            ratio = seconds / share * network.unit  # blocks per unit of capacity
            blocks, capacity, far = tightest(turned, dict.fromkeys(sources, 1), sinks, (ratio.numerator, ratio.denominator))
            if far is not None:
                seconds = share * blocks / (capacity * network.unit)
                links = _links(topology, turned, turned.into(far))
                ranks = tuple(rank for rank, vertex in enumerate(network.ranks) if far[vertex])
                cut = Cut(share * blocks, links, ranks, collective not in REVERSED)
    return Certificate(topology, collective, root, seconds, cut, searched)


def _tried(topology: Topology, collective: str, root: int | None) -> tuple[Fraction, Cut]:
    """The best of the cuts that are worth trying; cuts come before sums that say the same."""
    rates = [link.bandwidth for link in topology.links]
    most, best = -1.0, None
    for cut in claims(topology, collective, root):
        rate = math.fsum(rates[link] for link in cut.links)
        if not rate:
            raise TopologyError(f"topology {topology.name!r}: {format_ranks(cut.ranks)} cannot {'be reached' if cut.inward else 'send'}")
        if float(cut.share) / rate > most * (1 + 1e-9):
            most, best = float(cut.share) / rate, cut
    assert best is not None  # every rank is a cut
    return best.share / sum(Fraction(rates[link]) for link in best.links), best


def _of_programme(topology: Topology) -> Network | None:
    """The ranks, or the hosts where that is too much for a linear programme; None when even that is."""
    network = network_of(topology)
    if len(network.ranks) * len(network.arcs) > PROGRAMME_WORK:
        network = by_host(topology, network)
        if not 1 < len(network.ranks) * len(network.arcs) <= PROGRAMME_WORK:
            return None
    return network


def _all_to_all(topology: Topology) -> tuple[Fraction, Cut, bool] | None:
    """(seconds per byte, proof, whether among ranks) of all_to_all; None where there are too many ranks and hosts."""
    network = _of_programme(topology)
    if network is None:
        return None
    size = Counter(network.vertex_of_rank)
    demand = {a: {b: size[a] * size[b] for b in network.ranks if a != b} for a in network.ranks}
    blocks, lengths = best_lengths(len(network.names), network.arcs, network.capacity, demand)
    seconds, p = blocks / (topology.num_ranks * network.unit), topology.num_ranks
    used = [arc for arc, length in enumerate(lengths) if length]
    for near in network.ranks:  # lengths on the border of one set are a cut
        flags = _reached(network, near, used)
        into = network.into(flags)
        k = sum(flags[vertex] for vertex in network.vertex_of_rank)
        if 0 < k < p and Fraction(k * (p - k), network.total(into)) >= blocks:
            ranks = tuple(rank for rank, vertex in enumerate(network.vertex_of_rank) if flags[vertex])
            return seconds, Cut(Fraction(k * (p - k), p), _links(topology, network, into), ranks, True), len(network.ranks) == p
    share = seconds * network.unit * sum(length * c for length, c in zip(lengths, network.capacity, strict=True))
    return seconds, _weighted(topology, network, {arc: lengths[arc] for arc in used}, share), len(network.ranks) == p


def _weighted(topology: Topology, network: Network, weights: Mapping[int, Fraction], share: Fraction) -> Cut:
    """Arcs that all ranks together must pass, counted by their weights, as links."""
    links: dict[int, Fraction] = {}
    for arc, weight in weights.items():
        links |= dict.fromkeys(_links(topology, network, [arc]), weight)
    equal = len(set(weights.values())) == 1
    together = "all ranks together must pass" if equal else "all ranks together must pass, counting links by their weights,"
    return Cut(share, tuple(links), tuple(range(topology.num_ranks)), True, together, () if equal else tuple(links.values()))


def _reached(network: Network, start: int, closed: Collection[int]) -> list[bool]:
    """The vertices to which ways lead from ``start`` without the arcs ``closed``."""
    flags = [vertex == start for vertex in range(len(network.names))]
    barred = set(closed)
    following: dict[int, list[int]] = {}
    for arc, (tail, head) in enumerate(network.arcs):
        if arc not in barred:
            following.setdefault(tail, []).append(head)
    waiting = [start]
    while waiting:
        for head in following.get(waiting.pop(), ()):
            if not flags[head]:
                flags[head] = True
                waiting.append(head)
    return flags


def _cut_of(topology: Topology, network: Network, exchange: Exchange) -> Cut:
    """The proof of an exchange as a cut if it is one, else as links with weights."""
    used = [arc for arc, weight in enumerate(exchange.arcs) if weight]
    top = max(exchange.arcs)
    weights = [exchange.arcs[arc] / top for arc in used]
    if set(weights) == {1}:
        for proof in exchange.proof:
            for inside in (proof.inside, frozenset(range(len(network.names))) - proof.inside):
                flags = [vertex in inside for vertex in range(len(network.names))]
                if top == 1 and network.into(flags) == used:
                    ranks = tuple(rank for rank, vertex in enumerate(network.vertex_of_rank) if flags[vertex])
                    return Cut(Fraction(1), _links(topology, network, used), ranks, True)
    return _weighted(topology, network, dict(zip(used, weights, strict=True)), 1 / top)


def _links(topology: Topology, network: Network, arcs: Iterable[int]) -> tuple[int, ...]:
    """The links that make arcs as narrow as they are, those of networks before others that are as narrow."""
    found: dict[int, None] = {}
    for arc in arcs:
        found |= dict.fromkeys(_narrowest(topology, network.branches[arc]))
    return tuple(found)


def _narrowest(topology: Topology, branches: Sequence[Branch]) -> tuple[int, ...]:
    links = topology.links

    def width(chosen: Iterable[int]) -> tuple[float, int]:
        return math.fsum(links[link].bandwidth for link in chosen), sum(links[link].kind != "net" for link in chosen)

    stages = min(len(branch.links) for branch in branches)
    options = [tuple(dict.fromkeys(branch.links[stage] for branch in branches)) for stage in range(stages)]
    options.append(tuple(dict.fromkeys(min(branch.links, key=lambda link: width([link])) for branch in branches)))
    return min(options, key=width)


def _few(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
