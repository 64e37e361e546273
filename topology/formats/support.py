"""What the parsers of others' formats share: lines of text with their numbers, errors that name the place, the last step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from topoccl.topology.document import Cursor
from topoccl.topology.formats.draft import Draft
from topoccl.topology.generators import MAX_SLOTS
from topoccl.topology.graph import Topology, TopologyError, VertexKind

DEFAULT = {"source": "default"}
"""The attributes of what a file does not say."""
MAX_LINKS = 2_000_000
HEAD = 1 << 20
"""How much of a text is looked at to recognise it."""

_ESCAPE = re.compile(r"(?:\x1b|\u241b|\^\[|\\x1b|\\033|\\e)?\[[0-9;]*m|\x1b\[[0-9;?]*[A-Za-z]|\x1b\(B|[\0\a\b]")
"""Control sequences of terminals, and what is left of them where the escape character was lost (``[4m``)."""

_REMAINS = re.compile(r"\[[0-9;]*m")  # much faster than the other: most texts have neither


def plain(text: str) -> str:
    """``text`` without terminal control sequences, with ``\\n`` as the only end of a line."""
    if _REMAINS.search(text) or any(char in text for char in "\x1b\0\a\b"):
        text = _ESCAPE.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file and its place."""

    source: str
    number: int
    text: str

    def error(self, problem: str) -> TopologyError:
        return TopologyError(f"{self.source}:{self.number}: {problem}")

    def fail(self, subject: str, value: object, expected: str) -> NoReturn:
        raise self.error(f"{subject} is {shown(value)}; expected {expected}")


def lines(text: str, source: str) -> Iterator[Line]:
    """All lines, from 1, without control sequences."""
    for number, line in enumerate(plain(text).split("\n"), 1):
        yield Line(source, number, line)


def shown(value: object, most: int = 60) -> str:
    """A value for a message, short whatever it is."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def whole(at: Cursor, most: int = MAX_SLOTS, least: int = 0) -> int:
    """A whole number, also one written as text (many formats quote their numbers)."""
    value = at.node.value
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value, re.ASCII):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        at.fail(f"a whole number from {least} to {most}")
    return value


def positive(at: Cursor, unit: str, zero: bool = False) -> float:
    """A positive (or, with ``zero``, not negative) finite number, in ``unit``."""
    value = at.node.value
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e30 or not math.isfinite(value):
        at.fail(f"a number of {unit}")
    if value < 0 or (value == 0 and not zero):
        at.fail(f"a number of {unit}, {'not negative' if zero else 'positive'}")
    return float(value)


def word(at: Cursor, expected: str) -> str:
    """Text, or a number that stands for a name."""
    value = at.node.value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18 else at.text(expected)


def need(fields: dict[str, Cursor], key: str, at: Cursor) -> Cursor:
    if key not in fields:
        raise at.error(f"key {key!r} is missing")
    return fields[key]


def finish(draft: Draft, slots: list[str] | None = None) -> Topology:
    """The topology, if there is a place for a rank in it.

    Raises:
        TopologyError: no slots, too many slots or links, or what :class:`Topology` refuses; begins with the source.
    """
    if not any(vertex.kind is VertexKind.SLOT for vertex in draft.vertices):
        raise TopologyError(f"{draft.source}: describes no place for a rank; expected at least one host or accelerator")
    if len(draft.links) > MAX_LINKS:
        raise TopologyError(f"{draft.source}: {len(draft.links)} links; at most {MAX_LINKS} are read")
    return draft.finish(slots)
