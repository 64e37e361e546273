"""Selection with measured times in the table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from topoccl.algorithms.calibration import default_profile
from topoccl.algorithms.registry import known_names
from topoccl.algorithms.select import Selector, format_choice, select
from topoccl.algorithms.selection_rules import parse_algo
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.tuning import Measurement, Range, Tuning
from topoccl.topology.generators import generate
from topoccl.topology.units import format_time

CLUSTER = generate("cluster:4x2")
MPI = default_profile("mpi")
K, M = 1 << 10, 1 << 20


def all_reduce(nbytes: int, algo: str = "", **options: Any) -> Any:
    return select(CollectiveSpec("all_reduce", 8), CLUSTER, nbytes, 4, parse_algo(algo, known_names()), MPI, **options)


def tuning(*rows: tuple[str, int, float, int | None], **fields: Any) -> Tuning:
    return Tuning(tuple(Measurement("all_reduce", 8, *row, **fields) for row in rows), source="t.yaml")


def candidate(choice: Any, label: str) -> Any:
    return next(c for c in choice.candidates if c.algorithm == label)


def test_a_measured_time_replaces_the_predicted_one() -> None:
    free = all_reduce(M, exhaustive=True)
    assert free.algorithm != "tree[intra=chain]"
    best, label = free.seconds, "direct"
    choice = all_reduce(M, exhaustive=True, tuning=tuning((label, M, best / 2, 3)))
    assert (choice.algorithm, choice.seconds, choice.segments, choice.measured) == (label, best / 2, 3, True)
    row = candidate(choice, label)
    assert (row.seconds, row.segments, row.mode, row.measured) == (best / 2, 3, "measured", True)
    assert row.messages == 3 * candidate(free, label).messages / candidate(free, label).segments
    assert row.bytes_by_kind == candidate(free, label).bytes_by_kind
    assert [c.algorithm for c in choice.candidates if c.measured] == [label]
    assert candidate(choice, free.algorithm).rejected == "2 times the time of direct"
    admitted = sum(c.seconds is not None for c in choice.candidates)
    start = f"direct, as measured in t.yaml, is the fastest of {admitted} candidates (1 measured, {admitted - 1} predicted); next is "
    assert choice.reason.startswith(start)
    assert f"direct in 3 segments, {format_time(best / 2)} measured; {choice.reason}" in format_choice(choice)
    assert f"{format_time(best / 2)}, measured" in format_choice(choice)
    assert choice.as_dict()["reason"] == choice.reason


def test_a_measured_time_may_rule_the_favourite_out() -> None:
    free = all_reduce(M)
    choice = all_reduce(M, tuning=tuning((free.algorithm, M, 1.0, None)))
    assert choice.algorithm != free.algorithm
    assert not choice.measured
    assert candidate(choice, free.algorithm).rejected == f"{1 / choice.seconds:.3g} times the time of {choice.algorithm}"
    assert candidate(choice, free.algorithm).segments == free.segments  # the model's, as none was measured
    assert f"{choice.algorithm} is the fastest of " in choice.reason
    assert "(1 measured, " in choice.reason


def test_what_was_measured_is_never_left_out_and_leaves_others_out() -> None:
    full = all_reduce(M, exhaustive=True)
    rows = [(c.algorithm, M, 2 * c.seconds, None) for c in full.candidates if c.seconds is not None]
    slow = tuning(*rows[1:])
    lazy, again = all_reduce(M, tuning=slow), all_reduce(M, tuning=slow, exhaustive=True)
    assert (lazy.algorithm, lazy.seconds) == (again.algorithm, again.seconds)
    assert {c.algorithm for c in lazy.candidates if c.measured} == {row[0] for row in rows[1:]}
    quick = all_reduce(M, tuning=tuning(("direct", M, 1e-9, None)))
    assert [c.algorithm for c in quick.candidates if c.seconds is not None] == ["direct"]
    assert quick.reason.endswith("; no other can come as low")
    reasons = ("takes at least", "here it is the same", "not built", "hosts are not wired")
    assert all(c.measured or (c.rejected or "").startswith(reasons) for c in quick.candidates)


def test_a_measured_variant_that_is_not_in_the_table() -> None:
    measured = tuning(("ring[channels=3]", M, 1e-6, None), ("ring[channels=99]", M, 1e-6, None))
    choice = all_reduce(M, tuning=measured)
    assert choice.algorithm == "ring[channels=3]"
    assert choice.schedule.params == (("channels", 3),)
    assert all_reduce(4 * M, tuning=measured).algorithm != "ring[channels=3]"  # nothing was measured near that size
    assert all(c.algorithm != "ring[channels=3]" for c in all_reduce(4 * M, tuning=measured).candidates)
    assert all_reduce(M, "all_reduce:^ring", tuning=measured).algorithm != "ring[channels=3]"
    forced = all_reduce(M, "all_reduce:ring[channels=3]", tuning=measured)
    assert forced.reason == "ring[channels=3], as measured in t.yaml, is the only candidate that TOPOCCL_ALGO allows (ring[channels=3])"
    assert [c.algorithm for c in forced.candidates].count("ring[channels=3]") == 1


def test_of_rows_with_one_schedule_the_measured_one_stays() -> None:
    choice = all_reduce(M, tuning=tuning(("tree[intra=flat]", M, 1e-6, 2)))
    assert choice.algorithm == "tree[intra=flat]"
    assert candidate(choice, "tree[intra=chain]").rejected == "here it is the same schedule as tree[intra=flat]"


def test_measured_times_of_other_groups_do_not_matter() -> None:
    free = all_reduce(M)
    for other in (
        tuning(("direct", M, 1e-9, None), hosts=2),
        tuning(("direct", 8 * M, 1e-9, None)),
        Tuning((Measurement("all_gather", 8, "direct", M, 1e-9), Measurement("all_reduce", 4, "direct", M, 1e-9))),
    ):
        assert all_reduce(M, tuning=other).as_dict() == free.as_dict()
    assert all_reduce(M, tuning=tuning(("direct", M, 1e-9, None), hosts=4)).algorithm == "direct"


def test_a_selector_keeps_its_measurements() -> None:
    pair = Tuning((Measurement("all_reduce", 2, "ring[channels=1]", K, 1e-9, 1), Measurement("all_reduce", 8, "direct", M, 1e-9)))
    selector = Selector(CLUSTER, profile=MPI, tuning=pair)
    assert selector.choose(CollectiveSpec("all_reduce", 8), M + 1).algorithm == "direct"
    assert selector.for_topology(CLUSTER.place([0, 2])).choose(CollectiveSpec("all_reduce", 2), K).measured


def test_where_measurements_say_enough_nothing_is_predicted(monkeypatch: Any) -> None:
    rows = (
        ("ring[channels=1]", M, 3.0, 2),
        ("direct", M, 2.0, 4),
        ("two_shot", M, 4.0, 1),
        ("direct", 4 * M, 9.0, 8),
        ("two_shot", 4 * M, 5.0, 2),
    )
    known = replace(tuning(*rows), covered=(Range("all_reduce", 8, M, 4 * M, hosts=4),))
    shown = all_reduce(M, tuning=known, exhaustive=True)
    beyond = all_reduce(8 * M, tuning=known)
    monkeypatch.setattr("topoccl.algorithms.select._model", None)  # whoever predicts calls it
    choice = all_reduce(M, tuning=known)
    assert (choice.algorithm, choice.segments, choice.seconds, choice.measured) == ("direct", 4, 2.0, True)
    assert (shown.algorithm, shown.segments, shown.seconds) == ("direct", 4, 2.0)
    assert choice.reason == "direct is the fastest of 3 candidates measured in t.yaml; next is ring[channels=1] with 1.5 times its time"
    assert [c.algorithm for c in choice.candidates] == [c.algorithm for c in shown.candidates]
    for table in (choice, shown):
        assert candidate(table, "two_shot").rejected == "2 times the time of direct"
        assert candidate(table, "hierarchical[inter=ring]").rejected == "not measured, where measurements say enough"
    assert shown.bound_seconds > 0
    assert candidate(shown, "hierarchical[inter=ring]").seconds < 2.0
    between = all_reduce(3 * M, tuning=known)
    assert (between.algorithm, between.segments) == ("two_shot", 2)
    assert all_reduce(M, "direct", tuning=known).algorithm == "direct"
    assert all_reduce(M, "^direct", tuning=known).algorithm == "ring[channels=1]"
    assert beyond.algorithm not in ("direct", "two_shot")
    with pytest.raises(TypeError):  # it does predict
        all_reduce(M, "hierarchical", tuning=known)


def test_measurements_of_another_group_are_not_enough() -> None:
    known = replace(tuning(("direct", M, 1.0, 1)), covered=(Range("all_reduce", 8, M, M, hosts=2), Range("all_gather", 8, M, M)))
    assert all_reduce(M, tuning=known).algorithm != "direct"


def test_what_was_pulled_is_pulled() -> None:
    host = generate("cluster:1x4")
    known = Tuning((Measurement("all_reduce", 4, "two_shot", 16 * M, 1.0, 1, pulls=True),), covered=(Range("all_reduce", 4, M, 16 * M),))
    spec = CollectiveSpec("all_reduce", 4)
    profile = MPI.on_hosts(1, attach=True)
    for exhaustive in (False, True):
        choice = select(spec, host, 16 * M, 4, None, profile, tuning=known, exhaustive=exhaustive)
        assert (choice.algorithm, choice.pulls, choice.segments) == ("two_shot", True, 1)
