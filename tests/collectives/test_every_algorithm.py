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
    ("transport", "jobs"),
    [
        ("tcp", ["aabacbda", "abbca+aba", "aabc+ab"]),
        ("mpi", ["aabacbda", "aabc+ab"]),
        ("gloo", ["aabacbda", "abbca+aba"]),
    ],
)
def test_results_and_counters_are_exact(mpirun: Callable[..., object], transport: str, jobs: list[str]) -> None:
    env = {"TOPOCCL_TRANSPORT": transport}
    done = mpirun(8, sys.executable, str(SCRIPT), *jobs, env=env, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    for together in jobs:
        for hosts in together.split("+"):
            assert f"ran {RUNS} on hosts {hosts}\n" in done.stdout
