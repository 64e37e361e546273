"""A virtual cluster that runs: making it, entering its hosts, reading its counters, ending it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from topoccl.bench.virtual import LabError, LabUnavailable, holder, state
from topoccl.bench.virtual.plan import FABRIC, Plan, make_plan
from topoccl.topology import Topology
from topoccl.topology.dump import dump
from topoccl.topology.files import load_file

_TOOLS = ("ip", "tc", "bridge", "nsenter")
_COMMON = {"net/ipv6/conf/all/disable_ipv6": "1", "net/ipv6/conf/default/disable_ipv6": "1"}
_ROUTED = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/send_redirects": "0",
    "net/ipv4/conf/default/send_redirects": "0",
}
_ASYMMETRIC = {"net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/default/rp_filter": "0"}  # answers may take another way


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a shaped device has sent over one direction of a link: bytes with all headers, packets, and packets dropped."""

    link: str
    space: str
    device: str
    rate: float
    bytes: int
    packets: int
    drops: int

    def since(self, before: Traffic) -> Traffic:
        return replace(self, bytes=self.bytes - before.bytes, packets=self.packets - before.packets, drops=self.drops - before.drops)


def check_machine() -> None:
    """Whether a cluster may be tried here.

    Raises:
        LabUnavailable: not Linux, not root, or a tool is missing.
    """
    if not sys.platform.startswith("linux"):
        raise LabUnavailable(f"virtual clusters need Linux; this is {sys.platform}")
    if os.geteuid() != 0:
        raise LabUnavailable(f"virtual clusters need root (network namespaces); this is user {os.geteuid()}")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise LabUnavailable(f"virtual clusters need {', '.join(missing)} on PATH (packages iproute2 and util-linux)")


class Cluster:
    """A running cluster; a context manager that takes it down. Made by :meth:`create`, or found again by :meth:`open`."""

    def __init__(self, plan: Plan, directory: Path, record: state.Record, process: subprocess.Popen[str] | None) -> None:
        self.plan = plan
        self.directory = directory
        self.record = record
        self._process = process

    @classmethod
    def create(cls, topology: Topology, source: str, *, persistent: bool = False, base: Path = state.DEFAULT_DIRECTORY) -> Self:
        """Build a cluster; ``source`` is what ``status`` calls the topology.

        A cluster that is not persistent ends with this process at the latest, however that ends.

        Raises:
            LabUnavailable: the machine or the user may not have namespaces.
            LabError: the topology cannot be built, or a command failed.
        """
        check_machine()
        plan = make_plan(topology)
        directory = state.new_directory(base)
        process: subprocess.Popen[str] | None = None
        try:
            record = state.Record(directory.name, source, persistent, state.Process.of(os.getpid()), None, {})
            state.write(directory, record)
            (directory / "hosts").write_text(plan.etc_hosts)
            (directory / "topology.json").write_text(dump(topology, style="json"))
            (directory / "tmp").mkdir()
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", holder.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # a Ctrl-C is for the command, not for the namespaces
                cwd="/",
            )
            record = replace(record, holder=state.Process.of(process.pid), pids=_hold(process, plan, directory, persistent))
            state.write(directory, record)
            cluster = cls(plan, directory, record, process)
            (directory / "agent").write_text(cluster._agent_script())
            cluster._build()
        except BaseException:
            _end(process, directory)
            raise
        return cluster

    @classmethod
    def open(cls, record: state.Record, base: Path = state.DEFAULT_DIRECTORY) -> Self:
        """A cluster that ``up`` has made."""
        directory = base / record.id
        return cls(make_plan(load_file(directory / "topology.json")), directory, record, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the cluster down: all its processes, namespaces and files. One that was opened or is persistent stays."""
        if self._process is not None and not self.record.persistent:
            _end(self._process, self.directory)

    def _build(self) -> None:
        plan = self.plan
        self._batch(FABRIC, "ip", plan.cable_lines(self.record.pids))
        for space in plan.spaces:
            self._batch(space, "ip", plan.ip_lines[space])
            self._batch(space, "tc", plan.shape_lines(space))
        self._batch(FABRIC, "bridge", plan.fdb_lines)

    def _batch(self, space: str, tool: str, lines: Sequence[str]) -> None:
        if not lines:
            return
        # only the network is entered: pids in the lines are this process's, and so are the tools
        command = ["nsenter", f"--net=/proc/{self.record.pids[space]}/ns/net", tool, "-batch", "-"]
        done = subprocess.run(command, input="\n".join(lines) + "\n", text=True, capture_output=True, check=False)
        if done.returncode != 0 or done.stderr.strip():
            raise LabError(f"{tool} failed in {space!r}: {' '.join(done.stderr.split()) or f'exit status {done.returncode}'}")

    def enter(self, host: str, argv: Sequence[str], cwd: str | None = None) -> list[str]:
        """The command line that runs ``argv`` on ``host``, in directory ``cwd`` (default: this process's).

        Raises:
            LabError: no such host.
        """
        pid = self.record.pids[self.plan.host(host).name]
        entry = ["nsenter", f"--target={pid}", "--net", "--uts", "--mount", "--ipc", "--pid", "--"]
        return [*entry, "/bin/sh", "-c", 'cd "$0" && exec "$@"', cwd or os.getcwd(), *argv]

    def _agent_script(self) -> str:
        """A shell script in place of ssh, ``agent HOST COMMAND...``, for use on the cluster's hosts themselves."""
        cases = []
        for host in self.plan.hosts:
            status = Path(f"/proc/{self.record.pids[host.name]}/status").read_text()
            inner = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]
            cases.append(f"{host.name}) pid={inner};;")
        entry = 'exec nsenter --target="$pid" --net --uts --mount --ipc -- /bin/sh -c "$*"'
        return "\n".join(["host=$1; shift", 'case "$host" in', *cases, '*) echo "no host $host" >&2; exit 255;;', "esac", entry, ""])

    def traffic(self) -> list[Traffic]:
        """The counters of all shaped devices, in the order of the topology's links."""
        stats: dict[tuple[str, str], dict[str, int]] = {}
        for space in self.plan.spaces:
            command = ["nsenter", f"--net=/proc/{self.record.pids[space]}/ns/net", "tc", "-s", "-j", "qdisc", "show"]
            done = subprocess.run(command, text=True, capture_output=True, check=False)
            if done.returncode != 0:
                raise LabError(f"tc failed in {space!r}: {' '.join(done.stderr.split())}")
            stats |= {(space, row["dev"]): row for row in json.loads(done.stdout) if row["kind"] == "tbf"}
        rows = []
        for end in self.plan.ends():
            row = stats[end.space, end.device]
            rows.append(Traffic(end.link, end.space, end.device, end.rate, row["bytes"], row["packets"], row["drops"]))
        return rows

    def processes(self) -> list[int]:
        """Pids of everything that runs in the cluster, besides what holds it."""
        own = os.stat(f"/proc/{self.record.pids[FABRIC]}/ns/pid").st_ino
        held = set(self.record.pids.values())
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in held:
                try:
                    if os.stat(entry / "ns/pid").st_ino == own:
                        found.append(int(entry.name))
                except OSError:  # gone, or hidden from us: then it is not of the cluster
                    continue
        return sorted(found)


def _end(process: subprocess.Popen[str] | None, directory: Path) -> None:
    """End the holder, and with it everything; signals wait until that is done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        if process is not None:
            assert process.stdin is not None
            process.send_signal(signal.SIGTERM)
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()  # the kernel then ends the rest
                process.wait()
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hold(process: subprocess.Popen[str], plan: Plan, directory: Path, persistent: bool) -> dict[str, int]:
    """Tell the holder what to hold; the pid of a process in each namespace."""
    sysctl = _COMMON | _ASYMMETRIC | (_ROUTED if plan.routed else {})
    spaces: list[dict[str, object]] = [{"name": FABRIC, "hostname": None, "hosts_file": None, "sysctl": _COMMON}]
    for host in plan.hosts:
        spaces.append({"name": host.name, "hostname": host.name, "hosts_file": str(directory / "hosts"), "sysctl": sysctl})
    assert process.stdin is not None
    assert process.stdout is not None
    request = {"directory": str(directory), "persist": persistent, "spaces": spaces}
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    answer: dict[str, Any] = json.loads(line) if line else {"error": "the holder of the namespaces ended"}
    if "error" in answer:
        raise LabUnavailable(f"this machine does not let virtual clusters be made: {answer['error']}")
    process.stdout.close()
    pids: dict[str, int] = answer["pids"]
    return pids
