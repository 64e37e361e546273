"""A network that exists only as a topology: measurements computed by max-min sharing, with noise and unfairness."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from topoccl.collectives.probe.build import Setting
from topoccl.collectives.probe.explore import Explorer
from topoccl.collectives.probe.infer import infer
from topoccl.collectives.probe.sharing import share
from topoccl.collectives.probe.table import Flow, Table
from topoccl.topology import Topology, VertexKind
from topoccl.topology.routes import Routes
from topoccl.topology.spread import spread
from topoccl.topology.wiring import cables

OVERHEAD = 0.05  # seconds per measurement beyond its duration


class Simulated:
    """Measures flows on ``topology``.

    Args:
        noise: relative standard deviation of each rate.
        unfair: flows at one full link get shares from 1 to 1 + this.
        disturbed: the share of measurements from which a busy machine takes up to half.
    """

    def __init__(self, topology: Topology, noise: float = 0.05, unfair: float = 1.0, disturbed: float = 0.0, seed: int = 0) -> None:
        self.topology = topology
        self.clock = 0.0
        self.repetitions = 0
        self._noise, self._unfair, self._disturbed = noise, unfair, disturbed
        self._random = random.Random(seed)
        self._path = _paths(topology)

    def measure(self, flows: Sequence[Flow], seconds: float) -> list[float]:
        self.clock += seconds + OVERHEAD
        self.repetitions += 1
        weights = [self._random.uniform(1, 1 + self._unfair) for _ in flows]
        rates = share([self._path(*flow) for flow in flows], [link.bandwidth for link in self.topology.links], weights)
        left = self._random.uniform(0.5, 1) if self._random.random() < self._disturbed else 1.0
        return [rate * left * self._random.gauss(1, self._noise) for rate in rates]

    def probe(self, budget: float = 60.0) -> tuple[Table, Topology]:
        """Explores and infers; hosts keep their names."""
        table = Table(self.topology.ranks_by_host)
        Explorer(table, self.measure, lambda: budget - self.clock).explore()
        return table, infer(table, Setting([self.topology.host_of_rank[ranks[0]] for ranks in table.hosts]))


def _paths(topology: Topology) -> Callable[[int, int], Sequence[int]]:
    """Links from rank to rank; without a switch, those of tables of next hosts, as the kernel of each host has them."""
    if any(v.kind is VertexKind.SWITCH and v.host is None for v in topology.vertices.values()):
        return Routes(topology).path
    graph: dict[str, dict[str, float]] = {host: {} for host in topology.hosts}
    for cable in cables(topology):
        graph[cable.a.owner][cable.b.owner] = cable.rate_ab
        graph[cable.b.owner][cable.a.owner] = cable.rate_ba
    link_of = {(topology.vertices[link.src].host, topology.vertices[link.dst].host): index for index, link in enumerate(topology.links)}
    tables = dict(zip(topology.hosts, spread(graph, topology.hosts), strict=True))

    def path(src: int, dst: int) -> list[int]:
        here, target = topology.host_of_rank[src], topology.host_of_rank[dst]
        links = []
        while here != target:
            nearer = tables[target][here]
            links.append(link_of[here, nearer])
            here = nearer
        return links

    return path


def structure(topology: Topology) -> tuple[set[frozenset[str]], set[frozenset[str]]]:
    """The hosts on each switch that has any, and the pairs of hosts with a cable between them."""
    members: dict[str, set[str]] = {}
    pairs = set()
    switches = {v.id for v in topology.vertices.values() if v.kind is VertexKind.SWITCH and v.host is None}
    for cable in cables(topology):
        ends = {cable.a.owner, cable.b.owner}
        if not ends & switches:
            pairs.add(frozenset(ends))
        elif len(ends & switches) == 1:
            members.setdefault((ends & switches).pop(), set()).update(ends - switches)
    return {frozenset(hosts) for hosts in members.values()}, pairs


def rates(topology: Topology) -> dict[tuple[str, str], float]:
    """The rate of every link between hosts and switches, by its ends; parallel links added up. Switches are named by their hosts, and
    one between two others that has no hosts is left out."""
    switches = {v.id for v in topology.vertices.values() if v.kind is VertexKind.SWITCH and v.host is None}
    links: dict[str, dict[str, float]] = {}
    for cable in cables(topology):
        a, b = cable.a.owner, cable.b.owner
        for src, dst, rate in ((a, b, cable.rate_ab), (b, a, cable.rate_ba)):
            links.setdefault(src, {})[dst] = links.get(src, {}).get(dst, 0.0) + rate
    names = {switch: "+".join(sorted(set(links[switch]) - switches)) for switch in switches}
    for switch in [switch for switch in switches if not names[switch] and len(links[switch]) == 2]:
        a, b = links.pop(switch)
        for src, dst in ((a, b), (b, a)):
            links[src][dst] = links[src].pop(switch)  # as wide on both sides in all fabrics here
    return {(names.get(src, src), names.get(dst, dst)): rate for src, ends in links.items() for dst, rate in ends.items()}
