"""When selection builds forests: where nothing else comes near the bound, where the rules ask for it, and for explain."""

from __future__ import annotations

import pytest

from topoccl.algorithms.calibration import IDEAL, default_profile
from topoccl.algorithms.choice import Choice
from topoccl.algorithms.forest import quick, store, synthesis, synthesise
from topoccl.algorithms.registry import known_names
from topoccl.algorithms.select import select
from topoccl.algorithms.selection_rules import parse_algo
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Link, Topology, Vertex, VertexKind
from topoccl.topology.load import load

M = 1 << 20
RACKS = "racks:2x2x1,oversub=4,latency=0"


def choose(fabric: str, nbytes: int, algo: str = "", exhaustive: bool = False) -> Choice:
    topology = load(fabric)
    rules = parse_algo(algo, known_names())
    return select(CollectiveSpec("all_reduce", topology.num_ranks), topology, nbytes, 4, rules, IDEAL, exhaustive=exhaustive)


def forest(choice: Choice) -> tuple[float | None, str | None]:
    (row,) = (c for c in choice.candidates if c.algorithm == "forest")
    return row.seconds, row.rejected


def test_it_is_chosen_where_the_others_are_far_from_the_bound() -> None:
    choice = choose(RACKS, 64 * M)
    assert choice.algorithm == "forest"
    assert choice.bound_fraction > 0.97


def test_it_is_not_built_where_another_is_as_good_as_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthesis, "_synthesise", None)  # would fail
    seconds, why = forest(choose("cluster:4x1,latency=0", 64 * M))
    assert (seconds, why) == (None, "not built: the best of the others is within 3% of the bound")


def test_it_is_not_built_for_short_calls_or_many_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthesis, "_synthesise", None)
    assert forest(choose("racks:2x2x1,oversub=4", 8))[1] == "not built: what limits calls of this size is not bandwidth"
    assert forest(choose("racks:4x5x2,oversub=4,latency=0", M))[1] == "not built: more than 32 ranks, unless TOPOCCL_ALGO asks for it"


def test_up_to_64_ranks_where_links_between_few_hosts_limit() -> None:
    choice = choose("racks:3x3x4,oversub=4,latency=0", 64 * M)
    assert (choice.algorithm, choice.schedule.spec.ranks) == ("forest", 36)


def test_more_ranks_where_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = load("racks:4x5x2,oversub=4,latency=0")
    assert not quick(topology, "all_reduce")
    monkeypatch.setattr(store, "_store", Kept())
    assert not quick(topology, "all_reduce")
    made = synthesise(topology, "all_reduce")
    assert quick(topology, "all_reduce")
    assert not quick(topology, "all_gather")
    assert synthesise(topology, "all_reduce") == made


class Kept(dict[str, str]):
    def put(self, key: str, text: str) -> None:
        self[key] = text


def test_it_is_built_when_asked_for() -> None:
    choice = choose("cluster:4x1,latency=0", 64 * M, "all_reduce:forest")
    assert choice.algorithm == "forest"
    assert choose(RACKS, 64 * M, "all_reduce:^forest").algorithm != "forest"
    assert choose("cluster:4x1,latency=0", M, "all_reduce:forest[k=2]").algorithm == "forest[k=2]"


def test_explain_shows_it_and_chooses_alike() -> None:
    lazy, full = choose("cluster:4x1,latency=0", 64 * M), choose("cluster:4x1,latency=0", 64 * M, exhaustive=True)
    assert lazy.algorithm == full.algorithm
    seconds, why = forest(full)
    assert seconds is not None
    assert why == "programs do not build it: the best of the others is within 3% of the bound"


TWO_WAYS = Topology(
    "two ways",
    [Vertex("h", VertexKind.HOST), Vertex("bridge", VertexKind.PCIE, "h"), *(Vertex(s, VertexKind.SLOT, "h") for s in ("a", "b"))],
    [Link(x, y, 4e9) for x in ("a", "b", "bridge") for y in ("a", "b", "bridge") if x != y],
)
"""A link between two ranks, which is the network's way, and a bridge beside it."""


@pytest.mark.parametrize("transport", ["ideal", "tcp"])
def test_ways_that_programs_cannot_choose_are_for_links_alone(transport: str) -> None:
    spec = CollectiveSpec("all_gather", 2)

    def rows(exhaustive: bool, algo: str = "") -> tuple[Choice, dict[str, str | None]]:
        rules = parse_algo(algo, known_names())
        choice = select(spec, TWO_WAYS, 64 * M, rules=rules, profile=default_profile(transport), exhaustive=exhaustive)
        return choice, {c.algorithm: c.rejected for c in choice.candidates}

    name = "forest[ways=any]"
    assert name not in rows(False)[1]
    assert (name in rows(True)[1]) == (transport == "ideal")
    assert rows(True, "all_gather:ring")[0].algorithm.startswith("ring")
    choice, _ = rows(False, f"all_gather:{name}")
    assert choice.algorithm == name
    assert choice.schedule.ways
    assert "programs cannot choose them" in choice.reason
    if transport == "ideal":
        assert rows(True)[0].algorithm == name
        assert rows(True)[0].bound_fraction > 0.97
        assert rows(False)[0].bound_fraction < 0.97
