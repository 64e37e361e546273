"""A call of a group that is made while another one of it is under way on the same thread, as a signal handler can."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from topoccl.collectives.communicator import Communicator
from topoccl.collectives.config import Config
from topoccl.collectives.errors import TopocclError
from topoccl.collectives.setup import connect
from topoccl.collectives.transports.memory import MemoryHub

CALLS: list[Callable[[Communicator], Any]] = [
    lambda comm: comm.all_reduce(np.ones(3)),
    lambda comm: comm.barrier(),
    lambda comm: comm.all_reduce(np.ones(3), async_op=True).wait(),  # type: ignore[union-attr]
    lambda comm: comm.together(lambda: comm.barrier()),
]


@pytest.fixture
def handled() -> Any:
    """Sets the handler of SIGUSR1."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("calls_before", [0, 1, 12])  # planned, planned before, and a function of its own
@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_a_call_by_a_signal_handler_is_refused(hosts: str, calls_before: int, handled: Any) -> None:
    hub = MemoryHub(2)
    main = threading.main_thread().ident
    assert main is not None
    worlds: list[Communicator] = []  # of the main thread
    raised: list[str] = []
    sums: list[list[float]] = []
    interrupted = threading.Event()

    def interrupt(*_: Any) -> None:
        """Makes calls inside the one that waits for the other rank; where that has not begun yet, a little later."""
        if not worlds or worlds[0].stats()["calls"] <= calls_before:
            threading.Timer(0.01, signal.pthread_kill, [main, signal.SIGUSR1]).start()
            return
        for call in CALLS:
            try:
                call(worlds[0])
            except TopocclError as error:
                raised.append(str(error))
        interrupted.set()

    def run(rank: int) -> None:
        comm = connect(hub.transport(rank), Config(hostid=hosts[rank], timeout=60.0))
        for _ in range(calls_before):
            comm.all_reduce(np.ones(3))
        if rank == 0:
            worlds.append(comm)
        else:
            signal.pthread_kill(main, signal.SIGUSR1)
            assert interrupted.wait(30)
        for _ in range(2):
            data = np.ones(3)
            comm.all_reduce(data)
            sums.append(data.tolist())
        comm.close()

    handled(interrupt)
    other = threading.Thread(target=run, args=(1,), daemon=True)
    other.start()
    run(0)
    other.join(60)
    assert not other.is_alive()
    assert len(raised) == len(CALLS)
    assert all("was called inside all_reduce(float64, 3, SUM)" in text and "signal handler" in text for text in raised), raised
    assert sums == [[2.0] * 3] * 4
