"""Which measurement comes next: from nothing to a table that tells the structure. Pure but for the clock it is given.

1. Pairs of hosts in a tournament, one way and then the other: the rate of every pair, and of every NIC.
2. Every host to several at once: has it one port or several?
3. With several ports, there may be no switch: which destinations are behind one port, and whether the neighbours so found can all
   talk at full rate at the same time.
4. Otherwise several to every host; the tournament again, both ways; all ranks of a host at once: do they share a NIC? Then
   tournaments in another order, and rounds that cross between the racks found so far, until these stand.

All steps but the third take a number of measurements that grows as the number of hosts; the third, in networks of cables, as its square.
A measurement is repeated until two repetitions agree, at most three times; one that shows what was expected is not repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from topoccl.collectives.probe import rounds
from topoccl.collectives.probe.neighbours import Cables, find_cables
from topoccl.collectives.probe.nics import NicGroups, gains
from topoccl.collectives.probe.racks import partition
from topoccl.collectives.probe.table import SAME, Ends, Flow, Outcome, Table

Measure = Callable[[Sequence[Flow], float], Sequence[float]]
"""Runs flows at the same time for so many seconds; returns the rate of each in bytes/s."""

FAN = 8
"""So many flows at once show whether a host has several ports."""
LONGEST, SHORTEST = 0.4, 0.05
"""Seconds of one repetition."""
_REPETITIONS = 3
_AGREE = 0.06
_CHECKS = 3
_SLOW = 0.92
_SEED = 20


class OutOfTime(Exception):
    """The budget is used up."""


class Explorer:
    """Fills a table.

    Args:
        table: with the hosts; measurements are added to it.
        measure: see :data:`Measure`.
        left: returns the seconds of the budget that are left.
        progress: called with the name of a step, how many of its measurements are done, and how many it has.
    """

    def __init__(
        self, table: Table, measure: Measure, left: Callable[[], float], progress: Callable[[str, int, int], None] = lambda *_: None
    ) -> None:
        self.table = table
        self._run = measure
        self._left = left
        self._progress = progress
        self._seconds = LONGEST
        self._overhead = 0.0  # seconds that a repetition takes beyond these
        self._sent: dict[int, float] = {}
        self._received: dict[int, float] = {}

    def explore(self) -> Table:
        """Measures until the structure is known or the budget is used up (then ``table.complete`` is False)."""
        hosts = list(range(len(self.table.hosts)))
        if len(hosts) < 2:
            return self.table
        try:
            schedule = rounds.tournament(hosts)
            self._all("pairs", "one_way", [turn for pairs in schedule for turn in (pairs, _back(pairs))], share=0.35)
            fans = [[(host, other) for other in rounds.spread(host, FAN, hosts)] for host in hosts]
            if len(hosts) > 2:
                self._all("ports", "scatter", fans, share=0.2, repeat=True)
                if self._cables():
                    return self.table
                self._all("ports", "gather", [_back(fan) for fan in fans], share=0.2)
            self._all("both ways", "both_ways", [_both(pairs) for pairs in schedule], share=0.4)
            self._nics(hosts)
            if len(hosts) > 2:
                self._racks(hosts)
            self._confirm_nics()
        except OutOfTime:
            self.table.complete = False
        return self.table

    # Steps

    def _all(self, step: str, kind: str, plans: Sequence[Sequence[Ends]], share: float, repeat: bool = False) -> None:
        self._pace(len(plans) * 2, share)
        for number, ends in enumerate(plans):
            self._progress(step, number, len(plans))
            if ends:
                self._measure(kind, self._flows(ends), repeat=repeat)

    def _cables(self) -> bool:
        """Whether hosts are joined by cables and not by a switch; then their neighbours are found."""
        number, hosts = 0, len(self.table.hosts)
        while not isinstance(found := find_cables(self.table), Cables | None):
            self._progress("neighbours", number, max(number, hosts * hosts))
            self._pace(max((4 if self.table.busy else 2) * hosts * hosts - number, hosts), 0.8)
            self._compare(found)
            number += 1
        if found is None:
            return False
        self._all("cables", "both_ways", [_both(pairs) for pairs in rounds.disjoint(found.edges)], share=0.6, repeat=True)
        self._confirm([pair for edge in found.edges for pair in (edge, edge[::-1])])
        return True

    def _compare(self, ends: Sequence[Ends]) -> None:
        """Flows together, or a single one alone."""
        flows = self._flows(ends)
        self._measure("alone" if len(ends) == 1 else "together", flows, once=True)

    def _nics(self, hosts: Sequence[int]) -> None:
        """Whether the ranks of a host share a NIC: all at once first; where that is more than one gets, each with each."""
        many = [host for host in hosts if len(self.table.hosts[host]) > 1]
        partner = rounds.partners(many, hosts)
        turns = rounds.disjoint(sorted({(min(pair), max(pair)) for pair in partner.items()}))
        for number, pairs in enumerate(turns):
            self._progress("shared NICs", number, len(turns))
            for turn in (pairs, _back(pairs)):
                self._measure("streams", [flow for a, b in turn for flow in self.table.parallel(a, b)], repeat=True)
        for host in gains(self.table):
            while (found := NicGroups(self.table, host, partner[host])).open is not None:
                self._progress("shared NICs", len(found.groups), len(self.table.hosts[host]))
                self._measure("ranks", found.open)

    def _racks(self, hosts: list[int]) -> None:
        for turn in range(2 if len(hosts) > 4 else 1):  # of four there are no other pairings
            pairings = rounds.shuffled_tournament(hosts, _SEED + turn)
            self._all("racks", "cross", [_both(pairs) for pairs in pairings], share=0.5)
            if len(partition(self.table)) == 1:
                break
        before: tuple[tuple[int, ...], ...] | None = None
        for _ in range(_CHECKS):
            groups = partition(self.table)
            if groups == before or len(groups) == 1:
                break
            before = groups
            checks = [rounds.crossing(groups), *rounds.chains(groups)]
            self._all("racks, checked", "cross", [_both(pairs) for pairs in checks], share=0.8)

    def _confirm_nics(self) -> None:
        """Each host with the fastest one of its rack."""
        sent, received = self.table.peaks()
        pairs = []
        for group in partition(self.table):
            for host in group:
                if others := [other for other in group if other != host]:
                    pairs += [(host, max(others, key=received.__getitem__)), (max(others, key=sent.__getitem__), host)]
        self._confirm(pairs)

    def _confirm(self, pairs: Sequence[Ends]) -> None:
        """Measures pairs that got less than others again, alone: slow links stay slow, disturbances do not."""
        most = max((self.table.single(*pair) for pair in pairs), default=0.0)
        slow = [pair for pair in dict.fromkeys(pairs) if self.table.single(*pair) < _SLOW * most]
        self._pace(len(slow) * 3, 0.8)
        for number, pair in enumerate(slow):
            self._progress("slow links", number, len(slow))
            self._measure("alone", self._flows([pair]), repeat=True)

    # Measuring

    def _flows(self, ends: Sequence[Ends]) -> list[Flow]:
        return [self.table.flow(a, b) for a, b in ends]

    def _pace(self, repetitions: int, share: float) -> None:
        """Makes repetitions so short that so many take at most ``share`` of what is left, but not much shorter than what each costs
        beyond its duration: on a busy machine short ones tell little."""
        each = self._left() * share / max(repetitions, 1) - self._overhead
        self._seconds = min(LONGEST, max(SHORTEST, self._overhead / 2, each))

    def _measure(self, kind: str, flows: Sequence[Flow], repeat: bool = False, once: bool = False) -> Outcome:
        """Measures flows together until two repetitions agree. One is enough where it is as expected and ``repeat`` is not set, or
        with ``once``."""
        runs: list[tuple[float, ...]] = []
        while len(runs) < _REPETITIONS:
            before = self._left()
            if before <= 0:
                if not runs:
                    raise OutOfTime
                break
            runs.append(tuple(self._run(flows, self._seconds)))
            self._overhead += 0.2 * (before - self._left() - self._seconds - self._overhead)
            if once or (len(runs) == 1 and not repeat and self._expected(flows, runs[0])):
                break
            totals = [sum(run) for run in runs]
            if any(abs(total - totals[-1]) <= _AGREE * totals[-1] for total in totals[:-1]):
                break
        outcome = Outcome(kind, tuple(flows), tuple(runs))
        self.table.add(outcome)
        self.table.busy = self.table.busy or self.table.restless()
        for flow, rate in zip(outcome.flows, outcome.rates, strict=True):
            self._sent[flow.src] = max(self._sent.get(flow.src, 0.0), rate)
            self._received[flow.dst] = max(self._received.get(flow.dst, 0.0), rate)
        return outcome

    def _expected(self, flows: Sequence[Flow], rates: Sequence[float]) -> bool:
        """Whether every rank sent and received what it was seen to be able to, and not more: a record needs a second witness."""
        out: dict[int, list[int]] = {}
        into: dict[int, list[int]] = {}
        for number, flow in enumerate(flows):
            out.setdefault(flow.src, []).append(number)
            into.setdefault(flow.dst, []).append(number)
        for groups, mine, others, end in ((out, self._sent, self._received, 1), (into, self._received, self._sent, 0)):
            if len(groups) > min(len(out), len(into)):
                continue  # the many that one rank sends to, or receives from, get what it leaves them
            for rank, numbers in groups.items():
                total, most = sum(rates[number] for number in numbers), mine.get(rank, 0.0)
                able = min(most, sum(others.get(flows[number][end], 0.0) for number in numbers))
                if not SAME * able <= total <= most / SAME:
                    return False
        return True


def _back(ends: Sequence[Ends]) -> list[Ends]:
    return [(b, a) for a, b in ends]


def _both(ends: Sequence[Ends]) -> list[Ends]:
    return [flow for a, b in ends for flow in ((a, b), (b, a))]
