"""``topoccl explain --concurrent``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from topoccl.collectives.cli.main import main

FABRIC = ("--topology", "cluster:4x2,net=25MB/s", "--transport", "mpi")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("TOPOCCL_ALGO", "TOPOCCL_TUNE_FILE", "TOPOCCL_TRANSPORT"):
        monkeypatch.delenv(name, raising=False)


def test_the_dimensions_of_a_mesh(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "all_reduce", "4M", *FABRIC, "--mesh", "dp=4,tp=2", "--concurrent", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(group["group"], group["ranks"]) for group in found["groups"]][:3] == [
        ("dp 0", [0, 2, 4, 6]),
        ("dp 1", [1, 3, 5, 7]),
        ("tp 0", [0, 1]),
    ]
    for group in found["groups"]:
        slowdown = group["seconds"] / group["alone_seconds"]
        assert slowdown == pytest.approx(2 if group["group"].startswith("dp") else 1, rel=0.03)
    assert found["share_of_link"] == pytest.approx(1)
    assert found["rate"] == pytest.approx(25e6)
    assert found["busiest_link"].startswith("h")


def test_other_calls_and_lists_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--mesh", "4x2", "--concurrent", "1,0=reduce_scatter@16M"]
    assert main(["explain", "all_reduce", "4M", *FABRIC, *argv]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("6 groups at once on ")
    assert [line.split()[0:2] for line in lines[2:8]] == [*(["1", str(at)] for at in range(4)), ["0", "0"], ["0", "1"]]
    assert all("reduce_scatter 16M" in line and "eth0" in line for line in lines[6:8])
    assert "2 groups together use 100% of it" in lines[-2]
    assert main(["explain", "broadcast", "1M", *FABRIC, "--root", "1", "--concurrent", "0,2;3,1,5", "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [group["ranks"] for group in groups] == [[0, 2], [3, 1, 5]]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--mesh", "4x2"], "--mesh 4x2: only with --concurrent"),
        (["--mesh", "4x3", "--concurrent"], "--mesh 4x3: a mesh of 4x3 has 12 places, but there are 8 ranks"),
        (["--mesh", "4y2", "--concurrent"], "--mesh 4y2: expected sizes such as 4x2, or names and sizes such as dp=4,tp=2"),
        (["--mesh", "a=4,b=2", "--concurrent", "c"], "--concurrent c: no dimension 'c'; --mesh a=4,b=2 has a, b"),
        (["--concurrent", "0,9"], "--concurrent: group of ranks 0, 9: rank 9 does not exist, there are 8"),
        (["--concurrent"], "--concurrent : expected lists of ranks such as '0,1;2,3', or names of dimensions with --mesh"),
        (["--mesh", "a=4,b=2", "--concurrent", "a=sum"], "unknown collective 'sum'"),
    ],
)
def test_what_is_wrong_is_one_line(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert main(["explain", "all_reduce", "4M", *FABRIC, *argv]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
