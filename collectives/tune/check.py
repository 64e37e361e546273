"""Is the right algorithm chosen? Candidates are measured, and what would be chosen is compared with the fastest. It knows no ranks.

Two runs, each of all calls. In the first the candidates race as they do for a tuner. In the second the fastest of the first and what is
chosen run again, in turns, many rounds: the least of many noisy times is too low by chance, but only in the run that it was picked by. In
each round both run a batch, the one first and in the next round the other, and the median over rounds of the ratio of their times counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from topoccl.algorithms.choice import Choice
from topoccl.algorithms.select import Selector
from topoccl.algorithms.spec import ROOTED, CollectiveSpec
from topoccl.algorithms.tuning.fit import Sample, predicted_seconds
from topoccl.collectives.tune.candidates import Candidate, candidates
from topoccl.collectives.tune.race import EARLY, in_turns, race
from topoccl.collectives.tune.session import Bench, Report
from topoccl.collectives.tune.work import ITEM, Cell, cell_of
from topoccl.topology.graph import Topology

SPREAD = 1.7
"""What is predicted to take more than so many times as long as the best is not measured, unless it is chosen,"""
LONG, SPREAD_LONG = 0.02, 1.3
"""of calls of more than so many seconds, of which more is known, so many times;"""
MOST_CANDIDATES = 10
"""and so many at most are."""
VARIED = 1
"""Of so many of them half and double the number of segments are measured too."""
ROUNDS = 11
"""In so many rounds finalists are compared."""
AGREE = 9
"""Where fewer of these say alike who is faster, nothing is decided: by chance as many agree in one of 15 comparisons of equals."""


@dataclass
class Run:
    """A candidate's times in seconds of a call, of the first and of the second run (None without one), and what each way predicts."""

    candidate: Candidate
    first: float
    second: float | None = None
    predicted: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, bool]:
        return self.candidate.key

    @property
    def seconds(self) -> float:
        """The mean of both."""
        return self.first if self.second is None else (self.first + self.second) / 2


@dataclass
class Checked:
    """One call: its candidates' times, what each way to choose would run (keys of ``runs``), and the times of the finalists, by round."""

    cell: Cell
    nbytes: int
    chosen: dict[str, tuple[str, int, bool]]
    runs: list[Run] = field(default_factory=list)
    rounds: dict[tuple[str, int, bool], list[float]] = field(default_factory=dict)

    @property
    def best(self) -> Run | None:
        """The fastest of the first run; None where no candidate could run."""
        return min(self.runs, key=lambda run: (run.first, run.key), default=None)

    def of(self, way: str) -> Run | None:
        return next((run for run in self.runs if run.key == self.chosen[way]), None)

    def ratio(self, way: str) -> float | None:
        """What is chosen over the fastest of the first run: the median over rounds; None where either could not run."""
        ratios = self._ratios(way)
        return median(ratios) if ratios else None

    def decided(self, way: str) -> bool:
        """Whether nearly all rounds say alike which of the two is faster, or they are one."""
        ratios = self._ratios(way)
        slower = sum(ratio > 1 for ratio in ratios)
        return max(slower, len(ratios) - slower) * ROUNDS >= AGREE * len(ratios)

    def _ratios(self, way: str) -> list[float]:
        if self.best is None:
            return []
        mine, best = self.rounds.get(self.chosen[way], []), self.rounds.get(self.best.key, [])
        return [a / b for a, b in zip(mine, best, strict=False)]  # one of them may be unable to run

    def errors(self, way: str) -> list[float]:
        """Predicted over measured, minus 1, of all candidates."""
        return [run.predicted[way] / run.seconds - 1 for run in self.runs if way in run.predicted]


class Check:
    """One check.

    Args:
        bench: measures.
        topology: of the group.
        ways: by name, what chooses.
        collectives, sizes: as for a session.
        budget: seconds for measuring; long calls run at least three batches whatever it says.
    """

    def __init__(
        self, bench: Bench, topology: Topology, ways: Mapping[str, Selector], collectives: Sequence[str], sizes: Sequence[int],
        budget: float, report: Report = lambda *_: None,
    ) -> None:  # fmt: skip
        self._bench, self._topology, self._ways, self._report = bench, topology, ways, report
        roots = {collective: 0 if collective in ROOTED else None for collective in collectives}
        cells = [cell_of(collective, size, topology.num_ranks, roots[collective]) for collective in collectives for size in sizes]
        self._cells = list(dict.fromkeys(cells))
        self._limit = budget / (2 * len(self._cells))

    def run(self) -> list[Checked]:
        found: list[Checked] = []
        for done, cell in enumerate(self._cells):
            self._report("first run", done, len(self._cells))
            found.append(self._first(cell))
        for done, checked in enumerate(found):
            self._report("second run", done, len(found))
            self._second(checked)
            self._predict(checked)
        self._report("second run", len(found), len(found))
        return found

    def _first(self, cell: Cell) -> Checked:
        spec = CollectiveSpec(cell.collective, self._topology.num_ranks, cell.root)
        nbytes = cell.nbytes(spec.ranks)
        choices = {way: _as_candidate(selector.choose(spec, nbytes, ITEM)) for way, selector in self._ways.items()}
        profile = list(self._ways.values())[-1].profile
        found = {c.key: c for c in choices.values()}
        labels = list(dict.fromkeys(c.label for c in found.values()))
        long = min(c.predicted for c in found.values()) > LONG
        for c in candidates(spec, self._topology, nbytes, profile, (), SPREAD_LONG if long else SPREAD):
            new = c.label not in labels  # of each with the segments that suit it best, of the best ones also with half and double
            if (new and len(found) < MOST_CANDIDATES) or c.label in labels[:VARIED]:
                found.setdefault(c.key, c)
                labels += [c.label] * new
        entered, ran = self._enter(cell, nbytes, list(found.values()))
        runs = {c.key: Run(c, median(times)) for c, times in zip(entered, ran, strict=True)}
        return Checked(cell, nbytes, {way: c.key for way, c in choices.items()}, list(runs.values()))

    def _second(self, checked: Checked) -> None:
        if checked.best is None:
            return
        finalists = [run for run in checked.runs if run.key in (checked.best.key, *checked.chosen.values())]
        entered, ran = self._enter(checked.cell, checked.nbytes, [run.candidate for run in finalists], final=True)
        checked.rounds = dict(zip((c.key for c in entered), ran, strict=True))
        for run in finalists:
            if run.key in checked.rounds:
                run.second = median(checked.rounds[run.key])

    def _enter(
        self, cell: Cell, nbytes: int, found: Sequence[Candidate], *, final: bool = False
    ) -> tuple[list[Candidate], list[list[float]]]:  # fmt: skip
        """Those that can run, and the times of their batches."""
        clock = self._bench.clock
        begun = clock()
        self._bench.begin(cell)
        entered, first = [], []
        for candidate in found:
            admitted = self._bench.admit(candidate.choice(nbytes, self._topology))
            if admitted is not None:
                entered.append(candidate)
                first.append(admitted[0])
        if not entered:
            return [], []

        def over(turn: int) -> bool:
            return turn >= EARLY and clock() - begun > self._limit

        if final:
            return entered, in_turns(first, self._bench.run, over, ROUNDS if len(first) > 1 else EARLY)
        return entered, [entrant.times for entrant in race(first, self._bench.run, over)]

    def _predict(self, checked: Checked) -> None:
        for run in checked.runs:
            c = run.candidate
            sample = Sample(c.schedule, self._topology, checked.nbytes, c.segments, 1.0, c.pulls)
            for way, selector in self._ways.items():
                off = 1.0
                if selector.tuning is not None:
                    off = selector.tuning.factor(checked.cell.collective, self._topology.num_ranks, c.label, checked.nbytes)
                run.predicted[way] = off * predicted_seconds(sample, selector.profile)


def _as_candidate(choice: Choice) -> Candidate:
    return Candidate(choice.algorithm, choice.schedule, choice.segments, choice.pulls, choice.seconds)


def as_rows(found: Sequence[Checked]) -> list[dict[str, Any]]:
    """For JSON: one object for each call; times in seconds, sizes in bytes."""
    return [
        {
            "collective": checked.cell.collective,
            "bytes": checked.nbytes,
            "root": checked.cell.root,
            "best": None if checked.best is None else checked.best.candidate.label,
            "chosen": {way: key[0] for way, key in checked.chosen.items()},
            "ratio": {way: checked.ratio(way) for way in checked.chosen},
            "decided": {way: checked.decided(way) for way in checked.chosen},
            "candidates": [
                {
                    "algorithm": run.candidate.label,
                    "segments": run.candidate.segments,
                    "pulls": run.candidate.pulls,
                    "first_seconds": run.first,
                    "second_seconds": run.second,
                    "predicted": run.predicted,
                }
                for run in checked.runs
            ],
        }
        for checked in found
    ]
