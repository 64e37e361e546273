"""What was measured, and what one line per choice says about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topoccl.topology.units import format_size


@dataclass(frozen=True)
class Timing:
    """One half of a row: seconds per call, and how many elements of all ranks were wrong (None: not checked)."""

    seconds: float
    wrong: int | None


@dataclass(frozen=True)
class Chosen:
    """What the library chose for a call: its label and pipeline segments, predicted seconds, the bound's seconds, and why."""

    algorithm: str
    segments: int
    predicted: float
    bound: float
    reason: str

    @property
    def label(self) -> str:
        return f"{self.algorithm} x{self.segments}" if self.segments > 1 else self.algorithm


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        size: bytes of the larger buffer.
        count: elements, as nccl-tests' column has them.
        type, redop: names; ``none`` where there is no reduction.
        root: -1 where there is none.
        factor: of the bus bandwidth.
        out_of_place, in_place: None where the operation has no such form.
        chosen: None for messages between two ranks, which no algorithm serves.
    """

    size: int
    count: int
    type: str
    redop: str
    root: int
    factor: float
    out_of_place: Timing | None = None
    in_place: Timing | None = None
    chosen: Chosen | None = None

    def algbw(self, timing: Timing) -> float:
        """GB/s (10**9) of the size."""
        return self.size / timing.seconds / 1e9

    def busbw(self, timing: Timing) -> float:
        """GB/s (10**9) through the busiest port, had it carried no more than it must."""
        return self.algbw(timing) * self.factor

    @property
    def timings(self) -> list[Timing]:
        return [timing for timing in (self.out_of_place, self.in_place) if timing is not None]

    @property
    def slowdown(self) -> float | None:
        """Measured over predicted seconds; of the out-of-place call where there is one."""
        if self.chosen is None or not self.timings or self.chosen.predicted <= 0:
            return None
        return self.timings[0].seconds / self.chosen.predicted


def combined(seconds: Sequence[float], average: int) -> float:
    """The time of all ranks, as option ``-a`` says: 0 rank 0's, 1 the average, 2 the minimum, 3 the maximum."""
    return (seconds[0], sum(seconds) / len(seconds), min(seconds), max(seconds))[average]


def total_wrong(rows: Sequence[Row]) -> int:
    return sum(timing.wrong or 0 for row in rows for timing in row.timings)


def average_busbw(rows: Sequence[Row]) -> float:
    """GB/s, averaged over all measurements of all rows."""
    values = [row.busbw(timing) for row in rows for timing in row.timings]
    return sum(values) / len(values) if values else 0.0


def reasons(rows: Sequence[Row]) -> list[str]:
    """One line for each algorithm that was chosen: for which sizes, and why for the first of them."""
    spans: dict[str, list[str]] = {}
    why: dict[str, str] = {}
    begin = 0
    for end in range(1, len(rows) + 1):
        first, last = rows[begin], rows[end - 1]
        if end < len(rows) and _continues(last, rows[end]):
            continue
        begin = end
        if first.chosen is None:
            continue
        name = first.chosen.algorithm
        span = format_size(first.size) if first.size == last.size else f"{format_size(first.size)} - {format_size(last.size)}"
        if span not in spans.setdefault(name, []):
            spans[name].append(span)
        why.setdefault(name, first.chosen.reason)
    return [f"{', '.join(spans[name])}: {text if text.startswith(name) else f'{name}: {text}'}" for name, text in why.items()]


def _continues(a: Row, b: Row) -> bool:
    """Whether ``b`` is the next size of the same sweep with the same choice."""
    same = (a.type, a.redop, a.root) == (b.type, b.redop, b.root)
    return same and (a.chosen and a.chosen.algorithm) == (b.chosen and b.chosen.algorithm)
