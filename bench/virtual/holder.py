"""Keeps the namespaces of one virtual cluster alive; a program of its own, started by ``cluster``.

All processes of a cluster live in one PID namespace, so that the end of its first process is the end of all of them, whatever
they did to get away; network, host name, mounts and shared memory are per host and go with the last process. Nothing is ever
made in the machine's own namespaces, so nothing can be left there.

Protocol: the first line on standard input is a JSON object::

    {"directory": str, "persist": bool, "spaces": [{"name": str, "hostname": str | null, "hosts_file": str | null,
                                                    "sysctl": {path below /proc/sys: value}}]}

The answer is one line: ``{"pids": {name: pid}}`` or ``{"error": str}``. The cluster lasts until standard input ends (or, with
``persist``, until SIGTERM); then all its processes are killed and waited for and ``directory`` is removed.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import sys
from typing import Any, NoReturn

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _call(what: str, result: int) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def _unshare(flags: int) -> None:
    _call("unshare", _libc.unshare(flags))


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind, data)]
    result = _libc.mount(*words[:3], ctypes.c_ulong(flags), words[3])
    _call(f"mount {source} on {target}", result)


def _set_up(space: dict[str, Any]) -> None:
    """Enter new namespaces and make them what ``space`` says."""
    _unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC)
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    for path, value in space["sysctl"].items():
        if os.path.exists(f"/proc/sys/{path}"):  # a kernel without IPv6 has nothing to turn off
            with open(f"/proc/sys/{path}", "w") as file:
                file.write(value)
    if space["hostname"] is None:
        return
    socket.sethostname(space["hostname"])
    _mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    _mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)  # the new one lists this namespace's devices
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _mount(space["hosts_file"], "/etc/hosts", None, MS_BIND)


def _reap_forever() -> NoReturn:
    """What the first process of a PID namespace has to do."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigwait({signal.SIGCHLD})


def _hold(space: dict[str, Any], report: int) -> NoReturn:
    """Child process: set the space up, report (nothing, or the error) by closing ``report``, and stay."""
    try:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _detach()
        _set_up(space)
    except OSError as error:
        os.write(report, f"{space['name']}: {error.strerror or error}".encode())
        os._exit(1)
    os.close(report)
    _reap_forever()


def _detach() -> None:
    """Let go of the caller's standard files, so that its readers see their end."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def _start(spaces: list[dict[str, Any]], pids: dict[str, int]) -> None:
    _unshare(CLONE_NEWPID)  # for the children: the first of them becomes process 1 of the cluster
    for space in spaces:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _hold(space, writing)
        pids[space["name"]] = pid
        os.close(writing)
        with open(reading, "rb") as pipe:
            error = pipe.read().decode()
        if error:
            raise OSError(error)


def _end(pids: dict[str, int], directory: str) -> None:
    for pid in pids.values():  # the first one takes all the others with it
        os.kill(pid, signal.SIGKILL)
    try:
        while True:  # in any order: the first is not gone before the others have been waited for
            os.wait()
    except ChildProcessError:
        shutil.rmtree(directory, ignore_errors=True)


class _Terminated(Exception):
    pass


def _terminate(signum: int, frame: object) -> NoReturn:
    raise _Terminated


def main() -> None:
    line = sys.stdin.readline()
    if not line:
        return  # who started this is gone already
    request = json.loads(line)
    pids: dict[str, int] = {}
    try:
        signal.signal(signal.SIGTERM, _terminate)
        _start(request["spaces"], pids)
        sys.stdout.write(json.dumps({"pids": pids}) + "\n")
        sys.stdout.flush()
        if request["persist"]:
            _detach()
            while True:
                signal.pause()
        sys.stdin.read()
    except OSError as error:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        sys.stdout.flush()
    except _Terminated:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end(pids, request["directory"])


if __name__ == "__main__":
    main()
