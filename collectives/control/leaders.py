"""Messages among one rank of each host, beside the data: everyone hears of everyone in log2(hosts) rounds, in a pattern that depends on
nothing but the group. Calls that are decided by the stamps of their data need none of this, unless somebody :attr:`~Leaders.asked`:
then all that are in the call go through these rounds, and those that have ended it do not, since then all ranks have made it.

In round k a leader sends to the one 2^k places on and hears from the one 2^k places back, whether all calls are the same that its
sender knows of by then (dissemination). All messages have one length. A receive from each of those is always open, so a leader
that gives up, or leaves, can be heard at any time: it sends its last words in the place of what it would have sent next.
"""

from __future__ import annotations

import pickle
import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from topoccl.collectives.bootstrap import receive_objects, send_object
from topoccl.collectives.control.failure import Failure, mismatch_text
from topoccl.collectives.control.fingerprint import Fingerprint
from topoccl.collectives.errors import TransportError
from topoccl.collectives.transports.base import CONTROL_TAG

if TYPE_CHECKING:
    from topoccl.collectives.transports.base import Request, Transport

_HEAD = struct.Struct("<qqqqq")  # what it is, the call's number, its value, and of a failure: kind, rank
_TEXT = 600
_SIZE = _HEAD.size + _TEXT
_SAME, _DIFFERENT, _FAILED, _LEFT = range(4)
_REPORT_TAG = CONTROL_TAG - 1
_REPORT = 32 * 1024

Attendance = tuple[list[int], dict[int, tuple[int, str]]]  # the ranks that have made a call, and of the others the last one


class Leaders:
    """This rank's messages with the leaders of other hosts.

    Args:
        transport: the group's.
        hosts: the ranks of each host, the leader first, in an order that is the same on all ranks.
    """

    def __init__(self, transport: Transport, hosts: Sequence[Sequence[int]]) -> None:
        self.transport = transport
        self.hosts = hosts
        self.ranks = [ranks[0] for ranks in hosts]
        self.me = self.ranks.index(transport.rank)
        size = len(hosts)
        reaches = [1 << k for k in range((size - 1).bit_length())]
        self._to = [self.ranks[(self.me + reach) % size] for reach in reaches]
        self._from = [self.ranks[(self.me - reach) % size] for reach in reaches]
        self._open = [np.empty(_SIZE, np.uint8) for _ in reaches]
        self._requests: list[Request] = []  # one for each of them, always open or with last words
        self._said: list[dict[int, tuple[int, int]]] = [{} for _ in reaches]  # by call: what it is, and the call's value
        self._number = 0
        self._value = 0
        self._call: Fingerprint | None = None
        self._sent = self._heard = 0
        self._same = True
        self._over = False

    def begin(self, number: int, call: Fingerprint) -> None:
        if not self._requests:
            self._requests = [self._receive(k) for k in range(len(self._from))]
        for said in self._said:
            if said:  # of calls that were decided without
                for old in [at for at in said if at < number]:
                    del said[old]
        self._number, self._value, self._call = number, call.value + number, call
        self._sent = self._heard = 0
        self._same = True

    def _receive(self, k: int) -> Request:
        return self.transport.irecv(self._from[k], CONTROL_TAG, self._open[k])

    @property
    def waiting(self) -> list[Request]:
        """The request that must end for the call to be decided."""
        return [self._requests[self._heard]] if self._heard < self._sent else []

    @property
    def asked(self) -> bool:
        """Whether another leader wants to know if the calls are the same."""
        return any(self._number in said for said in self._said)

    def advance(self, same: bool) -> bool | None:
        """Goes as far as it can without waiting; ``same`` says whether the calls of this host are.

        Returns:
            Whether all calls of the group are the same; None while this is not known.

        Raises:
            HeardFailure: a leader has given up, or left.
            TransportError: the leader that is to be heard next is gone.
        """
        self._same &= same
        while True:
            if self._heard == self._sent:
                if self._sent == len(self._to):
                    return self._same
                self._send(self._to[self._sent], _SAME if self._same else _DIFFERENT, None, self._number)
                self._sent += 1
            k = self._heard
            if self._number not in self._said[k]:
                self._hear(k)
                error = self._requests[k].error
                if error is not None and self._number not in self._said[k]:
                    raise error
            found = self._said[k].pop(self._number, None)
            if found is None:
                return None
            what, value = found
            self._same &= what == _SAME and value == self._value
            self._heard += 1

    def listen(self) -> None:
        """Takes what has come; raises as :meth:`advance` when a leader has given up."""
        for k, request in enumerate(self._requests):
            if request.done:
                self._hear(k)

    def _hear(self, k: int) -> None:
        """Takes what one leader has said. Its last words stay where they are, since nothing comes after them."""
        while self._requests[k].done and self._requests[k].error is None:
            data = self._open[k]
            what, number, value, kind, rank = _HEAD.unpack_from(data.data)
            if what in (_SAME, _DIFFERENT):
                if number >= self._number:
                    self._said[k][number] = what, value
                self._requests[k] = self._receive(k)
                continue
            text = bytes(data[_HEAD.size :]).rstrip(b"\0").decode(errors="replace")
            if what == _FAILED and number <= self._number:
                raise HeardFailure(Failure(kind, rank, text))
            if what == _LEFT and number < self._number:
                raise HeardFailure(Failure.of(self._from[k], TransportError(f"it has left the group after call {number}, {text}")))
            return

    def _send(self, peer: int, what: int, failure: Failure | None, number: int) -> None:
        text = b"" if self._call is None else self._call.data
        kind = rank = 0
        if failure is not None:
            kind, rank, text = failure.kind, failure.rank, failure.text.encode()[:_TEXT]
        message = _HEAD.pack(what, number, self._value, kind, rank) + text.ljust(_TEXT, b"\0")
        self.transport.isend(peer, CONTROL_TAG, np.frombuffer(message, np.uint8))

    def exchange(self, mine: Attendance, seconds: float) -> dict[int, Attendance]:
        """When leaders give up a call that some have not made: what those that have say within ``seconds``, by leader."""
        data = np.zeros(_REPORT, np.uint8)
        text = pickle.dumps(mine)
        if len(text) > _REPORT:
            text = pickle.dumps((mine[0], {rank: (number, "") for rank, (number, _) in mine[1].items()}))
        if len(text) > _REPORT:
            text = pickle.dumps((mine[0], {}))
        data[: len(text)] = np.frombuffer(text, np.uint8)
        incoming = {}
        for leader in self.ranks:
            if leader != self.transport.rank:
                self.transport.isend(leader, _REPORT_TAG, data)
                buffer = np.empty(_REPORT, np.uint8)
                incoming[leader] = (self.transport.irecv(leader, _REPORT_TAG, buffer), buffer)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            waiting = [request for request, _ in incoming.values() if not request.done]
            if not waiting:
                break
            self.transport.progress(waiting, left)
        heard = {leader: buffer for leader, (request, buffer) in incoming.items() if request.done and request.error is None}
        return {self.transport.rank: mine, **{leader: pickle.loads(buffer.tobytes()) for leader, buffer in heard.items()}}

    def fail(self, failure: Failure, number: int) -> None:
        """Tells the leaders that hear of this one that it will not end call ``number``."""
        self._last_words(_FAILED, failure, number)

    def leave(self) -> None:
        """Tells them that this rank makes no more calls."""
        self._last_words(_LEFT, None, self._number)

    def _last_words(self, what: int, failure: Failure | None, number: int) -> None:
        if self._over or self._call is None:
            return
        self._over = True
        for peer in self._to:
            self._send(peer, what, failure, number)

    def tell_calls(self, calls: dict[int, str], call: str, seconds: float) -> str:
        """Once all leaders know that calls differ: a text about the calls of all ranks, from those of each host."""
        self._over = True
        if self.me:
            self.transport.wait(send_object(self.transport, [self.ranks[0]], pickle.dumps(calls), _REPORT_TAG), seconds)
            return receive_objects(self.transport, [self.ranks[0]], seconds, _REPORT_TAG)[0].tobytes().decode()
        everyone = dict(calls)
        for data in receive_objects(self.transport, self.ranks[1:], seconds, _REPORT_TAG):
            everyone.update(pickle.loads(data.tobytes()))
        text = mismatch_text(everyone, call)
        self.transport.wait(send_object(self.transport, self.ranks[1:], text.encode(), _REPORT_TAG), seconds)
        return text


class HeardFailure(Exception):
    """Another leader has given up, or left; for the caller to turn into an error about its call."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure
