"""What every rank must hold after a call, from the definitions alone, and how many of its elements are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from topoccl.bench.suite.buffers import Buffer
from topoccl.bench.suite.data import CHUNK, Inputs, reduced
from topoccl.bench.suite.operations import Operation, Shape


@dataclass(frozen=True)
class Part:
    """A run of a result: ``length`` elements from element ``start`` of the inputs of ``sources``, reduced if these are several."""

    sources: tuple[int, ...]
    start: int
    length: int


def result_parts(operation: Operation, shape: Shape, rank: int, ranks: int, root: int) -> list[Part]:
    """The result of ``rank``, as parts one after the other; none where it gets nothing."""
    if not operation.has_output(rank, root):
        return []
    everyone = tuple(range(ranks))
    match operation.name:
        case "all_reduce" | "reduce":
            return [Part(everyone, 0, shape.out)]
        case "reduce_scatter":
            return [Part(everyone, rank * shape.out, shape.out)]
        case "all_gather" | "gather":
            return [Part((source,), 0, shape.inp) for source in everyone]
        case "broadcast":
            return [Part((root,), 0, shape.out)]
        case "scatter":
            return [Part((root,), rank * shape.out, shape.out)]
        case "all_to_all":
            return [Part((source,), rank * shape.count, shape.count) for source in everyone]
        case "sendrecv":
            return [Part(((rank - 1) % ranks,), 0, shape.out)]
        case "barrier":
            return []
    raise ValueError(f"no definition of {operation.name!r}")


def pieces(part: Part, at: int) -> Iterator[tuple[int, int, int]]:
    """Cuts a part that begins at element ``at`` of the result where chunks of the inputs end: (start, stop) of the inputs and where
    that begins in the result."""
    start, end = part.start, part.start + part.length
    while start < end:
        stop = min(end, (start // CHUNK + 1) * CHUNK)
        yield start, stop, at + start - part.start
        start = stop


def fill_input(inputs: Inputs, rank: int, buffer: Buffer) -> None:
    """Writes ``rank``'s input."""
    for start, stop, at in pieces(Part((rank,), 0, len(buffer)), 0):
        buffer.write(at, inputs.piece(rank, start, stop))


def count_wrong(inputs: Inputs, parts: list[Part], buffer: Buffer) -> int:
    """The number of elements of ``buffer`` that differ from what ``parts`` say; every element is compared."""
    wrong = at = 0
    for part in parts:
        for start, stop, where in pieces(part, at):
            wrong += buffer.differences(where, reduced(inputs, part.sources, start, stop))
        at += part.length
    return wrong
