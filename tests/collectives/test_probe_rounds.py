from __future__ import annotations

from itertools import combinations

import pytest

from topoccl.collectives.probe.rounds import chains, crossing, disjoint, partners, shuffled_tournament, spread, tournament


def all_disjoint(pairs: list[tuple[int, int]]) -> bool:
    players = [player for pair in pairs for player in pair]
    return len(players) == len(set(players))


@pytest.mark.parametrize("players", range(1, 14))
@pytest.mark.parametrize("seed", [None, 0, 7])
def test_tournament_is_a_factorisation(players: int, seed: int | None) -> None:
    who = [10 * number for number in range(players)]
    rounds = tournament(who) if seed is None else shuffled_tournament(who, seed)
    assert len(rounds) == (players - 1 if players % 2 == 0 else players if players > 1 else 1)
    assert all(all_disjoint(pairs) for pairs in rounds)
    assert all(len(pairs) == players // 2 for pairs in rounds)
    assert sorted(tuple(sorted(pair)) for pairs in rounds for pair in pairs) == sorted(combinations(who, 2))


def test_first_round_loads_what_is_between_the_halves() -> None:
    assert all(a < 4 <= b for a, b in tournament(range(8))[0])


def test_shuffles_differ_and_repeat() -> None:
    assert shuffled_tournament(range(8), 1) == shuffled_tournament(range(8), 1)
    assert shuffled_tournament(range(8), 1) != shuffled_tournament(range(8), 2)


@pytest.mark.parametrize("sizes", [(2, 2), (4, 4, 4), (1, 2, 3), (5, 1, 1), (3,), (7, 2), (2, 2, 2, 2, 1)])
def test_crossing_pairs_cross(sizes: tuple[int, ...]) -> None:
    groups, first = [], 0
    for size in sizes:
        groups.append(tuple(range(first, first + size)))
        first += size
    home = {host: number for number, group in enumerate(groups) for host in group}
    pairs = crossing(groups)
    assert all_disjoint(pairs)
    assert all(home[a] != home[b] for a, b in pairs)
    largest = max(sizes)
    assert len(pairs) == min(first // 2, first - largest)


def test_chains_check_every_group_while_the_others_cross() -> None:
    groups = [(0, 1, 2, 3), (4, 5, 6, 7)]
    rounds = chains(groups)
    assert len(rounds) == 3
    assert all(all_disjoint(pairs) for pairs in rounds)
    for step, pairs in enumerate(rounds):
        assert {(step, step + 1), (4 + step, 5 + step)} <= set(pairs)
        assert all(a < 4 <= b for a, b in pairs if b - a > 1)


def test_edges_in_disjoint_rounds() -> None:
    ring = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)]
    rounds = disjoint(ring)
    assert all(all_disjoint(pairs) for pairs in rounds)
    assert sorted(pair for pairs in rounds for pair in pairs) == sorted(ring)
    assert len(rounds) == 3


def test_spread_differs_by_source() -> None:
    hosts = range(32)
    chosen = [spread(host, 8, hosts) for host in hosts]
    assert all(len(set(some)) == 8 and host not in some for host, some in enumerate(chosen))
    assert len({tuple(sorted(some)) for some in chosen}) > 3
    assert spread(2, 8, range(5)) == [0, 1, 3, 4]


def test_partners() -> None:
    assert partners([3, 5], range(8)) == {3: 5, 5: 3}
    assert partners([3, 5, 7], range(8)) == {3: 5, 5: 3, 7: 5}
    assert partners([0], [0, 1]) == {0: 1}
    assert partners([], range(3)) == {}
