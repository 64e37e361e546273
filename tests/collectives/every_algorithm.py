"""One rank of a job that runs every variant of every algorithm for real and checks results and counters exactly.

Started under mpirun; ``TOPOCCL_TRANSPORT`` chooses what carries messages between hosts, and the one argument has a letter for each
rank's host. Prints the number of runs on rank 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
from executor_harness import expected, inputs_for

from topoccl.algorithms.registry import ALGORITHMS
from topoccl.algorithms.schedule import Buf, Schedule
from topoccl.algorithms.spec import ROOTED, CollectiveSpec
from topoccl.collectives.bootstrap import choose_transport, launch_environment, open_transport
from topoccl.collectives.communicator import Communicator
from topoccl.collectives.config import Config
from topoccl.collectives.executor.geometry import Geometry
from topoccl.collectives.setup import connect

CALLS = 2


def variants() -> Iterator[tuple[str, str]]:
    for algorithm in ALGORITHMS:
        for collective in algorithm.collectives:
            for variant in algorithm.variants:
                inside = ",".join(f"{k}={v}" for k, v in variant.items())
                yield collective, f"{algorithm.name}[{inside}]" if inside else algorithm.name


def scheduled(schedule: Schedule, rank: int, elems: int, segments: int, itemsize: int) -> dict[int, list[int]]:
    """What ``CALLS`` runs make ``rank`` send and receive: per peer, messages and bytes sent, then received."""
    geometry = Geometry(schedule, elems, segments, itemsize)
    found: dict[int, list[int]] = {}
    for step in schedule.steps():
        local = [(buf, off) for buf, off in step.operands if buf is not Buf.PEER]
        for target in step.targets:
            if rank not in (step.rank, target):
                continue
            buf, off = step.dst if step.dst is not None else local[0]
            for segment in range(segments):
                nbytes = sum(hi - lo for lo, hi in geometry.spans(step.rank, buf, off, step.count, segment)) * itemsize
                peer, at = (target, 0) if rank == step.rank else (step.rank, 2)
                row = found.setdefault(peer, [0, 0, 0, 0])
                row[at] += CALLS
                row[at + 1] += CALLS * nbytes
    return found


def counters(comm: Communicator) -> dict[str, dict[int, list[int]]]:
    stats = comm.stats()
    return {medium: {peer: list(asdict(c).values()) for peer, c in stats[medium].items()} for medium in ("transport", "shared_memory")}


def check(comm: Communicator, before: dict[str, dict[int, list[int]]], wanted: dict[int, list[int]], what: str) -> None:
    """Every message went the way it should: through shared memory inside a host, over the transport between hosts."""
    shares = comm.config.shm
    for medium, after in counters(comm).items():
        for peer, values in after.items():
            near = shares and comm.hosts[peer] == comm.hosts[comm.rank] and peer != comm.rank
            want = wanted.get(peer, [0, 0, 0, 0]) if near == (medium == "shared_memory") else [0, 0, 0, 0]
            moved = [b - a for a, b in zip(before[medium][peer], values, strict=True)]
            assert moved == want, f"{what}: {medium} between ranks {comm.rank} and {peer} moved {moved}, the schedule says {want}"


def call(comm: Communicator, spec: CollectiveSpec, inp: np.ndarray, out: np.ndarray) -> None:
    method = getattr(comm, spec.collective)
    root = spec.root
    if spec.collective == "barrier":
        method()
    elif spec.collective == "broadcast":
        buf = inp if comm.rank == root else out
        method(buf, root)
        out[:] = buf
    elif root is not None:
        mine = comm.rank == root
        method(inp if spec.collective != "scatter" or mine else None, out if spec.collective == "scatter" or mine else None, root=root)
    else:
        method(inp, out)


def main() -> None:
    info = launch_environment(os.environ)
    os.environ["TOPOCCL_HOSTID"] = sys.argv[1][info.rank]
    base = Config.from_environment(os.environ, timeout=60)
    world = open_transport(choose_transport(base.transport, info), info, base.timeout, base.socket_ifname)
    ran = 0
    for number, (collective, label) in enumerate(variants()):
        transport = world.subgroup(range(world.size), number + 1)
        comm = connect(transport, Config.from_environment(os.environ, timeout=60, algo=f"{collective}:{label}", fallback="silent"))
        spec = CollectiveSpec(collective, comm.size, comm.size - 1 if collective in ROOTED else None)
        for elems in (0,) if collective == "barrier" else (7, 20_011):
            before: dict[str, dict[int, list[int]]] = {}
            for again in range(1 + CALLS):
                if again == 1:  # the first call also carried rank 0's choice
                    before = counters(comm)
                inputs = inputs_for(spec, elems, np.float64, seed=again)
                want = expected(spec, elems, inputs)[comm.rank]
                out = np.full(want.size, np.nan)
                call(comm, spec, inputs[comm.rank], out)
                np.testing.assert_array_equal(out, want, f"{collective} {label} on rank {comm.rank} of {comm.size}")
            choice = comm.last_choice
            assert choice is not None
            check(comm, before, scheduled(choice.schedule, comm.rank, elems, comm.last_segments, 8), f"{collective} {label} {elems}")
            ran += 1
        comm.close()
    if world.rank == 0:
        print(f"ran {ran}")
    world.close()


if __name__ == "__main__":
    main()
