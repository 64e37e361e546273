"""Starting a command's ranks across the hosts of a cluster: with mpirun, with torchrun, or plainly.

The command lines and environments (``tasks``) are made apart from running them (``supervise``).
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from topoccl.bench.virtual import LabError
from topoccl.bench.virtual.plan import Host, Plan
from topoccl.topology import Topology

LAUNCHERS = ("mpirun", "torchrun", "env", "once")
PLACEMENTS = ("declared", "packed", "round_robin")
MASTER_PORT = "29500"  # the hosts have ports of their own, so it is free
_FORWARD = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")
_GRACE = 3.0  # seconds that a command has to end by itself, after the signal


class Stopped(Exception):
    """A signal that ends the laboratory has come in."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


@dataclass(frozen=True, slots=True)
class Task:
    """One process to start on a host."""

    host: str
    argv: tuple[str, ...]
    env: Mapping[str, str]


def slot_order(topology: Topology, placement: str, ranks: int | None = None) -> tuple[int, ...]:
    """The slot of each rank.

    Args:
        placement: ``declared`` takes the slots as the topology lists them, ``packed`` fills one host after the other,
            ``round_robin`` deals ranks to the hosts in turn; else slot numbers with commas between them.
        ranks: how many, from the front of that order; all by default.

    Raises:
        LabError: an unknown placement, a slot that does not exist or is given twice, or fewer slots than ranks.
    """
    if placement == "declared":
        order = list(range(topology.num_ranks))
    elif placement in PLACEMENTS:
        groups: dict[str, list[int]] = {host: [] for host in topology.hosts}
        for slot, host in enumerate(topology.host_of_rank):
            groups[host].append(slot)
        if placement == "packed":
            order = [slot for slots in groups.values() for slot in slots]
        else:
            order = [slot for turn in zip_longest(*groups.values()) for slot in turn if slot is not None]
    else:
        try:
            order = [int(word) for word in placement.split(",")]
        except ValueError:
            raise LabError(f"unknown placement {placement!r}; known: {', '.join(PLACEMENTS)}, or slot numbers such as 0,2,1,3") from None
        twice = [slot for slot, count in Counter(order).items() if count > 1]
        wrong = [slot for slot in order if not 0 <= slot < topology.num_ranks]
        if twice or wrong:
            what = f"slot {twice[0]} twice" if twice else f"slot {wrong[0]}, but the slots are 0 to {topology.num_ranks - 1}"
            raise LabError(f"placement {placement!r} uses {what}")
    if ranks is None:
        return tuple(order)
    if not 1 <= ranks <= len(order):
        raise LabError(f"{ranks} ranks asked for; topology {topology.name!r} has {len(order)} slots in placement {placement!r}")
    return tuple(order[:ranks])


def environment(plan: Plan, directory: Path, extra: Sequence[str] = (), base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of commands on the hosts: the caller's (``base``), plus what finds this cluster's network.

    Args:
        extra: ``NAME=VALUE`` to set, or ``NAME``, which must be set already.

    Raises:
        LabError: ``NAME`` is not set.
    """
    env = dict(os.environ if base is None else base)
    # commands that come with this interpreter (python, mpirun, torchrun) are found without activating anything
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    env["GLOO_SOCKET_IFNAME"] = plan.hosts[0].device
    subnets = ",".join(plan.subnets)
    defaults = {
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_btl_tcp_if_include": subnets,
        "OMPI_MCA_mpi_yield_when_idle": "1",  # every host believes that it has the cores for itself
        "PRTE_MCA_plm_ssh_agent": f"/bin/sh {directory / 'agent'}",
        "PRTE_MCA_prte_keep_fqdn_hostnames": "1",  # a dot in a host's name does not begin a domain
        "PRTE_MCA_prte_if_include": plan.subnets[0],
        "PRTE_MCA_prte_tmpdir_base": str(directory / "tmp"),  # pids, which name session directories, repeat between clusters
    }
    env = defaults | env
    for item in extra:
        name, equals, value = item.partition("=")
        if equals:
            env[name] = value
        elif name not in env:
            raise LabError(f"-x {name}: the variable is not set; set it, or write {name}=VALUE")
    return env


def tasks(
    launcher: str,
    plan: Plan,
    order: Sequence[int],
    command: Sequence[str],
    env: Mapping[str, str],
    directory: Path,
    extra: Sequence[str] = (),
) -> list[Task]:
    """The processes that start ``command`` once for each rank; rank ``i`` on the host of slot ``order[i]``.

    ``mpirun`` takes any order; ``torchrun`` only one that keeps a host's ranks together; ``env`` starts the ranks itself, with
    torch.distributed's variables; ``once`` runs the command itself a single time, on the host of rank 0.

    Raises:
        LabError: unknown launcher, one that is not installed, or an order that it cannot have.
    """
    hosts = [plan.host_of_slot(slot) for slot in order]
    counts = Counter(host.name for host in hosts)
    match launcher:
        case "mpirun":
            names = [name for name in env if name in _FORWARD or name.startswith("TOPOCCL_")]
            names += [name for item in extra if (name := item.partition("=")[0]) not in names and "_MCA_" not in name]
            forward = [word for name in names for word in ("-x", name)]
            options = ["--hostfile", str(directory / "ranks"), "--map-by", "seq", "--bind-to", "none"]
            return [Task(hosts[0].name, (_tool("mpirun", env), "-n", str(len(hosts)), *options, *forward, *command), env)]
        case "torchrun":
            return _torchrun(hosts, counts, command, env)
        case "env":
            seen: Counter[str] = Counter()
            started = []
            for rank, host in enumerate(hosts):
                own = {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(len(hosts)),
                    "LOCAL_RANK": str(seen[host.name]),
                    "LOCAL_WORLD_SIZE": str(counts[host.name]),
                    "MASTER_ADDR": hosts[0].address,
                    "MASTER_PORT": MASTER_PORT,
                }
                seen[host.name] += 1
                started.append(Task(host.name, tuple(command), {**env, **own}))
            return started
        case "once":
            return [Task(hosts[0].name, tuple(command), env)]
    raise LabError(f"unknown launcher {launcher!r}; known: {', '.join(LAUNCHERS)}")


def rank_file(plan: Plan, order: Sequence[int]) -> str:
    """Open MPI's hostfile for ``--map-by seq``: the host of each rank, a line each."""
    return "".join(f"{plan.host_of_slot(slot).name}\n" for slot in order)


def _torchrun(hosts: list[Host], counts: Counter[str], command: Sequence[str], env: Mapping[str, str]) -> list[Task]:
    runs = [host for i, host in enumerate(hosts) if i == 0 or hosts[i - 1] != host]
    if len(runs) != len(counts):
        raise LabError("torchrun numbers the ranks of one host in a row, and this placement does not; use --launcher env or mpirun")
    tool = _tool("torchrun", env)
    started = []
    for node, host in enumerate(runs):
        options = {
            "nnodes": len(runs),
            "node-rank": node,
            "nproc-per-node": counts[host.name],
            "master-addr": runs[0].address,
            "master-port": MASTER_PORT,
            "local-addr": host.address,
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        started.append(Task(host.name, (tool, *words, "--no-python", *command), env))
    return started


def _tool(name: str, env: Mapping[str, str]) -> str:
    path = shutil.which(name, path=env["PATH"])
    if path is None:
        raise LabError(f"--launcher {name} needs {name} on PATH, and it is not there; other launchers: {', '.join(LAUNCHERS)}")
    return path


def supervise(commands: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> int:
    """Run all ``(argv, environment)`` until all have ended, or one has failed and the others have been ended.

    Returns:
        The exit status of the first that failed, else 0; 128 + n for one that signal n ended.

    Raises:
        Stopped: from the caller's signal handlers, after the commands have been given that signal and time to end.
    """
    # A terminal's keystrokes must not stop what is in the background; pipes and files are the command's.
    stdin = subprocess.DEVNULL if len(commands) > 1 or sys.stdin is None or sys.stdin.isatty() else None
    running: list[subprocess.Popen[bytes]] = []
    first = signal.SIGTERM
    try:
        # In groups of their own, so that a Ctrl-C reaches them through here only, and the group says when all is over.
        running += (subprocess.Popen(argv, env=env, stdin=stdin, process_group=0) for argv, env in commands)
        return _wait(running)
    except Stopped as stopped:
        first = signal.Signals(stopped.signum)
        raise
    finally:
        _end_groups(running, first)


def _wait(running: Sequence[subprocess.Popen[bytes]]) -> int:
    with selectors.DefaultSelector() as selector:
        fds = [os.pidfd_open(process.pid) for process in running]
        try:
            for fd, process in zip(fds, running, strict=True):
                selector.register(fd, selectors.EVENT_READ, process)
            while selector.get_map():
                for key, _ in selector.select():
                    selector.unregister(key.fd)
                    status: int = key.data.wait()
                    if status != 0:
                        return status if status > 0 else 128 - status
        finally:
            for fd in fds:
                os.close(fd)
    return 0


def _end_groups(running: Sequence[subprocess.Popen[bytes]], first: signal.Signals) -> None:
    """End what is left of the commands: by ``first``, and if that does not help by stronger signals."""
    groups = {process.pid for process in running}
    for signum in (first, signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _GRACE
        # nsenter itself ends with what it has started, and says how that ended
        told = set() if signum == signal.SIGKILL else set(groups)
        while alive := _members(groups):
            for pid in alive - told:  # also what has been started only after the first round
                with suppress(ProcessLookupError):
                    os.kill(pid, signum)
            told |= alive
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        else:
            break
    for process in running:
        process.wait()


def _members(groups: Collection[int]) -> set[int]:
    """Pids of the process groups' members that have not ended (one that nobody has waited for yet has)."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(group) in groups and state not in "ZX":
                found.add(int(stat.parent.name))
    return found
