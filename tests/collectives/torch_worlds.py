"""Many checks on worlds of ranks that are forked from one process, which imports what they need once.

    python torch_worlds.py '{"modules": ["torch_mesh_checks"], "worlds": [{"size": 2, "hosts": "ab", "checks": ["meshes"]}]}'

Each world runs its checks one after the other and goes on after one that fails, with a new group. The last line of the output
says as JSON which checks failed on which ranks, and how.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from forked import fork_rank
from torch_ranks import clean_environment

CALL_SECONDS = float(os.environ.get("CALL_SECONDS", 60.0))  # the timeout of groups: a rank that fails leaves the others waiting this long


def run_worlds(
    modules: Sequence[str], worlds: Sequence[Mapping[str, Any]], *, env: Mapping[str, str] | None = None, timeout: float = 240
) -> None:
    """Runs checks, and asserts that all of them have gone well.

    Args:
        modules: names of modules that fill ``torch_reference.CHECKS``.
        worlds: for each one ``size``; ``hosts``, a letter for each rank, equal for ranks of one host; ``checks``, all by default,
            and those not to be run in ``without``.
        env: variables for all ranks.
        timeout: seconds for all of it.
    """
    spec = json.dumps({"modules": list(modules), "worlds": list(worlds), "seconds": timeout})
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, __file__, spec], env=clean_environment({"PYTHONPATH": path, **(env or {})}), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout + 60, check=False, start_new_session=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines, "no output"
    assert lines[-1].startswith("{"), done.stdout[-6000:]
    failed: dict[str, str] = json.loads(lines[-1])
    assert not failed, f"{len(failed)} failed: {', '.join(failed)}\n\n" + "\n\n".join(f"{name}\n{text}" for name, text in failed.items())


def main(spec: dict[str, Any]) -> None:
    import torch
    from torch_reference import CHECKS

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    for name in spec["modules"]:
        importlib.import_module(name)
    gc.freeze()
    failed: dict[str, str] = {}
    end = time.monotonic() + spec["seconds"]
    for number, world in enumerate(spec["worlds"]):
        names = [name for name in world.get("checks") or CHECKS if name not in world.get("without", ())]
        with tempfile.TemporaryDirectory() as folder:
            failed.update(_world(number, world["size"], world.get("hosts"), names, Path(folder), end))
    print(json.dumps(failed), flush=True)


def _world(number: int, size: int, hosts: str | None, names: list[str], folder: Path, end: float) -> dict[str, str]:
    children = []
    for rank in range(size):
        sys.stdout.flush()
        env = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
        if hosts:
            env["TOPOCCL_HOSTID"] = f"{hosts[rank]}{number}"
        children.append(fork_rank(folder / f"log{rank}", env, partial(_led, rank, size, names, folder)))
    statuses: dict[int, int] = {}
    while len(statuses) < size and time.monotonic() < end:
        for rank, child in enumerate(children):
            if rank not in statuses:
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    statuses[rank] = os.waitstatus_to_exitcode(status)
        if any(statuses.values()):
            end = min(end, time.monotonic() + 2 * CALL_SECONDS)
        time.sleep(0.02)
    for rank, child in enumerate(children):
        if rank not in statuses:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
    said = [(folder / f"log{rank}").read_text(errors="replace") if (folder / f"log{rank}").exists() else "" for rank in range(size)]
    failed: dict[str, str] = {}
    for name in names:
        results = [folder / f"{name}.{rank}" for rank in range(size)]
        texts = [result.read_text().partition("\n") if result.exists() else ("", "", "no result") for result in results]
        errors = [f"--- rank {rank} {took}\n{error}" for rank, (took, _, error) in enumerate(texts) if error]
        if errors:
            failed[f"{name} on {size} ranks"] = "\n".join(errors)
        else:
            print(f"{name} on {size} ranks: {texts[0][0]}", flush=True)
        if not all(result.exists() for result in results):
            ended = [f"--- rank {r}, exit status {statuses.get(r, 'none: killed')}\n{said[r][-5000:]}" for r in range(size)]
            failed[f"{name} on {size} ranks and all after it"] = "\n".join(ended)
            break
    if not failed and any(statuses.get(rank, 1) for rank in range(size)):
        failed[f"the end of {size} ranks"] = "\n".join(f"rank {r}: {statuses.get(r, 'killed')}\n{said[r][-3000:]}" for r in range(size))
    return failed


def _led(rank: int, size: int, names: Sequence[str], folder: Path) -> int:
    """As :func:`_rank`, leading a process group, so that whatever it has started ends with it."""
    os.setpgid(0, 0)
    _rank(rank, size, names, folder)
    return 0


def _rank(rank: int, size: int, names: list[str], folder: Path) -> None:
    import torch.distributed as dist
    from torch_reference import CHECKS

    import topoccl  # noqa: F401 - registers the backend

    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    results = dist.FileStore(str(folder / "results"), size)
    generation = 0

    def begin() -> None:
        store = dist.FileStore(str(folder / f"store{generation}"), size)
        dist.init_process_group("topoccl", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=CALL_SECONDS))

    begin()
    for at, name in enumerate(names):
        begun, error = time.monotonic(), ""
        faulthandler.dump_traceback_later(1.5 * CALL_SECONDS, exit=True)
        try:
            CHECKS[name]()
        except BaseException:
            error = traceback.format_exc()
        faulthandler.cancel_dump_traceback_later()
        (folder / f"{name}.{rank}").write_text(f"{time.monotonic() - begun:.2f} s\n{error}")
        results.set(f"{at}/{rank}", error)
        results.wait([f"{at}/{r}" for r in range(size)], timedelta(seconds=2 * CALL_SECONDS))
        if any(results.get(f"{at}/{r}") for r in range(size)):  # what it left behind is unknown
            dist.group.WORLD.abort()
            dist.destroy_process_group()
            generation += 1
            begin()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
