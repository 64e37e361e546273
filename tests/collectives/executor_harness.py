"""Runs a schedule for real with one thread per rank, and says what the right outputs are."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topoccl.algorithms.schedule import Buf, Schedule
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.collectives.executor import arena as arenas
from topoccl.collectives.executor.dtypes import dtype_of
from topoccl.collectives.executor.geometry import Geometry
from topoccl.collectives.executor.lowering import Site, least_segments, lower
from topoccl.collectives.executor.program import Program
from topoccl.collectives.executor.reach import Reach
from topoccl.collectives.executor.reduction import fold_kernel
from topoccl.collectives.executor.run import Runner
from topoccl.collectives.executor.waiting import Waiter
from topoccl.collectives.executor.wiring import Wiring
from topoccl.collectives.transports.base import Transport
from topoccl.collectives.transports.memory import MemoryHub


@dataclass
class Result:
    outputs: list[np.ndarray]
    programs: list[Program]
    transports: list[Transport]


def block_sizes(spec: CollectiveSpec, elems: int | Sequence[int]) -> list[int]:
    return [elems] * spec.num_blocks if isinstance(elems, int) else list(elems)


def inputs_for(spec: CollectiveSpec, elems: int | Sequence[int], dtype: Any = np.int64, seed: int = 0) -> list[np.ndarray]:
    """Random integers, different on every rank."""
    rng = np.random.default_rng(seed)
    sizes = block_sizes(spec, elems)
    return [rng.integers(-50, 50, sum(sizes[b] for b in spec.input_blocks(r))).astype(dtype) for r in range(spec.ranks)]


def expected(spec: CollectiveSpec, elems: int | Sequence[int], inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What each rank's output must be, computed from the definition."""
    sizes = block_sizes(spec, elems)

    def contribution(rank: int, block: int) -> np.ndarray:
        at = 0
        for b in spec.input_blocks(rank):
            if b == block:
                return inputs[rank][at : at + sizes[b]]
            at += sizes[b]
        raise AssertionError(f"rank {rank} does not hold block {block}")

    def final(block: int) -> np.ndarray:
        return np.sum([contribution(r, block) for r in spec.contributors(block)], axis=0).astype(inputs[0].dtype)

    empty = np.empty(0, inputs[0].dtype)
    return [np.concatenate([empty, *(final(b) for b in spec.output_blocks(r))]) for r in range(spec.ranks)]


def execute(
    schedule: Schedule, hosts: Sequence[Sequence[int]], elems: int | Sequence[int], inputs: Sequence[np.ndarray], *, segments: int = 1,
    in_place: bool = False, calls: int = 2, shared: bool = True, pulls: bool = False, timeout: float = 30.0,
) -> Result:  # fmt: skip
    """Runs ``schedule`` ``calls`` times in a row over shared memory inside ``hosts`` and a memory transport between them."""
    spec = schedule.spec
    hub = MemoryHub(spec.ranks)
    dtype = dtype_of(inputs[0])
    sites: dict[int, tuple[Site, Wiring]] = {r: (Site(r, None, {}), Wiring(schedule, ())) for r in range(spec.ranks)}
    if shared:
        for ranks in hosts:
            if len(ranks) > 1:
                arena, _ = arenas.create(len(ranks))
                arena.close_fd()
                wiring = Wiring(schedule, ranks)
                segments = least_segments(schedule, wiring, elems, dtype.itemsize, arena.area, segments)
                for r in ranks:
                    reach = Reach(dict.fromkeys(ranks, os.getpid())) if pulls else None
                    sites[r] = (Site(r, arena, {q: i for i, q in enumerate(ranks)}, reach), wiring)
    outputs: list[np.ndarray] = [np.empty(0)] * spec.ranks
    programs: list[Any] = [None] * spec.ranks
    transports = [hub.transport(r) for r in range(spec.ranks)]
    errors: list[BaseException] = []
    begun = [0] * spec.ranks

    def rank_main(rank: int) -> None:
        try:
            site, wiring = sites[rank]
            waiter = Waiter(site.arena.flags, crowded=True) if site.arena else None
            runner = Runner(transports[rank], waiter)
            kernel = fold_kernel("sum", dtype) if spec.reduces else None
            made = [lower(schedule, wiring, elems, segments, dtype, kernel, site, parity, in_place, pulls) for parity in (0, 1)]
            geometry = Geometry(schedule, elems, segments, dtype.itemsize)
            for call in range(1, calls + 1):
                begun[rank] = call
                parity = call & 1
                inp, out = buffers(spec, rank, geometry, inputs[rank], in_place)
                program = made[parity]
                base = call << 20
                scratch = np.empty(program.scratch, dtype.carrier)
                runner.run(program, (inp, out, scratch), base, timeout, lambda: f"{schedule.label} on rank {rank}")
                while min(begun) < call and not errors:  # as Control has it: a call ends when all have begun it
                    time.sleep(1e-5)
            outputs[rank] = out
            programs[rank] = made[0]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=rank_main, args=(r,), daemon=True) for r in range(spec.ranks)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout * 2)
    if errors:
        raise errors[0]
    assert not any(t.is_alive() for t in threads)
    return Result(outputs, programs, transports)


def buffers(spec: CollectiveSpec, rank: int, geometry: Geometry, data: np.ndarray, in_place: bool) -> tuple[np.ndarray, np.ndarray]:
    """Fresh input and output of one rank; in place they overlap as the spec says."""
    out_elems = geometry.buffer_elems(rank, Buf.OUTPUT)
    if not in_place:
        return data.copy(), np.full(out_elems, -99, data.dtype)
    positions = range(len(spec.input_blocks(rank)))
    aliased = {i: spec.aliased_output(rank, i) for i in positions}
    sizes = [geometry.block_size(b) for b in spec.input_blocks(rank)]
    if all(a == i for i, a in aliased.items()) and out_elems == data.size:
        both = data.copy()
        return both, both
    if spec.collective in ("all_gather", "gather") and out_elems:
        out = np.full(out_elems, -99, data.dtype)
        start = sum(geometry.block_size(b) for b in range(rank))
        out[start : start + data.size] = data
        return out[start : start + data.size], out
    if spec.collective in ("reduce_scatter", "scatter") and data.size:
        inp = data.copy()
        start = sum(sizes[:rank])
        return inp, inp[start : start + out_elems]
    return data.copy(), np.full(out_elems, -99, data.dtype)
