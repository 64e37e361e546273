"""What commands have in common that run in a job's ranks: rank 0 speaks for all, shows the progress and writes the file."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from topoccl.collectives.bootstrap import LaunchInfo
from topoccl.collectives.errors import ConfigError
from topoccl.topology.units import parse_time

BAD_USAGE = 2
_PATIENCE = 5.0  # seconds that rank 0 has for telling what all ranks know; mostly it ends them long before

Report = Callable[[str, int, int], None]


class Parser(argparse.ArgumentParser):
    """Ranks other than 0 say nothing about what every rank notices."""

    speaks = True

    def error(self, message: str) -> NoReturn:
        if self.speaks:
            super().error(message)
        time.sleep(_PATIENCE)  # or the launcher ends rank 0 before it has spoken
        raise SystemExit(BAD_USAGE)

    def print_help(self, file: Any = None) -> None:
        if self.speaks:
            super().print_help(file)


def budget(text: str) -> float:
    try:
        seconds = parse_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is too short; expected at least 1s")
    return seconds


def obstacle(output: Path) -> ConfigError | None:
    """Why nothing can be written at ``output``, found out before measuring."""
    if output.is_dir():
        return ConfigError(f"cannot write {output}: it is a directory")
    if not output.parent.is_dir():
        return ConfigError(f"cannot write {output}: there is no directory {output.parent}")
    if not os.access(output.parent, os.W_OK) or (output.exists() and not os.access(output, os.W_OK)):
        return ConfigError(f"cannot write {output}: no permission")
    return None


def write_whole(output: Path, text: str) -> None:
    """All of it or nothing."""
    partial = output.with_name(f"{output.name}.{os.getpid()}.tmp")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, output)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def progress(name: str) -> Iterator[Report]:
    """A bar on a terminal; elsewhere a line for each step. On standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        seen: set[str] = set()

        def line(step: str, done: int, total: int) -> None:
            if step not in seen:
                seen.add(step)
                print(f"{name}: {step} ...", file=sys.stderr, flush=True)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(name)

        def show(step: str, done: int, total: int) -> None:
            bars.update(task, description=f"{name}: {step}", completed=done, total=total)

        yield show


def silence(step: str, done: int, total: int) -> None:
    pass


def fail(error: Exception, info: LaunchInfo) -> NoReturn:
    """Ends the job with one line. Most errors befall all ranks alike: then only rank 0 gets to tell.

    Nothing is closed in order (MPI_Finalize, threads): that would wait for ranks that may be waiting for this one.
    """
    text = " ".join(str(error).split())
    if info.rank:
        time.sleep(_PATIENCE)
        text = f"rank {info.rank} of {info.size}: {text}"
    print(f"topoccl: error: {text}", file=sys.stderr, flush=True)
    os._exit(BAD_USAGE)
