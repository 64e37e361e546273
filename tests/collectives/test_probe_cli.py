"""``topoccl probe`` as a program, on this host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from topoccl.topology.load import load

MpiRun = Callable[..., "subprocess.CompletedProcess[str]"]
PROBE = (sys.executable, "-m", "topoccl", "probe")


def alone(*options: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "RANK", "WORLD_SIZE"))}
    return subprocess.run([*PROBE, *options], env=env, capture_output=True, text=True, timeout=60)


def test_one_rank_is_too_few(tmp_path: Path) -> None:
    result = alone("-o", str(tmp_path / "out.yaml"))
    assert result.returncode == 2
    assert result.stderr == (
        "topoccl: error: probe measures between ranks, and this job has only one; start it with mpirun -n N or torchrun\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budgett", "3s"], "unrecognized arguments: --budgett"),
        (["--budget", "soon"], "bad time 'soon'"),
        (["--budget", "1ms"], "'1ms' is too short; expected at least 1s"),
        (["--transport", "pigeon"], "pigeon"),
        (["extra.yaml"], "unrecognized arguments: extra.yaml"),
    ],
)
def test_bad_options(options: list[str], message: str) -> None:
    result = alone(*options)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_help() -> None:
    result = alone("--help")
    assert result.returncode == 0
    assert "--budget TIME" in result.stdout


def test_output_is_checked_before_anything_is_measured(tmp_path: Path) -> None:
    for output, reason in ((tmp_path, "it is a directory"), (tmp_path / "none" / "out.yaml", "there is no directory")):
        result = alone("-o", str(output))
        assert result.returncode == 2
        assert f"cannot write {output}: {reason}" in result.stderr


def test_ranks_of_one_host(mpirun: MpiRun, tmp_path: Path) -> None:
    output = tmp_path / "measured.yaml"
    result = mpirun(3, *PROBE, "-o", str(output), "--budget", "5s")
    assert result.returncode == 0, result.stderr
    assert "1 host, 3 ranks" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["measured.yaml"]
    found = load(output)
    assert (len(found.hosts), found.num_ranks) == (1, 3)


def test_claimed_hosts_on_one_machine_are_measured(mpirun: MpiRun, tmp_path: Path) -> None:
    """Without shared memory claims are believed: three ranks that name three hosts are three hosts, joined by the loopback."""
    output = tmp_path / "measured.json"
    claim = "import os, sys; os.environ['TOPOCCL_HOSTID'] = os.environ['OMPI_COMM_WORLD_RANK']; os.execv(sys.argv[1], sys.argv[1:])"
    options = ("-o", str(output), "--budget", "6s", "--quiet")
    result = mpirun(3, sys.executable, "-c", claim, *PROBE, *options, env={"TOPOCCL_SHM": "0"})
    assert result.returncode == 0, result.stderr
    assert "3 hosts, 3 ranks" in result.stdout
    found = load(output)
    assert (len(found.hosts), found.num_ranks) == (3, 3)
    assert any(link.kind == "net" and link.attrs["source"] == "measured" for link in found.links)


def test_standard_output_without_a_file(mpirun: MpiRun) -> None:
    result = mpirun(2, *PROBE, "--budget", "5s", "-q")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("topoccl: 1\n")


def test_rank_0_speaks_for_all(mpirun: MpiRun, tmp_path: Path) -> None:
    result = mpirun(3, *PROBE, "-o", str(tmp_path / "none" / "out.yaml"))
    assert result.returncode == 2
    assert result.stderr.count("topoccl: error") == 1
    assert "there is no directory" in result.stderr
    result = mpirun(3, *PROBE, "--loud")
    assert result.stderr.count("unrecognized arguments: --loud") == 1
    assert list(tmp_path.iterdir()) == []
