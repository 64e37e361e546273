"""Streams between threads of one process, and what is read from arrivals."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from topoccl.collectives.config import Config
from topoccl.collectives.errors import ConfigError
from topoccl.collectives.probe.runner import probe
from topoccl.collectives.probe.streams import WINDOW, Arrivals, Stream, least_rate, ping, run_streams, steady_rates
from topoccl.collectives.transports.base import Transport
from topoccl.collectives.transports.memory import MemoryHub


def on_ranks(size: int, work: Any) -> list[Any]:
    """What ``work(transport)`` returns on each rank of a hub; its first error is raised."""
    hub = MemoryHub(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        transport = hub.transport(rank)
        try:
            results[rank] = work(transport)
        except BaseException as error:
            errors.append(error)
        finally:
            transport.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return results


def test_streams_leave_nothing_open() -> None:
    streams = [Stream(0, 1, 1000), Stream(1, 0, 1000), Stream(0, 2, 500), Stream(2, 0, 500)]

    def work(transport: Transport) -> Any:
        seen = run_streams(transport, streams, 0.02, 10.0)
        again = run_streams(transport, streams[::-1], 0.02, 10.0)  # what was left open would meet chunks of another size
        sent = {peer: counters.sent_messages for peer, counters in transport.counters.items()}
        received = {peer: counters.received_messages for peer, counters in transport.counters.items()}
        return seen, again, sent, received

    results = on_ranks(3, work)
    for rank, (seen, again, *_) in enumerate(results):
        assert set(seen) == {number for number, stream in enumerate(streams) if stream.dst == rank}
        assert set(again) == {len(streams) - 1 - number for number in seen}
        assert all(arrivals.counts[-1] >= WINDOW for arrivals in seen.values())
    for rank in range(3):
        for peer in range(3):
            assert results[rank][2][peer] == results[peer][3][rank]


def test_ranks_without_a_stream_wait_for_nothing() -> None:
    results = on_ranks(3, lambda transport: run_streams(transport, [Stream(0, 1, 64)], 0.01, 5.0))
    assert [sorted(result) for result in results] == [[], [0], []]


def test_ping_compares_clocks() -> None:
    results = on_ranks(2, lambda transport: ping(transport, 1 - transport.rank, transport.rank == 0, 20, 5.0))
    took, ahead = results[0]
    assert 0 < took < 1
    assert abs(ahead) <= took  # both ranks read one clock


def steady(rate: float, begin: float = 0.0, end: float = 1.0, step: float = 0.02) -> Arrivals:
    times = [begin + number * step for number in range(round((end - begin) / step) + 1)]
    return Arrivals(tuple(times), tuple(int((time - begin) * rate) for time in times), end)


def test_rates_count_only_while_all_streams_run() -> None:
    early, late = steady(1000.0, 0.0, 1.0), steady(500.0, 0.3, 1.3)
    rates = steady_rates([early, late])
    assert rates is not None
    assert rates == pytest.approx([1000.0, 500.0], rel=0.02)
    # before the other one began, the first had the link to itself
    alone = [(time, int(2000 * time)) for time, _ in zip(early.times, early.counts, strict=True) if time < 0.3]
    shared = [(time, int(600 + 1000 * (time - 0.3))) for time in early.times if time >= 0.3]
    times, counts = zip(*alone, *shared, strict=True)
    rates = steady_rates([Arrivals(times, counts, 1.0), late])
    assert rates is not None
    assert rates[0] == pytest.approx(1000.0, rel=0.02)


def test_a_receiver_that_was_late_at_times_does_not_count_more() -> None:
    kept = [(time, count) for time, count in zip(steady(1000.0).times, steady(1000.0).counts, strict=True) if not 0.5 < time < 0.66]
    times, counts = zip(*kept, strict=True)
    rates = steady_rates([Arrivals(times, counts, 1.0)])
    assert rates is not None
    assert rates[0] == pytest.approx(1000.0, rel=0.03)


def test_what_tells_nothing_is_refused() -> None:
    assert steady_rates([steady(1000.0, 0.0, 1.0), steady(1000.0, 0.8, 1.8)]) is None  # hardly together
    assert steady_rates([Arrivals((0.0, 0.9, 0.95), (8, 16, 24), 1.0)]) is None  # the receiver slept
    assert least_rate(Arrivals((0.0, 0.9, 0.95), (8, 16, 24), 1.0), 1.0) == 23.0


def test_probe_of_one_host() -> None:
    results = on_ranks(3, lambda transport: probe(transport, Config(), 10.0))
    assert results[1:] == [None, None]
    assert results[0].topology.num_ranks == 3
    assert len(results[0].topology.hosts) == 1


def test_probe_needs_two_ranks() -> None:
    with pytest.raises(ConfigError, match="only one"):
        on_ranks(1, lambda transport: probe(transport, Config(), 10.0))
