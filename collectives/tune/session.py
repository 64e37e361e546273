"""How the budget of a tuner is spent, and what becomes of what was measured. It knows no ranks: a :class:`Bench` measures.

1. Of each collective the smallest, the middle and the largest size are measured, with the candidates that the cost model thinks best.
2. The constants of the cost model are fitted to that; its errors at the sizes that follow, which it has not seen, are the report's.
3. The other sizes are measured, with the candidates that the fitted model thinks best.
4. Sizes at which the fitted model, now fitted to everything, thinks better of a candidate that was not measured get that one too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median
from typing import Protocol

from topoccl.algorithms.calibration import Profile
from topoccl.algorithms.choice import Choice
from topoccl.algorithms.spec import ROOTED, CollectiveSpec
from topoccl.algorithms.tuning import GAP, Measurement, Range, Tuning, fabric_digest
from topoccl.algorithms.tuning.fit import Fit, Sample, fit, pick, predicted_seconds, relative_errors
from topoccl.collectives.tune.candidates import Candidate, candidates
from topoccl.collectives.tune.race import EARLY, race
from topoccl.collectives.tune.work import Cell, cell_of
from topoccl.topology.graph import Topology
from topoccl.topology.units import format_time, parse_time

Report = Callable[[str, int, int], None]
"""Called with the name of a step, how many of its parts are done, and how many it has."""

FIT_SHARE = 0.1
"""Of the budget, for each of the two fits at most."""
LATE = 1.1
"""Of the budget: nothing is predicted for the file after that."""
FITTED_TO, FEWEST = 40, 12
"""Measurements that a fit looks at, and as few as it makes do with where time is short."""
LOOKS = 40
"""How often a fit looks at each, about."""
ENOUGH = 1.1
"""A size is covered if every candidate was measured that is predicted to take no longer than so many times the best."""
FIRST_OVERHEAD = 0.1  # seconds that rank 0 and the others need for one more candidate, until it is known
CALLS = 3  # of a candidate before its batches
MOST_CANDIDATES = 10
TRUSTED_CALLS = 2
"""Calls in a row of a collective with a root: with more, the root runs ahead, and what is measured is not what one call takes."""


class Bench(Protocol):
    """What measures."""

    def clock(self) -> float:
        """Seconds, from any point on."""

    def begin(self, cell: Cell) -> None:
        """Goes over to calls of ``cell``; candidates are numbered from 0 again."""

    def admit(self, choice: Choice) -> tuple[float, int] | None:
        """Runs a candidate and checks its result: seconds of one call, and the segments it was cut into; None if it cannot run."""

    def run(self, batches: Sequence[tuple[int, int]]) -> list[float]:
        """As :data:`~topoccl.collectives.tune.race.Round`."""


@dataclass(frozen=True)
class Timed:
    """A candidate that was measured."""

    candidate: Candidate
    seconds: float
    segments: int
    batches: int
    sample: Sample | None


@dataclass
class Outcome:
    """What was found for one cell: ``timed`` is empty if there was no time for it."""

    cell: Cell
    nbytes: int
    timed: list[Timed] = field(default_factory=list)
    complete: bool = False
    calibrating: bool = False

    @property
    def best(self) -> Timed:
        return min(self.timed, key=lambda t: t.seconds)


@dataclass(frozen=True)
class Tuned:
    """The result: the contents of the file, and what there is to tell.

    Attributes:
        outcomes: by collective and size.
        fit: to everything; None if nothing was measured.
        unseen: relative errors, by the profile as it was and by the first fit, at sizes which that fit had not seen.
        seconds: what it all took.
    """

    tuning: Tuning
    outcomes: tuple[Outcome, ...]
    fit: Fit | None
    unseen: tuple[tuple[float, ...], tuple[float, ...]]
    seconds: float


class Session:
    """One run of the tuner.

    Args:
        bench: measures.
        topology, profile, transport: of the group.
        collectives, sizes: what to measure; sizes in bytes as nccl-tests counts them, ascending.
        budget: seconds.
        asked: by collective and size, labels to be measured whatever the model says.
        report: told of the progress.
    """

    def __init__(
        self, bench: Bench, topology: Topology, profile: Profile, transport: str, collectives: Sequence[str], sizes: Sequence[int],
        budget: float, asked: Callable[[str, int], Collection[str]] = lambda collective, nbytes: (), report: Report = lambda *_: None,
    ) -> None:  # fmt: skip
        self._bench = bench
        self._topology = topology
        self._given = self._profile = profile
        self._transport = transport
        self._asked = asked
        self._report = report
        self._began = bench.clock()
        self._budget = budget
        self._speed: list[float] = []  # measured over predicted
        self._overhead: list[float] = []
        self._outcomes: list[Outcome] = []
        for collective in collectives:
            root = 0 if collective in ROOTED else None
            cells = list(dict.fromkeys(cell_of(collective, size, topology.num_ranks, root) for size in sizes))
            first = {0, len(cells) // 2, len(cells) - 1}
            for at, cell in enumerate(cells):
                self._outcomes.append(Outcome(cell, cell.nbytes(topology.num_ranks), calibrating=at in first))

    def run(self) -> Tuned:
        first = [o for o in self._outcomes if o.calibrating]
        rest = [o for o in self._outcomes if not o.calibrating]
        share = len(first) / len(self._outcomes)
        self._measure(first, "first sizes", self._until(max(share, 0.5) * (1 - 2 * FIT_SHARE)))
        self._fit("fit")
        seen = self._profile
        self._measure(rest, "other sizes", self._until(1 - 1.5 * FIT_SHARE))
        unseen = [t.sample for o in rest for t in o.timed if t.sample is not None]
        found = self._fit("fit to all") if unseen else self._last_fit
        self._measure(self._outcomes, "second look", self._until(1), again=True)
        errors = (relative_errors(unseen, self._given), relative_errors(unseen, seen))
        return Tuned(self._tuning(found), tuple(self._outcomes), found, errors, self._bench.clock() - self._began)

    _last_fit: Fit | None = None

    def _until(self, share: float) -> float:
        """The time at which so much of the budget is spent."""
        return self._began + share * self._budget

    def _spec(self, cell: Cell) -> CollectiveSpec:
        return CollectiveSpec(cell.collective, self._topology.num_ranks, cell.root)

    def _measure(self, outcomes: Sequence[Outcome], step: str, end: float, again: bool = False) -> None:
        """Measures cells until ``end``, cheap ones first; what one leaves of its time goes to the others."""
        plans: list[tuple[float, int, Outcome, list[Candidate]]] = []
        for outcome in outcomes:
            if self._bench.clock() >= end:
                break
            known = {t.candidate.key for t in outcome.timed}
            asked = self._asked(outcome.cell.collective, outcome.nbytes)
            found = candidates(self._spec(outcome.cell), self._topology, outcome.nbytes, self._profile, () if again else asked)
            if again:
                found = self._better(outcome, found, known)
            if found:
                plans.append((self._costs(found)[-1], len(plans), outcome, found[:MOST_CANDIDATES]))
        plans.sort(key=lambda plan: plan[:2])
        for done, (weight, _, outcome, found) in enumerate(plans):
            self._report(step, done, len(plans))
            left = end - self._bench.clock()
            self._measure_cell(outcome, found, left * weight / sum(plan[0] for plan in plans[done:]), left)
        self._report(step, len(plans), len(plans))

    def _costs(self, found: Sequence[Candidate]) -> list[float]:
        """Seconds that it takes to measure the first, the first two, and so on, as far as is known."""
        speed = median(self._speed[-20:]) if self._speed else 1.0
        overhead = median(self._overhead) if self._overhead else FIRST_OVERHEAD
        return list(accumulate(overhead + (CALLS + EARLY) * c.predicted * speed for c in found[:MOST_CANDIDATES]))

    def _better(self, outcome: Outcome, found: list[Candidate], known: Collection[object]) -> list[Candidate]:
        """The candidates that were not measured and that the model now thinks are faster than the fastest, and that one."""
        if not outcome.timed:
            return found
        best = outcome.best
        new = [c for c in found if c.key not in known and c.predicted < best.seconds]
        return [best.candidate, *new] if new else []

    def _measure_cell(self, outcome: Outcome, found: list[Candidate], limit: float, left: float) -> None:
        """Measures as many of ``found`` as there is likely time for."""
        costs = self._costs(found)
        if costs[0] > left:
            return
        kept = max(1, sum(cost <= limit for cost in costs), sum(cost <= left for cost in costs[:2]))
        begun, clock = self._bench.clock(), self._bench.clock
        self._bench.begin(outcome.cell)
        entered: list[tuple[Candidate, float, int]] = []
        for candidate in found[:kept]:
            if entered and clock() - begun > left:
                kept = len(entered)
                break
            before = clock()
            admitted = self._bench.admit(candidate.choice(outcome.nbytes, self._topology))
            if admitted is not None:
                entered.append((candidate, *admitted))
                self._overhead.append(max(0.0, clock() - before - CALLS * admitted[0]))
        if not entered:
            return
        for entrant in race(
            [seconds for _, seconds, _ in entered], self._bench.run, lambda turn: clock() - begun > (left if turn < EARLY else limit)
        ):
            candidate, _, segments = entered[entrant.number]
            trusted = outcome.cell.root is None or entrant.calls <= TRUSTED_CALLS
            ran = (candidate.schedule, self._topology, outcome.nbytes, segments, entrant.seconds, candidate.pulls)
            sample = Sample(*ran, weight=min(1.0, len(entrant.times) / EARLY)) if trusted else None
            outcome.timed.append(Timed(candidate, entrant.seconds, segments, len(entrant.times), sample))
            if trusted:
                self._speed.append(entrant.seconds / candidate.predicted)
        best = min(c.predicted for c in found)
        outcome.complete = outcome.complete or all(c.predicted > ENOUGH * best for c in found[kept:])

    def _fit(self, step: str) -> Fit | None:
        """Fits the given profile to everything that was measured, and goes on with that."""
        samples = pick([t.sample for o in self._outcomes for t in o.timed if t.sample is not None], FITTED_TO)
        if not samples:
            return None
        self._report(step, 0, 1)
        begun, share = self._bench.clock(), FIT_SHARE * self._budget
        relative_errors(samples, self._given)
        each = (self._bench.clock() - begun) / len(samples)
        samples = samples[: max(FEWEST, min(len(samples), int(share / (LOOKS * each)) if each > 0 else len(samples)))]
        end = begun + share
        self._last_fit = fit(samples, self._given, lambda: self._bench.clock() > end)
        self._profile = self._last_fit.profile
        self._speed.clear()
        self._report(step, 1, 1)
        return self._last_fit

    def _tuning(self, found: Fit | None) -> Tuning:
        ranks, hosts = self._topology.num_ranks, len(self._topology.ranks_by_host)
        entries, covered = [], []
        runs: dict[tuple[str, int | None], list[list[int]]] = {}
        for outcome in self._outcomes:
            cell = outcome.cell
            best: dict[str, Timed] = {}
            for timed in outcome.timed:
                label = timed.candidate.label
                if label not in best or timed.seconds < best[label].seconds:
                    best[label] = timed
            for label, timed in sorted(best.items(), key=lambda item: item[1].seconds):
                how = (timed.segments, cell.root, hosts, timed.candidate.pulls, self._predicted(outcome, timed))
                entries.append(Measurement(cell.collective, ranks, label, outcome.nbytes, _rounded(timed.seconds), *how))
            sizes = runs.setdefault((cell.collective, cell.root), [[]])
            if sizes[-1] and outcome.nbytes > GAP * sizes[-1][-1]:  # what lies between is predicted
                sizes.append([])
            if outcome.complete:
                sizes[-1].append(outcome.nbytes)
            else:
                sizes.append([])
        for (collective, root), parts in runs.items():
            covered += [Range(collective, ranks, part[0], part[-1], root, hosts) for part in parts if part]
        return Tuning(
            tuple(entries),
            self._topology.digest,
            covered=tuple(covered),
            transport=self._transport,
            fabric=fabric_digest(self._topology),
            fitted=None if found is None else found.fitted,
        )

    def _predicted(self, outcome: Outcome, timed: Timed) -> float | None:
        """What the fitted model says of it: how far it was off is carried over to sizes and placements that were not measured."""
        if self._bench.clock() > self._until(LATE):
            return None
        ran = (timed.candidate.schedule, self._topology, outcome.nbytes, timed.segments, timed.seconds, timed.candidate.pulls)
        return _rounded(predicted_seconds(Sample(*ran), self._profile))


def _rounded(seconds: float) -> float:
    return parse_time(format_time(seconds))
