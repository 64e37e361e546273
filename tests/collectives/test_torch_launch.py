"""How groups of the torch backend begin and end: launchers, addresses, leaving without a word, wrong settings."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch_ranks import HERE, all_well, clean_environment, free_port, run_ranks

LAUNCH = str(HERE / "torch_launch.py")
Mpirun = Callable[..., "subprocess.CompletedProcess[str]"]


def test_destroy_and_begin_again() -> None:
    results = run_ranks(3, [LAUNCH, "meet"])
    all_well(results)
    assert all("met over gloo" in text for _, text in results)


def test_addresses_and_a_group_in_a_world_of_gloo(tmp_path: Path) -> None:
    all_well(run_ranks(2, [LAUNCH, "addresses", f"tcp://127.0.0.1:{free_port()}", f"file://{tmp_path / 'store'}"]))


def test_torchrun() -> None:
    pytest.importorskip("torch.distributed.run")
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()), LAUNCH, "meet"]
    process = subprocess.Popen(
        argv, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
    assert process.returncode == 0, out
    assert out.count("met over gloo") == 2


@pytest.mark.parametrize(("transport", "addresses", "name"), [("auto", ["mpi://"], "mpi"), ("gloo", [], "gloo")])
def test_mpirun(mpirun: Mpirun, transport: str, addresses: list[str], name: str) -> None:
    done = mpirun(2, sys.executable, LAUNCH, "meet", *addresses, env={"TOPOCCL_TRANSPORT": transport})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"met over {name}") == 2


def test_leaving_without_a_word() -> None:
    results = run_ranks(2, [LAUNCH, "leave"], timeout=60)
    all_well(results)
    assert all(text == "left\n" for _, text in results)


def test_workers_that_are_forked() -> None:
    all_well(run_ranks(2, [LAUNCH, "load_data"]))


def test_different_groups_at_once_fail_in_time() -> None:
    results = run_ranks(3, [LAUNCH, "swapped"], timeout=60)
    all_well(results)
    first, second = (
        f"MismatchError new_group: rank 0 makes group {group} of ranks {ranks}; all ranks must make the same groups in the same order"
        for group, ranks in ((1, "[0, 1, 2], rank 1 of ranks [0, 1]"), (2, "[0, 1], rank 1 of ranks [1, 2]"))
    )
    late = "CollectiveTimeout new_group {} of ranks {}: rank {} did not come within 2 s".format
    absent = [late(4, [0, 1, 2], 2), late(5, [0, 1, 2], 0)]
    of_others = re.compile(re.escape(absent[1]).replace("CollectiveTimeout", "CollectiveTimeout rank [12]:", 1))
    assert results[0][1].splitlines()[:-1] == [first, second, "none of 1 2", absent[0]]
    assert of_others.fullmatch(results[0][1].splitlines()[-1])
    assert results[1][1].splitlines() == [first, "made 1 2", late(3, [0, 1], 0), *absent]
    assert results[2][1].splitlines() == ["none of 0 1", "made 1 2", "none of 0 1", *absent]


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_longer_timeouts_than_the_worlds_are_kept(hosts: str) -> None:
    results = run_ranks(2, [LAUNCH, "patient"], hosts=hosts, timeout=60)
    all_well(results)
    assert all("patient" in text for _, text in results)


def test_destroying_alone_is_bounded_and_said() -> None:
    results = run_ranks(2, [LAUNCH, "alone_to_the_end"], timeout=60)
    all_well(results)
    assert "destroyed" in results[0][1]
    assert "not all ranks have called it within 5 s" in results[0][1]
    assert "rank 1" in results[0][1]


def test_ranks_that_are_told_different_numbers_of_ranks() -> None:
    results = run_ranks(2, [LAUNCH, "sizes"], timeout=60)
    all_well(results)
    text = "init_process_group: rank 0 is told that there are 2 ranks, rank 1 that there are 3\n"
    assert [said for _, said in results] == [text, text]


def test_settings_that_cannot_be_used_are_an_error_on_every_rank() -> None:
    wrong = {
        "TOPOCCL_TRANSPORT=carrier pigeon": "ConfigError rank 0: TOPOCCL_TRANSPORT='carrier pigeon': unknown value",
        "TOPOCCL_TRANSPORT=mpi": "is not a rank of one MPI job (start the ranks with mpirun)",
        "TOPOCCL_TRANSPORT=memory": "transport memory: it joins threads of one process",
        "1TOPOCCL_TRANSPORT=gloo": "ranks must agree, but TOPOCCL_TRANSPORT is 'auto' on rank 0, 'gloo' on rank 1",
        "1TOPOCCL_TIMEOUT=never": "ConfigError rank 1: TOPOCCL_TIMEOUT='never'",
        "TOPOCCL_ALGO=all_reduce:rign": "rign",
    }
    results = run_ranks(2, [LAUNCH, "fail", *wrong], timeout=60)
    all_well(results)
    for _, said in results:
        for line, text in zip(said.splitlines(), wrong.values(), strict=True):
            assert text in line
