"""The contract of transports, over threads (memory) and over processes (gloo, tcp). MPI's turn is in tests/mpi."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topoccl.collectives.errors import TransportError
from topoccl.collectives.transports.base import Transport
from topoccl.collectives.transports.memory import MemoryHub

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
CHECKS: dict[str, Callable[[Transport], None]] = importlib.import_module("transport_contract").CHECKS


def on_all_ranks(work: Callable[[Transport], Any], hub: MemoryHub) -> list[Any]:
    """Runs ``work`` on a thread for each rank; raises the first error."""
    results: list[Any] = [None] * hub.size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(hub.transport(rank))
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(hub.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    if errors:
        raise errors[0]
    return results


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("check", CHECKS)
def test_memory(check: str, size: int) -> None:
    on_all_ranks(CHECKS[check], MemoryHub(size))


def test_memory_close_fails_what_is_open_here_and_at_peers() -> None:
    hub = MemoryHub(2)
    here, there = hub.transport(0), hub.transport(1)
    mine = [here.irecv(1, 1, np.zeros(3, np.uint8)), here.isend(1, 2, np.zeros(3, np.uint8))]
    theirs = [there.irecv(0, 1, np.zeros(3, np.uint8)), there.isend(0, 2, np.zeros(3, np.uint8))]
    unconcerned = there.irecv(1, 1, np.zeros(3, np.uint8))
    here.close()
    late = [there.irecv(0, 1, np.zeros(3, np.uint8)), there.isend(0, 2, np.zeros(3, np.uint8))]
    assert all(isinstance(request.error, TransportError) and "still open" in str(request.error) for request in mine)
    assert all(isinstance(request.error, TransportError) and "has closed" in str(request.error) for request in theirs + late)
    assert not unconcerned.done


def test_memory_sees_a_wrong_length() -> None:
    hub = MemoryHub(2)
    send = hub.transport(0).isend(1, 1, np.zeros(3, np.uint8))
    receive = hub.transport(1).irecv(0, 1, np.zeros(4, np.uint8))
    assert send.error is not None
    with pytest.raises(TransportError, match=r"receive from rank 0 \(tag 1, 4 bytes\) met a message of 3 bytes"):
        hub.transport(1).wait([receive], 1.0)


class Ranks:
    """Processes of ``kind``_rank.py."""

    def __init__(self, kind: str, size: int, timeout: float = 60.0, addresses: Sequence[str] = ("127.0.0.1",)) -> None:
        import torch.distributed as dist

        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(HERE / f"{kind}_rank.py"), str(rank), str(size), str(self.store.port), str(timeout), *addresses],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=env,
            )
            for rank in range(size)
        ]

    def tell(self, command: str, rank: int) -> None:
        pipe = self.processes[rank].stdin
        assert pipe is not None
        pipe.write(command + "\n")
        pipe.flush()

    def answer(self, rank: int) -> str:
        pipe = self.processes[rank].stdout
        assert pipe is not None
        return pipe.readline().strip()

    def do(self, command: str) -> None:
        """Has all ranks run ``command``."""
        ranks = range(len(self.processes))
        for rank in ranks:
            self.tell(command, rank)
        answers = [self.answer(rank) for rank in ranks]
        for rank, answer in enumerate(answers):
            assert answer == "ok", f"rank {rank}: {answer.encode().decode('unicode_escape') or 'has died'}"

    def end(self) -> list[int]:
        """Lets the ranks end by themselves and returns their statuses; nothing is left running."""
        try:
            for process in self.processes:
                assert process.stdin is not None
                process.stdin.close()
            for process in self.processes:
                process.wait(30)
        finally:
            for process in self.processes:
                process.kill()
                process.wait()
        return [process.returncode for process in self.processes]


@pytest.fixture(scope="module")
def gloo_ranks() -> Iterator[Ranks]:
    pytest.importorskip("torch")
    ranks = Ranks("gloo", 3)
    yield ranks
    ranks.do("last_words")
    assert ranks.end() == [0, 0, 0]


@pytest.mark.parametrize("check", CHECKS)
def test_gloo(check: str, gloo_ranks: Ranks) -> None:
    gloo_ranks.do(check)


@pytest.fixture(scope="module")
def gloo_rails() -> Iterator[Ranks]:
    pytest.importorskip("torch")
    ranks = Ranks("gloo", 3, addresses=("127.0.0.1", "127.0.0.2"))
    yield ranks
    ranks.do("last_words")
    assert ranks.end() == [0, 0, 0]


@pytest.mark.parametrize(
    "check",
    ["rails_are_independent", "any_source_among_named", "overlapping_subgroups_in_two_threads", "one_done_among_many_is_enough",
     "closing_a_subgroup_fails_what_is_open"],
)  # fmt: skip
def test_gloo_over_rails(check: str, gloo_rails: Ranks) -> None:
    gloo_rails.do(check)


@pytest.mark.parametrize("kind", ["gloo", "tcp"])
def test_death_of_a_rank_is_an_error_not_a_hang(kind: str) -> None:
    ranks = Ranks(kind, 3)
    ranks.do("order_of_one_tag")
    ranks.tell("die", 1)
    ranks.processes[1].wait(30)
    for rank in (0, 2):
        ranks.tell("see_rank_one_die", rank)
    answers = [ranks.answer(rank) for rank in (0, 2)]
    statuses = ranks.end()
    assert answers == ["ok", "ok"]
    assert (statuses[0], statuses[2]) == (0, 0)


def test_gloo_buffers_short_messages_within_bounds_and_closes_in_time() -> None:
    ranks = Ranks("gloo", 2)
    ranks.do("run_ahead")
    ranks.do("shorter_than_expected")
    ranks.do("other_lengths_than_expected")
    ranks.do("close_with_open_messages")
    assert ranks.end() == [0, 0]


@pytest.fixture(scope="module")
def tcp_ranks() -> Iterator[Ranks]:
    pytest.importorskip("torch")
    ranks = Ranks("tcp", 3)
    yield ranks
    ranks.do("last_words")
    assert ranks.end() == [0, 0, 0]


@pytest.mark.parametrize("check", [*CHECKS, "long_message_does_not_wait_for_its_receive"])
def test_tcp(check: str, tcp_ranks: Ranks) -> None:
    tcp_ranks.do(check)


def test_tcp_lengths_threads_and_closing() -> None:
    ranks = Ranks("tcp", 2)
    for command in ("shorter_than_expected", "other_lengths_than_expected", "to_itself_of_another_length", "waits_of_many_threads"):
        ranks.do(command)
    ranks.do("closing_wakes_who_waits")
    assert ranks.end() == [0, 0]


def test_tcp_open_messages_when_a_transport_is_closed() -> None:
    ranks = Ranks("tcp", 3)
    ranks.do("receives_from_any_source_fail_when_nobody_is_left")
    assert ranks.end() == [0, 0, 0]
    for command in ("close_with_open_messages", "long_last_words"):
        ranks = Ranks("tcp", 2)
        ranks.do(command)
        assert ranks.end() == [0, 0]


@pytest.mark.parametrize("rate", [25e6, 3.125e9, 100e9])
def test_tcp_at_any_pace(rate: float) -> None:
    """Also at rates beyond what fits into 31 and 32 bits; a share of it holds from the message that asks for it."""
    from topoccl.collectives.transports.sockets import TOKEN_BYTES, Listener
    from topoccl.collectives.transports.tcp import tcp_transport

    listeners = [Listener("127.0.0.1") for _ in range(2)]
    book = [[("127.0.0.1", listener.port)] for listener in listeners]
    here, there = (tcp_transport(rank, [listeners[rank]], book, bytes(TOKEN_BYTES), 5.0, lambda peer, rail: rate) for rank in range(2))
    got = [np.zeros(40_000, np.uint8) for _ in range(2)]
    requests = [here.irecv(1, 1, one) for one in got] + [
        there.isend(0, 1, np.full(40_000, 3 + at, np.uint8), 0, 1 - at / 2) for at in range(2)
    ]
    here.wait(requests[:2], 10.0, lambda: there.progress([], 0.0))
    assert [set(one) for one in got] == [{3}, {4}]
    put, inbox = here.outlet(1, 2), there.inbox(0, 2)
    put(np.zeros(4, np.uint8), 5)
    for _ in range(1000):
        here.progress([], 0.0)
        there.fill(inbox, 0, 0, 0.01)
        if inbox:
            break
    assert inbox.popleft() == (5, bytes(4))
    here.close()
    there.close()


@pytest.fixture
def tcp_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            yield near, far


def test_tcp_pace_is_that_of_the_last_message_with_a_share(tcp_pair: tuple[socket.socket, socket.socket]) -> None:
    """Short messages must not stay at the pace of a long one before them, and those without a share change nothing."""
    from topoccl.collectives.transports.endpoint import Message
    from topoccl.collectives.transports.sockets import Outgoing

    endpoint: Any = MemoryHub(2).transport(0)
    link = Outgoing(1, 0, tcp_pair[0], 40e6, b"")
    seen = []
    for nbytes, share in ((1 << 20, 0.25), (16, 0.0), (16, 1.0), (1 << 20, 0.5), (1 << 20, 0.0), (1 << 10, 0.5)):
        link.queue(Message(endpoint, True, 1, 0, np.zeros(nbytes, np.uint8), share=share))
        while not link.idle:
            for message in link.push()[0]:
                assert message.nbytes == nbytes
            if nbytes > 1 << 16:
                tcp_pair[1].recv(1 << 20)
        seen.append(int.from_bytes(tcp_pair[0].getsockopt(socket.SOL_SOCKET, 47, 4), sys.byteorder) / 40e6)
    assert seen == [0.25, 0.25, 1.0, 0.5, 0.5, 1.0]


CONTROL = socket.IPPROTO_TCP, socket.TCP_CONGESTION


def test_tcp_connections_settle_without_bbr(tcp_pair: tuple[socket.socket, socket.socket]) -> None:
    from topoccl.collectives.transports.congestion import settle, take

    for control in (b"bbr", b"cubic", b"reno"):
        take(tcp_pair[0], control)
        there = tcp_pair[0].getsockopt(*CONTROL, 16).strip(b"\0") == control  # not every kernel has them all
        settle(tcp_pair[0])
        if there:
            assert tcp_pair[0].getsockopt(*CONTROL, 16).strip(b"\0") == (b"reno" if control == b"bbr" else control)


@pytest.mark.parametrize("short", [True, False])
def test_tcp_keeps_its_window_over_a_pause(tcp_pair: tuple[socket.socket, socket.socket], short: bool) -> None:
    from topoccl.collectives.transports import congestion
    from topoccl.collectives.transports.endpoint import Message
    from topoccl.collectives.transports.sockets import Outgoing

    if not congestion._may_rouse():
        pytest.skip("there is no BBR, or it is not allowed")
    near, far = tcp_pair
    near.setblocking(False)
    near.setsockopt(*CONTROL, b"reno")
    far.settimeout(10.0)

    def window() -> int:
        return int.from_bytes(near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 84)[80:84], sys.byteorder)

    endpoint: Any = MemoryHub(2).transport(0)
    link = Outgoing(1, 0, near, 0.0, b"")

    def send(nbytes: int) -> None:
        link.queue(Message(endpoint, True, 1, 0, np.zeros(nbytes, np.uint8)))
        left = nbytes + 24  # with its header
        while left:
            link.push()
            left -= len(far.recv(1 << 20))

    send(1 << 24)
    before = window()
    assert before > 10
    time.sleep(3 * congestion.IDLE)
    if short:
        assert link.put(1, np.zeros(4, np.uint8), 1) is None
    else:
        send(1 << 10)
    assert window() >= before
    assert near.getsockopt(*CONTROL, 16).strip(b"\0") == b"reno"


def test_tcp_refuses_strangers() -> None:
    """Whoever does not know the job's token is not heard, and does not disturb."""
    from topoccl.collectives.transports.sockets import Listener
    from topoccl.collectives.transports.tcp import tcp_transport

    listeners = [Listener("127.0.0.1") for _ in range(2)]
    book = [[("127.0.0.1", listener.port)] for listener in listeners]
    right, wrong = b"a" * 16, b"b" * 16
    here, stranger = tcp_transport(0, [listeners[0]], book, right, 5.0), tcp_transport(1, [listeners[1]], book, wrong, 5.0)
    stranger.isend(0, 1, np.zeros(3, np.uint8))
    stranger.progress([], 0.0)
    got = here.irecv(1, 1, np.zeros(3, np.uint8))
    with socket.create_connection(book[0][0]) as talker:
        talker.sendall(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n" + b"x" * 100)
        here.progress([got], 0.3)
    assert not (got.done and got.error is None)
    here.close()
    stranger.close()
