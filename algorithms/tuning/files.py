"""The file format of ``TOPOCCL_TUNE_FILE``.

YAML or JSON::

    topoccl_tuning: 2                 # the version of the format
    topology: 3fb2c81e07d4aa19        # optional: the digest of the topology on which it was measured, or its first digits
    transport: mpi                    # optional: what carried messages between hosts
    fabric: 90c1f07b5a2e4410          # optional: the digest of the fabric, whatever the placement, for which the profile holds
    profile: {crowd: 1, copy_bandwidth: 9.1GB/s, network: {send_overhead: 21us, efficiency: 0.947, both_ways: 0.88}}
    covered:
    - {collective: all_reduce, ranks: 8, from: 4K, to: 8M}
    entries:
    - {collective: all_reduce, ranks: 8, algorithm: "ring[channels=2]", bytes: 1M, segments: 4, seconds: 12ms, predicted: 11ms}

What was measured in several places (placements, groups, transports, fabrics) is a list instead: ``parts: [{topology: ...}, ...]``, each
with the other keys. Version 1 had neither ``parts`` nor ``predicted``, and its profile is not used.

``bytes`` is the size of the call as nccl-tests counts it (the larger of a rank's two buffers). Without ``segments`` the cost model
chooses them. ``root`` limits an entry of a rooted collective to that root, and ``hosts`` an entry to groups that span so many hosts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from topoccl.algorithms.algorithm import label_of, read_label
from topoccl.algorithms.calibration import TRANSPORTS
from topoccl.algorithms.registry import by_name
from topoccl.algorithms.spec import COLLECTIVES, ROOTED, canonical_collective
from topoccl.algorithms.tuning.measured import Curve, Fitted, Measurement, Range, Tuning, TuningError
from topoccl.topology.document import Cursor, read
from topoccl.topology.files import read_file
from topoccl.topology.graph import TopologyError
from topoccl.topology.units import format_size, format_time, parse_time

VERSION = 2
VERSIONS = (1, 2)
MAX_SEGMENTS = 1 << 10  # what the cost model tries ends well below
MAX_BYTES = 1 << 50

PART = ("topology", "transport", "fabric", "profile", "covered", "entries")
ENTRY = ("collective", "ranks", "algorithm", "bytes", "seconds", "segments", "root", "hosts", "pulls", "predicted")
REQUIRED = ENTRY[:5]
RANGE = ("collective", "ranks", "from", "to", "root", "hosts")
MEDIA = ("local", "network")
CONSTANTS = ("copy_bandwidth", "reduce_bandwidth")
MEDIUM_CONSTANTS = (
    "send_overhead", "recv_overhead", "latency", "call_overhead", "stamped_overhead", "stamped_call", "stamped_rate", "both_ways",
    "efficiency", "burst", "pull_bandwidth", "pull_overhead",
)  # fmt: skip
_DIGEST = re.compile(r"[0-9a-f]{12,64}")
_SHARES = ("both_ways", "efficiency")


def load_tuning(path: str | Path) -> Tuning:
    """The tuning file at ``path``.

    Raises:
        TuningError: unreadable, or as :func:`parse_tuning`.
    """
    try:
        text = read_file(path)
    except TopologyError as error:
        raise TuningError(str(error)) from None
    return parse_tuning(text, str(path))


def parse_tuning(text: str, source: str = "tuning") -> Tuning:
    """The measurements that ``text`` (YAML or JSON) holds; ``source`` is the name that errors begin with.

    Raises:
        TuningError: not well formed, an unknown or missing key, a value that cannot be, or the same thing measured twice in one place.
    """
    try:
        return _document(read(text, source, "a mapping with topoccl_tuning and entries"))
    except TopologyError as error:
        raise TuningError(str(error)) from None


def _document(top: Cursor) -> Tuning:
    version = top.entries("a mapping with topoccl_tuning and entries").get("topoccl_tuning")
    number = None if version is None else version.node.value
    if isinstance(number, int) and not isinstance(number, bool) and number not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        text = f"nothing of {top.source} is used: it has version {number} of the format of tuning files; known here: {known}"
        return Tuning(source=top.source, problem=text)
    several = number == VERSION and "parts" in top.entries("a mapping")
    given = top.fields(("topoccl_tuning", *(("parts",) if several else PART)), ("topoccl_tuning", "parts" if several else "entries"))
    if number not in VERSIONS or isinstance(number, bool):
        given["topoccl_tuning"].fail(f"{' or '.join(map(str, VERSIONS))}, the versions of this format")
    if not several:
        only = _part(given, top.source)
        return only if number == VERSION else replace(only, fitted=None)  # overheads were counted otherwise
    found = [_part(at.fields(PART, ("entries",)), top.source) for at in given["parts"].items("a list of what was measured in each place")]
    if not found:
        given["parts"].fail("at least one place")
    return replace(found[0], more=tuple(found[1:]))


def _part(given: dict[str, Cursor], source: str) -> Tuning:
    """What was measured in one place."""
    entries: list[Measurement] = []
    seen: dict[tuple[Curve, int], Cursor] = {}
    for at in given["entries"].items("a list of measurements"):
        entry = _entry(at)
        first = seen.setdefault((entry.curve, entry.nbytes), at)
        if first is not at:
            line = "" if first.node.line is None else f" (line {first.node.line})"
            what = f"{entry.algorithm} for {entry.collective} of {format_size(entry.nbytes)} bytes among {entry.ranks} ranks"
            raise at.error(f"{what} is already given by {first.path}{line}")
        entries.append(entry)
    return Tuning(
        tuple(entries),
        _digest(given["topology"], "a topology") if "topology" in given else None,
        source,
        tuple(map(_range, given["covered"].items("a list of ranges"))) if "covered" in given else (),
        given["transport"].one_of(TRANSPORTS) if "transport" in given else None,
        _digest(given["fabric"], "a fabric") if "fabric" in given else None,
        _fitted(given["profile"]) if "profile" in given else None,
    )


def _digest(at: Cursor, what: str) -> str:
    digest = at.text(expected := f"the digest of {what}, or at least its first 12 hexadecimal digits").lower()
    if not _DIGEST.fullmatch(digest):
        at.fail(expected)
    return digest


def _fitted(at: Cursor) -> Fitted:
    given = at.fields(("crowd", "machine", *CONSTANTS, *MEDIA))
    constants = [(name, given[name].rate()) for name in CONSTANTS if name in given]
    for medium in MEDIA:
        if medium in given:
            inside = given[medium].fields(MEDIUM_CONSTANTS)
            constants += [(f"{medium}.{name}", _constant(inside[name], name)) for name in MEDIUM_CONSTANTS if name in inside]
    ranks = "a number of ranks for each core, at least 1"
    crowd, machine = (_number(given[key], 1, float("inf"), ranks) if key in given else 1.0 for key in ("crowd", "machine"))
    return Fitted(tuple(sorted(constants)), crowd, machine)


def _constant(at: Cursor, name: str) -> float:
    if name in _SHARES:
        least = 0.5 if name == "both_ways" else 1e-6
        return _number(at, least, 1, f"a share from {least:g} to 1")
    if name == "burst":
        return float(at.size())
    return at.rate() if name.endswith(("bandwidth", "rate")) else at.time()


def _number(at: Cursor, least: float, most: float, expected: str) -> float:
    value = at.node.value
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        at.fail(expected)
    return float(value)


def _range(at: Cursor) -> Range:
    given = at.fields(RANGE, RANGE[:4])
    collective, ranks = _collective(given["collective"]), _count(given["ranks"], 1)
    least, most = given["from"].size(), given["to"].size()
    if most < least:
        given["to"].fail(f"at least {format_size(least)}, where the range begins")
    return Range(collective, ranks, least, most, _root(given, collective, ranks), _hosts(given, ranks))


def _entry(at: Cursor) -> Measurement:
    given = at.fields(ENTRY, REQUIRED)
    collective = _collective(given["collective"])
    ranks = _count(given["ranks"], 1)
    nbytes = given["bytes"].size()
    if nbytes > MAX_BYTES:
        given["bytes"].fail(f"at most {format_size(MAX_BYTES)}")
    if collective == "barrier" and nbytes:
        given["bytes"].fail("0, since a barrier moves no data")
    seconds = _positive(given["seconds"])
    return Measurement(
        collective,
        ranks,
        _algorithm(given["algorithm"], collective),
        nbytes,
        seconds,
        _count(given["segments"], 1, MAX_SEGMENTS) if "segments" in given else None,
        _root(given, collective, ranks),
        _hosts(given, ranks),
        _flag(given["pulls"]) if "pulls" in given else False,
        _positive(given["predicted"]) if "predicted" in given else None,
    )


def _positive(at: Cursor) -> float:
    seconds = at.time()
    if seconds <= 0:
        at.fail("a time above zero")
    return seconds


def _root(given: dict[str, Cursor], collective: str, ranks: int) -> int | None:
    if "root" not in given:
        return None
    if collective not in ROOTED:
        raise given["root"].error(f"{collective} has no root; those that have one: {', '.join(c for c in COLLECTIVES if c in ROOTED)}")
    return _count(given["root"], 0, ranks - 1)


def _hosts(given: dict[str, Cursor], ranks: int) -> int | None:
    return _count(given["hosts"], 1, ranks) if "hosts" in given else None


def _flag(at: Cursor) -> bool:
    value = at.node.value
    if not isinstance(value, bool):
        at.fail("true or false")
    return value


def _collective(at: Cursor) -> str:
    expected = f"one of {', '.join(COLLECTIVES)}"
    try:
        return canonical_collective(at.text(expected))
    except TopologyError:
        raise
    except ValueError:
        at.fail(expected)


def _count(at: Cursor, least: int, most: int = 1 << 20) -> int:
    value = at.node.value
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        at.fail(f"a whole number from {least} to {most}")
    return value


def _algorithm(at: Cursor, collective: str) -> str:
    text = at.text("an algorithm such as ring or ring[channels=2]")
    try:
        name, params = read_label(text)
        known = by_name(collective, name).parameters
        for key in params:
            if key not in known:
                raise ValueError(f"{name} has no parameter {key!r}; known: {', '.join(known) or 'none'}")
    except ValueError as error:
        raise at.error(str(error)) from None
    return label_of(name, params)


def dump_tuning(tuning: Tuning) -> str:
    """The text (YAML) of a tuning file: ``parse_tuning(dump_tuning(t)) == t``."""
    lines = [f"topoccl_tuning: {VERSION}"]
    if not tuning.more:
        return "\n".join([*lines, *_lines(tuning)]) + "\n"
    lines.append("parts:")
    for part in tuning.parts:
        inside = list(_lines(part))
        lines += [f"- {inside[0]}", *(f"  {line}" for line in inside[1:])]
    return "\n".join(lines) + "\n"


def _lines(part: Tuning) -> Iterator[str]:
    """What was measured in one place."""
    for key, value in (("topology", part.topology), ("transport", part.transport), ("fabric", part.fabric)):
        if value is not None:
            yield f"{key}: {json.dumps(value)}"
    if part.fitted is not None:
        yield from ("profile:", f"  crowd: {part.fitted.crowd!r}", f"  machine: {part.fitted.machine!r}", *_shown_constants(part.fitted))
    if part.covered:
        yield "covered:"
    for covered in part.covered:
        yield _shown(
            collective=covered.collective,
            ranks=covered.ranks,
            **{"from": format_size(covered.least), "to": format_size(covered.most)},
            root=covered.root,
            hosts=covered.hosts,
        )
    yield "entries:" if part.entries else "entries: []"
    for entry in part.entries:
        yield _shown(
            collective=entry.collective,
            ranks=entry.ranks,
            algorithm=json.dumps(entry.algorithm),
            bytes=format_size(entry.nbytes),
            seconds=_shown_time(entry.seconds),
            segments=entry.segments,
            pulls="true" if entry.pulls else None,
            root=entry.root,
            hosts=entry.hosts,
            predicted=None if entry.predicted is None else _shown_time(entry.predicted),
        )


def _shown(**fields: Any) -> str:
    return f"- {{{', '.join(f'{key}: {value}' for key, value in fields.items() if value is not None)}}}"


def _shown_time(seconds: float) -> str:
    time = format_time(seconds)
    return time if parse_time(time) == seconds else repr(seconds)


def _shown_constants(fitted: Fitted) -> Iterator[str]:
    inside: dict[str, list[str]] = {}
    for name, value in fitted.constants:
        head, _, tail = name.rpartition(".")
        timed = tail.endswith("overhead") or tail in ("latency", "stamped_call")
        shown = _shown_time(value) if timed else format_size(round(value)) if tail == "burst" else repr(value)
        inside.setdefault(head, []).append(f"{tail}: {shown}")
    for medium, texts in inside.items():
        if medium:
            yield f"  {medium}: {{{', '.join(texts)}}}"
        else:
            yield from (f"  {text}" for text in texts)
