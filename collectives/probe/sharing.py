"""What flows get when they share links: max-min fairness. Pure.

Who gets how much of a shared link is not predictable with TCP; how much all its flows get together is, and only that is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

_SLACK = 1e-9


def share(
    paths: Sequence[Sequence[int]], capacity: Mapping[int, float] | Sequence[float], weights: Sequence[float] | None = None
) -> list[float]:
    """For each flow its rate in bytes/s, infinite for an empty path: the first of what :func:`fill` returns."""
    return fill(paths, capacity, weights)[0]


def fill(
    paths: Sequence[Sequence[int]], capacity: Mapping[int, float] | Sequence[float], weights: Sequence[float] | None = None
) -> tuple[list[float], list[int | None]]:
    """Progressive filling.

    Args:
        paths: for each flow the links that it crosses.
        capacity: bytes/s of each link.
        weights: flows at one full link get rates in these proportions; equal by default.

    Returns:
        For each flow its rate in bytes/s, infinite for an empty path; and the full link that limits it, None for an empty path.
    """
    weight = [1.0] * len(paths) if weights is None else list(weights)
    left = {link: capacity[link] for path in paths for link in path}
    users: dict[int, set[int]] = {link: set() for link in left}
    for flow, path in enumerate(paths):
        for link in path:
            users[link].add(flow)
    rates = [math.inf] * len(paths)
    limits: list[int | None] = [None] * len(paths)
    level = {link: left[link] / sum(weight[flow] for flow in flows) for link, flows in users.items()}
    while level:
        tightest = min(level, key=lambda link: (level[link], link))
        unit = level[tightest]
        changed = set()
        for flow in users[tightest].copy():
            rates[flow], limits[flow] = weight[flow] * unit, tightest
            for link in set(paths[flow]):
                users[link].discard(flow)
                left[link] = max(left[link] - rates[flow], 0.0)
                changed.add(link)
        for link in changed:
            if users[link]:
                level[link] = max(left[link] / sum(weight[flow] for flow in users[link]), unit * (1 - _SLACK))
            else:
                del level[link]
    return rates, limits
