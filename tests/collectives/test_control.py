"""What a rank makes of what it sees of another that has gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from topoccl.collectives.control.control import Control
from topoccl.collectives.control.failure import Failure
from topoccl.collectives.errors import CollectiveTimeout, TransportError
from topoccl.collectives.transports.memory import MemoryHub

CALL = 5


class Seen:
    """A board on which rank 1 can be looked at once in the present call, and has ended ``ends`` when what became of it is looked up."""

    words = (1,)
    alarm = 0
    others = (1,)

    def __init__(self, fate: str, ends: int) -> None:
        self._fate, self._ends, self._done = fate, ends, CALL - 1

    def differs(self, number: int, value: int) -> bool:
        return False

    def done(self, rank: int) -> int:
        return self._done

    def _is(self, fate: str) -> bool:
        if self._fate == fate:
            self._done = self._ends
        return self._fate == fate

    def left(self, rank: int) -> bool:
        return self._is("left")

    def alive(self, rank: int) -> bool:
        return not self._is("died")

    def failure(self, rank: int) -> Failure | None:
        return Failure.of(rank, CollectiveTimeout("of the next call"), "over") if self._is("failed") else None

    def pid(self, rank: int) -> int:
        return 1

    def last(self, rank: int) -> int:
        return CALL


def look(fate: str, ends: int) -> None:
    alone: Any = SimpleNamespace(arena=None, member=(0,), together=((0,),), load=lambda rank: 1)
    control = Control(MemoryHub(1).transport(0), alone, lambda: "the call")
    seen: Any = Seen(fate, ends)
    control.board, control.number = seen, CALL
    control.check()


@pytest.mark.parametrize("fate", ["left", "died", "failed"])
def test_a_rank_that_ends_the_call_and_goes_while_it_is_looked_at_is_not_missed(fate: str) -> None:
    look(fate, CALL)


@pytest.mark.parametrize(
    ("fate", "error", "text"),
    [
        ("left", TransportError, "rank 1 has left the group in this call"),
        ("died", TransportError, "rank 1 .process 1. has died in this call"),
        ("failed", CollectiveTimeout, "over"),
    ],
)
def test_a_rank_that_goes_in_the_call_is(fate: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        look(fate, CALL - 1)
