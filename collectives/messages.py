"""Point-to-point messages of users: handed straight to the transport, with tags of their own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from topoccl.collectives.calls import below, contiguous, landing, store
from topoccl.collectives.errors import CollectiveTimeout, ConfigError, TransportError
from topoccl.collectives.executor.dtypes import Array, DType, dtype_of, flat, is_contiguous
from topoccl.collectives.transports.base import USER_TAGS

if TYPE_CHECKING:
    from topoccl.collectives.transports.base import Request, Transport

ROLL_CALL_TAG = USER_TAGS.stop


class Message:
    """A message under way. ``source`` is the sender's rank once a receive is done."""

    __slots__ = ("_data", "_dtype", "_request", "_target", "_timeout", "_transport", "_what")

    def __init__(self, transport: Transport, request: Request, data: Array, target: Any, dtype: DType, timeout: float, what: str) -> None:
        self._transport = transport
        self._request = request
        self._data = data  # keeps the bytes alive until the transport is done with them
        self._target = target
        self._dtype = dtype
        self._timeout = timeout
        self._what = what

    @property
    def source(self) -> int:
        return self._request.source

    def done(self) -> bool:
        """Whether the message has been sent or has arrived, or failed; makes progress."""
        if not self._request.done:
            self._transport.progress([self._request], 0.0)
        if self._request.done:
            self._finish()
        return self._request.done

    @property
    def error(self) -> BaseException | None:
        return self._request.error

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the message.

        Raises:
            CollectiveTimeout: it did not come in time.
            TransportError: it never will.

        When the message's own timeout is over, its bytes are not read by others any more where this can be helped, and the message
        has failed then.
        """
        limit = self._timeout if timeout is None else timeout
        end = time.monotonic() + limit
        while not self._request.done:
            left = end - time.monotonic()
            if left <= 0:
                if timeout is None:
                    self.give_up()
                raise CollectiveTimeout(f"{self._what} did not end within its timeout of {limit:g} s")
            self._transport.progress([self._request], min(left, 1.0))
        if self._request.error is not None:
            raise TransportError(f"{self._what} failed: {self._request.error}") from self._request.error
        self._finish()

    def give_up(self) -> None:
        """Has nobody read the bytes of a send any more where this can be helped; it has failed then, unless it was over."""
        self._transport.give_up(self._request)

    def _finish(self) -> None:
        target, self._target = self._target, None
        if target is not None and self._request.error is None:
            store(target, self._data, self._dtype)


def _tag(tag: int) -> int:
    if not below(tag, len(USER_TAGS)):
        raise ConfigError(f"tag {tag!r} is out of range; known tags: 0 to {len(USER_TAGS) - 1}")
    return USER_TAGS.start + tag


def _peer(transport: Transport, peer: int) -> int:
    if not below(peer, transport.size):
        raise ConfigError(f"rank {peer!r} is not a rank of a group of {transport.size}")
    return peer


def begin_send(transport: Transport, buf: Any, peer: int, tag: int, timeout: float) -> Message:
    """Begins to send a tensor or array of any layout."""
    dtype = dtype_of(buf)
    data = flat(buf if is_contiguous(buf) else contiguous(buf), dtype)
    request = transport.isend(_peer(transport, peer), _tag(tag), data.view(np.uint8), share=1.0)
    return Message(transport, request, data, None, dtype, timeout, f"send to rank {peer} with tag {tag}")


def begin_recv(transport: Transport, buf: Any, peer: int | None, tag: int, timeout: float) -> Message:
    """Begins to receive into a tensor or array of any layout; ``peer`` None takes the next message with this tag from anyone."""
    dtype = dtype_of(buf)
    data, target = landing("recv", buf, dtype)
    request = transport.irecv(-1 if peer is None else _peer(transport, peer), _tag(tag), data.view(np.uint8))
    whom = "any rank" if peer is None else f"rank {peer}"
    return Message(transport, request, data, target, dtype, timeout, f"recv from {whom} with tag {tag}")
