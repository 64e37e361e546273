"""What was measured, and the figures that are read from it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

SAME = 0.85
"""Rates above this share of another count as the same level: noise is smaller, and sharing costs more."""

_NEAR = 0.8
STREAMS = 8
"""So many ranks of a host are compared to see whether they share a NIC."""


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
    """The highest level that ``values`` reach: the median of those near it; 0 for none.

    Few values above all others (a lone one, less than a tenth) are outliers, unless all values are alone.
    """
    ordered = sorted(values, reverse=True)
    for number, top in enumerate(ordered):
        near = [value for value in ordered[number:] if value >= _NEAR * top]
        if len(near) >= max(2, len(ordered) / 10):
            return statistics.median(near)
    return ordered[0] if ordered else 0.0


@dataclass
class Table:
    """All measurements of one job.

    Attributes:
        hosts: the ranks of each host; hosts are numbered by this order. The first rank of a host speaks for it.
        outcomes: in the order in which they were measured.
        latencies: of pairs of hosts (lower number first): seconds one way, the least seen.
        complete: no measurement was left out for want of time.
    """

    hosts: tuple[tuple[int, ...], ...]
    outcomes: list[Outcome] = field(default_factory=list)
    latencies: dict[tuple[int, int], float] = field(default_factory=dict)
    complete: bool = True

    @cached_property
    def host_of(self) -> dict[int, int]:
        """The host of each rank."""
        return {rank: host for host, ranks in enumerate(self.hosts) for rank in ranks}

    def flow(self, src: int, dst: int) -> Flow:
        """The flow between the first ranks of two hosts."""
        return Flow(self.hosts[src][0], self.hosts[dst][0])

    def parallel(self, src: int, dst: int) -> list[Flow]:
        """A flow from each of the first ranks of host ``src``, each to another rank of ``dst`` as far as there are enough."""
        peers = self.hosts[dst]
        return [Flow(rank, peers[number % len(peers)]) for number, rank in enumerate(self.hosts[src][:STREAMS])]

    def ends(self, outcome: Outcome) -> list[tuple[int, int]]:
        """Source and destination host of each flow."""
        return [(self.host_of[flow.src], self.host_of[flow.dst]) for flow in outcome.flows]

    def of_kind(self, *kinds: str) -> Iterator[Outcome]:
        return (outcome for outcome in self.outcomes if outcome.kind in kinds)

    def peaks(self, outcomes: Iterable[Outcome] | None = None) -> tuple[list[float], list[float]]:
        """The most that each host was seen to send, and to receive, all its flows together; 0 for one that never did."""
        sums: tuple[list[dict[str, list[float]]], ...] = tuple([{} for _ in self.hosts] for _ in range(2))
        for outcome in self.outcomes if outcomes is None else outcomes:
            ends = self.ends(outcome)
            for run in outcome.runs:
                for side in range(2):
                    totals: dict[int, float] = {}
                    for end, rate in zip(ends, run, strict=True):
                        totals[end[side]] = totals.get(end[side], 0.0) + rate
                    for host, total in totals.items():
                        sums[side][host].setdefault(outcome.kind, []).append(total)
        sent, received = ([max(map(level, kinds.values()), default=0.0) for kinds in side] for side in sums)
        return sent, received

    def single(self, src: int, dst: int) -> float:
        """The most that one flow between the first ranks of two hosts was seen to get while neither host sent or received more."""
        flow = self.flow(src, dst)
        values: list[float] = []
        for outcome in self.outcomes:
            if flow not in outcome.flows:
                continue
            ends = self.ends(outcome)
            if sum(a == src for a, _ in ends) == 1 == sum(b == dst for _, b in ends):
                number = outcome.flows.index(flow)
                values += [run[number] for run in outcome.runs]
        return level(values)

    def find(self, kind: str, flows: Sequence[Flow]) -> Outcome | None:
        """The measurement of exactly these flows, in any order."""
        wanted = set(flows)
        return next((o for o in self.of_kind(kind) if set(o.flows) == wanted), None)
