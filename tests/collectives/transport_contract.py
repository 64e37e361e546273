"""What every transport must do, as functions that all ranks of one transport call at the same time, in the same order.

``CHECKS`` is run over threads (memory) and over processes (gloo) by test_transport_contract.py, and under mpirun by
tests/mpi/test_mpi_transport.py. A check takes the transport of its rank, which has at least two, and leaves no message behind.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable

import numpy as np
import pytest

from topoccl.collectives.errors import CollectiveTimeout, TransportError
from topoccl.collectives.transports.base import Bytes, PeerCounters, Transport

SECONDS = 30.0
SIZES = (0, 1, 3, 1000, 60 * 1024 - 1, 60 * 1024, 60 * 1024 + 1, 200_001)


def noise(size: int, *seed: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def empty(size: int) -> Bytes:
    return np.full(size, 0xEE, np.uint8)


def ring(t: Transport) -> tuple[int, int]:
    return (t.rank - 1) % t.size, (t.rank + 1) % t.size


def everyone(t: Transport) -> None:
    """Returns when all ranks have called it."""
    peers = [peer for peer in range(t.size) if peer != t.rank]
    t.wait([t.isend(peer, 999, empty(0)) for peer in peers] + [t.irecv(peer, 999, empty(0)) for peer in peers], SECONDS)


def check_order_of_one_tag(t: Transport) -> None:
    left, right = ring(t)
    sends = [t.isend(right, 7, np.array([i, t.rank], np.uint8)) for i in range(50)]
    for i in range(50):
        got = empty(2)
        t.wait([t.irecv(left, 7, got)], SECONDS)
        assert got.tolist() == [i, left]
    t.wait(sends, SECONDS)


def check_order_of_long_and_short(t: Transport) -> None:
    left, right = ring(t)
    sizes = [300_000, 1, 0, 150_000, 7] * 3
    sends = [t.isend(right, 7, noise(size, i, t.rank)) for i, size in enumerate(sizes)]
    got = [empty(size) for size in sizes]
    t.wait([t.irecv(left, 7, data) for data in got] + sends, SECONDS)
    for i, data in enumerate(got):
        assert np.array_equal(data, noise(sizes[i], i, left))


def check_tags_are_independent(t: Transport) -> None:
    """What was sent first with one tag does not hold up what was sent later with another."""
    left, right = ring(t)
    first, second, third = empty(100_000), empty(5), empty(100_000)
    waits = t.irecv(left, 1, first)
    sends = [t.isend(right, 3, noise(100_000, 3, t.rank)), t.isend(right, 2, noise(5, 2, t.rank))]
    t.wait([t.irecv(left, 2, second)], SECONDS)
    assert np.array_equal(second, noise(5, 2, left))
    t.wait([t.irecv(left, 3, third)], SECONDS)
    assert np.array_equal(third, noise(100_000, 3, left))
    sends.append(t.isend(right, 1, noise(100_000, 1, t.rank)))
    t.wait([waits, *sends], SECONDS)
    assert np.array_equal(first, noise(100_000, 1, left))


def check_rails_are_independent(t: Transport) -> None:
    """Messages with one tag on different rails are ordered for themselves, and what fills one rail does not hold up another."""
    left, right = ring(t)
    last = t.rails - 1
    with pytest.raises(ValueError, match=rf"rail {t.rails} is not in 0 to {last}"):
        t.isend(right, 1, empty(1), t.rails)
    group = t.subgroup(range(t.size), 9)
    jobs = [(rail, size) for rail in range(t.rails) for size in (300_000, 5, 0, 140_000)]
    sends = [group.isend(right, 1, noise(size, rail, t.rank), rail) for rail, size in jobs]
    for rail, size in sorted(jobs, key=lambda job: -job[0]):  # the rails the other way round
        got = empty(size)
        group.wait([group.irecv(left, 1, got, rail)], SECONDS)
        assert np.array_equal(got, noise(size, rail, left)), (rail, size)
    group.wait(sends, SECONDS)
    total = sum(size for _, size in jobs)
    assert group.counters[left].received_bytes == group.counters[right].sent_bytes == total
    late = group.irecv(left, 2, empty(9), last)
    group.close()
    with pytest.raises(TransportError, match=f"rail {last}" if last else "still open"):
        group.wait([late], SECONDS)


def check_peers_are_independent(t: Transport) -> None:
    """A receive from a peer that is late does not hold up the news of one from another."""
    if t.rank == 0:
        late = [t.irecv(peer, 5, empty(1)) for peer in range(1, t.size)]
        for peer in reversed(range(1, t.size)):  # each peer only sends when asked
            t.wait([t.isend(peer, 6, empty(1)), late[peer - 1]], SECONDS)
            assert not any(request.done for request in late[: peer - 1])
    else:
        t.wait([t.irecv(0, 6, empty(1))], SECONDS)
        t.wait([t.isend(0, 5, empty(1))], SECONDS)


def check_all_sizes(t: Transport) -> None:
    left, right = ring(t)
    for size in SIZES:
        got = empty(size)
        t.wait([t.irecv(left, 0, got), t.isend(right, 0, noise(size, size, t.rank))], SECONDS)
        assert np.array_equal(got, noise(size, size, left)), size


def check_five_megabytes_both_ways_with_everyone(t: Transport) -> None:
    size = 5_000_011
    peers = [peer for peer in range(t.size) if peer != t.rank]
    got = {peer: empty(size) for peer in peers}
    requests = [t.irecv(peer, 65535, got[peer]) for peer in peers]
    requests += [t.isend(peer, 65535, noise(size, t.rank, peer)) for peer in peers]
    t.wait(requests, SECONDS)
    for peer in peers:
        assert np.array_equal(got[peer], noise(size, peer, t.rank))


def check_many_open(t: Transport) -> None:
    peers = [peer for peer in range(t.size) if peer != t.rank]
    jobs = [(peer, tag, i) for peer in peers for tag in range(8) for i in range(12)]
    got = {job: empty(40) for job in jobs}
    requests = [t.irecv(peer, tag, got[peer, tag, i]) for peer, tag, i in jobs]
    scrambled = [jobs[j] for j in np.random.default_rng(t.rank).permutation(len(jobs))]
    turn: dict[tuple[int, int], int] = {}
    for peer, tag, _ in scrambled:
        i = turn[peer, tag] = turn.get((peer, tag), -1) + 1
        requests.append(t.isend(peer, tag, noise(40, t.rank, peer, tag, i)))
    t.wait(requests, SECONDS)
    for peer, tag, i in jobs:
        assert np.array_equal(got[peer, tag, i], noise(40, peer, t.rank, tag, i))


def check_any_source(t: Transport) -> None:
    for size in (0, 10, 200_000):
        if t.rank == 0:
            seen = []
            for _ in range(t.size - 1):
                got = empty(size)
                request = t.irecv(-1, 9, got)
                t.wait([request], SECONDS)
                assert np.array_equal(got, noise(size, request.source))
                seen.append(request.source)
            assert sorted(seen) == list(range(1, t.size))
            t.wait([t.isend(peer, 10, empty(1)) for peer in range(1, t.size)], SECONDS)
        else:
            t.wait([t.isend(0, 9, noise(size, t.rank))], SECONDS)
            t.wait([t.irecv(0, 10, empty(1))], SECONDS)  # the next size only when everyone's message has arrived


def check_any_source_among_named(t: Transport) -> None:
    """Several receives of long messages with one tag are open: from any rank, then from named ones."""
    size = 180_000
    if t.rank == 0:
        anyone, named = empty(size), {peer: empty(size) for peer in range(1, t.size)}
        requests = [t.irecv(-1, 4, anyone), *(t.irecv(peer, 4, named[peer]) for peer in named)]
        t.wait([t.isend(1, 5, empty(1)), requests[0]], SECONDS)  # only rank 1 has sent so far
        assert requests[0].source == 1
        t.wait([t.isend(peer, 5, empty(1)) for peer in range(2, t.size)] + requests, SECONDS)
        assert np.array_equal(anyone, noise(size, 1, 0))
        for peer, data in named.items():
            assert np.array_equal(data, noise(size, peer, 1 if peer == 1 else 0))
    else:
        t.wait([t.irecv(0, 5, empty(1))], SECONDS)
        t.wait([t.isend(0, 4, noise(size, t.rank, i)) for i in range(2 if t.rank == 1 else 1)], SECONDS)


def check_message_to_oneself(t: Transport) -> None:
    for size in (0, 5, 150_000):
        got = empty(size)
        send = t.isend(t.rank, 3, noise(size, 1))
        t.wait([t.irecv(t.rank, 3, got), send], SECONDS)
        assert np.array_equal(got, noise(size, 1))
        receive = t.irecv(t.rank, 3, got)
        t.wait([t.isend(t.rank, 3, noise(size, 2)), receive], SECONDS)
        assert np.array_equal(got, noise(size, 2))
        send, receive = t.isend(t.rank, 3, noise(size, 3)), t.irecv(-1, 3, got)
        t.wait([send, receive], SECONDS)
        assert receive.source == t.rank
        assert np.array_equal(got, noise(size, 3))


def check_overlapping_subgroups_in_two_threads(t: Transport) -> None:
    orders = [list(reversed(range(t.size))), [*range(1, t.size), 0]]
    groups = [t.subgroup(order, number) for number, order in enumerate(orders, 1)]
    errors: list[BaseException] = []

    def use(group: Transport, order: list[int]) -> None:
        try:
            assert order[group.rank] == t.rank
            assert group.size == t.size
            left, right = ring(group)
            for i in range(20):
                for size in (8, 100_000):
                    got = empty(size)
                    group.wait([group.isend(right, 2, noise(size, i, *order, group.rank)), group.irecv(left, 2, got)], SECONDS)
                    assert np.array_equal(got, noise(size, i, *order, left))
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=use, args=pair) for pair in zip(groups, orders, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    alone = t.subgroup([t.rank], 3)
    got = empty(3)
    alone.wait([alone.isend(0, 0, noise(3, 3)), alone.irecv(-1, 0, got)], SECONDS)
    assert np.array_equal(got, noise(3, 3))
    for group in [*groups, alone]:
        group.close()


def check_subgroup_of_a_subgroup(t: Transport) -> None:
    upper = t.subgroup(list(reversed(range(t.size))), 4)
    lower = upper.subgroup([upper.size - 1, 0], 5) if t.rank in (0, t.size - 1) else None
    if lower is not None:
        assert lower.rank == (0 if t.rank == 0 else 1)
        got = empty(1)
        lower.wait([lower.isend(1 - lower.rank, 0, np.array([t.rank], np.uint8)), lower.irecv(1 - lower.rank, 0, got)], SECONDS)
        assert got[0] == (t.size - 1 if t.rank == 0 else 0)
        lower.close()
    upper.close()


def check_counters(t: Transport) -> None:
    group = t.subgroup(range(t.size), 6)
    left, right = ring(group)
    sizes = [0, 1, 100_000, 250_000]
    got = [empty(size) for size in sizes]
    group.wait([group.isend(right, 1, empty(size)) for size in sizes] + [group.irecv(left, 1, data) for data in got], SECONDS)
    group.wait([group.isend(group.rank, 1, empty(11)), group.irecv(-1, 1, empty(11))], SECONDS)
    expected = {peer: PeerCounters() for peer in range(group.size)}
    expected[right].sent_messages, expected[right].sent_bytes = len(sizes), sum(sizes)
    expected[left].received_messages, expected[left].received_bytes = len(sizes), sum(sizes)
    expected[group.rank] = PeerCounters(1, 11, 1, 11)
    assert group.counters == expected
    group.close()


def check_any_source_is_counted(t: Transport) -> None:
    group = t.subgroup(range(t.size), 7)
    if group.rank == 0:
        group.wait([group.irecv(-1, 1, empty(70_000)) for _ in range(1, group.size)], SECONDS)
        assert [group.counters[peer].received_bytes for peer in range(group.size)] == [0] + [70_000] * (group.size - 1)
    else:
        group.wait([group.isend(0, 1, empty(70_000))], SECONDS)
        assert group.counters[0] == PeerCounters(1, 70_000, 0, 0)
    group.close()


def check_progress_and_its_timeout(t: Transport) -> None:
    left, right = ring(t)
    t.progress([], 10.0)
    request = t.irecv(left, 8, empty(4))
    t.progress([request], 0.0)
    start = time.monotonic()
    t.progress([request], 0.05)
    assert time.monotonic() - start >= 0.045
    assert not request.done
    with pytest.raises(CollectiveTimeout, match=rf"1 of 1 messages still open after 0.01 s: receive from rank {left} \(tag 8, 4 bytes\)"):
        t.wait([request], 0.01)
    everyone(t)
    t.wait([t.isend(right, 8, empty(4)), request], SECONDS)
    t.progress([request], 3600.0)  # done before: returns at once


def check_one_done_among_many_is_enough(t: Transport) -> None:
    left, right = ring(t)
    late = [t.irecv(left, tag, empty(2)) for tag in range(20, 30)]
    soon = t.irecv(left, 30, empty(2))
    sends = [t.isend(right, 30, empty(2))]
    while not soon.done:
        t.progress([*late, soon], 3600.0)
    assert soon.error is None
    assert not any(request.done for request in late)
    everyone(t)
    sends += [t.isend(right, tag, empty(2)) for tag in range(20, 30)]
    t.wait(late + sends, SECONDS)


def check_closing_a_subgroup_fails_what_is_open(t: Transport) -> None:
    left, right = ring(t)
    group = t.subgroup(range(t.size), 8)
    requests = [group.irecv(left, 1, empty(10)), group.irecv(left, 2, empty(200_000)), group.irecv(-1, 3, empty(200_000))]
    group.close()
    group.close()
    for request in requests:
        assert request.done
        with pytest.raises(TransportError, match="still open when the transport was closed"):
            group.wait([request], SECONDS)
    with pytest.raises(TransportError, match="the transport is closed"):
        group.isend(right, 1, empty(1))
    assert all(counters == PeerCounters() for counters in group.counters.values())
    got = empty(1)
    t.wait([t.isend(right, 1, noise(1, t.rank)), t.irecv(left, 1, got)], SECONDS)
    assert np.array_equal(got, noise(1, left))


def check_bytes_that_are_views_or_read_only(t: Transport) -> None:
    left, right = ring(t)
    data = noise(1000, t.rank)[100:900]
    data.setflags(write=False)
    base = empty(1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        t.wait([t.isend(right, 1, data), t.irecv(left, 1, base[10:810])], SECONDS)
    assert np.array_equal(base[10:810], noise(1000, left)[100:900])
    assert (base[:10] == 0xEE).all()
    assert (base[810:] == 0xEE).all()


def check_wrong_arguments(t: Transport) -> None:
    good = empty(4)
    with pytest.raises(ValueError, match=rf"cannot send to rank {t.size}; known ranks are 0 to {t.size - 1}"):
        t.isend(t.size, 0, good)
    with pytest.raises(ValueError, match="cannot send to rank -1"):
        t.isend(-1, 0, good)
    with pytest.raises(ValueError, match="cannot receive from rank -2"):
        t.irecv(-2, 0, good)
    for tag in (-1, 1 << 16):
        with pytest.raises(ValueError, match=f"tag {tag} is not in 0 to 65535"):
            t.isend(0, tag, good)
    for bad in (np.zeros(4), np.zeros((2, 2), np.uint8), np.zeros(8, np.uint8)[::2]):
        with pytest.raises(ValueError, match="a message is a contiguous one-dimensional array of uint8"):
            t.isend(0, 0, bad)
    good.setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        t.irecv(0, 0, good)
    with pytest.raises(ValueError, match="group 0 is not in 1 to"):
        t.subgroup([0, 1], 0)
    with pytest.raises(ValueError, match="does not hold this rank"):
        t.subgroup([(t.rank + 1) % t.size], 1)
    with pytest.raises(ValueError, match="distinct ranks"):
        t.subgroup([t.rank, t.rank], 1)
    assert all(isinstance(counters, PeerCounters) for counters in t.counters.values())


CHECKS: dict[str, Callable[[Transport], None]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}
