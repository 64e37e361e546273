"""Short calls between hosts: a rank's steps one after the other, with messages that say which call they belong to.

A short call's time is processor time of its messages. So its steps are run in one order, without lanes; what they send leaves at once and
what they receive is taken where it arrived. Each message bears the *stamp* of its call, which no other call of the group has: where a
schedule lets every rank hear from all others before it ends (:func:`~topoccl.algorithms.hearing.everyone_hears`), the stamps alone tell
that all ranks have made the same call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, Protocol

import numpy as np

from topoccl.collectives.errors import CollectiveTimeout, TransportError
from topoccl.collectives.executor.actions import Act, Bufs, Local
from topoccl.collectives.executor.program import SHORT, Item, Mark, NetMessage, Program
from topoccl.collectives.executor.straight import add_guards, add_move, add_signals, place_of
from topoccl.collectives.executor.waiting import FIRST_NAP, LONGEST_NAP, PATIENCE
from topoccl.collectives.transports.base import Inbox, PeerCounters, Put, Request, Transport

if TYPE_CHECKING:
    from topoccl.collectives.executor.dtypes import DType
    from topoccl.collectives.executor.run import Runner
    from topoccl.collectives.executor.straight import Source


_LITTLE = 16 * 1024  # bytes of scratch that a function may keep
_EMPTY = np.empty(0, np.uint8)

_Take = tuple[Inbox, int, int, int, int, int, int]  # and its peer and rail; buffer, where from and where to in elements, bytes
_Give = tuple[Put, int, int, int]  # and buffer, where from and where to
_Step = tuple[tuple[Mark, ...], tuple[_Take, ...], Act | None, tuple[Mark, ...], tuple[_Give, ...]]


class Calls(Protocol):
    """What keeps the calls of a group in step."""

    def assemble(self) -> int:
        """Returns when all ranks of this host have made the present call: its stamp."""

    def doubt(self) -> NoReturn:
        """For who has met a message of another call: raises when it is known who calls what."""


class Stamped:
    """A :class:`Program` with messages over a transport that stamps them, in one segment.

    Args:
        program: whose ``lanes`` are run.
        order: the index of each step in the order in which they are run.
        transport: of the group.
        dtype: of the elements.
    """

    def __init__(self, program: Program, order: Sequence[int], transport: Transport, dtype: DType) -> None:
        self._transport = transport
        self._dtype = dtype
        self._waits_for = program.waits_for
        self._whole = program.whole
        self._scratch = program.scratch
        self.traffic: dict[int, PeerCounters] = {}  # over the transport by peer, in one run
        item_of = {item.step: item for lane in program.lanes for item in lane}
        self._items = [item_of[step] for step in order]
        self._steps: list[_Step] = [self._step(item, dtype) for item in self._items]

    @property
    def short(self) -> bool:
        """Whether it is worth a function of its own (:meth:`write`)."""
        return len(self._items) <= SHORT and self._scratch * self._dtype.itemsize <= _LITTLE

    def _step(self, item: Item, dtype: DType) -> _Step:
        size = dtype.itemsize
        takes, gives = [], []
        for m in item.receives:
            takes.append((self._transport.inbox(m.peer, m.tag, m.rail), m.peer, m.rail, m.buf, m.lo, m.hi, (m.hi - m.lo) * size))
            row = self._row(m)
            row.received_messages += 1
            row.received_bytes += (m.hi - m.lo) * size
        for m in item.sends:
            gives.append((self._transport.outlet(m.peer, m.tag, m.rail), m.buf, m.lo, m.hi))
            row = self._row(m)
            row.sent_messages += 1
            row.sent_bytes += (m.hi - m.lo) * size
        return item.guards, tuple(takes), item.act, item.signals, tuple(gives)

    def _row(self, message: NetMessage) -> PeerCounters:
        return self.traffic.setdefault(message.peer, PeerCounters())

    def run(self, runner: Runner, calls: Calls, bufs: Bufs, base: int, timeout: float, what: Callable[[], str]) -> None:
        """As :meth:`Runner.run`; raises also what ``calls`` does."""
        stamp = calls.assemble()
        flags = runner.flags
        end = 0.0
        left: list[Request] = []
        for guards, takes, act, signals, gives in self._steps:
            for word, count in guards:
                if flags[word] < base + count:
                    if left:
                        end = end or time.monotonic() + timeout
                        left = self._let_leave_until(word, base + count, left, runner, end, timeout, what)
                    runner.wait(word, base + count, timeout, what, self._waits_for)
            for inbox, peer, rail, buf, lo, hi, nbytes in takes:
                if not inbox:
                    end = end or time.monotonic() + timeout
                    self._await(inbox, peer, rail, runner, end, timeout, what)
                found, data = inbox.popleft()
                if found != stamp or len(data) != nbytes:
                    calls.doubt()
                if nbytes:
                    target = bufs[buf]
                    target[lo:hi] = np.frombuffer(data, target.dtype)
            if act is not None:
                act(bufs)
            for word, count in signals:
                flags[word] = base + count
            for put, buf, lo, hi in gives:
                rest = put(bufs[buf][lo:hi], stamp)
                if rest is not None:
                    left.append(rest)
        if left:
            self._let_leave(left, runner, end or time.monotonic() + timeout, timeout, what)

    def write(self, source: Source, runner: Runner, calls: Calls, what: Callable[[], str]) -> None:
        """What :meth:`run` does, as lines of a function: they use the arguments ``inp``, ``out`` and ``limit`` and the variables ``base``
        and ``stamp``."""

        def await_(inbox: Inbox, peer: int, rail: int, end: float, limit: float) -> None:
            self._await(inbox, peer, rail, runner, end, limit, what)

        def wait(word: int, value: int, left: list[Request], end: float, limit: float) -> list[Request]:
            if left:
                left = self._let_leave_until(word, value, left, runner, end or time.monotonic() + limit, limit, what)
            runner.wait(word, value, limit, what, self._waits_for)
            return left

        def leave(left: list[Request], end: float, limit: float) -> None:
            self._let_leave(left, runner, end or time.monotonic() + limit, limit, what)

        waiting, awaiting, doubt, clock = (source.name(one) for one in (wait, await_, calls.doubt, time.monotonic))
        source.names["scratch"] = np.empty(self._scratch, self._dtype.carrier)
        source.add("left = []", "end = 0.0")
        for item in self._items:
            add_guards(source, item.guards, runner.flags, f"left = {waiting}({{}}, {{}}, left, end, limit)")
            known: dict[Local, str] = {}
            for m in item.receives:
                inbox, ref = self._transport.inbox(m.peer, m.tag, m.rail), (m.buf, m.lo, m.hi)
                source.add(f"if not {(box := source.name(inbox))}:")
                source.add(f"    end = end or {clock}() + limit", f"    {awaiting}({box}, {m.peer}, {m.rail}, end, limit)")
                source.add(f"found, data = {source.name(inbox.popleft)}()")
                source.add(f"if found != stamp or len(data) != {(m.hi - m.lo) * self._dtype.itemsize}: {doubt}()")
                if m.hi > m.lo:
                    name = f"came{len(known)}"
                    source.add(f"{name} = {source.name(np.frombuffer)}(data, {source.name(self._dtype.carrier)})")
                    if not item.staged:
                        source.add(f"{place_of(source, ref, self._whole)}[...] = {name}")
                    known[ref] = name
            for move in item.moves:
                add_move(source, move, self._whole, known)
            add_signals(source, item.signals, runner.flags)
            for m in item.sends:
                ref = (m.buf, m.lo, m.hi)
                data = known.get(ref) or (place_of(source, ref, self._whole) if m.hi > m.lo else source.name(_EMPTY))
                source.add(f"rest = {source.name(self._transport.outlet(m.peer, m.tag, m.rail))}({data}, stamp)")
                source.add("if rest is not None: left.append(rest)")
        source.add(f"if left: {source.name(leave)}(left, end, limit)")

    def _await(self, inbox: Inbox, peer: int, rail: int, runner: Runner, end: float, timeout: float, what: Callable[[], str]) -> None:
        while True:
            try:
                self._transport.fill(inbox, peer, rail, PATIENCE)
            except TransportError as error:
                raise TransportError(f"{what()} failed: {error}") from error
            if inbox:
                return
            self._look(runner, end, timeout, what, f"rank {peer}")

    def _let_leave_until(
        self, word: int, value: int, left: list[Request], runner: Runner, end: float, timeout: float, what: Callable[[], str]
    ) -> list[Request]:
        """Looks after messages that have not left until a counter has come, for whoever sets it may wait for them; those that are left."""
        nap = FIRST_NAP
        while left and runner.flags[word] < value:
            self._look(runner, end, timeout, what, f"rank {self._waits_for[word]}")
            self._transport.progress(left, nap)
            nap = min(nap * 1.5, LONGEST_NAP)
            for rest in left:
                _raise_error_of(rest, what)
            left = [rest for rest in left if not rest.done]
        return left

    def _let_leave(self, left: list[Request], runner: Runner, end: float, timeout: float, what: Callable[[], str]) -> None:
        """Waits until all messages have left: nobody may look after the connections afterwards."""
        for rest in left:
            while not rest.done:
                self._look(runner, end, timeout, what, "its own sends")
                self._transport.progress([rest], PATIENCE)
            _raise_error_of(rest, what)

    def _look(self, runner: Runner, end: float, timeout: float, what: Callable[[], str], waiting_for: str) -> None:
        if runner.aborted is not None:
            raise runner.aborted
        runner.watch()
        if time.monotonic() > end:
            raise CollectiveTimeout(f"{what()} did not end within its timeout of {timeout:g} s: waiting for {waiting_for}")


def _raise_error_of(rest: Request, what: Callable[[], str]) -> None:
    if rest.error is not None:
        raise TransportError(f"{what()} failed: {rest.error}") from rest.error
