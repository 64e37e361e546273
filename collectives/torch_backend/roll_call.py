"""``monitored_barrier``: everyone reports to rank 0, which lets all go on, or tells them who has not come."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from topoccl.collectives.errors import CollectiveTimeout, TopocclError
from topoccl.collectives.messages import ROLL_CALL_TAG

if TYPE_CHECKING:
    from topoccl.collectives.transports.base import Bytes, Request, Transport

_NUMBER = 8  # bytes of the number of a report, which its answer repeats
_LAST_WORD = 1.0  # seconds in which the others are told who is absent
_ANSWER = 512  # bytes of an answer: the number, then what went wrong, if anything


class RollCall:
    """The monitored barriers of one group.

    A report counts for the barrier that rank 0 is in when it arrives, so that ranks that came late to one meet again in the next.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._number = 0
        self._expected: dict[int, tuple[Request, Bytes]] = {}  # receives that a barrier has left open

    def hold(self, timeout: float, name_all: bool) -> None:
        """Returns when all ranks have come.

        Args:
            timeout: seconds.
            name_all: whether the error begins with all ranks that have not come, or with the first of them.

        Raises:
            CollectiveTimeout: on every rank that has come.
        """
        self._number += 1
        end = time.monotonic() + timeout
        if self.transport.rank == 0:
            self._lead(timeout, end, name_all)
        else:
            self._report(end)

    def _receive(self, peer: int, nbytes: int) -> tuple[Request, Bytes]:
        if peer not in self._expected:
            data = np.empty(nbytes, np.uint8)
            self._expected[peer] = (self.transport.irecv(peer, ROLL_CALL_TAG, data), data)
        return self._expected[peer]

    def _lead(self, timeout: float, end: float, name_all: bool) -> None:
        reports = {peer: self._receive(peer, _NUMBER) for peer in range(1, self.transport.size)}
        while True:
            waiting = [request for request, _ in reports.values() if not request.done]
            left = end - time.monotonic()
            self.transport.progress(waiting, max(left, 0.0))
            if all(request.done for request in waiting) or left <= 0:
                break
        absent = [peer for peer, (request, _) in reports.items() if not request.done or request.error is not None]
        text = ""
        if absent:
            first, others = ("Ranks " if len(absent) > 1 else "Rank ") + _listed(absent), ""
            if not name_all and len(absent) > 1:
                first, others = f"Rank {absent[0]}", f"; nor did {_listed(absent[1:])}"
            milliseconds = f"{timeout * 1000:.0f} ms"
            text = (
                f"Rank 0 timed out in monitoredBarrier after {milliseconds}: "
                f"{first} failed to pass monitoredBarrier in {milliseconds}{others}"
            )
        answers = []
        for peer in reports:
            if peer not in absent:
                number = self._expected.pop(peer)[1].tobytes()
                answer = (number + text.encode()[: _ANSWER - _NUMBER]).ljust(_ANSWER, b"\0")
                answers.append(self.transport.isend(peer, ROLL_CALL_TAG, np.frombuffer(answer, np.uint8)))
        if not text:
            self.transport.wait(answers, max(timeout, 1.0))
            return
        # Who has given up meanwhile may never take its answer (Open MPI's short messages need their receiver, too).
        with suppress(TopocclError):
            self.transport.wait(answers, _LAST_WORD)
        raise CollectiveTimeout(text)

    def _report(self, end: float) -> None:
        me = self.transport.rank
        number = self._number.to_bytes(_NUMBER, "little")
        report = self.transport.isend(0, ROLL_CALL_TAG, np.frombuffer(number, np.uint8))
        failed = f"Rank {me} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0"
        while True:
            answer, data = self._receive(0, _ANSWER)
            try:
                self.transport.wait([report, answer], max(end - time.monotonic(), 0.0))
            except CollectiveTimeout as error:
                raise CollectiveTimeout(f"{failed}: it has not answered in time") from error
            del self._expected[0]
            told = data.tobytes()
            if told[:_NUMBER] == number:
                break  # else it answers a report of a barrier that was given up here
        text = told[_NUMBER:].rstrip(b"\0").decode(errors="replace")
        if text:
            raise CollectiveTimeout(f"{failed}: {text}")


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
