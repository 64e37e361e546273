"""The command line of the benchmarks: nccl-tests' options with nccl-tests' meaning."""

from __future__ import annotations

import argparse
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from topoccl.bench.suite.elements import ELEMENTS, Element, element_named
from topoccl.bench.suite.operations import OPERATIONS, Operation, operation_named
from topoccl.topology.units import format_size, parse_size, parse_time

OPS = ("sum", "prod", "max", "min", "avg")
"""What ``-o all`` means, in nccl-tests' order."""
AVERAGES = ("rank 0", "average", "minimum", "maximum")
BACKENDS = ("communicator", "torch")
DEFAULT_SIZE = 32 << 20
DEFAULT_STEP = 1 << 20


class UsageError(Exception):
    """A command line that cannot be used; the text is for the user. An empty one was answered already (``--help``)."""


@dataclass(frozen=True)
class Options:
    """What to run. Sizes are bytes; ``stepfactor`` 1 means steps of ``stepbytes``; ``timeout`` None is the library's own."""

    operation: Operation
    minbytes: int = DEFAULT_SIZE
    maxbytes: int = DEFAULT_SIZE
    stepbytes: int = DEFAULT_STEP
    stepfactor: int = 1
    iters: int = 20
    warmup_iters: int = 5
    agg_iters: int = 1
    check: int = 1
    elements: tuple[Element, ...] = (element_named("float"),)
    ops: tuple[str, ...] = ("sum",)
    roots: tuple[int, ...] = (0,)
    average: int = 1
    timeout: float | None = None
    output_file: str | None = None
    backend: str = "communicator"
    seed: int = 0

    def sizes(self) -> Iterator[int]:
        """The sizes to run, smallest first; a barrier has only one."""
        if self.operation.parts == "none":
            yield 0
            return
        size = self.minbytes
        while size <= self.maxbytes:
            yield size
            size = size * self.stepfactor if self.stepfactor > 1 else size + self.stepbytes

    def sweeps(self) -> Iterator[tuple[Element, str | None, int | None]]:
        """Every (type, reduction, root) to run all sizes for; None where the operation takes none."""
        for element in self.elements:
            for op in self.ops if self.operation.reduces else (None,):
                for root in self.roots if self.operation.rooted else (None,):
                    yield element, op, root


class _Parser(argparse.ArgumentParser):
    """Raises instead of ending the program, so that one rank may speak for all."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.format_usage()}{self.prog}: error: {message}")


def checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Lets argparse show the message of a ValueError, which it replaces by a poorer one."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def integer(least: int, most: float = math.inf) -> Callable[[str], int]:
    expected = f"a whole number from {least} to {most:g}" if most < math.inf else f"a whole number, at least {least}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise ValueError(f"{text!r} is not {expected}")
        return value

    return checked(parse)


def _elements(text: str) -> tuple[Element, ...]:
    return ELEMENTS if text.lower() == "all" else (element_named(text),)


def _ops(text: str) -> tuple[str, ...]:
    name = {"product": "prod", "mean": "avg"}.get(text.lower(), text.lower())
    if name != "all" and name not in OPS:
        raise ValueError(f"unknown reduction {text!r}; known: {', '.join(OPS)}, all")
    return OPS if name == "all" else (name,)


def _root(text: str) -> int | None:
    """A rank, or None for all."""
    if text.lower() == "all":
        return None
    if not text.isdecimal():
        raise ValueError(f"unknown root {text!r}; known: a rank, all")
    return int(text)


def _timeout(text: str) -> float | None:
    return parse_time(text) or None


def make_parser(prog: str, operation: Operation | None) -> argparse.ArgumentParser:
    """The parser of one operation's script; without an operation its name is the first argument."""
    what = f"Times {operation.name}" if operation else "Times a collective"
    parser = _Parser(
        prog=prog,
        description=f"{what} among all ranks of the job (mpirun, torchrun, or one process), as nccl-tests does, and checks results.",
        epilog="Sizes take the binary suffixes K, M, G and T: 64M is 67108864 bytes.",
        allow_abbrev=False,
    )
    if operation is None:
        parser.add_argument("operation", type=checked(operation_named), metavar="COLLECTIVE", help=f"one of {', '.join(OPERATIONS)}")
    add = parser.add_argument
    size = checked(parse_size)
    add("-b", "--minbytes", type=size, metavar="SIZE", help="smallest size (32M)")
    add("-e", "--maxbytes", type=size, metavar="SIZE", help="largest size (32M)")
    add("-i", "--stepbytes", type=size, metavar="SIZE", help="increment between sizes (1M)")
    add("-f", "--stepfactor", type=integer(1), metavar="N", help="factor between sizes, instead of an increment")
    add("-n", "--iters", type=integer(1), default=20, metavar="N", help="timed iterations (20)")
    add("-w", "--warmup_iters", type=integer(0), default=5, metavar="N", help="iterations before these, not timed (5)")
    add("-m", "--agg_iters", type=integer(1), default=1, metavar="N", help="calls begun together in each iteration (1)")
    add("-c", "--check", type=integer(0), default=1, metavar="N", help="how often each result is checked, on new data each time (1)")
    add("-d", "--datatype", type=checked(_elements), default="float", metavar="TYPE", help="nccl-tests' or torch's name, or all (float)")
    add("-o", "--op", type=checked(_ops), default="sum", metavar="OP", help=f"{', '.join(OPS)} or all (sum)")
    add("-r", "--root", type=checked(_root), default=0, metavar="RANK", help="root of a rooted collective, or all (0)")
    add("-a", "--average", type=integer(0, 3), default=1, metavar="N", help="time shown: 0 of rank 0, 1 average, 2 minimum, 3 maximum (1)")
    add("-T", "--timeout", type=checked(_timeout), metavar="SECONDS", help="give up when a call takes longer (TOPOCCL_TIMEOUT)")
    add("-J", "--output_file", metavar="FILE", help="also write the results as JSON to FILE")
    add("--backend", choices=BACKENDS, default="communicator", help="call a topoccl communicator, or torch.distributed")
    add("--seed", type=integer(0), metavar="N", help="of the data that is checked (random)")
    return parser


def parse_options(argv: Sequence[str], prog: str, ranks: int, operation: Operation | None = None) -> Options:
    """Reads a command line.

    Args:
        argv: the arguments.
        prog: the program's name.
        ranks: of the job; roots must be below it.
        operation: what is run; None reads it from the first argument.

    Raises:
        UsageError: with the text to show.
        SystemExit: after ``--help``.
    """
    parser = make_parser(prog, operation)
    args = parser.parse_args(argv)
    minbytes, maxbytes = args.minbytes, args.maxbytes
    if minbytes is None:
        minbytes = DEFAULT_SIZE if maxbytes is None else min(DEFAULT_SIZE, maxbytes)
    if maxbytes is None:
        maxbytes = max(DEFAULT_SIZE, minbytes)
    factor = args.stepfactor or 1
    stepbytes = DEFAULT_STEP if args.stepbytes is None else args.stepbytes
    if minbytes > maxbytes:
        parser.error(f"-b {format_size(minbytes)} is larger than -e {format_size(maxbytes)}")
    if factor > 1 and args.stepbytes is not None:
        parser.error("-i and -f exclude each other")
    if factor > 1 and minbytes == 0 < maxbytes:
        parser.error(f"-f {factor} never leaves -b 0; begin at a larger size")
    if factor == 1 and stepbytes == 0 and minbytes < maxbytes:
        parser.error("-i 0 never reaches -e; expected a positive step")
    if args.root is not None and args.root >= ranks:
        parser.error(f"-r {args.root} is not one of the {ranks} ranks (0 to {ranks - 1})")
    return Options(
        operation=operation or args.operation,
        minbytes=minbytes,
        maxbytes=maxbytes,
        stepbytes=stepbytes,
        stepfactor=factor,
        iters=args.iters,
        warmup_iters=args.warmup_iters,
        agg_iters=args.agg_iters,
        check=args.check,
        elements=args.datatype,
        ops=args.op,
        roots=tuple(range(ranks)) if args.root is None else (args.root,),
        average=args.average,
        timeout=args.timeout,
        output_file=args.output_file,
        backend=args.backend,
        seed=secrets.randbits(31) if args.seed is None else args.seed,
    )
