"""Starts the ranks of a torch group as processes of their own, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKS = str(HERE / "torch_checks.py")
_LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_")
_GRACE = 15.0  # seconds that the others get when one rank has failed


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what launchers leave there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    return {**kept, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **(extra or {})}


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_ranks(
    size: int, command: Sequence[str], *, hosts: str | None = None, env: Mapping[str, str] | None = None, timeout: float = 120,
) -> list[tuple[int, str]]:  # fmt: skip
    """Runs ``python COMMAND...`` as ranks that meet by env://.

    Args:
        size: how many.
        command: arguments of Python.
        hosts: a letter for each rank, equal for ranks that shall count as one host; by default one host.
        env: more variables; RANK and the like are set.
        timeout: seconds, after which those that still run are killed.

    Returns:
        The exit status and the output of each rank, both streams together.
    """
    port = str(free_port())
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        outputs = [open(Path(folder, str(rank)), "w+b") for rank in range(size)]  # noqa: SIM115 - closed below
        try:
            for rank in range(size):
                own = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                if hosts is not None:
                    own["TOPOCCL_HOSTID"] = hosts[rank]
                argv, full = [sys.executable, *command], clean_environment({**own, **(env or {})})
                processes.append(subprocess.Popen(argv, env=full, stdout=outputs[rank], stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL))
            end = time.monotonic() + timeout
            while any(process.poll() is None for process in processes) and time.monotonic() < end:
                if any(process.poll() for process in processes):
                    end = min(end, time.monotonic() + _GRACE)
                    _wait(processes, end)
                    break
                time.sleep(0.05)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()
        results = []
        for process, output in zip(processes, outputs, strict=True):
            output.seek(0)
            results.append((process.returncode, output.read().decode(errors="replace")))
            output.close()
    return results


def _wait(processes: Sequence[subprocess.Popen[bytes]], end: float) -> None:
    while any(process.poll() is None for process in processes) and time.monotonic() < end:
        time.sleep(0.05)


def all_well(results: Sequence[tuple[int, str]]) -> None:
    """Asserts that every rank has ended well; shows what the others said."""
    if any(status for status, _ in results):
        told = "\n".join(f"--- rank {rank}, exit status {status}\n{text[-6000:]}" for rank, (status, text) in enumerate(results))
        raise AssertionError(f"ranks failed:\n{told}")
