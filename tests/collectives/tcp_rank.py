"""A process that is one rank of a tcp transport, for tests: ``tcp_rank.py RANK SIZE PORT TIMEOUT``; commands as gloo_rank.py takes them."""

from __future__ import annotations

import json
import sys
import threading
import time
from datetime import timedelta

import numpy as np
import pytest
import torch.distributed as dist
from gloo_rank import close_with_open_messages, die, last_words, see_rank_one_die, serve, shorter_than_expected
from transport_contract import CHECKS

from topoccl.collectives.errors import TransportError
from topoccl.collectives.transports.base import Transport
from topoccl.collectives.transports.sockets import Listener
from topoccl.collectives.transports.tcp import tcp_transport

TOKEN = b"sixteen of these"


def other_lengths_than_expected(t: Transport) -> None:
    """A message of another length fails its receive and nothing else, whichever comes first; its tag stays usable."""
    for tag, (sent, expected) in enumerate([(6, 4), (4, 6), (0, 5), (5, 0), (5_000_000, 10), (10, 5_000_000), (300_000, 400_000)]):
        for late in (False, True):
            for peer in (0, -1):
                if t.rank == 0:
                    if not late:
                        t.wait([t.irecv(1, 50, np.zeros(0, np.uint8))], 30.0)
                    t.wait([t.isend(1, tag, np.zeros(sent, np.uint8)), t.isend(1, tag, np.full(7, tag, np.uint8))], 30.0)
                else:
                    got, wrong = np.zeros(7, np.uint8), np.zeros(expected, np.uint8)
                    if late:
                        time.sleep(0.02)
                    requests = [t.irecv(peer, tag, wrong), t.irecv(peer, tag, got)]
                    if not late:
                        t.isend(0, 50, np.zeros(0, np.uint8))
                    with pytest.raises(TransportError, match=f"met a message of {sent} bytes"):
                        t.wait([requests[0]], 30.0)
                    t.wait([requests[1]], 30.0)
                    assert (got == tag).all()


def to_itself_of_another_length(t: Transport) -> None:
    send, receive = t.isend(t.rank, 5, np.zeros(4, np.uint8)), t.irecv(t.rank, 5, np.zeros(5, np.uint8))
    for request in (send, receive):
        with pytest.raises(TransportError, match="met a message of 4 bytes"):
            t.wait([request], 5.0)


def long_message_does_not_wait_for_its_receive(t: Transport) -> None:
    """More than any socket holds may be sent before somebody wants it, and later messages pass."""
    size = 40_000_000
    if t.rank == 0:
        t.wait([t.isend(1, 1, np.full(size, 3, np.uint8)), t.isend(1, 2, np.full(5, 4, np.uint8))], 30.0)
    elif t.rank == 1:
        small, large = np.zeros(5, np.uint8), np.zeros(size, np.uint8)
        t.wait([t.irecv(0, 2, small)], 30.0)
        assert (small == 4).all()
        t.wait([t.irecv(0, 1, large)], 30.0)
        assert (large == 3).all()


def long_last_words(t: Transport) -> None:
    """What the kernel took before a close arrives, however late its receives are begun."""
    size = 2_500_000
    if t.rank == 0:
        t.wait([t.isend(1, 1, np.full(size, 7, np.uint8)), t.isend(1, 2, np.full(size, 8, np.uint8))], 30.0)
        t.close()
    else:
        t.progress([t.irecv(0, 9, np.zeros(1, np.uint8))], 0.3)
        got = [np.zeros(size, np.uint8) for _ in range(2)]
        for tag, data in enumerate(got, 1):
            t.wait([t.irecv(0, tag, data)], 30.0)
            assert (data == 6 + tag).all()
        with pytest.raises(TransportError, match="the peer has died or has closed"):
            t.wait([t.irecv(0, 1, got[0])], 30.0)


def receives_from_any_source_fail_when_nobody_is_left(t: Transport) -> None:
    t.wait([t.isend(0, 1, np.zeros(1, np.uint8))] if t.rank else [t.irecv(peer, 1, np.zeros(1, np.uint8)) for peer in (1, 2)], 30.0)
    if t.rank:
        t.close()
    else:
        early = t.irecv(-1, 2, np.zeros(1, np.uint8))
        named = [t.irecv(peer, 3, np.zeros(1, np.uint8)) for peer in (1, 2)]
        for request in named:
            with pytest.raises(TransportError, match="the peer has died or has closed"):
                t.wait([request], 30.0)
        for request in (early, t.irecv(-1, 2, np.zeros(1, np.uint8))):
            with pytest.raises(TransportError, match="all other ranks have died"):
                t.wait([request], 30.0)


def waits_of_many_threads(t: Transport) -> None:
    """One of the threads serves all; when it has what it wants another one takes its place."""
    other, count = 1 - t.rank, 40
    got = [np.zeros(1, np.uint8) for _ in range(count)]
    errors: list[BaseException] = []

    def wait(number: int) -> None:
        try:
            t.wait([t.irecv(other, number, got[number])], 30.0)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for number in reversed(range(count)):
        t.wait([t.isend(other, number, np.full(1, number, np.uint8))], 30.0)
        time.sleep(0.001)
    for thread in threads:
        thread.join(30)
    assert not errors
    assert [int(data[0]) for data in got] == list(range(count))


def closing_wakes_who_waits(t: Transport) -> None:
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            t.wait([t.irecv(1 - t.rank, 1, np.zeros(1, np.uint8))], 30.0)
        except TransportError as error:
            failed.append(error)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    start = time.monotonic()
    t.close()
    for thread in threads:
        thread.join(10)
    assert len(failed) == 2
    assert time.monotonic() - start < 5


COMMANDS = CHECKS | {
    c.__name__: c
    for c in (
        die,
        see_rank_one_die,
        close_with_open_messages,
        last_words,
        shorter_than_expected,
        other_lengths_than_expected,
        to_itself_of_another_length,
        long_last_words,
        long_message_does_not_wait_for_its_receive,
        receives_from_any_source_fail_when_nobody_is_left,
        waits_of_many_threads,
        closing_wakes_who_waits,
    )
}


def main() -> None:
    rank, size, port, timeout = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60), wait_for_workers=False)
    listener = Listener("127.0.0.1")
    store.set(f"port{rank}", json.dumps(listener.port))
    book = [[("127.0.0.1", json.loads(store.get(f"port{peer}")))] for peer in range(size)]
    serve(tcp_transport(rank, [listener], book, TOKEN, timeout), COMMANDS)


if __name__ == "__main__":
    main()
