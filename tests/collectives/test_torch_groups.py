"""Groups of the torch backend, as processes that meet by env://; what each rank checks is in the torch_*_checks modules.

Collectives of Gloo raise meanwhile.
"""

from __future__ import annotations

import pytest
from torch_ranks import CHECKS, all_well, run_ranks

pytest.importorskip("torch.distributed")

# Importing what these need takes seconds, so one of the groups does it for all.
_SLOW_IMPORTS = [
    "functional_collectives", "distributed_data_parallel_learns_the_same", "distributed_data_parallel_without_sync_and_with_hooks",
]  # fmt: skip


def test_one_rank() -> None:
    results = run_ranks(1, [CHECKS, "--forbid", "--except", *_SLOW_IMPORTS])
    all_well(results)
    assert "all well over memory" in results[0][1]


def test_two_ranks_of_one_host() -> None:
    results = run_ranks(2, [CHECKS, "--forbid"])
    all_well(results)
    assert "all well over gloo" in results[0][1]


def test_three_ranks_on_two_hosts() -> None:
    all_well(run_ranks(3, [CHECKS, "--forbid", "--except", *_SLOW_IMPORTS], hosts="aab"))


def test_three_ranks_that_share_no_memory() -> None:
    checks = ["reductions_of_every_kind", "every_layout", "uneven_movements", "asynchronous_calls", "subgroups"]
    all_well(run_ranks(3, [CHECKS, "--forbid", *checks], env={"TOPOCCL_SHM": "0"}))
