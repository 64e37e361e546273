"""What builders share: checks of their arguments and the schedule of a group of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

MOST_PARTS = 128
"""The most channels, or chunks of a block, that a schedule may be asked for: its work grows with them."""


def check(algorithm: str, spec: CollectiveSpec, topology: Topology, collectives: Sequence[str]) -> None:
    """Refuses a collective that the builder does not build and a topology of another size.

    Raises:
        ValueError: naming the algorithm, what it was given and what it takes.
    """
    if spec.collective not in collectives:
        raise ValueError(f"{algorithm}: does not build {spec.collective}; it builds: {', '.join(collectives)}")
    if topology.num_ranks != spec.ranks:
        raise ValueError(f"{algorithm}: {spec.collective} of {spec.ranks} ranks, but the topology places {topology.num_ranks}")


def check_choice(algorithm: str, param: str, value: object, known: Sequence[object]) -> None:
    """Refuses a parameter's value that is not one of ``known``.

    Raises:
        ValueError: naming the parameter, the value and the known ones.
    """
    if value not in known:
        raise ValueError(f"{algorithm}: {param} is {value!r}; known: {', '.join(map(str, known))}")


def check_count(algorithm: str, param: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Refuses a parameter's value that is not a whole number from ``least`` to ``most`` (None: no limit).

    Raises:
        ValueError: naming the parameter, the value and the limits.
    """
    if not isinstance(value, int) or value < least or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{algorithm}: {param} is {value!r}; expected a whole number, {limits}")


def one_rank(algorithm: str, spec: CollectiveSpec, params: Iterable[tuple[str, Any]] = ()) -> Schedule:
    """The schedule of a group of one: the input is copied to the output, which in place is the input itself."""
    b = ScheduleBuilder(spec, algorithm, params=params)
    b.copy(b.lane(0), (Buf.INPUT, 0), (Buf.OUTPUT, 0))
    return b.build()


def runs(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Joins ``(src, dst)`` offsets into ``(src, dst, count)`` wherever both grow by one."""
    joined: list[tuple[int, int, int]] = []
    for src, dst in sorted(pairs):
        if joined and (src, dst) == (joined[-1][0] + joined[-1][2], joined[-1][1] + joined[-1][2]):
            joined[-1] = (*joined[-1][:2], joined[-1][2] + 1)
        else:
            joined.append((src, dst, 1))
    return joined
