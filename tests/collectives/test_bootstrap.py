"""Launchers, the choice of a transport, first words, and the set-up of Gloo."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topoccl.collectives.bootstrap import (
    LaunchInfo,
    agree,
    choose_transport,
    exchange,
    exchange_or_raise,
    launch_environment,
    open_transport,
)
from topoccl.collectives.config import InterfaceFilter
from topoccl.collectives.errors import CollectiveTimeout, ConfigError, MismatchError, TopocclError, TransportError
from topoccl.collectives.transports import rendezvous
from topoccl.collectives.transports.base import Transport
from topoccl.collectives.transports.memory import MemoryHub

SECONDS = 30.0
MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def on_all_ranks(size: int, work: Callable[[Transport], Any]) -> list[Any]:
    """What ``work`` returns or raises on each rank."""
    hub = MemoryHub(size)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(hub.transport(rank))
        except Exception as exc:
            results[rank] = exc

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank hangs"
    return results


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 13, 33])
def test_exchange_and_agree(size: int) -> None:
    def work(t: Transport) -> Any:
        first = exchange(t, {"rank": t.rank, "data": "x" * (100_000 * (t.rank % 2))}, SECONDS)
        return first, agree(t, {"from": t.rank, "list": list(range(10))}, SECONDS), exchange(t, None, SECONDS)

    expected = [{"rank": rank, "data": "x" * (100_000 * (rank % 2))} for rank in range(size)]
    for result in on_all_ranks(size, work):
        assert result == (expected, {"from": 0, "list": list(range(10))}, [None] * size)


def test_first_words_take_a_tree_not_all_from_rank_zero() -> None:
    def work(t: Transport) -> int:
        agree(t, "word", SECONDS)
        return sum(counters.sent_messages for counters in t.counters.values()) // 2

    assert on_all_ranks(8, work) == [3, 0, 1, 0, 2, 0, 1, 0]


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        ({2: ConfigError("TOPOCCL_X=7 is odd")}, ConfigError, "rank 2: TOPOCCL_X=7 is odd"),
        ({0: MismatchError("a"), 3: ConfigError("b")}, MismatchError, r"rank 0: a \(and other errors on 1 other ranks\)"),
        ({1: KeyError("gone"), 2: KeyError("gone")}, TopocclError, "rank 1, 2: KeyError: 'gone'"),
        ({rank: ConfigError("no such file") for rank in range(4)}, ConfigError, "every rank: no such file"),
    ],
)
def test_one_ranks_error_is_everyones(raised: dict[int, Exception], kind: type[TopocclError], text: str) -> None:
    results = on_all_ranks(4, lambda t: exchange_or_raise(t, raised.get(t.rank, "fine"), SECONDS))
    assert {type(result) for result in results} == {kind}
    assert len({str(result) for result in results}) == 1
    with pytest.raises(kind, match=f"^{text}$"):
        raise results[0]


def test_without_errors_everyone_gets_everything() -> None:
    assert on_all_ranks(3, lambda t: exchange_or_raise(t, t.rank, SECONDS)) == [[0, 1, 2]] * 3


def test_absent_ranks_are_named() -> None:
    hub = MemoryHub(4)

    def present() -> None:
        with contextlib.suppress(CollectiveTimeout, TransportError):
            exchange(hub.transport(2), "here", 0.2)

    threading.Thread(target=present, daemon=True).start()
    with pytest.raises(CollectiveTimeout, match=r"receive from rank 1 .*; receive from rank 3 "):
        exchange(hub.transport(0), "here", 0.3)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, LaunchInfo("single")),
        ({**MASTER, "PATH": "/bin"}, LaunchInfo("single")),
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4",
             "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_RANK": "3"},
            LaunchInfo("mpirun", 3, 4, 1, 2, "OMPI_COMM_WORLD_RANK"),
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, LaunchInfo("mpirun", 0, 2, -1, -1, "PMI_RANK")),
        (
            {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"},
            LaunchInfo("mpirun", 0, 2, 0, 2, "PMI_RANK"),
        ),
        (
            {"PMIX_RANK": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_PROCID": "5"},
            LaunchInfo("mpirun", 5, 8, 1, -1, "PMIX_RANK"),
        ),
        ({"PMIX_RANK": "0"}, LaunchInfo("single")),
        (
            {**MASTER, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none",
             "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"},
            LaunchInfo("torchrun", 1, 2, 1, 2, "RANK", ("10.0.0.1", 29500), True, 2),
        ),
        ({**MASTER, "RANK": "1", "WORLD_SIZE": "2"}, LaunchInfo("torchrun", 1, 2, -1, -1, "RANK", ("10.0.0.1", 29500))),
        # torchrun under mpirun, and a script under mpirun that sets torch's variables
        (
            {**MASTER, "RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x",
             "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
            LaunchInfo("torchrun", 1, 2, -1, -1, "RANK", ("10.0.0.1", 29500)),
        ),
        (
            {**MASTER, "RANK": "1", "WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
            LaunchInfo("mpirun", 1, 2, -1, -1, "OMPI_COMM_WORLD_RANK", ("10.0.0.1", 29500)),
        ),
    ],
)  # fmt: skip
def test_launch_environment(env: dict[str, str], expected: LaunchInfo) -> None:
    assert launch_environment(env) == expected


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not set, though its companions are"),
        ({"PMI_RANK": "zero", "PMI_SIZE": "2"}, "PMI_RANK='zero' is not a whole number"),
        ({"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_RANK=4 is not in 0 to OMPI_COMM_WORLD_SIZE-1 = 3"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT are not"),
        ({**MASTER, "RANK": "0"}, "WORLD_SIZE is not set"),
        ({**MASTER, "MASTER_PORT": "http", "RANK": "0", "WORLD_SIZE": "1"}, "MASTER_PORT='http' is not a whole number"),
    ],
)
def test_launch_environment_that_is_wrong(env: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        launch_environment(env)


MPIRUN = LaunchInfo("mpirun", 1, 4, said_by="OMPI_COMM_WORLD_RANK")
TORCHRUN = LaunchInfo("torchrun", 1, 4, said_by="RANK", master=("10.0.0.1", 1))
SINGLE = LaunchInfo("single")


@pytest.mark.parametrize(
    ("asked", "info", "expected"),
    [
        ("auto", MPIRUN, "mpi"),
        ("auto", TORCHRUN, "gloo"),
        ("auto", SINGLE, "memory"),
        ("mpi", MPIRUN, "mpi"),
        ("gloo", MPIRUN, "gloo"),
        ("gloo", TORCHRUN, "gloo"),
        ("memory", SINGLE, "memory"),
    ],
)
def test_choose_transport(asked: str, info: LaunchInfo, expected: str) -> None:
    assert choose_transport(asked, info) == expected


@pytest.mark.parametrize(
    ("asked", "info", "texts"),
    [
        ("mpi", TORCHRUN, ["transport mpi", "torchrun", "RANK is set", "start the program with mpirun", "Usable here: auto, gloo"]),
        ("mpi", SINGLE, ["transport mpi", "OMPI_COMM_WORLD_RANK", "start the program with mpirun", "Usable here: auto, memory"]),
        ("gloo", SINGLE, ["transport gloo", "mpirun or torchrun"]),
        ("memory", MPIRUN, ["transport memory", "threads of one process", "4 processes"]),
        ("ucx", MPIRUN, ["transport 'ucx' is unknown; known are auto, tcp, mpi, gloo, memory"]),
    ],
)
def test_choose_transport_that_cannot_work(asked: str, info: LaunchInfo, texts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_transport(asked, info)
    assert all(text in str(caught.value) for text in texts), caught.value


def test_a_process_alone_talks_to_itself() -> None:
    t = open_transport("memory", SINGLE, SECONDS)
    got = np.zeros(3, np.uint8)
    t.wait([t.isend(0, 1, np.arange(3, dtype=np.uint8)), t.irecv(0, 1, got)], SECONDS)
    assert got.tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match="transport 'tcp' is unknown"):
        open_transport("tcp", SINGLE, SECONDS)


def test_mpi_without_mpi4py_is_one_clear_error() -> None:
    code = (
        "import sys; sys.modules['mpi4py'] = None\n"
        "from topoccl.collectives.bootstrap import *\n"
        "open_transport('mpi', LaunchInfo('mpirun', 0, 2), 5.0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "ConfigError: transport mpi: mpi4py cannot be imported" in done.stderr
    assert "install topoccl[mpi]" in done.stderr


# Addresses.


class Rank:
    """A place in a network, as choose_address sees it on one rank."""

    def __init__(self, network: str, addresses: dict[str, str], sources: dict[str, str], interfaces: str = "") -> None:
        self.network = network
        self.addresses = [rendezvous.Address(name.split("/")[0], ip) for name, ip in addresses.items()]
        self.sources = sources
        self.interfaces = InterfaceFilter.parse(interfaces)


def choose(monkeypatch: pytest.MonkeyPatch, ranks: list[Rank], master: str | None) -> list[Any]:
    """The address each rank chooses, or its error, all meeting in one store."""
    dist = pytest.importorskip("torch.distributed")
    store = dist.HashStore()
    here = threading.local()
    monkeypatch.setattr(rendezvous, "network_identity", lambda: here.rank.network)
    monkeypatch.setattr(rendezvous, "local_addresses", lambda: here.rank.addresses)
    monkeypatch.setattr(rendezvous, "source_address", lambda target: here.rank.sources.get(target))
    results: list[Any] = [None] * len(ranks)

    def run(number: int) -> None:
        here.rank = ranks[number]
        try:
            where = (master, 1) if master else None
            results[number] = rendezvous.choose_address(store, number, len(ranks), ranks[number].interfaces, where, 10.0)
        except Exception as exc:
            results[number] = exc

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a rank hangs"
    return results


LO = {"lo": "127.0.0.1"}


def test_ranks_of_one_network_take_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank("a", {**LO, "eth0": "10.0.0.1"}, {"localhost": "127.0.0.1"})
    assert choose(monkeypatch, [rank, rank], "localhost") == ["127.0.0.1"] * 2


def test_hosts_never_take_loopback_even_where_the_masters_name_means_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0's own name leads to 127.0.1.1 on its host (Debian), and to a second network elsewhere."""
    host = Rank("a", {**LO, "eth0": "10.0.0.1", "eth1": "10.1.0.1"}, {"head": "127.0.1.1", "10.1.0.2": "10.1.0.1"})
    other = Rank("b", {**LO, "eth0": "10.9.0.2", "eth1": "10.1.0.2"}, {"head": "10.1.0.2"})
    assert choose(monkeypatch, [host, host, other, other], "head") == ["10.1.0.1", "10.1.0.1", "10.1.0.2", "10.1.0.2"]


def test_interfaces_asked_for_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [Rank("a", {**LO, "eth0": "10.0.0.1", "ib0": "10.1.0.1"}, {"m": "10.0.0.1"}, "ib"),
             Rank("b", {**LO, "eth0": "10.0.0.2", "ib1": "10.1.0.2"}, {"m": "10.0.0.2"}, "^eth0,lo")]  # fmt: skip
    assert choose(monkeypatch, ranks, "m") == ["10.1.0.1", "10.1.0.2"]


def test_one_interface_asked_for_on_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank("a", {**LO, "eth0": "10.0.0.1"}, {"m": "127.0.0.1"}, "=eth0")
    assert choose(monkeypatch, [rank, rank], "m") == ["10.0.0.1"] * 2


def test_all_ranks_take_the_version_of_ip_that_all_have(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Rank("a", {**LO, "eth0": "10.0.0.1", "eth0/6": "fd00::1"}, {"m": "10.0.0.1", "fd00::2": "fd00::1"})
    six = Rank("b", {**LO, "eth0/6": "fd00::2"}, {"m": "fd00::2"})
    assert choose(monkeypatch, [both, six], "m") == ["fd00::1", "fd00::2"]


def test_no_address_is_everyones_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [Rank("a", {**LO, "eth0": "10.0.0.1"}, {}), Rank("b", LO, {})]
    for result in choose(monkeypatch, ranks, None):
        assert isinstance(result, ConfigError)
        assert "loopback does not count between hosts" in str(result)
        assert "rank 1 has none" in str(result)


def test_an_interface_that_one_rank_lacks_is_everyones_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [Rank("a", {**LO, "eth0": "10.0.0.1"}, {}, "eth"), Rank("b", {**LO, "eno1": "10.0.0.2"}, {}, "eth")]
    for result in choose(monkeypatch, ranks, None):
        assert isinstance(result, ConfigError)
        assert "rank 1: TOPOCCL_SOCKET_IFNAME=eth matches no interface" in str(result)
        assert "known are lo (127.0.0.1), eno1 (10.0.0.2)" in str(result)


def test_local_addresses_of_this_host() -> None:
    found = rendezvous.local_addresses()
    assert rendezvous.Address("lo", "127.0.0.1") in found
    assert {address.interface for address in found} <= {name for _, name in socket.if_nameindex()}
    assert rendezvous.source_address("127.0.0.1") == "127.0.0.1"
    assert rendezvous.source_address("no.such.host.invalid") is None


# Gloo's set-up in real processes.


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


SCRIPT = """
import json, os, sys
import numpy as np
from topoccl.collectives.bootstrap import *
info = launch_environment(os.environ)
name = choose_transport(sys.argv[1], info)
words = []
for turn in range(2):
    t = open_transport(name, info, 60.0)
    words.append(exchange(t, (t.rank, turn), 60.0))
    t.close()
assert words == [[(rank, turn) for rank in range(info.size)] for turn in range(2)], words
print(f"RESULT {info.kind} {t.name} {t.rank} of {t.size}.", flush=True)
"""


def results(output: str) -> list[str]:
    """What the ranks of SCRIPT printed, also where their lines ran together."""
    return sorted(re.findall(r"RESULT (.*?)\.", output))


def test_gloo_from_the_environment() -> None:
    pytest.importorskip("torch")
    env = {**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, "auto"], env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=90)[0] for rank in ranks]
    assert [results(output) for output in outputs] == [["torchrun gloo 0 of 2"], ["torchrun gloo 1 of 2"]]
    assert [rank.returncode for rank in ranks] == [0, 0]


def test_gloo_under_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), "auto"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert results(done.stdout) == ["torchrun gloo 0 of 2", "torchrun gloo 1 of 2"]


@pytest.mark.parametrize("transport", ["auto", "gloo"])
def test_transports_under_mpirun_without_a_master(mpirun: Callable[..., Any], transport: str) -> None:
    done = mpirun(3, sys.executable, "-c", SCRIPT, transport)
    assert done.returncode == 0, done.stderr
    name = "mpi" if transport == "auto" else transport
    assert results(done.stdout) == [f"mpirun {name} {rank} of 3" for rank in range(3)]


def test_mpi_with_fewer_threads(mpirun: Callable[..., Any]) -> None:
    """Calls are serialised where MPI asks for it; an MPI for the main thread alone is refused."""
    done = mpirun(2, sys.executable, "-c", SCRIPT, "mpi", env={"MPI4PY_RC_THREAD_LEVEL": "serialized"})
    assert done.returncode == 0, done.stderr
    assert results(done.stdout) == ["mpirun mpi 0 of 2", "mpirun mpi 1 of 2"]
    done = mpirun(2, sys.executable, "-c", SCRIPT, "mpi", env={"MPI4PY_RC_THREAD_LEVEL": "funneled"})
    assert done.returncode != 0
    assert "MPI_THREAD_FUNNELED; known to work are MPI_THREAD_SERIALIZED and MPI_THREAD_MULTIPLE" in done.stderr


def test_gloo_with_a_store_of_the_callers() -> None:
    dist = pytest.importorskip("torch.distributed")
    store = dist.HashStore()
    transport = open_transport("gloo", LaunchInfo("torchrun", 0, 1), 10.0, store=store)
    assert exchange(transport, "alone", 10.0) == ["alone"]
    transport.close()
    with pytest.raises(TransportError, match="rank 1 did not come to the store in time"):
        open_transport("gloo", LaunchInfo("torchrun", 0, 2), 0.5, store=dist.PrefixStore("b", store))


def _use_in_fork(transport: Transport, results: Any) -> None:
    try:
        transport.isend(0, 1, np.zeros(1, np.uint8))
    except TransportError as exc:
        results.put(str(exc))
    transport.close()


def test_a_fork_may_not_use_the_parents_transport() -> None:
    transport = MemoryHub(1).transport(0)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_use_in_fork, args=(transport, results))
    child.start()
    child.join(30)
    assert f"opened by process {os.getpid()}, cannot be used in its fork {child.pid}" in results.get()
    receive = transport.irecv(0, 1, np.zeros(1, np.uint8))
    transport.wait([transport.isend(0, 1, np.zeros(1, np.uint8)), receive], 5.0)


def test_an_uncaught_exception_ends_all_ranks(mpirun: Callable[..., Any], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from topoccl.collectives.transports.mpi import mpi_transport\n"
        "t = mpi_transport()\n"
        "if t.rank == 1:\n"
        "    raise ValueError('this one')\n"
        "import numpy as np\n"
        "t.wait([t.irecv(1, 1, np.zeros(1, np.uint8))], 300.0)\n"
    )
    done = mpirun(2, sys.executable, str(script), timeout=60)
    assert done.returncode != 0
    assert "rank 1 of 2 failed; ending all ranks" in done.stderr
    assert "ValueError: this one" in done.stderr
