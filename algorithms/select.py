"""Which algorithm serves a call: a table of candidates with predicted or measured seconds, then argmin.

Rules (``TOPOCCL_ALGO``) and measured times (``TOPOCCL_TUNE_FILE``) only edit the table. Nothing here depends on the order of
hashes or on time. What does depend on the rank is which forests it keeps, so one rank chooses and tells the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from topoccl.algorithms.algorithm import label_of, read_label
from topoccl.algorithms.calibration import IDEAL, Profile
from topoccl.algorithms.choice import MEASURED, Candidate, Choice, format_choice
from topoccl.algorithms.cost import CostModel, Prediction, block_bytes
from topoccl.algorithms.covered import NOT_MEASURED, fastest, measured_choice
from topoccl.algorithms.effort import expected_work, too_costly
from topoccl.algorithms.forest import quick
from topoccl.algorithms.registry import algorithms_for, build_verified, by_name
from topoccl.algorithms.selection_rules import AlgoRules
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.tuning import Measured, Tuning
from topoccl.topology.bounds import Bound, lower_bound
from topoccl.topology.graph import Topology
from topoccl.topology.routes import routes_of
from topoccl.topology.units import format_size, format_time

__all__ = ["FALLBACKS", "Candidate", "Choice", "SelectionError", "Selector", "format_choice", "select"]

FALLBACKS = ("error", "print", "silent")
EQUAL = 0.01
"""Predictions that are this close, relatively, count as equal: then fewer messages win, then the order of the registry."""

CLEARLY = 0.05
"""By so much, relatively, schedules that are costly to build have to be faster than the best of the others if they have more messages:
their predictions are less sure."""

HOPELESS = 1.25
"""Candidates that a rough look finds slower than the best by this factor are not looked at more closely."""

NEAR = 0.97
"""A candidate this close to the bound needs no better one, and no better bound."""

OVERHEADS = 0.1
"""A candidate of which bandwidth explains no more than this share is not limited by it."""

SEARCHED_RANKS = 32
"""Up to so many ranks a running program may search for the best cut (a second at most) and for the best trees (a few); among more for
trees that it has, or that take no longer."""

EXPLAINED_RANKS = 1024
"""Up to so many ranks ``exhaustive`` is heeded."""


class SelectionError(ValueError):
    """No algorithm may serve a call; the message names the collective, the size, the reasons and the known algorithms."""


class _Row(NamedTuple):
    """A line of the table before anything is predicted; ``excluded`` says why the rules forbid it, ``paper`` that it is only for those
    who ask about links alone."""

    label: str
    algorithm: str
    params: tuple[tuple[str, Any], ...]
    excluded: str | None
    paper: bool = False


def select(
    spec: CollectiveSpec, topology: Topology, nbytes: int | None = None, itemsize: int = 1, rules: AlgoRules | None = None,
    profile: Profile = IDEAL, fallback: str = "error", *, block_elems: int | Sequence[int] | None = None, exhaustive: bool = False,
    tuning: Tuning | None = None,
) -> Choice:  # fmt: skip
    """Chooses a schedule.

    Args:
        spec: the collective. When its counts are uneven, pass the mean of the ranks' sizes, a value equal on all ranks.
        topology: where the ranks sit.
        nbytes: the size of the call as nccl-tests counts it (the larger of a rank's two buffers).
        itemsize, block_elems: the size in another form, when ``nbytes`` is None: elements of each block (their mean counts).
        rules: what ``TOPOCCL_ALGO`` says; None allows everything.
        profile: what the transport costs beyond the links.
        fallback: ``error``, or ``print`` or ``silent`` to take another algorithm when none that the rules allow can serve the
            call (``print`` fills ``Choice.warning``).
        exhaustive: predict every candidate, also those that cannot win, and search for the best bound; the choice is the same.
            Among more than :data:`EXPLAINED_RANKS` ranks neither is done.
        tuning: times to use in place of predicted ones, and how far those were off; that they hold for ``topology`` is for the caller to
            see (:meth:`~topoccl.algorithms.tuning.Tuning.at`).

    Raises:
        SelectionError: no algorithm may serve the call.
        ValueError: an unknown ``fallback``, another number of ranks than the topology's, no size or a negative one.
    """
    if fallback not in FALLBACKS:
        raise ValueError(f"fallback is {fallback!r}; known: {', '.join(FALLBACKS)}")
    if topology.num_ranks != spec.ranks:
        raise ValueError(f"{spec.collective} of {spec.ranks} ranks, but topology {topology.name!r} places {topology.num_ranks}")
    if nbytes is None:
        nbytes = _nbytes(spec, block_elems, itemsize)
    if nbytes < 0:
        raise ValueError(f"{spec.collective}: {nbytes} bytes; expected a size that is not negative")
    rules = rules if rules is not None else AlgoRules()
    tuning = tuning if tuning is not None else Tuning()
    exhaustive = exhaustive and spec.ranks <= EXPLAINED_RANKS
    rows, measured = _rows(spec, topology, rules, nbytes, tuning, exhaustive and profile.name == IDEAL.name)
    at = {"root": spec.root, "hosts": len(topology.ranks_by_host)}
    covered = not spec.uneven and tuning.covers(spec.collective, spec.ranks, nbytes, **at)
    if covered and not exhaustive:
        known = measured_choice(spec, topology, nbytes, rows, measured, tuning.source, profile.name)
        if known is not None:
            return known
    rejected = {row.label: row.excluded for row in rows if row.excluded is not None}
    allowed = [row for row in rows if row.excluded is None and not row.paper]
    models, waiting = _admit_first(allowed, spec, topology, profile, measured, rejected)
    warning = None
    if not models:
        problem = _problem(spec, nbytes, rows, rejected)
        others = [row for row in rows if row.excluded is not None and not row.paper]
        if fallback == "error" or not others:
            raise SelectionError(f"{problem}; TOPOCCL_FALLBACK=print or silent takes another one" if others else problem)
        warning = problem
        models, waiting = _admit_first(others, spec, topology, profile, measured, rejected)
        if not models:
            raise SelectionError(_problem(spec, nbytes, rows, rejected))
        for label in (*models, *(row.label for row in waiting)):
            del rejected[label]
    block = block_bytes(spec, nbytes)
    off = {row.label: tuning.factor(spec.collective, spec.ranks, row.label, nbytes) for row in rows}
    predictions = _predict(models, block, measured, off, exhaustive)
    winner = _argmin(predictions)
    costly: dict[str, Prediction] = {}
    enough = _enough(spec, topology, nbytes, profile, predictions[winner]) if waiting else None
    if waiting and (enough is None or exhaustive):
        more = _admit(waiting, spec, topology, profile, measured, rejected)
        costly = _predict(more, block, measured, off, exhaustive, math.inf if exhaustive else predictions[winner].seconds)
        models |= more
        so_far = predictions[winner]
        margins = {label: CLEARLY if p.messages > so_far.messages else EQUAL for label, p in costly.items()}
        clearly = {label: p for label, p in costly.items() if p.seconds * (1 + margins[label]) < so_far.seconds}
        if enough is None and clearly:
            winner = _argmin(clearly)
    elif waiting:
        rejected |= {row.label: f"not built: {enough}" for row in waiting}
    predictions |= costly
    if covered and (known_best := fastest(rows, measured)) in models:
        winner = known_best
    if paper := [row for row in rows if row.paper and row.excluded is None]:
        near = _near(spec, topology, nbytes, profile, predictions[winner])
        more = {} if near else _admit(paper, spec, topology, profile, measured, rejected)
        rejected |= {row.label: f"not built: {near}" for row in paper if near}
        models |= more
        predictions |= _predict(more, block, measured, off, True)
        winner = min((winner, *more), key=lambda label: predictions[label].seconds * (1 if label == winner else 1 + EQUAL))
    least = {label: off[label] * model.least(block) for label, model in models.items() if label not in predictions}
    rejected |= _compare(winner, predictions, least)
    if enough is not None:
        as_fast = predictions[winner].seconds * (1 + EQUAL)
        rejected |= {label: f"programs do not build it: {enough}" for label, p in costly.items() if p.seconds <= as_fast}
    elif costly and winner not in costly:
        why = f"less than {CLEARLY:.0%} faster than {winner}, with more messages"
        rejected |= {label: why for label, p in costly.items() if p.seconds * (1 + EQUAL) < predictions[winner].seconds}
    if covered and winner in measured:
        rejected |= dict.fromkeys(models.keys() - measured.keys(), NOT_MEASURED)
    used = {label: tuning.source for label in models if label in measured}
    reason = _reason(winner, predictions, len(models), rules.forced(spec.collective, nbytes), used, rejected)
    if warning is not None:
        reason = f"{warning}; of the others, {reason}"
    if models[winner].schedule.ways:
        reason += " (it names ways for its messages; programs cannot choose them, and send over the network's own)"
    if spec.uneven:
        reason += " (counts differ between ranks: judged by their mean)"
    best = predictions[winner]
    bound = _bound(spec, topology, nbytes, best.seconds, exhaustive)
    return Choice(
        collective=spec.collective,
        nbytes=nbytes,
        algorithm=winner,
        schedule=models[winner].schedule,
        segments=best.segments,
        pulls=best.pulls,
        seconds=best.seconds,
        bound_seconds=bound.seconds,
        bound=bound.description,
        bottleneck=_bottleneck(topology, best),
        reason=reason,
        candidates=tuple(_candidate(row.label, predictions.get(row.label), rejected.get(row.label), row.label in used) for row in rows),
        warning=warning if fallback == "print" else None,
        mean_size=spec.uneven,
        topology=topology.name,
        profile=profile.name,
    )


class Selector:
    """Choices of one group, remembered by collective, root, item size and class of sizes: the steady state is one look-up.

    Args:
        topology: where the ranks of the group sit.
        rules, profile, fallback, tuning: as for :func:`select`.
    """

    def __init__(
        self, topology: Topology, rules: AlgoRules | None = None, profile: Profile = IDEAL, fallback: str = "error",
        tuning: Tuning | None = None,
    ) -> None:  # fmt: skip
        self.topology = topology
        self.rules = rules if rules is not None else AlgoRules()
        self.profile = profile
        self.fallback = fallback
        self.tuning = tuning
        self._bounds = {
            collective: sorted({edge for item in entry.items for edge in (item.start, item.end) if edge})
            for collective, entry in self.rules.entries.items()
        }
        self._choices: dict[tuple[CollectiveSpec, int, int, bool], Choice] = {}

    def for_topology(self, topology: Topology) -> Selector:
        """A selector with the same settings for another group."""
        return Selector(topology, self.rules, self.profile, self.fallback, self.tuning and self.tuning.for_group(topology))

    def size_class(self, collective: str, nbytes: int) -> int:
        """The representative of the sizes that get the same choice as ``nbytes``.

        Classes are centred on powers of two (from 1/sqrt(2) to sqrt(2) times) and cut where a rule for the collective begins or
        ends; the representative is the power of two, or the size next to it that is in the class.
        """
        nearest = 1 << ((nbytes * nbytes).bit_length() // 2) if nbytes else 0
        for edge in self._bounds.get(collective, ()):
            if edge <= nbytes:
                nearest = max(nearest, edge)
            else:
                return min(nearest, edge - 1)
        return nearest

    def choose(self, spec: CollectiveSpec, nbytes: int, itemsize: int = 1, small_pages: bool = False) -> Choice:
        """The choice for the class of ``nbytes``, for buffers on huge pages or on small ones; errors as for :func:`select`."""
        key = (spec, self.size_class(spec.collective, nbytes), itemsize, small_pages)
        choice = self._choices.get(key)
        if choice is None:
            profile = self.profile.on_small_pages() if small_pages else self.profile
            choice = select(spec, self.topology, key[1], itemsize, self.rules, profile, self.fallback, tuning=self.tuning)
            self._choices[key] = choice
        return choice


# The table


def _rows(
    spec: CollectiveSpec, topology: Topology, rules: AlgoRules, nbytes: int, tuning: Tuning, paper: bool
) -> tuple[list[_Row], dict[str, Measured]]:
    """Every variant of every algorithm of the collective, then variants that only the rules or measurements name; and what was measured.
    On ``paper`` also variants that programs cannot run as they are meant."""
    rows: list[_Row] = []
    forced = rules.forced(spec.collective, nbytes) or ()
    for algorithm in algorithms_for(spec.collective):
        for variant in (*algorithm.variants, *(algorithm.on_paper if paper else ())):
            label = label_of(algorithm.name, variant)
            excluded = rules.reason(spec.collective, label, nbytes)
            asked_for = variant in algorithm.variants or label in forced
            rows.append(_Row(label, algorithm.name, tuple(sorted(variant.items())), excluded, not asked_for))
    known = {(row.algorithm, row.params) for row in rows}
    for selector in forced:
        name, params = _parameters(selector)
        if params and (name, params) not in known:
            rows.append(_Row(selector, name, params, None))
            known.add((name, params))
    hosts = len(topology.ranks_by_host)

    def look_up(label: str) -> Measured | None:
        return tuning.seconds(spec.collective, spec.ranks, label, nbytes, root=spec.root, hosts=hosts)

    for label in tuning.labels(spec.collective, spec.ranks):
        if _parameters(label) not in known and look_up(label) is not None:
            rows.append(_Row(label, *_parameters(label), rules.reason(spec.collective, label, nbytes)))
    return rows, {row.label: found for row in rows if (found := look_up(row.label)) is not None}


def _parameters(label: str) -> tuple[str, tuple[tuple[str, Any], ...]]:
    name, params = read_label(label)
    return name, tuple(sorted(params.items()))


def _admit(
    rows: Sequence[_Row], spec: CollectiveSpec, topology: Topology, profile: Profile, measured: Mapping[str, Measured],
    rejected: dict[str, str],
) -> dict[str, CostModel]:  # fmt: skip
    """The models of the rows that can serve; for the others the reason goes to ``rejected``. Of rows with one schedule the first stays,
    or the first that was measured."""
    models: dict[str, CostModel] = {}
    twins: dict[str, str] = {}
    expected: dict[str, float] = {}
    refused: dict[str, str] = {}
    for row in rows:
        reason = by_name(spec.collective, row.algorithm).reject(spec, topology) or _unknown_parameter(spec, row)
        if reason is not None:
            refused[row.label] = reason
        elif row.label not in measured:
            with suppress(ValueError):  # a parameter's value, which building it will tell
                expected[row.label] = expected_work(by_name(spec.collective, row.algorithm), spec, topology, dict(row.params))
    refused |= too_costly(expected, spec.ranks)
    for row in sorted(rows, key=lambda row: row.label not in measured):
        reason = refused.get(row.label)
        if reason is None:
            try:
                model = _model(spec, topology, row.algorithm, row.params, profile)
            except ValueError as error:  # a parameter's value, or a proof that failed: either way not a candidate
                reason = str(error)
            else:
                twin = twins.setdefault(model.schedule.digest, row.label)
                if twin == row.label:
                    models[row.label] = model
                    continue
                reason = f"here it is the same schedule as {twin}"
        rejected[row.label] = reason
    return {row.label: models[row.label] for row in rows if row.label in models}


def _admit_first(
    rows: Sequence[_Row], spec: CollectiveSpec, topology: Topology, profile: Profile, measured: Mapping[str, Measured],
    rejected: dict[str, str],
) -> tuple[dict[str, CostModel], list[_Row]]:  # fmt: skip
    """:func:`_admit` for the rows that are not costly to build, and the others, which may wait; for all if nothing else can serve."""
    waiting = [row for row in rows if by_name(spec.collective, row.algorithm).costly and row.label not in measured]
    models = _admit([row for row in rows if row not in waiting], spec, topology, profile, measured, rejected)
    return (models, waiting) if models else (_admit(waiting, spec, topology, profile, measured, rejected), [])


def _unknown_parameter(spec: CollectiveSpec, row: _Row) -> str | None:
    known = by_name(spec.collective, row.algorithm).parameters
    unknown = [key for key, _ in row.params if key not in known]
    return f"{row.algorithm} has no parameter {unknown[0]!r}; known: {', '.join(known) or 'none'}" if unknown else None


@lru_cache(maxsize=128)
def _model(spec: CollectiveSpec, topology: Topology, name: str, params: tuple[tuple[str, Any], ...], profile: Profile) -> CostModel:
    schedule = build_verified(by_name(spec.collective, name), spec, topology, dict(params))
    return CostModel(schedule, topology, profile, routes_of(topology))


# The choice


def _predict(
    models: Mapping[str, CostModel], block: float, measured: Mapping[str, Measured], off: Mapping[str, float], exhaustive: bool,
    best: float = math.inf,
) -> dict[str, Prediction]:  # fmt: skip
    """What was measured, then predictions times ``off``, most promising first; a model is left out when even its least time cannot win
    against these and against ``best`` seconds."""
    predictions = {label: _measured(model, block, measured[label]) for label, model in models.items() if label in measured}
    best = min([best, *(p.seconds for p in predictions.values())])
    others = ((off[label] * model.least(block), at, label) for at, (label, model) in enumerate(models.items()) if label not in measured)
    for least, _, label in sorted(others):
        if exhaustive or least <= best * (1 + EQUAL):
            found = models[label].choose_segments(block, best * HOPELESS / off[label])
            predictions[label] = replace(found, seconds=off[label] * found.seconds)
            best = min(best, predictions[label].seconds)
    return {label: predictions[label] for label in models if label in predictions}


def _measured(model: CostModel, block: float, measured: Measured) -> Prediction:
    """What the model says of messages and links, with the seconds that were measured."""
    pulled = model.pulled(block) if measured.pulls else None
    if pulled is None:
        pulled = model.choose_segments(block) if measured.segments is None else model.predict(block, measured.segments)
    return replace(pulled, seconds=measured.seconds)


def _argmin(predictions: Mapping[str, Prediction]) -> str:
    fastest = min(p.seconds for p in predictions.values())
    equal = [label for label, p in predictions.items() if p.seconds <= fastest * (1 + EQUAL)]
    # Streams of TCP need a while to find their rate, and hosts that change partners meet others that are late. Else the first of several.
    return min(equal, key=lambda label: (predictions[label].partners, predictions[label].messages))


def _compare(winner: str, predictions: Mapping[str, Prediction], least: Mapping[str, float]) -> dict[str, str]:
    """Why each of the others is not the choice."""
    best = predictions[winner]
    reasons = {label: f"takes at least {format_time(seconds)}" for label, seconds in least.items()}
    for label, p in predictions.items():
        if label == winner:
            continue
        if p.seconds > best.seconds * (1 + EQUAL):
            reasons[label] = f"{_times(p.seconds, best.seconds)} the time of {winner}"
        elif p.messages > best.messages:
            reasons[label] = f"about as fast as {winner}, with {p.messages} messages instead of {best.messages}"
        else:
            reasons[label] = f"about as fast as {winner}, which comes first"
    return reasons


def _times(slow: float, fast: float) -> str:
    return f"{slow / fast:.3g} times" if fast > 0 else f"{format_time(slow)}, not"


def _reason(
    winner: str,
    predictions: Mapping[str, Prediction],
    admitted: int,
    forced: tuple[str, ...] | None,
    measured: Mapping[str, str],
    rejected: Mapping[str, str],
) -> str:
    """``measured`` says where the time of a candidate comes from, if it was not predicted; ``rejected`` why others are not chosen."""
    allowed = f" that TOPOCCL_ALGO allows ({', '.join(forced)})" if forced else ""
    who = f"{winner}, as measured in {measured[winner]}," if winner in measured else winner
    if admitted == 1:
        return f"{who} is the only candidate{allowed}"
    others = sorted((p.seconds, label) for label, p in predictions.items() if label != winner)
    counted = f" ({len(measured)} measured, {admitted - len(measured)} predicted)" if measured else ""
    text = f"{who} is the fastest of {admitted} candidates{allowed}{counted}"
    best = predictions[winner]
    if not others:
        return f"{text}; no other can come as low"
    seconds, runner_up = others[0]
    if seconds * (1 + EQUAL) < best.seconds:
        return f"{who} is chosen of {admitted} candidates{allowed}{counted}; {runner_up} is predicted to be faster ({rejected[runner_up]})"
    if seconds > best.seconds * (1 + EQUAL):
        return f"{text}; next is {runner_up} with {_times(seconds, best.seconds)} its time"
    more = predictions[runner_up].messages
    saving = f" but sending {more} messages instead of {best.messages}" if more > best.messages else ""
    return f"{text}, with {runner_up} about as fast{saving}"


def _problem(spec: CollectiveSpec, nbytes: int, rows: Sequence[_Row], rejected: Mapping[str, str]) -> str:
    known = ", ".join(dict.fromkeys(row.algorithm for row in rows)) or "none"
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.excluded is None:
            reasons.setdefault(rejected[row.label], []).append(row.label)
    why = "; ".join(f"{', '.join(labels)}: {reason}" for reason, labels in reasons.items())
    why = why or "; ".join(dict.fromkeys(row.excluded for row in rows if row.excluded)) or "there is none"
    return (
        f"no allowed algorithm can serve {spec.collective} of {format_size(nbytes)} bytes among {spec.ranks} ranks ({why}); known: {known}"
    )


def _bound(spec: CollectiveSpec, topology: Topology, nbytes: int, seconds: float, exhaustive: bool) -> Bound:
    """The bound; its best cut is searched for where that is quick and may matter: the likely ones say that ``seconds`` is far from optimal,
    and overheads are not what makes it so."""
    quick = lower_bound(topology, spec.collective, nbytes, spec.root, search=False)
    open_question = OVERHEADS * seconds < quick.bandwidth_seconds < NEAR * seconds and topology.num_ranks <= SEARCHED_RANKS
    return lower_bound(topology, spec.collective, nbytes, spec.root) if exhaustive or open_question else quick


def _enough(spec: CollectiveSpec, topology: Topology, nbytes: int, profile: Profile, best: Prediction) -> str | None:
    """Why nothing that is costly to build is needed beside the best of the others; None when it may be worth it."""
    if topology.num_ranks > SEARCHED_RANKS and not quick(topology, spec.collective, spec.root):
        return f"more than {SEARCHED_RANKS} ranks, unless TOPOCCL_ALGO asks for it"
    return _near(spec, topology, nbytes, profile, best)


def _near(spec: CollectiveSpec, topology: Topology, nbytes: int, profile: Profile, best: Prediction) -> str | None:
    """Why nothing can be much faster than ``best``, None when something may be."""
    hosts = len(topology.ranks_by_host)
    wire = (profile.network if hosts > 1 else profile.local).efficiency
    for search in (False, True):
        bound = lower_bound(topology, spec.collective, nbytes, spec.root, search=search).bandwidth_seconds / wire
        if bound <= OVERHEADS * best.seconds:
            return "what limits calls of this size is not bandwidth"
        if bound >= NEAR * best.seconds:
            return f"the best of the others is within {1 / NEAR - 1:.0%} of the bound"
    return None


def _bottleneck(topology: Topology, prediction: Prediction) -> str:
    if prediction.bottleneck_link is None:
        return ""
    busy = prediction.bottleneck_seconds / prediction.seconds
    return f"{topology.links[prediction.bottleneck_link].name}, busy {busy:.0%} of the time"


def _candidate(label: str, prediction: Prediction | None, rejected: str | None, measured: bool) -> Candidate:
    if prediction is None:
        return Candidate(label, rejected=rejected)
    p = prediction
    return Candidate(label, p.seconds, rejected, p.segments, p.messages, p.bytes_by_kind, MEASURED if measured else p.mode)


def _nbytes(spec: CollectiveSpec, block_elems: int | Sequence[int] | None, itemsize: int) -> int:
    if block_elems is None:
        raise ValueError(f"{spec.collective}: give the size as nbytes or as block_elems")
    mean = block_elems if isinstance(block_elems, int) else sum(block_elems) / max(1, len(block_elems))
    return round(mean * itemsize / block_bytes(spec, 1))
