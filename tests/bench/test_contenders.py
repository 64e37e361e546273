"""The limit that contenders are measured by."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from topoccl.bench.suite.contenders import CopyContender


@pytest.mark.parametrize(("ranks", "turns"), [(2, 0), (3, 4)])
def test_copies_take_turns_where_ranks_share_cores(monkeypatch: pytest.MonkeyPatch, ranks: int, turns: int) -> None:
    taken = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_yield", lambda: taken.append(1))
    copy: Callable[[], None] = CopyContender(0, ranks).prepare("all_gather", 4096)
    for _ in range(4):
        copy()
    assert len(taken) == turns
