"""One rank of a job that runs every variant of every algorithm for real and checks results and counters exactly.

Started under mpirun; ``TOPOCCL_TRANSPORT`` chooses what carries messages between hosts. Each argument has a letter for each rank's host;
``abbca+aba`` are two groups at the same time, the first of ranks 0-4 and the second of ranks 5-7. Prints the number of runs for each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache

import numpy as np
from executor_harness import expected, inputs_for

from topoccl.algorithms.registry import ALGORITHMS
from topoccl.algorithms.schedule import Buf, Schedule
from topoccl.algorithms.spec import ROOTED, CollectiveSpec
from topoccl.collectives.bootstrap import choose_transport, exchange_or_raise, launch_environment, open_transport
from topoccl.collectives.communicator import Communicator
from topoccl.collectives.config import Config
from topoccl.collectives.executor.geometry import Geometry
from topoccl.collectives.setup import connect
from topoccl.collectives.transports.base import Transport

CALLS = 2
TURNS = 50  # more groups than any hosts need, one after another


def choices() -> Iterator[dict[str, str]]:
    """A way for each collective, until all collectives have had all of theirs: a group can be told one for each."""
    ways: dict[str, list[str]] = {}
    for algorithm in ALGORITHMS:
        for collective in algorithm.collectives:
            for variant in algorithm.variants:
                inside = ",".join(f"{k}={v}" for k, v in variant.items())
                ways.setdefault(collective, []).append(f"{algorithm.name}[{inside}]" if inside else algorithm.name)
    for turn in range(max(map(len, ways.values()))):
        yield {collective: labels[turn] for collective, labels in ways.items() if turn < len(labels)}


@cache
def data(collective: str, size: int, elems: int, rank: int, again: int) -> tuple[CollectiveSpec, np.ndarray, np.ndarray]:
    """What a call is, and what ``rank`` gives and gets in it. Variants share it: with many ranks it takes longer than the call."""
    spec = CollectiveSpec(collective, size, size - 1 if collective in ROOTED else None)
    inputs = inputs_for(spec, elems, np.float64, seed=again)
    return spec, inputs[rank], expected(spec, elems, inputs)[rank]


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


def run(comm: Communicator, what: str, collective: str, elems: int) -> None:
    before: dict[str, dict[int, list[int]]] = {}
    for again in range(1 + CALLS):
        if again == 1:  # the first call also carried rank 0's choice
            before = counters(comm)
        spec, given, want = data(collective, comm.size, elems, comm.rank, again)
        inp, out = given.copy(), np.full(want.size, np.nan)
        call(comm, spec, inp, out)
        np.testing.assert_array_equal(out, want, f"{what}, rank {comm.rank}")
        np.testing.assert_array_equal(inp, given, f"{what}, rank {comm.rank}: the input")
    choice = comm.last_choice
    assert choice is not None
    check(comm, before, scheduled(choice.schedule, comm.rank, elems, comm.last_segments, 8), f"{what}, {elems} elements")


def every_way(world: Transport, ranks: range, hosts: str, number: int) -> None:
    """All of it among ``ranks``, each on its letter's host, in groups with numbers from ``number`` on."""
    os.environ["TOPOCCL_HOSTID"] = hosts[world.rank - ranks.start]
    ran = 0
    for turn, chosen in enumerate(choices()):
        transport = world.subgroup(ranks, number + turn)
        algo = ";".join(f"{collective}:{label}" for collective, label in chosen.items())
        comm = connect(transport, Config.from_environment(os.environ, timeout=60, algo=algo, fallback="silent"))
        for collective, label in chosen.items():
            for elems in (0,) if collective == "barrier" else (7, 20_011):
                run(comm, f"{collective} {label} on hosts {hosts}", collective, elems)
                ran += 1
        comm.close()
    if world.rank == ranks.start:
        print(f"ran {ran} on hosts {hosts}", flush=True)


def main() -> None:
    info = launch_environment(os.environ)
    base = Config.from_environment(os.environ, timeout=60)
    world = open_transport(choose_transport(base.transport, info), info, base.timeout, base.socket_ifname)
    number = 1
    for together in sys.argv[1:]:
        first = 0
        for hosts in together.split("+"):
            ranks = range(first, first := first + len(hosts))
            if world.rank in ranks:
                every_way(world, ranks, hosts, number)
            number += TURNS
    exchange_or_raise(world, None, 280)  # those that have less to do rest here
    world.close()


if __name__ == "__main__":
    main()
