"""The kinds of calls: from buffers that were checked to a plan that is known or made, and its run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import blake2b
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from topoccl.algorithms.spec import CollectiveSpec
from topoccl.collectives.calls import Bound, bind
from topoccl.collectives.config import check_timeout
from topoccl.collectives.control.fingerprint import Fingerprint, call_text, fingerprint
from topoccl.collectives.errors import ConfigError, MismatchError
from topoccl.collectives.executor import reduction
from topoccl.collectives.executor.dtypes import Array
from topoccl.collectives.pending import Pending
from topoccl.collectives.record import RECENT

if TYPE_CHECKING:
    from topoccl.collectives.group import Group
    from topoccl.collectives.planner import Plan
    from topoccl.collectives.repeats import Known


class Caller:
    """Makes the calls of ``group`` on buffers that were checked (:mod:`~topoccl.collectives.calls`)."""

    def __init__(self, group: Group) -> None:
        self.size = group.transport.size
        self._group = group
        self._checked = group.timeout  # the last timeout of a call

    def limit(self, timeout: float | None) -> float:
        """The timeout of a call that was given ``timeout``."""
        if timeout is None:
            return self._group.timeout
        if timeout == self._checked:
            return timeout
        try:
            self._checked = found = check_timeout(timeout)
            return found
        except ValueError as error:
            raise ConfigError(f"timeout={timeout!r}: {error}") from None

    def moving(
        self, what: str, root: int | None, bound: Bound, block: int, async_op: bool, timeout: float | None, given: tuple[Any, Any]
    ) -> Pending | None:  # fmt: skip
        """Makes a call that reduces nothing.

        Args:
            what: the collective.
            root: its root, None where it has none.
            bound: the buffers.
            block: elements of a block.
            async_op: whether to return at once, with a :class:`Pending`.
            timeout: as the user gave it.
            given: input and output, as the user gave them; None for what this rank does not have.
        """
        limit = self.limit(timeout)
        pending = self._group.start(lambda: self._call(what, root, bound, block, None, limit), async_op)
        if pending is None:
            self._remember(what, root, None, None, bound, block, given)
        return pending

    def reducing(
        self, what: str, root: int | None, bound: Bound, block: int, op: str, factor: float | None, async_op: bool, timeout: float | None,
        given: tuple[Any, Any],
    ) -> Pending | None:  # fmt: skip
        """Makes a call that reduces: as :meth:`moving`, with the reduction ``op`` and the ``factor`` of premul_sum.

        Raises:
            ConfigError: the reduction is unknown or does not fit the type of elements.
        """
        said, op = op, reduction.canonical_op(op)
        reduction.check_op(op, bound.dtype)
        if (op == "premul_sum") != (factor is not None):
            raise ConfigError(f"{what}: reduction {op} {'needs' if op == 'premul_sum' else 'takes no'} factor")
        limit = self.limit(timeout)

        def call() -> None:
            if factor is not None:
                bound.inp, bound.in_place = reduction.scaled(bound.inp, bound.dtype, factor), False
            self._call(what, root, bound, block, op, limit)
            if op == "avg" and bound.out.size:
                reduction.divide(bound.out, bound.dtype, self.size)
                bound.finish()

        pending = self._group.start(call, async_op)
        if pending is None and factor is None and op != "avg":
            self._remember(what, root, op, said, bound, block, given)
        return pending

    def uneven(
        self, bound: Bound, sending: Sequence[int], receiving: Sequence[int], async_op: bool, timeout: float | None
    ) -> Pending | None:  # fmt: skip
        """Makes an all_to_all with counts, in elements, which are this rank's."""
        limit = self.limit(timeout)
        return self._group.start(lambda: self._uneven(bound, sending, receiving, limit), async_op)

    def _uneven(self, bound: Bound, sending: Sequence[int], receiving: Sequence[int], limit: float) -> None:
        """Relays need everyone's counts, so these are gathered first; then all ranks see what does not fit."""
        rows = np.empty((self.size, 2, self.size), np.int64)
        mine = bind("all_to_all", np.array([sending, receiving], np.int64), rows)
        key: Hashable = ("all_to_all with counts", bound.dtype.name)
        plan = self._group.planner.find(key)
        if plan is None:
            call = fingerprint(call_text("all_to_all", bound.dtype.name) + " with counts")
            self._plan_and_run(key, call, "all_gather", None, mine, 2 * self.size, None, limit)
        else:
            self._begin_and_run(plan, mine, limit)
        counts = np.ascontiguousarray(rows[:, 0])
        wrong = np.argwhere(counts != rows[:, 1].T)
        if wrong.size:
            sender, receiver = wrong[0].tolist()
            what = "all_to_all" if self._group.called is None else self._group.called.text.partition("(")[0]
            raise MismatchError(
                f"{what}: rank {sender} sends {counts[sender, receiver]} elements to rank {receiver}, "
                f"which expects {rows[receiver, 1, sender]} (pairs that differ: {len(wrong)}); no data was moved, and the group goes on"
            )
        key = ("all_to_all", counts.tobytes(), bound.dtype.name)
        plan = self._group.planner.find(key)
        if plan is not None:
            self._group.begin(plan.fingerprint, limit, 0, plan.stamped)
        else:
            digest = blake2b(counts.tobytes(), digest_size=8).hexdigest()
            call = fingerprint(f"{call_text('all_to_all', bound.dtype.name)} with counts #{digest}")
            self._group.begin(call, limit, 0, True)
            largest = int(max(counts.sum(axis=0).max(), counts.sum(axis=1).max()))
            spec = CollectiveSpec("all_to_all", self.size, None, uneven=True)
            nbytes = largest * bound.dtype.itemsize
            plan = self._group.plan(key, call, spec, nbytes, counts.reshape(-1).tolist(), bound, None, limit)
        self._run_bound(plan, bound, limit)

    def _call(self, what: str, root: int | None, bound: Bound, block: int, op: str | None, limit: float) -> None:
        key = (what, root, block, bound.dtype.name, op, bound.in_place)
        plan = self._group.planner.find(key)
        if plan is None:
            call = fingerprint("barrier()" if what == "barrier" else call_text(what, bound.dtype.name, block, op, root))
            self._plan_and_run(key, call, what, root, bound, block, op, limit)
        else:
            self._begin_and_run(plan, bound, limit)

    def _plan_and_run(
        self, key: Hashable, call: Fingerprint, what: str, root: int | None, bound: Bound, block: int, op: str | None, limit: float
    ) -> None:
        spec = CollectiveSpec(what, self.size, root)
        blocks = 1 if what in ("all_reduce", "broadcast", "reduce", "barrier") else self.size
        self._group.begin(call, limit, 0, True)
        plan = self._group.plan(key, call, spec, blocks * block * bound.dtype.itemsize, block, bound, op, limit)
        self._run_bound(plan, bound, limit)

    def _begin_and_run(self, plan: Plan, bound: Bound, limit: float) -> None:
        self._group.begin(plan.fingerprint, limit, 0, plan.stamped)
        self._run_bound(plan, bound, limit)

    def _run_bound(self, plan: Plan, bound: Bound, limit: float) -> None:
        inp = bound.inp.copy() if bound.in_place and not plan.agreed.in_place else bound.inp
        self._group.run(plan, inp, bound.out, bound.dtype, limit)
        bound.finish()

    # Calls like earlier ones

    def _remember(
        self, what: str, root: int | None, op: str | None, said: str | None, bound: Bound, block: int, given: tuple[Any, Any]
    ) -> None:  # fmt: skip
        """Lets :meth:`repeat` know a call that was made on the buffers ``given``, with the reduction ``op``, ``said`` so by the user."""
        plan = None if self._group.closed else self._group.planner.peek((what, root, block, bound.dtype.name, op, bound.in_place))
        if plan is not None:
            self._group.repeats.add(what, root, said, *given, bound, plan)

    def repeat(self, what: str, root: int | None, op: str | None, src: Any, dst: Any, timeout: float | None) -> bool:
        """Makes a call if one of the same kind was made before, in half the time: small ones are many."""
        group = self._group
        found = group.repeats.find(what, root, op, src, dst)
        if found is None or group.closed:
            return False
        worker, record = group.worker, group.record
        if self.size == 1 and src is dst and group.failure is None and not worker.busy:
            record.calls = number = record.calls + 1
            record.last = plan = found[0].plan
            record.recent[number % RECENT] = plan.fingerprint
            return True
        known, inp, out = found
        limit = group.timeout if timeout is None else timeout if timeout == self._checked else self.limit(timeout)
        straight = known.straight
        if straight is None or worker.open or worker.owner:
            worker.run(self._make_again, found, limit)
            return True
        me = get_ident()
        with worker.turn:
            worker.owner = me
            try:
                if group.failure is not None:
                    group.raise_broken()
                record.calls = number = record.calls + 1
                record.last = plan = known.plan
                record.recent[number % RECENT] = plan.fingerprint
                parity = number & 1
                program = plan.programs[parity]
                assert program is not None
                try:
                    straight[parity](inp.copy() if known.copies else inp, out, number, limit)
                except BaseException as error:
                    group.give_up(error)
                if not program.runs:
                    record.uncounted.append(program)
                program.runs += 1
            finally:
                worker.owner = 0
        return True

    def _make_again(self, found: tuple[Known, Array, Array], limit: float) -> None:
        known, inp, out = found
        plan = known.plan
        self._group.begin(plan.fingerprint, limit, 0, plan.stamped)
        self._group.run(plan, inp.copy() if known.copies else inp, out, known.dtype, limit)
        if known.waits:
            known.waits -= 1
            if not known.waits:
                known.straight = self._group.straight(plan)
