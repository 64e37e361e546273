"""Running a program: one after the other inside a host, lanes side by side when messages also go over the transport."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from topoccl.collectives.errors import CollectiveTimeout, TransportError
from topoccl.collectives.executor.actions import Bufs
from topoccl.collectives.executor.lanes import Flow, LaneRun
from topoccl.collectives.executor.program import Program, Step
from topoccl.collectives.executor.reach import address_of, hide, show
from topoccl.collectives.executor.waiting import Waiter
from topoccl.collectives.transports.base import Request

if TYPE_CHECKING:
    from topoccl.collectives.executor.stamped import Calls
    from topoccl.collectives.transports.base import Transport

_TRIES = range(4)  # yields before time is taken
_NO_FLAGS = memoryview(b"\0" * 8).cast("q")


class Runner:
    """Runs programs of one group.

    Args:
        transport: for messages between hosts, or None in a group that never needs one.
        waiter: waits for counters in shared memory; None without shared memory.

    Attributes:
        watch: called now and then while something is waited for; raises to give up.
        beside: messages that ``watch`` is interested in.
        calls: tells the stamps of calls, for stamped programs.
    """

    def __init__(self, transport: Transport | None, waiter: Waiter | None) -> None:
        self.transport = transport
        self.waiter = waiter
        self.flags = _NO_FLAGS if waiter is None else waiter.flags
        self._spins = range(0 if waiter is None else waiter.spins)
        self.aborted: BaseException | None = None
        self.watch: Callable[[], None] = _nothing
        self.beside: list[Request] = []
        self.calls: Calls | None = None

    def forget(self) -> None:
        """Lets go of the shared memory; nothing is run any more."""
        self.waiter = None
        self.flags = _NO_FLAGS
        self.watch = _nothing

    def run(self, program: Program, bufs: Bufs, base: int, timeout: float, what: Callable[[], str]) -> None:
        """Runs ``program`` on the buffers of one call.

        Slots and counters are used again by the call after the next one, so a rank may begin that only when all have ended this one.
        They have when all have made the next one, without which no call ends (:class:`~topoccl.collectives.control.control.Control`).

        Args:
            program: lowered for the sizes of these buffers.
            bufs: flat input, output and scratch.
            base: added to every counter, so that counters of different calls never meet.
            timeout: seconds after which the call fails.
            what: describes the call in errors.

        Raises:
            CollectiveTimeout: naming the ranks that were waited for.
            TransportError: a message failed.
        """
        if program.shows is not None:
            self._run_showing(program, bufs, base, timeout, what)
        elif program.stamped is not None:
            assert self.calls is not None
            program.stamped.run(self, self.calls, bufs, base, timeout, what)
        elif program.flat is None:
            if program.flow is None:
                program.flow = Flow(program.lanes, bufs[1].itemsize)
            LaneRun(self, program.flow, program.waits_for, bufs, base, timeout, what).run()
        else:
            self._run_flat(program.flat, program, bufs, base, timeout, what)

    def _run_showing(self, program: Program, bufs: Bufs, base: int, timeout: float, what: Callable[[], str]) -> None:
        """Shows the buffers to peers while the program runs, and until all have read what they need."""
        assert program.shows is not None
        assert program.flat is not None
        line, frame = program.shows.line, program.shows.frame
        flags = self.flags
        inp, out, scratch = bufs
        frame.addresses, frame.base = (address_of(inp), address_of(out), address_of(scratch)), base
        show(flags, line, base, *frame.addresses[:2])
        try:
            self._run_flat(program.flat, program, bufs, base, timeout, what)
            for word, count in program.shows.drained:
                if flags[word] < base + count:
                    self.wait(word, base + count, timeout, what, program.waits_for)
        finally:
            hide(flags, line)

    def _run_flat(self, steps: list[Step], program: Program, bufs: Bufs, base: int, timeout: float, what: Callable[[], str]) -> None:
        flags, spins = self.flags, self._spins
        for guards, act, signals in steps:
            for word, count in guards:
                value = base + count
                if flags[word] < value:
                    for _ in spins:  # a call less where the peer is about to come
                        if flags[word] >= value:
                            break
                    else:
                        self.wait(word, value, timeout, what, program.waits_for)
            if act is not None:
                act(bufs)
            for word, count in signals:
                flags[word] = base + count

    def waiting(self, program: Program, what: Callable[[], str]) -> Callable[[int, int, float], None]:
        """``wait(word, value, timeout)`` returns when ``flags[word] >= value``, in runs of ``program``; raises as :meth:`run`."""
        flags, spins = self.flags, self._spins
        yielding = os.sched_yield

        def wait(word: int, value: int, timeout: float) -> None:
            for _ in spins:
                if flags[word] >= value:
                    return
            for _ in _TRIES:
                yielding()
                if flags[word] >= value:
                    return
            self.wait(word, value, timeout, what, program.waits_for)

        return wait

    def wait(self, word: int, value: int, timeout: float, what: Callable[[], str], waits_for: dict[int, int]) -> None:
        """Waits for a counter, which the rank ``waits_for`` tells sets."""
        waiter = self.waiter
        if waiter is None:  # closed meanwhile, from another thread
            raise self.aborted or TransportError(f"{what()}: the group was closed")
        end = time.monotonic() + timeout

        def check() -> None:
            if self.aborted is not None:
                raise self.aborted
            self.watch()
            if time.monotonic() > end:
                raise CollectiveTimeout(f"{what()} did not end within its timeout of {timeout:g} s: waiting for rank {waits_for[word]}")

        waiter.wait(word, value, check)


def _nothing() -> None:
    pass
