"""The process group: torch.distributed's calls, brought to a communicator's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from topoccl.collectives.control.fingerprint import Name, call_text
from topoccl.collectives.errors import ConfigError
from topoccl.collectives.executor.dtypes import dtype_of
from topoccl.collectives.torch_backend import blocks, compat, sparse, work
from topoccl.collectives.torch_backend.blocks import single, single_list
from topoccl.collectives.torch_backend.compat import AllreduceOptions, options, profiling, reduction, seconds
from topoccl.collectives.torch_backend.roll_call import RollCall
from topoccl.collectives.torch_backend.tracing import traced, traced_message
from topoccl.collectives.torch_backend.work import Done, done

if TYPE_CHECKING:
    from topoccl.collectives.communicator import Communicator


@lru_cache(1024)
def _of_root(what: str, dtype: torch.dtype, count: int, root: int) -> Name:
    """A call in whose list tensors of several sizes may be, which only ``root`` knows."""
    kind = str(dtype).removeprefix("torch.")
    return Name(call_text(what, kind, count, None, root), call_text(what, kind, None, None, root))


def _of_lists(what: str, tensor: Tensor, counts: tuple[int, ...], op: str | None = None) -> Name:
    """A call with tensors of several sizes, of the type of ``tensor``."""
    text = f"{what}({dtype_of(tensor).name}, {list(counts)}{'' if op is None else f', {op.upper()}'})"
    return Name(text, text)


@compat.not_compiled
@compat.both_names
class TopocclGroup(compat.Group):
    """A group of ``torch.distributed`` whose calls run on :attr:`communicator`.

    A synchronous call on an idle group runs in the caller's thread; other calls run in order on a thread of the group. Arguments
    that do not fit together raise at once; what goes wrong on the way is raised by the work's ``wait``.

    Args:
        communicator: of the same ranks in the same order.
        name: the group's name in torch.
        store: the group's store.
        ended: called once, by :meth:`shutdown`; closes the communicator.
    """

    def __init__(self, communicator: Communicator, name: str, store: Any, ended: Callable[[], None]) -> None:
        super().__init__(communicator.rank, communicator.size, name, store)
        self.communicator = communicator
        self._rank, self._size = communicator.rank, communicator.size  # rank() and size() cost a microsecond
        self._ended: Callable[[], None] | None = ended
        self._several = communicator.size > 1
        self._coalesced: list[Done] | None = None
        self._roll_call = RollCall(communicator.transport)

    def explain(self) -> str:
        """Why the last call's algorithm was chosen."""
        return self.communicator.explain()

    # How calls are run

    def _run(self, outputs: Any, opts: Any, method: Callable[..., Any], *args: Any, **named: Any) -> Done:
        """One call of the communicator."""
        timeout = seconds(opts.timeout) if self._several else None
        if profiling():
            return self._run_all(outputs, opts, lambda limit: method(*args, timeout=limit, **named), method.__name__, args)
        if not opts.asyncOp and self._coalesced is None:
            method(*args, timeout=timeout, **named)
            return done(outputs)
        return self._began(work.call(method(*args, async_op=True, timeout=timeout, **named), outputs))

    def _run_all(
        self, outputs: Any, opts: Any, steps: Callable[[float | None], Any], name: str = "", tensors: Sequence[Any] = (),
        called: Name | None = None,
    ) -> Done:  # fmt: skip
        """Several calls of the communicator and copies around them, as one call; ``steps`` is given the timeout of each.

        ``name`` and ``tensors`` are what the profiler shows; ``called`` is what errors show, where its calls do not say it.
        """
        timeout = seconds(opts.timeout)
        if called is not None:
            steps = partial(self._named, called, steps)
        if profiling():
            shown = [one for one in tensors if isinstance(one, Tensor)]
            async_op = opts.asyncOp or self._coalesced is not None
            return self._began(traced(self.communicator, name, shown, outputs, lambda: steps(timeout), async_op=async_op))
        if not opts.asyncOp and self._coalesced is None:
            self.communicator.together(lambda: steps(timeout))
            return done(outputs)
        return self._began(work.call(self.communicator.together(lambda: steps(timeout), async_op=True), outputs))

    def _named(self, called: Name, steps: Callable[[float | None], Any], limit: float | None) -> Any:
        return self.communicator.named(called, lambda: steps(limit))

    def _began(self, begun: Done) -> Done:
        if self._coalesced is None:
            return begun
        self._coalesced.append(begun)
        return done(begun.outputs)  # the whole is waited for at the end

    # Reductions

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Done:
        if type(opts) is not AllreduceOptions:
            opts = options(AllreduceOptions, opts, timeout=timeout)
        tensor = single(tensors)
        op, factor = reduction(opts.reduceOp)
        if tensor.layout is not torch.strided:
            steps, called = sparse.all_reduce(self.communicator, tensor, op), sparse.name_of(tensor, op)
            return self._run_all([tensor], opts, steps, "all_reduce", [tensor._values()], called)
        if opts.asyncOp or self._coalesced is not None or profiling():
            return self._run([tensor], opts, self.communicator.all_reduce, tensor, None, op, factor=factor)
        # What _run does, in half the time: small synchronous calls are many.
        limit = seconds(opts.timeout) if self._several else None
        self.communicator.all_reduce(tensor, None, op, factor=factor, timeout=limit)
        return done([tensor])

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Done:
        opts = options(compat.AllreduceCoalescedOptions, opts)
        op, factor = reduction(opts.reduceOp)
        tensors = list(tensors)
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault(tensor.dtype, []).append(tensor)

        def steps(limit: float | None) -> None:
            for same in kinds.values():
                if len(same) == 1:
                    self.communicator.all_reduce(same[0], None, op, factor=factor, timeout=limit)
                    continue
                flat = blocks.packed(same)
                called = _of_lists("all_reduce_coalesced", flat, tuple(blocks.sizes(same)), op)
                reduce = partial(self.communicator.all_reduce, flat, None, op, factor=factor, timeout=limit)
                self.communicator.named(called, reduce)
                if blocks.adjacent(same) is None:
                    blocks.spread(flat, same)

        return self._run_all(tensors, opts, steps, "all_reduce", tensors)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None) -> Done:
        opts = options(compat.ReduceOptions, opts, op=op, timeout=timeout)
        tensor = single(tensors)
        name, factor = reduction(opts.reduceOp)
        return self._run([tensor], opts, self.communicator.reduce, tensor, None, opts.rootRank, name, factor=factor)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None, timeout: timedelta | None = None) -> Done:
        opts = options(compat.ReduceScatterOptions, opts, timeout=timeout)
        op, factor = reduction(opts.reduceOp)
        return self._run([output], opts, self.communicator.reduce_scatter, input, output, op, factor=factor)

    def reduce_scatter_single_coalesced(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Done:
        opts = options(compat.ReduceScatterOptions, opts)
        op, factor = reduction(opts.reduceOp)
        pairs = list(zip(inputs, outputs, strict=True))

        def steps(limit: float | None) -> None:
            for src, dst in pairs:
                self.communicator.reduce_scatter(src, dst, op, factor=factor, timeout=limit)

        return self._run_all(list(outputs), opts, steps, "reduce_scatter", inputs)

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Done:
        opts = options(compat.ReduceScatterOptions, opts, timeout=timeout)
        output, parts = single(output_tensors), self._per_rank("reduce_scatter", "inputs", single_list(input_tensors))
        blocks.same_type("reduce_scatter", [output, *parts])
        op, factor = reduction(opts.reduceOp)
        counts = blocks.sizes(parts)
        self._expect("reduce_scatter", output, counts[self._rank])
        width = max(counts)

        def steps(limit: float | None) -> None:
            if min(counts) == width:
                self.communicator.reduce_scatter(blocks.packed(parts), output, op, factor=factor, timeout=limit)
                return
            mine = output.detach().new_empty(width)
            self.communicator.reduce_scatter(blocks.padded(parts, width), mine, op, factor=factor, timeout=limit)
            blocks.unpack(mine.view(1, -1), [output])

        called = None if min(counts) == width else _of_lists("reduce_scatter", output, tuple(counts), op)
        return self._run_all([output], opts, steps, "reduce_scatter", [*parts, output], called)

    # Gathering and spreading

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None, timeout: timedelta | None = None) -> Done:
        opts = options(compat.AllgatherOptions, opts, timeout=timeout)
        return self._run([output], opts, self.communicator.all_gather, input, output)

    def all_gather_single_coalesced(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Done:
        opts = options(compat.AllgatherOptions, opts)
        pairs = list(zip(inputs, outputs, strict=True))

        def steps(limit: float | None) -> None:
            for src, dst in pairs:
                self.communicator.all_gather(src, dst, timeout=limit)

        return self._run_all(list(outputs), opts, steps, "all_gather", inputs)

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Done:
        opts = options(compat.AllgatherOptions, opts, timeout=timeout)
        tensor = single(input_tensors)
        steps, parts = self._all_gather(single_list(output_tensors), tensor)
        return self._run_all([parts], opts, steps, "all_gather", [tensor, *parts])

    def allgather_coalesced(self, output_lists: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None) -> Done:
        opts = options(compat.AllgatherOptions, opts)
        # One list per rank, with an output for each input.
        made = [self._all_gather([lists[i] for lists in output_lists], tensor) for i, tensor in enumerate(inputs)]

        def steps(limit: float | None) -> None:
            for one, _ in made:
                one(limit)

        return self._run_all([list(lists) for lists in output_lists], opts, steps, "all_gather", inputs)

    def _all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> tuple[Callable[[float | None], None], list[Tensor]]:
        parts = self._per_rank("all_gather", "outputs", outputs)
        blocks.same_type("all_gather", [tensor, *parts])
        counts = blocks.sizes(parts)
        self._expect("all_gather", tensor, counts[self._rank])
        width = max(counts)

        def steps(limit: float | None) -> None:
            if min(counts) == width:
                together = blocks.adjacent(parts)
                rows = tensor.detach().new_empty((self._size, width)) if together is None else together
                self.communicator.all_gather(tensor, rows, timeout=limit)
                if together is None:
                    blocks.unpack(rows, parts)
                return
            rows = tensor.detach().new_empty((self._size, width))
            called = _of_lists("all_gather", tensor, tuple(counts))
            self.communicator.named(called, partial(self.communicator.all_gather, blocks.padded([tensor], width), rows, timeout=limit))
            blocks.unpack(rows, parts)

        return steps, parts

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Done:
        opts = options(compat.BroadcastOptions, opts, timeout=timeout)
        tensor = single(tensors)
        return self._run([tensor], opts, self.communicator.broadcast, tensor, opts.rootRank)

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Done:
        opts = options(compat.GatherOptions, opts, timeout=timeout)
        root, tensor = opts.rootRank, single(input_tensors)
        parts: list[Tensor] = []
        if self._rank == root:
            parts = self._per_rank("gather", "outputs", single_list(output_tensors))
            blocks.same_type("gather", [tensor, *parts])
            self._expect("gather", tensor, parts[root].numel())
        counts = blocks.sizes(parts)

        def steps(limit: float | None) -> None:
            into = blocks.adjacent(parts) if parts else None
            flat = tensor.detach().new_empty(sum(counts)) if into is None else into
            if self._same_sizes(root, counts, tensor, limit):
                self.communicator.gather(tensor, flat, root, timeout=limit)
            else:
                self.communicator.all_to_all(*self._to_root(root, tensor, flat, counts), timeout=limit)
            if into is None:
                blocks.spread(flat, parts)

        called = _of_root("gather", tensor.dtype, tensor.numel(), root)
        return self._run_all([parts] if parts else [], opts, steps, "gather", [tensor, *parts], called)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Done:
        opts = options(compat.ScatterOptions, opts, timeout=timeout)
        root, output = opts.rootRank, single(output_tensors)
        parts: list[Tensor] = []
        if self._rank == root:
            parts = self._per_rank("scatter", "inputs", single_list(input_tensors))
            blocks.same_type("scatter", [output, *parts])
            self._expect("scatter", output, parts[root].numel())
        counts = blocks.sizes(parts)

        def steps(limit: float | None) -> None:
            flat = blocks.packed(parts) if parts else output.detach().new_empty(0)
            if self._same_sizes(root, counts, output, limit):
                self.communicator.scatter(flat, output, root, timeout=limit)
                return
            dst, src, receiving, sending = self._to_root(root, output, flat, counts)
            self.communicator.all_to_all(src, dst, sending, receiving, timeout=limit)

        called = _of_root("scatter", output.dtype, output.numel(), root)
        return self._run_all([output], opts, steps, "scatter", [*parts, output], called)

    def _same_sizes(self, root: int, counts: list[int], mine: Tensor, limit: float | None) -> bool:
        """Whether the tensors of ``root``'s list are equally large; only ``root`` knows."""
        count = counts[0] if counts and min(counts) == max(counts) else -1
        return self.communicator.what_root_knows(root, count, mine.numel(), limit) >= 0

    def _to_root(self, root: int, mine: Tensor, all_of_root: Tensor, counts: list[int]) -> tuple[Tensor, Tensor, list[int], list[int]]:
        """The arguments of an all_to_all in which every rank sends only to ``root``."""
        sending = [mine.numel() if rank == root else 0 for rank in range(self._size)]
        return mine, all_of_root, sending, counts or [0] * self._size

    # All to all

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_split_sizes: Sequence[int] = (), input_split_sizes: Sequence[int] = (),
        opts: Any = None, timeout: timedelta | None = None,
    ) -> Done:  # fmt: skip
        opts = options(compat.AllToAllOptions, opts, timeout=timeout)
        if not output_split_sizes and not input_split_sizes:
            for side, tensor in (("input", input), ("output", output)):
                self._expect_rows(side, tensor)
            return self._run([output], opts, self.communicator.all_to_all, input, output)
        sending = self._elements("input", input, input_split_sizes)
        receiving = self._elements("output", output, output_split_sizes)
        return self._run([output], opts, self.communicator.all_to_all, input, output, sending, receiving)

    def alltoall(self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Tensor], opts: Any = None) -> Done:
        opts = options(compat.AllToAllOptions, opts)
        receiving = self._per_rank("all_to_all", "outputs", output_tensors)
        sending = self._per_rank("all_to_all", "inputs", input_tensors)
        blocks.same_type("all_to_all", [*receiving, *sending])

        def steps(limit: float | None) -> None:
            into = blocks.adjacent(receiving)
            flat = receiving[0].detach().new_empty(sum(blocks.sizes(receiving))) if into is None else into
            self.communicator.all_to_all(blocks.packed(sending), flat, blocks.sizes(sending), blocks.sizes(receiving), timeout=limit)
            if into is None:
                blocks.spread(flat, receiving)

        return self._run_all(receiving, opts, steps, "all_to_all", sending)

    # Waiting for each other

    def barrier(self, opts: Any = None) -> Done:
        return self._run([], options(compat.BarrierOptions, opts), self.communicator.barrier)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        limit = self.communicator.timeout if timeout is None else timeout.total_seconds()
        self._roll_call.hold(limit, wait_all_ranks)

    # Point to point

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Done:
        tensor = single(tensors)
        return self._message("send", tensor, dst, lambda: self.communicator.send(tensor, dst, tag, async_op=True))

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Done:
        tensor = single(tensors)
        return self._message("recv", tensor, src, lambda: self.communicator.recv(tensor, src, tag, async_op=True))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Done:
        tensor = single(tensors)
        return self._message("recv", tensor, None, lambda: self.communicator.recv(tensor, None, tag, async_op=True))

    def _message(self, name: str, tensor: Tensor, peer: int | None, begin: Callable[[], Any]) -> Done:
        if profiling():
            return self._began(traced_message(name, tensor, peer, begin))
        return self._began(work.mail(begin(), [tensor]))

    # Several calls as one

    def _start_coalescing(self, device: Any) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any) -> Done:
        works, self._coalesced = self._coalesced or [], None
        return work.together(works)

    # Ending

    def set_timeout(self, timeout: timedelta) -> None:
        self.communicator.timeout = seconds(timeout) or self.communicator.timeout

    def shutdown(self) -> None:
        """Lets open calls end and frees everything; what ``destroy_process_group`` calls."""
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()
            self._store = None

    def abort(self) -> None:
        """Makes calls in flight raise, then frees everything."""
        self.communicator.abort("the process group was aborted")
        self.communicator.transport.close()  # what waits for messages fails now
        self.shutdown()

    # Checks

    def _per_rank(self, what: str, side: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        if len(tensors) != self._size:
            raise ConfigError(f"{what}: {len(tensors)} {side} for {self._size} ranks; expected one per rank")
        return list(tensors)

    def _expect(self, what: str, tensor: Tensor, count: int) -> None:
        if tensor.numel() != count:
            raise ConfigError(f"{what}: rank {self._rank} has a tensor of {tensor.numel()} elements where the list has one of {count}")

    def _expect_rows(self, side: str, tensor: Tensor) -> None:
        rows = tensor.shape[0] if tensor.ndim else 1
        if rows % self._size:
            raise ConfigError(f"all_to_all: the {side}'s first dimension, {rows}, cannot be divided among {self._size} ranks; give splits")

    def _elements(self, side: str, tensor: Tensor, splits: Sequence[int]) -> list[int]:
        """Split sizes, given as rows of ``tensor``, as elements."""
        rows = tensor.shape[0] if tensor.ndim else 1
        if not splits:
            self._expect_rows(side, tensor)
            splits = [rows // self._size] * self._size
        if sum(splits) != rows:
            raise ConfigError(f"all_to_all: the {side} splits {list(splits)} add up to {sum(splits)}, but its first dimension is {rows}")
        row = tensor[0].numel() if tensor.ndim and rows else 1
        return [count * row for count in splits]
