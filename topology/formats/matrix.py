"""The matrices that vendors' tools print: a header with devices, a row per device, then columns of CPU and NUMA affinity.

Columns are told apart by white space of any kind, so that a shifted header or mixed tabs and blanks do no harm. Values that ran
into one another because a column was too narrow (``SYSSYS``, ``64-1271`` for CPUs 64-127 on node 1) are taken apart.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from topoccl.topology.formats.support import Line, lines, shown
from topoccl.topology.graph import TopologyError

SELF = ("X", "SELF", "0", "S", "-")
MAX_DEVICES = 256
_MOST_TOKENS = 256

_NIC = re.compile(r"[A-Za-z][\w.:-]*\d[\w.:-]*")
_TITLE = re.compile(r"CPU|NUMA|Node|NODE|GPU|NPU|Affinity|Aff\.?|ID|Id", re.ASCII)
_LIST = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*,?", re.ASCII)
_GLUED = re.compile(r"((?:\d+(?:-\d+)?,)*(?:\d+-)?)(\d+)", re.ASCII)


@dataclass
class Row:
    """What stands in one row: a cell per column, and the words after them."""

    line: Line
    cells: list[str]
    rest: list[str]
    cpus: str | None = None
    numa: int | None = None
    memory: int | None = None
    """The NUMA node that the device's own memory is."""


@dataclass
class Table:
    """One matrix. ``title`` is the nearest line before it that says something."""

    title: str
    line: Line
    columns: list[str]
    affinity: list[str]
    rows: dict[str, Row] = field(default_factory=dict)

    @cached_property
    def position(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.columns)}

    def cell(self, a: str, b: str) -> str:
        """What the tool says of ``a`` and ``b``, from the row of the one or of the other.

        Raises:
            TopologyError: two rows that differ.
        """
        there, back = self.rows.get(a), self.rows.get(b)
        first = there.cells[self.position[b]] if there else None
        second = back.cells[self.position[a]] if back else None
        if there and back and first != second:
            raise there.line.error(f"{a} to {b} is {shown(first)}, but line {back.line.number} says {shown(second)} of {b} to {a}")
        return first or second or "NA"


def read_tables(text: str, source: str, label: re.Pattern[str], cell: re.Pattern[str], expected: str) -> list[Table]:
    """All matrices in ``text``. ``label`` matches an accelerator's name, ``cell`` what may stand in a cell; ``expected`` says so.

    Raises:
        TopologyError: a row that is cut off, has a cell that is none, or occurs twice; a matrix without the row of an accelerator; no
            matrix.
    """
    found: list[Table] = []
    table: Table | None = None
    title = ""
    raw: list[tuple[Table, Line, list[str]]] = []
    for line in lines(text, source):
        words = line.text.split()
        if not words:
            continue
        columns = _header(words, label, cell)
        if table is not None and words[0] in table.columns and not (columns and (len(columns) > 1 or words[0] in table.rows)):
            if words[0] in table.rows:
                raise line.error(f"row {words[0]} is given twice")
            table.rows[words[0]] = Row(line, [], [])
            raw.append((table, line, words))
        elif columns:
            if len(columns) > MAX_DEVICES:
                raise line.error(f"{len(columns)} devices; at most {MAX_DEVICES} are read")
            double = [name for name, count in Counter(columns).items() if count > 1]
            if double:
                raise line.error(f"column {double[0]} is given twice")
            table = Table(title, line, columns, _titles(words[len(columns) :]))
            found.append(table)
        elif table is not None and label.fullmatch(words[0]) and len(words) > 1 and cell.fullmatch(words[1]):
            raise line.error(f"row {words[0]} has no column; the columns are {shown(table.columns, 120)}")
        else:
            title, table = line.text.strip(" =\t:"), None
    found = [table for table in found if table.rows]
    if not found:
        raise TopologyError(f"{source}: no matrix with a header of devices and a row for each; expected {expected}")
    known = {word for _, _, words in raw for word in words[1:] if cell.fullmatch(word)}
    seen = sorted(known, key=lambda token: (-len(token), token))[:_MOST_TOKENS]
    for owner, line, words in raw:
        owner.rows[words[0]] = _row(line, words, len(owner.columns), cell, seen, expected)
    for table in found:
        missing = [name for name in table.columns if name not in table.rows and label.fullmatch(name)]
        if missing:
            raise table.line.error(f"the matrix has no row for {', '.join(missing[:8])}; expected one for each device (is it cut off?)")
        _affinities(table)
    return found


def _header(words: list[str], label: re.Pattern[str], cell: re.Pattern[str]) -> list[str]:
    """The devices that a header names, empty if it is none."""
    columns: list[str] = []
    for index, word in enumerate(words):
        known = label.fullmatch(word)
        if not known and (cell.fullmatch(word) or not _NIC.fullmatch(word)):
            return columns if columns and all(_TITLE.fullmatch(rest) for rest in words[index:]) else []
        columns.append(word)
    return columns if any(label.fullmatch(word) for word in columns) else []


def _titles(words: list[str]) -> list[str]:
    """``cpu`` and ``numa`` (or ``other``) for the columns after the matrix."""
    text = " ".join(words)
    found = re.findall(r"GPU NUMA ID|NPU NUMA ID|(?:CPU|NUMA|Node|NODE)(?: Aff[a-z]*\.?)?", text)
    return ["other" if title.endswith("ID") else "cpu" if title.startswith("CPU") else "numa" for title in found]


def _row(line: Line, words: list[str], count: int, cell: re.Pattern[str], seen: list[str], expected: str) -> Row:
    cells: list[str] = []
    rest = words[1:]
    while rest and len(cells) < count:
        if cell.fullmatch(rest[0]):
            cells.append(rest.pop(0))
            continue
        head = next((token for token in seen if rest[0].startswith(token)), None)
        if head is None or not _splits(rest[0][len(head) :], seen):
            line.fail(f"cell {len(cells) + 1} of row {words[0]}", rest[0], expected)
        cells.append(head)
        rest[0] = rest[0][len(head) :]
    if len(cells) < count:
        raise line.error(f"row {words[0]} has {len(cells)} of {count} cells; expected one per column (is it cut off?)")
    return Row(line, cells, rest)


def _splits(text: str, seen: list[str]) -> bool:
    """Whether what follows a cell in the same word is a list of CPUs, or more cells."""
    if not text or _LIST.fullmatch(text):
        return True
    return any(text.startswith(token) and _splits(text[len(token) :], seen) for token in seen) if len(text) < 64 else False


def _affinities(table: Table) -> None:
    """Fills ``cpus`` and ``numa`` of the rows from the words after the cells."""
    values = {name: _joined(row.rest) for name, row in table.rows.items()}
    if "cpu" in table.affinity and "numa" in table.affinity:
        _unglue(values)
    for name, words in values.items():
        row = table.rows[name]
        for kind, word in zip(table.affinity, words, strict=False):
            if kind == "cpu" and _LIST.fullmatch(word):
                row.cpus = word.rstrip(",")
            elif kind == "numa" and (match := re.fullmatch(r"(\d{1,4})(?:[-,][\d,-]*)?", word, re.ASCII)):
                row.numa = int(match[1])  # of several the first has CPUs; the others are memory of accelerators
            elif kind == "other" and re.fullmatch(r"\d{1,4}", word, re.ASCII):
                row.memory = int(word)


def _joined(words: list[str]) -> list[str]:
    """Lists that were broken after a comma (``0-31, 64-95``) in one piece; ``0-63N/A`` in two."""
    found: list[str] = []
    for word in words:
        if found and found[-1].endswith(","):
            found[-1] += word
        else:
            match = re.fullmatch(rf"({_LIST.pattern})(N/?A)", word, re.ASCII)
            found += [match[1], match[2]] if match else [word]
    return found


def _unglue(values: dict[str, list[str]]) -> None:
    """Takes ``64-1271`` apart into CPUs 64-127 and node 1 where it can be nothing else."""
    filled = {name: words for name, words in values.items() if words}
    single = {name: words[0] for name, words in filled.items() if len(words) == 1 and "-" in words[0] and _LIST.fullmatch(words[0])}
    parts = {}
    for name, word in single.items():
        match = _GLUED.fullmatch(word)
        low = re.search(r"(\d+)-$", match[1]) if match else None
        if match is None or low is None or len(match[2]) < 2 or int(match[2][:-1]) < int(low[1]):
            return
        parts[name] = [match[1] + match[2][:-1], match[2][-1]]
    by_node: dict[str, set[str]] = {}
    for cpus, node in parts.values():
        by_node.setdefault(node, set()).add(cpus)
    alone = len(single) == len(filled)
    if alone and (len(by_node) < 2 or any(len(lists) > 1 for lists in by_node.values())):
        return  # every row has one value: only if the split tells nodes apart, each with one list
    values.update(parts)
