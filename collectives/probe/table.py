"""What was measured, and the figures that are read from it. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

SAME = 0.85
"""Rates above this share of another count as the same level: noise is smaller, and sharing costs more."""

_CALM = 0.9
STREAMS = 8
"""So many ranks of a host are compared to see whether they share a NIC."""


Ends = tuple[int, int]
"""Source and destination host of a flow."""


class Flow(NamedTuple):
    """A stream of bytes from one rank to another."""

    src: int
    dst: int


@dataclass(frozen=True)
class Outcome:
    """Flows that ran at the same time, and what each got.

    Attributes:
        kind: why it was measured: ``one_way``, ``both_ways``, ``scatter``, ``gather``, ``streams``, ``ranks``,
            ``alone``, ``together``, ``cross``.
        flows: at the same time.
        runs: for each repetition the rate of each flow, bytes/s.
    """

    kind: str
    flows: tuple[Flow, ...]
    runs: tuple[tuple[float, ...], ...]

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """Each flow's rate in the repetition that carried most: what disturbs a measurement takes away and does not add."""
        return max(self.runs, key=sum)

    @property
    def total(self) -> float:
        """All flows' rates together."""
        return sum(self.rates)


def level(values: Iterable[float]) -> float:
    """The highest level that ``values`` reach: the median of those near the highest; 0 for none.

    Measurements of a link are at most a few percent too high, but a busy machine makes them as low as it likes.
    """
    known = list(values)
    return statistics.median(value for value in known if value >= SAME * max(known)) if known else 0.0


class Table:
    """All measurements of one job.

    Attributes:
        hosts: the ranks of each host; hosts are numbered by this order. The first rank of a host speaks for it.
        host_of: the host of each rank.
        outcomes: in the order in which they were measured; :meth:`add` adds one.
        latencies: of pairs of hosts (lower number first): seconds one way, the least seen.
        complete: no measurement was left out for want of time.
        busy: something else keeps the machines or the network busy, and what is doubtful is measured more often; set by the explorer.
    """

    def __init__(self, hosts: Sequence[Sequence[int]]) -> None:
        self.hosts = tuple(map(tuple, hosts))
        self.host_of = {rank: host for host, ranks in enumerate(self.hosts) for rank in ranks}
        self.outcomes: list[Outcome] = []
        self.latencies: dict[Ends, float] = {}
        self.complete = True
        self.busy = False
        self._found: dict[tuple[str, frozenset[Flow]], Outcome] = {}
        self._alone: dict[Flow, list[float]] = {}  # rates of flows that were alone at both their ends
        self._singles: dict[Flow, float] = {}
        self._peaks: dict[tuple[str, ...], tuple[list[float], list[float]]] = {}

    def add(self, outcome: Outcome) -> None:
        """Adds a measurement; one of the same kind and flows as another adds its repetitions to that."""
        known, new = self.find(outcome.kind, outcome.flows), outcome.runs
        if known is None:
            self.outcomes.append(outcome)
        else:
            order = [outcome.flows.index(flow) for flow in known.flows]
            new = tuple(tuple(run[number] for number in order) for run in new)
            self.outcomes[self.outcomes.index(known)] = outcome = Outcome(known.kind, known.flows, known.runs + new)
        self._found[outcome.kind, frozenset(outcome.flows)] = outcome
        self._peaks.clear()
        ends = self.ends(outcome)
        out, into = (Counter(end[side] for end in ends) for side in range(2))
        for number, (flow, (src, dst)) in enumerate(zip(outcome.flows, ends, strict=True)):
            if out[src] == into[dst] == 1:
                self._alone.setdefault(flow, []).extend(run[number] for run in new)
                self._singles.pop(flow, None)

    def flow(self, src: int, dst: int) -> Flow:
        """The flow between the first ranks of two hosts."""
        return Flow(self.hosts[src][0], self.hosts[dst][0])

    def parallel(self, src: int, dst: int) -> list[Flow]:
        """A flow from each of the first ranks of host ``src``, each to another rank of ``dst`` as far as there are enough."""
        peers = self.hosts[dst]
        return [Flow(rank, peers[number % len(peers)]) for number, rank in enumerate(self.hosts[src][:STREAMS])]

    def ends(self, outcome: Outcome) -> list[Ends]:
        """Source and destination host of each flow."""
        return [(self.host_of[flow.src], self.host_of[flow.dst]) for flow in outcome.flows]

    def of_kind(self, *kinds: str) -> Iterator[Outcome]:
        return (outcome for outcome in self.outcomes if outcome.kind in kinds)

    def find(self, kind: str, flows: Sequence[Flow]) -> Outcome | None:
        """The measurement of exactly these flows, in any order."""
        return self._found.get((kind, frozenset(flows)))

    def most_in_all(self, *kinds: str) -> float:
        """The most that all flows of any one measurement got together."""
        return max((outcome.total for outcome in (self.of_kind(*kinds) if kinds else self.outcomes)), default=0.0)

    def fastest(self) -> float:
        """The most that any single flow got: as :meth:`single`, of all pairs of hosts that were measured alone or one way."""
        sent, _ = self.peaks("one_way", "alone")
        return max(sent)

    def restless(self) -> bool:
        """Whether repetitions of measurements often differ: something else keeps this machine or network busy."""
        repeated = [outcome for outcome in self.outcomes if len(outcome.runs) > 1]
        differ = sum(min(map(sum, outcome.runs)) < _CALM * outcome.total for outcome in repeated)
        return differ > len(repeated) / 5

    def peaks(self, *kinds: str) -> tuple[list[float], list[float]]:
        """The most that each host was seen to send, and to receive, all its flows together; 0 for one that never did.

        ``kinds`` are those of the measurements that count; all by default.
        """
        if kinds not in self._peaks:
            sums: tuple[list[list[float]], ...] = tuple([[] for _ in self.hosts] for _ in range(2))
            for outcome in self.of_kind(*kinds) if kinds else self.outcomes:
                ends = self.ends(outcome)
                for run, side in product(outcome.runs, range(2)):
                    totals: dict[int, float] = {}
                    for end, rate in zip(ends, run, strict=True):
                        totals[end[side]] = totals.get(end[side], 0.0) + rate
                    for host, total in totals.items():
                        sums[side][host].append(total)
            self._peaks[kinds] = list(map(level, sums[0])), list(map(level, sums[1]))
        return self._peaks[kinds]

    def single(self, src: int, dst: int) -> float:
        """The most that one flow between the first ranks of two hosts was seen to get while neither of these sent or received more."""
        flow = self.flow(src, dst)
        if flow not in self._singles:
            self._singles[flow] = level(self._alone.get(flow, ()))
        return self._singles[flow]
