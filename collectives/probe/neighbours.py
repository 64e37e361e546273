"""Hosts without a switch: which of them are linked directly, read from what flows share. Pure.

A host with several cables sends more to several hosts at once than to any single one. Two destinations are behind the same *port*
of a host if flows to both share what one flow gets. Host ``z`` lies between ``a`` and ``b`` if it is behind the port of ``a`` that
leads to ``b`` and behind the port of ``b`` that leads to ``a``: on shortest ways towards destinations there is such a ``z`` for every
pair that is not linked directly, and none for a pair that is, save where the ways there and back differ. There, of several
candidates behind one port, ``a -> b`` shares with ``z -> b`` exactly if it passes ``z``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from topoccl.collectives.probe.table import SAME, Ends, Table

Question = tuple[Ends, ...]

MANY = 1.4
"""A host that sends this much more to several hosts at once than to one seems to have several ports."""
_WHOLE = 0.2
_LOST = 0.55  # of what the lesser of two flows gets alone: what they lose together, if they share
_CLEAR = 0.25  # so far from losing nothing, or all of it, one measurement is enough
_TRIES = 4
_APART = 1.3  # two flows that together get so much more than the fastest one anywhere do not share
MESH_HOSTS = 9
"""Among more hosts, cables between all pairs are less likely than streams that do not fill a NIC alone."""


@dataclass(frozen=True)
class Cables:
    """Direct links between hosts.

    Attributes:
        edges: pairs of hosts, the lower number first, in order.
        doubtful: pairs that seem linked from one end only, and are not among ``edges``.
    """

    edges: tuple[Ends, ...]
    doubtful: tuple[Ends, ...] = ()


def width(table: Table) -> list[float]:
    """How many times as much each host sent to several hosts at once as to any single one; 1 for a host that did neither."""
    sent, _ = table.peaks("one_way")
    wide, _ = table.peaks("scatter")
    return [many / one if one and many else 1.0 for one, many in zip(sent, wide, strict=True)]


def find_cables(table: Table) -> Cables | Question | None:
    """The direct links between hosts, or what has to be measured next to find them; None where there are none.

    First, hosts that seem to have so many ports are taken to have them; if that leads to no network, or measurements are unsteady,
    nothing is taken for granted.
    """
    hosts, times = len(table.hosts), width(table)
    if hosts < 3 or max(times) < MANY:
        return None
    everyone = all(len(outcome.flows) == hosts - 1 for outcome in table.of_kind("scatter"))
    for trusting in (False,) if table.busy else (True, False):
        ports: list[Ports] = []
        for host in range(hosts):
            whole = everyone and abs(times[host] - round(times[host])) < _WHOLE
            ports.append(Ports(table, host, round(times[host]) if trusting and whole else None))
            if ports[-1].open is not None:
                return ports[-1].open
            if hosts > MESH_HOSTS and len(ports[-1].groups) == hosts - 1:
                return None
        for host in range(hosts):
            for _, question in _neighbours(table, ports, host):
                if question is not None:
                    return question
        found = _network(hosts, {(host, neighbour) for host in range(hosts) for neighbour, _ in _neighbours(table, ports, host)})
        if found is not None:
            return found
    return None


def share_a_link(table: Table, first: Ends, second: Ends) -> Question | bool:
    """Whether two flows between hosts, measured alone and together, share a link; or the flows that have to be measured (again) to know.

    Two flows that share lose as much as the lesser gets alone, if that fills the link; two that do not lose next to nothing. A busy
    machine takes away more: what falls between is measured again, and what a flow got among others is only a lower limit of what it
    gets alone. When there is no time for that, the likelier answer has to do.
    """
    flows = [table.flow(*first), table.flow(*second)]
    together = table.find("together", flows)
    if together is None:
        return first, second
    if together.total > _APART * table.fastest():
        return False
    wanted = 0 if not table.complete else _TRIES if table.busy else 1
    alone = [table.single(*first), table.single(*second)]
    lost = (sum(alone) - together.total) / min(alone)
    if lost > 1 - _CLEAR:
        return True if len(together.runs) >= wanted else (first, second)
    for ends, flow, rate in zip((first, second), flows, alone, strict=True):
        found = table.find("alone", [flow])
        if rate < SAME * table.fastest() and (0 if found is None else len(found.runs)) < wanted:
            return (ends,)
    if wanted and lost > _CLEAR and len(together.runs) < _TRIES:
        return first, second
    return lost > _LOST


class Ports:
    """The ports of one host: the destinations behind each, found by comparing each destination with one behind each known port."""

    def __init__(self, table: Table, host: int, count: int | None) -> None:
        """``count``: how many ports there are, if known: what is not behind the others is behind the last."""
        self.groups: list[list[int]] = []
        self.open: Question | None = None
        """Flows that have to be measured next, together; None when all destinations are placed."""
        others = [other for other in range(len(table.hosts)) if other != host]
        first = (host, others[0])
        if count != 1 and table.find("alone", [table.flow(*first)]) is None:
            self.open = (first,)  # among others a flow may never have got what a cable carries
            return
        for other in others:
            home: list[int] | None = None
            for group in list(self.groups):
                if len(self.groups) == count and home is None and group is self.groups[-1]:
                    shared: Question | bool = True
                else:
                    shared = share_a_link(table, (host, group[0]), (host, other))
                if isinstance(shared, tuple):
                    self.open = shared
                    return
                if shared:
                    group.append(other)
                    home = group
                    break
            if home is None:
                self.groups.append([other])

    def behind(self, other: int) -> set[int]:
        """The destinations behind the port that leads to ``other``."""
        return set(next(group for group in self.groups if other in group))


def _network(hosts: int, seen: Collection[Ends]) -> Cables | None:
    """The links behind ``seen`` (a host and its neighbour), or None if they do not join all hosts, or are better explained by a switch.

    A star, whose rays share nothing, is what a switch with one fast NIC looks like; so are links between all pairs of many hosts,
    where one stream alone does not fill a NIC.
    """
    all_ = sorted({(min(pair), max(pair)) for pair in seen})
    edges = [(a, b) for a, b in all_ if (a, b) in seen and (b, a) in seen]
    if not joined(hosts, edges):
        edges = all_
        if not joined(hosts, edges):
            return None
    degrees = [sum(host in edge for edge in edges) for host in range(hosts)]
    star = hosts > 3 and max(degrees) == hosts - 1 == len(edges)
    if star or (hosts > MESH_HOSTS and min(degrees) == hosts - 1):
        return None
    return Cables(tuple(edges), tuple(edge for edge in all_ if edge not in edges))


def _neighbours(table: Table, ports: Sequence[Ports], host: int) -> Iterator[tuple[int, Question | None]]:
    """The neighbour behind each port of ``host``, with what has to be measured to be sure (the neighbour is a guess until then)."""
    for group in ports[host].groups:
        middle = {other: (set(group) & ports[other].behind(host)) - {host, other} for other in group}
        fewest = min(map(len, middle.values()))
        candidates = [other for other in group if len(middle[other]) == fewest]
        kept = candidates[0]
        question: Question | None = None
        for other in candidates[1:]:
            shared = share_a_link(table, (host, other), (kept, other))
            if isinstance(shared, tuple):
                question = shared
                break
            if not shared:
                kept = other  # the way to it does not pass the one kept so far
        yield kept, question


def joined(hosts: int, edges: Sequence[Ends]) -> bool:
    """Whether ``edges`` join all hosts."""
    reached, queue = {0}, [0]
    for host in queue:
        for edge in edges:
            if host in edge:
                other = edge[0] + edge[1] - host
                if other not in reached:
                    reached.add(other)
                    queue.append(other)
    return len(reached) == hosts
