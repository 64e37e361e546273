"""Short programs as functions of their own.

What most of a short call costs is Python going from step to step. A program that is run again and again is therefore written out as
the source of a function, one line for each counter and each copy, and compiled. Programs that differ in sizes and places only have the
same source, which is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import CodeType, MappingProxyType
from typing import Any

from topoccl.collectives.executor.actions import Copy, Folding, Local, Move, Whole, length
from topoccl.collectives.executor.dtypes import Array
from topoccl.collectives.executor.program import Item, Mark

_BUFFERS = ("inp", "out", "scratch")

_NOTHING: Mapping[Local, str] = MappingProxyType({})

# straight(input, output, number of the call, seconds that it may take)
Straight = Callable[[Array, Array, int, float], None]


class Source:
    """A function in the making: its lines, and the objects that stand in them under names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}

    def name(self, thing: Any) -> str:
        """A name for ``thing``."""
        name = f"x{len(self.names)}"
        self.names[name] = thing
        return name

    def add(self, *lines: str) -> None:
        self.lines += lines

    def function(self, arguments: str) -> Callable[..., None]:
        text = "\n    ".join([f"def straight({arguments}):", *self.lines])
        exec(_compiled(text), self.names)
        made: Callable[..., None] = self.names.pop("straight")  # a cycle would keep the shared memory of closed groups
        return made


@lru_cache(1024)
def _compiled(text: str) -> CodeType:
    return compile(text, "<a short program of topoccl>", "exec")


def add_steps(
    source: Source, items: Sequence[Item], whole: Whole, flags: memoryview, wait: Callable[[int, int, float], None]
) -> None:  # fmt: skip
    """The lines of a program; they use the arguments ``inp``, ``out`` and ``limit`` and a variable ``base``.

    Args:
        source: where to.
        items: of the program.
        whole: elements of the whole buffers.
        flags: the counters.
        wait: ``wait(word, value, limit)`` returns when ``flags[word] >= value``.
    """
    waiting = source.name(wait)
    for item in items:
        add_guards(source, item.guards, flags, f"{waiting}({{}}, {{}}, limit)")
        for move in item.moves:
            add_move(source, move, whole)
        add_signals(source, item.signals, flags)


def add_guards(source: Source, guards: Sequence[Mark], flags: memoryview, otherwise: str) -> None:
    """Counters that must have come; ``otherwise`` says what is done while one has not, with places for its index and value."""
    for word, count in guards:
        at, value = source.name(word), f"base + {count}"
        source.add(f"if {source.name(flags)}[{at}] < {value}: {otherwise.format(at, value)}")


def add_signals(source: Source, signals: Sequence[Mark], flags: memoryview) -> None:
    """Counters that are set."""
    for word, count in signals:
        source.add(f"{source.name(flags)}[{source.name(word)}] = base + {count}")


def place_of(source: Source, ref: Local, whole: Whole) -> str:
    """What a range of a buffer is called."""
    buf, lo, hi = ref
    return _BUFFERS[buf] if (lo, hi) == (0, whole[buf]) else f"{_BUFFERS[buf]}[{source.name(slice(lo, hi))}]"


def add_move(source: Source, move: Move, whole: Whole, known: Mapping[Local, str] = _NOTHING) -> None:
    """The lines of a move; ``known`` are ranges of which there are arrays that have names."""
    source.add(*_lines(source, move, whole, known))


def _lines(source: Source, move: Move, whole: Whole, known: Mapping[Local, str]) -> list[str]:
    def place(ref: Local | Array) -> str:
        if not isinstance(ref, tuple):
            return source.name(ref)
        return known[ref] if ref in known else place_of(source, ref, whole)

    def element(ref: Local | Array) -> str:
        if not isinstance(ref, tuple):
            return f"{source.name(ref)}[0]"
        return f"{known[ref]}[0]" if ref in known else f"{_BUFFERS[ref[0]]}[{source.name(ref[1])}]"

    if isinstance(move, Copy):
        single = length(move.dst) == 1  # then numbers cost half of what slices do
        src, dst = (element(move.src), element(move.dst)) if single else (place(move.src), place(move.dst))
        unless = ""
        if isinstance(move.src, tuple) and isinstance(move.dst, tuple):
            same = move.src[1:] == move.dst[1:] and whole[move.src[0]] == whole[move.dst[0]]
            unless = "if inp is not out: " if same else ""  # what is read-only may be copied to itself
        return [f"{unless}{dst if '[' in dst else f'{dst}[...]'} = {src}"]
    assert isinstance(move, Folding)
    kernel = move.kernel
    if kernel.single and length(move.dst) == 1:
        call = f"{source.name(kernel.single[0])}({source.name(kernel.single[1])}, "
        first, *others = map(element, move.operands)
        for other in others:
            first = f"{call}{first}, {other})"
        return [f"{element(move.dst)} = {first}"]
    first, *others = map(place, move.operands)
    lines = [f"into = {place(move.dst)}"]
    if not kernel.direct:
        return [*lines, f"{source.name(kernel)}(into, ({', '.join((first, *others))}))"]
    fold = f"{source.name(kernel.direct[0])}({''.join(f'{source.name(one)}, ' for one in kernel.direct[1:])}"
    for other in others:
        lines.append(f"{fold}{first}, {other}, out=into)")
        first = "into"
    return lines
