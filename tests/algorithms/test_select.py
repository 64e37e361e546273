"""Selection: the table, the argmin, what rules do to them, and agreement between processes."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from topoccl.algorithms import registry
from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.calibration import default_profile
from topoccl.algorithms.cost import predict
from topoccl.algorithms.registry import algorithms_for, known_names
from topoccl.algorithms.select import SelectionError, Selector, format_choice, select
from topoccl.algorithms.selection_rules import AlgoRules, parse_algo
from topoccl.algorithms.spec import COLLECTIVES, ROOTED, CollectiveSpec
from topoccl.topology.bounds import lower_bound
from topoccl.topology.files import loads
from topoccl.topology.generators import generate

CLUSTER = generate("cluster:4x2")
MPI = default_profile("mpi")
K, M = 1 << 10, 1 << 20


def all_reduce(nbytes: int, algo: str = "", **options: Any) -> Any:
    return select(CollectiveSpec("all_reduce", 8), CLUSTER, nbytes, 4, rules(algo), MPI, **options)


def rules(algo: str) -> AlgoRules:
    return parse_algo(algo, known_names())


# The table and its minimum


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_gets_the_fastest_of_its_candidates(collective: str) -> None:
    spec = CollectiveSpec(collective, 8, 3 if collective in ROOTED else None)
    choice = select(spec, CLUSTER, M, 4, profile=MPI, exhaustive=True)
    labels = [c.algorithm for c in choice.candidates]
    assert len(labels) == len(set(labels)) == sum(len(a.variants) for a in algorithms_for(collective))
    winner = next(c for c in choice.candidates if c.algorithm == choice.algorithm)
    assert [c for c in choice.candidates if c.rejected is None] == [winner]
    assert (winner.seconds, winner.segments) == (choice.seconds, choice.segments)
    seconds = [c.seconds for c in choice.candidates if c.seconds is not None]
    assert choice.seconds <= min(seconds) * 1.01
    assert choice.schedule.spec == spec
    bound = lower_bound(CLUSTER, collective, M, spec.root)
    assert (choice.bound_seconds, choice.bound) == (bound.seconds, bound.description)
    assert choice.ratio == pytest.approx(choice.seconds / bound.seconds)
    assert choice.ratio >= 1


def test_the_choice_depends_on_the_size() -> None:
    small, large = all_reduce(8), all_reduce(64 * M)
    assert small.algorithm != large.algorithm
    assert small.segments == 1
    assert small.bottleneck.endswith("busy 0% of the time")
    assert "eth0" in large.bottleneck


@pytest.mark.parametrize("nbytes", [8, 64 * K, 4 * M])
def test_leaving_out_what_cannot_win_changes_nothing(nbytes: int) -> None:
    lazy, full = all_reduce(nbytes), all_reduce(nbytes, exhaustive=True)
    assert (lazy.algorithm, lazy.segments, lazy.seconds) == (full.algorithm, full.segments, full.seconds)
    skipped = [c for c in lazy.candidates if c.seconds is None and (c.rejected or "").startswith("takes at least")]
    assert skipped
    assert {c.algorithm for c in skipped} <= {c.algorithm for c in full.candidates if c.seconds is not None}


def test_predictions_are_those_of_the_schedule() -> None:
    choice = all_reduce(M)
    again = predict(choice.schedule, CLUSTER, nbytes=M, profile=MPI, segments=choice.segments)
    assert again.seconds == choice.seconds
    assert again.bytes_by_kind == next(c for c in choice.candidates if c.rejected is None).bytes_by_kind


def test_equal_predictions_go_to_fewer_messages_then_to_the_first() -> None:
    alone = generate("cluster:1x1")
    choice = select(CollectiveSpec("all_reduce", 1), alone, M)
    assert choice.algorithm == choice.candidates[0].algorithm
    assert any(c.rejected == f"about as fast as {choice.algorithm}, which comes first" for c in choice.candidates)
    assert any(c.rejected == f"here it is the same schedule as {choice.algorithm}" for c in choice.candidates)
    for nbytes in (M, 64 * M):
        choice = all_reduce(nbytes, "all_reduce:ring", exhaustive=True)
        near = [c for c in choice.candidates if c.seconds is not None and c.seconds <= choice.seconds * 1.01]
        assert min(c.messages for c in near) == next(c.messages for c in near if c.rejected is None)


def test_uneven_counts_are_judged_by_their_mean() -> None:
    spec = CollectiveSpec("all_to_all", 8, uneven=True)
    choice = select(spec, CLUSTER, M, profile=MPI)
    assert choice.mean_size
    assert choice.reason.endswith("(counts differ between ranks: judged by their mean)")
    assert choice.schedule.spec.uneven
    assert select(spec, CLUSTER, None, 4, profile=MPI, block_elems=[0, 65536] * 32).nbytes == M


# Rules


def test_a_forced_algorithm_is_the_only_one_predicted() -> None:
    choice = all_reduce(M, "all_reduce:tree", exhaustive=True)
    assert choice.algorithm.startswith("tree[")
    assert "that TOPOCCL_ALGO allows (tree)" in choice.reason
    for c in choice.candidates:
        assert c.algorithm.startswith("tree[") or (c.seconds is None and "TOPOCCL_ALGO allows only tree" in (c.rejected or ""))


def test_a_forced_variant() -> None:
    choice = all_reduce(M, "all_reduce:ring[channels=2]")
    assert choice.algorithm == "ring[channels=2]"
    assert choice.reason == "ring[channels=2] is the only candidate that TOPOCCL_ALGO allows (ring[channels=2])"


def test_a_forced_variant_that_is_not_in_the_table() -> None:
    choice = all_reduce(M, "all_reduce:ring[channels=3]")
    assert choice.algorithm == choice.candidates[-1].algorithm == "ring[channels=3]"
    assert choice.schedule.params == (("channels", 3),)


@pytest.mark.parametrize(
    ("algo", "message"),
    [
        ("ring[channels=0]", r"ring\[channels=0\]: ring: channels is 0; expected a whole number, from 1 to 128"),
        ("ring[channels=x]", "ring: channels is 'x'; expected a whole number, from 1 to 128"),
        ("hierarchical[inter=ring,channels=99999]", "hierarchical: channels is 99999; expected a whole number, from 1 to 128"),
        ("hierarchical[inter=7]", "hierarchical: inter is 7; known: ring"),
        ("forest[k=some]", "forest: k is 'some'; expected a whole number, at least 0"),
        ("ring[depth=2]", "ring has no parameter 'depth'; known: channels"),
    ],
)
def test_a_forced_variant_that_cannot_be(algo: str, message: str) -> None:
    with pytest.raises(SelectionError, match=message) as caught:
        all_reduce(M, f"all_reduce:{algo}")
    assert "all_reduce of 1M bytes among 8 ranks" in str(caught.value)
    assert "known: ring, tree, " in str(caught.value)


def test_an_excluded_algorithm() -> None:
    free = all_reduce(M)
    name = free.algorithm.partition("[")[0]
    choice = all_reduce(M, f"all_reduce:^{name}")
    assert not choice.algorithm.startswith(name)
    assert next(c for c in choice.candidates if c.algorithm == free.algorithm).rejected == f"excluded by TOPOCCL_ALGO: all_reduce:^{name}"


def test_ranges_of_sizes() -> None:
    algo = "all_reduce:tree@0-64K,ring@64K-max"
    assert all_reduce(64 * K - 1, algo).algorithm.startswith("tree")
    assert all_reduce(64 * K, algo).algorithm.startswith("ring")


def test_rules_for_another_collective_do_not_matter() -> None:
    assert all_reduce(M, "all_gather:ring").algorithm == all_reduce(M).algorithm


def picky(name: str) -> Algorithm:
    """Ring under another name, which refuses to serve."""
    ring = registry.by_name("all_reduce", "ring")
    return replace(ring, name=name, collectives=("all_reduce",), variants=({},), reject=lambda spec, topology: "it is Monday")


def test_a_forced_algorithm_that_cannot_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ALGORITHMS", (*registry.ALGORITHMS, picky("picky")))
    algo = "all_reduce:picky"
    with pytest.raises(
        SelectionError, match=r"all_reduce of 1M bytes among 8 ranks \(picky: it is Monday\); known: .*; TOPOCCL_FALLBACK=print"
    ):
        all_reduce(M, algo)
    silent, loud, free = all_reduce(M, algo, fallback="silent"), all_reduce(M, algo, fallback="print"), all_reduce(M)
    assert silent.warning is None
    assert loud.warning is not None
    assert "it is Monday" in loud.warning
    for choice in (silent, loud):
        assert choice.algorithm == free.algorithm
        assert choice.reason.startswith("no allowed algorithm can serve")
        assert [c.algorithm for c in choice.candidates if c.rejected is None] == [free.algorithm]


def test_excluding_everything() -> None:
    names = ",".join(known_names()["barrier"])
    spec = CollectiveSpec("barrier", 8)
    with pytest.raises(SelectionError, match="no allowed algorithm can serve barrier ") as caught:
        select(spec, CLUSTER, 0, rules=rules(f"barrier:^{names}"))
    assert all(f"excluded by TOPOCCL_ALGO: barrier:^{name}" in str(caught.value) for name in names.split(","))
    assert select(spec, CLUSTER, 0, rules=rules(f"barrier:^{names}"), fallback="silent").algorithm == select(spec, CLUSTER, 0).algorithm


def test_a_proof_that_fails_is_a_reason_not_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = registry.by_name("all_reduce", "ring")

    def broken(spec: CollectiveSpec, topology: Any) -> Any:
        return replace(ring.build(spec, topology), targets=ring.build(spec, topology).targets[::-1].copy(), algorithm="broken")

    entry = replace(ring, name="broken", collectives=("all_reduce",), build=broken, variants=({},))
    monkeypatch.setattr(registry, "ALGORITHMS", (*registry.ALGORITHMS, entry))
    choice = all_reduce(M)
    assert "broken" in (choice.candidates[-1].rejected or "")
    with pytest.raises(SelectionError, match="broken"):
        all_reduce(M, "all_reduce:broken")


def test_bad_arguments() -> None:
    spec = CollectiveSpec("all_reduce", 8)
    with pytest.raises(ValueError, match="fallback is 'maybe'; known: error, print, silent"):
        select(spec, CLUSTER, 1, fallback="maybe")
    with pytest.raises(ValueError, match="all_reduce of 4 ranks, but topology 'cluster:4x2' places 8"):
        select(CollectiveSpec("all_reduce", 4), CLUSTER, 1)
    with pytest.raises(ValueError, match="-1 bytes"):
        select(spec, CLUSTER, -1)
    with pytest.raises(ValueError, match="give the size as nbytes or as block_elems"):
        select(spec, CLUSTER)


def test_the_size_may_be_given_in_elements() -> None:
    assert select(CollectiveSpec("all_gather", 8), CLUSTER, None, 4, block_elems=1024).nbytes == 8 * 4 * 1024
    assert select(CollectiveSpec("all_reduce", 8), CLUSTER, None, 2, block_elems=1024).nbytes == 2 * 1024


# The selector


def test_size_classes_are_centred_on_powers_of_two() -> None:
    selector = Selector(CLUSTER)
    assert [selector.size_class("all_reduce", n) for n in (0, 1, 2, 3, 4, 5, 6, 11, 12)] == [0, 1, 2, 4, 4, 4, 8, 8, 16]
    for k in range(40):
        assert selector.size_class("all_reduce", 1 << k) == 1 << k
    for n in range(1, 5000):
        assert 2**-0.5 <= selector.size_class("all_reduce", n) / n < 2**0.5


def test_size_classes_end_where_rules_do() -> None:
    selector = Selector(CLUSTER, rules("all_reduce:tree@0-50000,ring@50000-70001"))
    table = {n: selector.size_class("all_reduce", n) for n in range(46000, 93000)}
    assert {n: table[n] for n in (46340, 46341, 49999, 50000, 65536, 70000, 70001, 92681, 92682)} == {
        46340: 32768, 46341: 49999, 49999: 49999, 50000: 65536, 65536: 65536, 70000: 65536, 70001: 70001, 92681: 70001, 92682: 131072,
    }  # fmt: skip
    assert selector.size_class("all_gather", 46341) == 65536
    for n, representative in table.items():
        assert selector.rules.forced("all_reduce", n) == selector.rules.forced("all_reduce", representative)
    assert selector.choose(CollectiveSpec("all_reduce", 8), 49990).algorithm.startswith("tree")
    assert selector.choose(CollectiveSpec("all_reduce", 8), 50001).algorithm.startswith("ring")


def test_choices_are_remembered() -> None:
    selector = Selector(CLUSTER, profile=MPI)
    spec = CollectiveSpec("broadcast", 8, 2)
    choice = selector.choose(spec, 3000, 4)
    assert selector.choose(spec, 4096, 4) is choice
    assert choice.nbytes == 4096
    assert selector.choose(replace(spec, root=3), 4096, 4).schedule.spec.root == 3
    assert selector.choose(spec, 4096, 8) is not choice
    other = selector.for_topology(CLUSTER.place([0, 1, 2]))
    assert other.choose(CollectiveSpec("broadcast", 3, 2), 4096).profile == "mpi"


def test_a_choice_travels() -> None:
    choice = all_reduce(M)
    again = pickle.loads(pickle.dumps(choice))
    assert again.schedule.digest == choice.schedule.digest
    assert (again.algorithm, again.seconds, again.candidates) == (choice.algorithm, choice.seconds, choice.candidates)


def test_all_processes_choose_alike() -> None:
    code = """
import json
from topoccl.algorithms.calibration import default_profile
from topoccl.algorithms.select import select
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.generators import generate
topology = generate("cluster:3+2+1").place([3, 0, 4, 1, 5, 2])
rows = []
for collective, root in (("all_reduce", None), ("all_to_all", None), ("broadcast", 2)):
    for nbytes in (64, 1 << 20):
        choice = select(CollectiveSpec(collective, 6, root), topology, nbytes, profile=default_profile("mpi"), exhaustive=True)
        rows.append([choice.as_dict(), choice.schedule.digest])
print(json.dumps(rows))
"""
    outputs = set()
    for seed in ("0", "1", "31337"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        outputs.add(result.stdout)
    assert len(outputs) == 1


# Words


def test_a_choice_in_words() -> None:
    choice = all_reduce(M, "all_reduce:ring,direct")
    text = format_choice(choice)
    first, *rows, last = text.splitlines()
    assert first.startswith(f"all_reduce of 1M bytes among 8 ranks: {choice.algorithm}")
    assert choice.reason in first
    assert [line for line in rows if line.startswith("*")] == [rows[1]]
    assert rows[1].split()[1] == choice.algorithm
    assert len(rows) == 1 + len(choice.candidates)
    assert "net 7M" in text
    assert f"{choice.bound_fraction:.0%} of the bound" in last
    assert "the busiest link is h" in last


def test_a_choice_as_json() -> None:
    choice = all_reduce(64 * K, "all_reduce:^tree")
    data = json.loads(json.dumps(choice.as_dict()))
    assert data["collective"] == "all_reduce"
    assert data["bytes"] == 64 * K
    assert data["choice"] == choice.algorithm
    assert data["reason"] == choice.reason
    assert data["bound_seconds"] == choice.bound_seconds
    for row in data["candidates"]:
        assert {"algorithm", "seconds", "rejected"} <= row.keys()
        assert (row["rejected"] is None) == (row["algorithm"] == data["choice"])
        assert row["seconds"] is None or row["seconds"] > 0


def test_one_reason_of_many_candidates_is_told_once() -> None:
    apart = loads("defaults: {slots: 1}\nhosts: [a, b]\n")
    with pytest.raises(SelectionError, match="no route from rank 0") as caught:
        select(CollectiveSpec("all_reduce", 2), apart, 1024)
    assert "ring[channels=1], ring[channels=2]" in str(caught.value)
    assert str(caught.value).count("no route") == 1
