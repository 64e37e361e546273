"""Messages of users, long ones above all, as functions that all ranks of a world call at once.

A program for the ranks of Gloo, sockets and MPI: ``message_cases.py HOSTS [CASE...]``, where HOSTS has a letter for each rank's host. Each
case takes a group of its own, in which ranks are counted the other way round.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from case_runs import Cases

from topoccl.collectives.communicator import Communicator
from topoccl.collectives.errors import CollectiveTimeout, TransportError
from topoccl.collectives.transports import notes as notes_module
from topoccl.collectives.transports.base import LONG
from topoccl.collectives.transports.notes import _MAGIC, _NOTE, NOTE_BYTES, Notes

LIMIT = 30.0  # seconds that messages may take
SIZES = (LONG + 1, 1, 0, LONG, 7, LONG - 1, NOTE_BYTES, 2 * LONG)
BIG = LONG + 300_000

CASES = Cases(LIMIT, backwards=True)
case = CASES.case


def noise(size: int, *seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def ring(c: Communicator) -> tuple[int, int]:
    return (c.rank - 1) % c.size, (c.rank + 1) % c.size


def notes(c: Communicator) -> Notes | None:
    return c.transport.notes


def noted(c: Communicator, peer: int) -> bool:
    """Whether long messages between ``peer`` and this rank go by notes."""
    return notes(c) is not None and c.transport.members[peer] in notes(c)._readers


def noted_by_all(c: Communicator) -> bool:
    return notes(c) is not None and len(set(c.hosts)) == 1


@contextmanager
def reading_with(c: Communicator, peer: int, read):
    """Reads the memory of ``peer`` by ``read(real, address, nbytes, target)`` where it would be read by ``real``."""
    readers, world = notes(c)._readers, c.transport.members[peer]
    real = readers[world]

    class Reader:
        pid = real.pid

        def __call__(self, address: int, nbytes: int, target: int) -> None:
            read(real, address, nbytes, target)

    readers[world] = Reader()
    try:
        yield
    finally:
        readers[world] = real


@contextmanager
def reading_until_given_up(c: Communicator, peer: int):
    """Reads the memory of ``peer`` again and again until the seal is broken."""
    seals = []
    begin = notes(c)._read

    def begin_to_read(receive, note: bytes, source: int) -> None:
        seals.append(_NOTE.unpack(note)[-1])
        begin(receive, note, source)

    def read_slowly(real, address: int, nbytes: int, target: int) -> None:
        real(address, nbytes, target)
        end = time.monotonic() + LIMIT
        while nbytes == 8 and ctypes.c_uint64.from_address(target).value == seals[-1]:
            assert time.monotonic() < end, "the sender has not given it up"
            real(address, nbytes, target)

    notes(c)._read = begin_to_read
    try:
        with reading_with(c, peer, read_slowly):
            yield
    finally:
        notes(c)._read = begin


@case
def long_and_short_ones_keep_their_order(c: Communicator) -> None:
    left, right = ring(c)
    before = c.transport.counters[right].sent_bytes
    sends = [c.send(noise(size, i, c.rank), right, async_op=True) for i, size in enumerate(SIZES * 3)]
    for i, size in enumerate(SIZES * 3):
        c.recv(got := np.zeros(size, np.uint8), left)
        assert np.array_equal(got, noise(size, i, left)), (i, size)
    for send in sends:
        send.wait()
    assert c.transport.counters[right].sent_bytes - before == 3 * sum(SIZES)


@case
def they_are_read_where_they_lie(c: Communicator) -> None:
    left, right = ring(c)
    if not noted_by_all(c):
        return
    lengths = []

    def read(real, address: int, nbytes: int, target: int) -> None:
        lengths.append(nbytes)
        real(address, nbytes, target)

    with reading_with(c, left, read):
        sends = [c.send(noise(size, c.rank), right, async_op=True) for size in SIZES]
        for size in SIZES:
            c.recv(np.zeros(size, np.uint8), left)
        for send in sends:
            send.wait()
    assert lengths == [LONG + 1, 8, LONG, 8, 2 * LONG, 8]


@case
def receives_begun_ahead_and_waited_for_backwards(c: Communicator) -> None:
    left, right = ring(c)
    got = [np.zeros(size, np.uint8) for size in SIZES]
    receives = [c.recv(data, left, 5, async_op=True) for data in got]
    sends = [c.send(noise(size, i, c.rank), right, 5, async_op=True) for i, size in enumerate(SIZES)]
    for message in reversed([*receives, *sends]):
        message.wait()
    for i, data in enumerate(got):
        assert np.array_equal(data, noise(len(data), i, left)), i
    assert all(message.source == left for message in receives)


@case
def tags_are_independent(c: Communicator) -> None:
    left, right = ring(c)
    sends = [c.send(noise(BIG, tag, c.rank), right, tag, async_op=True) for tag in range(4)]
    for tag in (2, 0, 3, 1):
        c.recv(got := np.zeros(BIG, np.uint8), left, tag)
        assert np.array_equal(got, noise(BIG, tag, left))
    for send in sends:
        send.wait()


@case
def sends_that_wait_for_each_other_in_any_order(c: Communicator) -> None:
    """Each pair sends both ways; one waits for its sends first, the other for its receives."""
    for peer in range(c.size):
        if peer == c.rank:
            continue
        sends = [c.send(noise(BIG, i, c.rank), peer, async_op=True) for i in range(2)]
        got = [np.zeros(BIG, np.uint8) for _ in range(2)]
        receives = [c.recv(data, peer, async_op=True) for data in got]
        for message in (*sends, *receives) if c.rank < peer else (*reversed(receives), *sends):
            message.wait()
        for i, data in enumerate(got):
            assert np.array_equal(data, noise(BIG, i, peer))


@case
def from_anyone(c: Communicator) -> None:
    """All ranks' messages of one length arrive, those of each in their order, between such as come from one that is named."""
    for tag, size in ((1, BIG), (2, 3)):
        if c.rank:
            for i in range(3):
                c.send(noise(size, i, c.rank), 0, tag)
            c.send(noise(size + LONG, c.rank), 0, tag + 2)
            continue
        seen = [0] * c.size
        for _ in range(3 * (c.size - 1)):
            source = c.recv(got := np.zeros(size, np.uint8), None, tag)
            assert np.array_equal(got, noise(size, seen[source], source)), (size, source)
            seen[source] += 1
        assert seen[1:] == [3] * (c.size - 1)
        for source in range(1, c.size):
            assert c.recv(got := np.zeros(size + LONG, np.uint8), source, tag + 2) == source
            assert np.array_equal(got, noise(size + LONG, source))


@case
def to_oneself(c: Communicator) -> None:
    for peer in (c.rank, None):
        send = c.send(noise(BIG, c.rank), c.rank, async_op=True)
        assert c.recv(got := np.zeros(BIG, np.uint8), peer) == c.rank
        send.wait()
        assert np.array_equal(got, noise(BIG, c.rank))


@case
def any_layout(c: Communicator) -> None:
    left, right = ring(c)
    mine = np.arange(1_000_000, dtype=np.float32).reshape(1000, 1000) + c.rank
    got = np.zeros((1000, 1000), np.float32)
    send = c.send(mine[:, ::2], right, async_op=True)
    c.recv(got[::2].T, left)
    send.wait()
    theirs = np.arange(1_000_000, dtype=np.float32).reshape(1000, 1000) + left
    assert np.array_equal(got[::2].T, theirs[:, ::2])
    assert not got[1::2].any()


@case
def bytes_are_the_senders_again_when_the_send_is_over(c: Communicator) -> None:
    left, right = ring(c)
    mine = noise(3 * LONG, c.rank)
    send = c.send(mine, right, async_op=True)
    c.barrier()
    if noted(c, right):
        assert not send.done()  # nobody has asked for it
    c.barrier()
    got = np.zeros(3 * LONG, np.uint8)
    receive = c.recv(got, left, async_op=True)
    send.wait()
    mine[:] = 0
    receive.wait()
    assert np.array_equal(got, noise(3 * LONG, left))


@case
def from_many_threads(c: Communicator) -> None:
    left, right = ring(c)
    problems: list[BaseException] = []

    def run(tag: int) -> None:
        try:
            for i, size in enumerate(SIZES):
                send = c.send(noise(size, i, tag, c.rank), right, tag, async_op=True)
                c.recv(got := np.zeros(size, np.uint8), left, tag)
                assert np.array_equal(got, noise(size, i, tag, left)), (tag, i)
                send.wait()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=run, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


@case
def receivers_that_wait_in_a_collective(c: Communicator) -> None:
    if c.rank == 0:
        receive = c.recv(got := np.zeros(BIG, np.uint8), 1, async_op=True)
    elif c.rank == 1:
        c.send(noise(BIG, 1), 0)
    c.barrier()
    if c.rank == 0:
        receive.wait()
        assert np.array_equal(got, noise(BIG, 1))


@case
def timeouts(c: Communicator) -> None:
    """What was not there in time may come later."""
    if c.rank == 0:
        late = c.send(noise(BIG, 1), 1, async_op=True)
        if noted(c, 1):
            with pytest.raises(CollectiveTimeout, match=r"send to rank 1 with tag 0 did not end within its timeout of 0.1 s"):
                late.wait(0.1)
        c.send(np.zeros(1, np.uint8), 1, 3)
        late.wait()
        c.recv(np.zeros(1, np.uint8), 1, 3)
        c.send(noise(BIG, 2), 1, 4)
    elif c.rank == 1:
        c.recv(np.zeros(1, np.uint8), 0, 3)
        c.recv(got := np.zeros(BIG, np.uint8), 0)
        assert np.array_equal(got, noise(BIG, 1))
        late = c.recv(got, 0, 4, async_op=True)
        with pytest.raises(CollectiveTimeout, match=r"recv from rank 0 with tag 4 did not end within its timeout of 0.1 s"):
            late.wait(0.1)
        c.send(np.zeros(1, np.uint8), 0, 3)
        late.wait()
        assert np.array_equal(got, noise(BIG, 2))


@case
def a_send_that_is_out_of_time_is_not_read(c: Communicator) -> None:
    """Nor what was read before that: its bytes may have changed meanwhile. What follows arrives."""
    if c.rank > 1 or not noted(c, 1 - c.rank):
        return
    if c.rank == 0:
        for tag in (0, 1):
            with pytest.raises(CollectiveTimeout, match=rf"send to rank 1 with tag {tag} did not end within its timeout of 0.2 s"):
                c.send(np.ones(BIG, np.uint8), 1, tag, timeout=0.2)
            c.send(np.ones(1, np.uint8), 1, 2)
            c.send(noise(BIG, tag), 1, tag)
        return
    error = r"recv from rank 0 with tag %d failed: .*: the sender has given it up"
    c.recv(np.zeros(1, np.uint8), 0, 2)
    with pytest.raises(TransportError, match=error % 0):
        c.recv(got := np.zeros(BIG, np.uint8), 0, 0)
    c.recv(got, 0, 0)
    assert np.array_equal(got, noise(BIG, 0))

    with reading_until_given_up(c, 0), pytest.raises(TransportError, match=error % 1):
        c.recv(got, 0, 1)
    c.recv(np.zeros(1, np.uint8), 0, 2)
    c.recv(got, 0, 1)
    assert np.array_equal(got, noise(BIG, 1))


@case
def other_lengths_than_expected(c: Communicator) -> None:
    """Both sides hear of it where one of them would wait for the other."""
    lengths = [
        (BIG, 4), (4, BIG), (BIG, LONG), (LONG, BIG), (0, LONG), (LONG, 0), (LONG, 100_000), (BIG, NOTE_BYTES), (NOTE_BYTES, BIG)
    ]  # fmt: skip
    for tag, (sent, expected) in enumerate(lengths):
        for peer in (0, None):
            tag += len(lengths) * (peer is None)
            if c.rank == 0:
                message = c.send(np.zeros(sent, np.uint8), 1, tag, async_op=True)
                if noted(c, 1) and sent >= LONG:
                    with pytest.raises(
                        TransportError, match=rf"send to rank 1 .*, {sent} bytes\) failed: met a receive of {expected} bytes"
                    ):
                        message.wait()
            elif c.rank == 1:
                with pytest.raises(TransportError, match=rf"recv from .* with tag {tag} failed: .*message of {sent} bytes"):
                    c.recv(np.zeros(expected, np.uint8), peer, tag)
    c.barrier()
    left, right = ring(c)
    send = c.send(noise(BIG, c.rank), right, 99, async_op=True)
    c.recv(got := np.zeros(BIG, np.uint8), left, 99)
    send.wait()
    assert np.array_equal(got, noise(BIG, left))


@case
def the_system_refuses(c: Communicator) -> None:
    """Both sides hear of it, and what follows arrives."""
    left, right = ring(c)
    if not noted_by_all(c):
        return

    def refuse(real, address: int, nbytes: int, target: int) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    send = c.send(noise(BIG, c.rank), right, async_op=True)
    with (
        reading_with(c, left, refuse),
        pytest.raises(TransportError, match=rf"recv from rank {left} .* cannot be read: Operation not permitted"),
    ):
        c.recv(got := np.zeros(BIG, np.uint8), left)
    with pytest.raises(TransportError, match=rf"send to rank {right} .*: the receiver cannot read it: Operation not permitted"):
        send.wait()
    send = c.send(noise(BIG, c.rank), right, async_op=True)
    c.recv(got, left)
    send.wait()
    assert np.array_equal(got, noise(BIG, left))


@case
def senders_that_close_their_group(c: Communicator) -> None:
    """Nobody takes for a message what its sender has given up."""
    inner = c.subgroup(range(c.size), 900, "inner", LIMIT)
    if c.rank == 0:
        message = inner.send(np.ones(BIG, np.uint8), 1, async_op=True)
        inner.transport.close()
        if noted(c, 1):
            with pytest.raises(TransportError, match=r"send to rank 1 with tag 0 failed: .*still open when the transport was closed"):
                message.wait()
    c.barrier()
    if c.rank == 1 and noted(c, 0):
        with pytest.raises(TransportError, match=r"recv from rank 0 .*the sender has given it up"):
            inner.recv(np.zeros(BIG, np.uint8), 0)
    c.barrier()
    inner.abort()
    inner.transport.close()
    inner.close()


@case
def senders_that_abort(c: Communicator) -> None:
    """Nobody reads their memory any more, nor believes what was read before; what they begin after that fails at once."""
    given_up = r"recv from rank 0 .*the sender has given it up"
    for number, before in ((902, True), (903, False)):
        inner = c.subgroup(range(c.size), number, "inner", LIMIT)
        if c.rank == 0 and noted(c, 1):
            mine = np.ones(BIG, np.uint8)
            message = inner.send(mine, 1, async_op=True)
            if not before:
                time.sleep(0.2)
            with notes_module._lock, inner.transport._lock:  # as a signal handler may find them
                inner.abort("it rains")
            for _ in range(2):
                with pytest.raises(TransportError, match=r"send to rank 1 with tag 0 failed: .*group inner: it rains"):
                    message.wait()
                message = inner.send(mine, 1, async_op=True)
            c.barrier()
        elif c.rank == 1 and noted(c, 0):
            if before:
                c.barrier()
                with pytest.raises(TransportError, match=given_up):
                    inner.recv(np.zeros(BIG, np.uint8), 0)
            else:
                with reading_until_given_up(inner, 0), pytest.raises(TransportError, match=given_up):
                    inner.recv(np.zeros(BIG, np.uint8), 0)
                c.barrier()
        else:
            c.barrier()
        c.barrier()
        inner.abort()
        inner.transport.close()
        inner.close()


@case
def senders_that_are_interrupted(c: Communicator) -> None:
    """By an exception of a signal handler: the bytes are theirs again."""
    if c.rank > 1 or not noted(c, 1 - c.rank):
        return
    if c.rank == 1:
        c.recv(np.zeros(1, np.uint8), 0, 1)
        with pytest.raises(TransportError, match=r"recv from rank 0 .*the sender has given it up"):
            c.recv(np.zeros(BIG, np.uint8), 0)
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            c.send(np.ones(BIG, np.uint8), 1)
    finally:
        signal.signal(signal.SIGALRM, before)
    c.send(np.zeros(1, np.uint8), 1, 1)


@case
def bytes_are_free_only_when_nobody_trusts_them(c: Communicator) -> None:
    """A send that fails because its group is closed has broken its seal by then."""
    inner = c.subgroup(range(c.size), 904, "inner", LIMIT)
    if c.rank == 0 and noted(c, 1):
        message = inner.send(np.ones(BIG, np.uint8), 1, async_op=True)
        real, done = notes(inner).close, []

        def close(*why: str) -> None:
            done.append(message._request.done)
            real(*why)
            assert not notes(inner)._open

        notes(inner).close = close
        inner.transport.close()
        assert done == [False]
        assert message._request.done
    c.barrier()
    inner.abort()
    inner.transport.close()
    inner.close()


@case
def bytes_are_free_only_when_nobody_writes_them(c: Communicator) -> None:
    """A receive that fails because its group is closed is not being read any more by then."""
    inner = c.subgroup(range(c.size), 905, "inner", LIMIT)
    if c.rank == 1 and noted(c, 0):
        done = []
        closing = threading.Thread(target=inner.transport.close)

        def read(real, address: int, nbytes: int, target: int) -> None:
            if nbytes == BIG:
                closing.start()
                while not inner.transport._closed:
                    time.sleep(0.001)
                time.sleep(0.1)
                real(address, nbytes, target)
                done.append(message._request.done)
            else:
                real(address, nbytes, target)

        message = inner.recv(np.zeros(BIG, np.uint8), 0, async_op=True)
        with reading_with(inner, 0, read):
            c.barrier()
            with pytest.raises(TransportError, match=r"still open when the transport was closed"):
                message.wait()
        closing.join()
        assert done == [False]
    else:
        c.barrier()
        if c.rank == 0 and noted(c, 1):
            inner.send(np.ones(BIG, np.uint8), 1, async_op=True)
    c.barrier()
    inner.abort()
    inner.transport.close()
    inner.close()


@case
def sends_that_nobody_waits_for(c: Communicator) -> None:
    """Their bytes live until they have been read."""
    left, right = ring(c)
    for i in range(4):
        c.send(noise(BIG, i, c.rank), right, i, async_op=True)
    gc.collect()
    others = [np.full(BIG, 255, np.uint8) for _ in range(4)]
    c.barrier()
    for i in range(4):
        c.recv(got := others[i], left, i)
        assert np.array_equal(got, noise(BIG, i, left))
    c.barrier()


@case
def what_begins_like_a_note(c: Communicator) -> None:
    """And comes from a rank that sends none is a message."""
    left, right = ring(c)
    if noted(c, left) and noted(c, right):
        return
    fake = np.frombuffer(_NOTE.pack(_MAGIC, BIG, 1, 1, 1), np.uint8)
    if not noted(c, right):
        c.send(fake, right)
    if not noted(c, left):
        c.recv(got := np.zeros(NOTE_BYTES, np.uint8), left)
        assert np.array_equal(got, fake)


@case
def receivers_that_close_their_group(c: Communicator) -> None:
    """Nothing is written where a message should have gone, and the sender hears of it when its time is over."""
    inner = c.subgroup(range(c.size), 901, "inner", LIMIT)
    got = np.zeros(BIG, np.uint8)
    if c.rank == 1:
        inner.recv(got, 0, async_op=True)
        inner.transport.close()
    c.barrier()
    if c.rank == 0 and noted(c, 1):
        with pytest.raises(CollectiveTimeout, match=r"send to rank 1 with tag 0 did not end within its timeout of 0.2 s"):
            inner.send(np.ones(BIG, np.uint8), 1, timeout=0.2)
    c.barrier()
    assert not got.any()
    inner.abort()
    inner.transport.close()
    inner.close()


@case
def a_fork_of_the_sender(c: Communicator) -> None:
    """Has a copy of the bytes, of the seal and of the locks, of its own, whoever held one."""
    if c.rank > 1 or c.transport.name == "gloo":  # whose threads a fork does without
        return
    if c.rank == 1:
        c.recv(np.zeros(1, np.uint8), 0, 1)
        c.recv(got := np.zeros(BIG, np.uint8), 0)
        assert np.array_equal(got, noise(BIG, 0))
        return
    mine = noise(BIG, 0)
    send = c.send(mine, 1, async_op=True)
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with notes_module._lock:
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        signal.alarm(int(LIMIT))  # ends it if it hangs
        mine[:] = 0
        c.transport.give_up(send._request)
        os._exit(0)
    over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    c.send(np.zeros(1, np.uint8), 1, 1)
    send.wait()


if __name__ == "__main__":
    sys.exit(CASES.main(sys.argv[1], sys.argv[2:], lambda world: f", notes: {notes(world) is not None}"))
