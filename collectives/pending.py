"""The result of a call that may still be running, and the thread that runs such calls in order."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

from topoccl.collectives.errors import CollectiveTimeout


class Pending:
    """A call that was begun. :meth:`wait` returns its result or raises its error, as often as it is asked."""

    __slots__ = ("_callbacks", "_event", "_lock", "error", "result")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Pending], None]] = []
        self.result: Any = None
        self.error: BaseException | None = None

    def done(self) -> bool:
        """Whether the call has ended, well or not."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> Any:
        """Waits at most ``timeout`` seconds for the end of the call.

        Raises:
            CollectiveTimeout: the call is still running; it goes on.
            BaseException: what the call raised.
        """
        if not self._event.wait(timeout):
            raise CollectiveTimeout(f"the call is still running after {timeout:g} s")
        if self.error is not None:
            raise self.error
        return self.result

    def add_done_callback(self, callback: Callable[[Pending], None]) -> None:
        """Calls ``callback(self)`` when the call ends, on the thread that ends it; at once if it has ended."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def finish(self, result: Any = None, error: BaseException | None = None, retire: Callable[[], None] | None = None) -> None:
        """Ends the call; ``retire`` is called when all of it is over: after the callbacks, but before anyone's wait returns if
        there are none."""
        with self._lock:
            self.result, self.error = result, error
            callbacks, self._callbacks = self._callbacks, []
            if retire is not None and not callbacks:
                retire()
            self._event.set()
        for callback in callbacks:
            try:
                callback(self)
            except Exception:  # nobody waits for it, and the calls behind this one must go on
                traceback.print_exc()
        if retire is not None and callbacks:
            retire()


class Worker:
    """Runs the calls of one group one after the other.

    A call on an idle group runs in the caller's thread; asynchronous calls, and those that come while such are open, run in
    order on a thread of the worker. Calls made inside a call or by a callback of one belong to it and run at once (what makes them must
    not be halfway through a collective: see :meth:`Group.begin`).

    Attributes:
        turn: held while a call runs. Who finds none open and no owner may take it, become the owner and make a call.
        open: how many calls were submitted and have not ended.
        owner: the thread whose call may make others, which run at once; 0 for none.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn = threading.Lock()
        self.owner = 0
        self._wake = threading.Condition(threading.Lock())
        self._queue: deque[tuple[Callable[[], Any], Pending]] = deque()
        self.open = 0
        self._thread: threading.Thread | None = None
        self._closing = False

    @property
    def busy(self) -> bool:
        """Whether a call runs or waits for its turn."""
        return bool(self.open or self.owner)

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        """Runs ``call(*args)`` after all earlier ones and returns its result."""
        me = get_ident()
        if self.owner == me:
            return call(*args)
        if self.open:
            return self.submit(partial(call, *args)).wait()
        with self.turn:
            self.owner = me
            try:
                return call(*args)
            finally:
                self.owner = 0

    def submit(self, call: Callable[[], Any]) -> Pending:
        """Begins ``call`` after all earlier ones."""
        pending = Pending()
        if self.owner == get_ident():
            self._carry_out(call, pending, None)
            return pending
        with self._wake:
            if self._closing:
                raise RuntimeError(f"{self.name} is closed")
            self.open += 1
            self._queue.append((call, pending))
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name=self.name, daemon=True)
                self._thread.start()
            self._wake.notify()
        return pending

    def _loop(self) -> None:
        me = get_ident()
        while True:
            with self._wake:
                while not self._queue:
                    if self._closing:
                        return
                    self._wake.wait()
                call, pending = self._queue.popleft()
            with self.turn:
                self.owner = me
                self._carry_out(call, pending, self._retire)
                self.owner = 0
            del call, pending

    def _carry_out(self, call: Callable[[], Any], pending: Pending, retire: Callable[[], None] | None) -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:  # kept for whoever waits
            error = raised
        pending.finish(result, error, retire)

    def _retire(self) -> None:
        with self._wake:
            self.open -= 1

    def close(self, timeout: float) -> bool:
        """Lets open calls end, then stops the thread; False if they did not end in time."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()
