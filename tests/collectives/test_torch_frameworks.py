"""What builds on groups of the backend: torch's own training and groups in all forms; the checks are in torch_*_checks modules.

Each test forks several worlds from one process, since importing what they need takes longer than the checks.
"""

from __future__ import annotations

import pytest
from torch_worlds import run_worlds

pytest.importorskip("torch.distributed")


def test_interface() -> None:
    slow = ["a_thousand_groups_leave_nothing", "more_than_two_billion_elements"]
    modules = ["torch_interface_checks", "torch_misuse_checks"]
    run_worlds(modules, [{"size": 2}, {"size": 3, "hosts": "aab", "without": slow}, {"size": 1, "without": slow}])


def test_training() -> None:
    modules = ["torch_ddp_checks", "torch_sharding_checks"]
    two_dimensions = ["fsdp1_hybrid", "fsdp2_hybrid", "fsdp2_with_tensor_parallelism", "meshes_of_two_and_three_dimensions"]
    run_worlds(modules, [{"size": 2}, {"size": 4, "hosts": "aabb", "checks": two_dimensions}])


def test_pipelines_checkpoints_and_gradients() -> None:
    checks = ["pipelines", "checkpoints", "collectives_with_gradients", "functional_collectives_of_all_kinds"]
    run_worlds(["torch_pipeline_checks"], [{"size": size, "hosts": hosts, "checks": checks} for size, hosts in ((2, "aa"), (3, "aab"))])


def test_compiled() -> None:
    checks = [
        "compiled_functional_collectives", "compiled_calls_in_place", "compiled_ddp", "compiled_fsdp2", "graph_breaks_around_other_calls",
    ]  # fmt: skip
    # Where inductor finds a compiler, that takes most of the time.
    run_worlds(["torch_compile_checks"], [{"size": 2, "checks": checks}], env={"CALL_SECONDS": "200"}, timeout=600)


@pytest.mark.parametrize("hosts", ["ab", "aab"])
def test_matrix(hosts: str) -> None:
    """Collectives against types, reductions and layouts, over shared memory, over Gloo, and over both."""
    run_worlds(["torch_matrix"], [{"size": len(hosts), "hosts": hosts, "checks": ["matrix"]}])
