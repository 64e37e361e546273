"""How well a topology explains measurements. Pure.

How flows share a full link is TCP's affair: what those that one link limits get together counts, not what each of them gets. And there is a
limit to what goes over all links together, which no topology knows: that of the machine that plays several hosts, or of a switch.
It slows all flows alike, and is taken for what was at most seen.
"""

from __future__ import annotations

import math
from typing import Any

from topoccl.collectives.probe.sharing import fill
from topoccl.collectives.probe.table import Table
from topoccl.topology.graph import Topology
from topoccl.topology.routes import Routes

_OVER = 2.0  # more in all than predicted speaks against a topology so many times as much as less: disturbances only take away
_FULL = 0.98
_AGREES = 0.15
_UNTESTED = 0.25


class Fit:
    """Predictions of all measurements of ``table`` with ``topology``, whose rates are those of the wire."""

    def __init__(self, table: Table, topology: Topology, efficiency: float) -> None:
        self._table = table
        self._topology = topology
        self._capacity = [link.bandwidth * efficiency for link in topology.links]
        routes = Routes(topology)
        self._paths = [[routes.path(*flow) for flow in outcome.flows] for outcome in table.outcomes]
        filled = [fill(paths, self._capacity) for paths in self._paths]
        self._rates = [rates for rates, _ in filled]
        self._limits = [limits for _, limits in filled]

    @property
    def misfit(self) -> float:
        """By how much measurements miss what is predicted, on average: 0 for not at all, 1 for all of it, or more."""
        limit = self._table.most_in_all()
        total = 0.0
        for outcome, rates, limits in zip(self._table.outcomes, self._rates, self._limits, strict=True):
            predicted = sum(rates)
            scale = min(1.0, limit / predicted)
            off: dict[int | None, float] = {}
            for got, rate, link in zip(outcome.rates, rates, limits, strict=True):
                off[link] = off.get(link, 0.0) + got - scale * rate
            missed = sum(map(abs, off.values()))
            missed += (_OVER - 1) * max(outcome.total - scale * predicted, 0.0)
            total += min(missed / (scale * predicted), 1.0)
        return total / max(len(self._rates), 1)

    def attrs(self) -> dict[tuple[str, str], dict[str, Any]]:
        """``confidence`` for each pair of links between hosts and switches, by their ends.

        Of the measurements that a link limits, the share in which all its flows together got what it carries, drawn towards one half
        as long as there are few. A link that limits nothing was only seen to carry what it had to: ``limits`` is False.
        """
        agreeing, limited = [0] * len(self._capacity), [0] * len(self._capacity)
        for outcome, paths, rates in zip(self._table.outcomes, self._paths, self._rates, strict=True):
            predicted: dict[int, float] = {}
            got: dict[int, float] = {}
            for path, rate, real in zip(paths, rates, outcome.rates, strict=True):
                for link in path:
                    predicted[link] = predicted.get(link, 0.0) + rate
                    got[link] = got.get(link, 0.0) + real
            for link, load in predicted.items():
                if load >= _FULL * self._capacity[link]:
                    limited[link] += 1
                    agreeing[link] += abs(got[link] - load) <= _AGREES * load
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for index in range(0, len(self._capacity), 2):  # directions are declared in pairs
            first = self._topology.links[index]
            if first.kind == "net":
                yes, seen = agreeing[index] + agreeing[index + 1], limited[index] + limited[index + 1]
                sure = {"confidence": math.floor(100 * (yes + 0.5) / (seen + 1)) / 100}
                found[first.src, first.dst] = sure if seen else {"confidence": _UNTESTED, "limits": False}
        return found
