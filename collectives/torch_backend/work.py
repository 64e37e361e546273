"""What a call returns: a ``torch.distributed.Work`` that is over, or that waits for a call or a message under way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.futures import Future

from topoccl.collectives.torch_backend.compat import Work, not_compiled, seconds

if TYPE_CHECKING:
    from topoccl.collectives.messages import Message
    from topoccl.collectives.pending import Pending


@not_compiled
class Done(Work):
    """A call that is over. ``outputs`` is what :meth:`result` and the future give.

    Works are made by :func:`done` and its siblings: an ``__init__`` here would triple the time that making one takes.
    """

    __slots__ = ("_future", "outputs")
    _future: Any
    outputs: Any

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits; raises what the call raised."""
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        return None

    def result(self) -> Any:
        self.wait()
        return self.outputs

    def source_rank(self) -> int:
        raise RuntimeError("only a receive has a source")

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Any:
        if not hasattr(self, "_future"):
            self._future = self._make_future()
        return self._future

    def _make_future(self) -> Any:
        future: Any = Future()
        future.set_result(self.outputs)
        return future


class _Open(Done):
    """Something under way."""

    __slots__ = ()

    def _when_over(self, callback: Callable[[], None]) -> None:
        raise NotImplementedError

    def _make_future(self) -> Any:
        # An error set with Future.set_exception is taken for a value by torch's C++ code; one raised by a then-function is not.
        over: Any = Future()

        def unwrap(_: Any) -> Any:
            self.wait()
            return self.outputs

        future = over.then(unwrap)
        self._when_over(lambda: over.set_result(None))
        return future


@not_compiled
class Call(_Open):
    """A call that runs, or waits for its turn, on the worker of its group."""

    __slots__ = ("_pending",)
    _pending: Pending

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._pending.wait(seconds(timeout))
        return True

    def is_completed(self) -> bool:
        return self._pending.done()

    def exception(self) -> BaseException | None:
        return self._pending.error

    def _when_over(self, callback: Callable[[], None]) -> None:
        self._pending.add_done_callback(lambda _: callback())


@not_compiled
class Mail(_Open):
    """A message under way."""

    __slots__ = ("_message",)
    _message: Message

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._message.wait(seconds(timeout))
        return True

    def is_completed(self) -> bool:
        return self._message.done()

    def exception(self) -> BaseException | None:
        return self._message.error

    def source_rank(self) -> int:
        return self._message.source

    def _when_over(self, callback: Callable[[], None]) -> None:
        # A transport tells nobody that a message has ended: someone has to ask. Futures of messages are rare.
        def ask() -> None:
            with contextlib.suppress(Exception):  # raised again by the future
                self._message.wait()
            callback()

        threading.Thread(target=ask, name="topoccl message", daemon=True).start()


@not_compiled
class All(_Open):
    """Several works as one, for calls made inside a coalescing manager."""

    __slots__ = ("_works",)
    _works: list[Done]

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def _when_over(self, callback: Callable[[], None]) -> None:
        left = [len(self._works)]
        lock = threading.Lock()

        def one(_: Any = None) -> None:
            with lock:
                left[0] -= 1
                last = left[0] == 0
            if last:
                callback()

        if not self._works:
            callback()
        for work in self._works:
            work._when_over(one) if isinstance(work, _Open) else one()


def done(outputs: Any) -> Done:
    """A work that is over."""
    work = Done()
    work.outputs = outputs
    return work


def call(pending: Pending, outputs: Any) -> Call:
    """A work for a call that was begun."""
    work = Call()
    work.outputs = outputs
    work._pending = pending
    return work


def mail(message: Any, outputs: Any) -> Mail:
    """A work for a message that was begun."""
    work = Mail()
    work.outputs = outputs
    work._message = message
    return work


def together(works: list[Done]) -> All:
    """One work for several."""
    work = All()
    work.outputs = [out for one in works for out in one.outputs]
    work._works = works
    return work
