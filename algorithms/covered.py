"""The choice for a call whose candidates were all measured: a look-up, in which nothing is predicted and only the winner is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from topoccl.algorithms.choice import MEASURED, Candidate, Choice
from topoccl.algorithms.registry import build_verified, by_name
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.tuning import Measured
from topoccl.topology.graph import Topology

NOT_MEASURED = "not measured, where measurements say enough"


class Row(Protocol):
    """A line of the selector's table; ``excluded`` says why rules forbid it."""

    @property
    def label(self) -> str: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def params(self) -> tuple[tuple[str, Any], ...]: ...
    @property
    def excluded(self) -> str | None: ...


def fastest(rows: Sequence[Row], measured: Mapping[str, Measured]) -> str | None:
    """The label of the row that may serve and was measured fastest; None if none was measured. Of equal ones the first."""
    allowed = [row.label for row in rows if row.excluded is None and row.label in measured]
    return min(allowed, key=lambda label: measured[label].seconds, default=None)


def measured_choice(
    spec: CollectiveSpec, topology: Topology, nbytes: int, rows: Sequence[Row], measured: Mapping[str, Measured], source: str, profile: str
) -> Choice | None:
    """The choice of the row that was measured fastest; None if it cannot serve, so that the other rows have to be looked at.

    Its number of segments must be known. Neither the bound nor the busiest link is worked out: ``topoccl explain`` does that.

    Args:
        source: the file, for people.
        profile: a name, for people.
    """
    winner = fastest(rows, measured)
    if winner is None or measured[winner].segments is None:
        return None
    row = next(row for row in rows if row.label == winner)
    algorithm = by_name(spec.collective, row.algorithm)
    try:
        schedule = build_verified(algorithm, spec, topology, dict(row.params))
    except (TypeError, ValueError):  # measured elsewhere, or edited by hand
        return None
    best = measured[winner]
    others = sorted((measured[r.label].seconds, r.label) for r in rows if r.label in measured and r.excluded is None and r.label != winner)
    next_best = f"; next is {others[0][1]} with {others[0][0] / best.seconds:.3g} times its time" if others else ""
    candidates = []
    for one in rows:
        found = measured.get(one.label)
        if one.excluded is not None:
            candidates.append(Candidate(one.label, rejected=one.excluded))
        elif found is None:
            candidates.append(Candidate(one.label, rejected=NOT_MEASURED))
        else:
            why = None if one.label == winner else f"{found.seconds / best.seconds:.3g} times the time of {winner}"
            candidates.append(Candidate(one.label, found.seconds, why, found.segments or 1, mode=MEASURED))
    return Choice(
        collective=spec.collective,
        nbytes=nbytes,
        algorithm=winner,
        schedule=schedule,
        segments=best.segments or 1,
        pulls=best.pulls,
        seconds=best.seconds,
        bound_seconds=0.0,
        bound="not worked out where measurements say enough",
        bottleneck="",
        reason=f"{winner} is the fastest of {len(others) + 1} candidates measured in {source}{next_best}",
        candidates=tuple(candidates),
        mean_size=spec.uneven,
        topology=topology.name,
        profile=profile,
    )
