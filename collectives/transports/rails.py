"""Gloo over several networks at once: a medium for each rail, bound to the rank's interface there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topoccl.collectives.transports.base import Request, Transport
from topoccl.collectives.transports.endpoint import Endpoint, Medium, Message
from topoccl.collectives.transports.gloo import GlooMedium, import_torch_distributed
from topoccl.collectives.transports.waiting import Arrivals

if TYPE_CHECKING:
    from torch.distributed import Store


def rails_transport(store: Store, rank: int, size: int, timeout: float, addresses: Sequence[str]) -> Transport:
    """As :func:`~topoccl.collectives.transports.gloo.gloo_transport`, with a local address for each rail, in one order on all ranks."""
    return Endpoint(_RailsMedium(store, rank, size, timeout, addresses))


class _RailsMedium(Medium):
    name = "gloo"
    max_group = GlooMedium.max_group

    def __init__(self, store: Store, rank: int, size: int, timeout: float, addresses: Sequence[str]) -> None:
        dist = import_torch_distributed()
        super().__init__()
        self.rank = rank
        self.size = size
        self.rails = len(addresses)
        self._arrivals = Arrivals()
        self._media: list[GlooMedium] = []
        try:
            for number, address in enumerate(addresses):
                own = dist.PrefixStore(f"rail{number}", store)
                self._media.append(GlooMedium(own, rank, size, timeout, address, self._arrivals))
        except BaseException:
            self.close()
            raise

    def begin(self, message: Message) -> None:
        self._media[message.rail].begin(message)

    def progress(self, requests: Sequence[Request], timeout: float) -> None:
        self._arrivals.wait(self._media, requests, timeout)

    def abandon(self, messages: Sequence[Message]) -> None:
        for number, medium in enumerate(self._media):
            medium.abandon([message for message in messages if message.rail == number])

    def close(self) -> None:
        for medium in self._media:
            medium.close()
