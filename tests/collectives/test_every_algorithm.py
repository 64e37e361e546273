"""Every variant of every algorithm in real processes: shared memory inside hosts, sockets, MPI or Gloo between them
(see every_algorithm.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from topoccl.algorithms.registry import ALGORITHMS

SCRIPT = Path(__file__).with_name("every_algorithm.py")
RUNS = sum(
    (1 if collective == "barrier" else 2) * len(algorithm.variants) for algorithm in ALGORITHMS for collective in algorithm.collectives
)


@pytest.mark.parametrize(
    ("transport", "hosts"),
    [
        *(("tcp", hosts) for hosts in ("ab", "aba", "aabc", "abbca", "aabacbda")),
        *(("mpi", hosts) for hosts in ("ab", "aabc", "aabacbda")),
        *(("gloo", hosts) for hosts in ("aba", "abbca", "aabacbda")),
    ],
)
def test_results_and_counters_are_exact(mpirun: Callable[..., object], transport: str, hosts: str) -> None:
    env = {"TOPOCCL_TRANSPORT": transport, "PYTHONPATH": str(SCRIPT.parent)}
    done = mpirun(len(hosts), sys.executable, str(SCRIPT), hosts, env=env, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"ran {RUNS}" in done.stdout
