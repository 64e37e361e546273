"""All algorithms, by collective and name, and the one way from an algorithm to a schedule that is proved right."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders import (
    all_to_all_bruck,
    all_to_all_direct,
    all_to_all_pairwise,
    all_to_all_routed,
    all_to_all_striped,
    all_to_all_two_level,
    barrier,
    broadcast_scatter_allgather,
    broadcast_tree,
    direct,
    forest,
    gather_scatter,
    halving_doubling,
    hierarchical,
    hierarchical_blocks,
    pat,
    recursive_doubling,
    reduce_tree,
    ring,
    rooted_dissemination,
    swing,
    torus,
    tree,
)
from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.spec import COLLECTIVES, CollectiveSpec
from topoccl.algorithms.verify import PROOF_LIMIT, proof_size, verify
from topoccl.topology.graph import Topology

ALGORITHMS: tuple[Algorithm, ...] = (
    *ring.ALGORITHMS,
    *tree.ALGORITHMS,
    *halving_doubling.ALGORITHMS,
    *recursive_doubling.ALGORITHMS,
    *swing.ALGORITHMS,
    *torus.ALGORITHMS,
    *hierarchical.ALGORITHMS,
    *hierarchical_blocks.ALGORITHMS,
    *pat.ALGORITHMS,
    *direct.ALGORITHMS,
    *barrier.ALGORITHMS,
    *broadcast_tree.ALGORITHMS,
    *broadcast_scatter_allgather.ALGORITHMS,
    *reduce_tree.ALGORITHMS,
    *rooted_dissemination.ALGORITHMS,
    *forest.ALGORITHMS,
    *gather_scatter.ALGORITHMS,
    *all_to_all_pairwise.ALGORITHMS,
    *all_to_all_striped.ALGORITHMS,
    *all_to_all_direct.ALGORITHMS,
    *all_to_all_bruck.ALGORITHMS,
    *all_to_all_two_level.ALGORITHMS,
    *all_to_all_routed.ALGORITHMS,
)
"""A new algorithm is one more line here."""

SAMPLE_RANKS = 32
"""How many ranks the smaller instance has on which a schedule too large to be proved itself is proved."""


def algorithms_for(collective: str) -> tuple[Algorithm, ...]:
    """The algorithms that build ``collective``, in the order of :data:`ALGORITHMS`."""
    return tuple(a for a in ALGORITHMS if collective in a.collectives)


def by_name(collective: str, name: str) -> Algorithm:
    """The algorithm called ``name`` among those of ``collective``.

    Raises:
        ValueError: there is none; the message lists the known names.
    """
    found = next((a for a in algorithms_for(collective) if a.name == name), None)
    if found is None:
        known = ", ".join(a.name for a in algorithms_for(collective))
        raise ValueError(f"unknown algorithm {name!r} for {collective}; known: {known or 'none'}")
    return found


def known_names() -> dict[str, list[str]]:
    """The names of the algorithms of each collective."""
    return {collective: [a.name for a in algorithms_for(collective)] for collective in COLLECTIVES}


def build_verified(algorithm: Algorithm, spec: CollectiveSpec, topology: Topology, params: Mapping[str, Any] | None = None) -> Schedule:
    """Builds a schedule and proves it (for 1 and 3 segments, input and output apart) before anybody gets it; results are remembered.

    A schedule with a proof size above :data:`~topoccl.algorithms.verify.PROOF_LIMIT` is vouched for by the proof of what the same
    builder makes, with the same parameters, for :data:`SAMPLE_RANKS` of its ranks on the same fabric.

    Args:
        params: the builder's parameters, such as one of ``algorithm.variants``; by default the builder's own defaults.

    Raises:
        ValueError: the algorithm rejects this collective or topology, or a parameter; the message says why.
        ScheduleError: the proof failed, which is a defect of the builder; the message names the step.
    """
    reason = algorithm.reject(spec, topology)
    if reason is not None:
        raise ValueError(f"{algorithm.name} cannot serve {spec.collective} here: {reason}")
    build: Any = algorithm.build  # a function, thus hashable, which its protocol does not say
    return _build(build, spec, topology, tuple(sorted((params or {}).items())))


@lru_cache(maxsize=128)
def _build(build: Any, spec: CollectiveSpec, topology: Topology, params: tuple[tuple[str, Any], ...]) -> Schedule:
    schedule: Schedule = build(spec, topology, **dict(params))
    if proof_size(schedule) <= PROOF_LIMIT or spec.ranks <= SAMPLE_RANKS:
        verify(schedule, topology=topology)
    else:
        _build(build, *sample(spec, topology, SAMPLE_RANKS), params)
    return schedule


def sample(spec: CollectiveSpec, topology: Topology, ranks: int) -> tuple[CollectiveSpec, Topology]:
    """The same collective for about ``ranks`` of the ranks where they sit: whole hosts as long as two fit, the root among them."""
    first = spec.root or 0
    groups = sorted(topology.ranks_by_host, key=lambda group: first not in group)
    kept: list[int] = []
    for group in groups:
        room = min(ranks - len(kept), ranks if len(groups) == 1 else max(1, ranks // 2))
        kept += sorted(group, key=lambda rank: rank != first)[:room]
    kept.sort()
    root = None if spec.root is None else kept.index(spec.root)
    return CollectiveSpec(spec.collective, len(kept), root, spec.uneven), topology.place(kept)
