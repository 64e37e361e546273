"""Obtains the texts of vendors' tools; what they mean is the business of the parsers in ``topology/formats``.

No shell takes part: argument lists only, and none of them depends on a file or a variable. A tool that is missing costs
nothing; one that fails, prints too much or hangs is ended and costs one reported line. A Python binding is asked in a process of its own,
too: the library behind it may crash or hang like any tool.
"""

from __future__ import annotations

import importlib.util
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SECONDS = 10.0
"""How long one tool may take; nvidia-smi without a persistence daemon needs a few."""
MAX_OUTPUT = 8 << 20
"""The most bytes of output that are read."""
_GRACE = 1.0  # for a killed process to vanish; one that is stuck in its driver never does

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Tool:
    """What to ask, in order of preference: the first command that is installed and answers with something counts.

    ``module`` is a Python package that does the same if it is installed, and ``code`` what to run with it; asked if no command is there.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    module: str = ""
    code: str = ""


_PYHWLOC = """
import sys
from pyhwloc.topology import Topology, TypeFilter
with Topology.from_this_system().set_io_types_filter(TypeFilter.KEEP_IMPORTANT) as topology:
    sys.stdout.write(topology.export_xml_buffer())
"""
"""For pyhwloc 3 (Python 3.12 and later)."""

TOOLS = (
    Tool("nvidia-smi", (("nvidia-smi", "topo", "-m"),)),
    Tool("amd-smi", (("rocm-smi", "--showtopo"), ("amd-smi", "topology"))),
    Tool("npu-smi", (("npu-smi", "info", "-t", "topo"),)),
    Tool("mx-smi", (("mx-smi", "topo", "-m"),)),
    Tool("mthreads-gmi", (("mthreads-gmi", "topo", "-m"),)),
    Tool("hwloc", tuple((program, "--of", "xml", "-") for program in ("lstopo-no-graphics", "lstopo", "hwloc-ls")), "pyhwloc", _PYHWLOC),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool printed."""

    tool: str
    command: str
    text: str


def ask_all(
    tools: Sequence[Tool] = TOOLS, *, report: Report, search: str | None = None, seconds: float = SECONDS, limit: int = MAX_OUTPUT
) -> list[Answer]:
    """The answers of all tools that are installed, in the order of ``tools``; they run side by side.

    Args:
        report: gets a line for each tool that fails.
        search: where programs are looked for, as in PATH, which is the default.
        seconds: for each command.
        limit: bytes of output of each.
    """
    answers: dict[str, Answer] = {}

    def ask(tool: Tool) -> None:
        for command in tool.commands:
            program = shutil.which(command[0], path=search)
            if program is None:
                continue
            text = run_tool([program, *command[1:]], report=report, seconds=seconds, limit=limit)
            if text is not None and text.strip():
                answers[tool.name] = Answer(tool.name, " ".join(command), text)
                return
        if tool.module and sys.executable and importlib.util.find_spec(tool.module) is not None:
            name = f"python ({tool.module})"
            text = run_tool([sys.executable, "-c", tool.code], report=report, seconds=seconds, limit=limit, name=name)
            if text is not None and text.strip():
                answers[tool.name] = Answer(tool.name, name, text)

    threads = [threading.Thread(target=ask, args=(tool,), daemon=True) for tool in tools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[tool.name] for tool in tools if tool.name in answers]


def run_tool(
    argv: Sequence[str], *, report: Report, seconds: float = SECONDS, limit: int = MAX_OUTPUT, name: str | None = None
) -> str | None:
    """What a program prints, or None (and one reported line) if it cannot run, fails, prints over ``limit`` bytes or takes too long.

    ``name`` is what the line calls it, by default the command.

    It runs in a process group of its own, which is killed as a whole, without an input and with an English locale.
    """
    called = name or " ".join([os.path.basename(argv[0]), *argv[1:]])
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C", "TERM": "dumb"},
        )
    except OSError as error:
        report(f"{name or os.path.basename(argv[0])} cannot be run: {error.strerror or error}")
        return None
    problem = None
    try:
        data, problem = _read(process, time.monotonic() + seconds, limit)
        if problem is None:
            status = process.wait(_GRACE)
            if status != 0:
                problem = f"ended with status {status}"
        else:
            problem = problem.format(seconds=seconds, limit=limit)
    except subprocess.TimeoutExpired:
        problem = "closed its output but does not end"
    finally:
        _end(process)
    if problem is not None:
        report(f"{called} {problem}; its answer is not used")
        return None
    return data.decode("utf-8", "replace")


def _read(process: subprocess.Popen[bytes], deadline: float, limit: int) -> tuple[bytes, str | None]:
    assert process.stdout is not None
    pieces: list[bytes] = []
    size = 0
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return b"", "does not end within {seconds:g} s"
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                return b"".join(pieces), None
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                return b"", "prints more than {limit} bytes"


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:  # not reaped, so that its number is still its own
        try:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(_GRACE)
        except (ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            pass  # stuck in the kernel: it is left behind, since nothing can be done about it
    if process.stdout is not None:
        process.stdout.close()
