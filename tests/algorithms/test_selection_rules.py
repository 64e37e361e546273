from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoccl.algorithms.selection_rules import AlgoRules, parse_algo

KNOWN = {
    "all_reduce": ("ring", "tree", "hierarchical", "direct"),
    "all_gather": ("ring", "bruck"),
    "all_to_all": ("pairwise", "bruck", "two_level"),
    "barrier": ("dissemination",),
}
K = 1024


def allowed(rules: AlgoRules, collective: str, nbytes: int = 0) -> set[str]:
    return {name for name in KNOWN[collective] if rules.allows(collective, name, nbytes)}


@pytest.mark.parametrize("text", ["", "  "])
def test_empty_text_allows_everything(text: str) -> None:
    rules = parse_algo(text, KNOWN)
    for collective, names in KNOWN.items():
        assert allowed(rules, collective) == set(names)
        assert rules.forced(collective, 5) is None


def test_first_entry_binds_only_collectives_that_own_a_name() -> None:
    rules = parse_algo("ring,tree", KNOWN)
    assert allowed(rules, "all_reduce") == {"ring", "tree"}
    assert allowed(rules, "all_gather") == {"ring"}
    assert allowed(rules, "all_to_all") == set(KNOWN["all_to_all"])
    assert rules.forced("all_reduce", 0) == ("ring", "tree")
    assert rules.forced("all_gather", 0) == ("ring",)


def test_own_entry_replaces_the_first_one() -> None:
    rules = parse_algo("ring,tree;all_reduce:hierarchical;all_to_all:^pairwise", KNOWN)
    assert allowed(rules, "all_reduce") == {"hierarchical"}
    assert allowed(rules, "all_gather") == {"ring"}
    assert allowed(rules, "all_to_all") == {"bruck", "two_level"}
    assert rules.forced("all_to_all", 0) is None


def test_first_entry_may_exclude() -> None:
    rules = parse_algo("^bruck", KNOWN)
    assert allowed(rules, "all_gather") == {"ring"}
    assert allowed(rules, "all_to_all") == {"pairwise", "two_level"}
    assert allowed(rules, "all_reduce") == set(KNOWN["all_reduce"])


def test_any_case_and_spelling() -> None:
    rules = parse_algo(" AllReduce : ^ Ring , TREE ; alltoall:Two_Level@0-MAX;all-gather:RING@1k-2kb", KNOWN)
    assert allowed(rules, "all_reduce") == {"hierarchical", "direct"}
    assert allowed(rules, "all_to_all") == {"two_level"}
    assert rules.forced("all_gather", K) == ("ring",)
    assert rules.allows("all_to_all", "TWO_LEVEL", 0)


def test_size_ranges_start_inclusive_end_exclusive() -> None:
    rules = parse_algo("all_reduce:tree@0-64K,ring@64K-max", KNOWN)
    assert rules.forced("all_reduce", 0) == ("tree",)
    assert rules.forced("all_reduce", 64 * K - 1) == ("tree",)
    assert rules.forced("all_reduce", 64 * K) == ("ring",)
    assert rules.forced("all_reduce", 2**50) == ("ring",)


def test_size_that_nothing_covers_is_free() -> None:
    rules = parse_algo("all_reduce:tree@1K-64K", KNOWN)
    assert allowed(rules, "all_reduce", K - 1) == set(KNOWN["all_reduce"])
    assert allowed(rules, "all_reduce", K) == {"tree"}
    assert rules.forced("all_reduce", 64 * K) is None


def test_overlapping_ranges_add_up() -> None:
    rules = parse_algo("all_reduce:tree@0-64K,ring,tree@1M-2M", KNOWN)
    assert rules.forced("all_reduce", 1) == ("tree", "ring")
    assert rules.forced("all_reduce", 64 * K) == ("ring",)
    assert rules.forced("all_reduce", K * K) == ("ring", "tree")


def test_exclusion_in_a_range() -> None:
    rules = parse_algo("all_reduce:^ring@0-64K", KNOWN)
    assert not rules.allows("all_reduce", "ring", 0)
    assert rules.allows("all_reduce", "ring", 64 * K)


def test_variants() -> None:
    rules = parse_algo("all_reduce:ring[channels=2, order=host]@0-1M,tree", KNOWN)
    assert rules.allows("all_reduce", "ring[channels=2,order=host]", 0)
    assert not rules.allows("all_reduce", "ring[channels=4,order=host]", 0)
    assert not rules.allows("all_reduce", "ring", 0)
    assert rules.allows("all_reduce", "tree[arity=3]", 0), "a bare name means every variant"
    assert not rules.allows("all_reduce", "ring[channels=2,order=host]", 2**20)


def test_reasons() -> None:
    rules = parse_algo("all_reduce:tree@0-64K,ring@64K-max;all_to_all:^pairwise", KNOWN)
    assert rules.reason("all_reduce", "tree", 5) is None
    assert rules.reason("all_reduce", "ring", 4 * K) == "TOPOCCL_ALGO allows only tree@0-64K for all_reduce of 4K bytes"
    assert rules.reason("all_to_all", "pairwise[x=1]", 5) == "excluded by TOPOCCL_ALGO: all_to_all:^pairwise"
    assert rules.reason("all_to_all", "bruck", 5) is None
    assert rules.reason("barrier", "dissemination", 0) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("quicksort", "unknown algorithm 'quicksort' for any collective; known: bruck, direct, dissemination, hierarchical, pairwise"),
        ("all_reduce:pairwise", "unknown algorithm 'pairwise' for all_reduce; known: direct, hierarchical, ring, tree"),
        ("all_redcue:ring", "unknown collective 'all_redcue'; known: all_reduce, all_gather, all_to_all, barrier"),
        ("all_reduce:ring;tree", "entry 'tree' names no collective; only the first entry may lack one"),
        ("all_reduce:ring;allreduce:tree", "all_reduce has two entries"),
        ("ring;", "entry 2 of 'ring;' is empty"),
        ("all_reduce:", "a name is empty in ''"),
        ("all_reduce:^", "a name is empty in '^'"),
        ("ring,,tree", "a name is empty in 'ring,,tree'"),
        ("ring,^tree", "'^tree' in 'ring,^tree': ^ stands before the whole list"),
        ("all_reduce:ring@64K", "'ring@64K': expected a range start-end after @"),
        ("all_reduce:ring@", "'ring@': expected a range start-end after @"),
        ("all_reduce:ring@0-64X", "'ring@0-64X': bad size '64X'"),
        ("all_reduce:ring@max-64K", "'ring@max-64K': bad size 'max'"),
        ("all_reduce:ring@64K-64K", "'ring@64K-64K': the range is empty"),
        ("all_reduce:ring@1M-64K", "'ring@1M-64K': the range is empty"),
        ("all_reduce:ring[channels]", "[channels] is not a list of key=value"),
        ("all_reduce:ring[]", "[] is not a list of key=value"),
        ("all_reduce:ring[a=1", "'ring[a=1' is not of the form name"),
        ("all_reduce:ring[a=1]x", "is not of the form name"),
        ("all_reduce:ring:tree", "unknown algorithm 'ring:tree' for all_reduce"),
    ],
)
def test_bad_text(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_algo(text, KNOWN)


_SIZES = st.integers(0, 2**42)
_ITEMS = st.builds(
    lambda name, label, ends: f"{name}{label}" + (f"@{min(ends)}-{'max' if min(ends) == max(ends) else max(ends)}" if ends else ""),
    st.sampled_from(KNOWN["all_reduce"]),
    st.sampled_from(["", "[a=1]", "[a=1,b=x]"]),
    st.one_of(st.none(), st.tuples(_SIZES, _SIZES)),
)


@given(st.lists(_ITEMS, min_size=1, max_size=4), st.booleans(), _SIZES, st.sampled_from(KNOWN["all_reduce"]))
def test_text_of_rules_means_the_same(items: list[str], exclude: bool, nbytes: int, name: str) -> None:
    rules = parse_algo(f"all_reduce:{'^' if exclude else ''}{','.join(items)}", KNOWN)
    again = parse_algo(str(rules), KNOWN)
    assert again == rules
    for label in (name, f"{name}[a=1]"):
        assert again.allows("all_reduce", label, nbytes) == rules.allows("all_reduce", label, nbytes)
        assert rules.allows("all_reduce", label, nbytes) == (rules.reason("all_reduce", label, nbytes) is None)
    forced = rules.forced("all_reduce", nbytes)
    if forced is not None:
        assert all(rules.allows("all_reduce", choice, nbytes) for choice in forced)
