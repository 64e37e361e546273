"""All_to_all over several NICs per host: rounds of disjoint pairs whose messages are cut over the rails. n = bytes of one block, p = ranks,
L = ranks of a host, H = hosts."""

from __future__ import annotations

from collections.abc import Sequence

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.all_to_all_pairwise import add_rounds
from topoccl.algorithms.builders.common import check, check_count
from topoccl.algorithms.layout import host_groups
from topoccl.algorithms.schedule import Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology
from topoccl.topology.rails import Rail, RailTable, rails_of

NAME = "striped"
COLLECTIVES = ("all_to_all",)
_PARTS = 10_000  # of a block, by which it is cut


def build(spec: CollectiveSpec, topology: Topology, *, lanes: int = 1) -> Schedule:
    """The rounds of ``pairwise``, each block between hosts in one message per rail, with as much of the block as its rate has of all.

    Of the (H - 1) L n bytes that a rank sends between hosts each rail carries its share of the rates' sum, so that all end together; there
    are as many times more messages as there are rails. No scratch. With one rail, or none, this is ``pairwise``.

    Args:
        lanes: the number of rounds between hosts that a rank has under way at once on each rail.

    Raises:
        ValueError: ``lanes`` below 1, or arguments that do not fit together.
    """
    check(NAME, spec, topology, COLLECTIVES)
    check_count(NAME, "lanes", lanes)
    rails = rails_of(topology)
    weights = _weights(rails) * spec.num_blocks if len(rails) > 1 else None
    params = {"lanes": lanes}.items() if lanes > 1 else ()
    b = ScheduleBuilder(spec, NAME, chunks=max(1, len(rails)), weights=weights, params=params)
    table = RailTable(topology, [rail.switches for rail in rails])
    add_rounds(b, host_groups(topology), lanes, table.ways if len(rails) > 1 else lambda source, to: (0,))
    return b.build()


def _weights(rails: Sequence[Rail]) -> list[int]:
    total = sum(rail.rate for rail in rails)
    return [max(1, round(_PARTS * rail.rate / total)) for rail in rails]


def _reject(spec: CollectiveSpec, topology: Topology) -> str | None:
    groups, rails = topology.ranks_by_host, rails_of(topology)
    if len(groups) < 2 or len(rails) < 2:
        return "there are no two networks between the hosts"
    table = RailTable(topology, [rail.switches for rail in rails])
    if len({table.number(rank, groups[1][0], 0) for rank in groups[0]}) > 1:
        return "the ranks of a host take different networks as it is"
    return None


ALGORITHMS = (
    Algorithm(
        NAME, COLLECTIVES, build, ({}, {"lanes": 4}), _reject,
        summary="pairwise, each message cut over all rails by their rates",
    ),
)  # fmt: skip
