"""How tests are chosen and run.

* Everything outside ``tests/mpi/`` runs in one process, with or without MPI on the machine: ``pytest -n 2``. A test that
  starts ranks of its own does so with the fixture ``mpirun``, which skips it where Open MPI is missing.
* Everything in ``tests/mpi/`` (and nothing else) is marked ``mpi`` by itself and runs on all ranks at once, each rank running
  the same tests in the same order: ``mpirun -n 3 python -m pytest --with-mpi tests/mpi``. ``@pytest.mark.mpi(min_size=3)``
  skips a test on fewer ranks. Without ``--with-mpi`` the folder is not even imported. ``make test-mpi`` runs it on 2, 3 and 4 ranks.
* Under mpirun rank 0 reports, another rank only if it fails; the first rank that ends with a failure aborts all. A test that
  hangs is ended by ``faulthandler_timeout`` (pyproject.toml), the whole run by ``timeout`` (Makefile).
* What the user has set in ``~/.topoccl.conf`` does not count in tests.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
MPI_TESTS = REPOSITORY / "tests" / "mpi"

# Before torch is imported: several test processes share few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOPOCCL_CONF_FILE", os.devnull)
# For tests that start mpirun: as root, with more ranks than cores, and not all bound to the same first cores.
os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
os.environ.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
os.environ.setdefault("PRTE_MCA_hwloc_default_binding_policy", "none")


def _mpi_rank(config: pytest.Config) -> int | None:
    """This process's rank in a run of the tests under mpirun, else None."""
    rank = os.environ.get("OMPI_COMM_WORLD_RANK")
    return int(rank) if rank is not None and config.getoption("--with-mpi") else None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if _mpi_rank(config):  # neither None nor 0
        config.option.xmlpath = None


def pytest_sessionstart(session: pytest.Session) -> None:
    if _mpi_rank(session.config):
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        assert reporter is not None
        reporter._tw._file = io.StringIO()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if collection_path == MPI_TESTS and not config.getoption("--with-mpi") else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marked = item.get_closest_marker("mpi") is not None
        if not item.path.is_relative_to(MPI_TESTS):
            if marked:
                raise pytest.UsageError(f"{item.nodeid} is marked mpi, but only tests in tests/mpi/ are run under mpirun")
        elif not marked:
            item.add_marker(pytest.mark.mpi)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """After the last report: shows a failed rank's report, and ends the others, which may be waiting for this one."""
    rank = _mpi_rank(config)
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if rank is None or reporter is None or reporter._session is None:
        return
    if reporter._session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        if rank:
            print(f"rank {rank}:\n{reporter._tw._file.getvalue()}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        from mpi4py import MPI

        MPI.COMM_WORLD.Abort(1)


# Jobs that a shell starts in the background ignore Ctrl-C, and so would the programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

MpiRun = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def mpirun() -> MpiRun:
    """``mpirun(ranks, *command, env={}, timeout=120)`` runs a command under mpirun and returns it with its output as text."""
    if shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not installed")
    pytest.importorskip("mpi4py", exc_type=ImportError)

    def run(ranks: int, *command: str, env: Mapping[str, str] | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        argv = ["mpirun", "-n", str(ranks), *command]
        process = subprocess.Popen(
            argv,
            env={**os.environ, **(env or {})},
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)  # mpirun ends its ranks
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            raise
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    return run
