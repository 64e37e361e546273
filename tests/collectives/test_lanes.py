"""Lanes side by side: what is begun when, and how a run ends that cannot go on."""

from __future__ import annotations

import numpy as np
import pytest

from topoccl.collectives.errors import CollectiveTimeout, TransportError
from topoccl.collectives.executor.lanes import Flow, LaneRun
from topoccl.collectives.executor.program import Item, NetMessage
from topoccl.collectives.executor.run import Runner
from topoccl.collectives.transports.base import Request


class Wire:
    """Stands in for a transport: notes what is begun, and ends the messages ``through`` names, one at each look."""

    def __init__(self, through: list[str], broken: str = "") -> None:
        self.through = through
        self.broken = broken
        self.log: list[str] = []
        self.requests: dict[str, Request] = {}

    def _begin(self, name: str) -> Request:
        self.log.append(name)
        request = self.requests[name] = Request()
        if name == self.broken:
            request.error = TransportError("the peer has died")
            request.done = True
        return request

    def isend(self, peer: int, tag: int, data: np.ndarray, rail: int = 0, share: float = 0.0) -> Request:
        return self._begin(f"to {peer}: {len(data)}")

    def irecv(self, peer: int, tag: int, data: np.ndarray, rail: int = 0) -> Request:
        return self._begin(f"from {peer}: {len(data)}")

    def progress(self, requests: list[Request], timeout: float) -> None:
        if self.through:
            name = self.through.pop(0)
            self.log.append(f"{name} is through")
            self.requests[name].done = True


def run(lanes: list[list[Item]], wire: Wire, timeout: float = 5.0) -> list[str]:
    runner = Runner(wire, None)  # type: ignore[arg-type]
    bufs = (np.zeros(8, np.int32), np.zeros(8, np.int32), np.zeros(8, np.int32))
    LaneRun(runner, Flow(lanes, 4), {}, bufs, 0, timeout, lambda: "the call").run()
    return wire.log


def test_receives_are_posted_ahead_and_sends_wait_for_what_they_send() -> None:
    done: list[str] = []
    receives = [
        Item(
            segment,
            0,
            act=lambda _, s=segment: done.append(f"sum {s}"),
            receives=(NetMessage(1, 0, 2, 0, segment + 1),),
            ahead=min(segment, 1),
        )
        for segment in range(3)
    ]
    sends = [Item(segment, 1, deps=((0, segment),), sends=(NetMessage(2, 0, 1, 0, segment + 1),)) for segment in range(3)]
    wire = Wire(["from 1: 4", "from 1: 8", "to 2: 4", "from 1: 12", "to 2: 8", "to 2: 12"])
    assert run([receives, sends], wire) == [
        *("from 1: 4", "from 1: 8"),  # the third takes the place of the first
        *("from 1: 4 is through", "to 2: 4", "from 1: 12"),
        *("from 1: 8 is through", "to 2: 8", "to 2: 4 is through"),
        *("from 1: 12 is through", "to 2: 12", "to 2: 8 is through", "to 2: 12 is through"),
    ]
    assert done == ["sum 0", "sum 1", "sum 2"]


def test_nothing_comes_to_where_a_send_still_reads() -> None:
    first = Item(0, 0, sends=(NetMessage(2, 0, 1, 0, 1), NetMessage(3, 0, 1, 0, 1)))
    over = Item(0, 1, receives=(NetMessage(1, 0, 1, 0, 1),), awaits=(first,), staged=False)
    wire = Wire(["to 3: 4", "to 2: 4", "from 1: 4"])
    assert run([[first], [over]], wire) == [
        *("to 2: 4", "to 3: 4", "to 3: 4 is through", "to 2: 4 is through"),
        *("from 1: 4", "from 1: 4 is through"),
    ]


@pytest.mark.parametrize("broken", ["to 2: 4", "from 1: 4"])
def test_a_message_that_fails_at_once_ends_the_run(broken: str) -> None:
    lane = [Item(0, 0, sends=(NetMessage(2, 0, 1, 0, 1),)), Item(0, 1, receives=(NetMessage(1, 0, 2, 0, 1),))]
    with pytest.raises(TransportError, match="the call failed: the peer has died"):
        run([lane], Wire([], broken))


def test_a_timeout_names_who_is_waited_for() -> None:
    first = Item(0, 0, sends=(NetMessage(2, 0, 1, 0, 1),))
    lanes = [
        [first],
        [Item(0, 1, awaits=(first,))],
        [Item(0, 2, receives=(NetMessage(1, 0, 2, 0, 1),)), Item(0, 3, receives=(NetMessage(4, 0, 2, 0, 2),))],
    ]
    with pytest.raises(CollectiveTimeout, match=r"did not end within its timeout of 0.02 s: waiting for ranks 1, 2$"):
        run(lanes, Wire([]), timeout=0.02)
