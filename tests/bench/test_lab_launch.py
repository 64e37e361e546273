"""Which rank sits where and what is started for it. No root is needed."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from topoccl.bench.virtual import LabError
from topoccl.bench.virtual.launch import environment, rank_file, slot_order, supervise, tasks
from topoccl.bench.virtual.plan import make_plan
from topoccl.topology.load import load

UNEVEN = load("cluster:3+2+1,net=200Mbit/s")
DIRECTORY = Path("/somewhere")


@pytest.mark.parametrize(
    ("placement", "ranks", "hosts"),
    [
        ("packed", None, "h0 h0 h0 h1 h1 h2"),
        ("declared", None, "h0 h0 h0 h1 h1 h2"),
        ("round_robin", None, "h0 h1 h2 h0 h1 h0"),
        ("round_robin", 4, "h0 h1 h2 h0"),
        ("packed", 4, "h0 h0 h0 h1"),
        ("5,0,3", None, "h2 h0 h1"),
        ("5,0,3", 2, "h2 h0"),
    ],
)
def test_placements(placement: str, ranks: int | None, hosts: str) -> None:
    order = slot_order(UNEVEN, placement, ranks)
    assert rank_file(make_plan(UNEVEN), order).split() == hosts.split()


def test_the_topology_s_own_order_is_the_default_and_packed_overrides_it() -> None:
    topology = load("cluster:2x2,placement=round_robin")
    plan = make_plan(topology)
    assert rank_file(plan, slot_order(topology, "declared")).split() == ["h0", "h1", "h0", "h1"]
    assert rank_file(plan, slot_order(topology, "packed")).split() == ["h0", "h0", "h1", "h1"]


@pytest.mark.parametrize(
    ("placement", "ranks", "message"),
    [
        ("scattered", None, "unknown placement 'scattered'; known: declared, packed, round_robin"),
        ("0,1,0", None, "uses slot 0 twice"),
        ("0,6", None, "uses slot 6, but the slots are 0 to 5"),
        ("packed", 7, "7 ranks asked for; .* has 6 slots"),
        ("packed", 0, "0 ranks asked for"),
    ],
)
def test_impossible_placements(placement: str, ranks: int | None, message: str) -> None:
    with pytest.raises(LabError, match=message):
        slot_order(UNEVEN, placement, ranks)


def test_plain_ranks_get_torch_s_variables() -> None:
    plan = make_plan(UNEVEN)
    started = tasks("env", plan, slot_order(UNEVEN, "round_robin"), ["prog", "arg"], {"A": "1"}, DIRECTORY)
    assert [task.host for task in started] == ["h0", "h1", "h2", "h0", "h1", "h0"]
    assert [task.env["LOCAL_RANK"] for task in started] == ["0", "0", "0", "1", "1", "2"]
    assert [task.env["LOCAL_WORLD_SIZE"] for task in started] == ["3", "2", "1", "3", "2", "3"]
    assert [task.env["RANK"] for task in started] == list("012345")
    assert {task.env["MASTER_ADDR"] for task in started} == {"10.1.0.1"}
    assert {task.argv for task in started} == {("prog", "arg")}
    assert all(task.env["A"] == "1" and task.env["WORLD_SIZE"] == "6" for task in started)


def test_the_master_is_on_the_host_of_rank_0() -> None:
    plan = make_plan(UNEVEN)
    first, *_ = tasks("env", plan, (5, 0), ["prog"], {}, DIRECTORY)
    assert (first.host, first.env["MASTER_ADDR"]) == ("h2", "10.1.0.3")


def fake_tools(tmp_path: Path) -> dict[str, str]:
    for name in ("mpirun", "torchrun"):
        (tmp_path / name).touch(mode=0o755)
    return {"PATH": str(tmp_path)}


def test_torchrun_runs_once_per_host(tmp_path: Path) -> None:
    env = fake_tools(tmp_path)
    started = tasks("torchrun", make_plan(UNEVEN), slot_order(UNEVEN, "packed", 5), ["prog"], env, DIRECTORY)
    assert [task.host for task in started] == ["h0", "h1"]
    assert started[1].argv == (
        str(tmp_path / "torchrun"),
        "--nnodes=2",
        "--node-rank=1",
        "--nproc-per-node=2",
        "--master-addr=10.1.0.1",
        "--master-port=29500",
        "--local-addr=10.1.0.2",
        "--no-python",
        "prog",
    )


def test_torchrun_cannot_interleave_hosts(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="torchrun numbers the ranks of one host in a row"):
        tasks("torchrun", make_plan(UNEVEN), slot_order(UNEVEN, "round_robin"), ["prog"], fake_tools(tmp_path), DIRECTORY)


def test_mpirun_maps_ranks_one_by_one_and_forwards_variables(tmp_path: Path) -> None:
    env = {**fake_tools(tmp_path), "TOPOCCL_ALGO": "ring", "MINE": "1", "OTHER": "2"}
    extra = ["MINE", "OMPI_MCA_coll=^han"]
    (task,) = tasks("mpirun", make_plan(UNEVEN), (3, 0), ["prog"], env, DIRECTORY, extra)
    assert task.host == "h1"
    assert task.argv[:8] == (str(tmp_path / "mpirun"), "-n", "2", "--hostfile", "/somewhere/ranks", "--map-by", "seq", "--bind-to")
    forwarded = {name for flag, name in zip(task.argv, task.argv[1:], strict=False) if flag == "-x"}
    assert forwarded == {"PATH", "TOPOCCL_ALGO", "MINE"}


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_a_launcher_that_is_not_installed(launcher: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=f"needs {launcher} on PATH"):
        tasks(launcher, make_plan(UNEVEN), (0,), ["prog"], {"PATH": str(tmp_path)}, DIRECTORY)


def test_the_environment_is_the_caller_s_plus_the_network() -> None:
    plan = make_plan(load("rails:2x2,net=200Mbit/s+100Mbit/s"))
    base = {"HOME": "/root", "PATH": "/bin", "TOPOCCL_ALGO": "ring", "OMP_NUM_THREADS": "3"}
    env = environment(plan, DIRECTORY, ["X=a=b", "HOME"], base)
    assert env["X"] == "a=b"
    assert env["OMP_NUM_THREADS"] == "3"
    assert env["TOPOCCL_ALGO"] == "ring"
    assert env["GLOO_SOCKET_IFNAME"] == "eth0"
    assert env["OMPI_MCA_btl_tcp_if_include"] == "10.1.0.0/16,10.2.0.0/16"
    assert env["PRTE_MCA_prte_if_include"] == "10.1.0.0/16"
    assert env["PATH"].split(":") == [str(Path(sys.executable).parent), "/bin"]
    assert not [name for name in env.keys() - base.keys() if name.startswith("TOPOCCL_")]


def test_forwarding_a_variable_that_is_not_set() -> None:
    with pytest.raises(LabError, match="-x NOTHING: the variable is not set"):
        environment(make_plan(UNEVEN), DIRECTORY, ["NOTHING"], {})


def shell(script: str) -> tuple[list[str], dict[str, str]]:
    """As the cluster starts it: a process that waits for what it has started."""
    return ["/bin/sh", "-c", f"{script} & wait $!"], {"PATH": "/usr/bin:/bin"}


def test_supervise_returns_the_first_failure_and_ends_the_others() -> None:
    begin = time.monotonic()
    assert supervise([shell("sleep 60"), shell("exit 7"), shell("sleep 60")]) == 7
    assert time.monotonic() - begin < 30


def test_supervise_ends_a_command_that_ignores_the_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topoccl.bench.virtual.launch._GRACE", 0.2)
    ignoring = shell("trap '' TERM; while :; do sleep 0.05; done")
    begin = time.monotonic()
    assert supervise([ignoring, shell("sleep 0.2; exit 3")]) == 3
    assert time.monotonic() - begin < 30


def test_supervise_waits_for_all_and_reports_signals() -> None:
    assert supervise([shell("sleep 0.1"), shell("true")]) == 0
    assert supervise([(["/bin/sh", "-c", "kill -KILL $$"], {})]) == 128 + signal.SIGKILL
