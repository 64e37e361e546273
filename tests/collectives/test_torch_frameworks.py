"""What builds on groups of the backend: torch's own training and groups in all forms; the checks are in torch_*_checks modules.

Each test forks several worlds from one process, since importing what they need takes longer than the checks.
"""

from __future__ import annotations

import pytest
from torch_worlds import run_worlds

pytest.importorskip("torch.distributed")


def test_interface() -> None:
    slow = "a_thousand_groups_leave_nothing"
    run_worlds(["torch_interface_checks"], [{"size": 2}, {"size": 3, "hosts": "aab", "without": [slow]}, {"size": 1, "without": [slow]}])


def test_training() -> None:
    modules = ["torch_ddp_checks", "torch_sharding_checks"]
    two_dimensions = ["fsdp1_hybrid", "fsdp2_hybrid", "fsdp2_with_tensor_parallelism", "meshes_of_two_and_three_dimensions"]
    run_worlds(modules, [{"size": 2}, {"size": 4, "hosts": "aabb", "checks": two_dimensions}])
