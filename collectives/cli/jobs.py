"""What commands have in common that run in a job's ranks: rank 0 speaks for all, shows the progress and writes the file."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from topoccl.collectives.bootstrap import LaunchInfo
from topoccl.collectives.cli.ending import fail
from topoccl.collectives.errors import ConfigError
from topoccl.topology.units import parse_time

Report = Callable[[str, int, int], None]


class Parser(argparse.ArgumentParser):
    """Of what every rank notices only rank 0 speaks; what only another one notices is told by that one."""

    job = LaunchInfo("single")

    def error(self, message: str) -> NoReturn:
        if self.job.rank:
            fail(f"{self.format_usage()}{self.prog}: error: {message}", self.job.rank, self.job.size)
        super().error(message)

    def print_help(self, file: Any = None) -> None:
        if not self.job.rank:
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
