"""What is worth measuring for a call: the registry's candidates, each with some numbers of segments, the most promising first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from topoccl.algorithms.algorithm import Algorithm, label_of
from topoccl.algorithms.calibration import Profile
from topoccl.algorithms.choice import Choice
from topoccl.algorithms.cost import CostModel, block_bytes
from topoccl.algorithms.effort import expected_work, too_costly
from topoccl.algorithms.registry import algorithms_for, build_verified
from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.bounds import lower_bound
from topoccl.topology.graph import Topology
from topoccl.topology.routes import routes_of

SPREAD = 1.5
"""What is predicted to take more than so many times as long as the best is not measured,"""
FEW = 3
"""save that so many algorithms are, whatever is predicted."""
NEIGHBOURS = 3
"""The most promising algorithms are tried with half and double the number of segments too."""
NEAR = 0.85
"""Where the best prediction comes this close to the bound, algorithms that take seconds to build are left out,"""
LIMITED = 0.3
"""and also where bandwidth explains less than this share of it."""


@dataclass(frozen=True)
class Candidate:
    """A schedule, how it is run, and what it is predicted to take."""

    label: str
    schedule: Schedule
    segments: int
    pulls: bool
    predicted: float

    @property
    def key(self) -> tuple[str, int, bool]:
        return (self.label, self.segments, self.pulls)

    def choice(self, nbytes: int, topology: Topology) -> Choice:
        """What the executor is told."""
        return Choice(
            collective=self.schedule.spec.collective,
            nbytes=nbytes,
            algorithm=self.label,
            schedule=self.schedule,
            segments=self.segments,
            seconds=self.predicted,
            bound_seconds=0.0,
            bound="not worked out",
            bottleneck="",
            reason="measured by topoccl tune",
            candidates=(),
            topology=topology.name,
            pulls=self.pulls,
        )


def candidates(
    spec: CollectiveSpec, topology: Topology, nbytes: int, profile: Profile, asked: Collection[str] = (), spread: float = SPREAD
) -> list[Candidate]:
    """The candidates for a call of ``nbytes``, those first that are predicted to be fastest.

    Args:
        asked: labels that stay in whatever is predicted, and come first.
    """
    block = block_bytes(spec, nbytes)
    plain = [(a, dict(v)) for a in algorithms_for(spec.collective) for v in a.variants if not a.costly]
    found = _predicted(plain, spec, topology, block, profile, asked, spread)
    costly = [(a, dict(v)) for a in algorithms_for(spec.collective) for v in a.variants if a.costly]
    best = min((c.predicted for c in found), default=float("inf"))
    bound = lower_bound(topology, spec.collective, nbytes, spec.root, search=False)
    if not found or (bound.bandwidth_seconds > LIMITED * best and bound.seconds < NEAR * best):
        found += _predicted(costly, spec, topology, block, profile, asked, spread)
        best = min((c.predicted for c in found), default=float("inf"))
    ordered = sorted(found, key=lambda c: (c.label not in asked, c.predicted))
    few = list(dict.fromkeys(c.label for c in ordered))[:FEW]
    return [c for c in ordered if c.predicted <= spread * best or c.label in asked or c.label in few]


def _predicted(
    rows: Sequence[tuple[Algorithm, dict[str, object]]], spec: CollectiveSpec, topology: Topology, block: float, profile: Profile,
    asked: Collection[str], spread: float,
) -> list[Candidate]:  # fmt: skip
    models: dict[str, CostModel] = {}
    digests: set[str] = set()
    rows = [(algorithm, variant) for algorithm, variant in rows if algorithm.reject(spec, topology) is None]
    work = {label_of(a.name, v): expected_work(a, spec, topology, v) for a, v in rows}
    left_out = too_costly(work, spec.ranks).keys() - set(asked)
    for algorithm, variant in rows:
        if label_of(algorithm.name, variant) in left_out:
            continue
        try:
            schedule = build_verified(algorithm, spec, topology, variant)
        except ValueError:  # cannot serve these ranks
            continue
        if schedule.digest not in digests:
            digests.add(schedule.digest)
            models[label_of(algorithm.name, variant)] = CostModel(schedule, topology, profile, routes_of(topology))
    found: list[Candidate] = []
    best = float("inf")
    for least, label in sorted((model.least(block), label) for label, model in models.items()):
        if least > spread * best and label not in asked and len(found) >= FEW:
            continue
        model = models[label]
        chosen = model.choose_segments(block, spread * best)
        best = min(best, chosen.seconds)
        found.append(Candidate(label, model.schedule, chosen.segments, chosen.pulls, chosen.seconds))
    for candidate in sorted(found, key=lambda c: c.predicted)[:NEIGHBOURS]:
        model = models[candidate.label]
        ladder = model.ladder(block)
        others = {candidate.segments // 2, candidate.segments * 2} & set(ladder)
        if candidate.pulls:
            others |= {ladder[0]}
        for segments in sorted(others):
            found.append(Candidate(candidate.label, model.schedule, segments, False, model.predict(block, segments).seconds))
        if not candidate.pulls and (pulled := model.pulled(block)) is not None:
            found.append(Candidate(candidate.label, model.schedule, 1, True, pulled.seconds))
    return found
