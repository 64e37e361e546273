"""How the tuner spends its time, on a simulated clock: calls take what the cost model with other constants says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from topoccl.algorithms.calibration import Profile, default_profile
from topoccl.algorithms.choice import Choice
from topoccl.algorithms.registry import known_names
from topoccl.algorithms.select import Selector
from topoccl.algorithms.selection_rules import parse_algo
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.tuning import dump_tuning, parse_tuning
from topoccl.algorithms.tuning.fit import Sample, predicted_seconds, spread
from topoccl.algorithms.tuning.measured import with_constants
from topoccl.collectives.tune.candidates import Candidate, candidates
from topoccl.collectives.tune.check import AGREE, ROUNDS, Check, Checked, Run, as_rows
from topoccl.collectives.tune.race import CLEAR, EARLY, FAR, MOST, in_turns, race
from topoccl.collectives.tune.report import check_summary, summary
from topoccl.collectives.tune.session import Session, Tuned
from topoccl.collectives.tune.work import Cell
from topoccl.topology.generators import generate
from topoccl.topology.graph import Topology

K, M = 1 << 10, 1 << 20
MPI = default_profile("mpi")
TRUE = with_constants(
    MPI,
    [("network.both_ways", 0.7), ("network.efficiency", 0.85), ("network.send_overhead", 30e-6), ("network.recv_overhead", 30e-6)],
)


def never(turn: int) -> bool:
    return False


def simulated(seconds: Sequence[float], log: list[list[int]], noise: float = 0.0) -> object:
    rng = random.Random(3)

    def run(batches: Sequence[tuple[int, int]]) -> list[float]:
        log.append([number for number, _ in batches])
        return [seconds[number] * (1 + rng.uniform(0, noise)) for number, _ in batches]

    return run


# The race


def test_slow_candidates_are_dropped_early() -> None:
    seconds = [1.0, (1 + CLEAR / 2), (1 + 2 * CLEAR), FAR + 0.1]
    log: list[list[int]] = []
    found = race([1.0, 1.0, 1.0, 1.0], simulated(seconds, log), never)  # type: ignore[arg-type]
    assert [len(e.times) for e in found] == [MOST, MOST, EARLY, 1]
    assert [e.dropped for e in found] == [False, False, True, True]
    assert log == [[0, 1, 2, 3], *[[0, 1, 2]] * (EARLY - 1), *[[0, 1]] * (MOST - EARLY)]


def test_noise_keeps_what_is_not_clearly_slower() -> None:
    log: list[list[int]] = []
    found = race([1.0, 1.05], simulated([1.0, 1.05], log, noise=0.2), never)  # type: ignore[arg-type]
    assert min(len(e.times) for e in found) > EARLY


def test_one_that_is_left_alone_is_done() -> None:
    log: list[list[int]] = []
    found = race([1.0, 5.0], simulated([1.0, 5.0], log), never)  # type: ignore[arg-type]
    assert log == [[0]] * EARLY
    assert found[1].dropped
    assert found[1].seconds == 5.0
    assert [e.calls for e in race([1e-3, 1.5e-3], simulated([1e-3, 1.5e-3], log), never)] == [20, 13]  # type: ignore[arg-type]


def test_when_the_time_is_over_first_calls_count() -> None:
    log: list[list[int]] = []
    found = race([2.0, 1.0], simulated([1.0, 1.0], log), lambda turn: True)  # type: ignore[arg-type]
    assert log == []
    assert [e.seconds for e in found] == [2.0, 1.0]


def test_in_turns_nobody_is_dropped_and_nobody_is_always_first() -> None:
    log: list[list[int]] = []
    times = in_turns([1.0, 5.0], simulated([1.0, 5.0], log), never, 4)  # type: ignore[arg-type]
    assert times == [[1.0] * 4, [5.0] * 4]
    assert log == [[0, 1], [1, 0], [0, 1], [1, 0]]
    assert in_turns([1.0], simulated([1.0], log), lambda turn: turn >= 2, 4) == [[1.0, 1.0]]  # type: ignore[arg-type]


# The session


class Simulated:
    """A bench whose calls take what the cost model with ``true`` says."""

    def __init__(self, topology: Topology, true: Profile, noise: float = 0.0) -> None:
        self._topology, self._true, self._noise = topology, true, noise
        self._rng = random.Random(5)
        self._now = 0.0
        self._seconds: list[float] = []
        self._root: int | None = None
        self.cells: list[Cell] = []

    def clock(self) -> float:
        return self._now

    def begin(self, cell: Cell) -> None:
        self._seconds = []
        self.cells.append(cell)

    def admit(self, choice: Choice) -> tuple[float, int] | None:
        sample = Sample(choice.schedule, self._topology, choice.nbytes, choice.segments, 1.0, choice.pulls)
        self._seconds.append(predicted_seconds(sample, self._true))
        self._now += 0.05
        return self.run([(len(self._seconds) - 1, 2)])[0], choice.segments

    def run(self, batches: Sequence[tuple[int, int]]) -> list[float]:
        found = [self._seconds[number] * (1 + self._rng.uniform(0, self._noise)) for number, _ in batches]
        self._now += sum(seconds * calls for seconds, (_, calls) in zip(found, batches, strict=True))
        return found


TOPOLOGY = generate("cluster:2x2,net=200Mbit/s")


def session(budget: float, sizes: Sequence[int] = (4 * K, 32 * K, 256 * K, M), **options: object) -> tuple[Tuned, Simulated]:
    bench = Simulated(TOPOLOGY, TRUE, noise=0.02)
    asked = options.get("asked", lambda collective, nbytes: ())
    return Session(bench, TOPOLOGY, MPI, "mpi", ["all_reduce", "broadcast"], sizes, budget, asked).run(), bench  # type: ignore[arg-type]


def test_a_session_finds_the_constants_and_the_fastest() -> None:
    found, _ = session(100.0)
    assert found.fit is not None
    got = dict(found.fit.fitted.constants)
    assert abs(got["network.efficiency"] / 0.85 - 1) < 0.05
    assert abs(got["network.both_ways"] / 0.7 - 1) < 0.08
    assert spread(found.fit.after) < 0.05 < spread(found.fit.before)
    before, after = found.unseen
    assert spread(after) < 0.1 < spread(before)
    for outcome in found.outcomes:  # nothing that was left out is clearly faster than what was found
        spec = CollectiveSpec(outcome.cell.collective, 4, outcome.cell.root)
        for other in candidates(spec, TOPOLOGY, outcome.nbytes, TRUE):
            sample = Sample(other.schedule, TOPOLOGY, outcome.nbytes, other.segments, 1.0)
            assert outcome.best.seconds < 1.05 * predicted_seconds(sample, TRUE)
    text = dump_tuning(found.tuning)
    assert parse_tuning(text) == found.tuning
    ranges = [(4 * K, 4 * K), (32 * K, 32 * K), (256 * K, M)]  # what lies between sizes far apart is predicted
    assert [(r.collective, r.least, r.most) for r in found.tuning.covered] == [(c, *r) for c in ("all_reduce", "broadcast") for r in ranges]
    for entry in found.tuning.entries:
        assert entry.predicted == pytest.approx(entry.seconds, rel=0.25)
    assert "is within 5 % of the fastest in" in summary(found, Path("t.yaml"))


def test_a_short_budget_is_kept_and_measures_what_it_can() -> None:
    found, bench = session(1.0, sizes=(4 * K, M, 64 * M))
    assert bench.clock() < 3
    measured = [(o.cell.collective, o.nbytes) for o in found.outcomes if o.timed]
    assert ("all_reduce", 64 * M) not in measured
    assert not any(r.most >= 64 * M for r in found.tuning.covered)
    assert "no time left" in summary(found, Path("t.yaml"))


def test_what_is_asked_for_is_measured() -> None:
    found, _ = session(100.0, sizes=(M,), asked=lambda collective, nbytes: ("direct",) if collective == "all_reduce" else ())
    assert "direct" in {t.candidate.label for t in found.outcomes[0].timed}


# Whether choices are right


class Unable(Simulated):
    """A bench on which nothing can run."""

    def admit(self, choice: Choice) -> None:
        return None


def test_a_call_that_no_candidate_can_make_has_no_fastest() -> None:
    bench = Unable(TOPOLOGY, TRUE)
    found = Check(bench, TOPOLOGY, {"defaults": Selector(TOPOLOGY, profile=MPI)}, ["all_reduce"], [4 * K], 10.0).run()
    assert (found[0].best, found[0].ratio("defaults"), found[0].runs) == (None, None, [])
    assert as_rows(found)[0]["best"] is None
    text = check_summary(found)
    assert "none can run" in text
    assert "within 5 % of the fastest in 0 of 1 calls, within 10 % in 0" in text


def test_finalists_are_compared_round_by_round() -> None:
    def compared(mine: list[float], best: list[float]) -> tuple[float | None, bool]:
        keys = ("mine", 1, False), ("best", 1, False)
        runs = [Run(Candidate(label, None, segments, pulls, 1.0), 2.0 - (label == "best")) for label, segments, pulls in keys]  # type: ignore[arg-type]
        checked = Checked(Cell("all_reduce", K), 4 * K, {"way": keys[0]}, runs, {keys[0]: mine, keys[1]: best})
        return checked.ratio("way"), checked.decided("way")

    # A disturbance that both feel, in whatever rounds, changes nothing; one that a few rounds of one feel does not decide.
    assert compared([1.2, 12.0, 1.2] * 3 + [1.2] * 2, [1.0, 10.0, 1.0] * 3 + [1.0] * 2) == (pytest.approx(1.2), True)
    assert compared([1.2] * AGREE + [0.9] * (ROUNDS - AGREE), [1.0] * ROUNDS) == (pytest.approx(1.2), True)
    assert compared([1.2] * (AGREE - 1) + [0.9] * (ROUNDS - AGREE + 1), [1.0] * ROUNDS) == (pytest.approx(1.2), False)
    assert compared([0.9] * AGREE + [1.2] * (ROUNDS - AGREE), [1.0] * ROUNDS) == (pytest.approx(0.9), True)
    assert compared([], [1.0]) == (None, True)


def test_the_right_choice_is_found_right_and_a_wrong_one_wrong() -> None:
    right, wrong = (
        Selector(TOPOLOGY, profile=TRUE),
        Selector(TOPOLOGY, parse_algo("all_reduce:ring[channels=1]", known_names()), profile=TRUE),
    )
    bench = Simulated(TOPOLOGY, TRUE, noise=0.02)
    (found,) = Check(bench, TOPOLOGY, {"right": right, "wrong": wrong}, ["all_reduce"], [4 * K], 10.0).run()
    assert found.best is not None
    assert len(found.rounds[found.best.key]) == ROUNDS
    good, bad = found.ratio("right"), found.ratio("wrong")
    assert good is not None
    assert bad is not None
    assert good < 1.05
    assert bad > 1.2
    assert found.decided("wrong")
    (row,) = as_rows([found])
    assert row["ratio"] == {"right": good, "wrong": bad}
    assert "right: within 5 % of the fastest in 1 of 1 calls" in check_summary([found])
