"""What torch's profiler sees of calls. Nothing here runs while no profiler does.

A call is an event ``topoccl:NAME`` with the shapes of its tensors; inside it, when the call is over, a short event
``topoccl:NAME ALGORITHM`` says how it was done. For an asynchronous call that event lies in another, ``topoccl:NAME wait``, which
is the time that someone has waited for it. Torch records nothing on the thread that runs these calls, as no profiler was started
there; and an event that ended there after the profiler had been stopped would crash it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from topoccl.collectives.torch_backend.compat import not_compiled, profiling, record_function
from topoccl.collectives.torch_backend.work import Call, Done, Mail, done

if TYPE_CHECKING:
    from topoccl.collectives.communicator import Communicator


def traced(
    communicator: Communicator, name: str, tensors: Sequence[torch.Tensor], outputs: Any, run: Callable[[], Any], *, async_op: bool
) -> Done:
    """The work of a call, with events of it.

    Args:
        communicator: which ``run`` calls.
        name: the collective's.
        tensors: its inputs and outputs.
        outputs: of the work.
        run: makes the call and waits for it.
        async_op: whether the work is to be returned at once.
    """
    nbytes = max((tensor.numel() * tensor.element_size() for tensor in tensors), default=0)
    with record_function(f"topoccl:{name}", list(tensors), {"group": communicator.name, "ranks": communicator.size, "bytes": nbytes}):
        if not async_op:
            communicator.together(run)
            _tell(name, communicator.last_choice)
            return done(outputs)

        def call() -> Any:
            run()
            return communicator.last_choice

        begun = TracedCall()
        begun.outputs, begun._pending, begun._name = outputs, communicator.together(call, async_op=True), name
        return begun


def traced_message(name: str, tensor: torch.Tensor, peer: int | None, begin: Callable[[], Any]) -> Done:
    """The work of a message that ``begin`` begins, with events of it."""
    facts = {"peer": -1 if peer is None else peer, "bytes": tensor.numel() * tensor.element_size()}
    with record_function(f"topoccl:{name}", [tensor], facts):
        begun = TracedMail()
        begun.outputs, begun._message, begun._name = [tensor], begin(), name
        return begun


@not_compiled
class TracedCall(Call):
    """An asynchronous call, which returns the choice behind it."""

    __slots__ = ("_name",)
    _name: str

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not profiling():  # as on the thread that runs the call
            return super().wait(timeout)
        with record_function(f"topoccl:{self._name} wait"):
            super().wait(timeout)
            _tell(self._name, self._pending.result)
        return True


@not_compiled
class TracedMail(Mail):
    """A message."""

    __slots__ = ("_name",)
    _name: str

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not profiling():
            return super().wait(timeout)
        with record_function(f"topoccl:{self._name} wait"):
            return super().wait(timeout)


def _tell(name: str, choice: Any) -> None:
    if choice is not None:
        with record_function(f"topoccl:{name} {choice.schedule.label}", [], {"predicted_us": choice.seconds * 1e6}):
            pass
