"""Calls that differ between ranks, ranks that are absent, raise, leave or die: all others raise, soon, and say what it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from call_cases import CASES, run_case
from torch_ranks import all_well, run_ranks

from topoccl.collectives.communicator import Communicator
from topoccl.collectives.config import Config
from topoccl.collectives.setup import connect
from topoccl.collectives.transports.memory import MemoryHub

PROGRAM = str(Path(__file__).resolve().parent / "call_cases.py")
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
    on_threads(hosts, lambda world: run_case(world, name, 1))


@pytest.mark.parametrize("hosts", ["aa", "aab"])
def test_over_gloo(hosts: str) -> None:
    results = run_ranks(len(hosts), [PROGRAM, hosts], env={"TOPOCCL_TRANSPORT": "gloo"})
    all_well(results)
    assert all("all well over gloo" in text for _, text in results)


@pytest.mark.parametrize("hosts", ["aa", "aab"])
def test_over_mpi(hosts: str, mpirun: MpiRun) -> None:
    done = mpirun(len(hosts), "python", PROGRAM, hosts, env={"TOPOCCL_TRANSPORT": "mpi"}, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all well over mpi") == len(hosts)
