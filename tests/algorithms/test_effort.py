"""What selection leaves out on very large groups, and how well it is known beforehand what a schedule costs to build."""

from __future__ import annotations

from typing import Any

import pytest

from topoccl.algorithms import effort
from topoccl.algorithms.algorithm import label_of
from topoccl.algorithms.choice import Choice
from topoccl.algorithms.effort import TOO_LARGE, UNITS, expected_work, too_costly
from topoccl.algorithms.registry import algorithms_for, known_names
from topoccl.algorithms.select import SelectionError, select
from topoccl.algorithms.selection_rules import parse_algo
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.bounds import Bound, lower_bound
from topoccl.topology.load import load


@pytest.mark.parametrize(
    ("fabric", "collective"), [("cluster:40x4", "all_reduce"), ("cluster:20x9", "all_gather"), ("cluster:20x9", "reduce")]
)
def test_the_work_is_foreseen(fabric: str, collective: str) -> None:
    topology = load(fabric)
    spec = CollectiveSpec(collective, topology.num_ranks, 70 if collective == "reduce" else None)
    checked = 0
    for algorithm in algorithms_for(collective):
        if algorithm.costly or algorithm.reject(spec, topology) is not None:
            continue
        for variant in algorithm.variants:
            schedule = algorithm.build(spec, topology, **variant)
            work = sum(a * b for a, b in zip(UNITS, (schedule.num_steps, schedule.count.sum(), len(schedule.targets)), strict=True))
            assert work / 2.5 < expected_work(algorithm, spec, topology, variant) < 2.5 * work, label_of(algorithm.name, variant)
            checked += 1
    assert checked > 3


def test_small_groups_and_parts_that_tell_nothing() -> None:
    ring, torus = (next(a for a in algorithms_for("all_reduce") if a.name == name) for name in ("ring", "torus"))
    assert expected_work(ring, CollectiveSpec("all_reduce", 128), load("cluster:16x8"), {}) == 0
    fabric = load("torus:12x12")  # some of its hosts are no torus
    spec = CollectiveSpec("all_reduce", 144)
    schedule = ring.build(spec, fabric)
    assert expected_work(torus, spec, fabric, {"channels": 1}) == pytest.approx(13.5 * schedule.num_steps, rel=0.02)


def test_the_least_costly_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "MOST_WORK", 100)
    monkeypatch.setattr(effort, "MOST_FORCED_WORK", 1e9)
    assert list(too_costly({"c": 90, "a": 20, "b": 70}, 9)) == ["c"]
    assert too_costly({"a": 9e8}, 9) == {}
    assert too_costly({"a": 7200e6}, 9) == {"a": "too large among 9 ranks: building and predicting it would take about 2 hours"}


def choose(algo: str = "", **options: bool) -> Choice:
    rules = parse_algo(algo, known_names())
    return select(CollectiveSpec("all_reduce", 256), load("cluster:64x4"), 1 << 20, 4, rules, **options)


def test_what_is_left_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "MOST_WORK", 200_000)
    monkeypatch.setattr(effort, "MOST_FORCED_WORK", 400_000)
    choice = choose(exhaustive=True)
    why = {c.algorithm: c.rejected for c in choice.candidates}
    assert {label for label, reason in why.items() if (reason or "").startswith(TOO_LARGE)} >= {"ring[channels=1]", "halving_doubling"}
    assert all(c.seconds is not None for c in choice.candidates if c.algorithm.startswith("tree"))
    assert choose("all_reduce:hierarchical").algorithm.startswith("hierarchical[inter=")  # the least costly one of those that are allowed
    with pytest.raises(SelectionError, match=r"ring\[channels=1\]: too large among 256 ranks: .* about 3\.\d seconds"):
        choose("all_reduce:ring")


@pytest.mark.parametrize("limit", [255, 256])
def test_bounds_of_very_large_groups_are_not_searched(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    asked: list[bool] = []

    def bound(*args: Any, search: bool = True) -> Bound:
        asked.append(search)
        return lower_bound(*args, search=False)

    monkeypatch.setattr("topoccl.algorithms.select.EXPLAINED_RANKS", limit)
    monkeypatch.setattr("topoccl.algorithms.select.lower_bound", bound)
    monkeypatch.setattr(effort, "MOST_WORK", 100_000)
    choose(exhaustive=True)
    assert any(asked) == (limit == 256)
