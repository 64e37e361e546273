"""Running a program: one after the other inside a host, lanes side by side when messages also go over the transport."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from topoccl.collectives.errors import CollectiveTimeout, TransportError
from topoccl.collectives.executor.actions import Bufs
from topoccl.collectives.executor.program import AHEAD, Item, Mark, NetMessage, Program, Step
from topoccl.collectives.executor.reach import address_of, hide, show
from topoccl.collectives.executor.waiting import FIRST_NAP, LONGEST_NAP, Waiter
from topoccl.collectives.transports.base import Request

if TYPE_CHECKING:
    import numpy as np

    from topoccl.collectives.executor.stamped import Calls
    from topoccl.collectives.transports.base import Transport

_NEVER = Request()  # that nobody ends: what a lane waits for that has nothing left to do
_ALWAYS = -1
_NO_FLAGS = memoryview(b"\0" * 8).cast("q")
_POLL = 100e-6  # first sleep on the transport while a lane waits for shared memory,
_LONGEST_POLL = 1e-3  # longest,
_PATIENCE = 0.25  # and when none does


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
            _LaneRun(self, program, bufs, base, timeout, what).run()
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
            yielding()
            if flags[word] < value:
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


class _LaneRun:
    """One run with messages over the transport: whichever lane can go on does."""

    def __init__(self, runner: Runner, program: Program, bufs: Bufs, base: int, timeout: float, what: Callable[[], str]) -> None:
        self.runner = runner
        assert runner.transport is not None
        self.transport = runner.transport
        self.flags = runner.flags  # kept even when the group is closed meanwhile, from another thread
        self.program = program
        self.bufs = bufs
        self.base = base
        self.timeout = timeout
        self.what = what
        self.done = [0] * len(program.lanes)
        self.open: list[Request] = []
        self.blocked_on_memory = False
        self.nap = FIRST_NAP
        self.poll = _POLL
        self.left = sum(map(bool, program.lanes))
        self.moves = 0  # counts what may let other lanes go on
        # What each lane waits for, if that is one thing, so that looking again is quick; and when it is to be looked at anew in any case.
        self.blocks: list[Mark | Request | None] = [None if lane else _NEVER for lane in program.lanes]
        self.seen = [_ALWAYS] * len(program.lanes)

    def run(self) -> None:
        end = time.monotonic() + self.timeout
        lanes, flags, base, blocks, seen = self.program.lanes, self.flags, self.base, self.blocks, self.seen
        try:
            while self.left:
                self.blocked_on_memory = False
                before = self.moves
                for number, block in enumerate(blocks):
                    if block is not None and seen[number] in (_ALWAYS, self.moves):
                        if isinstance(block, tuple):
                            if flags[block[0]] < base + block[1]:
                                self.blocked_on_memory = True
                                continue
                        elif not block.done:
                            continue
                    if self._advance(number):
                        self.moves += 1
                if self.moves != before:
                    self.nap, self.poll = FIRST_NAP, _POLL
                else:
                    self._idle(end)
            while self.open:
                self._idle(end)
        finally:
            for lane in lanes:
                for item in lane:
                    item.incoming = None
                    if item.outgoing:
                        item.outgoing = []

    def _advance(self, number: int) -> bool:
        """Runs what can be run of one lane; tells whether anything was."""
        lane = self.program.lanes[number]
        at = start = self.done[number]
        flags, base = self.flags, self.base
        block: Mark | Request | None = None
        while at < len(lane):
            item = lane[at]
            if item.incoming is None:
                if not item.staged and not self._ready(item):
                    break
                self._post(item)
            assert item.incoming is not None
            block = next((mark for mark in item.guards if flags[mark[0]] < base + mark[1]), None)
            if block is not None:
                self.blocked_on_memory = True
            else:
                block = next((request for request in item.incoming if not request.done), None)
            if block is not None or (item.staged and not self._ready(item)):
                self.seen[number] = _ALWAYS if self._post_early(lane, at) else self.moves
                break
            if item.act is not None:
                item.act(self.bufs)
            for word, count in item.signals:
                flags[word] = base + count
            if item.sends:
                item.outgoing = [self._start(message, send=True) for message in item.sends]
            at += 1
            self.done[number] = at
        else:
            block, self.seen[number] = _NEVER, _ALWAYS
            self.left -= 1
        self.blocks[number] = block
        return at > start

    def _ready(self, item: Item) -> bool:
        done = self.done
        for lane, at in item.deps:  # loops, since this is asked twice for every message
            if done[lane] <= at:
                return False
        for other in item.awaits:
            for request in other.outgoing:
                if not request.done:
                    return False
        return True

    def _post(self, item: Item) -> None:
        item.incoming = [self._start(message, send=False) for message in item.receives]

    def _post_early(self, lane: list[Item], at: int) -> bool:
        """Posts receives of the following items as well: a sender that must ask first does not wait behind all data on its link. False
        when more may be posted as soon as other lanes go on."""
        for ahead, following in enumerate(lane[at + 1 : at + 1 + AHEAD], 1):
            if following.receives and following.incoming is None:
                if following.ahead < ahead:
                    return True  # nor those behind it: messages of one sender are told apart by their order
                if not (following.staged or self._ready(following)):
                    return False
                self._post(following)
        return True

    def _start(self, message: NetMessage, *, send: bool) -> Request:
        data: np.ndarray = self.bufs[message.buf][message.lo : message.hi].view("u1")
        begin = self.transport.isend if send else self.transport.irecv
        request = begin(message.peer, message.tag, data, message.rail)
        if not request.done:
            self.open.append(request)
        return request

    def _idle(self, end: float) -> None:
        if self.runner.aborted is not None:
            raise self.runner.aborted
        self.runner.watch()
        left = end - time.monotonic()
        if left <= 0:
            raise CollectiveTimeout(f"{self.what()} did not end within its timeout of {self.timeout:g} s: waiting for {self._missing()}")
        if self.open:
            self.transport.progress([*self.open, *self.runner.beside], min(left, self.poll if self.blocked_on_memory else _PATIENCE))
            self.poll = min(self.poll * 1.5, _LONGEST_POLL)
            failed = next((r for r in self.open if r.error is not None), None)
            if failed is not None:
                raise TransportError(f"{self.what()} failed: {failed.error}") from failed.error
            still = [request for request in self.open if not request.done]
            self.moves += len(still) < len(self.open)
            self.open = still
            self.nap = FIRST_NAP
        else:
            os.sched_yield() if self.nap == FIRST_NAP else time.sleep(self.nap)
            self.nap = min(self.nap * 1.5, LONGEST_NAP)

    def _missing(self) -> str:
        """The ranks that lanes wait for."""
        flags, base = self.flags, self.base
        ranks: set[int] = set()
        for at, lane in zip(self.done, self.program.lanes, strict=True):
            if at == len(lane):
                continue
            item = lane[at]
            ranks |= {self.program.waits_for[word] for word, count in item.guards if flags[word] < base + count}
            for message, request in zip(item.receives, item.incoming or (), strict=False):
                if not request.done:
                    ranks.add(message.peer)
            ranks |= {m.peer for other in item.awaits for m, r in zip(other.sends, other.outgoing, strict=False) if not r.done}
        return f"ranks {', '.join(map(str, sorted(ranks)))}" if ranks else "its own sends"
