"""How long a wait keeps a core busy, on a clock that only moves when somebody looks, yields or sleeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from topoccl.collectives.executor import waiting
from topoccl.collectives.executor.waiting import LONGEST_NAP, Waiter

LOOK, YIELD = 1e-7, 2e-6  # seconds that they take


class Words:
    """Counters, one of which is set at a given time."""

    def __init__(self, clock: Clock, when: float) -> None:
        self.clock, self.when = clock, when

    def __getitem__(self, word: int) -> int:
        self.clock.pass_time(LOOK, busy=True)
        return int(self.clock.now >= self.when)


class Clock:
    def __init__(self) -> None:
        self.now = self.awake = self.longest = 0.0  # awake: since the last sleep

    def pass_time(self, seconds: float, *, busy: bool) -> None:
        self.now += seconds
        self.awake = self.awake + seconds if busy else 0.0
        self.longest = max(self.longest, self.awake)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pass_time(seconds, busy=False)

    def sched_yield(self) -> None:
        self.pass_time(YIELD, busy=True)


def waited(
    when: float, crowded: bool, monkeypatch: pytest.MonkeyPatch, check: Callable[[], None] = lambda: None, several: bool = False
) -> Clock:
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(waiting, "os", clock)
    Waiter(Words(clock, when), crowded, several).wait(0, 1, check)  # type: ignore[arg-type]
    return clock


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("when", [0.0, 1e-5, 5e-4, 3e-3, 1.0])
def test_no_core_is_busy_for_more_than_a_millisecond(when: float, crowded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = waited(when, crowded, monkeypatch)
    assert clock.longest < 1e-3
    assert when <= clock.now <= when + LONGEST_NAP + 1e-4


def test_short_waits_do_not_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited(8e-4, False, monkeypatch).now == pytest.approx(8e-4, abs=1e-5)


def test_who_watches_ends_a_long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        waited(10.0, True, monkeypatch, give_up)


def test_a_crowded_core_is_left_soon_to_who_waits_for_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = waited(1e-2, True, monkeypatch, several=True)
    assert clock.longest < 2e-4
    assert clock.now <= 1e-2 + LONGEST_NAP + 1e-4
    assert waited(8e-4, True, monkeypatch).now == pytest.approx(8e-4, abs=1e-5)
