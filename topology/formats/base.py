"""What a format of topology files is: how it is recognised and read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from topoccl.topology.graph import Topology

CERTAIN, LIKELY, MAYBE, NO = 100, 60, 20, 0
"""Scores of ``recognise``: a mark that nothing else has; the usual shape; what is left when nothing else fits; another format."""


@dataclass(frozen=True, slots=True)
class Format:
    """One way in which others describe a fabric.

    ``recognise(text)`` tells from the content alone, quickly and without raising, how sure it is: 0 (no) to 100.
    ``parse(text, source)`` is pure; it gives a Topology or raises a TopologyError that begins with ``source`` and names the
    line or path, the value and what was expected. Neither meets an empty text or a byte-order mark.

    What a file does not say and the parser had to assume stands in the attribute ``notes`` (a list of sentences) of the host
    that it concerns.
    """

    name: str
    summary: str
    recognise: Callable[[str], int]
    parse: Callable[[str, str], Topology]
