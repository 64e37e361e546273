"""What one rank cannot use, or has otherwise than the others, is one error on every rank; afterwards ranks can start anew."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import topoccl
from topoccl.collectives.transports import mpi
from topoccl.topology.graph import TopologyError

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
SIZE = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))

pytestmark = pytest.mark.skipif(SIZE < 2, reason="needs two ranks")


def works() -> bool:
    communicator = topoccl.init()
    data = np.full(3, 1.0)
    communicator.all_reduce(data)
    communicator.close()
    return data.tolist() == [SIZE] * 3


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("TOPOCCL_TIMEOUT", "soon", "TOPOCCL_TIMEOUT='soon': bad time 'soon'.*known values: a time such as 30s"),
        ("TOPOCCL_TRANSPORT", "ucx", "TOPOCCL_TRANSPORT='ucx': unknown value; known values: auto, tcp, mpi, gloo, memory"),
        ("TOPOCCL_TRANSPORT", "memory", "transport memory: it joins threads of one process.*Usable here: auto, mpi, gloo"),
        ("TOPOCCL_ALGO", "all_reduce:snake", "unknown algorithm 'snake' for all_reduce; known: "),
        ("TOPOCCL_ALGO", "all_produce:ring", "unknown collective 'all_produce'; known: all_reduce, "),
        ("TOPOCCL_ALGO", "all_reduce:ring@0-5Q", "bad size '5Q'"),
        ("TOPOCCL_CONF_FILE", "/no/such/file", "TOPOCCL_CONF_FILE='/no/such/file': there is no such file"),
        ("TOPOCCL_DEBUG", "LOUD", "TOPOCCL_DEBUG='LOUD': unknown level; known values: WARN, INFO, TRACE"),
    ],
)
def test_what_one_rank_cannot_use_is_raised_on_all(
    variable: str, value: str, text: str, culprit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if culprit == RANK:
        monkeypatch.setenv(variable, value)
    with pytest.raises(topoccl.ConfigError, match=f"^rank {culprit}: .*{text}"):
        topoccl.init()
    monkeypatch.undo()
    assert works()


@pytest.mark.parametrize(
    ("variable", "one", "others", "text"),
    [
        ("TOPOCCL_TRANSPORT", "gloo", "mpi", "TOPOCCL_TRANSPORT is 'gloo' on rank 0, 'mpi' on rank"),
        ("TOPOCCL_TRANSPORT", "mpi", "gloo", "TOPOCCL_TRANSPORT is 'mpi' on rank 0, 'gloo' on rank"),
        ("TOPOCCL_ALGO", "ring", "tree", "TOPOCCL_ALGO is 'ring' on rank 0, 'tree' on rank"),
        ("TOPOCCL_TIMEOUT", "30", "40", "TOPOCCL_TIMEOUT is '30s' on rank 0, '40s' on rank"),
        ("TOPOCCL_SHM", "0", "1", "TOPOCCL_SHM is '0' on rank 0, '1' on rank"),
        ("TOPOCCL_TOPO_FILE", "ring:8", "line:8", "TOPOCCL_TOPO_FILE is 'ring:8' on rank 0, 'line:8' on rank"),
    ],
)
def test_what_differs_between_ranks_is_told_with_all_values(
    variable: str, one: str, others: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "gloo" in (one, others):
        pytest.importorskip("torch")
    monkeypatch.setenv(variable, others if RANK else one)
    with pytest.raises(topoccl.ConfigError, match=f"ranks must agree, but {text}"):
        topoccl.init()
    monkeypatch.undo()
    assert works()


def test_gloo_without_torch_on_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("TOPOCCL_TRANSPORT", "gloo")
    if RANK == 1:
        monkeypatch.setitem(sys.modules, "torch.distributed", None)
    with pytest.raises(topoccl.ConfigError, match="rank 1: transport gloo: torch cannot be imported"):
        topoccl.init()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no/such/file.yaml", "every rank: TOPOCCL_TOPO_FILE: no topology 'no/such/file.yaml': no such file"),
        ("ring:1", "TOPOCCL_TOPO_FILE: topology 'ring:1' has 1 slot, fewer than the . ranks of the group"),
        ("snake:4", "every rank: TOPOCCL_TOPO_FILE: .*snake.*known"),
    ],
)
def test_topologies_that_do_not_fit(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOCCL_TOPO_FILE", text)
    with pytest.raises(TopologyError, match=message):
        topoccl.init()


def test_a_dump_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOCCL_TOPO_DUMP_FILE", str(tmp_path / "nowhere" / "topology.yaml"))
    with pytest.raises(topoccl.ConfigError, match=r"rank 0: TOPOCCL_TOPO_DUMP_FILE='.*' cannot be written: No such file or directory"):
        topoccl.init()


def test_memory_that_cannot_be_shared_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    if RANK == 0:
        monkeypatch.setattr(os, "memfd_create", refuse)
    said = tmp_path / "log.%p"
    comm = topoccl.init(debug="WARN", debug_file=str(said))
    data = np.full(1000, RANK)
    comm.all_reduce(data)
    assert data.tolist() == [sum(range(comm.size))] * 1000
    assert len(set(comm.hosts)) == comm.size
    assert comm.stats()["arena"] == 0
    comm.close()
    if comm.size > 1:
        assert (tmp_path / f"log.{os.getpid()}").read_text().count("shared memory is not used on a host: ") == 1


def test_a_rank_that_does_not_come_is_not_waited_for_longer_than_the_timeout() -> None:
    from mpi4py import MPI

    if RANK == 0:
        with pytest.raises(topoccl.CollectiveTimeout, match=r"not all . ranks came within 0.2 s to set it up \(rank 0 did\)"):
            mpi.mpi_transport(timeout=0.2)
    else:
        time.sleep(0.5)
        mpi.mpi_transport(timeout=60).close()
    MPI.COMM_WORLD.Barrier()
    assert works()
