"""What is remembered of clusters, and who may not have any. No root is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from topoccl.bench import lab
from topoccl.bench.virtual import LabError, state
from topoccl.bench.virtual.state import Process, Record

ME = Process.of(os.getpid())
GONE = replace(ME, started=ME.started + 1)  # another process had this number


def record(directory: Path, persistent: bool = False, owner: Process = ME, holder: Process | None = ME) -> Record:
    return Record(directory.name, "cluster:2x1", persistent, owner, holder, {"fabric": 1, "h0": 2})


def test_a_process_is_not_taken_for_another_with_its_number() -> None:
    assert ME.alive
    assert not GONE.alive
    assert GONE.end(1)  # and is not killed in its place


def test_ending_a_process_takes_stronger_means_where_it_must() -> None:
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    assert Process.of(child.pid).end(0.2)
    assert child.wait() == -9
    child.stdout.close()
    with pytest.raises(ProcessLookupError, match=f"no process {child.pid}"):
        Process.of(child.pid)


@pytest.mark.parametrize(
    ("persistent", "owner", "holder", "expected"),
    [
        (False, ME, None, "starting"),
        (False, GONE, None, "leftover"),
        (False, ME, ME, "running"),
        (False, GONE, ME, "leftover"),
        (False, ME, GONE, "leftover"),
        (True, GONE, ME, "up"),
        (True, ME, GONE, "leftover"),
    ],
)
def test_states(persistent: bool, owner: Process, holder: Process | None, expected: str, tmp_path: Path) -> None:
    directory = state.new_directory(tmp_path)
    written = record(directory, persistent, owner, holder)
    state.write(directory, written)
    (read,) = state.records(tmp_path)
    assert read == written
    assert read.state == expected


def test_records_are_listed_oldest_first_and_removed_one_by_one(tmp_path: Path) -> None:
    base = tmp_path / "a" / "b"
    assert state.records(base) == []
    made = []
    for age in (3, 1, 2):
        directory = state.new_directory(base)
        state.write(directory, record(directory, holder=GONE))
        os.utime(directory / "state.json", (1e9 - age, 1e9 - age))
        made.append(directory.name)
    assert len(set(made)) == 3
    assert [r.id for r in state.records(base)] == [made[0], made[2], made[1]]
    state.remove(base, state.records(base)[0])
    assert [r.id for r in state.records(base)] == [made[2], made[1]]


@pytest.mark.parametrize("text", ["", "[]", '{"id": 1}', '{"holder": null}'])
def test_a_file_that_is_no_state_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "state.json").write_text(text)
    with pytest.raises(LabError, match=r"x/state.json is not the state of a cluster"):
        state.records(tmp_path)


def test_without_root(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert lab.main(["status"]) == 2
    assert capsys.readouterr().err == "lab: error: virtual clusters need root (network namespaces); this is user 1000\n"


def test_without_iproute2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    assert lab.main(["status"]) == 2
    assert capsys.readouterr().err.startswith("lab: error: virtual clusters need ip, tc, bridge, nsenter on PATH")
