"""Hosts without a switch: which of them are linked directly, read from what flows share. Pure.

A host with several cables sends more to several hosts at once than to any single one. Two destinations are behind the same *port*
of a host if flows to both share what one flow gets. Host ``z`` lies between ``a`` and ``b`` if it is behind the port of ``a`` that
leads to ``b`` and behind the port of ``b`` that leads to ``a``: on shortest ways towards destinations there is such a ``z`` for every
pair that is not linked directly, and none for a pair that is, save where the ways there and back differ. There, of several
candidates behind one port, ``a -> b`` shares with ``z -> b`` exactly if it passes ``z``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from topoccl.collectives.probe.table import SAME, Table

Ends = tuple[int, int]
Question = tuple[Ends, ...]

MANY = 1.5
"""A host that sends this much more to several hosts at once than to one has several ports."""
_WHOLE = 0.2
_APART = 1.25  # two flows that together get so much more than any one of the host's do not share
MESH_HOSTS = 9
"""Among more hosts, cables between all pairs are less likely than streams that do not fill a NIC alone."""


@dataclass(frozen=True)
class Cables:
    """Direct links between hosts.

    Attributes:
        edges: pairs of hosts, the lower number first.
        agreed: for each edge, whether it was seen from both its ends.
    """

    edges: tuple[tuple[int, int], ...]
    agreed: tuple[bool, ...]


def several_ports(table: Table) -> dict[int, int | None]:
    """The hosts that sent clearly more to several hosts at once than to any single one, with the number of their ports.

    The number is None where it is not clear: more than that many times as much, or not to all hosts at once.
    """
    sent, _ = table.peaks(table.of_kind("one_way"))
    outcomes = list(table.of_kind("scatter"))
    wide, _ = table.peaks(outcomes)
    everyone = all(len(outcome.flows) == len(table.hosts) - 1 for outcome in outcomes)
    found: dict[int, int | None] = {}
    for host in range(len(table.hosts)):
        times = wide[host] / sent[host] if sent[host] else 0.0
        if times > MANY:
            found[host] = round(times) if everyone and abs(times - round(times)) < _WHOLE else None
    return found


def clear(alone: Sequence[float], together: float) -> bool:
    """Whether one measurement of flows together is enough to say if they share a link: it is near all that they got alone (or
    more), or near what one of them got."""
    lost = (sum(alone) - together) / min(alone) if min(alone) else 0.5
    return lost < 0.25 or lost > 0.75


def share_a_link(table: Table, kind: str, first: Ends, second: Ends) -> Question | bool:
    """Whether two flows between hosts, measured alone and together, share a link; or the flows that have to be measured to know.

    What a flow got among others is a lower limit of what it gets alone, and enough to prove that two share.
    """
    together = table.find(kind, [table.flow(*first), table.flow(*second)])
    if together is None:
        return first, second
    alone = [table.single(*first), table.single(*second)]
    if sum(alone) - together.total > min(alone) / 2:
        return True
    side = 0 if first[0] == second[0] else 1  # they come from one host, or go to one
    most = table.peaks(table.of_kind("one_way", "alone"))[side][first[side]]
    if together.total > _APART * most:
        return False
    for ends, rate in zip((first, second), alone, strict=True):
        if rate < SAME * most and table.find("alone", [table.flow(*ends)]) is None:
            return (ends,)
    return False


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
                    shared = share_a_link(table, "ports", (host, group[0]), (host, other))
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


def open_question(table: Table, ports: Sequence[Ports]) -> Question | None:
    """Flows that have to be measured (kind ``through``) before the neighbours are known; None if there are none."""
    for host in range(len(ports)):
        for _, question in _neighbours(table, ports, host):
            if question is not None:
                return question
    return None


def cables(table: Table, ports: Sequence[Ports]) -> Cables | None:
    """The direct links, or None if they do not join all hosts, or are better explained by a switch.

    A star, whose rays share nothing, is what a switch with one fast NIC looks like; so are links between all pairs of many hosts,
    where one stream alone does not fill a NIC.
    """
    hosts = len(ports)
    seen = {(host, neighbour) for host in range(hosts) for neighbour, _ in _neighbours(table, ports, host)}
    edges = sorted({(min(pair), max(pair)) for pair in seen})
    mutual = [(a, b) for a, b in edges if (a, b) in seen and (b, a) in seen]
    if _joined(hosts, mutual):
        edges = mutual
    elif not _joined(hosts, edges):
        return None
    degrees = [sum(host in edge for edge in edges) for host in range(hosts)]
    star = hosts > 3 and max(degrees) == hosts - 1 == len(edges)
    if star or (hosts > MESH_HOSTS and min(degrees) == hosts - 1):
        return None
    return Cables(tuple(edges), tuple((a, b) in seen and (b, a) in seen for a, b in edges))


def _neighbours(table: Table, ports: Sequence[Ports], host: int) -> Iterator[tuple[int, Question | None]]:
    """The neighbour behind each port of ``host``, with what has to be measured to be sure (the neighbour is a guess until then)."""
    for group in ports[host].groups:
        middle = {other: (set(group) & ports[other].behind(host)) - {host, other} for other in group}
        fewest = min(map(len, middle.values()))
        candidates = [other for other in group if len(middle[other]) == fewest]
        kept = candidates[0]
        question: Question | None = None
        for other in candidates[1:]:
            shared = share_a_link(table, "through", (host, other), (kept, other))
            if isinstance(shared, tuple):
                question = shared
                break
            if not shared:
                kept = other  # the way to it does not pass the one kept so far
        yield kept, question


def _joined(hosts: int, edges: Sequence[tuple[int, int]]) -> bool:
    reached, queue = {0}, [0]
    for host in queue:
        for edge in edges:
            if host in edge:
                other = edge[0] + edge[1] - host
                if other not in reached:
                    reached.add(other)
                    queue.append(other)
    return len(reached) == hosts
