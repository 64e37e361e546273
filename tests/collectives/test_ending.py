"""How programs may end: without closing anything, with calls in flight, after an error that they caught, in a fork."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

MpiRun = Callable[..., Any]

ABSENT = """
import sys, time
import numpy as np
import topoccl
c = topoccl.init(timeout=1)
if c.rank == 1:
    time.sleep(300)
try:
    c.all_reduce(np.ones(3))
except topoccl.CollectiveTimeout as error:
    sys.exit(7)
"""


def test_a_rank_that_has_given_up_ends_the_job_though_another_never_will(mpirun: MpiRun) -> None:
    done = mpirun(3, sys.executable, "-c", ABSENT, timeout=90)
    assert done.returncode == 7, done.stderr
    assert "of 3 ends without waiting for the others: all_reduce(float64, 3, SUM) (call 1 of group world" in done.stderr


def test_mpi_is_finalised_after_a_group_that_was_left_open(mpirun: MpiRun) -> None:
    done = mpirun(2, sys.executable, "-c", "import topoccl; topoccl.init().barrier()", timeout=90)
    assert (done.returncode, done.stderr) == (0, "")


IN_FLIGHT = """
import time
import numpy as np
import topoccl
c = topoccl.init()
data = np.ones(100_000)
pending = [c.all_reduce(data, async_op=True) for _ in range(10)]
if c.rank == 0:  # the others leave at once
    time.sleep(0.5)
    for call in pending:
        call.wait()
    assert data[0] == c.size ** 10, data[0]
"""


def test_calls_in_flight_when_a_program_ends_are_carried_out_for_those_who_wait(mpirun: MpiRun) -> None:
    done = mpirun(2, sys.executable, "-c", IN_FLIGHT, timeout=90)
    assert (done.returncode, done.stderr) == (0, "")


ALONE = """
import numpy as np
import topoccl
c = topoccl.init()
if c.rank == 0:
    c.all_reduce(np.ones(3), async_op=True)
"""


def test_a_call_that_nobody_joins_does_not_keep_a_program_from_ending(mpirun: MpiRun) -> None:
    done = mpirun(2, sys.executable, "-c", ALONE, timeout=90)
    assert (done.returncode, done.stderr) == (0, "")


FORK = """
import os, sys
import numpy as np
import topoccl
from topoccl.collectives.bootstrap import LaunchInfo, open_transport
from topoccl.collectives.config import Config
from topoccl.collectives.setup import connect
from torch.distributed import HashStore
group = connect(open_transport("gloo", LaunchInfo("torchrun", 0, 1), 10.0, store=HashStore()), Config())
group.barrier()
child = os.fork()
if not child:
    try:
        group.barrier()
    except topoccl.TopocclError as error:
        sys.exit(3 if f"belongs to process {os.getppid()}, of which this is a fork" in str(error) else 4)
    sys.exit(5)
print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
group.barrier()
"""


def test_a_fork_may_not_call_but_ends_like_any_process() -> None:
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stdout, done.stderr) == (0, "child ended with 3\n", "")


FORK_MPI = """
import os
import topoccl
topoccl.init().close()
child = os.fork()
if not child:
    try:
        topoccl.init()
    except topoccl.ConfigError as error:
        os._exit(3 if f"is a fork of {os.getppid()} and cannot use its MPI" in str(error) else 4)
    os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
"""


def test_a_fork_may_not_use_the_mpi_of_its_parent(mpirun: MpiRun) -> None:
    done = mpirun(2, sys.executable, "-c", FORK_MPI, timeout=90)
    assert done.returncode == 0, done.stderr
