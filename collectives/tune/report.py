"""What a tuner tells people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from topoccl.algorithms.tuning.fit import spread
from topoccl.collectives.tune.check import Checked
from topoccl.collectives.tune.session import Outcome, Tuned
from topoccl.topology.units import format_size, format_time

GOOD = 1.05
"""A choice within so many times the best measured time is a good one,"""
FAIR = 1.1
"""and within so many one that will do."""


def summary(found: Tuned, output: Path) -> str:
    """Several lines: what is fastest where, the constants, and how good predictions are."""
    rows = [("collective", "size", "fastest", "segments", "time", "measured")]
    for outcome in found.outcomes:
        size = format_size(outcome.nbytes)
        if not outcome.timed:
            rows.append((outcome.cell.collective, size, "-", "-", "-", "no time left"))
            continue
        best = outcome.best
        how = "pulled" if best.candidate.pulls else str(best.segments)
        tried = f"{len(outcome.timed)} candidates" + ("" if outcome.complete else ", too few")
        rows.append((outcome.cell.collective, size, best.candidate.label, how, format_time(float(f"{best.seconds:.3g}")), tried))
    lines = _table(rows)
    if found.fit is not None and found.fit.fitted.constants:
        lines.append(f"fitted: {found.fit.fitted}")
    lines += accuracy(found)
    lines.append(f"{output}: {len(found.tuning.entries)} measurements in {found.seconds:.0f} s")
    return "\n".join(lines)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def check_summary(found: Sequence[Checked]) -> str:
    """Several lines: of each call the fastest candidate, and for each way to choose its choice, what that takes over the fastest, and how
    far its predictions are off; then how many choices are good."""
    ways = list(found[0].chosen)
    rows = [["collective", "size", "fastest", "time", *(text for way in ways for text in (way, "ratio", "off by")), "of"]]
    for checked in found:
        best = checked.best
        fastest = ["none can run", "-"] if best is None else [_run(best.key), format_time(float(f"{best.seconds:.3g}"))]
        row = [checked.cell.collective, format_size(checked.nbytes), *fastest]
        for way in ways:
            errors = checked.errors(way)
            row += [_run(checked.chosen[way]), _ratio(checked, way), _share(errors) if errors else "-"]
        rows.append([*row, str(len(checked.runs))])
    lines = _table(rows)
    for way in ways:
        ratios = [checked.ratio(way) for checked in found]
        close, near = (sum(ratio is not None and ratio <= most for ratio in ratios) for most in (GOOD, FAIR))
        errors = [error for checked in found for error in checked.errors(way)]
        within = f"within 5 % of the fastest in {close} of {len(found)} calls, within 10 % in {near}"
        off = f"; predictions are off by {_share(errors)} (median)" if errors else ""
        lines.append(f"{way}: {within}{off}")
    return "\n".join(lines)


def _ratio(checked: Checked, way: str) -> str:
    """``~`` marks what the rounds do not agree on."""
    ratio = checked.ratio(way)
    return "-" if ratio is None else f"{'' if checked.decided(way) else '~'}{ratio:.2f}"


def _run(key: tuple[str, int, bool]) -> str:
    label, segments, pulls = key
    return f"{label} {'pulled' if pulls else f'x{segments}'}"


def accuracy(found: Tuned) -> list[str]:
    """How far predictions are from what was measured, and how good what they choose is."""
    lines = []
    if found.fit is not None:
        lines.append(f"predictions are off by {_share(found.fit.before)} before the fit, {_share(found.fit.after)} after it (median)")
    before, after = found.unseen
    if after:
        lines.append(f"at sizes that were not fitted to, by {_share(before)} before and {_share(after)} after a fit to the others")
    measured = [outcome for outcome in found.outcomes if len(outcome.timed) > 1]
    if measured:
        good = sum(_regret(outcome) <= GOOD for outcome in measured)
        lines.append(f"the candidate that was predicted to be fastest is within 5 % of the fastest in {good} of {len(measured)} sizes")
    return lines


def _share(errors: Sequence[float]) -> str:
    return f"{spread(errors):.1%}"


def _regret(outcome: Outcome) -> float:
    """What the candidate takes that was thought best, over what the fastest takes."""
    thought = min(outcome.timed, key=lambda t: t.candidate.predicted)
    return thought.seconds / outcome.best.seconds
