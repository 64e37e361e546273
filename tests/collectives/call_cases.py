"""Calls that differ between ranks, and other ways in which a group fails, as functions that all ranks of a world call at once.

Run over threads by test_calls_in_step.py, and as a program by the ranks of Gloo and MPI: ``call_cases.py HOSTS [CASE...]``, where HOSTS
has a letter for each rank's host. Each case takes a group of its own.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from case_runs import Case, Cases

from topoccl.collectives.communicator import Communicator
from topoccl.collectives.errors import CollectiveTimeout, MismatchError, TopocclError, TransportError

LIMIT = 20.0  # seconds that a group's calls may take; what is noticed at once takes far less
SOON = 10.0

CASES = Cases(LIMIT)
case = CASES.case


def floats(count: int, dtype: type = np.float32) -> np.ndarray:
    return np.zeros(count, dtype)


# Each pair: what rank 0 calls and what the others call, with the texts by which they are named.
Call = Callable[[Communicator], object]
PAIRS: dict[str, tuple[Call, str, Call, str]] = {
    "count": (
        lambda c: c.all_reduce(floats(4)), "all_reduce(float32, 4, SUM)",
        lambda c: c.all_reduce(floats(6)), "all_reduce(float32, 6, SUM)",
    ),
    "small_and_large": (
        lambda c: c.all_reduce(floats(256)), "all_reduce(float32, 256, SUM)",
        lambda c: c.all_reduce(floats(1 << 24)), "all_reduce(float32, 16777216, SUM)",
    ),
    "large_and_small": (
        lambda c: c.all_gather(floats(1 << 20), floats(c.size << 20)), "all_gather(float32, 1048576)",
        lambda c: c.all_gather(floats(100_000), floats(c.size * 100_000)), "all_gather(float32, 100000)",
    ),
    "dtype_of_one_size": (
        lambda c: c.all_reduce(floats(5)), "all_reduce(float32, 5, SUM)",
        lambda c: c.all_reduce(floats(5, np.int32)), "all_reduce(int32, 5, SUM)",
    ),
    "dtype": (
        lambda c: c.all_reduce(floats(5)), "all_reduce(float32, 5, SUM)",
        lambda c: c.all_reduce(floats(5, np.float64)), "all_reduce(float64, 5, SUM)",
    ),
    "op": (
        lambda c: c.all_reduce(floats(5), op="max"), "all_reduce(float32, 5, MAX)",
        lambda c: c.all_reduce(floats(5), op="avg"), "all_reduce(float32, 5, AVG)",
    ),
    "root": (
        lambda c: c.broadcast(floats(5), 0), "broadcast(float32, 5, root 0)",
        lambda c: c.broadcast(floats(5), 1), "broadcast(float32, 5, root 1)",
    ),
    "collective": (
        lambda c: c.barrier(), "barrier()",
        lambda c: c.reduce(floats(5), root=0), "reduce(float32, 5, SUM, root 0)",
    ),
    "even_and_with_counts": (
        lambda c: c.all_to_all(floats(2 * c.size), floats(2 * c.size)), "all_to_all(float32, 2)",
        lambda c: c.all_to_all(floats(2 * c.size), floats(2 * c.size), [2] * c.size, [2] * c.size), "all_to_all(float32) with counts",
    ),
    "asynchronous": (
        lambda c: c.all_reduce(floats(4), async_op=True).wait(), "all_reduce(float32, 4, SUM)",
        lambda c: c.together(lambda: c.all_reduce(floats(6)), async_op=True).wait(), "all_reduce(float32, 6, SUM)",
    ),
}  # fmt: skip


def is_unusable(c: Communicator) -> None:
    with pytest.raises(TopocclError, match="cannot be used any more"):
        c.barrier()


def differing(name: str, known: bool) -> Case:
    """A pair, made before by all ranks alike (so that plans are there, and data moves), or not."""
    mine, my_text, others, others_text = PAIRS[name]

    def run(c: Communicator) -> None:
        if known:
            mine(c)
            others(c)
        begun = time.monotonic()
        with pytest.raises(MismatchError) as raised:
            (mine if c.rank == 0 else others)(c)
        assert time.monotonic() - begun < SOON
        who = "rank 1 calls" if c.size == 2 else f"ranks 1-{c.size - 1} call"
        assert f": rank 0 calls {my_text}, {who} {others_text}; outputs may be partly written" in str(raised.value)
        is_unusable(c)

    return run


for pair in PAIRS:
    CASES[f"{pair}_differs"] = differing(pair, known=False)
    CASES[f"{pair}_differs_though_known"] = differing(pair, known=True)


@case
def counts_that_do_not_fit(c: Communicator) -> None:
    """Nothing was moved, so the group goes on."""
    sending = [1] * c.size
    receiving = [2 if c.rank == 0 and peer == 1 else 1 for peer in range(c.size)]
    with pytest.raises(MismatchError, match="rank 1 sends 1 elements to rank 0, which expects 2"):
        c.all_to_all(floats(sum(sending)), floats(sum(receiving)), sending, receiving)
    c.all_reduce(data := np.ones(3))
    assert (data == c.size).all()


@case
def one_call_more(c: Communicator) -> None:
    c.barrier()
    with pytest.raises(MismatchError, match=r"\(call 2\): rank 0 calls all_reduce\(float32, 3, SUM\), ranks? .* calls? barrier\(\);"):
        c.all_reduce(floats(3)) if c.rank == 0 else c.barrier()
    is_unusable(c)


@case
def one_call_more_than_a_rank_that_leaves(c: Communicator) -> None:
    c.all_reduce(floats(7))
    begun = time.monotonic()
    if c.rank == 0:
        with pytest.raises(TransportError, match=r"has left the group after call 1, all_reduce\(float32, 7, SUM\)"):
            c.barrier()
        assert time.monotonic() - begun < SOON
    else:
        c.close()


@case
def an_absent_rank(c: Communicator) -> None:
    last = c.size - 1
    c.broadcast(floats(3))
    if c.rank == last:
        time.sleep(1.0)
        return
    with pytest.raises(CollectiveTimeout) as raised:
        c.all_reduce(floats(3), timeout=0.5)
    text = str(raised.value)
    assert f"all_reduce(float32, 3, SUM) (call 2 of group {c.name}, rank {c.rank} of {c.size})" in text
    assert f"rank {last} has not called it (its last call was 1, broadcast(float32, 3, root 0))" in text
    assert f"{'rank 0 is' if c.size == 2 else f'ranks 0-{last - 1} are'} in it" in text
    is_unusable(c)


@case
def a_rank_that_raises(c: Communicator) -> None:
    """The others raise as well, and say who it was."""
    c.all_reduce(floats(3))

    def broken(*_: object) -> None:
        raise KeyError("no such thing")

    begun = time.monotonic()
    if c.rank == 1:
        c._group._runner.run = broken  # type: ignore[method-assign]
        with pytest.raises(KeyError):
            c.all_reduce(floats(3))
    else:
        with pytest.raises(TopocclError, match="rank 1 has given up: KeyError: 'no such thing'"):
            c.all_reduce(floats(3))
    assert time.monotonic() - begun < SOON
    is_unusable(c)


@case
def aborting(c: Communicator) -> None:
    """A call in flight ends on the rank that aborts its group, and on the others."""
    for used_before in (False, True):
        group = c.subgroup(range(c.size), 10 + used_before, "inner")
        if used_before:
            group.all_reduce(floats(3))
        begun = time.monotonic()
        if c.rank == 0:
            threading.Timer(0.2, group.abort, ["enough"]).start()
            with pytest.raises(TopocclError, match="group inner: enough"):
                group.all_reduce(floats(3))
        elif c.rank < c.size - 1:
            with pytest.raises(TopocclError, match="rank 0 has given up: group inner: enough"):
                group.all_reduce(floats(3))
        assert time.monotonic() - begun < SOON
        c.barrier()
        group.close()


@case
def short_receives(c: Communicator) -> None:
    """Messages are no calls that are compared, but one of another length than expected is an error, and the next ones arrive."""
    lengths = [(6, 4), (4, 6), (70_000, 4), (4, 70_000), (61_440, 122_880), (122_880, 61_440), (999_999, 300_000), (300_000, 999_999)]
    for tag, (sent, expected) in enumerate(lengths):
        if c.rank == 0:
            c.send(np.zeros(sent, np.uint8), 1, tag, async_op=True)
        elif c.rank == 1:
            with pytest.raises(TransportError, match=rf"recv from rank 0 with tag {tag} failed: .*message of {sent} bytes"):
                c.recv(np.zeros(expected, np.uint8), 0, tag)
    c.barrier()
    if c.rank == 0:
        c.send(np.full(200_000, 7, np.uint8), 1, 99)
    elif c.rank == 1:
        c.recv(data := np.zeros(200_000, np.uint8), 0, 99)
        assert (data == 7).all()
    c.barrier()


if __name__ == "__main__":
    sys.exit(CASES.main(sys.argv[1], sys.argv[2:]))
