"""The distance matrices of hwloc's XML: square tables of numbers over objects that are named by type and gp_index or os_index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from topoccl.topology.formats.safe_xml import Element

MAX_OBJECTS = 512
BANDWIDTH, LATENCY = 1 << 3, 1 << 2
"""Bits of ``kind`` (``hwloc/distances.h``). Bandwidths are MB/s; latencies are relative, 10 for oneself."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """``values[i][j]`` from object i to j; objects are ("OSDev", 802), by os_index where ``by_os`` and else by gp_index."""

    name: str
    kind: int
    by_os: bool
    objects: list[tuple[str, int]]
    values: list[list[int]]


def matrices(root: Element) -> Iterator[Matrix]:
    """All matrices of a file.

    Raises:
        TopologyError: one that is not square, not of numbers, or over more than ``MAX_OBJECTS`` objects.
    """
    for element in root.children:
        if element.tag in ("distances2", "distances2hetero"):
            yield _matrix(element)


def _matrix(element: Element) -> Matrix:
    count = element.integer("nbobjs", 1, MAX_OBJECTS)
    objects = []
    for word in _words(element, "indexes", count):
        match = re.fullmatch(r"(?:([A-Za-z0-9]{1,32}):)?(\d{1,18})", word, re.ASCII)
        if match is None or (match[1] is None) == (element.tag == "distances2hetero"):
            raise element.error(f"index {word[:40]!r}; expected {'Type:number' if element.tag == 'distances2hetero' else 'a number'}")
        objects.append((match[1] or element.get("type"), int(match[2])))
    numbers = []
    for word in _words(element, "u64values", count * count):
        if not re.fullmatch(r"\d{1,20}", word, re.ASCII):
            raise element.error(f"value {word[:40]!r}; expected a number")
        numbers.append(int(word))
    rows = [numbers[start : start + count] for start in range(0, len(numbers), count)]
    by_os = element.tag == "distances2" and element.get("indexing", "os") == "os"
    return Matrix(element.get("name"), element.integer("kind", 0, 1 << 20, 0), by_os, objects, rows)


def _words(element: Element, tag: str, count: int) -> list[str]:
    words = [word for part in element.all(tag) for word in part.text.split()]
    if len(words) != count:
        raise element.error(f"{len(words)} {tag}; expected {count}")
    return words
