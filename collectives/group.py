"""A group's life on one rank: calls that are made one after the other, each begun, planned and run, until it is closed or cannot go on."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from topoccl.algorithms.choice import Choice, format_choice
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.collectives.calls import Bound
from topoccl.collectives.control.control import Control
from topoccl.collectives.control.fingerprint import Fingerprint, Name, fingerprint, part
from topoccl.collectives.errors import CollectiveTimeout, MismatchError, TopocclError, TransportError
from topoccl.collectives.executor.dtypes import Array, DType
from topoccl.collectives.executor.pool import pool
from topoccl.collectives.executor.program import Program
from topoccl.collectives.executor.reach import Reader
from topoccl.collectives.executor.run import Runner
from topoccl.collectives.executor.straight import Source, Straight, add_steps
from topoccl.collectives.logging import Level, Subsystem
from topoccl.collectives.pending import Worker
from topoccl.collectives.planner import Plan, Planner
from topoccl.collectives.record import RECENT, Record
from topoccl.collectives.transports.notes import exchange_notes

if TYPE_CHECKING:
    from topoccl.algorithms.select import Selector
    from topoccl.collectives.hosts import Neighbours
    from topoccl.collectives.logging import Logger
    from topoccl.collectives.transports.base import Transport

_CALL_BITS = 20  # counters count this many bits of messages per call
_ALIGN = 64
_FROM_POOL = 1 << 20  # bytes of scratch that are worth whole blocks
_SIZES = fingerprint("sizes")  # of ask_root, whose name says the rest

open_groups: weakref.WeakSet[Group] = weakref.WeakSet()


class Group:
    """One rank's part in a group.

    Every call goes through :meth:`begin`, :meth:`plan` unless its plan is known, and :meth:`run`, or through a function that is made of
    these (:meth:`straight`); all of it inside :meth:`start`, or while the worker's turn is held.

    Args:
        transport: the group's.
        neighbours: who shares this rank's memory, and how.
        selector: chooses the algorithms.
        logger: for choices and failures.
        name: for messages.
        timeout: see below.
        rails: those of the transport, each by its switches; none where it has only one.

    Attributes:
        timeout: in seconds, of calls that are given none.
        worker: lets calls take turns.
        planner: makes the plans of calls; changed by :meth:`use`.
        repeats: the kinds of calls that the planner knows.
        record: what was called.
        called: what the calls under way are made for, if that has a name.
        failure: after which the group cannot be used any more.
        closed: whether :meth:`close` was called.
    """

    def __init__(
        self, transport: Transport, neighbours: Neighbours, selector: Selector, logger: Logger, name: str, timeout: float,
        rails: Sequence[frozenset[str]],
    ) -> None:  # fmt: skip
        self.transport = transport
        self.name = name
        self.timeout = timeout
        self.logger = logger
        self.record = Record(transport, name)
        arena = neighbours.arena
        waiter = neighbours.waiter(transport.rank, arena.flags) if arena is not None else None
        self._runner = Runner(transport, waiter)
        self._control: Control | None = None
        if transport.size > 1:
            self._control = Control(transport, neighbours, self.record.describe)
            self._runner.watch, self._runner.beside = self._control.check, self._control.beside
            self._runner.calls = self._control
        if neighbours.reach is not None:
            exchange_notes(transport, {rank: Reader(pid) for rank, pid in neighbours.reach.pids.items()})
        self.planner = Planner(transport, selector, neighbours, self._announce, rails)
        self.worker = Worker(f"topoccl {name}")
        self.repeats = self.planner.repeats
        self.called: Name | None = None
        self._begun = False  # the next call was begun already, by ask_root
        self._scratch: Array = np.empty(0, np.uint8)
        self.failure: BaseException | None = None
        self.closed = False
        open_groups.add(self)

    def start(self, call: Callable[[], Any], async_op: bool) -> Any:
        """Makes ``call``, after all that were started before: its result, or with ``async_op`` a :class:`Pending`."""
        if self.closed:
            raise TopocclError(f"group {self.name} is closed")
        return self.worker.submit(call) if async_op else self.worker.run(call)

    def use(self, planner: Planner) -> None:
        """Takes ``planner`` for the calls from now on; on all ranks, between calls."""
        self.planner, self.repeats = planner, planner.repeats

    # A call

    def named(self, name: Name, call: Callable[[], Any]) -> Any:
        """Runs ``call`` as part of a call that was started. Errors speak of its calls as ``name``, which all ranks compare."""
        before, self.called = self.called, name
        try:
            return call()
        except BaseException as error:
            if self._begun:
                self._begun = False
                self.give_up(error)
            raise
        finally:
            self.called = before

    @property
    def hears_words(self) -> bool:
        """Whether all ranks share memory, so that :meth:`ask_root` can be called."""
        return self._control is not None and self._control.hears_words

    def ask_root(self, root: int, count: int, mine: int, limit: float) -> int:
        """What ``root`` says with the next call is its ``count``, or -1; raises MismatchError where that is a number but not ``mine``.

        It begins that call, within :meth:`named`.
        """
        control = self._control
        assert control is not None
        self.begin(_SIZES, limit, count)
        try:
            told = control.word_of(root)
            if told >= 0 and told != mine:
                control.differ()
        except BaseException as error:
            self.give_up(error)
        self._begun = True
        return told

    @property
    def _under_way(self) -> bool:
        """Whether the last call with others has not ended, or has failed."""
        return self._control is not None and self._control.ended < self.record.calls

    def begin(self, call: Fingerprint, limit: float, word: int = 0, stamped: bool = False) -> None:
        """Begins a call: writes it down, and tells the other ranks (:meth:`Control.begin`).

        Raises:
            TopocclError: the group has failed, or this is made inside another call, which goes on.
        """
        if self._begun:
            self._begun = False
            return
        if self.called is not None:
            call = part(self.called, call.text)
        if self.failure is not None:
            self.raise_broken()
        control = self._control
        if self._under_way:
            raise TopocclError(f"{call.text} was called inside {self.record.describe()}, as by a signal handler: calls take turns")
        self.record.calls = number = self.record.calls + 1
        self.record.recent[number % RECENT] = call
        if control is not None:
            try:
                control.begin(call, limit, word, stamped)
            except BaseException as error:
                self.give_up(error)

    def plan(
        self, key: Hashable, call: Fingerprint, spec: CollectiveSpec, nbytes: int, block: int | Sequence[int], bound: Bound,
        op: str | None, limit: float,
    ) -> Plan:  # fmt: skip
        """Plans the call that has begun, with all ranks; remembered under ``key`` (:meth:`Planner.plan`)."""
        control = self._control
        self.record.count_traffic()  # of plans that are forgotten for this one as well
        data = bound.inp if bound.inp.size else bound.out
        try:
            plan = self.planner.plan(
                key, spec, nbytes, block, bound.dtype, op, bound.in_place, data, call, limit, self._settle, self._check_on_others
            )
            if control is not None and not plan.stamped:
                control.compare()
            return plan
        except (CollectiveTimeout, TransportError, MismatchError) as error:
            self.give_up(error, "ranks had not agreed on its algorithm")
        except Exception as error:
            if control is not None and control.raised(error):
                self.give_up(error)
            if control is not None:
                try:
                    control.compare()
                    control.end()
                except BaseException as worse:
                    self.give_up(worse)
            raise  # on all ranks alike
        except BaseException as error:
            self.give_up(error)

    def _announce(self, choice: Choice) -> None:
        if self.transport.rank == 0:
            if choice.warning:
                self.logger.warn(Subsystem.TUNING, "%s", choice.warning)
            self.logger.info(Subsystem.TUNING, "%s", format_choice(choice))

    def _settle(self) -> None:
        if self._control is not None:
            self._control.settle()

    def _check_on_others(self) -> None:
        if self._runner.aborted is not None:
            raise self._runner.aborted
        if self._control is not None:
            self._control.check()

    def run(self, plan: Plan, inp: Array, out: Array, dtype: DType, limit: float) -> None:
        """Runs the call that has begun, and returns when all ranks are known to have made it."""
        number = self.record.calls
        parity = number & 1
        control = self._control
        runner = self._runner
        try:
            program = plan.programs[parity] or plan.program(parity)
            scratch = self._scratch if not program.scratch else self._scratch_for(program.scratch * dtype.itemsize, dtype)
            runner.run(program, (inp, out, scratch), number << _CALL_BITS, limit, self.record.describe)
            if control is not None:
                control.end()
        except BaseException as error:
            self.give_up(error)
        if not program.runs:
            self.record.uncounted.append(program)
        program.runs += 1
        self.record.last = plan

    def straight(self, plan: Plan) -> tuple[Straight, Straight] | None:
        """Functions that do all that :meth:`begin` and :meth:`run` do for a plan, where all ranks share memory or messages are stamped, and
        steps are few."""
        control, runner, made, what = self._control, self._runner, [], self.record.describe
        if control is None or not (control.hears_words or plan.stamped):
            return None
        for parity in (0, 1):
            program = plan.program(parity)
            source = Source()
            control.write_begin(source, plan.fingerprint, parity)
            source.add(f"base = number << {_CALL_BITS}")
            if program.stamped is not None and program.stamped.short:
                control.write_assemble(source, parity)
                program.stamped.write(source, runner, control, what)
            elif program.short is not None:
                add_steps(source, program.short, program.whole, runner.flags, runner.waiting(program, what))
                if plan.stamped:
                    control.write_assemble(source, parity)
            else:
                return None
            control.write_end(source, parity)
            made.append(source.function("inp, out, number, limit"))
        return made[0], made[1]

    def _scratch_for(self, nbytes: int, dtype: DType) -> Array:
        """The group's scratch memory, grown if need be: calls of a group never overlap, so they share it."""
        if self._scratch.size < nbytes:
            size = -(-nbytes // _ALIGN) * _ALIGN
            self._scratch = np.empty(0, np.uint8)  # what it was goes back before more is taken
            self._scratch = pool().bytes(size) if size > _FROM_POOL else np.empty(size, np.uint8)
        return self._scratch[:nbytes].view(dtype.carrier)

    # The end of the group

    @property
    def broken(self) -> BaseException | None:
        """The error after which this group cannot be used any more."""
        return self._runner.aborted or self.failure

    def recent_calls(self) -> str:
        """The last calls that this rank has made in this group, a line each: number, what, and whether it has ended."""
        return self.record.recent_calls(self._under_way)

    def raise_broken(self) -> NoReturn:
        """For calls of a group that has a :attr:`failure`."""
        why = str(self.failure) or type(self.failure).__name__  # an interrupt says nothing
        raise TopocclError(f"group {self.name} cannot be used any more: {why}") from self.failure

    def give_up(self, error: BaseException, stage: str = "") -> NoReturn:
        """Ends the group's life: tells the other ranks, and raises what is known of the reason."""
        cause = error
        control = self._control
        if control is not None:
            if isinstance(error, CollectiveTimeout | TransportError) and self._runner.aborted is None:
                what = self.record.describe()
                told = str(error).startswith(what)  # a transport knows of messages, not of the call that they are for
                cause = control.explain(error, "" if told else f"{what} failed: {f'{stage}: ' if stage else ''}")
            control.fail(cause)
        self.failure = cause
        self._dump_calls(cause)
        if cause is error:
            raise error
        raise cause from error

    def _dump_calls(self, error: BaseException) -> None:
        """Writes the last calls of every group of this process, where ``TOPOCCL_DEBUG`` asks for more than warnings."""
        if self.logger.level < Level.INFO:
            return
        self.logger.warn(Subsystem.COLL, "group %s has failed: %s", self.name, error)
        for group in list(open_groups):
            self.logger.warn(Subsystem.COLL, "%s", group.recent_calls())

    def abort(self, reason: str = "aborted") -> None:
        """Makes the call in flight, and every later one, raise. No message is read out of this rank's memory any more."""
        self._runner.aborted = TopocclError(f"group {self.name}: {reason}")
        self.failure = self.failure or self._runner.aborted
        if self._control is not None:
            self._control.abort(self._runner.aborted)
        self.transport.give_up_all(str(self._runner.aborted))

    def settle(self, timeout: float) -> bool:
        """Takes no more asynchronous calls and waits at most ``timeout`` seconds until the open ones have ended; whether they have."""
        return self.worker.close(timeout)

    def close(self) -> None:
        """Lets open calls end and frees everything. Safe to call twice."""
        if self.closed:
            return
        self.closed = True
        self.worker.close(self.timeout)
        if self._control is not None:
            self._control.leave()
        self.transport.close()
        # The shared memory and its descriptor go with the last reference to them, not when the garbage is collected.
        self._runner.forget()
        self.repeats.clear()
        self.record.count_traffic()
        del self.planner
        last = self.record.last
        if last is not None:
            self.record.last = Plan(last.agreed, last.segments, last.fingerprint, _no_program)


def _after_fork() -> None:
    """A child shares its parent's memory with the other ranks, who would take it for the parent."""
    for group in list(open_groups):
        group.failure = TopocclError(f"it belongs to process {os.getppid()}, of which this is a fork")
    open_groups.clear()  # the child has nothing to close


os.register_at_fork(after_in_child=_after_fork)


def _no_program(parity: int) -> Program:
    raise TopocclError("the group of this plan is closed")
