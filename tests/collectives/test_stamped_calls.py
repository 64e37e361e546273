"""Short calls between hosts, whose own messages say which call they belong to: what they move, and whatever may differ or fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_calls_in_step import on_threads

from topoccl.collectives.communicator import Communicator
from topoccl.collectives.errors import CollectiveTimeout, MismatchError, TopocclError, TransportError
from topoccl.collectives.executor.stamped import Stamped
from topoccl.collectives.transports.base import PeerCounters, Transport
from topoccl.collectives.transports.sockets import TOKEN_BYTES, Listener
from topoccl.collectives.transports.tcp import tcp_transport

SOON = 10.0  # seconds in which what goes wrong is noticed
HOSTS = ["ab", "abc", "abcd", "aabb", "abbc"]
Call = Callable[[Communicator], object]


def ones(count: int, dtype: type = np.float32) -> np.ndarray:
    return np.ones(count, dtype)


SHORT: dict[str, Call] = {
    "all_reduce(float32, 4, SUM)": lambda c: c.all_reduce(ones(4)),
    "all_reduce(float32, 5, MAX)": lambda c: c.all_reduce(ones(5), op="max"),
    "all_gather(float32, 4)": lambda c: c.all_gather(ones(4), ones(4 * c.size)),
    "reduce_scatter(float32, 4, SUM)": lambda c: c.reduce_scatter(ones(4 * c.size), ones(4)),
    "all_to_all(float32, 4)": lambda c: c.all_to_all(ones(4 * c.size), ones(4 * c.size)),
    "barrier()": lambda c: c.barrier(),
}
OTHERS: dict[str, Call] = {
    "all_reduce(float32, 300000, SUM)": lambda c: c.all_reduce(ones(300_000)),
    "broadcast(float32, 4, root 1)": lambda c: c.broadcast(ones(4), 1),
    "gather(float32, 4, root 0)": lambda c: c.gather(ones(4), ones(4 * c.size)),
}


def over_sockets(hosts: str, work: Callable[[Communicator], object]) -> list[Any]:
    return on_threads(hosts, work, transport="tcp")


def in_groups(c: Communicator, names: list[str], work: Callable[[Communicator, str], None]) -> None:
    """``work`` with each of ``names``, in a group of its own."""
    for number, name in enumerate(names, 1):
        group = c.subgroup(range(c.size), number, name, 20.0)
        work(group, name)
        c.barrier()
        group.close()


@pytest.mark.parametrize("hosts", HOSTS)
def test_what_they_move(hosts: str) -> None:
    def work(c: Communicator) -> dict[int, PeerCounters]:
        for turn in range(6):
            for count in (1, 7, 2000):
                mine = np.arange(count, dtype=np.float64) + 100 * c.rank + turn
                everyone = np.stack([np.arange(count) + 100.0 * rank + turn for rank in range(c.size)])
                c.all_reduce(mine, out := np.empty(count))
                assert np.array_equal(out, everyone.sum(axis=0))
                c.all_gather(mine, out := np.empty(c.size * count))
                assert np.array_equal(out, everyone.reshape(-1))
                c.all_to_all(np.tile(mine, c.size), out)
                assert np.array_equal(out, everyone.reshape(-1))
                c.all_reduce(both := mine.copy())
                assert np.array_equal(both, everyone.sum(axis=0))
                c.broadcast(both := mine.copy(), turn % c.size)
                assert np.array_equal(both, everyone[turn % c.size])
            c.barrier()
        found: dict[int, PeerCounters] = c.stats()["transport"]
        return found

    results = over_sockets(hosts, work)
    assert any(row.sent_messages for row in results[0].values())
    for rank, counters in enumerate(results):
        for peer, row in counters.items():
            back = results[peer][rank]
            assert (row.sent_messages, row.sent_bytes) == (back.received_messages, back.received_bytes)


@pytest.mark.parametrize("hosts", HOSTS)
def test_their_own_messages_tell(hosts: str) -> None:
    def work(c: Communicator) -> dict[str, bool]:
        found = {}
        for name, call in SHORT.items():
            call(c)
            call(c)
            found[name] = c._group.record.last is not None and c._group.record.last.stamped
        return found

    results = over_sockets(hosts, work)
    assert all(found == results[0] for found in results)
    assert results[0] == dict.fromkeys(SHORT, True)


@pytest.mark.parametrize("hosts", ["ab", "abc", "aabb"])
def test_any_two_of_them(hosts: str) -> None:
    """All pairs, of which one rank makes the second; each was made before by all."""

    def work(c: Communicator) -> None:
        odd = c.size - 1

        def differ(group: Communicator, pair: str) -> None:
            names = pair.split("; ")
            calls = [{**SHORT, **OTHERS}[name] for name in names]
            for call in calls:
                call(group)
                call(group)
            begun = time.monotonic()
            with pytest.raises(MismatchError) as raised:
                calls[group.rank == odd](group)
            assert time.monotonic() - begun < SOON
            others = "rank 0 calls" if odd == 1 else f"ranks 0-{odd - 1} call"
            assert f"(call 5): {others} {names[0]}, rank {odd} calls {names[1]}; outputs may be" in str(raised.value)
            with pytest.raises(TopocclError, match="cannot be used any more"):
                group.barrier()

        short = [f"{first}; {second}" for first, second in combinations(SHORT, 2)]
        long = [f"{first}; {second}" for first in list(SHORT)[::3] for second in OTHERS]
        in_groups(c, short + long if hosts != "ab" else short, differ)

    over_sockets(hosts, work)


@pytest.mark.parametrize("hosts", ["ab", "abcd", "aabb"])
def test_a_rank_that_is_late_is_asked_for_and_forgotten(hosts: str) -> None:
    """What leaders ask while they wait is no part of later calls, of either kind."""

    def work(c: Communicator) -> None:
        for turn in range(2 * c.size):
            for call in SHORT.values():
                call(c)
            if turn % c.size == c.rank:
                time.sleep(0.2)
            c.all_reduce(data := ones(4))
            assert (data == c.size).all()
            c.all_gather(ones(4), out := np.zeros(4 * c.size, np.float32))
            assert out.all()
            c.broadcast(data, 0)
            c.all_reduce(ones(300_000))

    over_sockets(hosts, work)


@pytest.mark.parametrize("hosts", ["ab", "abc", "aabb"])
def test_a_rank_that_does_not_come(hosts: str) -> None:
    def work(c: Communicator) -> None:
        last = c.size - 1

        def miss(group: Communicator, name: str) -> None:
            group.broadcast(ones(3))
            SHORT[name](group)
            if group.rank == last:
                time.sleep(2.5)
                return
            with pytest.raises(CollectiveTimeout) as raised:
                group.all_reduce(ones(4), timeout=0.5)
            assert f"rank {last} has not called it (its last call was 2, {name})" in str(raised.value)
            assert ("rank 0 is" if last == 1 else f"ranks 0-{last - 1} are") + " in it" in str(raised.value)

        in_groups(c, ["all_reduce(float32, 4, SUM)"], miss)

    over_sockets(hosts, work)


@pytest.mark.parametrize("hosts", ["abc", "aab"])
def test_a_rank_that_gives_up(hosts: str) -> None:
    def work(c: Communicator) -> None:
        def broken(*_: object) -> None:
            raise KeyError("no such thing")

        def give_up(group: Communicator, how: str) -> None:
            for _ in range(3):
                group.all_reduce(ones(4))
            begun = time.monotonic()
            if group.rank == 1:
                if how == "raises":
                    group._group._runner.run = broken  # type: ignore[method-assign]
                    with pytest.raises(KeyError):
                        group.all_reduce(ones(4))
                elif how == "aborts":
                    group.abort("enough")
                else:
                    group.close()
            else:
                said = {
                    "raises": (TopocclError, "rank 1 has given up: KeyError: 'no such thing'"),
                    "aborts": (TopocclError, "rank 1 has given up: .*enough"),
                    "leaves": (TransportError, r"rank 1.* has left the group after call 3, all_reduce\(float32, 4, SUM\)"),
                }[how]
                with pytest.raises(said[0], match=said[1]):
                    group.all_reduce(ones(4))
            assert time.monotonic() - begun < SOON

        in_groups(c, ["raises", "aborts", "leaves"], give_up)

    over_sockets(hosts, work)


@pytest.mark.parametrize("calls_before", [3, 12])  # planned before, and a function of its own
@pytest.mark.parametrize("hosts", ["ab", "aab", "abc"])
def test_errors_name_the_call_when_a_rank_is_gone(hosts: str, calls_before: int) -> None:
    """Whatever meets the loss first: the message that is sent, one that is awaited, or what leaders tell each other."""

    def work(c: Communicator) -> None:
        last = c.size - 1
        for _ in range(calls_before):
            c.reduce(ones(4), ones(4), 0)
        if c.rank == last:
            c.transport.close()
            return
        time.sleep(0.3 * c.rank)  # rank 0 sees it while it waits for its host, and then sends
        text = f"reduce(float32, 4, SUM, root 0) (call {calls_before + 1} of group world, rank {c.rank} of {c.size}) failed: "
        with pytest.raises(TransportError) as raised:
            c.reduce(ones(4), ones(4), 0)
        assert str(raised.value).startswith(text)

    over_sockets(hosts, work)


def test_aborting_a_call_in_flight() -> None:
    def work(c: Communicator) -> None:
        def abort(group: Communicator, _: str) -> None:
            for _ in range(3):
                group.all_reduce(ones(4))
            if group.rank == 0:
                threading.Timer(0.2, group.abort, ["enough"]).start()
                with pytest.raises(TopocclError, match="enough"):
                    group.all_reduce(ones(4))
            elif group.rank == 1:
                with pytest.raises(TopocclError, match=r"rank 0 has given up: .*enough"):
                    group.all_reduce(ones(4))
            # Rank 2 does not come.

        in_groups(c, ["aborted"], abort)

    over_sockets("abc", work)


def test_groups_at_once_and_asynchronous_calls() -> None:
    """Groups that share connections number their calls for themselves."""

    def work(c: Communicator) -> None:
        groups = [c.subgroup(order, number) for number, order in enumerate([range(c.size), reversed(range(c.size))], 1)]
        groups[0].all_reduce(ones(3))
        for turn in range(20):
            data = [np.full(5, float(turn + c.rank)) for _ in range(6)]
            pending = [groups[i % 2].all_reduce(one, async_op=True) for i, one in enumerate(data)]
            c.all_reduce(mine := np.full(5, float(turn)))
            for one in pending:
                assert one is not None
                one.wait()
            assert (mine == turn * c.size).all()
            assert all((one == turn * c.size + sum(range(c.size))).all() for one in data)
        for group in groups:
            group.close()

    over_sockets("abc", work)


def test_a_wrong_message_is_never_taken_for_data() -> None:
    """Calls of one size and type, whose messages could not be told apart by their lengths."""

    def work(c: Communicator) -> None:
        for _ in range(2):
            c.all_reduce(ones(4))
            c.all_reduce(ones(4), op="max")
        out = np.full(4, -7, np.float32)
        with pytest.raises(MismatchError, match=r"rank 0 calls .*SUM.*, rank 1 calls .*MAX"):
            c.all_reduce(ones(4), out, op="sum" if c.rank == 0 else "max")
        assert (out == -7).all()

    over_sockets("ab", work)


def two_transports() -> list[Transport]:
    listeners = [Listener("127.0.0.1") for _ in range(2)]
    book = [[("127.0.0.1", listener.port)] for listener in listeners]
    return [tcp_transport(rank, [listeners[rank]], book, b"a" * TOKEN_BYTES, 5.0) for rank in range(2)]


@pytest.mark.parametrize("first", [0, 1])
def test_stamped_messages_both_ways_and_after_the_end(first: int) -> None:
    """Also before there is a connection, more than the kernel takes, and what was sent before a rank has closed its transport."""
    transports = two_transports()
    sender, taker = transports[first], transports[1 - first]
    sizes = [0, 4, 9_000, 3_000_000, 5]
    put, inbox = sender.outlet(1 - first, 3), taker.inbox(first, 3)
    rests = [put(np.full(size, number, np.uint8), number + 1) for number, size in enumerate(sizes)]
    assert all(rests)  # no connection yet
    got = []
    end = time.monotonic() + SOON
    while len(got) < len(sizes) and time.monotonic() < end:
        sender.progress([], 0.0)
        taker.fill(inbox, first, 0, 0.01)
        while inbox:
            got.append(inbox.popleft())
    assert [(stamp, len(data), set(bytes(data))) for stamp, data in got] == [
        (number + 1, size, {number} if size else set()) for number, size in enumerate(sizes)
    ]
    assert all(rest is not None and rest.done and rest.error is None for rest in rests)
    assert taker.outlet(first, 3)(np.zeros(4, np.uint8), 7) is None
    back = sender.inbox(1 - first, 3)
    sender.fill(back, 1 - first, 0, SOON)
    assert back.popleft() == (7, bytes(4))
    assert put(np.zeros(4, np.uint8), 8) is None
    sender.close()
    taker.fill(inbox, first, 0, SOON)
    assert inbox.popleft() == (8, bytes(4))
    with pytest.raises(TransportError, match="the peer has died or has closed its transport"):
        taker.fill(inbox, first, 0, SOON)
    with pytest.raises(TransportError):
        taker.outlet(first, 3)(np.zeros(4, np.uint8), 9)
    taker.close()


def test_first_messages_leave_while_the_host_is_waited_for() -> None:
    """The first message on each way has no connection yet: it leaves later, and a rank that waits for its host must see to that."""
    rest = SimpleNamespace(done=False, error=None)
    flags = [0]

    def wait(*args: object) -> None:
        assert rest.done, "the others may need the message before they set the counter"
        flags[0] = 1

    def progress(requests: list[Any], timeout: float) -> None:
        rest.done = True

    call = Stamped.__new__(Stamped)
    call._transport, call._waits_for = SimpleNamespace(progress=progress), {0: 1}
    gives = ((lambda data, stamp: rest, 0, 0, 1),)
    call._steps = [((), (), None, (), gives), (((0, 1),), (), None, (), ())]
    runner = SimpleNamespace(flags=flags, wait=wait, aborted=None, watch=lambda: None)
    call.run(runner, SimpleNamespace(assemble=lambda: 7), [ones(1)], 0, 5.0, lambda: "a call")
    assert flags == [1]
