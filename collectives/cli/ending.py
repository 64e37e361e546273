"""How commands and benchmarks that run in a job's ranks end: one rank speaks for all, and one that fails ends all."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import NoReturn

BAD_USAGE = 2
INTERRUPTED = 130
READER_GONE = 141
_PATIENCE = 5.0  # seconds that rank 0 has for telling what all ranks know; mostly it ends them long before


def end(status: int) -> NoReturn:
    """Ends this process at once with a ``status`` that is not 0, upon which mpirun and torchrun end the other ranks.

    Nothing is closed in order (MPI_Finalize, threads): that would wait for ranks that may be waiting for this one.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)


def fail(message: str, rank: int = 0, ranks: int = 1) -> NoReturn:
    """Tells ``message`` on stderr and ends the job. Often all ranks fail alike: then only rank 0 gets to tell."""
    if rank:
        time.sleep(_PATIENCE)
        message = f"rank {rank} of {ranks}: {message}"
    print(message, file=sys.stderr, flush=True)
    end(BAD_USAGE)
