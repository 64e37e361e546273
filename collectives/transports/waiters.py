"""Threads for waits that cannot be polled, nor be told to end."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

Stream = tuple[bool, int, int, int]  # whether it is for sends, peer, tag, and a number that keeps sizes apart


class Waiters:
    """Makes blocking calls on threads of its own: in order within a stream, streams side by side. A thread is started when all are
    busy, and kept for later streams."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._wake = threading.Semaphore(0)
        self._streams: dict[Stream, deque[Callable[[], None]]] = {}
        self._ready: deque[Stream | None] = deque()  # streams that no thread serves yet; None ends a thread
        self._idle = 0
        self._threads: list[threading.Thread] = []

    def add(self, stream: Stream, wait: Callable[[], None]) -> None:
        """Has ``wait`` called, which must not raise, after what was added to ``stream`` before."""
        with self._changed:
            queue = self._streams.get(stream)
            if queue is not None:
                queue.append(wait)
                return
            self._streams[stream] = deque([wait])
            self._ready.append(stream)
            if self._idle:
                self._idle -= 1
            else:
                thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._wake.release()

    @property
    def busy(self) -> bool:
        return bool(self._streams)

    def settle(self, seconds: float, concerned: Callable[[Stream], bool]) -> bool:
        """Waits until no stream that is ``concerned`` is busy; False when ``seconds`` were not enough."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(map(concerned, self._streams)), seconds)

    def stop(self, seconds: float) -> None:
        """Ends the idle threads; those that are busy are left behind, and end with their wait or with the process."""
        deadline = time.monotonic() + seconds
        with self._changed:
            threads = self._threads if not self._streams else []
            self._ready.extend([None] * len(self._threads))
            self._threads = []
        for _ in range(len(self._ready)):
            self._wake.release()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            with self._changed:
                stream = self._ready.popleft()
                if stream is None:
                    return
                queue = self._streams[stream]
            more = True
            while more:
                queue[0]()
                with self._changed:
                    queue.popleft()
                    more = bool(queue)
                    if not more:
                        del self._streams[stream]
                        self._idle += 1
                        self._changed.notify_all()
