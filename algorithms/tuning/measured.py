"""What was measured on a fabric, and what it says of calls: times of candidates, and the constants of the cost model."""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from topoccl.algorithms.algorithm import label_of, read_label
from topoccl.algorithms.calibration import Profile
from topoccl.algorithms.tuning.corrections import Evidence, factor
from topoccl.topology.graph import Topology
from topoccl.topology.units import format_rate, format_time

REACH = 2
"""A measured size also serves sizes up to this many times smaller or larger, where no measured size lies beyond them."""

GAP = 4
"""Measured sizes at most so many times apart say what lies between them; others only where nobody knows what was predicted there."""

SAME = 1.2
"""Where it is known how far predictions were off, those are corrected beyond measured sizes, save for sizes this close."""

_SHOWN = 16  # digits of a digest in messages
_SAME_CROWD = 0.01


class TuningError(ValueError):
    """A tuning file that cannot be used; the message names the file, the line (of YAML), the path, the value and what was expected."""


class Measured(NamedTuple):
    """What a candidate takes, in how many pipeline segments (None: the cost model chooses); ``pulls``: reading the senders' buffers."""

    seconds: float
    segments: int | None
    pulls: bool = False


@dataclass(frozen=True, slots=True)
class Measurement:
    """One entry: ``algorithm`` (a label such as ``ring[channels=2]``) took ``seconds`` for a call of ``nbytes`` among ``ranks``.

    ``root`` and ``hosts``, where given, are those of the only groups that the entry speaks of. ``pulls``: receivers read straight from
    the senders' buffers. ``predicted``: seconds by the constants of the file, None where unknown.
    """

    collective: str
    ranks: int
    algorithm: str
    nbytes: int
    seconds: float
    segments: int | None = None
    root: int | None = None
    hosts: int | None = None
    pulls: bool = False
    predicted: float | None = None

    @property
    def curve(self) -> Curve:
        return (self.collective, self.ranks, canonical_label(self.algorithm), self.root, self.hosts)

    @property
    def measured(self) -> Measured:
        return Measured(self.seconds, self.segments, self.pulls)


Curve = tuple[str, int, str, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Range:
    """Calls from ``least`` to ``most`` bytes for which every candidate worth it was measured: there nothing has to be predicted.

    ``root`` and ``hosts`` as for :class:`Measurement`.
    """

    collective: str
    ranks: int
    least: int
    most: int
    root: int | None = None
    hosts: int | None = None


@dataclass(frozen=True, slots=True)
class Fitted:
    """Constants of a :class:`~topoccl.algorithms.calibration.Profile` as fitted to measurements.

    Attributes:
        constants: (name, value), names as ``copy_bandwidth`` or ``network.efficiency``, in order.
        crowd: how many ranks shared a core; what a host's processors and memory take holds for no other number.
        machine: how many did where hosts share a machine.
    """

    constants: tuple[tuple[str, float], ...] = ()
    crowd: float = 1.0
    machine: float = 1.0

    def apply(self, profile: Profile) -> Profile:
        """``profile`` with these constants; those of the hosts themselves only where as many ranks share a core."""
        same = abs(profile.crowd - self.crowd) <= _SAME_CROWD * self.crowd
        kept = [(name, value) for name, value in self.constants if same or name.startswith("network.")]
        return replace(with_constants(profile, kept), name=f"{profile.name}, tuned") if kept else profile

    def __str__(self) -> str:
        """``network.efficiency 0.947, network.latency 31us``."""
        shown = []
        for name, value in self.constants:
            rounded = float(f"{value:.3g}")
            share = name.endswith(("efficiency", "both_ways"))
            text = f"{rounded:g}" if share else format_rate(rounded) if name.endswith("bandwidth") else format_time(rounded)
            shown.append(f"{name} {f'{value:.0f} bytes' if name.endswith('burst') else text}")
        return ", ".join(shown)


def with_constants(profile: Profile, constants: Sequence[tuple[str, float]]) -> Profile:
    """``profile`` with other constants, named as in :class:`Fitted`."""
    for name, value in constants:
        head, _, tail = name.partition(".")
        if not tail:
            profile = replace(profile, **{head: value})  # type: ignore[arg-type]
        else:
            profile = replace(profile, **{head: replace(getattr(profile, head), **{tail: value})})
    return profile


def fabric_digest(topology: Topology) -> str:
    """The digest of the fabric, whatever the group on it and the order of its ranks."""
    return Topology(topology.name, topology.vertices.values(), topology.links).digest


@dataclass(frozen=True)
class Tuning:
    """What a tuning file holds; equal contents are equal whatever the source.

    Attributes:
        entries: measurements.
        topology: the digest (or its first digits) of the topology they hold for, placement included; None for any.
        covered: where nothing has to be predicted.
        transport: what carried messages between hosts, None for any.
        fabric: the digest of the fabric, placement aside, on which the constants hold.
        fitted: constants of the cost model.
        more: what was measured elsewhere, each in one place: other placements, groups, transports or fabrics.
        problem: why nothing of the file can be used, if so.
        evidence: measurements that tell how far predictions are off, where they are others than ``entries``.
        source: for people.
    """

    entries: tuple[Measurement, ...] = ()
    topology: str | None = None
    source: str = field(default="tuning", compare=False)
    covered: tuple[Range, ...] = ()
    transport: str | None = None
    fabric: str | None = None
    fitted: Fitted | None = None
    more: tuple[Tuning, ...] = ()
    problem: str | None = None
    evidence: tuple[Measurement, ...] = ()

    @cached_property
    def parts(self) -> tuple[Tuning, ...]:
        """What was measured in each place."""
        return (replace(self, more=()), *(replace(part, source=self.source) for part in self.more))

    @cached_property
    def digest(self) -> str:
        """A hash of the contents, equal on every rank and machine."""
        rows = [self.topology, self.transport, self.fabric, repr(self.fitted), self.problem, *(part.digest for part in self.more)]
        lists = (sorted(map(repr, map(astuple, part))) for part in (self.entries, self.covered))
        return hashlib.sha256(json.dumps([*rows, *lists]).encode()).hexdigest()

    @cached_property
    def _curves(self) -> dict[Curve, list[Measurement]]:
        """The measurements of each candidate and group, smallest size first."""
        curves: dict[Curve, list[Measurement]] = {}
        for entry in sorted(self.entries, key=lambda entry: entry.nbytes):
            curves.setdefault(entry.curve, []).append(entry)
        return curves

    def holds(self, topology: Topology) -> bool:
        """Whether what comes first in it was measured on ``topology``, or does not say on which."""
        return self.topology is None or topology.digest.startswith(self.topology)

    def mismatch(self, topology: Topology, transport: str | None = None) -> str | None:
        """Why these times are not to be used on ``topology`` over ``transport`` (None: whatever it is); None when some hold there."""
        if self.problem is not None:
            return self.problem
        carried = [part for part in self.parts if transport is None or part.transport in (None, transport)]
        if any(part.holds(topology) for part in carried):
            return None
        if not carried:
            over = " and ".join(sorted({part.transport for part in self.parts if part.transport is not None}))
            return f"the times of {self.source} are not used: they were measured over {over}, and this is {transport}"
        known = list(dict.fromkeys(part.topology[:_SHOWN] for part in carried if part.topology is not None))
        places = f"a topology with the digest {known[0]}" if len(known) == 1 else f"topologies with the digests {', '.join(known)}"
        return (
            f"the times of {self.source} are not used: they were measured on {places}, but {topology.name!r} has {topology.digest[:_SHOWN]}"
        )

    def constants(self, topology: Topology, transport: str) -> Fitted | None:
        """The fitted constants that hold on this fabric, in whatever placement, and for this transport; of several those that were
        measured in this very placement."""
        fits = [part for part in self._of_fabric(topology, transport) if part.fitted is not None]
        here = [part for part in fits if part.topology is not None and part.holds(topology)]
        return next((part.fitted for part in (*here, *fits)), None)

    def calibrate(self, profile: Profile, topology: Topology, transport: str) -> Profile:
        """``profile`` with :meth:`constants`, if there are some."""
        fitted = self.constants(topology, transport)
        return profile if fitted is None else fitted.apply(profile)

    def _of_fabric(self, topology: Topology, transport: str | None) -> list[Tuning]:
        """The parts that were measured on this fabric, in whatever placement, or do not say where."""
        if self.problem is not None:
            return []
        fabric = fabric_digest(topology)
        return [
            part for part in self.parts if part.transport in (None, transport) and (part.fabric is None or fabric.startswith(part.fabric))
        ]

    def at(self, topology: Topology, transport: str | None) -> Tuning:
        """What it says of calls on ``topology``: the times that hold there, and how far predictions were off on this fabric."""
        carried = [part for part in self.parts if self.problem is None and part.transport in (None, transport)]
        holding = [part for part in carried if part.holds(topology)]
        seen = tuple(entry for part in self._of_fabric(topology, transport) for entry in part.entries if entry.predicted is not None)
        here = Tuning(source=self.source, transport=transport, more=tuple(carried), evidence=seen)
        return here._with(holding)

    def for_group(self, topology: Topology) -> Tuning:
        """The same for a part of the group, which may have been measured by itself."""
        return self._with([part for part in self.more if part.topology is not None and part.holds(topology)])

    def _with(self, parts: Sequence[Tuning]) -> Tuning:
        """With the times of ``parts`` too; of the same thing measured twice the first counts."""
        entries = {(e.curve, e.nbytes): e for part in (*reversed(parts), self) for e in part.entries}
        covered = dict.fromkeys(r for part in (self, *parts) for r in part.covered)
        return replace(self, entries=tuple(entries.values()), covered=tuple(covered)) if parts else self

    @cached_property
    def _off(self) -> dict[tuple[str, int | None], list[Evidence]]:
        """How far predictions were off, by collective and number of ranks, and by collective alone."""
        found: dict[tuple[str, int | None], list[Evidence]] = {}
        for entry in self.evidence or self.entries:
            if entry.predicted is not None and entry.nbytes:
                off = Evidence(canonical_label(entry.algorithm), math.log2(entry.nbytes), math.log(entry.seconds / entry.predicted))
                found.setdefault((entry.collective, entry.ranks), []).append(off)
                found.setdefault((entry.collective, None), []).append(off)
        return found

    def factor(self, collective: str, ranks: int, label: str, nbytes: int) -> float:
        """By what to multiply predicted seconds, as :func:`~topoccl.algorithms.tuning.corrections.factor` says: by what was measured
        among as many ranks, or where nothing was among any number."""
        evidence = self._off.get((collective, ranks)) or self._off.get((collective, None), [])
        return factor(evidence, canonical_label(label), nbytes) if evidence else 1.0

    def labels(self, collective: str, ranks: int) -> list[str]:
        """The candidates that were measured at whatever size, in the order of the file."""
        found = (canonical_label(e.algorithm) for e in self.entries if (e.collective, e.ranks) == (collective, ranks))
        return list(dict.fromkeys(found))

    def seconds(
        self, collective: str, ranks: int, label: str, nbytes: int, *, root: int | None = None, hosts: int | None = None
    ) -> Measured | None:
        """What the candidate ``label`` takes for a call of ``nbytes``, None when nothing that was measured tells.

        Entries for this very root and number of hosts come before those for any. Between two measured sizes (see :data:`GAP`) time is
        interpolated on logarithmic scales. Up to :data:`REACH` times (:data:`SAME` times, where it is
        known what was predicted) beyond the measured sizes it is what it takes at most: as long as for the
        smallest, or longer than for the largest in proportion to the size.
        """
        name = canonical_label(label)
        for at in dict.fromkeys((r, h) for r in (root, None) for h in (hosts, None)):
            found = _look_up(self._curves.get((collective, ranks, name, *at), ()), nbytes)
            if found is not None:
                return found
        return None

    def covers(self, collective: str, ranks: int, nbytes: int, *, root: int | None = None, hosts: int | None = None) -> bool:
        """Whether what was measured is enough to choose by for such a call."""
        return any(
            (r.collective, r.ranks) == (collective, ranks) and r.root in (None, root) and r.hosts in (None, hosts)
            for r in self.covered
            if r.least <= nbytes <= r.most
        )


def merge(tunings: Sequence[Tuning]) -> Tuning:
    """All of several files; what was measured twice in one place counts as it was measured last.

    Raises:
        TuningError: a file that cannot be used, or none.
    """
    found: dict[tuple[str | None, str | None], Tuning] = {}
    for tuning in tunings:
        if tuning.problem is not None:
            raise TuningError(f"{tuning.source}: {tuning.problem}")
        for part in tuning.parts:
            place = (part.topology, part.transport)
            older = found.get(place, Tuning())
            newer = part._with([older])
            fitted = part.fitted if part.fitted is not None else older.fitted
            found[place] = replace(newer, fitted=fitted, fabric=part.fabric or older.fabric)
    if not found:
        raise TuningError("nothing to merge; expected at least one tuning file")
    first, *others = found.values()
    return replace(first, more=tuple(others))


def _look_up(curve: Sequence[Measurement], nbytes: int) -> Measured | None:
    at = bisect_left(curve, nbytes, key=lambda entry: entry.nbytes)
    above = curve[at] if at < len(curve) else None
    if above is not None and above.nbytes == nbytes:
        return above.measured
    below = curve[at - 1] if at and curve[at - 1].nbytes else None  # an empty call says nothing of others, nor they of it
    if above is not None and below is not None and _between(below, above):
        share = math.log(nbytes / below.nbytes) / math.log(above.nbytes / below.nbytes)
        return (below if share < 0.5 else above).measured._replace(seconds=below.seconds * (above.seconds / below.seconds) ** share)
    if above is not None and above.nbytes <= _reach(above) * nbytes:
        return above.measured
    if below is not None and nbytes <= _reach(below) * below.nbytes:
        return below.measured._replace(seconds=below.seconds * (nbytes / below.nbytes))
    return None


def _between(below: Measurement, above: Measurement) -> bool:
    """Whether these tell of sizes between; far apart, a prediction that they correct is the better guess."""
    return above.nbytes <= GAP * below.nbytes or below.predicted is None or above.predicted is None


def _reach(entry: Measurement) -> float:
    return REACH if entry.predicted is None else SAME


def canonical_label(label: str) -> str:
    """One spelling for each candidate: no spaces, parameters in the order of the alphabet."""
    name, params = read_label(label)
    return label_of(name, dict(sorted(params.items())))
