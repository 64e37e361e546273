"""Streams of bytes between ranks, and pings, over a transport. Every rank runs the same flows at the same time.

A stream is driven by its receiver: it posts a window of receives; for each chunk that has come it says whether one more may follow,
until its time is over. So no byte is on its way, and no receive is open, when a stream has ended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topoccl.collectives.errors import CollectiveTimeout
from topoccl.collectives.transports.base import Bytes, Request, Transport

WINDOW = 8
"""Chunks of one stream that are on their way at most."""
_MORE = 1
_PING_TAG = 1 << 14
_SETTLE = 0.2  # of the time that streams run together, before it counts
_TOGETHER = 0.4  # of the longest stream's time, that all must run together
_POINTS = 64
_BLIND = 0.3  # of the time that counts: if a receiver saw nothing for longer, it was hardly running


@dataclass(frozen=True)
class Stream:
    """Bytes from rank ``src`` to rank ``dst`` in chunks of ``chunk`` bytes."""

    src: int
    dst: int
    chunk: int


@dataclass(frozen=True)
class Arrivals:
    """What a receiver saw of a stream.

    Attributes:
        times: whenever it had taken all chunks that had come (seconds of its own monotonic clock).
        counts: how many chunks had come by then.
        ends: when it stopped to ask for more.
    """

    times: tuple[float, ...]
    counts: tuple[int, ...]
    ends: float


def run_streams(transport: Transport, streams: Sequence[Stream], seconds: float, timeout: float) -> dict[int, Arrivals]:
    """Runs this rank's part of ``streams``; every rank that is named in one must call it.

    Args:
        seconds: how long each stream runs, counted from its first chunk.
        timeout: seconds without any word from the peers.

    Returns:
        What came of the streams that end here, by their position in ``streams``.

    Raises:
        CollectiveTimeout, TransportError: a peer is silent or died.
    """
    active: list[_Sender | _Receiver] = []
    for number, stream in enumerate(streams):
        if stream.dst == transport.rank:
            active.append(_Receiver(transport, stream, number, seconds))
    for number, stream in enumerate(streams):
        if stream.src == transport.rank:
            active.append(_Sender(transport, stream, number))
    ends = list(active)
    while active:
        heads = [end.head for end in active]
        before = time.monotonic()
        transport.progress(heads, timeout)
        moved = False
        for end in active:
            if end.head.done:
                moved = True
                while end.pending and end.head.done:
                    end.advance()
                end.caught_up()
        if not moved and time.monotonic() - before >= timeout:
            raise CollectiveTimeout(f"{transport}: no word from {', '.join(map(str, active))} for {timeout:g} s")
        active = [end for end in active if end.pending]
    transport.wait([request for end in ends for request in end.sent], timeout)
    return {end.number: end.arrivals() for end in ends if isinstance(end, _Receiver)}


class _End:
    """One end of a stream; ``pending`` are the messages it waits for, in order."""

    def __init__(self, transport: Transport, stream: Stream, number: int) -> None:
        self.transport = transport
        self.stream = stream
        self.number = number
        self.pending: deque[tuple[Request, Bytes]] = deque()
        self.sent: deque[Request] = deque()

    @property
    def head(self) -> Request:
        return self.pending[0][0]

    def _take(self) -> Bytes:
        request, data = self.pending.popleft()
        if request.error is not None:
            raise request.error
        while self.sent and self.sent[0].done and self.sent[0].error is None:
            self.sent.popleft()
        return data

    def advance(self) -> None:
        """Takes the message at the head, which is done."""
        raise NotImplementedError

    def caught_up(self) -> None:
        """Called when all messages that have come are taken."""

    def __str__(self) -> str:
        return f"{type(self).__name__.strip('_').lower()} of rank {self.stream.src} to rank {self.stream.dst}"


class _Sender(_End):
    def __init__(self, transport: Transport, stream: Stream, number: int) -> None:
        super().__init__(transport, stream, number)
        self._data = np.zeros(stream.chunk, np.uint8)
        for _ in range(WINDOW):
            self._send()

    def _send(self) -> None:
        answer = np.empty(1, np.uint8)
        self.pending.append((self.transport.irecv(self.stream.dst, 2 * self.number + 1, answer), answer))
        self.sent.append(self.transport.isend(self.stream.dst, 2 * self.number, self._data))

    def advance(self) -> None:
        if self._take()[0] == _MORE:
            self._send()


class _Receiver(_End):
    def __init__(self, transport: Transport, stream: Stream, number: int, seconds: float) -> None:
        super().__init__(transport, stream, number)
        self._seconds = seconds
        self._data = np.empty(stream.chunk, np.uint8)  # nobody reads it, so all chunks may go there
        self._began = self._ended = float("nan")
        self._count = 0
        self._points: list[tuple[float, int]] = []
        for _ in range(WINDOW):
            self._post()

    def _post(self) -> None:
        self.pending.append((self.transport.irecv(self.stream.src, 2 * self.number, self._data), self._data))

    def advance(self) -> None:
        self._take()
        now = time.monotonic()
        self._count += 1
        if self._count == 1:
            self._began = self._ended = now
        more = now - self._began < self._seconds
        if more:
            self._post()
            self._ended = now
        word = np.array([_MORE if more else 0], np.uint8)
        self.sent.append(self.transport.isend(self.stream.src, 2 * self.number + 1, word))

    def caught_up(self) -> None:
        self._points.append((time.monotonic(), self._count))

    def arrivals(self) -> Arrivals:
        step = 1 + len(self._points) // _POINTS
        times, counts = zip(*self._points[::-1][::step][::-1], strict=True)  # the last one counts where there are few
        return Arrivals(times, counts, self._ended)


def steady_rates(seen: Sequence[Arrivals]) -> list[float] | None:
    """Chunks per second of each of several streams while all of them ran, or None if they hardly ever did, or a receiver hardly ran.

    That time begins when the last stream has begun, plus a share of the time for windows to grow, and ends when the first ends; so
    each rate is what a stream gets next to all others. All times must be of one clock.
    """
    begin, end = max(one.times[0] for one in seen), min(one.ends for one in seen)
    longest = max(one.ends - one.times[0] for one in seen)
    if end - begin < _TOGETHER * longest:
        return None
    rates = [_slope(one, begin + _SETTLE * (end - begin), end) for one in seen]
    return None if None in rates else [rate for rate in rates if rate is not None]


def _slope(seen: Arrivals, begin: float, end: float) -> float | None:
    """Chunks per second between two times: the median slope between points that are far apart. A receiver that was not given the
    processor for a while finds several chunks at once, and single points are off; None if it was hardly ever given it."""
    times, counts = np.asarray(seen.times), np.asarray(seen.counts, float)
    inside = np.flatnonzero((times >= begin) & (times <= end))
    t, k = times[inside], counts[inside]
    if np.diff(t, prepend=begin, append=end).max() > _BLIND * (end - begin):
        return None
    apart = t[None, :] - t[:, None]
    far = apart >= apart[0, -1] / 2
    return float(np.median((k[None, :] - k[:, None])[far] / apart[far]))


def least_rate(seen: Arrivals, seconds: float) -> float:
    """Chunks per second on the whole, ``seconds`` at least: no more than the stream got."""
    return (seen.counts[-1] - 1) / max(seen.times[-1] - seen.times[0], seconds)


def ping(transport: Transport, peer: int, leads: bool, count: int, timeout: float) -> tuple[float, float]:
    """The least of ``count`` times that 8 bytes took there and back, halved, and by how much the peer's monotonic clock is ahead:
    seconds, on the rank that ``leads``. Both ranks call it."""
    word, answer = np.zeros(8, np.uint8), np.empty(8, np.uint8)
    best, ahead = float("inf"), 0.0
    for _ in range(count):
        began = time.monotonic()
        receive = transport.irecv(peer, _PING_TAG, answer)
        if leads:
            transport.wait([transport.isend(peer, _PING_TAG, word), receive], timeout)
            took = time.monotonic() - began
            if took < best:
                best, ahead = took, float(answer.view(np.float64)[0]) - (began + took / 2)
        else:
            transport.wait([receive], timeout)
            word.view(np.float64)[0] = time.monotonic()
            transport.wait([transport.isend(peer, _PING_TAG, word)], timeout)
    return best / 2, ahead
