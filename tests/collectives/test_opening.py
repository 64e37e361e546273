"""Jobs whose ranks meet at MASTER_ADDR: what one of them cannot use is an error on all, also when it is the one that keeps the store."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from topoccl.collectives.bootstrap import LaunchInfo
from topoccl.collectives.errors import ConfigError
from topoccl.collectives.opening import open_job

SCRIPT = """
import os
import topoccl

def attempt(culprit):
    if int(os.environ["RANK"]) == culprit:
        os.environ["TOPOCCL_TIMEOUT"] = "soon"
    try:
        topoccl.init().close()
        print("none", flush=True)
    except topoccl.ConfigError as error:
        print(error, flush=True)
    os.environ.pop("TOPOCCL_TIMEOUT", None)

attempt(1)
attempt(None)
attempt(0)  # and then its store ends with it
"""


def test_a_value_that_one_rank_cannot_use_is_raised_on_all() -> None:
    pytest.importorskip("torch")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=90)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for output in outputs:
        first, second, third = output.splitlines()
        assert first.startswith("rank 1: TOPOCCL_TIMEOUT='soon': bad time")
        assert second == "none"
        assert third.startswith("rank 0: TOPOCCL_TIMEOUT='soon': bad time")


@pytest.mark.parametrize(
    "info",
    [
        LaunchInfo("single"),
        LaunchInfo("mpirun", 0, 2, master=("10.0.0.1", 1)),  # the others may be at the store or not
    ],
)
def test_where_ranks_cannot_meet_the_error_is_raised_at_once(info: LaunchInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOCCL_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match=r"^TOPOCCL_TIMEOUT='soon'"):
        open_job(info)


@pytest.mark.parametrize(
    ("transport", "text"),
    [
        ("mpi", "transport mpi: mpi4py cannot be imported .*; install topoccl.mpi. and an MPI library, or take transport gloo"),
        ("gloo", "transport gloo: mpi4py cannot be imported .*, over which ranks .* without MASTER_ADDR and MASTER_PORT meet; install"),
        ("ucx", "TOPOCCL_TRANSPORT='ucx': unknown value; known values: auto, tcp, mpi, gloo, memory"),
    ],
)
def test_without_mpi4py_the_error_names_what_was_asked_for(transport: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('there is none')\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "TOPOCCL_TRANSPORT": transport}
    env |= {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    done = subprocess.run([sys.executable, "-c", "import topoccl; topoccl.init()"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    with pytest.raises(ConfigError, match=f"ConfigError: {text}"):
        raise ConfigError(done.stderr)
