"""Slurm's lists of hosts: ``n[1-3,07],login,r[1-2]c[01-16]``."""

from __future__ import annotations

import re
from collections.abc import Callable

from topoccl.topology.formats.support import shown
from topoccl.topology.generators import MAX_SLOTS
from topoccl.topology.graph import TopologyError

_EXPECTED = "a list of names such as n[1-3,07],login,r[1-2]c[01-16]"
_MOST_BRACKETS = 16
_NAME = re.compile(r"[^\s,\[\]='\"#;]+")
_PIECE = re.compile(r"([^\s,\[\]='\"#;]*)(?:\[([^\[\]]*)\])?")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)


def expand(text: str, error: Callable[[str], TopologyError]) -> list[str]:
    """The names that ``text`` stands for, in its order; ``[07-12]`` keeps the width of its first number.

    Raises:
        TopologyError: made by ``error`` of a sentence: not such a list, or more than 65536 names.
    """
    names: list[str] = []
    for part in _parts(text, error):
        names += _names(part, error, MAX_SLOTS - len(names))
    return names


def _parts(text: str, error: Callable[[str], TopologyError]) -> list[str]:
    """Cut at the commas outside brackets."""
    parts, start, inside = [], 0, False
    for index, char in enumerate(text):
        if char == "[" and not inside:
            inside = True
        elif char == "]" and inside:
            inside = False
        elif char in "[]":
            raise error(f"host list {shown(text)}: bracket {char!r} at character {index + 1} has no partner; expected {_EXPECTED}")
        elif char == "," and not inside:
            parts.append(text[start:index])
            start = index + 1
    if inside:
        raise error(f"host list {shown(text)}: a bracket is not closed; expected {_EXPECTED}")
    return [*parts, text[start:]]


def _names(part: str, error: Callable[[str], TopologyError], room: int) -> list[str]:
    found, position = [""], 0
    part = part.strip()
    if part.count("[") > _MOST_BRACKETS:
        raise error(f"host list {shown(part)}: more than {_MOST_BRACKETS} brackets in one name")
    while position < len(part):
        match = _PIECE.match(part, position)
        assert match is not None  # it matches the empty text
        if match.end() == position:
            break
        choices = [""] if match[2] is None else _numbers(match[2], part, error, room)
        if len(found) * len(choices) > room:
            raise error(f"host list {shown(part)}: more than {MAX_SLOTS} names")
        found = [f"{name}{match[1]}{choice}" for name in found for choice in choices]
        position = match.end()
    if position < len(part) or not _NAME.fullmatch(found[0]):
        raise error(f"host list {shown(part)}: {shown(part[position:])} is no name; expected {_EXPECTED}")
    return found


def _numbers(text: str, part: str, error: Callable[[str], TopologyError], room: int) -> list[str]:
    """``1-3,07`` as 1, 2, 3, 07."""
    found: list[str] = []
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None:
            raise error(f"host list {shown(part)}: {shown(piece)} in brackets; expected numbers and ranges such as 1-3,07")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise error(f"host list {shown(part)}: range {piece.strip()} runs backwards")
        if last - first >= room - len(found):
            raise error(f"host list {shown(part)}: more than {MAX_SLOTS} names")
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found
