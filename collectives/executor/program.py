"""What lowering produces: the steps of one rank, ready to run for one size and type."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from topoccl.collectives.executor.actions import Act, Frame

if TYPE_CHECKING:
    from topoccl.collectives.executor.stamped import Stamped
    from topoccl.collectives.transports.base import Request

AHEAD = 8
"""Up to how many items behind the one at work may have their receives posted."""

Mark = tuple[int, int]  # (index of a counter in the arena, messages counted within this call)


@dataclass(frozen=True, slots=True)
class NetMessage:
    """A message over a rail of the transport: peer, tag, and the elements ``lo:hi`` of buffer ``buf`` (see actions.Ref)."""

    peer: int
    tag: int
    buf: int
    lo: int
    hi: int
    rail: int = 0


@dataclass(slots=True, eq=False)
class Item:
    """One step of one segment: wait for ``guards``, ``act``, set ``signals``; with messages over the transport besides.

    Attributes:
        guards: counters that must have been reached: data of local peers, and free slots to publish into.
        act: the data movement, or None.
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
    signals: tuple[Mark, ...] = ()
    deps: tuple[tuple[int, int], ...] = ()
    receives: tuple[NetMessage, ...] = ()
    sends: tuple[NetMessage, ...] = ()
    awaits: tuple[Item, ...] = ()
    staged: bool = True
    ahead: int = 0
    incoming: list[Request] | None = None
    outgoing: list[Request] = field(default_factory=list)


Step = tuple[tuple[Mark, ...], Act | None, tuple[Mark, ...]]
"""An item that only waits for counters, acts and sets counters."""


@dataclass(slots=True)
class Traffic:
    """Messages and payload bytes to and from one peer in one run of a program."""

    sent_messages: int = 0
    sent_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0


@dataclass(slots=True, eq=False)
class Program:
    """One rank's lowered schedule.

    Attributes:
        lanes: items of each lane, in order, all segments.
        flat: all items in one order in which they can be run one after the other without deadlock; None when messages go over
            the transport, which lanes in shared memory must not wait behind.
        scratch: elements of scratch that a run needs.
        drained: counters that tell, with their final values, that all readers have taken this run's messages.
        shows: where in the arena's counters this rank shows its buffers to peers, who read straight from them, and what those reads
            must know; None when messages go through slots. A run that shows its buffers ends only when it is drained.
        waits_for: the rank that sets a counter, for messages about waits that take too long.
        traffic: messages through shared memory by peer, in one run.
        runs: how often it has been run since its traffic was last counted.
        stamped: how a short call with messages over the transport is run instead.
    """

    lanes: list[list[Item]]
    flat: list[Step] | None
    scratch: int
    drained: tuple[Mark, ...]
    shows: tuple[int, Frame] | None
    waits_for: dict[int, int]
    traffic: dict[int, Traffic]
    runs: int = 0
    stamped: Stamped | None = None
