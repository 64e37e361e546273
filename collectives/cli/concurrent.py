"""``topoccl explain --concurrent``: groups that run at once, as the dimensions of a mesh do, and share links."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from topoccl.algorithms.calibration import Profile
from topoccl.algorithms.choice import Choice
from topoccl.algorithms.concurrent import Group, Together, check_groups, limits_in_words, mesh_groups, together
from topoccl.algorithms.spec import ROOTED, CollectiveSpec, canonical_collective
from topoccl.collectives.errors import ConfigError
from topoccl.topology.graph import Topology
from topoccl.topology.units import format_ranks, format_rate, format_size, format_time, parse_size

MOST_GROUPS = 64


@dataclass(frozen=True)
class Call:
    """The call of one group; ``ranks`` are those of the whole topology."""

    name: str
    ranks: tuple[int, ...]
    spec: CollectiveSpec
    nbytes: int


def concurrent_calls(text: str, mesh: str | None, topology: Topology, collective: str, nbytes: int, root: int | None) -> list[Call]:
    """What ``--concurrent`` and ``--mesh`` mean; ``collective``, ``nbytes`` and ``root`` are those of groups that name no others.

    Raises:
        ConfigError: saying what is wrong.
    """
    asked: list[tuple[str, tuple[int, ...], str, int]] = []
    if mesh is None:
        lists = [part.split(",") for part in text.split(";")]
        if not all(rank.strip().isdigit() for ranks in lists for rank in ranks):
            raise ConfigError(f"--concurrent {text}: expected lists of ranks such as '0,1;2,3', or names of dimensions with --mesh")
        asked = [(f"group {at}", tuple(map(int, ranks)), collective, nbytes) for at, ranks in enumerate(lists)]
    else:
        try:
            dimensions = mesh_groups(_mesh(mesh), topology.num_ranks)
        except ValueError as error:
            raise ConfigError(f"--mesh {mesh}: {error}") from None
        for part in text.split(",") if text else dimensions:
            name, _, call = part.partition("=")
            if name not in dimensions:
                raise ConfigError(f"--concurrent {text}: no dimension {name!r}; --mesh {mesh} has {', '.join(dimensions)}")
            asked += [(f"{name} {at}", ranks, *_call(call, collective, nbytes)) for at, ranks in enumerate(dimensions[name])]
    try:
        check_groups([ranks for _, ranks, _, _ in asked], topology)
    except ValueError as error:
        raise ConfigError(f"--concurrent: {error}") from None
    if len(asked) > MOST_GROUPS:
        raise ConfigError(f"--concurrent: {len(asked)} groups; at most {MOST_GROUPS} are looked at")
    roots = {what: (root or 0) if what in ROOTED else None for _, _, what, _ in asked}
    return [Call(name, ranks, CollectiveSpec(what, len(ranks), roots[what]), size) for name, ranks, what, size in asked]


def _mesh(text: str) -> dict[str, int]:
    """``4x2``, whose dimensions are called ``0`` and ``1``, or ``dp=4,tp=2``."""
    pairs = [part.partition("=")[::2] for part in text.split(",")] if "=" in text else [*enumerate(text.lower().split("x"))]
    sizes = {str(name).strip(): int(size) for name, size in pairs if str(size).strip().isdigit() and int(size) > 0}
    if len(sizes) != len(pairs):
        raise ConfigError(f"--mesh {text}: expected sizes such as 4x2, or names and sizes such as dp=4,tp=2")
    return sizes


def _call(text: str, collective: str, nbytes: int) -> tuple[str, int]:
    """``reduce_scatter@64M``, ``reduce_scatter``, ``64M`` or nothing."""
    what, at, size = text.partition("@")
    if what and not at and what[0].isdigit():
        what, size = "", what
    return canonical_collective(what) if what else collective, parse_size(size) if size else nbytes


def show_concurrent(calls: Sequence[Call], choose: Callable[[Call], Choice], topology: Topology, profile: Profile, as_json: bool) -> int:
    """Prints what each group runs, alone and with the others."""
    choices: list[Choice] = []
    for call in calls:
        choices.append(choose(call))
        if choices[-1].warning:
            print(f"topoccl: warning: {choices[-1].warning}", file=sys.stderr)
    groups = [Group(call.name, call.ranks, choice) for call, choice in zip(calls, choices, strict=True)]
    found = together(groups, topology, profile)
    print(json.dumps(_as_dict(groups, topology, profile, found), indent=2) if as_json else _text(groups, topology, found))
    return 0


def _as_dict(groups: Sequence[Group], topology: Topology, profile: Profile, found: Together) -> dict[str, object]:
    link = None if found.link is None else topology.links[found.link]
    return {
        "topology": topology.name,
        "profile": profile.name,
        "ranks_per_core": profile.machine,
        "groups": [
            {
                "group": group.name,
                "ranks": list(group.ranks),
                "collective": group.choice.collective,
                "bytes": group.choice.nbytes,
                "choice": group.choice.algorithm,
                "segments": group.choice.segments,
                "alone_seconds": share.alone,
                "seconds": share.seconds,
                "limited_by": None if share.limit is None else topology.links[share.limit].name,
                "rate_on_busiest_link": share.on_limit,
            }
            for group, share in zip(groups, found.shares, strict=True)
        ],
        "seconds": max((share.seconds for share in found.shares), default=0.0),
        "busiest_link": None if link is None else link.name,
        "rate": found.rate,
        "share_of_link": None if link is None else found.rate / link.bandwidth,
    }


def _text(groups: Sequence[Group], topology: Topology, found: Together) -> str:
    busiest = "" if found.link is None else topology.links[found.link].name
    rows = [("group", "ranks", "call", "algorithm", "alone", "at once", f"on {busiest}", "slowed by")]
    for group, share in zip(groups, found.shares, strict=True):
        choice = group.choice
        rows.append(
            (
                group.name,
                format_ranks(group.ranks).partition(" ")[2],
                f"{choice.collective} {format_size(choice.nbytes)}",
                choice.algorithm + (f" x{choice.segments}" if choice.segments > 1 else ""),
                format_time(share.alone),
                format_time(share.seconds),
                format_rate(share.on_limit) if share.on_limit else "-",
                "-" if share.limit is None else topology.links[share.limit].name,
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(7)]
    lines = [f"{len(groups)} groups at once on {topology.name}, {topology.num_ranks} ranks"]
    lines += ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[7]]) for row in rows]
    return "\n".join([*lines, limits_in_words(topology, found)])
