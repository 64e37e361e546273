"""Which hosts share an uplink. Pure.

A pair that gets less than both its hosts can do is held back by something between them. A pair that is not, while others are,
is on this side of what holds the others back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from topoccl.collectives.probe.table import SAME, Outcome, Table, level

_DUPLEX = ("both_ways", "cross")
_KINDS = ("one_way", *_DUPLEX)
_AGAINST = 3.0  # a pair held back once weighs as much as three that were not: those may have got the lion's share of a full link
_HELD = 0.8  # of what the hosts can do: below, something else holds a flow back


@dataclass(frozen=True)
class Racks:
    """Hosts by rack, in the order of their lowest host, and what each rack sends to the others and receives from them.

    Attributes:
        members: hosts of each rack.
        up, down: bytes/s; None where nothing filled the uplink.
    """

    members: tuple[tuple[int, ...], ...]
    up: tuple[float | None, ...]
    down: tuple[float | None, ...]

    @classmethod
    def of(cls, table: Table, members: tuple[tuple[int, ...], ...]) -> Racks:
        """The racks ``members``, with what they exchange when they exchange as much as they can."""
        return cls(members, *_uplinks(table, members))


@dataclass
class _Evidence:
    together: float = 0.0
    apart: float = 0.0


def partition(table: Table) -> tuple[tuple[int, ...], ...]:
    """Hosts by rack: those between which nothing was ever held back, each with the lowest host first."""
    pairs = _evidence(table)
    groups = [[host] for host in range(len(table.hosts))]
    between: dict[tuple[int, int], _Evidence] = {(a, b): pairs.get((a, b), _Evidence()) for a, b in combinations(range(len(groups)), 2)}
    alive = set(range(len(groups)))
    for certain in (True, False):  # first those that evidence joins, then those that nothing separates
        while True:
            best = max((key for key in between if _joins(between[key], certain)), key=lambda key: _merit(between[key]), default=None)
            if best is None:
                break
            a, b = best
            groups[a] += groups[b]
            alive.discard(b)
            del between[best]
            for other in alive - {a}:
                kept, gone = between[min(a, other), max(a, other)], between.pop((min(b, other), max(b, other)))
                kept.together += gone.together
                kept.apart += gone.apart
    return tuple(sorted(tuple(sorted(groups[group])) for group in alive))


def _joins(evidence: _Evidence, certain: bool) -> bool:
    if certain:
        return evidence.together > _AGAINST * evidence.apart
    return evidence.apart == 0


def _merit(evidence: _Evidence) -> float:
    """How surely two groups belong together: the share of what speaks for it, then how much there is of it."""
    total = evidence.together + _AGAINST * evidence.apart
    return evidence.together / total + 1e-6 * evidence.together if total else 0.0


def _evidence(table: Table) -> dict[tuple[int, int], _Evidence]:
    found: dict[tuple[int, int], _Evidence] = {}
    for kinds in (("one_way",), _DUPLEX):
        sent, received = table.peaks(*kinds)
        limit = table.most_in_all(*kinds)
        for outcome in table.of_kind(*kinds):
            ends = table.ends(outcome)
            able = [min(sent[a], received[b]) for a, b in ends]
            scale = min(1.0, limit / sum(able))  # what holds all flows back alike is no uplink
            rows = [(min(ab), max(ab), rate / (scale * most)) for ab, rate, most in zip(ends, outcome.rates, able, strict=True)]
            if not any(share < _HELD for *_, share in rows):
                continue
            for a, b, share in rows:
                evidence = found.setdefault((a, b), _Evidence())
                if share < _HELD:
                    evidence.apart += 1
                elif share > SAME:
                    evidence.together += 1
    return found


def _uplinks(table: Table, members: tuple[tuple[int, ...], ...]) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    """What each rack sends to the others, and receives from them, where an uplink was full."""
    rack_of = {host: rack for rack, hosts in enumerate(members) for host in hosts}
    full: tuple[list[list[float]], list[list[float]]] = ([[] for _ in members], [[] for _ in members])
    for kinds in (("one_way",), _DUPLEX):
        sent, received = table.peaks(*kinds)
        for outcome in table.of_kind(*kinds):
            _add_full(table, outcome, rack_of, (sent, received), full)
    up, down = ([level(values) if values else None for values in side] for side in full)
    return tuple(up), tuple(down)


def _add_full(
    table: Table,
    outcome: Outcome,
    rack_of: dict[int, int],
    able: tuple[list[float], list[float]],
    full: tuple[list[list[float]], list[list[float]]],
) -> None:
    """Adds to ``full`` what racks sent and received together in ``outcome`` where that was less than their hosts could do."""
    crossing = [(number, a, b) for number, (a, b) in enumerate(table.ends(outcome)) if rack_of[a] != rack_of[b]]
    for side in range(2):
        flows: dict[int, list[int]] = {}
        wanted: dict[int, float] = {}
        for number, a, b in crossing:
            rack = rack_of[(a, b)[side]]
            flows.setdefault(rack, []).append(number)
            wanted[rack] = wanted.get(rack, 0.0) + min(able[0][a], able[1][b])
        for rack, numbers in flows.items():
            sums = [sum(run[number] for number in numbers) for run in outcome.runs]
            if _median(sums) < SAME * wanted[rack]:
                full[side][rack] += sums


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
