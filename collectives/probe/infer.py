"""From a table of measurements to a topology. Pure: the same table gives the same topology.

The structure is one of two: hosts with NICs on a switch, or on one switch per rack with uplinks; or hosts with a cable to each of
their neighbours. Each is read from the table by a procedure of its own, then changed in small ways (racks joined, cables added or
removed) as long as it so explains more of the measurements. Of several structures the one that explains most is taken, a simpler one
where the difference is within the noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from topoccl.collectives.probe.build import Builder, Setting, Structure
from topoccl.collectives.probe.fit import Fit
from topoccl.collectives.probe.neighbours import Cables, find_cables, joined
from topoccl.collectives.probe.racks import Racks, partition
from topoccl.collectives.probe.table import Table
from topoccl.topology.graph import Topology

Members = tuple[tuple[int, ...], ...]

_MARGIN, _FEW = 0.03, 1.5
"""A less simple structure has to explain more of the measurements: by so large a share of them, and by more than so many."""
_CABLES = 0.1  # cables that were found may explain so much less: comparing flow with flow tells more than totals
_DOUBTED = 0.4  # confidence below which a network is tried without a cable
_ANY = 1e-6
_CHANGES = 6
_ALL_PARTITIONS, _MOVES = 5, 8  # up to so many hosts all partitions, and all moves of a host, are tried
_MOST_HOSTS = 16  # above, structures are not changed: trying all changes takes too long


def infer(table: Table, setting: Setting) -> Topology:
    """The topology that explains ``table`` best. Slot ``r`` is where rank ``r`` ran; links carry ``source`` and ``confidence``."""
    search = _Search(table, setting)
    margin = search.margin
    hosts = len(table.hosts)
    flat = Racks.of(table, (tuple(range(hosts)),))
    best: Structure = search.racks() if hosts > 2 else flat
    if search.misfit(flat) <= search.misfit(best) + margin:
        best = flat
    found = find_cables(table)
    if isinstance(found, Cables):
        cables = search.improve(found)
        if search.misfit(cables) <= search.misfit(best) + _CABLES:
            best = cables
    return search.finished(best)


class _Search:
    def __init__(self, table: Table, setting: Setting) -> None:
        self.table = table
        self.builder = Builder(table, setting)
        self.margin = max(_MARGIN, _FEW / max(len(table.outcomes), 1))
        self._misfits: dict[Structure, float] = {}

    def misfit(self, structure: Structure) -> float:
        if structure not in self._misfits:
            self._misfits[structure] = Fit(self.table, self.builder.build(structure), self.builder.setting.efficiency).misfit
        return self._misfits[structure]

    def finished(self, structure: Structure) -> Topology:
        return self.builder.build(structure, self._attrs(structure))

    def racks(self) -> Structure:
        """The best racks: of all, where hosts are few, else after changes to those that the evidence suggests."""
        hosts = len(self.table.hosts)
        if hosts <= _ALL_PARTITIONS:
            every = (Racks.of(self.table, tuple(sorted(members))) for members in _partitions(hosts))
            return min(every, key=lambda racks: (self.misfit(racks), len(racks.members)))
        return self.improve(Racks.of(self.table, partition(self.table)))

    def improve(self, structure: Structure) -> Structure:
        """``structure`` after the changes that explain most."""
        if len(self.table.hosts) > _MOST_HOSTS:
            return structure
        for _ in range(_CHANGES):
            # (what is gained beyond what the change must gain, at least 0)
            scored = [(self.misfit(structure) - self.misfit(changed) - needed, changed) for changed, needed in self._changes(structure)]
            gain, changed = max(scored, key=lambda pair: pair[0], default=(-1.0, structure))
            if gain < 0:
                break
            structure = changed
        return structure

    def _changes(self, structure: Structure) -> Iterator[tuple[Structure, float]]:
        """Structures that differ a little, each with how much more it has to explain (less than nothing for simpler ones)."""
        hosts = len(self.table.hosts)
        if isinstance(structure, Racks):
            for a, b in combinations(structure.members, 2):
                rest = [rack for rack in structure.members if rack not in (a, b)]
                yield Racks.of(self.table, tuple(sorted([tuple(sorted(a + b)), *rest]))), -self.margin / 2
            if hosts <= _MOVES:
                yield from ((Racks.of(self.table, members), _ANY) for members in _moves(structure.members))
            return
        for edge, attrs in zip(structure.edges, self._attrs(structure).values(), strict=True):
            fewer = tuple(other for other in structure.edges if other != edge)
            if attrs["confidence"] < _DOUBTED and joined(hosts, fewer):
                yield Cables(fewer, structure.doubtful), -self.margin / 2
        for edge in structure.doubtful:
            doubtful = tuple(other for other in structure.doubtful if other != edge)
            yield Cables(tuple(sorted([*structure.edges, edge])), doubtful), self.margin

    def _attrs(self, structure: Structure) -> dict[tuple[str, str], dict[str, Any]]:
        return Fit(self.table, self.builder.build(structure), self.builder.setting.efficiency).attrs()


def _partitions(hosts: int) -> Iterator[Members]:
    """All ways to put hosts into racks."""
    if hosts == 0:
        yield ()
        return
    last = hosts - 1
    for members in _partitions(last):
        yield (*members, (last,))
        for number, rack in enumerate(members):
            yield (*members[:number], (*rack, last), *members[number + 1 :])


def _moves(members: Members) -> Iterator[Members]:
    """All ways to move one host to another rack, or to one of its own."""
    for host, home in ((host, rack) for rack in members for host in rack):
        left = tuple(other for other in home if other != host)
        rest = [rack for rack in members if rack != home]
        for target in [*rest, ()] if left else rest:
            racks = [rack for rack in (left, *rest) if rack and rack != target]
            yield tuple(sorted([*racks, tuple(sorted((*target, host)))]))
