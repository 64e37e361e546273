"""Times and checks one operation over all sizes, types, reductions and roots."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from topoccl.bench.suite.backends import Backend, Call, predicted_seconds
from topoccl.bench.suite.buffers import Buffer, allocate, free_memory
from topoccl.bench.suite.data import Inputs
from topoccl.bench.suite.elements import Element
from topoccl.bench.suite.operations import Shape
from topoccl.bench.suite.options import Options
from topoccl.bench.suite.reference import Part, count_wrong, fill_input, result_parts
from topoccl.bench.suite.results import Chosen, Row, Timing, combined
from topoccl.collectives.bootstrap import exchange
from topoccl.collectives.errors import ConfigError
from topoccl.topology.units import format_size

POISON = 0xFF  # in what a call must overwrite
Report = Callable[[Row], None]


class Measurement:
    """All rows of one run. Every rank makes one with the same options and calls :meth:`run`.

    Args:
        backend: what is called.
        options: what to run.
    """

    def __init__(self, backend: Backend, options: Options) -> None:
        self.backend = backend
        self.options = options
        self.communicator = backend.communicator
        self.rank = self.communicator.rank
        self.ranks = self.communicator.size
        self._checks = 0

    def run(self, begun: Report, ended: Report) -> list[Row]:
        """Measures everything; ``begun`` is told of each row before it is measured, ``ended`` after.

        Raises:
            TopocclError: a call failed.
            ConfigError: the buffers do not fit into memory.
        """
        operation = self.options.operation
        sizes = list(self.options.sizes())
        rows = []
        for element, op, root in self.options.sweeps():
            largest = operation.shape(sizes[-1] // element.itemsize, self.ranks)
            memory = self._allocate(element, (largest.inp, largest.out))
            for size in sizes:
                shape = operation.shape(size // element.itemsize, self.ranks)
                rows.append(self._row(memory, shape, element, op, root, begun))
                ended(rows[-1])
        return rows

    def exchange(self, value: Any) -> list[Any]:
        """The values of all ranks."""
        return exchange(self.communicator.transport, value, self.communicator.timeout)

    def _allocate(self, element: Element, counts: tuple[int, int]) -> tuple[Buffer, Buffer]:
        """Memory for the largest input and output. Asked first: writing to more than there is gets processes killed, not told."""
        wanted = sum(counts) * element.itemsize
        sharing = self.communicator.hosts.count(self.communicator.hosts[self.rank])
        free = free_memory()
        if free is not None and wanted * sharing > free:
            raise ConfigError(
                f"{self.options.operation.name}: buffers of {format_size(wanted)} bytes for each of {sharing} ranks of a host do not fit "
                f"into the {free >> 20}M bytes of memory that are available; choose a smaller -e or fewer ranks"
            )
        first, second = (allocate(element, count, self.backend.tensors) for count in counts)
        return first, second

    def _row(
        self, memory: tuple[Buffer, Buffer], shape: Shape, element: Element, op: str | None, root: int | None, begun: Report
    ) -> Row:  # fmt: skip
        operation = self.options.operation
        size = shape.largest * element.itemsize
        source = -1 if root is None else root
        row = Row(size, shape.count, element.name, op or "none", source, operation.factor(self.ranks))
        begun(row)
        timings: list[Timing | None] = []
        for in_place in (False, True):
            if self.backend.offers(operation, in_place):
                inp, out = self._buffers(memory, shape, in_place)
                call = self.backend.prepare(operation, inp.data, out.data, op or "", source)
                seconds = self._time(call, inp, out)
                timings.append(Timing(seconds, self._check(call, shape, Inputs(element, op, self.ranks), source, inp, out, in_place)))
            else:
                timings.append(None)
        return replace(row, out_of_place=timings[0], in_place=timings[1], chosen=self._chosen(size))

    def _buffers(self, memory: tuple[Buffer, Buffer], shape: Shape, in_place: bool) -> tuple[Buffer, Buffer]:
        """Input and output of this rank; in an in-place call the smaller is a part of the larger."""
        inp, out = memory[0].part(0, shape.inp), memory[1].part(0, shape.out)
        if in_place and shape.out >= shape.inp:
            inp = out if shape.inp == shape.out else out.part(self.rank * shape.inp_at, shape.inp)
        elif in_place:
            out = inp.part(self.rank * shape.out_at, shape.out)
        return inp, out

    def _time(self, call: Call, inp: Buffer, out: Buffer) -> float:
        """Seconds per call: one call and the warm-up, a barrier, then back-to-back calls."""
        o = self.options
        # Zeros stay zeros however often they are reduced in place: no overflow, no slow numbers.
        inp.fill(0)
        out.fill(0)
        for _ in range(1 + o.warmup_iters):
            call(False)
        self.communicator.barrier()
        start = time.perf_counter()
        if o.agg_iters == 1:
            for _ in range(o.iters):
                call(False)
        else:
            for _ in range(o.iters):
                for pending in [call(True) for _ in range(o.agg_iters)]:
                    pending.wait()
        mine = (time.perf_counter() - start) / (o.iters * o.agg_iters)
        return combined(self.exchange(mine), o.average)

    def _check(
        self, call: Call, shape: Shape, inputs: Inputs, root: int, inp: Buffer, out: Buffer, in_place: bool
    ) -> int | None:  # fmt: skip
        """Wrong elements of all ranks, over as many calls on new data as asked for; None when no check is."""
        operation = self.options.operation
        if self.options.check == 0 or operation.parts == "none":
            return None
        parts = result_parts(operation, shape, self.rank, self.ranks, root)
        given = [Part((self.rank,), 0, len(inp))] if operation.has_input(self.rank, root) else []
        for _ in range(self.options.check):
            self._checks += 1
            inputs = replace(inputs, seed=(self.options.seed, self._checks))
            out.fill(POISON)
            if given:
                fill_input(inputs, self.rank, inp)
            call(False)
            wrong = count_wrong(inputs, parts, out)
            if not in_place:
                wrong += count_wrong(inputs, given, inp)  # must have been left alone
            total = sum(self.exchange(wrong))
            if total:
                return total
        return 0

    def _chosen(self, nbytes: int) -> Chosen | None:
        """The choice behind the calls just made; only rank 0 shows it."""
        choice = self.communicator.last_choice
        if choice is None or self.rank or self.options.operation.name == "sendrecv":
            return None
        predicted = predicted_seconds(self.communicator, choice, nbytes)
        return Chosen(choice.algorithm, choice.segments, predicted, choice.bound_seconds, choice.reason)
