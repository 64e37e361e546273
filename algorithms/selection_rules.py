"""The grammar of ``TOPOCCL_ALGO``: which algorithms may serve which collective at which size.

NCCL's since 2.24, with oneCCL's size ranges::

    rules  = entry { ";" entry }
    entry  = [ collective ":" ] [ "^" ] item { "," item }
    item   = algorithm [ "[" key "=" value { "," key "=" value } "]" ] [ "@" start "-" end ]

* Only the first entry may lack a collective; it then binds those collectives that own one of its names and have no entry of
  their own.
* A leading ``^`` excludes the items, else only they are allowed. A size that no allowed item covers is left free.
* ``start`` is inclusive, ``end`` exclusive and may be ``max``; sizes are bytes with binary suffixes.
* ``ring`` means every variant of the algorithm, ``ring[channels=2]`` that one.
* Everything may be written in any case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from topoccl.topology.units import format_size, parse_size

_ITEM = re.compile(r"(?P<name>[^\[\]@]*)(?P<label>\[[^\[\]]*\])?\s*(?:@(?P<range>.*))?", re.DOTALL)
_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")


@dataclass(frozen=True, slots=True)
class Item:
    """One algorithm (``name``) or one variant of it (``name[key=value]``) at ``start <= bytes < end`` (None: no end)."""

    selector: str
    start: int = 0
    end: int | None = None

    def covers(self, nbytes: int) -> bool:
        return self.start <= nbytes and (self.end is None or nbytes < self.end)

    def selects(self, label: str) -> bool:
        """Whether the candidate ``label`` (a name, or a name with parameters in brackets) is meant."""
        return self.selector in (label, label.partition("[")[0])

    def __str__(self) -> str:
        if self.start == 0 and self.end is None:
            return self.selector
        return f"{self.selector}@{format_size(self.start)}-{'max' if self.end is None else format_size(self.end)}"


@dataclass(frozen=True, slots=True)
class Entry:
    """What is said of one collective."""

    items: tuple[Item, ...]
    exclude: bool = False

    def __str__(self) -> str:
        return ("^" if self.exclude else "") + ",".join(map(str, self.items))


@dataclass(frozen=True)
class AlgoRules:
    """Parsed rules; ``entries`` holds one entry for each collective that is bound. Equal texts give equal rules."""

    entries: Mapping[str, Entry] = field(default_factory=dict)

    def forced(self, collective: str, nbytes: int) -> tuple[str, ...] | None:
        """The names (or variants) that alone are allowed at this size, in the order given; None when none is forced."""
        entry = self.entries.get(collective)
        if entry is None or entry.exclude:
            return None
        return tuple(dict.fromkeys(item.selector for item in entry.items if item.covers(nbytes))) or None

    def allows(self, collective: str, algorithm: str, nbytes: int) -> bool:
        """Whether ``algorithm`` may serve a call of ``nbytes``; it is a name, or a name with parameters for a variant."""
        return self.reason(collective, algorithm, nbytes) is None

    def reason(self, collective: str, algorithm: str, nbytes: int) -> str | None:
        """Why ``algorithm`` may not serve a call of ``nbytes``, None when it may."""
        entry = self.entries.get(collective)
        if entry is None:
            return None
        covering = [item for item in entry.items if item.covers(nbytes)]
        selecting = [item for item in covering if item.selects(_fold(algorithm))]
        if entry.exclude:
            return f"excluded by TOPOCCL_ALGO: {collective}:^{selecting[0]}" if selecting else None
        if selecting or not covering:
            return None
        return f"TOPOCCL_ALGO allows only {', '.join(dict.fromkeys(map(str, covering)))} for {collective} of {format_size(nbytes)} bytes"

    def __str__(self) -> str:
        return ";".join(f"{collective}:{entry}" for collective, entry in self.entries.items())


def parse_algo(text: str, known: Mapping[str, Sequence[str]]) -> AlgoRules:
    """Parses ``text``; empty text gives rules that allow everything.

    Args:
        text: see the module's grammar.
        known: the names of the algorithms of each collective.

    Raises:
        ValueError: an unknown collective or algorithm (the message lists the known ones), a bad size or range, a collective
            named twice, an entry without a collective that is not the first, an empty entry or name.
    """
    if not text.strip():
        return AlgoRules()
    names = {collective: {_fold(name): name for name in algorithms} for collective, algorithms in known.items()}
    general: Entry | None = None
    entries: dict[str, Entry] = {}
    for position, part in enumerate(text.split(";")):
        if not part.strip():
            raise ValueError(f"entry {position + 1} of {text!r} is empty")
        head, colon, body = part.partition(":")
        if not colon:
            if position:
                raise ValueError(f"entry {part.strip()!r} names no collective; only the first entry may lack one")
            general = _parse_entry(part, "any collective", {name for owned in names.values() for name in owned})
            continue
        collective = _collective(head, known)
        if collective in entries:
            raise ValueError(f"{collective} has two entries; write one, with a list")
        entries[collective] = _parse_entry(body, collective, set(names[collective]))
    if general is not None:
        for collective, owned in names.items():
            items = tuple(item for item in general.items if item.selector.partition("[")[0] in owned)
            if items and collective not in entries:
                entries[collective] = Entry(items, general.exclude)
    return AlgoRules({collective: entries[collective] for collective in known if collective in entries})


def _fold(text: str) -> str:
    """A name or label as it is compared: small letters, no spaces."""
    return "".join(text.split()).lower()


def _collective(text: str, known: Mapping[str, Sequence[str]]) -> str:
    """The collective meant by ``text``: in any case, underscores and hyphens left out at will."""
    key = _fold(text).replace("_", "").replace("-", "")
    for collective in known:
        if collective.replace("_", "") == key:
            return collective
    raise ValueError(f"unknown collective {text.strip()!r}; known: {', '.join(known)}")


def _parse_entry(text: str, owner: str, known: set[str]) -> Entry:
    body = text.strip()
    exclude = body.startswith("^")
    items = []
    for part in _OUTSIDE_BRACKETS.split(body.removeprefix("^")):
        item = part.strip()
        if not item:
            raise ValueError(f"a name is empty in {text.strip()!r}")
        if item.startswith("^"):
            raise ValueError(f"{item!r} in {text.strip()!r}: ^ stands before the whole list, not before one name")
        items.append(_parse_item(item, owner, known))
    return Entry(tuple(items), exclude)


def _parse_item(text: str, owner: str, known: set[str]) -> Item:
    match = _ITEM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not of the form name, name[key=value,...] or name@start-end")
    name, label = _fold(match["name"]), _fold(match["label"] or "")
    if name not in known:
        raise ValueError(f"unknown algorithm {match['name'].strip()!r} for {owner}; known: {', '.join(sorted(known)) or 'none'}")
    if label and not all(re.fullmatch(r"[^=]+=[^=]+", pair) for pair in label[1:-1].split(",")):
        raise ValueError(f"{text!r}: {match['label']} is not a list of key=value")
    if match["range"] is None:
        return Item(name + label)
    start, end = _parse_range(text, match["range"])
    return Item(name + label, start, end)


def _parse_range(text: str, sizes: str) -> tuple[int, int | None]:
    low, dash, high = sizes.partition("-")
    if not dash:
        raise ValueError(f"{text!r}: expected a range start-end after @, such as 0-64K or 64K-max")
    try:
        start = parse_size(low)
        end = None if _fold(high) == "max" else parse_size(high)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; the end of a range may also be max") from None
    if end is not None and end <= start:
        raise ValueError(f"{text!r}: the range is empty; its start is inclusive and its end ({format_size(end)}) exclusive")
    return start, end
