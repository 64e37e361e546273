"""The entry point of the benchmark scripts and of ``topoccl bench``."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from topoccl import __version__
from topoccl.collectives.cli import ending

if TYPE_CHECKING:
    from topoccl.bench.suite.backends import Backend
    from topoccl.bench.suite.measure import Measurement
    from topoccl.bench.suite.options import Options
    from topoccl.bench.suite.table import Setting
    from topoccl.collectives.bootstrap import LaunchInfo

BUG = 1
WRONG_RESULTS = 1


def main(operation: str | None = None, argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Runs a benchmark on this rank; every rank of the job calls it.

    Args:
        operation: what to time; None takes it from the first argument.
        argv: the arguments; those of the program by default.
        prog: the name in messages; the script's by default.

    Returns:
        0, or 1 when a result was wrong. What goes wrong otherwise ends the process, and with it all ranks: with status 2 after one
        line for bad usage and for what the library reports, 130 after Ctrl-C, 1 with a traceback after a bug.
    """
    # As torchrun does: ranks that share a host must not each start as many threads as it has cores. Before NumPy and torch.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        return _main(operation, argv, prog or os.path.basename(sys.argv[0]))
    except KeyboardInterrupt:
        ending.end(ending.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        ending.end(ending.READER_GONE)
    except Exception:
        traceback.print_exc()
        ending.end(BUG)


def _main(operation: str | None, argv: list[str], prog: str) -> int:
    from topoccl.bench.suite.operations import OPERATIONS
    from topoccl.bench.suite.options import UsageError, parse_options
    from topoccl.collectives.bootstrap import launch_environment
    from topoccl.collectives.config import ConfigWarning, trace_requested
    from topoccl.collectives.errors import ConfigError, TopocclError, one_line
    from topoccl.topology.graph import TopologyError

    try:
        info = launch_environment(os.environ)
    except ConfigError as error:
        ending.fail(f"{prog}: error: {error}")
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere if info.rank else sys.stdout):  # --help
            options = parse_options(argv, prog, info.size, OPERATIONS[operation] if operation else None)
    except UsageError as error:
        ending.fail(str(error), info.rank, info.size)
    with warnings.catch_warnings():
        if info.rank:
            warnings.simplefilter("ignore", ConfigWarning)
        else:
            warnings.showwarning = lambda message, *where: print(f"{prog}: warning: {message}", file=sys.stderr)
        try:
            return _run(options, info, [prog, *argv])
        except (TopocclError, TopologyError, MemoryError, OSError) as error:
            if isinstance(error, BrokenPipeError) or trace_requested(os.environ):
                raise
            ending.fail(f"{prog}: error: {one_line(error)}", info.rank, info.size)


def _run(options: Options, info: LaunchInfo, args: list[str]) -> int:
    from topoccl.bench.suite.measure import Measurement
    from topoccl.bench.suite.record import document, write_whole
    from topoccl.bench.suite.results import total_wrong
    from topoccl.bench.suite.table import footer, heading, row_end, row_start

    began = _now()
    backend = _open(options, info)
    options = _agreed(options, backend)
    measurement = Measurement(backend, options)
    setting = _setting(measurement)
    shows = measurement.rank == 0

    def show(*lines: str, end: str = "\n") -> None:
        if shows:
            print(*lines, sep="\n", end=end, flush=True)

    show(*heading(options, setting))
    rows = measurement.run(lambda row: show(row_start(row), end=""), lambda row: show(row_end(row)))
    show(*footer(rows))
    if options.output_file and shows:
        write_whole(options.output_file, document(options, setting, rows, args, os.environ, (began, _now())))
    measurement.exchange(None)  # the first rank that ends with a status ends rank 0, which must have told everything by then
    backend.close()
    return WRONG_RESULTS if total_wrong(rows) else 0


def _open(options: Options, info: LaunchInfo) -> Backend:
    from topoccl.bench.suite.backends import CommunicatorBackend, TorchBackend

    if options.backend == "torch":
        return TorchBackend(options.timeout, info)
    return CommunicatorBackend(options.timeout)


def _agreed(options: Options, backend: Backend) -> Options:
    """The options with rank 0's seed, once it is known that all ranks have the same and that the output can be written.

    Raises:
        ConfigError: a rank was started with other options, or the output file cannot be written.
    """
    from topoccl.bench.suite.record import check_writable
    from topoccl.collectives.bootstrap import exchange_or_raise
    from topoccl.collectives.errors import ConfigError

    communicator = backend.communicator
    mine: Options | ConfigError = options
    if options.output_file and communicator.rank == 0:
        try:
            check_writable(options.output_file)
        except ConfigError as error:
            mine = error
    told = exchange_or_raise(communicator.transport, mine, communicator.timeout)
    first = told[0]
    for rank, other in enumerate(told):
        if replace(other, seed=first.seed) != first:
            raise ConfigError(f"rank {rank} was started with other options than rank 0; all ranks need the same")
    return replace(options, seed=first.seed)


def _setting(measurement: Measurement) -> Setting:
    """What this run measures on, the same on every rank."""
    from topoccl.bench.suite.table import Device, Setting

    communicator = measurement.communicator
    cores = tuple(sorted(os.sched_getaffinity(0)))
    devices = measurement.exchange(Device(measurement.rank, os.getpid(), socket.gethostname(), cores))
    topology = communicator.topology
    sharing = [communicator.hosts.count(host) for host in dict.fromkeys(communicator.hosts)]
    hosts = f"{len(sharing)} host{'s' if len(sharing) > 1 else ''}, ranks per host: {' '.join(map(str, sharing))}"
    memory = "on" if communicator.config.shm else "off"
    transport = f"{communicator.transport.name}, shared memory within hosts: {memory}"
    return Setting(__version__, transport, f"{topology.name}, {hosts}", tuple(devices))


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
