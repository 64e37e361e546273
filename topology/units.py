"""Sizes, rates, times and ranks as people write them.

Sizes are binary (``64M`` is 64 * 2**20 bytes), rates are decimal (``25GB/s`` is 25e9 bytes/s, ``200Mbit/s`` is 25e6
bytes/s), times without a unit are seconds. ``format_*`` return a short text for people that ``parse_*`` reads back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection

_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_BINARY = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DECIMAL = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
# Units in a second, since 7 / 1e6 is the float nearest to 7 us and 7 * 1e-6 need not be.
_TIMES = {"": 1.0, "s": 1.0, "ms": 1e3, "us": 1e6, "µs": 1e6, "μs": 1e6, "ns": 1e9, "min": 1 / 60, "h": 1 / 3600}
_SIZE = re.compile(rf"({_NUMBER})\s*([KMGT]?)(?:I?B)?", re.ASCII)
_RATE = re.compile(rf"({_NUMBER})\s*([kKmMgGtT]?)(?:(B|[Bb]ytes?)(?:/s|ps)|([Bb]its?|b)(?:/s|ps)?)", re.ASCII)
_TIME = re.compile(rf"({_NUMBER})\s*([a-zµμ]*)")

_SIZE_HINT = "a number of bytes with an optional binary suffix K, M, G or T (such as 4096, 64K, 1.5MiB)"
_RATE_HINT = "a rate such as 200Mbit/s, 100Gbps, 25GB/s, or a number of bytes/s"
_TIME_HINT = "a time such as 5us, 1.5ms, 30s, 2min, or a number of seconds"


MOST_BYTES = 1 << 63
"""Sizes are less than that: no address is larger."""


def parse_size(text: str | int) -> int:
    """Bytes: ``64M`` (binary: K, M, G, T, each with an optional ``B`` or ``iB``, any case) or a number of bytes.

    Raises:
        ValueError: not a size, negative, or not a whole number of bytes.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise ValueError(f"bad size {text}: expected {_SIZE_HINT}, not negative")
        return text
    match = _SIZE.fullmatch(text.strip().upper()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"bad size {text!r}: expected {_SIZE_HINT}")
    digits, factor = match[1], _BINARY[match[2]]
    value = float(digits) * factor
    exact = int(digits) * factor if digits.lstrip("+-").isdigit() else value
    if value < 0 or not math.isfinite(value) or exact != int(exact):
        raise ValueError(f"bad size {text!r}: expected {_SIZE_HINT}; a whole number of bytes, not negative")
    if exact >= MOST_BYTES:
        raise ValueError(f"bad size {text!r}: expected {_SIZE_HINT}; less than {format_size(MOST_BYTES)}")
    return int(exact)


def format_size(nbytes: int) -> str:
    """``nbytes`` with the largest binary suffix that divides it (``64M``), so that :func:`parse_size` gives it back."""
    for suffix in ("T", "G", "M", "K"):
        if nbytes and nbytes % _BINARY[suffix] == 0:
            return f"{nbytes // _BINARY[suffix]}{suffix}"
    return str(nbytes)


def parse_rate(text: str | float) -> float:
    """Bytes/s: ``200Mbit/s``, ``100Gbps``, ``25GB/s`` (decimal prefixes; ``b`` is bits, ``B`` bytes) or a number of bytes/s.

    Raises:
        ValueError: not a rate, or not positive.
    """
    value: float | None = None
    if isinstance(text, int | float) and not isinstance(text, bool):
        value = float(text)
    elif isinstance(text, str):
        stripped = text.strip()
        if match := _RATE.fullmatch(stripped):
            value = float(match[1]) * _DECIMAL[match[2].upper()] / (8.0 if match[4] else 1.0)
        elif re.fullmatch(_NUMBER, stripped):
            value = float(stripped)
    if value is None:
        raise ValueError(f"bad rate {text!r}: expected {_RATE_HINT}")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"bad rate {text!r}: expected {_RATE_HINT}, positive")
    return value


def parse_time(text: str | float) -> float:
    """Seconds: ``5us``, ``1.5ms``, ``30s``, ``2min``, ``1h`` or a number of seconds.

    Raises:
        ValueError: not a time, or negative.
    """
    value: float | None = None
    if isinstance(text, int | float) and not isinstance(text, bool):
        value = float(text)
    elif isinstance(text, str) and (match := _TIME.fullmatch(text.strip())) and match[2] in _TIMES:
        value = float(match[1]) / _TIMES[match[2]]
    if value is None:
        raise ValueError(f"bad time {text!r}: expected {_TIME_HINT}")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"bad time {text!r}: expected {_TIME_HINT}, not negative")
    return value


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    """``value`` in the largest unit that leaves at least 1, to four significant digits."""
    factor, unit = next((step for step in steps if abs(value) >= step[0] * 0.99995), steps[-1])
    return f"{float(f'{value / factor:.4g}'):g}{unit}"


def format_rate(rate: float) -> str:
    """Bytes/s for people: ``25GB/s`` (decimal, four significant digits)."""
    return _scaled(rate, [(1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")])


def format_time(seconds: float) -> str:
    """Seconds for people: ``5us``, ``1.5ms``, ``2s`` (four significant digits)."""
    if seconds == 0:
        return "0s"
    return _scaled(seconds, [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")])


def format_ranks(ranks: Collection[int]) -> str:
    """Ranks for people: ``rank 3``, ``ranks 0-3, 8``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {text}" if runs else "no rank"
