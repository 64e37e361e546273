"""From a call's sizes to a plan: choose a schedule together, lower it for this rank, and remember both."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from topoccl.algorithms.calibration import STAMPED
from topoccl.algorithms.hazards import blocking_steps
from topoccl.algorithms.hearing import everyone_hears
from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.verify import ScheduleError, verify
from topoccl.collectives.bootstrap import agree
from topoccl.collectives.control.fingerprint import Fingerprint
from topoccl.collectives.executor.arena import area_bytes
from topoccl.collectives.executor.dtypes import Array, DType
from topoccl.collectives.executor.lowering import Site, least_segments, lower
from topoccl.collectives.executor.program import Program
from topoccl.collectives.executor.reach import on_huge_pages
from topoccl.collectives.executor.reduction import Fold, accumulating_op, fold_kernel
from topoccl.collectives.executor.stamped import Stamped
from topoccl.collectives.executor.wiring import Wiring
from topoccl.collectives.repeats import Repeats
from topoccl.topology.rails import RailTable

if TYPE_CHECKING:
    from topoccl.algorithms.select import Choice, Selector
    from topoccl.collectives.hosts import Neighbours
    from topoccl.collectives.transports.base import Transport

PLANS = 256  # plans kept per group
_STEPS_CHECKED = 100_000  # larger schedules are only built by builders whose smaller ones pass


@dataclass(frozen=True)
class Agreed:
    """What rank 0 chose for one class of calls; ``in_place`` tells whether the schedule is proven for overlapping buffers."""

    choice: Choice
    in_place: bool

    @property
    def schedule(self) -> Schedule:
        return self.choice.schedule


@dataclass(slots=True)
class Plan:
    """A schedule lowered for one size and type on this rank, for calls with even and odd sequence numbers.

    ``stamped`` says, alike on all ranks, that its messages tell each rank that all others make the same call.
    """

    agreed: Agreed
    segments: int
    fingerprint: Fingerprint
    make: Callable[[int], Program]
    stamped: bool = False
    programs: list[Program | None] = field(default_factory=lambda: [None, None])

    def program(self, parity: int) -> Program:
        found = self.programs[parity]
        if found is None:
            found = self.programs[parity] = self.make(parity)
        return found


class Planner:
    """Plans of one group.

    Args:
        transport: carries rank 0's choice to the others.
        selector: chooses; only rank 0's is used.
        neighbours: who shares this rank's memory, and how.
        announce: told of each new choice.
        rails: the transport's, each by its switches; none where it has only one.

    Attributes:
        repeats: the kinds of calls that were made with plans of this one.
    """

    def __init__(
        self, transport: Transport, selector: Selector, neighbours: Neighbours, announce: Callable[[Choice], None],
        rails: Sequence[frozenset[str]] = (),
    ) -> None:  # fmt: skip
        self.transport = transport
        self.selector = selector
        self.announce = announce
        self.site = Site(transport.rank, neighbours.arena, neighbours.member, neighbours.reach)
        self._rails = RailTable(selector.topology, rails) if rails else None
        self._area = neighbours.area
        # Those of other hosts too: what fits into their memory decides into how many segments all ranks cut their data.
        self._together = neighbours.together
        self._shared = [ranks for ranks in self._together if len(ranks) > 1]
        self._agreed: dict[Hashable, Agreed] = {}
        self._wirings: dict[str, list[Wiring]] = {}
        self._kernels: dict[tuple[str, DType], Fold] = {}
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self.repeats = Repeats()

    def with_selector(self, selector: Selector) -> Planner:
        """The planner of the same group that chooses by ``selector`` and remembers nothing yet."""
        other = copy(self)
        other.selector = selector
        other._agreed, other._wirings, other._plans, other.repeats = {}, {}, OrderedDict(), Repeats()
        return other

    def find(self, key: Hashable) -> Plan | None:
        """The plan remembered under ``key``."""
        plan = self._plans.get(key)
        if plan is not None:
            self._plans.move_to_end(key)
        return plan

    def peek(self, key: Hashable) -> Plan | None:
        """As :meth:`find`, without taking note that it was used; may be called from any thread."""
        return self._plans.get(key)

    def plan(
        self,
        key: Hashable,
        spec: CollectiveSpec,
        nbytes: int,
        block_elems: int | Sequence[int],
        dtype: DType,
        op: str | None,
        in_place: bool,
        data: Array,
        fingerprint: Fingerprint,
        timeout: float,
        settle: Callable[[], None],
        check: Callable[[], None],
    ) -> Plan:
        """Makes a plan and remembers it under ``key``; every rank of the group calls this for the same call.

        Args:
            key: whatever tells calls apart for which plans differ.
            spec: the collective.
            nbytes: the call's size as nccl-tests counts it, equal on all ranks.
            block_elems: elements per block, one number or one per block.
            dtype: the element type.
            op: the reduction, for collectives that reduce.
            in_place: whether the call's input and output share storage.
            data: a buffer of the call; what kind of memory rank 0's lies in tells how fast others read it.
            fingerprint: what all ranks' calls must have in common.
            timeout: seconds to wait for rank 0.
            settle: returns when all ranks are known to have made this call; called before rank 0 is asked, so that it answers.
            check: called now and then while its answer is waited for; raises to give up.

        Raises:
            CollectiveTimeout, TransportError: rank 0 or a rank between does not answer.
        """
        agreed = self._agree(spec, nbytes, data, timeout, settle, check)
        schedule = agreed.schedule
        wirings = self._wire(schedule)
        segments = agreed.choice.segments
        if schedule.needs_equal_chunks:
            segments = 1
        mine = next(w for w in wirings if self.site.rank in w.local or not w.local)
        pulls = agreed.choice.pulls and self.site.reach is not None and len(mine.local) == spec.ranks
        if pulls:
            segments, wirings = 1, []
        for wiring in wirings:
            area = area_bytes(len(wiring.local))
            area = area if self._area is None else min(area, self._area)
            segments = least_segments(schedule, wiring, block_elems, dtype.itemsize, area, segments)
        kernel = self._kernel(op, dtype) if spec.reduces else None
        overlapping = in_place and agreed.in_place
        site, transport = self.site, self.transport  # not self: a cycle would keep the shared memory of closed groups
        stamped = nbytes <= STAMPED and segments == 1 and not pulls and self._hears(schedule)

        def make(parity: int) -> Program:
            program = lower(schedule, mine, block_elems, segments, dtype, kernel, site, parity, overlapping, pulls)
            if stamped and program.flat is None:
                program.stamped = Stamped(program, [step for _, step in mine.sequence(site.rank, 1)], transport, dtype)
            return program

        plan = self._plans[key] = Plan(agreed, segments, fingerprint, make, stamped)
        if len(self._plans) > PLANS:
            self._plans.popitem(last=False)
        return plan

    def _hears(self, schedule: Schedule) -> bool:
        """Whether the messages of ``schedule``, stamped, tell everyone that all make the same call."""
        return self.transport.stamps and len(self._together) > 1 and everyone_hears(schedule, self._together)

    def _agree(
        self, spec: CollectiveSpec, nbytes: int, data: Array, timeout: float, settle: Callable[[], None], check: Callable[[], None]
    ) -> Agreed:
        size = self.selector.size_class(spec.collective, nbytes)
        key = (spec, size, data.itemsize)
        agreed = self._agreed.get(key)
        if agreed is None:
            settle()
            mine: Agreed | Exception | None = None
            if self.transport.rank == 0:
                try:
                    mine = self._choose(spec, nbytes, data)
                except Exception as error:  # raised on every rank below
                    mine = error
            told = agree(self.transport, mine, timeout, check)
            if isinstance(told, Exception):
                raise told
            assert isinstance(told, Agreed)
            agreed = self._agreed[key] = told
            self.announce(agreed.choice)
        return agreed

    def _choose(self, spec: CollectiveSpec, nbytes: int, data: Array) -> Agreed:
        small_pages = self.site.reach is not None and not on_huge_pages(data)
        choice = self.selector.choose(spec, nbytes, data.itemsize, small_pages)
        schedule = choice.schedule
        try:
            in_place = spec.aliases and bool(verify(schedule, segments=(1, 3), in_place=True))
        except ScheduleError:
            in_place = False
        if len(self._shared) != 1 or len(self._shared[0]) < spec.ranks:
            for overlapping in {False, in_place}:
                if schedule.num_steps <= _STEPS_CHECKED and (blocked := blocking_steps(schedule, overlapping)):
                    raise ScheduleError(schedule, blocked[0], "waits for ever where sends are not buffered, as between hosts")
        return Agreed(choice, in_place)

    def _wire(self, schedule: Schedule) -> list[Wiring]:
        found = self._wirings.get(schedule.digest)
        if found is None:
            found = self._wirings[schedule.digest] = [
                Wiring(schedule, ranks, self._rails, self.selector.topology) for ranks in (*self._shared, ())
            ]
        return found

    def _kernel(self, op: str | None, dtype: DType) -> Fold:
        name = accumulating_op(op or "bor")
        found = self._kernels.get((name, dtype))
        if found is None:
            found = self._kernels[name, dtype] = fold_kernel(name, dtype)
        return found
