"""Real virtual clusters. Skipped where namespaces cannot be had (no root, no iproute2, a sandbox)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from topoccl.bench.virtual import state
from topoccl.bench.virtual.cluster import Cluster
from topoccl.topology.load import load

REPOSITORY = Path(__file__).resolve().parents[2]
RANK_AND_HOST = 'echo "${RANK-$OMPI_COMM_WORLD_RANK} $(hostname)"'
CONNECT_TO_ALL = """
import socket, sys
for name in sys.argv[1:]:
    with socket.create_connection((name, 7), timeout=20) as peer:
        assert peer.recv(100).decode() == name, name
"""
SAY_WHO = """
import socket
server = socket.create_server(("0.0.0.0", 7), backlog=64)
print("ready", flush=True)
while True:
    client, _ = server.accept()
    client.sendall(socket.gethostname().encode())
    client.close()
"""


pytestmark = pytest.mark.usefixtures("virtual_cluster")


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    """A state directory, which is empty again at the end; a test that fails does not leave clusters up."""
    base = tmp_path / "labs"
    yield base
    try:
        assert not base.exists() or os.listdir(base) == []
    finally:
        for record in state.records(base):
            state.remove(base, record)


def lab_command(base: Path, *words: str) -> list[str]:
    return [sys.executable, str(REPOSITORY / "bench" / "lab.py"), "--state-dir", str(base), *words]


def lab(base: Path, *words: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(lab_command(base, *words), capture_output=True, text=True, timeout=timeout, cwd=REPOSITORY)


def on(cluster: Cluster, host: str, *argv: str) -> str:
    return subprocess.run(cluster.enter(host, argv), capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def namespaces(pids: dict[str, int]) -> set[str]:
    return {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in pids.values() for kind in ("net", "uts", "mnt", "ipc", "pid")} - {
        os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "uts", "mnt", "ipc", "pid")
    }


def holders_of(wanted: set[str]) -> list[int]:
    """Processes in any of the namespaces."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/ns/*"):
        try:
            if os.readlink(entry) in wanted:
                found.append(int(entry.parts[2]))
        except OSError:
            continue
    return found


def devices() -> str:
    return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout


def wait_for(condition: object, what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited 30 s for {what}"
        time.sleep(0.02)


def test_a_cluster_leaves_nothing(base: Path) -> None:
    devices_before, mounts_before = devices(), Path("/proc/self/mountinfo").read_text()
    with Cluster.create(load("racks:2x2x1,net=200Mbit/s,uplink=100Mbit/s"), "test", base=base) as cluster:
        made = namespaces(dict(cluster.record.pids))
        assert len(made) == 5 * 4 + 1  # each host and the fabric: net, uts, mnt, ipc; one pid namespace for all
        subprocess.Popen(cluster.enter("h1", ["setsid", "sleep", "1000"]))  # tries to get away
        wait_for(cluster.processes, "the process to start")
        assert devices() == devices_before
        assert Path("/proc/self/mountinfo").read_text() == mounts_before
    assert holders_of(made) == []
    assert devices() == devices_before
    assert Path("/proc/self/mountinfo").read_text() == mounts_before


def test_hosts_are_machines_of_their_own(base: Path) -> None:
    with Cluster.create(load("cluster:2x1,net=200Mbit/s"), "test", base=base) as cluster:
        for host in ("h0", "h1"):
            assert on(cluster, host, "hostname") == host
            assert on(cluster, host, "ls", "/dev/shm") == ""
            on(cluster, host, "touch", f"/dev/shm/{host}")
            assert on(cluster, host, "ls", "/sys/class/net").split() == ["eth0", "lo"]
        assert on(cluster, "h0", "ls", "/dev/shm") == "h0"
        assert not Path("/dev/shm/h0").exists()
        assert on(cluster, "h1", "readlink", "/proc/self/ns/net") == os.readlink(f"/proc/{cluster.record.pids['h1']}/ns/net")
        assert on(cluster, "h1", "pwd") == os.getcwd()


FABRICS = [
    *("uneven-3-2-1", "two-racks", "ring-5", "mesh-2x3", "rails-2"),
    *("cluster:2x1,nics=2,net=100Mbit/s", "fattree:k=4,net=100Mbit/s"),
]


@pytest.mark.parametrize("fabric", FABRICS)
def test_all_hosts_reach_all_others_by_name(fabric: str, base: Path) -> None:
    file = REPOSITORY / "bench" / "fabrics" / f"{fabric}.yaml"
    with Cluster.create(load(file if ":" not in fabric else fabric), "test", base=base) as cluster:
        # every other host of a large cluster
        hosts = [host.name for host in cluster.plan.hosts][:: 1 + len(cluster.plan.hosts) // 8]
        servers = [
            subprocess.Popen(cluster.enter(host, [sys.executable, "-c", SAY_WHO]), stdout=subprocess.PIPE, text=True) for host in hosts
        ]
        for server in servers:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
        clients = [subprocess.Popen(cluster.enter(host, [sys.executable, "-c", CONNECT_TO_ALL, *hosts])) for host in hosts]
        assert [client.wait(60) for client in clients] == [0] * len(hosts)
        assert all(row.drops == 0 for row in cluster.traffic())
    for server in servers:
        server.communicate(timeout=10)


def test_both_interfaces_on_one_switch_send_what_comes_from_their_address(base: Path) -> None:
    with Cluster.create(load("cluster:2x1,nics=2,net=200Mbit/s"), "test", base=base) as cluster:
        script = (
            "import socket; s = socket.socket(); s.bind((socket.gethostbyname('h0-eth1'), 0));"
            "s.settimeout(20); s.connect(('h1-eth1', 7)); assert s.recv(9) == b'h1'"
        )
        server = subprocess.Popen(cluster.enter("h1", [sys.executable, "-c", SAY_WHO]), stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        server.stdout.readline()
        on(cluster, "h0", sys.executable, "-c", script)
        sent = {row.link: row.bytes for row in cluster.traffic()}
        assert sent["h0.eth0->sw0"] == sent["h1.eth0->sw0"] == 0
        assert sent["h0.eth1->sw0"] > 0
        assert sent["h1.eth1->sw0"] > 0
    server.communicate(timeout=10)


@pytest.mark.parametrize(
    ("expression", "links"),
    [
        ("cluster:2x1,net=200Mbit/s", ["h0.eth0->sw0", "sw0->h1.eth0"]),
        ("line:3,net=200Mbit/s", ["h0.s0->h1.s0", "h1.s0->h2.s0"]),
    ],
)
def test_links_are_shaped_and_count_what_passes(expression: str, links: list[str], base: Path) -> None:
    size, rate = 2_000_000, 25e6
    receiver = (
        "import socket, time; s = socket.create_server(('', 5000)); print('ready', flush=True); c, _ = s.accept()\n"
        "first = c.recv(1); begin = time.perf_counter(); n = 1\n"
        "while d := c.recv(1 << 20): n += len(d)\n"
        "print(n, time.perf_counter() - begin)"
    )
    sender = f"import socket, sys; socket.create_connection((sys.argv[1], 5000)).sendall(bytes({size}))"
    with Cluster.create(load(expression), "test", base=base) as cluster:
        first, last = cluster.plan.hosts[0].name, cluster.plan.hosts[-1].name
        server = subprocess.Popen(cluster.enter(last, [sys.executable, "-c", receiver]), stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        on(cluster, first, sys.executable, "-c", sender, last)
        received, seconds = server.communicate(timeout=60)[0].split()
        rows = {row.link: row for row in cluster.traffic()}
    assert int(received) == size
    # A token bucket lets its burst (32 KiB) through at once, each of the two on the way.
    assert float(seconds) > 0.95 * (size - 2 * 32768) / rate
    for link, row in rows.items():
        assert row.drops == 0
        if link in links:
            assert row.rate == rate
            assert size < row.bytes < 1.08 * size
            assert row.packets >= size / 1460
        else:
            assert row.bytes < 0.1 * size  # acknowledgements


needs_mpirun = pytest.mark.skipif(shutil.which("mpirun", path=Path(sys.executable).parent) is None, reason="Open MPI is not installed")


@needs_mpirun
@pytest.mark.parametrize(
    ("expression", "options", "hosts"),
    [
        ("bench/fabrics/cluster-4x2.yaml", ["--placement", "packed"], "h0 h0 h1 h1 h2 h2 h3 h3"),
        ("cluster:4x2,net=200Mbit/s", ["--placement", "round_robin"], "h0 h1 h2 h3 h0 h1 h2 h3"),
        ("bench/fabrics/uneven-3-2-1.yaml", [], "h0 h0 h0 h1 h1 h2"),
        ("bench/fabrics/mesh-2x3.yaml", ["--placement", "5,3,1,0"], "h5 h3 h1 h0"),
        ("bench/fabrics/two-racks.yaml", [], "h0 h2 h1 h3"),
    ],
)
def test_mpirun_places_ranks(expression: str, options: list[str], hosts: str, base: Path) -> None:
    # mpirun now and then misses the end of programs that last no time at all.
    done = lab(base, "run", *options, expression, "--", "sh", "-c", f"{RANK_AND_HOST}; sleep 0.5")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{rank} {host}" for rank, host in enumerate(hosts.split())]


def test_plain_ranks_are_placed(base: Path) -> None:
    done = lab(
        base, "run", "--launcher", "env", "--placement", "round_robin", "cluster:3+2+1,net=200Mbit/s", "--", "sh", "-c", RANK_AND_HOST
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 h0", "1 h1", "2 h2", "3 h0", "4 h1", "5 h0"]


def test_torchrun_takes_uneven_hosts(base: Path) -> None:
    done = lab(
        base, "run", "--launcher", "torchrun", "cluster:2+1,net=200Mbit/s", "--", "sh", "-c", f"{RANK_AND_HOST}; echo $LOCAL_RANK >&2"
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 h0", "1 h0", "2 h1"]


@needs_mpirun
def test_open_mpi_computes_over_hosts_that_forward(base: Path) -> None:
    pytest.importorskip("mpi4py", exc_type=ImportError)
    program = (
        "from mpi4py import MPI; import numpy as np; w = MPI.COMM_WORLD; a = np.full(100_000, w.rank + 1.0); b = np.empty_like(a)\n"
        "w.Allreduce(a, b); assert (b == 10).all()"
    )
    counts = base.parent / "bytes.json"
    done = lab(base, "run", "--bytes-json", str(counts), "line:4,net=200Mbit/s", "--", "python", "-c", program)
    assert done.returncode == 0, done.stderr
    links = json.loads(counts.read_text())["links"]
    assert len(links) == 6
    assert all(link["bytes"] > 800_000 for link in links)  # every host's part of the sum has to pass every link, both ways


def test_gloo_computes_over_hosts_that_forward(base: Path) -> None:
    program = (
        "import torch, torch.distributed as d; d.init_process_group('gloo'); t = torch.full((1000,), d.get_rank() + 1.0)\n"
        "d.all_reduce(t); assert (t == 3).all(); d.destroy_process_group()"
    )
    done = lab(base, "run", "--launcher", "env", "--placement", "0,2", "line:3,net=200Mbit/s", "--", "python", "-c", program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("launcher", ["once", "env", pytest.param("mpirun", marks=needs_mpirun)])
def test_the_command_s_exit_status_is_passed_on(launcher: str, base: Path) -> None:
    # Not at once: mpirun may hang when a rank ends before the others are up.
    script = '[ "${RANK-${OMPI_COMM_WORLD_RANK-1}}" = 1 ] && { sleep 1; exit 7; }; exec sleep 1000'
    done = lab(base, "run", "--launcher", launcher, "cluster:2x1,net=200Mbit/s", "--", "sh", "-c", script)
    assert done.returncode == 7, done.stderr


def test_programs_see_the_topology_and_the_caller_s_variables(base: Path, tmp_path: Path) -> None:
    script = 'echo "${TOPOCCL_TOPO_FILE-none} $MINE $PWD"'
    run = ["run", "--launcher", "once", "-x", "MINE=a b"]
    done = lab(base, *run, "cluster:2x1,net=200Mbit/s", "--", "sh", "-c", script)
    assert done.stdout == f"cluster:2x1,net=200Mbit/s a b {REPOSITORY}\n", done.stderr
    done = lab(base, *run, "--no-topology", "cluster:2x1,net=200Mbit/s", "--", "sh", "-c", script)
    assert done.stdout == f"none a b {REPOSITORY}\n", done.stderr
    done = lab(base, *run, "bench/fabrics/line-4.yaml", "--", "sh", "-c", script)
    assert done.stdout.split()[0] == str(REPOSITORY / "bench" / "fabrics" / "line-4.yaml"), done.stderr


class Running:
    """A ``lab run`` in progress, with ranks that do nothing."""

    def __init__(self, base: Path, launcher: str) -> None:
        command = lab_command(base, "run", "--launcher", launcher, "cluster:2x1,net=200Mbit/s", "--", "sh", "-c", "sleep 1000; true")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: [r for r in state.records(base) if r.state == "running"], "the cluster")
        (self.record,) = state.records(base)
        self.namespaces = namespaces(dict(self.record.pids))
        cluster = Cluster.open(self.record, base)
        wait_for(lambda: self.sleepers(cluster) == 2, "the ranks")

    def sleepers(self, cluster: Cluster) -> int:
        names = []
        for pid in cluster.processes():
            try:
                names.append(Path(f"/proc/{pid}/comm").read_text().strip())
            except OSError:
                continue
        return names.count("sleep")

    def left(self) -> list[int]:
        return holders_of(self.namespaces)


@pytest.mark.parametrize("launcher", ["env", pytest.param("mpirun", marks=needs_mpirun)])
@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_everything(launcher: str, signum: int, status: int, base: Path) -> None:
    running = Running(base, launcher)
    running.process.send_signal(signum)
    _, errors = running.process.communicate(timeout=60)
    assert running.process.returncode == status, errors
    assert running.left() == []


@pytest.mark.parametrize("launcher", ["env", pytest.param("mpirun", marks=needs_mpirun)])
def test_kill_ends_everything(launcher: str, base: Path) -> None:
    running = Running(base, launcher)
    running.process.kill()
    running.process.communicate(timeout=60)
    wait_for(lambda: not running.left(), "the ranks to end")
    wait_for(lambda: not state.records(base), "the directory to go")


def test_leftovers_are_recognised_and_removed(base: Path) -> None:
    """The laboratory and the holder of its namespaces are killed at once: its directory is left, nothing else."""
    running = Running(base, "env")
    assert running.record.holder is not None
    os.kill(running.process.pid, signal.SIGSTOP)
    os.kill(running.record.holder.pid, signal.SIGKILL)
    running.process.kill()
    running.process.communicate(timeout=60)
    wait_for(lambda: not running.left(), "the ranks to end")
    name = running.record.id
    assert f"{name}  leftover" in lab(base, "status").stdout
    assert f"killed: {name}" in lab(base, "run", "--launcher", "once", "cluster:1x1", "--", "true").stderr
    assert lab(base, "down", "--all").stdout == f"cluster {name} is down\n"
    assert lab(base, "status").stdout == "no clusters\n"


def test_up_exec_status_down(base: Path) -> None:
    up = lab(base, "up", "ring:3,net=200Mbit/s")
    assert up.returncode == 0, up.stderr
    (record,) = state.records(base)
    made = namespaces(dict(record.pids))
    assert f"cluster {record.id} is up: 3 hosts, 3 slots" in up.stdout
    done = lab(base, "exec", "h2", "--", "sh", "-c", 'hostname; echo "$@"; exit 5', "x", "--", "y")
    assert (done.stdout, done.returncode) == ("h2\n-- y\n", 5)
    done = lab(base, "run", "--launcher", "env", "--placement", "2,0", record.id, "--", "sh", "-c", RANK_AND_HOST)
    assert sorted(done.stdout.splitlines()) == ["0 h2", "1 h0"], done.stderr
    done = lab(base, "run", "--launcher", "once", "cluster:1x1", "--", "true")  # a second one beside it
    assert done.returncode == 0, done.stderr
    status = lab(base, "status", "--bytes").stdout
    assert f"{record.id}  up  ring:3,net=200Mbit/s  0 processes  h0 10.0.0.1, h1" in status
    assert "h0.s0->h1.s0  h0:eth0" in status
    assert lab(base, "down", "nothing").returncode == 2
    assert lab(base, "down").stdout == f"cluster {record.id} is down\n"
    assert holders_of(made) == []
    assert lab(base, "down").returncode == 2


def test_clusters_with_equal_addresses_live_side_by_side(base: Path) -> None:
    topology = load("cluster:2x1,net=200Mbit/s")
    with Cluster.create(topology, "one", base=base) as one, Cluster.create(topology, "two", base=base) as two:
        assert one.record.id != two.record.id
        for cluster in (one, two):
            server = subprocess.Popen(cluster.enter("h1", [sys.executable, "-c", SAY_WHO]), stdout=subprocess.PIPE, text=True)
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
        on(one, "h0", sys.executable, "-c", CONNECT_TO_ALL, "h1")
        assert sum(row.packets for row in one.traffic()) > 0
        assert sum(row.packets for row in two.traffic()) == 0


def test_counts_are_printed(base: Path) -> None:
    program = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(bytes(1000), ('h1', 9))"
    done = lab(base, "run", "--launcher", "once", "--count-bytes", "cluster:2x1,net=200Mbit/s", "--", "python", "-c", program)
    assert done.returncode == 0
    rows = {words[0]: words[1:] for words in map(str.split, done.stderr.splitlines()) if words}
    assert rows["link"] == ["at", "Mbit/s", "bytes", "packets", "drops"]
    assert rows["h0.eth0->sw0"] == ["h0:eth0", "200", "1042", "1", "0"]
    assert rows["sw0->h1.eth0"] == ["fabric:p1b", "200", "1042", "1", "0"]


def test_dropped_packets_are_warned_about(base: Path) -> None:
    """More than the 16 MB that the queue of a 1 Mbit/s link holds."""
    program = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(socket.SOL_SOCKET, 32, 64 << 20)\n"
        "for _ in range(600): s.sendto(bytes(60_000), ('h1', 9))"
    )
    done = lab(base, "run", "--launcher", "once", "line:2,net=1Mbit/s", "--", "python", "-c", program)
    assert done.returncode == 0, done.stderr
    assert "packets dropped" in done.stderr
    assert "on h0.s0->h1.s0" in done.stderr


def test_the_command_line_of_topoccl_has_it_too(base: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "topoccl",
        "lab",
        "--state-dir",
        str(base),
        "run",
        "--launcher",
        "once",
        "cluster:1x1",
        "--",
        "hostname",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("h0\n", 0), done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "nonsense", "--", "true"], "lab: error: no topology 'nonsense'"),
        (["run", "cluster:2x1", "-n", "3", "--", "true"], "lab: error: 3 ranks asked for"),
        (["run", "cluster:2x1", "--launcher", "once", "-x", "NOTHING", "--", "true"], "lab: error: -x NOTHING: the variable is not set"),
        (["exec", "h0", "--", "true"], "lab: error: no cluster is up"),
        (["exec", "--lab", "x", "h0", "--", "true"], "lab: error: cluster 'x' is not up; up: none"),
        (["run", "cluster:2x1"], "error: no command; write it after --"),
        (["down", "--", "x"], "error: takes no command, but 'x' follows --"),
    ],
)
def test_bad_use_gets_one_line_and_status_2(words: list[str], message: str, base: Path) -> None:
    done = lab(base, *words)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
