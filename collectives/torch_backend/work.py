"""What a call returns: a ``torch.distributed.Work`` that is over, or that waits for a call or a message under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.futures import Future

from topoccl.collectives.torch_backend.compat import Work, seconds

if TYPE_CHECKING:
    from topoccl.collectives.messages import Message
    from topoccl.collectives.pending import Pending


class Done(Work):  # type: ignore[misc]
    """A call that is over. ``outputs`` is what :meth:`result` and the future give."""

    __slots__ = ("_future", "outputs")

    def __init__(self, outputs: Any) -> None:
        Work.__init__(self)
        self.outputs = outputs
        self._future: Any = None

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
        if self._future is None:
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


class Call(_Open):
    """A call that runs, or waits for its turn, on the worker of its group."""

    __slots__ = ("_pending",)

    def __init__(self, pending: Pending, outputs: Any) -> None:
        Done.__init__(self, outputs)
        self._pending = pending

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._pending.wait(seconds(timeout))
        return True

    def is_completed(self) -> bool:
        return self._pending.done()

    def exception(self) -> BaseException | None:
        return self._pending.error

    def _when_over(self, callback: Callable[[], None]) -> None:
        self._pending.add_done_callback(lambda _: callback())


class Mail(_Open):
    """A message under way."""

    __slots__ = ("_message",)

    def __init__(self, message: Message, outputs: Any) -> None:
        Done.__init__(self, outputs)
        self._message = message

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
            try:
                self._message.wait()
            except Exception:
                pass  # raised again by the future
            callback()

        threading.Thread(target=ask, name="topoccl message", daemon=True).start()


class All(_Open):
    """Several works as one, for calls made inside a coalescing manager."""

    __slots__ = ("_works",)

    def __init__(self, works: list[Done]) -> None:
        Done.__init__(self, [out for work in works for out in (work.outputs if isinstance(work.outputs, list) else [work.outputs])])
        self._works = works

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
