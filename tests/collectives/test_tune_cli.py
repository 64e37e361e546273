"""``topoccl tune`` as a program, on this host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from topoccl.algorithms.tuning import Measurement, Tuning, dump_tuning, load_tuning

MpiRun = Callable[..., "subprocess.CompletedProcess[str]"]
TUNE = (sys.executable, "-m", "topoccl", "tune")

PROGRAM = """
import json, sys, time
import numpy as np
import topoccl
from topoccl.algorithms import cost, select

comm = topoccl.init()
small = np.ones(1024, np.float32)
comm.barrier()
built = []
select._model = lambda *args: built.append(args)  # whoever predicts calls it
comm.all_reduce(small)
choice = comm.last_choice
assert (small == comm.size).all()
if comm.rank == 0:
    print(json.dumps([choice.algorithm, choice.segments, choice.measured, choice.profile, choice.reason, len(built)]))
comm.close()
"""

FAILS = """
import sys
from topoccl.collectives.tune.work import Worker

batch, calls = Worker.batch, []


def failing(self, number, count):
    calls.append(number)
    if self._comm.rank == 1 and len(calls) == 8:
        raise MemoryError("no memory left")
    return batch(self, number, count)


Worker.batch = failing
from topoccl.collectives.cli.main import main
sys.exit(main(["tune", *sys.argv[1:]]))
"""

WRONG = FAILS.replace(
    "if self._comm.rank == 1 and len(calls) == 8:", "if self._comm.rank == 1 and len(calls) == 5:"
).replace(  # the second candidate's first call
    '        raise MemoryError("no memory left")\n', "        batch(self, number, count)\n        self._out[5] = 99\n        return 1.0\n"
)


def alone(*options: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "RANK", "WORLD_SIZE"))}
    return subprocess.run([*TUNE, *options], env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "the following arguments are required: -o/--output"),
        (["-o", "t.yaml", "barrier"], "'barrier' cannot be tuned; expected some of all_reduce, all_gather"),
        (["-o", "t.yaml", "-b", "2"], "'2' is too small; expected at least 4 bytes"),
        (["-o", "t.yaml", "-b", "8K", "-e", "4K"], "expected -f of at least 2, and -b at most -e"),
        (["-o", "t.yaml"], "tune measures calls among ranks, and this job has only one"),
        (["--check"], "tune --check measures calls among ranks, and this job has only one"),
        (["--check", "-o", "t.yaml"], "-o: not with --check, which writes no tuning file"),
        (["-o", "t.yaml", "-J", "t.json"], "-J: only with --check"),
        (["--merge", "none.yaml", "-o", "t.yaml"], "none.yaml: cannot be read"),
        (["--merge", "none.yaml"], "the following arguments are required: -o/--output"),
    ],
)
def test_bad_options(options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = alone(*options)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_two_ranks(mpirun: MpiRun, tmp_path: Path) -> None:
    output, table, asked = tmp_path / "t.yaml", tmp_path / "out.csv", tmp_path / "in.csv"
    asked.write_text("allreduce,0,4095,tree,simple,-1,-1,-1\nallreduce,4096,65536,nvls,simple,-1,-1,-1\n")
    options = ("all_reduce", "-b", "1K", "-e", "16K", "--budget", "8s", "-o", str(output), "--export", str(table), "--import", str(asked))
    result = mpirun(2, *TUNE, *options)
    assert result.returncode == 0, result.stderr
    assert "1 lines are measured first; without a counterpart: " in result.stdout
    assert "in.csv:2: allreduce by nvls" in result.stdout
    assert "tune: fit ..." in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv", "t.yaml"]
    assert table.read_text().startswith("# collType,minBytes,maxBytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff\n")
    tuning = load_tuning(output)
    assert {entry.nbytes for entry in tuning.entries} == {1024, 4096, 16384}
    assert "tree[intra=chain]" in {entry.algorithm for entry in tuning.entries if entry.nbytes == 1024}
    assert tuning.transport == "mpi"
    assert tuning.fitted is not None
    assert [(r.least, r.most) for r in tuning.covered] == [(1024, 16384)]
    here = [entry for entry in tuning.entries if entry.nbytes == 4096]
    best = min(here, key=lambda entry: entry.seconds)

    told = mpirun(2, sys.executable, "-c", PROGRAM, env={"TOPOCCL_TUNE_FILE": str(output)})
    assert told.returncode == 0, told.stderr
    algorithm, segments, measured, profile, reason, built = json.loads(told.stdout)
    assert (algorithm, segments, measured, profile, built) == (best.algorithm, best.segments, True, "mpi, tuned", 0)
    assert reason.startswith(f"{best.algorithm} is the fastest of {len(here)} candidates measured in {output}")

    other = mpirun(2, sys.executable, "-c", PROGRAM.replace("select._model", "_"), env={
        "TOPOCCL_TUNE_FILE": str(output), "TOPOCCL_TRANSPORT": "gloo"})  # fmt: skip
    assert other.returncode == 0, other.stderr
    assert json.loads(other.stdout)[2:4] == [False, "gloo"]
    assert "they were measured over mpi, and this is gloo" in other.stderr


def test_choices_are_checked(mpirun: MpiRun, tmp_path: Path) -> None:
    known, output = tmp_path / "t.yaml", tmp_path / "check.json"
    entry = Measurement("all_reduce", 2, "ring[channels=1]", 4096, 1e-6, 1, hosts=1)
    known.write_text(dump_tuning(Tuning((entry,))))
    options = ("all_reduce", "-b", "4K", "-e", "4K", "--check", "--tune-file", str(known), "-J", str(output), "--budget", "4s", "-q")
    result = mpirun(2, *TUNE, *options)
    assert result.returncode == 0, result.stderr
    found = json.loads(output.read_text())
    (call,) = found["calls"]
    assert (found["ranks"], call["collective"], call["bytes"]) == (2, "all_reduce", 4096)
    assert call["chosen"]["t.yaml"] == "ring[channels=1]"
    measured = {row["algorithm"]: row for row in call["candidates"]}
    assert {call["best"], *call["chosen"].values()} <= measured.keys()
    assert min(row["first_seconds"] for row in call["candidates"]) == measured[call["best"]]["first_seconds"]
    assert all(measured[label]["second_seconds"] is not None for label in (call["best"], *call["chosen"].values()))
    ratio = call["ratio"]["t.yaml"]
    assert ratio == 1 if call["best"] == "ring[channels=1]" else ratio > 0
    assert call["decided"]["t.yaml"] or f"~{ratio:.2f}" in result.stdout
    assert "defaults: within 5 % of the fastest in " in result.stdout
    assert f"t.yaml: within 5 % of the fastest in {int(ratio <= 1.05)} of 1 calls" in result.stdout


def test_files_are_merged(tmp_path: Path) -> None:
    for name, topology in (("a", "1" * 12), ("b", "2" * 12)):
        entry = Measurement("all_reduce", 2, "direct", 4096, 1e-6)
        (tmp_path / f"{name}.yaml").write_text(dump_tuning(Tuning((entry,), topology)))
    files = [str(tmp_path / name) for name in ("a.yaml", "b.yaml", "c.yaml")]
    result = alone("--merge", *files[:2], "-o", files[2])
    assert result.returncode == 0, result.stderr
    assert "c.yaml: 2 measurements in 2 places" in result.stdout
    assert [part.topology for part in load_tuning(files[2]).parts] == ["1" * 12, "2" * 12]


def test_what_one_rank_raises_ends_the_run_on_all(mpirun: MpiRun, tmp_path: Path) -> None:
    output = tmp_path / "t.yaml"
    output.write_text("as it was")
    options = ("all_reduce", "-b", "1K", "-e", "16K", "--budget", "8s", "-o", str(output), "-q")
    for program, message in ((FAILS, "rank 1: MemoryError: no memory left"), (WRONG, "gives a wrong result for all_reduce of 1024 bytes")):
        result = mpirun(2, sys.executable, "-c", program, *options)
        assert result.returncode == 2
        assert message in result.stderr
        assert "Traceback" not in result.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["t.yaml"]
        assert output.read_text() == "as it was"


def test_under_torchrun(tmp_path: Path) -> None:
    output = tmp_path / "t.yaml"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "RANK", "WORLD_SIZE"))}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    options = ["broadcast", "-b", "1K", "-e", "1K", "--budget", "4s", "-o", str(output)]
    result = subprocess.run([*launch, *TUNE, *options], env=env, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    tuning = load_tuning(output)
    assert tuning.transport == "gloo"
    assert {(entry.collective, entry.root) for entry in tuning.entries} == {("broadcast", 0)}
