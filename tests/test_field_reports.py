"""What users of neighbouring libraries ran into, each kind of fault with the tests that keep it out.

The numbers are those of the list of reports that the project was given; a test is named by its file and the function in it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent

REPORTS: dict[int, tuple[str, list[str]]] = {
    1: (
        "strided tensors give silently wrong results",
        ["collectives/torch_matrix.py::matrix", "collectives/torch_collective_checks.py::every_layout"],
    ),
    2: ("a strided scatter is wrong", ["collectives/torch_matrix.py::matrix"]),
    3: ("crash at zero elements", ["collectives/torch_matrix.py::matrix", "collectives/torch_collective_checks.py::odd_tensors"]),
    4: ("dtypes refused", ["collectives/torch_matrix.py::matrix"]),
    5: ("complex refused", ["collectives/torch_matrix.py::matrix"]),
    6: ("bfloat16 refused", ["collectives/torch_matrix.py::matrix"]),
    7: ("AVG divides twice or never", ["collectives/torch_matrix.py::matrix", "collectives/torch_sharding_checks.py::fsdp1_strategies"]),
    8: ("MPI adds raw bytes of half precision", ["mpi/test_torch_mpi.py::test_check"]),
    9: ("variants of collectives missing", ["collectives/torch_group_checks.py::methods_by_old_names_and_without_options"]),
    10: ("uneven all_gather raises", ["collectives/torch_collective_checks.py::uneven_movements"]),
    11: (
        "shapes or dtypes differ between ranks",
        [
            "collectives/test_calls_in_step.py::test_over_gloo_and_sockets",
            "collectives/call_cases.py::differing",
            "collectives/torch_misuse_checks.py::lists_and_sparse_tensors_that_differ",
        ],
    ),
    12: ("all_to_all with differing capacities hangs", ["collectives/call_cases.py::counts_that_do_not_fit"]),
    13: ("a differing op or root is missed", ["collectives/call_cases.py::differing"]),
    14: ("misuse of new_group hangs", ["collectives/test_torch_launch.py::test_different_groups_at_once_fail_in_time"]),
    15: ("a timeout does not name absent ranks", ["collectives/call_cases.py::an_absent_rank"]),
    16: (
        "a loopback address between hosts",
        ["collectives/test_bootstrap.py::test_hosts_never_take_loopback_even_where_the_masters_name_means_it"],
    ),
    17: ("an interface pattern crashes", ["collectives/test_bootstrap.py::test_interfaces_asked_for_are_taken"]),
    18: ("IPv4 on one rank, IPv6 on another", ["collectives/test_bootstrap.py::test_all_ranks_take_the_version_of_ip_that_all_have"]),
    19: ("one host name, but no shared memory", ["topology/test_checks.py::test_ranks_that_do_not_share_memory"]),
    20: ("/dev/shm too small", ["topology/test_checks.py::test_dev_shm"]),
    21: ("counts over 2^31", ["collectives/torch_interface_checks.py::more_than_two_billion_elements"]),
    22: ("fork after the start", ["collectives/test_torch_launch.py::test_workers_that_are_forked"]),
    23: ("every rank on one core", ["topology/test_checks.py::test_all_ranks_on_one_core"]),
    24: ("two threads, one group", ["collectives/torch_interface_checks.py::two_threads_on_one_group"]),
    25: ("groups used in different order deadlock", ["collectives/torch_interface_checks.py::groups_used_in_different_order"]),
    26: ("forcing one algorithm breaks another collective", ["algorithms/test_select.py::test_a_forced_algorithm_that_cannot_serve"]),
    28: (
        "a Work without a future breaks DDP",
        ["collectives/torch_group_checks.py::futures", "collectives/torch_ddp_checks.py::ddp_python_hooks"],
    ),
    29: ("destroy on one rank only hangs", ["collectives/test_torch_launch.py::test_destroying_alone_is_bounded_and_said"]),
    31: ("nobody can tell why an algorithm was chosen", ["collectives/torch_group_checks.py::looking_in"]),
    32: ("results depend on size or placement", ["collectives/torch_interface_checks.py::results_are_bitwise_the_same"]),
    34: ("no aggregating all-to-all-v for uneven layouts", ["algorithms/test_builders_all_to_all.py::test_proved_on_random_placements"]),
    35: ("ranks must be packed by node", ["algorithms/test_builders_symmetric.py::test_random_uneven_placements"]),
}
ELSEWHERE = {
    27: "a full mesh of connections above about a thousand ranks: more than one machine can start",
    30: "the network between hosts is not looked at: what the library is for; bench/compare.py and the virtual cluster measure it",
    33: "benchmarks hide which level is slow: what bench/ prints",
}


def test_every_report_is_listed() -> None:
    assert sorted([*REPORTS, *ELSEWHERE]) == list(range(1, 36))


@pytest.mark.parametrize("number", REPORTS)
def test_its_tests_exist(number: int) -> None:
    for test in REPORTS[number][1]:
        file, _, name = test.partition("::")
        assert re.search(rf"^def {name}\(", (TESTS / file).read_text(), re.M), f"report {number}: {test} is not there"
