"""What lowering produces: the steps of one rank, ready to run for one size and type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from topoccl.collectives.executor.actions import Act, Frame, Move, Whole

if TYPE_CHECKING:
    from topoccl.collectives.executor.lanes import Flow
    from topoccl.collectives.executor.stamped import Stamped
    from topoccl.collectives.transports.base import PeerCounters

AHEAD = 8
"""Up to how many items behind the one at work may have their receives posted."""
SHORT = 40
"""The most steps of a program that is worth a function of its own."""

Mark = tuple[int, int]  # (index of a counter in the arena, messages counted within this call)


@dataclass(frozen=True, slots=True)
class NetMessage:
    """A message over a rail of the transport: peer, tag, the elements ``lo:hi`` of buffer ``buf`` (see actions.Ref), and what share of the
    way's rate it should take."""

    peer: int
    tag: int
    buf: int
    lo: int
    hi: int
    rail: int = 0
    share: float = 1.0


@dataclass(slots=True, eq=False)
class Item:
    """One step of one segment: wait for ``guards``, ``act``, set ``signals``; with messages over the transport besides.

    Attributes:
        guards: counters that must have been reached: data of local peers, and free slots to publish into.
        act: the data movement, or None.
        moves: what ``act`` does.
        signals: counters to set afterwards.
        deps: (lane, position) pairs that must be complete first; only looked at when lanes run side by side.
        receives: messages to receive before ``act``.
        sends: messages to send after ``act``.
        awaits: earlier items whose sends must be complete, since this one overwrites what they send.
        staged: whether ``receives`` go to temporary storage, so that they may be posted before ``deps`` and ``awaits`` hold.
        ahead: how many of the lane's previous items may still be running when ``receives`` are posted.
    """

    segment: int
    step: int
    guards: tuple[Mark, ...] = ()
    act: Act | None = None
    moves: tuple[Move, ...] = ()
    signals: tuple[Mark, ...] = ()
    deps: tuple[tuple[int, int], ...] = ()
    receives: tuple[NetMessage, ...] = ()
    sends: tuple[NetMessage, ...] = ()
    awaits: tuple[Item, ...] = ()
    staged: bool = True
    ahead: int = 0


Step = tuple[tuple[Mark, ...], Act | None, tuple[Mark, ...]]
"""An item that only waits for counters, acts and sets counters."""


@dataclass(frozen=True, slots=True)
class Shows:
    """Peers read straight from this rank's buffers while it runs.

    Attributes:
        line: where in the arena's counters it shows them.
        frame: what its own reads of others' must know.
        drained: counters that tell, with their final values, that all readers have taken this run's messages, which ends it.
    """

    line: int
    frame: Frame
    drained: tuple[Mark, ...]


@dataclass(slots=True, eq=False)
class Program:
    """One rank's lowered schedule.

    Attributes:
        lanes: items of each lane, in order, all segments.
        flat: all items in one order in which they can be run one after the other without deadlock; None when messages go over
            the transport, which lanes in shared memory must not wait behind.
        scratch: elements of scratch that a run needs.
        shows: how peers read this rank's buffers; None when messages go through slots.
        waits_for: the rank that sets a counter, for messages about waits that take too long.
        traffic: messages through shared memory by peer, in one run.
        whole: elements of the whole buffers.
        short: its items in order where they are few, in memory that is shared, and need no scratch.
        runs: how often it has been run since its traffic was last counted.
        stamped: how a short call with messages over the transport is run instead.
        flow: ``lanes`` as they are run side by side; made when they first are.
    """

    lanes: list[list[Item]]
    flat: list[Step] | None
    scratch: int
    shows: Shows | None
    waits_for: dict[int, int]
    traffic: dict[int, PeerCounters]
    whole: Whole
    short: list[Item] | None = None
    runs: int = 0
    stamped: Stamped | None = None
    flow: Flow | None = None
