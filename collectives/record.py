"""What a rank has done in one group: its calls, for errors and for who asks, and what they have moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoccl.collectives.transports.base import PeerCounters

if TYPE_CHECKING:
    from topoccl.collectives.control.fingerprint import Fingerprint
    from topoccl.collectives.executor.program import Program
    from topoccl.collectives.planner import Plan
    from topoccl.collectives.transports.base import Transport

RECENT = 32  # calls that are remembered, for errors


class Record:
    """The calls of one group, which :class:`~topoccl.collectives.calling.Caller` writes down as it makes them.

    Attributes:
        calls: how many have been begun.
        recent: what the last of them were, each at its number modulo RECENT.
        last: the plan of the last one.
        uncounted: programs that have been run since their traffic was added.
    """

    def __init__(self, transport: Transport, group: str) -> None:
        self.calls = 0
        self.recent: list[Fingerprint | None] = [None] * RECENT
        self.last: Plan | None = None
        self.uncounted: list[Program] = []
        self._transport = transport
        self._group = group
        self._traffic: dict[int, PeerCounters] = {peer: PeerCounters() for peer in range(transport.size)}

    def describe(self) -> str:
        """The present call, for errors."""
        call = self.recent[self.calls % RECENT]
        where = f"rank {self._transport.rank} of {self._transport.size}"
        return f"{call.text if call else '?'} (call {self.calls} of group {self._group}, {where})"

    def recent_calls(self, open_still: bool) -> str:
        """The last calls, a line each: number, what, and whether it has ended; the last one has not if it is ``open_still``."""
        last = self.calls
        lines = [f"rank {self._transport.rank} of group {self._group} has made {last} calls" + (", the last ones:" if last else "")]
        for number in range(max(1, last + 1 - RECENT), last + 1):
            call = self.recent[number % RECENT]
            lines.append(f"  {number}: {call.text if call else '?'}{', not ended' if open_still and number == last else ''}")
        return "\n".join(lines)

    def count_traffic(self) -> None:
        """Adds what the programs have moved that were run since the last time."""
        programs, self.uncounted = self.uncounted, []
        for program in programs:
            runs, program.runs = program.runs, 0
            if program.stamped is not None:
                self._transport.count(program.stamped.traffic, runs)
            for peer, moved in program.traffic.items():
                self._traffic[peer].add(moved, runs)

    def traffic(self) -> dict[int, PeerCounters]:
        """Messages and bytes through shared memory, by peer; those of the transport are added to its counters."""
        self.count_traffic()
        return dict(self._traffic)
