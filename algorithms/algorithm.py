"""The one form every algorithm has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology


class Build(Protocol):
    """Builds the schedule of ``spec`` for ranks that sit on ``topology.slots`` in order (``topology.num_ranks == spec.ranks``).

    Type checkers read the ``*args`` and ``**params`` of Any together as "whatever further parameters": a builder declares its own.
    """

    def __call__(self, spec: CollectiveSpec, topology: Topology, *args: Any, **params: Any) -> Schedule: ...


def _accept(spec: CollectiveSpec, topology: Topology) -> str | None:
    return None


@dataclass(frozen=True)
class Algorithm:
    """A named way to make schedules.

    Attributes:
        name: what ``TOPOCCL_ALGO`` and the tables call it; one name may serve several collectives.
        collectives: the collectives this entry builds.
        build: the builder; it must work for any number of ranks and any placement that ``reject`` lets through.
        variants: parameter sets worth trying, the plainest first; each is one candidate.
        reject: the reason why this algorithm makes no sense for a spec on a topology, or None.
        summary: one line for tables and docs.
    """

    name: str
    collectives: tuple[str, ...]
    build: Build
    variants: tuple[Mapping[str, Any], ...] = ({},)
    reject: Callable[[CollectiveSpec, Topology], str | None] = _accept
    summary: str = ""
