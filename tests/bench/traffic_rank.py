"""One rank of a job on a virtual cluster that runs forced algorithms, and says what their schedules send from host to host.

Arguments: a Unix socket, on which rank 0 says when a measurement begins and ends, one transport, or several, and the elements of
each rank's input. After every word of rank 0 all ranks wait until it is answered.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections import Counter
from typing import Any, TextIO

import numpy as np

from topoccl.algorithms.schedule import Buf
from topoccl.collectives.bootstrap import choose_transport, launch_environment, open_transport
from topoccl.collectives.communicator import Communicator
from topoccl.collectives.config import Config
from topoccl.collectives.executor.geometry import Geometry
from topoccl.collectives.setup import connect

CALLS = 3
ALGORITHMS = ("all_reduce:ring", "all_reduce:tree", "all_reduce:hierarchical", "all_to_all:two_level")


def data(rank: int, turn: int, elems: int) -> np.ndarray:
    """Whole numbers, so that sums in any order are exact."""
    return ((np.arange(elems) * (2 * turn + 3) + rank * 977) % 1009).astype(np.float32)


def wanted(collective: str, rank: int, size: int, turn: int, elems: int) -> np.ndarray:
    inputs = [data(r, turn, elems) for r in range(size)]
    if collective == "all_reduce":
        return np.sum(inputs, axis=0)
    return np.concatenate([row.reshape(size, -1)[rank] for row in inputs])


def between_hosts(comm: Communicator, block: int, itemsize: int) -> dict[str, int]:
    """Payload bytes that the last call's schedule sends, by ``SENDER RECEIVER``, for each pair of hosts."""
    choice = comm.last_choice
    assert choice is not None
    schedule, hosts = choice.schedule, comm.topology.host_of_rank
    geometry = Geometry(schedule, block, comm.last_segments, itemsize)
    found: Counter[str] = Counter()
    for step in schedule.steps():
        far = [target for target in step.targets if hosts[target] != hosts[step.rank]]
        if not far:
            continue
        buf, off = step.dst or next(place for place in step.operands if place[0] is not Buf.PEER)
        elems = sum(hi - lo for segment in range(comm.last_segments) for lo, hi in geometry.spans(step.rank, buf, off, step.count, segment))
        for target in far:
            found[f"{hosts[step.rank]} {hosts[target]}"] += elems * itemsize
    return dict(found)


class Observer:
    """Who reads the counters."""

    def __init__(self, comm: Communicator, lines: TextIO | None) -> None:
        self.comm = comm
        self.lines = lines

    def say(self, **words: Any) -> None:
        """Says something for all ranks, when all have come here; returns when it is answered."""
        self.comm.barrier()
        if self.lines is not None:
            self.lines.write(json.dumps(words) + "\n")
            self.lines.flush()
            assert self.lines.readline()
        self.comm.barrier()


def run(comm: Communicator, collective: str, elems: int, turn: int) -> None:
    out = np.full(elems, np.nan, np.float32)
    getattr(comm, collective)(data(comm.rank, turn, elems), out)
    np.testing.assert_array_equal(out, wanted(collective, comm.rank, comm.size, turn, elems))


def main() -> None:
    path, transports, elems = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
    info = launch_environment(os.environ)
    lines = None
    if info.rank == 0:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        lines = connection.makefile("rw")
    for name in transports:
        base = Config.from_environment(os.environ, timeout=100, transport=name)
        world = open_transport(choose_transport(name, info), info, base.timeout, base.socket_ifname)
        for number, algorithm in enumerate(ALGORITHMS):
            collective = algorithm.partition(":")[0]
            config = Config.from_environment(os.environ, timeout=100, transport=name, algo=algorithm)
            comm = connect(world.subgroup(range(world.size), number + 1), config)
            observer = Observer(comm, lines)
            run(comm, collective, elems, 0)
            block = elems if collective == "all_reduce" else elems // comm.size
            scheduled = {pair: CALLS * nbytes for pair, nbytes in between_hosts(comm, block, 4).items()}
            assert comm.last_choice is not None
            label = comm.last_choice.algorithm
            observer.say(begin=label)
            for turn in range(1, CALLS + 1):
                run(comm, collective, elems, turn)
            observer.say(transport=name, algorithm=label, segments=comm.last_segments, scheduled=scheduled)
            comm.close()
        world.close()


if __name__ == "__main__":
    main()
