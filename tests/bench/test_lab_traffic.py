"""What goes over the wires of a virtual cluster is what the schedules say. See traffic_rank.py for the ranks' part."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

import pytest

from topoccl.bench.virtual import LabUnavailable, state
from topoccl.bench.virtual.cluster import Cluster, Traffic
from topoccl.topology.load import load

REPOSITORY = Path(__file__).resolve().parents[2]
RANK = Path(__file__).with_name("traffic_rank.py")
FABRIC = REPOSITORY / "bench" / "fabrics" / "cluster-4x2.yaml"
ALGORITHMS = {"ring", "tree", "hierarchical", "two_level"}
ELEMS = 1 << 18  # of float32: 1 MiB for each rank and call
HAVE_MPI = shutil.which("mpirun", path=Path(sys.executable).parent) is not None and find_spec("mpi4py") is not None
TRANSPORTS = ["gloo", "mpi"] if HAVE_MPI else ["gloo"]
LIMIT = 280  # seconds, until rank 0 says the next word
HEADERS = 66 / 1448  # Ethernet's, IP's and TCP's on the payload of a full frame; acknowledgements come on top


@dataclass
class Lab:
    """A cluster that is up."""

    base: Path
    cluster: Cluster

    def run(self, placement: str, *command: str) -> subprocess.Popen[str]:
        launcher = "mpirun" if HAVE_MPI else "env"
        words = ["run", "--launcher", launcher, "--placement", placement, self.cluster.record.id, "--", *command]
        return subprocess.Popen(lab(self.base, *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=REPOSITORY)


@dataclass
class Row:
    """One algorithm's calls: payload bytes that its schedule sends over each direction of each link, and what was counted there."""

    transport: str
    algorithm: str
    scheduled: dict[str, int]
    carried: dict[str, Traffic]


def lab(base: Path, *words: str) -> list[str]:
    return [sys.executable, str(REPOSITORY / "bench" / "lab.py"), "--state-dir", str(base), *words]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    base = tmp_path_factory.mktemp("labs")
    try:
        with Cluster.create(load("cluster:1x1"), "probe", base=base):
            pass
    except LabUnavailable as error:
        pytest.skip(str(error))
    try:
        subprocess.run(lab(base, "up", str(FABRIC)), check=True, capture_output=True, text=True)
        (record,) = state.records(base)
        yield Lab(base, Cluster.open(record, base))
    finally:
        for record in state.records(base):
            state.remove(base, record)


def words_of(listener: socket.socket, job: subprocess.Popen[str]) -> Iterator[tuple[dict[str, Any], TextIO]]:
    """What rank 0 says, each with the stream that takes the answer; ends when rank 0 does."""
    listener.settimeout(0.5)
    while True:
        try:
            connection, _ = listener.accept()
            break
        except TimeoutError:
            if job.poll() is not None:
                return
    connection.settimeout(LIMIT)
    with connection, connection.makefile("rw") as stream:
        while line := stream.readline():
            yield json.loads(line), stream


def by_host(scheduled: dict[str, int], hosts: list[str]) -> dict[str, int]:
    """Payload bytes over each direction of each host's link, named as the laboratory does."""
    found = {link: 0 for host in hosts for link in (f"{host}.eth0->sw0", f"sw0->{host}.eth0")}
    for pair, nbytes in scheduled.items():
        sender, receiver = pair.split()
        found[f"{sender}.eth0->sw0"] += nbytes
        found[f"sw0->{receiver}.eth0"] += nbytes
    return found


def measured(up: Lab, placement: str) -> list[Row]:
    """Runs every algorithm over every transport in one job, and reads the counters before and after each."""
    hosts = [host.name for host in up.cluster.plan.hosts]
    rows = []
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/socket")  # a short name, as sockets need
        listener.listen()
        job = up.run(placement, "python", str(RANK), f"{directory}/socket", ",".join(TRANSPORTS), str(ELEMS))
        try:
            before: list[Traffic] = []
            for words, stream in words_of(listener, job):
                now = up.cluster.traffic()
                if "scheduled" in words:
                    carried = {row.link: row for row in (b.since(a) for a, b in zip(before, now, strict=True))}
                    rows.append(Row(words["transport"], words["algorithm"], by_host(words["scheduled"], hosts), carried))
                before = now
                stream.write("go on\n")
                stream.flush()
            output, _ = job.communicate(timeout=60)
        finally:
            if job.poll() is None:
                job.terminate()
                job.communicate(timeout=30)
    assert job.returncode == 0, output[-4000:]
    return rows


@pytest.mark.parametrize("placement", ["packed", "round_robin"])
def test_links_carry_what_schedules_say(up: Lab, placement: str) -> None:
    rows = measured(up, placement)
    assert {(row.transport, row.algorithm.partition("[")[0]) for row in rows} == {(t, a) for t in TRANSPORTS for a in ALGORITHMS}
    for row in rows:
        assert row.scheduled.keys() == row.carried.keys()
        ratios = {link: row.carried[link].bytes / nbytes for link, nbytes in row.scheduled.items()}
        least, most = min(ratios.values()), max(ratios.values())
        print(f"{placement:12} {row.transport:5} {row.algorithm:24} {max(row.scheduled.values()):9} {least:.4f} {most:.4f}")
        assert all(1 + HEADERS <= ratio <= 1.1 for ratio in ratios.values()), f"{row.transport} {row.algorithm}: {ratios}"
        assert all(traffic.drops == 0 for traffic in row.carried.values())
