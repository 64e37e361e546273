"""The proof itself: the four parts in turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.verify.memory import number_elements, number_places, resolve_reads
from topoccl.algorithms.verify.order import build_graph, order_steps
from topoccl.algorithms.verify.structure import check_columns, check_steps, check_ways, pair_messages
from topoccl.algorithms.verify.values import check_values
from topoccl.topology.graph import Topology

PROOF_LIMIT = 100_000_000
"""Callers prove smaller instances of the same builder when :func:`proof_size` is above this."""


@dataclass(frozen=True)
class Proof:
    """A schedule does what its collective means.

    Attributes:
        digest: of the schedule that was proved.
        segments: the numbers of segments it was proved for.
        in_place: whether input and output share storage in this proof.
        bitwise_equal: whether all ranks that end with a block made it by the same sums in the same order (a reduction is then
            equal to the last bit on all of them). The order of two operands counts.
        messages: messages in one segment.
        depth: steps on the longest chain of steps that wait for each other in one segment (rooms of streams included).
    """

    digest: str
    segments: tuple[int, ...]
    in_place: bool
    bitwise_equal: bool
    messages: int
    depth: int


def proof_size(schedule: Schedule, segments: int = 3) -> int:
    """Steps x segments x ranks: what a proof's time and memory grow with at most."""
    return schedule.num_steps * segments * schedule.spec.ranks


def verify(schedule: Schedule, *, segments: Iterable[int] = (1, 3), in_place: bool = False, topology: Topology | None = None) -> Proof:
    """Proves ``schedule``.

    Args:
        segments: the numbers of pipeline segments to prove it for. The run of S segments begins with that of fewer (no step waits
            for a later segment), so the largest number is executed and settles the others.
        in_place: let input and output share storage as ``spec.aliased_output`` says.
        topology: where the ranks sit; then the ways that messages name must be there.

    Raises:
        ScheduleError: it is wrong; the message names the step and what is wrong with it.
        ValueError: no segments, or an in-place proof of a collective that has no such form.
    """
    counts = tuple(segments)
    if not counts or min(counts) < 1:
        raise ValueError(f"segments {counts}: expected at least one number, each at least 1")
    if in_place and not schedule.spec.aliases:
        raise ValueError(f"{schedule.spec.collective} has no in-place form")
    check_columns(schedule)
    check_steps(schedule)
    if topology is not None:
        check_ways(schedule, topology)
    messages = pair_messages(schedule)
    level = order_steps(schedule, messages)
    places, elements = number_places(schedule, in_place), number_elements(schedule)
    most = max(counts)
    definitions = resolve_reads(schedule, places, elements, build_graph(schedule, messages, 1), level, most, in_place)
    equal = check_values(schedule, places, elements, messages, definitions, level, most)
    depth = int(level.max()) + 1 if len(level) else 0
    return Proof(schedule.digest, counts, in_place, equal, len(messages.number), depth)
