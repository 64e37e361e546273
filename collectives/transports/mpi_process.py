"""This process as a rank of an MPI job: how it begins (mpi4py's import initialises MPI) and how it ends.

``MPI_Finalize`` waits for the other ranks. A rank that has failed must not call it: its peers may be waiting for this rank, and the
launcher, which would end them, for its exit. So an exception that nobody catches ends all ranks, and where this module has initialised
MPI it also finalises it, unless a group has failed by then: a process that ends without is what makes launchers end the others.
"""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType
from typing import Any

from topoccl.collectives.errors import ConfigError
from topoccl.collectives.transports.endpoint import close_worlds

_imported_by: list[int] = []  # the process that imported mpi4py here
_finalizing: list[int] = []  # the process that shall finalise MPI
_failures: list[str] = []  # why it shall not


def _imported() -> Any:
    """``mpi4py.MPI``; its import initialises MPI, and takes note of who shall finalise it."""
    if "mpi4py.MPI" not in sys.modules:
        from mpi4py import rc

        if rc.finalize is None:  # else the program has decided
            rc.finalize = False
            try:
                from mpi4py import MPI
            finally:
                rc.finalize = None
            _finalizing.append(os.getpid())
    from mpi4py import MPI

    if not _imported_by:
        _imported_by.append(os.getpid())
    return MPI


def import_mpi(for_transport: str = "mpi") -> Any:
    """``mpi4py.MPI``, initialised for several threads; :class:`ConfigError` when it cannot be had ``for_transport``."""
    try:
        MPI = _imported()
    except (ImportError, RuntimeError) as exc:  # RuntimeError: mpi4py is there, the MPI library is not
        why = "" if for_transport == "mpi" else ", over which ranks started by mpirun without MASTER_ADDR and MASTER_PORT meet"
        instead = "set these" if why else "take transport gloo (known are mpi, gloo, memory) with MASTER_ADDR and MASTER_PORT set"
        raise ConfigError(
            f"transport {for_transport}: mpi4py cannot be imported ({exc}){why}; install topoccl[mpi] and an MPI library, or {instead}"
        ) from exc
    if _imported_by != [os.getpid()]:
        raise ConfigError(f"transport {for_transport}: process {os.getpid()} is a fork of {_imported_by[0]} and cannot use its MPI")
    if not MPI.Is_initialized() or MPI.Is_finalized():
        state = "was finalized already" if MPI.Is_initialized() else "is not initialised (mpi4py.rc.initialize is off)"
        raise ConfigError(f"transport mpi: MPI {state}")
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        names = {MPI.THREAD_SINGLE: "MPI_THREAD_SINGLE", MPI.THREAD_FUNNELED: "MPI_THREAD_FUNNELED"}
        raise ConfigError(
            f"transport mpi: MPI was initialised with {names[MPI.Query_thread()]}; "
            "known to work are MPI_THREAD_SERIALIZED and MPI_THREAD_MULTIPLE"
        )
    return MPI


def leave_without_others(why: str) -> None:
    """From now on the end of this process does not wait for the other ranks, which may never come to theirs."""
    _failures.append(why)


@atexit.register
def _finalize() -> None:
    if _finalizing != [os.getpid()]:
        return  # in a fork, or not ours
    from mpi4py import MPI

    if not MPI.Is_initialized() or MPI.Is_finalized():
        return
    close_worlds()
    if _failures and MPI.COMM_WORLD.size > 1:
        sys.stderr.write(f"rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size} ends without waiting for the others: {_failures[-1]}\n")
        sys.stderr.flush()
        return
    MPI.Finalize()


_aborting: list[int] = []  # the process in which uncaught exceptions end all ranks


def abort_on_uncaught(MPI: Any) -> None:
    """Has the interpreter end all ranks (``MPI_Abort``) after it has shown an exception that nobody caught."""
    world = MPI.COMM_WORLD
    if _aborting or world.size == 1:
        return
    show = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        show(kind, value, trace)
        if _aborting != [os.getpid()] or MPI.Is_finalized():
            return  # in a fork
        sys.stderr.write(f"rank {world.rank} of {world.size} failed; ending all ranks\n")
        sys.stdout.flush()
        sys.stderr.flush()
        world.Abort(130 if issubclass(kind, KeyboardInterrupt) else 1)

    _aborting.append(os.getpid())
    sys.excepthook = hook
