"""Measured times that take the place of predicted ones: the file format of ``TOPOCCL_TUNE_FILE``, and the look-up.

YAML or JSON::

    topoccl_tuning: 1                 # the version of the format
    topology: 3fb2c81e07d4aa19        # optional: the digest of the topology on which it was measured, or its first digits
    entries:
    - {collective: all_reduce, ranks: 8, algorithm: "ring[channels=2]", bytes: 1M, segments: 4, seconds: 12ms}

``bytes`` is the size of the call as nccl-tests counts it (the larger of a rank's two buffers). Without ``segments`` the cost model
chooses them. ``root`` limits an entry of a rooted collective to that root, and ``hosts`` an entry to groups that span so many hosts.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from topoccl.algorithms.algorithm import label_of, read_label
from topoccl.algorithms.registry import by_name
from topoccl.algorithms.spec import COLLECTIVES, ROOTED, canonical_collective
from topoccl.topology.document import Cursor, read
from topoccl.topology.files import read_file
from topoccl.topology.graph import Topology, TopologyError
from topoccl.topology.units import format_size, format_time, parse_time

VERSION = 1
REACH = 2
"""A measured size also serves sizes up to this many times smaller or larger, where no measured size lies beyond them."""
MAX_SEGMENTS = 1 << 10  # what the cost model tries ends well below
MAX_BYTES = 1 << 50

TOP = ("topoccl_tuning", "topology", "entries")
ENTRY = ("collective", "ranks", "algorithm", "bytes", "seconds", "segments", "root", "hosts")
REQUIRED = ENTRY[:5]
_DIGEST = re.compile(r"[0-9a-f]{12,64}")
_SHOWN = 16  # digits of a digest in messages


class TuningError(ValueError):
    """A tuning file that cannot be used; the message names the file, the line (of YAML), the path, the value and what was expected."""


class Measured(NamedTuple):
    """What a candidate takes, and in how many pipeline segments (None: the cost model chooses)."""

    seconds: float
    segments: int | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One entry: ``algorithm`` (a label such as ``ring[channels=2]``) took ``seconds`` for a call of ``nbytes`` among ``ranks``.

    ``root`` and ``hosts``, where given, are those of the only groups that the entry speaks of.
    """

    collective: str
    ranks: int
    algorithm: str
    nbytes: int
    seconds: float
    segments: int | None = None
    root: int | None = None
    hosts: int | None = None

    @property
    def curve(self) -> _Curve:
        return (self.collective, self.ranks, _canonical(self.algorithm), self.root, self.hosts)


_Curve = tuple[str, int, str, int | None, int | None]


@dataclass(frozen=True)
class Tuning:
    """Measurements, and the digest (or its first digits) of the topology they hold for; equal contents are equal whatever the source."""

    entries: tuple[Measurement, ...] = ()
    topology: str | None = None
    source: str = field(default="tuning", compare=False)

    @cached_property
    def digest(self) -> str:
        """A hash of the contents, equal on every rank and machine."""
        return hashlib.sha256(json.dumps([self.topology, sorted(map(repr, map(astuple, self.entries)))]).encode()).hexdigest()

    @cached_property
    def _curves(self) -> dict[_Curve, list[Measurement]]:
        """The measurements of each candidate and group, smallest size first."""
        curves: dict[_Curve, list[Measurement]] = {}
        for entry in sorted(self.entries, key=lambda entry: entry.nbytes):
            curves.setdefault(entry.curve, []).append(entry)
        return curves

    def holds(self, topology: Topology) -> bool:
        """Whether it was measured on ``topology``, or does not say on which."""
        return self.topology is None or topology.digest.startswith(self.topology)

    def mismatch(self, topology: Topology) -> str | None:
        """Why these times are not to be used on ``topology``; None when they hold there."""
        if self.topology is None or self.holds(topology):
            return None
        return (
            f"the times of {self.source} are not used: they were measured on a topology with the digest {self.topology[:_SHOWN]}, "
            f"but {topology.name!r} has {topology.digest[:_SHOWN]}"
        )

    def labels(self, collective: str, ranks: int) -> list[str]:
        """The candidates that were measured at whatever size, in the order of the file."""
        found = (_canonical(e.algorithm) for e in self.entries if (e.collective, e.ranks) == (collective, ranks))
        return list(dict.fromkeys(found))

    def seconds(
        self, collective: str, ranks: int, label: str, nbytes: int, *, root: int | None = None, hosts: int | None = None
    ) -> Measured | None:
        """What the candidate ``label`` takes for a call of ``nbytes``, None when nothing that was measured tells.

        Entries for this very root and number of hosts come before those for any. Between two measured sizes, time is interpolated on
        logarithmic scales. Up to :data:`REACH` times beyond the measured sizes it is what it takes at most: as long as for the
        smallest, or longer than for the largest in proportion to the size.
        """
        name = _canonical(label)
        for at in dict.fromkeys((r, h) for r in (root, None) for h in (hosts, None)):
            found = _look_up(self._curves.get((collective, ranks, name, *at), ()), nbytes)
            if found is not None:
                return found
        return None


def _look_up(curve: Sequence[Measurement], nbytes: int) -> Measured | None:
    at = bisect_left(curve, nbytes, key=lambda entry: entry.nbytes)
    above = curve[at] if at < len(curve) else None
    if above is not None and above.nbytes == nbytes:
        return Measured(above.seconds, above.segments)
    below = curve[at - 1] if at and curve[at - 1].nbytes else None  # an empty call says nothing of others, nor they of it
    if above is not None and below is not None:
        share = math.log(nbytes / below.nbytes) / math.log(above.nbytes / below.nbytes)
        return Measured(below.seconds * (above.seconds / below.seconds) ** share, (below if share < 0.5 else above).segments)
    if above is not None and above.nbytes <= REACH * nbytes:
        return Measured(above.seconds, above.segments)
    if below is not None and nbytes <= REACH * below.nbytes:
        return Measured(below.seconds * (nbytes / below.nbytes), below.segments)
    return None


def _canonical(label: str) -> str:
    """One spelling for each candidate: no spaces, parameters in the order of the alphabet."""
    name, params = read_label(label)
    return label_of(name, dict(sorted(params.items())))


# Files


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
        TuningError: not well formed, an unknown or missing key, a value that cannot be, or the same thing measured twice.
    """
    try:
        return _document(read(text, source, "a mapping with topoccl_tuning and entries"))
    except TopologyError as error:
        raise TuningError(str(error)) from None


def _document(top: Cursor) -> Tuning:
    fields = top.fields(TOP, ("topoccl_tuning", "entries"))
    version = fields["topoccl_tuning"]
    if version.node.value != VERSION or isinstance(version.node.value, bool):
        version.fail(f"{VERSION}, the only version of this format")
    topology = None
    if "topology" in fields:
        topology = fields["topology"].text(expected := "the digest of a topology, or at least its first 12 hexadecimal digits").lower()
        if not _DIGEST.fullmatch(topology):
            fields["topology"].fail(expected)
    entries: list[Measurement] = []
    seen: dict[tuple[_Curve, int], Cursor] = {}
    for at in fields["entries"].items("a list of measurements"):
        entry = _entry(at)
        first = seen.setdefault((entry.curve, entry.nbytes), at)
        if first is not at:
            line = "" if first.node.line is None else f" (line {first.node.line})"
            what = f"{entry.algorithm} for {entry.collective} of {format_size(entry.nbytes)} bytes among {entry.ranks} ranks"
            raise at.error(f"{what} is already given by {first.path}{line}")
        entries.append(entry)
    return Tuning(tuple(entries), topology, top.source)


def _entry(at: Cursor) -> Measurement:
    given = at.fields(ENTRY, REQUIRED)
    collective = _collective(given["collective"])
    ranks = _count(given["ranks"], 1)
    nbytes = given["bytes"].size()
    if nbytes > MAX_BYTES:
        given["bytes"].fail(f"at most {format_size(MAX_BYTES)}")
    if collective == "barrier" and nbytes:
        given["bytes"].fail("0, since a barrier moves no data")
    seconds = given["seconds"].time()
    if seconds <= 0:
        given["seconds"].fail("a time above zero")
    root = None
    if "root" in given:
        if collective not in ROOTED:
            raise given["root"].error(f"{collective} has no root; those that have one: {', '.join(c for c in COLLECTIVES if c in ROOTED)}")
        root = _count(given["root"], 0, ranks - 1)
    return Measurement(
        collective,
        ranks,
        _algorithm(given["algorithm"], collective),
        nbytes,
        seconds,
        _count(given["segments"], 1, MAX_SEGMENTS) if "segments" in given else None,
        root,
        _count(given["hosts"], 1, ranks) if "hosts" in given else None,
    )


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
    if tuning.topology is not None:
        lines.append(f"topology: {json.dumps(tuning.topology)}")
    lines.append("entries:" if tuning.entries else "entries: []")
    for entry in tuning.entries:
        time = format_time(entry.seconds)
        shown: dict[str, Any] = {
            "collective": entry.collective,
            "ranks": entry.ranks,
            "algorithm": json.dumps(entry.algorithm),
            "bytes": format_size(entry.nbytes),
            "seconds": time if parse_time(time) == entry.seconds else repr(entry.seconds),
            "segments": entry.segments,
            "root": entry.root,
            "hosts": entry.hosts,
        }
        lines.append(f"- {{{', '.join(f'{key}: {value}' for key, value in shown.items() if value is not None)}}}")
    return "\n".join(lines) + "\n"
