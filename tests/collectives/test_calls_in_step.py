"""Calls that differ between ranks, ranks that are absent, raise, leave or die: all others raise, soon, and say what it was."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from call_cases import CASES, floats
from torch_ranks import HERE, all_well, clean_environment, run_ranks

from topoccl.collectives.communicator import Communicator
from topoccl.collectives.config import Config
from topoccl.collectives.errors import CollectiveTimeout
from topoccl.collectives.logging import Level
from topoccl.collectives.setup import connect
from topoccl.collectives.transports.memory import MemoryHub

PROGRAM = str(HERE / "call_cases.py")
KILLED = list(itertools.product(["gloo", "tcp"], ["aaa", "aab", "abc"], ["before", "in"]))
MpiRun = Callable[..., Any]


def on_threads(hosts: str, work: Callable[[Communicator], Any], **options: Any) -> list[Any]:
    """What ``work`` returns on each rank; raises what one raises."""
    hub = MemoryHub(len(hosts))
    results: list[Any] = [None] * len(hosts)
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            world = connect(hub.transport(rank), Config(hostid=hosts[rank], **{"timeout": 60.0, **options}))
            results[rank] = work(world)
            world.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), f"a rank hangs (others: {errors})"
    if errors:
        raise errors[0]  # the others' are mostly its consequences
    return results


@pytest.mark.parametrize("hosts", ["aa", "ab", "aaa", "aabb", "abcde"])
@pytest.mark.parametrize("name", CASES)
def test_over_threads(name: str, hosts: str) -> None:
    on_threads(hosts, lambda world: CASES.run(world, name, 1))


@pytest.mark.parametrize(("transport", "hosts"), [("gloo", "aa"), ("gloo", "aab"), ("tcp", "aab")])
def test_over_gloo_and_sockets(transport: str, hosts: str) -> None:
    results = run_ranks(len(hosts), [PROGRAM, hosts], env={"TOPOCCL_TRANSPORT": transport})
    all_well(results)
    assert all(f"all well over {transport}" in text for _, text in results)


@pytest.mark.parametrize("hosts", ["aa", "aab"])
def test_over_mpi(hosts: str, mpirun: MpiRun) -> None:
    done = mpirun(len(hosts), "python", PROGRAM, hosts, env={"TOPOCCL_TRANSPORT": "mpi"}, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all well over mpi") == len(hosts)


@pytest.fixture(scope="module")
def killed() -> dict[tuple[str, str, str], Any]:
    """What became of each world of which a rank was killed."""
    argv = [sys.executable, str(HERE / "killed_ranks.py"), json.dumps(KILLED)]
    process = subprocess.Popen(argv, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        said, _ = process.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
    assert process.returncode == 0, said.decode()
    return dict(zip(KILLED, json.loads(said), strict=True))


@pytest.mark.parametrize(("transport", "hosts", "when"), KILLED)
def test_a_rank_that_is_killed(killed: dict[tuple[str, str, str], Any], transport: str, hosts: str, when: str) -> None:
    found = killed[transport, hosts, when]
    results = found["ranks"]
    assert [status for status, _ in results] == [0, -9, 0], results
    assert not found["left"]
    for rank in (0, 2):
        assert "barrier() (call 2 of group world" in results[rank][1]
        assert "rank 1" in results[rank][1]
    if hosts == "aaa":
        how = "in this call" if when == "in" else "after call 1, all_reduce(float64, 3, SUM)"
        assert f"has died {how}" in results[0][1]


def test_calls_that_come_again_and_again_have_the_timeout_that_they_are_given() -> None:
    """Also in what a rank is told by the one that noticed it first."""

    def work(world: Communicator) -> None:
        data = floats(4)
        for _ in range(10):
            world.all_reduce(data)
        if world.rank == 2:
            time.sleep(2.5)
            return
        with pytest.raises(CollectiveTimeout, match=r"timeout of 0\.3 s.*rank 2 has not called it") as raised:
            world.all_reduce(data, timeout=0.3)
        assert "60 s" not in str(raised.value)

    on_threads("aaa", work)


def test_every_rank_writes_its_last_calls_when_asked(capfd: pytest.CaptureFixture[str]) -> None:
    def work(world: Communicator) -> None:
        world.barrier()
        other = world.subgroup([0, 1], 1, "other")
        other.broadcast(floats(2))
        if world.rank == 0:
            with pytest.raises(CollectiveTimeout, match="rank 1 has not called it"):
                world.all_reduce(floats(5), timeout=0.3)
        else:
            time.sleep(1.5)

    on_threads("aa", work, debug=Level.INFO)
    said = capfd.readouterr().err
    assert "[WARN] COLL group world has failed: all_reduce(float32, 5, SUM) (call 2 of group world, rank 0 of 2)" in said
    assert "COLL rank 0 of group world has made 2 calls, the last ones:" in said
    assert "COLL   2: all_reduce(float32, 5, SUM), not ended" in said
    assert "COLL rank 0 of group other has made 1 calls, the last ones:" in said


def test_a_call_whose_plan_is_known_allocates_no_arrays() -> None:
    size = 1 << 20

    def work(world: Communicator) -> int:
        data, out = np.ones(size, np.float32), np.ones(world.size * size, np.float32)
        peak = 0
        for _ in range(3):
            barrier.wait()
            if world.rank == 0:
                tracemalloc.start()
            barrier.wait()
            world.all_reduce(data)
            world.all_gather(data, out)
            world.broadcast(data)
            barrier.wait()
            if world.rank == 0:
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
        return peak

    barrier = threading.Barrier(2)
    peak = on_threads("aa", work)[0]
    assert 0 < peak < 100_000, peak
