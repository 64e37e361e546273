"""Max-min fair sharing of resources among the flows that are active at one moment, kept up to date as they come and go.

Flows of one class share alike, so rates belong to classes. A resource is *hot* when its flows, each at the rate it would have
alone, would overload it; only hot resources slow anybody down, and a change touches only the classes that hang together by hot
resources.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

_SLACK = 1e-9


class Fabric:
    """Classes and capacities, prepared once for any number of simulations.

    Args:
        classes: the resources of each class.
        scale: bytes on the wire for each byte of payload of a class.
        capacity: bytes/s of each resource.
        solo: payload bytes/s of a flow of each class when it is alone.
    """

    def __init__(self, classes: Sequence[Sequence[int]], scale: Sequence[float], capacity: Sequence[float], solo: Sequence[float]) -> None:
        users: dict[int, list[int]] = {}
        for c, resources in enumerate(classes):
            for r in resources:
                users.setdefault(r, []).append(c)
        # Links in a row have the same users: only the narrowest of them can be the bottleneck.
        narrowest: dict[tuple[int, ...], int] = {}
        for r, group in users.items():
            key = tuple(group)
            if key not in narrowest or capacity[r] < capacity[narrowest[key]]:
                narrowest[key] = r
        kept = {r: i for i, r in enumerate(sorted(narrowest.values()))}
        self.classes = [tuple(kept[r] for r in resources if r in kept) for resources in classes]
        self.capacity = [capacity[r] for r in kept]
        self.scale = list(scale)
        self.solo = list(solo)
        self.memo: dict[tuple[int, ...], list[float]] = {}


class Sharing:
    """The active flows of one simulation: ``count`` and ``rate`` of each class."""

    def __init__(self, fabric: Fabric) -> None:
        self.count = [0] * len(fabric.classes)
        self.rate = list(fabric.solo)
        self._fabric = fabric
        self._limit = [c * (1 + _SLACK) for c in fabric.capacity]
        self._load = [0.0] * len(fabric.capacity)
        self._hot = [False] * len(fabric.capacity)
        self._users: list[dict[int, None]] = [{} for _ in fabric.capacity]

    def change(self, delta: dict[int, int]) -> list[tuple[int, float]]:
        """Adds ``delta[c]`` flows to each class ``c`` and returns each active class whose rate has changed, with the old rate."""
        fabric, count, rate, load, hot, users = self._fabric, self.count, self.rate, self._load, self._hot, self._users
        suspects: list[int] = []
        old: dict[int, float] = {}
        for c, more in delta.items():
            if not more:
                continue
            before = count[c]
            count[c] = after = before + more
            wire = fabric.solo[c] * fabric.scale[c] * more
            for r in fabric.classes[c]:
                load[r] += wire
                if before == 0:
                    users[r][c] = None
                elif after == 0:
                    del users[r][c]
                    if not users[r]:
                        load[r] = 0.0  # no drift
                if hot[r] or load[r] > self._limit[r]:
                    suspects.append(r)
            if before == 0:
                old[c] = rate[c]
                rate[c] = fabric.solo[c]
        for r in suspects:
            hot[r] = load[r] > self._limit[r]
        seen: set[int] = set()
        for r in suspects:
            for c in users[r]:
                if c not in seen:
                    component = self._component(c, seen)
                    for k, value in zip(component, self._rates(component), strict=True):
                        if rate[k] != value:
                            old.setdefault(k, rate[k])
                            rate[k] = value
        return [(c, was) for c, was in old.items() if rate[c] != was]

    def _component(self, start: int, seen: set[int]) -> list[int]:
        """The active classes that hang together with ``start`` by hot resources, in order; they are added to ``seen``."""
        classes, hot, users = self._fabric.classes, self._hot, self._users
        found, done = [start], set()
        seen.add(start)
        for c in found:  # grows while it is walked through
            for r in classes[c]:
                if hot[r] and r not in done:
                    done.add(r)
                    for other in users[r]:
                        if other not in seen:
                            seen.add(other)
                            found.append(other)
        found.sort()
        return found

    def _rates(self, component: list[int]) -> Iterable[float]:
        if len(component) == 1 and not any(self._hot[r] for r in self._fabric.classes[component[0]]):
            return (self._fabric.solo[component[0]],)
        key = (*component, *[self.count[c] for c in component])
        rates = self._fabric.memo.get(key)
        if rates is None:
            rates = self._fabric.memo[key] = self._fill(component)
        return rates

    def _fill(self, component: list[int]) -> list[float]:
        """Progressive filling: the tightest resource, or a flow's own limit, fixes its flows; what is left goes to the others."""
        fabric = self._fabric
        wire = {c: self.count[c] * fabric.scale[c] for c in component}
        resources = {c: [r for r in fabric.classes[c] if self._hot[r]] for c in component}
        left: dict[int, float] = {}
        weight: dict[int, float] = {}
        for c in component:
            for r in resources[c]:
                left[r] = fabric.capacity[r]
                weight[r] = weight.get(r, 0.0) + wire[c]
        rate: dict[int, float] = {}
        waiting = sorted(component, key=lambda c: fabric.solo[c])
        while waiting:
            share = {r: left[r] / w for r, w in weight.items() if w > _SLACK}
            tightest = min(share.values(), default=inf)
            level = min(tightest, fabric.solo[waiting[0]]) * (1 + _SLACK)
            full = {r for r, value in share.items() if value <= level}
            rest = []
            for c in waiting:
                limited = not full.isdisjoint(resources[c])
                if fabric.solo[c] > level and not limited:
                    rest.append(c)
                    continue
                rate[c] = min(fabric.solo[c], tightest) if limited else fabric.solo[c]
                for r in resources[c]:
                    left[r] = max(0.0, left[r] - rate[c] * wire[c])
                    weight[r] -= wire[c]
            waiting = rest
        return [rate[c] for c in component]
