"""Runs an example as several jobs, one after the other, in forked processes: importing what it needs takes longer than running it.

    forked.py EXAMPLE.py DIRECTORY BACKEND:RANKS ...  [-- OPTIONS]

Each job's losses are in DIRECTORY/BACKEND-RANKS.json. A job of one rank is started as a program is that nobody has launched.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
import sys
from multiprocessing.connection import wait
from pathlib import Path

import torch._dynamo  # noqa: F401  (what optimizers and DistributedDataParallel import when they are first used)


def rank(example: str, options: list[str], env: dict[str, str]) -> None:
    os.environ.update(env)
    sys.argv = [example, *options]
    runpy.run_path(example, run_name="__main__")


def main() -> None:
    example, directory, *jobs = sys.argv[1:]
    at = jobs.index("--") if "--" in jobs else len(jobs)
    jobs, options = jobs[:at], jobs[at + 1 :]
    sys.path.insert(0, str(Path(example).parent))
    runpy.run_path(example, run_name="imported")
    fork = multiprocessing.get_context("fork")
    for job in jobs:
        backend, _, number = job.partition(":")
        ranks = int(number)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        job_options = ["--backend", backend, "--losses", f"{directory}/{backend}-{ranks}.json", *options]
        started = []
        for i in range(ranks):
            env = {"RANK": str(i), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if ranks > 1 else {}
            started.append(fork.Process(target=rank, args=(example, job_options, env), name=f"rank {i}"))
            started[-1].start()
        running = {process.sentinel: process for process in started}
        while running:
            for sentinel in wait(list(running)):
                process = running.pop(sentinel)
                process.join()
                if process.exitcode != 0:
                    for other in running.values():
                        other.terminate()
                    sys.exit(f"{job}: {process.name} ended with {process.exitcode}")


if __name__ == "__main__":
    main()
