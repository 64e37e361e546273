"""The one form every algorithm has."""

from __future__ import annotations

import inspect
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
        on_paper: more parameter sets, which programs cannot run as they are meant; candidates where links alone are asked about.
        costly: building may take seconds; selection does so only where the others are far from the bound.
    """

    name: str
    collectives: tuple[str, ...]
    build: Build
    variants: tuple[Mapping[str, Any], ...] = ({},)
    reject: Callable[[CollectiveSpec, Topology], str | None] = _accept
    summary: str = ""
    costly: bool = False
    on_paper: tuple[Mapping[str, Any], ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the builder's parameters."""
        return tuple(p.name for p in inspect.signature(self.build).parameters.values() if p.kind is p.KEYWORD_ONLY)


def label_of(name: str, params: Mapping[str, Any]) -> str:
    """What the tables call a candidate: ``ring[channels=2]``, or the bare name without parameters."""
    return f"{name}[{','.join(f'{key}={value}' for key, value in params.items())}]" if params else name


def read_label(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the parameters (whole numbers as such) that a label names; spaces do not matter.

    Raises:
        ValueError: not of that form.
    """
    name, bracket, inside = "".join(text.split()).partition("[")
    pairs = [pair.partition("=") for pair in inside.removesuffix("]").split(",")] if bracket else []
    params = {key: int(value) if value.isdecimal() else value for key, _, value in pairs if key and value}
    if not name or len(params) != len(pairs) or (bracket and not inside.endswith("]")):
        raise ValueError(f"{text!r} is not of the form name or name[key=value,...], each key once")
    return name, params
