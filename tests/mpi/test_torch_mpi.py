"""The torch backend over MPI, begun without any of torch's variables; each check runs on all ranks of mpirun at once.

What the checks are is said in tests/collectives/torch_*_checks.py. No collective of MPI or of Gloo is allowed meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("torch.distributed")

import torch.distributed as dist
import torch_collective_checks
import torch_group_checks
import torch_matrix
import torch_training_checks
from torch_reference import CHECKS, forbid_collectives, forbidding_works

_ = torch_collective_checks, torch_group_checks, torch_matrix  # which fill CHECKS
_RANKS_PER_HOST = 2  # of the hosts that are pretended


@pytest.fixture(scope="module")
def group() -> Iterator[Any]:
    patch = pytest.MonkeyPatch()
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    patch.setenv("TOPOCCL_HOSTID", f"pretended {rank // _RANKS_PER_HOST}")
    patch.setenv("TOPOCCL_TRANSPORT", "mpi")
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        patch.delenv(name, raising=False)
    forbid_collectives(patch.setattr)
    forbidding_works()
    dist.init_process_group("topoccl", timeout=timedelta(seconds=120))
    yield dist.group.WORLD
    dist.destroy_process_group()
    patch.undo()


def test_the_transport_is_mpi(group: Any) -> None:
    assert group.communicator.transport.name == "mpi"
    assert group.rank() == int(os.environ["OMPI_COMM_WORLD_RANK"])


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", [name for name in CHECKS if name != "functional_collectives"])
def test_check(name: str, group: Any) -> None:
    if CHECKS[name].__module__ == torch_training_checks.__name__ and group.size() > 2:
        pytest.skip("training is checked with two ranks: importing what it needs takes long")
    CHECKS[name]()
