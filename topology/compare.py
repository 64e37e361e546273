"""What differs between two topologies: vertices, links and the placement of ranks. The topologies' names and all orders do not count. Pure.

Things are the same if their ids are. Where no host of the one is one of the other, and both have as many, the same machines may have been
described under other names: :func:`align` then gives the hosts of the second those of the first, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from topoccl.topology.graph import Link, Topology, TopologyError
from topoccl.topology.renaming import rename_hosts
from topoccl.topology.render.edges import rate_text
from topoccl.topology.units import format_time

_SIGNS = {"removed": "-", "added": "+", "changed": "~"}


@dataclass(frozen=True, slots=True)
class Change:
    """One difference.

    Attributes:
        how: ``removed`` (only in the first), ``added`` (only in the second) or ``changed``.
        what: ``host``, ``slot``, ``nic`` and so on for vertices, ``link``, or ``rank`` for its place.
        subject: the vertex, ``A - B (kind)`` for a link with its way back, or the rank.
        before, after: values by name; of a changed thing only those that differ.
    """

    how: Literal["removed", "added", "changed"]
    what: str
    subject: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    def __str__(self) -> str:
        kind = self.subject.rpartition("(")[2].removesuffix(")") if self.what == "link" else "net"
        parts = []
        for key in dict.fromkeys((*self.before, *self.after)):
            old, new = (_text(key, side.get(key), kind) for side in (self.before, self.after))
            if self.how == "changed" and old == new:  # differs beyond what people read
                old, new = repr(self.before.get(key)), repr(self.after.get(key))
            parts.append(f"{key} {old} -> {new}" if self.how == "changed" else f"{key} {old if self.how == 'removed' else new}")
        return f"{_SIGNS[self.how]} {self.what} {self.subject}{': ' if parts else ''}{', '.join(parts)}"


def align(a: Topology, b: Topology) -> tuple[Topology, dict[str, str]]:
    """``b`` with the host names of ``a``, and the new name by the old one (empty if they share names, or have not as many hosts)."""
    if set(a.hosts) & set(b.hosts) or len(a.hosts) != len(b.hosts):
        return b, {}
    names = dict(zip(b.hosts, a.hosts, strict=True))
    try:
        return rename_hosts(b, names), names
    except TopologyError:  # something else in b has the name of a host of a
        return b, {}


def compare(a: Topology, b: Topology) -> list[Change]:
    """All differences from ``a`` to ``b``: vertices, then links, then places of ranks; empty for equal ones."""
    return [*_vertices(a, b), *_compared("link", _links(a), _links(b)), *_ranks(a, b)]


def _vertices(a: Topology, b: Topology) -> Iterator[Change]:
    before, after = ({v.id: {"kind": v.kind.value, "host": v.host, **v.attrs} for v in t.vertices.values()} for t in (a, b))
    for key in dict.fromkeys((*before, *after)):
        kind = str((before.get(key) or after[key])["kind"])
        for change in _compared("", {key: before[key]} if key in before else {}, {key: after[key]} if key in after else {}):
            shown = [values if change.how == "changed" else _without(values, "kind", "host") for values in (change.before, change.after)]
            yield Change(change.how, kind, key, shown[0], shown[1])


def _without(values: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _compared(what: str, before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> Iterator[Change]:
    for subject in dict.fromkeys((*before, *after)):
        if subject not in after:
            yield Change("removed", what, subject, before[subject], {})
        elif subject not in before:
            yield Change("added", what, subject, {}, after[subject])
        elif before[subject] != after[subject]:
            old, new = before[subject], after[subject]
            keys = [key for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)]
            yield Change("changed", what, subject, {k: old[k] for k in keys if k in old}, {k: new[k] for k in keys if k in new})


def _links(topology: Topology) -> dict[str, dict[str, Any]]:
    """Links by their ends and kind: both directions of a pair together, parallel ones in a list, figures in bytes/s and seconds."""
    pairs: dict[tuple[str, str, str], tuple[list[Link], list[Link]]] = {}
    for link in topology.links:
        a, b = sorted((link.src, link.dst))
        pairs.setdefault((a, b, link.kind), ([], []))[link.src != a].append(link)
    found = {}
    for (a, b, kind), directions in pairs.items():
        there, back = (sorted(side, key=lambda link: (link.bandwidth, link.latency)) for side in directions)
        values: dict[str, Any] = {}
        for name in ("bandwidth", "latency"):
            figures = [_few([getattr(link, name) for link in side]) for side in (there, back)]
            values[name] = figures[0] if figures[0] == figures[1] else figures
        for key in sorted({key for link in (*there, *back) for key in link.attrs}):
            said = [link.attrs.get(key) for link in (*there, *back)]
            values[key] = said[0] if all(one == said[0] for one in said) else said
        found[f"{a} - {b} ({kind})"] = values
    return found


def _few(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _ranks(a: Topology, b: Topology) -> Iterator[Change]:
    before, after = ({str(rank): {"slot": slot} for rank, slot in enumerate(t.slots)} for t in (a, b))
    yield from _compared("rank", before, after)


def _text(key: str, value: Any, kind: str) -> str:
    if isinstance(value, list | tuple):
        return " / ".join(_text(key, item, kind) for item in value) or "none"
    if isinstance(value, float) and key in ("bandwidth", "rate"):
        return rate_text(value, kind)
    if isinstance(value, float) and key == "latency":
        return format_time(value)
    return "none" if value is None else str(value)
