"""A process that is one rank of a gloo transport, for tests: ``gloo_rank.py RANK SIZE PORT TIMEOUT ADDRESS...``, an address per rail.

Reads names of checks, or of the commands below, from standard input, one a line, and answers each with a line: ``ok`` or the error.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest
import torch.distributed as dist
from transport_contract import CHECKS

from topoccl.collectives.errors import TransportError
from topoccl.collectives.transports.base import Transport
from topoccl.collectives.transports.gloo import gloo_transport
from topoccl.collectives.transports.rails import rails_transport


def die(t: Transport) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def see_rank_one_die(t: Transport) -> None:
    """Messages with the dead rank fail and name it, those with others go on."""
    other = 2 if t.rank == 0 else 0
    small, large = np.zeros(4, np.uint8), np.zeros(3_000_000, np.uint8)
    for request in [t.irecv(1, 1, small), t.irecv(1, 2, large), t.isend(1, 3, large)]:
        with pytest.raises(TransportError, match=r"rank 1 .*died"):
            t.wait([request], 30.0)
    for request in [t.irecv(1, 1, small), t.isend(1, 3, small), t.isend(1, 3, large)]:
        with pytest.raises(TransportError, match=r"rank 1 "):
            t.wait([request], 30.0)
    got = np.zeros(4, np.uint8)
    t.wait([t.isend(other, 5, np.full(4, t.rank, np.uint8)), t.irecv(other, 5, got)], 30.0)
    assert (got == other).all()


def close_with_open_messages(t: Transport) -> None:
    other = (t.rank + 1) % t.size
    requests = [t.irecv(other, 1, np.zeros(4, np.uint8)), t.irecv(other, 2, np.zeros(500_000, np.uint8))]
    group = t.subgroup([t.rank, other] if t.rank < other else [other, t.rank], 1 + min(t.rank, other))
    requests.append(group.irecv(1 - group.rank, 1, np.zeros(4, np.uint8)))
    start = time.monotonic()
    t.close()
    assert time.monotonic() - start < 10.0
    assert all(request.done and isinstance(request.error, TransportError) for request in requests)


def run_ahead(t: Transport) -> None:
    """Far more small messages than the peer takes: the copies that are kept are bounded, and nothing is lost."""
    other, size, number = 1 - t.rank, 100_000, 300
    if t.rank == 0:
        sends = [t.isend(other, 1, np.full(size, i % 251, np.uint8)) for i in range(number)]
        done = sum(request.done for request in sends)
        assert 50 <= done <= 90, done  # 8 MiB
        t.wait([t.isend(other, 2, np.zeros(1, np.uint8)), *sends], 60.0)
    else:
        t.wait([t.irecv(other, 2, np.zeros(1, np.uint8))], 60.0)
        for i in range(number):
            got = np.zeros(size, np.uint8)
            t.wait([t.irecv(other, 1, got)], 60.0)
            assert (got == i % 251).all()


def last_words(t: Transport) -> None:
    """What was sent before a close arrives, also when the receiver comes late."""
    words = [np.full(size, 7, np.uint8) for size in (3, 1000, 100_000)]
    if t.rank == 0:
        t.wait([t.isend(1, 1, word) for word in words], 30.0)
        t.close()
    elif t.rank == 1:
        time.sleep(0.3)
        got = [np.zeros(len(word), np.uint8) for word in words]
        t.wait([t.irecv(0, 1, data) for data in got], 30.0)
        assert all((data == 7).all() for data in got)


def shorter_than_expected(t: Transport) -> None:
    if t.rank == 0:
        t.wait([t.isend(1, 1, np.zeros(3, np.uint8))], 30.0)
    else:
        with pytest.raises(TransportError, match=r"receive from rank 0 \(tag 1, 4 bytes\) failed: met a message of 3 bytes"):
            t.wait([t.irecv(0, 1, np.zeros(4, np.uint8))], 30.0)


def other_lengths_than_expected(t: Transport) -> None:
    """No length of a message ends the process of who expects another; tags are independent in this, too."""
    lengths = [
        (6, 4),
        (100_000, 10),
        (10, 100_000),
        (300_000, 10),
        (10, 300_000),
        (300_000, 131_072),
        (5_000_000, 300_000),
        (300_000, 9_000_000),
    ]
    for tag, (sent, expected) in enumerate(lengths, 10):
        for peer in (1, -1):  # -1: from any rank
            if t.rank == 0:
                t.isend(1, tag if peer == 1 else tag + 100, np.zeros(sent, np.uint8))
            else:
                with pytest.raises(TransportError, match=f"met a message of {sent} bytes"):
                    t.wait([t.irecv(0 if peer == 1 else -1, tag if peer == 1 else tag + 100, np.zeros(expected, np.uint8))], 30.0)
    if t.rank == 1:  # once pieces may have met the wrong ones, a tag cannot be used any more
        with pytest.raises(TransportError, match="an earlier message with this tag had another length"):
            t.wait([t.irecv(0, 16, np.zeros(4, np.uint8))], 30.0)
    got = np.zeros(400_000, np.uint8)
    t.wait([t.isend(1 - t.rank, 99, np.full(400_000, t.rank, np.uint8)), t.irecv(1 - t.rank, 99, got)], 30.0)
    assert (got == 1 - t.rank).all()


COMMANDS = {
    **CHECKS,
    **{
        c.__name__: c
        for c in (
            die,
            see_rank_one_die,
            close_with_open_messages,
            run_ahead,
            last_words,
            shorter_than_expected,
            other_lengths_than_expected,
        )
    },
}


def serve(transport: Transport, commands: dict[str, Callable[[Transport], None]]) -> None:
    for line in sys.stdin:
        try:
            commands[line.strip()](transport)
            print("ok", flush=True)
        except BaseException:
            print(repr(traceback.format_exc()), flush=True)
    transport.close()


def main() -> None:
    rank, size, port, timeout = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60), wait_for_workers=False)
    own, addresses = dist.PrefixStore("gloo", store), sys.argv[5:]
    if len(addresses) == 1:
        transport = gloo_transport(own, rank, size, timeout, addresses[0])
    else:
        transport = rails_transport(own, rank, size, timeout, addresses)
    serve(transport, COMMANDS)


if __name__ == "__main__":
    main()
