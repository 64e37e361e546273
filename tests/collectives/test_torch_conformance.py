"""Torch's own suite for backends, where it is at hand: ``../shared/conformance/torch_suite.py``, without its ``--monitored``.

Ranks that live from test to test (started by mpirun) run all of it, over MPI or over Gloo; ranks forked for each test run a part.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch_ranks import clean_environment

SUITE = Path(__file__).resolve().parents[3] / "shared" / "conformance" / "torch_suite.py"
PASSED = {2: 100, 3: 124, 4: 127}  # what Gloo passes and what it fails, in worlds of so many ranks
FORKED = [
    "test_all_reduce_sum", "test_all_to_all_single_unequal_split", "test_batch_isend_irecv_gloo_tags", "test_broadcast_full_group",
    "test_gather_object", "test_get_future", "test_grads_same_across_ranks_with_no_sync", "test_monitored_barrier_gloo",
    "test_scatter_complex", "test_send_recv_any_source", "test_sparse_all_reduce_sum",
]  # fmt: skip
# Of these each is skipped without GPUs, after its ranks have met.
GPU_ONLY = [
    "*cuda*", "*nccl*", "test_DistributedDataParallel_SyncBatchNorm*", "test_SyncBatchNorm*", "test_post*", "test_output*",
    *(f"test_ddp_{name}*" for name in (
        "hook", "native", "uneven", "apply", "broadcast", "profiling", "buffer", "build", "control", "device", "join", "model", "multiple",
        "new", "sync", "grad", "ignore", "inference", "python", "remove", "returns", "shared", "sink", "static", "unused", "zero",
    )),
    "test_new_subgroups_by*", "test_monitored_barrier_allreduce*", "test_periodic*", "test_average*", "test_static_graph_multi*",
]  # fmt: skip

# The suite looks at files of results by a pattern that also fits the names under which they are being written.
_START = """
import glob, runpy, sys
find = glob.glob
glob.glob = lambda pattern: [name for name in find(pattern) if not name.endswith(".tmp")]
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

pytestmark = pytest.mark.skipif(not SUITE.exists(), reason="../shared/conformance/torch_suite.py is not there")


def run_suite(folder: Path, ranks: int, *options: str, env: dict[str, str] | None = None) -> int:
    """How many of the suite's tests pass; asserts that none fails."""
    pytest.importorskip("expecttest")
    told = folder / "results.json"
    small = ["--small-world"] if ranks > 2 else []
    command = [
        sys.executable,
        "-c",
        _START,
        str(SUITE),
        "topoccl",
        "torch_suite_module",
        "-n",
        str(ranks),
        *small,
        "--json",
        str(told),
        "--timeout",
        "150",
        *options,
    ]
    here = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    full = {**clean_environment(env), "TMPDIR": str(folder), "PYTHONPATH": here}
    process = subprocess.Popen(
        command, env=full, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=280)  # less than what ends the test
    except subprocess.TimeoutExpired:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.killpg(process.pid, signal.SIGTERM)
        for child in children:  # mpirun, which has a session of its own and ends its ranks
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGTERM)
        said, _ = process.communicate()
        raise AssertionError(f"the suite did not end in time\n{said[-3000:]}") from None
    assert told.exists(), said[-5000:]
    results = json.loads(told.read_text())
    bad = {name: why for name, (status, why, _) in results.items() if status in ("FAIL", "TIME")}
    assert not bad, f"{len(bad)} failed\n" + "\n\n".join(f"{name}: {why[-2000:]}" for name, why in bad.items())
    return sum(status == "PASS" for status, _, _ in results.values())


@pytest.mark.parametrize(("ranks", "transport"), [(2, "mpi"), (3, "gloo"), (4, "mpi")])
def test_all_of_it(tmp_path: Path, ranks: int, transport: str) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not installed")
    pytest.importorskip("mpi4py", exc_type=ImportError)
    without = [option for name in GPU_ONLY for option in ("-x", name)]
    assert run_suite(tmp_path, ranks, "--launcher", "mpirun", *without, env={"TOPOCCL_TRANSPORT": transport}) >= PASSED[ranks]


def test_a_part_with_ranks_that_are_forked(tmp_path: Path) -> None:
    chosen = [option for name in FORKED for option in ("-k", name if "*" in name else f"{name}*")]
    assert run_suite(tmp_path, 2, "-j", "2", *chosen) >= len(FORKED)
