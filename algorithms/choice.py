"""The outcome of a selection: what was chosen, what else was looked at, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from topoccl.algorithms.schedule import Schedule
from topoccl.topology.units import format_size, format_time

MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One row of the table.

    Attributes:
        algorithm: its label, such as ``ring[channels=2]``.
        seconds: predicted or measured, None when neither (it cannot serve the call, was excluded, or cannot win).
        rejected: why it is not the choice; None for the choice alone.
        segments, messages: the best number of pipeline segments, and all messages of all ranks with it.
        bytes_by_kind: payload bytes that cross each kind of link, all messages together.
        mode: how it was predicted, ``flow`` or ``wavefront``, or ``measured`` when a tuning file says it; empty without seconds.
    """

    algorithm: str
    seconds: float | None = None
    rejected: str | None = None
    segments: int = 1
    messages: int = 0
    bytes_by_kind: dict[str, float] = field(default_factory=dict)
    mode: str = ""

    @property
    def measured(self) -> bool:
        """Whether ``seconds`` was measured, not predicted."""
        return self.mode == MEASURED


@dataclass(frozen=True, slots=True)
class Choice:
    """A schedule for one collective and size, and how it came about.

    Attributes:
        collective, nbytes: what was asked for; ``nbytes`` is nccl-tests' size (the larger of a rank's buffers).
        algorithm: the label of the winner.
        schedule, segments: what to run.
        seconds: predicted for ``nbytes``, or measured.
        bound_seconds, bound: what no schedule undercuts on this topology, and what says so.
        bottleneck: the link that the schedule keeps busy longest, in words; empty without messages between ranks.
        reason: a sentence: why it won, or that it was forced.
        candidates: all rows, the choice included, in the order of the registry.
        warning: what to tell the user, when an algorithm that was asked for could not be used and ``fallback`` is ``print``.
        mean_size: counts differ between ranks, so the choice was made for their mean.
        topology, profile: names, for people.
    """

    collective: str
    nbytes: int
    algorithm: str
    schedule: Schedule
    segments: int
    seconds: float
    bound_seconds: float
    bound: str
    bottleneck: str
    reason: str
    candidates: tuple[Candidate, ...]
    warning: str | None = None
    mean_size: bool = False
    topology: str = ""
    profile: str = ""
    pulls: bool = False

    @property
    def measured(self) -> bool:
        """Whether ``seconds`` was measured, not predicted."""
        return any(c.measured for c in self.candidates if c.rejected is None)

    @property
    def bound_fraction(self) -> float:
        """The bound's seconds over the choice's: 1 is optimal."""
        return self.bound_seconds / self.seconds if self.seconds > 0 else 1.0

    @property
    def ratio(self) -> float:
        """The choice's seconds over the bound's; infinite when only the bound is zero."""
        return 1 / self.bound_fraction if self.bound_fraction > 0 else float("inf")

    def as_dict(self) -> dict[str, Any]:
        """For JSON: ``choice`` is the winner's label; ``bytes`` and ``seconds`` are numbers without units."""
        return {
            "collective": self.collective,
            "bytes": self.nbytes,
            "topology": self.topology,
            "profile": self.profile,
            "ranks": self.schedule.spec.ranks,
            "choice": self.algorithm,
            "segments": self.segments,
            "pulls": self.pulls,
            "seconds": self.seconds,
            "reason": self.reason,
            "candidates": [
                {
                    "algorithm": c.algorithm,
                    "seconds": c.seconds,
                    "rejected": c.rejected,
                    "segments": c.segments,
                    "messages": c.messages,
                    "bytes_by_kind": c.bytes_by_kind,
                    "mode": c.mode,
                }
                for c in self.candidates
            ],
            "bound_seconds": self.bound_seconds,
            "bound": self.bound,
            "bound_fraction": self.bound_fraction,
            "bottleneck": self.bottleneck,
        }


def format_choice(choice: Choice) -> str:
    """The choice and every candidate as plain text: a heading, one line per candidate (``*`` marks the choice), the bound."""
    rows = [("", "algorithm", "predicted", "segments", "bytes by kind of link", "why")]
    for c in ranked(choice):
        rows.append(
            (
                "" if c.rejected else "*",
                c.algorithm,
                format_seconds(c),
                "-" if c.seconds is None else str(c.segments),
                format_kinds(c.bytes_by_kind),
                c.rejected or "the choice",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = [heading(choice), *("  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[5]]) for row in rows)]
    return "\n".join([*lines, summary(choice)])


def heading(choice: Choice) -> str:
    """One line: what, how fast, why."""
    segments = f" in {choice.segments} segments" if choice.segments > 1 else ""
    segments += ", read from the senders' buffers" if choice.pulls else ""
    ranks = choice.schedule.spec.ranks
    how = MEASURED if choice.measured else "predicted"
    what = f"{choice.collective} of {format_size(choice.nbytes)} bytes among {ranks} rank{'s' if ranks > 1 else ''}"
    return f"{what}: {choice.algorithm}{segments}, {format_time(choice.seconds)} {how}; {choice.reason}"


def summary(choice: Choice) -> str:
    """One line: how far from the bound, and what limits."""
    share = f"{choice.bound_fraction:.0%} of the bound, {format_time(choice.bound_seconds)} ({choice.bound})"
    if choice.bound_seconds == 0:
        share = f"no bound ({choice.bound})"
    return share + (f"; the busiest link is {choice.bottleneck}" if choice.bottleneck else "")


def ranked(choice: Choice) -> list[Candidate]:
    """The candidates for people: the choice, then those with a time by time, then the others."""
    slowest = float("inf")
    return sorted(choice.candidates, key=lambda c: (c.rejected is not None, slowest if c.seconds is None else c.seconds))


def format_seconds(candidate: Candidate) -> str:
    """``12ms``, ``12ms, measured``; ``-`` for none."""
    if candidate.seconds is None:
        return "-"
    return format_time(candidate.seconds) + (f", {MEASURED}" if candidate.measured else "")


def format_kinds(kinds: dict[str, float]) -> str:
    """``net 28M, shm 56M``; ``-`` for none."""
    return ", ".join(f"{kind} {_rounded(nbytes)}" for kind, nbytes in kinds.items()) or "-"


def _rounded(nbytes: float) -> str:
    for factor, suffix in ((2**40, "T"), (2**30, "G"), (2**20, "M"), (2**10, "K")):
        if nbytes >= factor:
            return f"{nbytes / factor:.3g}{suffix}"
    return f"{nbytes:.3g}"
