"""Groups of the torch backend, as processes that meet by env://; what each rank checks is in the torch_*_checks modules."""

from __future__ import annotations

import pytest
from torch_ranks import CHECKS, all_well, run_ranks

pytest.importorskip("torch.distributed")

# importing what functional collectives need takes seconds, so one of the groups does it for all
_NOT_FUNCTIONAL = ["--except", "functional_collectives"]


def test_one_rank() -> None:
    results = run_ranks(1, [CHECKS, *_NOT_FUNCTIONAL])
    all_well(results)
    assert "all well over memory" in results[0][1]


def test_two_ranks_of_one_host() -> None:
    results = run_ranks(2, [CHECKS])
    all_well(results)
    assert "all well over gloo" in results[0][1]


def test_three_ranks_on_two_hosts_without_collectives_of_gloo() -> None:
    all_well(run_ranks(3, [CHECKS, "--forbid", *_NOT_FUNCTIONAL], hosts="aab"))


def test_three_ranks_that_share_no_memory() -> None:
    checks = ["reductions_of_every_kind", "every_layout", "uneven_movements", "messages", "asynchronous_calls", "subgroups"]
    all_well(run_ranks(3, [CHECKS, *checks], env={"TOPOCCL_SHM": "0"}))
