"""Tuning files in running programs: they flip choices, and what is wrong with them is told to all ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

RANKS = """
import json, os, sys
import numpy as np
import topoccl
from topoccl.algorithms.tuning import Measurement, Tuning, dump_tuning

rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
os.makedirs(f"{sys.argv[1]}/rank{rank}")
os.chdir(f"{sys.argv[1]}/rank{rank}")  # so that one name is another file on each rank


def write(name, label, topology=None):
    with open(name, "w") as file:
        file.write(dump_tuning(Tuning((Measurement("all_reduce", 2, label, 1 << 16, 1e-9, 2),), topology)))


def attempt(name):
    try:
        comm = topoccl.init(tune_file=name)
    except topoccl.TopocclError as error:
        return [type(error).__name__, str(error)]
    data = np.full(1 << 14, rank + 1, np.float32)
    comm.all_reduce(data)
    assert (data == 3).all()
    half = comm.subgroup([1, 0], 7)
    half.all_reduce(data)
    assert (data == 6).all()
    found = [comm.last_choice.algorithm, comm.last_choice.measured, comm.last_segments, half.last_choice.algorithm, comm.topology.digest]
    half.close()
    comm.close()
    return found


first = attempt("")
others = ["ring[channels=1]", "direct", "two_shot"]
label = next(name for name in others if name != first[0])
write("flip.yaml", label)
write("here.yaml", label, first[-1])
write("elsewhere.yaml", label, "0" * 64)
write("differs.yaml", others[rank])
if rank == 0:
    write("one.yaml", label)
with open("wrong.yaml", "w") as file:
    file.write("topoccl_tuning: 1\\nentries: [{collective: all_rejoice}]\\n")
names = ["flip", "here", "elsewhere", "differs", "one", "wrong"]
told = {"free": first, "label": label, **{name: attempt(f"{name}.yaml") for name in names}}
with open("told.json", "w") as file:
    json.dump(told, file)
"""


def test_a_file_flips_the_choice(mpirun: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    result = mpirun(2, sys.executable, "-c", RANKS, str(tmp_path), env={"TOPOCCL_TUNE_FILE": ""})
    assert result.returncode == 0, result.stderr
    told, other = (json.loads((tmp_path / f"rank{rank}/told.json").read_text()) for rank in (0, 1))
    assert told == other
    free, label = told["free"], told["label"]
    assert free[1] is False
    assert free[0] != label
    for name in ("flip", "here"):
        assert told[name] == [label, True, 2, label, free[-1]]  # the group of all ranks in another order keeps the file
    assert told["elsewhere"] == free
    warnings = [line for line in result.stderr.splitlines() if "TUNE_FILE" in line]
    assert len(warnings) == 1
    assert "TOPOCCL_TUNE_FILE: the times of elsewhere.yaml are not used: they were measured on a topology" in warnings[0]
    assert told["differs"][0] == told["one"][0] == told["wrong"][0] == "ConfigError"
    assert told["differs"][1].startswith("ranks must agree, but TOPOCCL_TUNE_FILE (digest of its contents) is '")
    assert told["one"][1] == "rank 1: TOPOCCL_TUNE_FILE: one.yaml: cannot be read: No such file or directory"
    assert told["wrong"][1].startswith("every rank: TOPOCCL_TUNE_FILE: wrong.yaml:2: entries[0]: key 'ranks' is missing")
