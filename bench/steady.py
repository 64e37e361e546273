"""Whether calls leave memory behind: ``mpirun -n 2 python bench/steady.py [CALLS]`` makes 100 000 of them and compares resident memory.

Every tenth of the calls is followed by a line. Small and large collectives of all kinds take turns, on arrays and on tensors; the exit
status is 1 when a rank has grown by more than 1 MB since the first tenth.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import topoccl

MOST = 1 << 20  # bytes
LARGE = 200  # of how many rounds one is of large messages


def resident() -> int:
    """Bytes of this process that are in memory, those that ranks share apart: whose pages are touched when they are first used."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE")


class Calls:
    """One round of calls of every kind, on buffers that are made once."""

    def __init__(self, comm: topoccl.Communicator, count: int) -> None:
        self.comm, self.size = comm, comm.size
        self.block, self.whole = np.ones(count, np.float32), np.ones(count * comm.size, np.float32)
        self.tensor = torch.ones(count)
        self.out = np.empty_like(self.whole)

    def round(self) -> int:
        """Makes the calls; returns how many."""
        comm, root = self.comm, self.comm.rank == 0
        comm.all_reduce(self.block, op="max")
        comm.all_reduce(self.tensor, op="max")
        comm.all_gather(self.block, self.out)
        comm.reduce_scatter(self.whole, self.block, op="max")
        comm.all_to_all(self.whole, self.out)
        comm.broadcast(self.tensor)
        comm.gather(self.block, self.out if root else None)
        comm.scatter(self.whole if root else None, self.block)
        comm.reduce(self.block, op="max")
        comm.barrier()
        return 10


def main() -> int:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    comm = topoccl.init()
    small, large = Calls(comm, 64), Calls(comm, 1 << 19)
    done = rounds = first = now = 0
    for tenth in range(1, 11):
        while done < calls * tenth // 10:
            done += (large if rounds % LARGE == 0 else small).round()
            rounds += 1
        now = resident()
        first = first or now
        if comm.rank == 0:
            print(f"{done:9} calls: {now / 2**20:8.2f} MB resident, {(now - first) / 2**20:+.2f} MB", flush=True)
    grown = np.array([now - first])
    comm.all_reduce(grown, op="max")
    if comm.rank == 0:
        print(f"the rank that has grown most has grown by {grown[0] / 2**20:.2f} MB")
    comm.close()
    return int(grown[0] > MOST)


if __name__ == "__main__":
    sys.exit(main())
