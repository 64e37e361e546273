"""Who talks with whom: rounds of disjoint pairs. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

Pair = tuple[int, int]


def tournament(players: Sequence[int]) -> list[list[Pair]]:
    """Every two of ``players`` meet in exactly one round; in each round everyone plays at most once.

    The circle method: the first player stays, the others move on by one place. ``n - 1`` rounds for even ``n``, ``n`` rounds, each
    with one idle player, for odd ``n``. The first round pairs the first half with the second: in a sensible order of hosts it
    loads what is between the halves most.
    """
    circle: list[int | None] = [*players]
    if len(circle) % 2:
        circle.append(None)
    half = len(circle) // 2
    rounds = []
    for _ in range(len(circle) - 1):
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append([(a, b) for a, b in pairs if a is not None and b is not None])
        circle.insert(1, circle.pop())
    return rounds


def shuffled_tournament(players: Sequence[int], seed: int) -> list[list[Pair]]:
    """A tournament in which other pairs play at the same time than in :func:`tournament`; the same for the same seed."""
    order = list(players)
    random.Random(seed).shuffle(order)
    return tournament(order)


def crossing(groups: Iterable[Sequence[int]], apart: Iterable[int] = ()) -> list[Pair]:
    """Disjoint pairs of members of different groups, as many as there can be; members in ``apart`` are left out.

    Members in the order of their groups, each with the one half a round further: no pair is within a group that has at most half of
    all. Of a larger group those who find no partner elsewhere are idle.
    """
    left_out = set(apart)
    waiting = sorted(([member for member in group if member not in left_out] for group in groups), key=len, reverse=True)
    total = sum(map(len, waiting))
    if waiting and 2 * len(waiting[0]) > total:
        waiting[0] = waiting[0][: total - len(waiting[0])]
    members = [member for group in waiting for member in group]
    half = len(members) // 2
    return list(zip(members[:half], members[half : 2 * half], strict=True))


def chains(groups: Sequence[Sequence[int]]) -> list[list[Pair]]:
    """Rounds that check groups: in round ``t`` members ``t`` and ``t + 1`` of every group meet, all others meet across groups."""
    rounds = []
    for step in range(max((len(group) for group in groups), default=0) - 1):
        inside = [(group[step], group[step + 1]) for group in groups if step + 1 < len(group)]
        rounds.append([*inside, *crossing(groups, {host for pair in inside for host in pair})])
    return rounds


def spread(source: int, count: int, others: Sequence[int]) -> list[int]:
    """At most ``count`` of ``others`` without ``source``, evenly taken, not the same ones for every source."""
    rest = [other for other in others if other != source]
    if len(rest) <= count:
        return rest
    return [rest[(source + k * len(rest) // count) % len(rest)] for k in range(count)]


def disjoint(edges: Iterable[Pair]) -> list[list[Pair]]:
    """``edges`` in as few rounds as a greedy choice gives (less than twice the largest degree); in a round everyone plays at most once."""
    found: list[list[Pair]] = []
    for edge in edges:
        free = next((pairs for pairs in found if not any(set(edge) & set(pair) for pair in pairs)), None)
        if free is None:
            found.append([edge])
        else:
            free.append(edge)
    return found


def partners(these: Sequence[int], everyone: Sequence[int]) -> dict[int, int]:
    """For each of ``these`` another one of them, in turns; the last of an odd number gets the one before, a single one anybody."""
    found: dict[int, int] = {}
    for a, b in zip(these[::2], these[1::2], strict=False):
        found |= {a: b, b: a}
    if len(these) % 2:
        last = these[-1]
        found[last] = these[-2] if len(these) > 1 else next(other for other in everyone if other != last)
    return found
