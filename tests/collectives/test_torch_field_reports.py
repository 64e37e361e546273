"""Public reports of users of other backends, beside those in tests/test_field_reports.py: a row for each, named as on GitHub.

Those of calls are functions of torch_field_checks, of which two worlds run all; those of how programs begin and end are processes
of their own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from torch_ranks import HERE, all_well, clean_environment, free_port, run_ranks

pytest.importorskip("torch.distributed")
from torch_field_checks import REPORTS

CHECKS, LAUNCH = str(HERE / "torch_field_checks.py"), str(HERE / "torch_field_launch.py")
WORLDS = {"two ranks of one host": "aa", "three ranks on two hosts": "aab"}


@pytest.fixture(scope="module", params=WORLDS.values(), ids=WORLDS)
def said(request: pytest.FixtureRequest) -> list[str]:
    """What each rank said of all reports."""
    return [text for _, text in run_ranks(len(request.param), [CHECKS], hosts=request.param, timeout=240)]


@pytest.mark.parametrize("name", REPORTS)
def test_report(said: list[str], name: str) -> None:
    for rank, text in enumerate(said):
        assert f"{name}: right" in text, f"rank {rank}: {text[-4000:]}"


OWN: dict[str, tuple[int, list[str], dict[str, str]]] = {  # ranks, arguments, more variables
    "pytorch/pytorch#75512": (2, ["send_and_leave", "16"], {}),
    "pytorch/pytorch#75512, large": (2, ["send_and_leave", "2000000"], {}),
    "pytorch/pytorch#179291": (2, ["leave_with_open_calls"], {}),
    "pytorch/pytorch#123632": (2, ["in_detail"], {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    "agentscope-ai/Trinity-RFT#24": (2, ["address", "tcp://[::1]:PORT"], {}),
    "pytorch/gloo#520": (2, ["die_before_a_groups_first_call"], {}),
    "pytorch/pytorch#138322": (3, ["one_leaves_before_the_barrier"], {}),
    "pytorch/pytorch#92344": (2, ["by_other_names"], {}),
    "pytorch/gloo#154": (1, ["address", "tcp://127.0.0.1:PORT"], {}),
}


@pytest.mark.parametrize("name", OWN)
def test_beginning_and_ending(name: str) -> None:
    size, arguments, more = OWN[name]
    all_well(run_ranks(size, [LAUNCH, *arguments], env=more))


def test_beside_rpc() -> None:
    """pytorch/pytorch#23968 (agents that share a group's connections)."""
    all_well(run_ranks(2, [LAUNCH, "beside_rpc", str(free_port())]))


def torchrun(*arguments: str) -> str:
    """What a program of two ranks says under torchrun, which must end well."""
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *arguments]
    process = subprocess.Popen(
        argv, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=150)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
    assert process.returncode == 0, out
    return out


def test_restarts() -> None:
    """pytorch/pytorch#135712, #91940: what an attempt has left in the store, or at its port, is in nobody's way."""
    out = torchrun(
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--max-restarts", "2", "--monitor-interval", "0.1", LAUNCH, "restarted"
    )
    assert out.count("attempt 2: 2") == 2, out


def test_an_address_under_torchrun() -> None:
    """pytorch/pytorch#63874: its own, given as tcp://."""
    torchrun("--master-port", str(free_port()), LAUNCH, "address", "tcp://127.0.0.1:PORT")
