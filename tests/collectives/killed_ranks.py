"""Worlds of three ranks of which rank 1 is killed, forked from one process, which imports what they need once.

    python killed_ranks.py '[["tcp", "aab", "in"], ["gloo", "abc", "before"]]'

Each world is a transport, a letter for each rank's host, and when it happens: in the second call or before it. Prints as JSON, for each
world, each rank's exit status and what it said, and what was left in /dev/shm.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import networkx  # noqa: F401 - with what the choice needs
import numpy as np
import torch.distributed  # noqa: F401 - the store where ranks meet
from forked import fork_rank
from torch_ranks import free_port

import topoccl
import topoccl.collectives.setup

RANKS = 3


def rank_main(rank: int, when: str) -> int:
    world = topoccl.init(timeout=60)
    world.all_reduce(np.ones(3))
    if rank == 1:
        if when == "in":
            world._group._runner.run = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        world.barrier()
    except topoccl.TransportError as error:
        print(f"after {time.monotonic() - begun:.1f} s: {error}", flush=True)
        return 0 if time.monotonic() - begun < 20 else 2
    return 1


def start(rank: int, transport: str, hosts: str, when: str, port: int, output: Path) -> int:
    env = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env |= {"TOPOCCL_TRANSPORT": transport, "TOPOCCL_HOSTID": hosts[rank]}
    return fork_rank(output, env, lambda: rank_main(rank, when))


def main(worlds: list[tuple[str, str, str]]) -> None:
    found = []
    for world in worlds:
        port = free_port()
        with tempfile.TemporaryDirectory() as folder:
            outputs = [Path(folder, str(rank)) for rank in range(RANKS)]
            children = [start(rank, *world, port, output) for rank, output in enumerate(outputs)]
            statuses = dict.fromkeys(children)
            for _ in children:  # each at once, as a launcher does
                child, status = os.wait()
                statuses[child] = os.waitstatus_to_exitcode(status)
            ranks = [(statuses[child], output.read_text(errors="replace")) for child, output in zip(children, outputs, strict=True)]
        found.append({"ranks": ranks, "left": [name for name in os.listdir("/dev/shm") if "topoccl" in name]})
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
