"""The benchmarks as programs: under mpirun, under torchrun, alone; and how they end when something goes wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from topoccl.bench.suite.operations import OPERATIONS

MpiRun = Callable[..., "subprocess.CompletedProcess[str]"]
REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = str(REPOSITORY / "bench" / "all_reduce.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
QUICK = ("-b", "8", "-e", "4K", "-f", "8", "-n", "2", "-w", "1")


def alone(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)


def rows_of(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if line and not line.startswith("#")]


def all_right(result: subprocess.CompletedProcess[str]) -> list[list[str]]:
    assert result.returncode == 0, result.stdout + result.stderr
    assert "# Out of bounds values : 0 OK" in result.stdout
    return rows_of(result.stdout)


def test_script_under_mpirun(mpirun: MpiRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    path = tmp_path / "out.json"
    result = mpirun(3, sys.executable, SCRIPT, *QUICK, "-J", str(path))
    rows = all_right(result)
    assert [row[0] for row in rows] == ["8", "64", "512", "4096"]
    assert {(row[8], row[12]) for row in rows} == {("0", "0")}
    assert re.search(r"^#  Rank  2 Group  0 Pid +\d+ on +\S+ device cpu \[", result.stdout, re.M)
    assert "# Transport: mpi" in result.stdout
    algorithm = rows[0][15]
    assert re.search(rf"^#  8.*: {re.escape(algorithm)} is ", result.stdout, re.M), result.stdout
    content = json.loads(path.read_text())
    assert content["results"][0]["algorithm"] == algorithm
    assert content["config"]["ranks"] == 3
    assert content["env"]["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "all_reduce"])
def test_every_script_alone(name: str) -> None:
    result = alone(sys.executable, str(REPOSITORY / "bench" / f"{name}.py"), *QUICK)
    rows = all_right(result)
    assert len(rows) == (1 if name == "barrier" else 4)
    assert f", {name}, calls of communicator" in result.stdout


def test_command_under_mpirun(mpirun: MpiRun) -> None:
    result = mpirun(
        2, sys.executable, "-m", "topoccl", "bench", "allgather", "-b", "64", "-e", "64", "-n", "1", env={"TOPOCCL_ALGO": "ring"}
    )
    (row,) = all_right(result)
    assert row[:3] == ["64", "8", "float"]
    assert row[15].startswith("ring")
    assert "that TOPOCCL_ALGO allows (ring)" in result.stdout


def test_torch_backend_under_torchrun() -> None:
    result = alone(*TORCHRUN, "-m", "topoccl", "bench", "all_reduce", *QUICK, "--backend", "torch", "-d", "bfloat16")
    rows = all_right(result)
    assert len(rows) == 4
    assert rows[0][2] == "bfloat16"
    assert rows[0][5] == "N/A"
    assert rows[0][12] == "0"
    assert "# Transport: gloo" in result.stdout


def test_start_up_needs_no_torch() -> None:
    code = (
        "import sys; from topoccl.bench.runner import main; status = main('all_reduce', ['-b', '8', '-e', '8']);"
        "print('torch' in sys.modules, status)"
    )
    assert alone(sys.executable, "-c", code).stdout.splitlines()[-1] == "False 0"


# Bad usage


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("-d", "floot"), "all_reduce.py: error: argument -d/--datatype: unknown type 'floot'; known: int8, "),
        (("-r", "3"), "all_reduce.py: error: -r 3 is not one of the 3 ranks (0 to 2)"),
    ],
)
def test_bad_usage_is_told_once(mpirun: MpiRun, argv: tuple[str, ...], message: str) -> None:
    result = mpirun(3, sys.executable, SCRIPT, *argv)
    assert result.returncode == 2
    assert result.stderr.count(message) == 1, result.stderr
    assert result.stderr.count("usage:") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("argv", "variables", "message"),
    [
        ((), {"TOPOCCL_ALGO": "all_reduce:rign"}, "unknown algorithm 'rign' for all_reduce; known: "),
        (("-J", "missing/x.json"), {}, "cannot write 'missing/x.json': there is no directory 'missing'"),
        (("-b", "1024T"), {}, "do not fit into the "),
    ],
)
def test_what_the_library_refuses_is_one_line(mpirun: MpiRun, argv: tuple[str, ...], variables: dict[str, str], message: str) -> None:
    result = mpirun(2, sys.executable, SCRIPT, *argv, env=variables)
    assert result.returncode == 2
    assert result.stderr.count(message) == 1, result.stderr
    assert "Traceback" not in result.stderr


def test_unknown_variables_are_warned_about_once(mpirun: MpiRun) -> None:
    result = mpirun(2, sys.executable, SCRIPT, "-b", "8", "-e", "8", "-n", "1", env={"TOPOCCL_ALGOO": "ring"})
    all_right(result)
    warning = "all_reduce.py: warning: unknown variable TOPOCCL_ALGOO has no effect; did you mean TOPOCCL_ALGO?\n"
    assert result.stderr == warning


def test_help_is_shown_once(mpirun: MpiRun) -> None:
    result = mpirun(2, sys.executable, SCRIPT, "--help")
    assert (result.returncode, result.stdout.count("usage: all_reduce.py"), result.stderr) == (0, 1, "")


def test_wrong_results_fail_the_run(mpirun: MpiRun) -> None:
    code = (
        "import sys; from topoccl.bench.suite import backends; from topoccl.bench.runner import main\n"
        "prepare = backends.CommunicatorBackend.prepare\n"
        "def spoilt(self, operation, inp, out, op, root):\n"
        "    call = prepare(self, operation, inp, out, op, root)\n"
        "    def run(begin):\n"
        "        call(begin)\n"
        "        if self.communicator.rank: out[0] += 1\n"
        "    return run\n"
        "backends.CommunicatorBackend.prepare = spoilt\n"
        "sys.exit(main('all_reduce', ['-b', '4K', '-e', '4K', '-n', '1', '-w', '0', '-d', 'int32']))"
    )
    result = mpirun(2, sys.executable, "-c", code)
    assert result.returncode == 1
    assert "# Out of bounds values : 2 FAILED" in result.stdout
    assert [(row[8], row[12]) for row in rows_of(result.stdout)] == [("1", "1")]


# Ranks that fail

FAILING = """
import os, sys, time
from topoccl.bench.runner import main
from topoccl.bench.suite.measure import Measurement
from topoccl.collectives.cli import ending
ending._PATIENCE = 0.5  # rank 0 has nothing to tell
measure = Measurement._time
def fail(self, *args):
    if self.rank == 1 and self._checks >= 2:
        {}
    return measure(self, *args)
Measurement._time = fail
sys.exit(main("all_reduce", ["-b", "1K", "-e", "1M", "-f", "2", "-n", "2"]))
"""


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("raise ZeroDivisionError('a bug')", "ZeroDivisionError: a bug"),
        ("from topoccl.collectives.errors import TransportError; raise TransportError('gone')", "rank 1 of 3: -c: error: gone"),
        ("os.kill(os.getpid(), 9)", "signal 9"),
    ],
)
def test_failing_rank_ends_all(mpirun: MpiRun, statement: str, told: str) -> None:
    result = mpirun(3, sys.executable, "-c", FAILING.format(statement), env={"TOPOCCL_TIMEOUT": "1h"})
    assert result.returncode != 0
    assert told in result.stderr
    assert rows_of(result.stdout)[0][0] == "1024"


def test_failing_rank_ends_all_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text(FAILING.format("raise ZeroDivisionError('a bug')"))
    result = alone(*TORCHRUN, str(script), TOPOCCL_TIMEOUT="1h")
    assert result.returncode != 0
    assert "ZeroDivisionError: a bug" in result.stderr


ENDLESS = ("-b", "8", "-e", "8", "-n", "100000000")


def interrupted(argv: list[str]) -> tuple[int, str, list[int]]:
    """Starts a benchmark, presses Ctrl-C while it is measuring; its status, what it said on stderr, and its ranks' processes."""
    process = subprocess.Popen(
        argv, cwd=REPOSITORY, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    ranks: list[int] = []
    try:
        for line in process.stdout:
            ranks += [int(pid) for pid in re.findall(r"^#  Rank +\d+ Group  0 Pid +(\d+) ", line)]
            if "(GB/s)" in line:
                break
        time.sleep(0.5)  # into the timed loop, or not quite: it must end either way
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, err, ranks


def runs(pid: int) -> bool:
    """Whether a process is there, and not only its entry, which its parent has not read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int]) -> bool:
    """Whether the processes end (at the latest in a few seconds)."""
    for _ in range(100):
        if not any(runs(pid) for pid in pids):
            return True
        time.sleep(0.1)
    return False


def test_ctrl_c_under_mpirun_leaves_no_process(mpirun: MpiRun) -> None:
    status, err, ranks = interrupted(["mpirun", "-n", "3", sys.executable, SCRIPT, *ENDLESS])
    assert status != 0
    assert len(ranks) == 3
    assert gone(ranks)
    assert "Traceback" not in err


def test_ctrl_c_alone_says_nothing() -> None:
    status, err, ranks = interrupted([sys.executable, SCRIPT, *ENDLESS])
    assert (status, err) == (130, "")
    assert gone(ranks)


def test_reader_that_goes_away_ends_the_run_quietly() -> None:
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "-b", "8", "-e", "1M", "-i", "8", "-n", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("# topoccl ")
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 141
