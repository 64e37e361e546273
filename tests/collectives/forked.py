"""Ranks that are forked from a process which has imported everything."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path


def fork_rank(output: Path, env: Mapping[str, str], work: Callable[[], int]) -> int:
    """The process in which ``work`` is run: its result is the exit status, 1 after an error; what it prints goes to ``output``."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        to = os.open(output, os.O_CREAT | os.O_WRONLY)
        os.dup2(to, 1)
        os.dup2(to, 2)
        os.environ.update(env)
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
