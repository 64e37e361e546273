"""topoccl doctor: this host, a description, several descriptions, a job under mpirun."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from topoccl.collectives.cli.main import main
from topoccl.topology.checks import CHECKS
from topoccl.topology.discovery import discover_host

MpiRun = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("OMPI_COMM", "PMI", "TOPOCCL_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)


def doctor(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(["doctor", *argv])
    out, err = capsys.readouterr()
    return status, out, err


def test_this_host(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = doctor(capsys, "--json")
    told = json.loads(out)
    assert told["topology"] == socket.gethostname()
    assert told["checks"] == [name for name, _ in CHECKS]
    assert (told["hosts"], told["ranks"]) == (1, 1)
    assert status == int(any(problem["severity"] == "error" for problem in told["problems"]))


def test_a_description_alone(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = doctor(capsys, "cluster:4x2")
    assert (status, out.splitlines()[-1]) == (0, "nothing is wrong")
    status, out, _ = doctor(capsys, "cluster:2x2,net=100Mbit/s+1Gbit/s")
    assert status == 0
    assert "warning h0: slower NICs than other hosts of the group: all wait for them" in out
    assert "slowest 12.5MB/s, fastest 125MB/s" in out
    assert out.splitlines()[-1] == "1 warning"


def test_a_declared_nic_that_measures_less(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As topoccl probe writes it: links with a source."""
    measured = tmp_path / "probe.yaml"
    link = "bandwidth: {}Gbit/s, kind: net, attrs: {{confidence: 0.9, source: measured}}"
    measured.write_text(
        "hosts:\n- {name: h0, slots: 1, parts: [{id: h0.nic0, kind: nic}]}\n- {name: h1, slots: 1, parts: [{id: h1.nic0, kind: nic}]}\n"
        "switches: [switch0]\nlinks:\n"
        f"- {{between: [h0.nic0, switch0], {link.format(20)}}}\n- {{between: [h1.nic0, switch0], {link.format(390)}}}\n"
    )
    status, out, _ = doctor(capsys, "cluster:2x1,net=400Gbit/s", str(measured), "--json")
    told = json.loads(out)["problems"]
    assert status == 1
    assert [(one["severity"], one["check"], one["subject"]) for one in told] == [("error", "contradictions", "h0.eth0->sw0")]
    assert told[0]["values"] == {"user (cluster:2x1,net=400Gbit/s)": "50GB/s (400 Gbit/s)", "measured (probe.yaml)": "2.5GB/s (20 Gbit/s)"}
    assert doctor(capsys, str(measured), "cluster:2x1,net=400Gbit/s")[0] == 1, "whatever the order"


def test_a_description_of_this_host_is_held_against_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"hosts: [{{name: {socket.gethostname()}, slots: 1, nics: [{{name: a}}, {{name: b}}, {{name: c}}]}}]")
    _, out, _ = doctor(capsys, str(mine), "--json")
    told = [one for one in json.loads(out)["problems"] if one["check"] == "contradictions"]
    seen = len(discover_host().usable_nics) or 1
    expected = [] if seen == 3 else [(socket.gethostname(), {"user (mine.yaml)": "3", "sysfs (this host)": str(seen)})]
    assert [(one["subject"], one["values"]) for one in told] == expected


def test_the_configured_description(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOCCL_TOPO_FILE", "cluster:3x2")
    assert "cluster:3x2" in doctor(capsys)[1]
    assert "ring:4" in doctor(capsys, "ring:4")[1]


def test_bad_input_is_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = doctor(capsys, "no-such-file.yaml")
    assert status == 2
    assert "no such file" in err
    apart = "cluster:1x1"
    assert doctor(capsys, apart)[0] == 0


def test_under_mpirun(mpirun: MpiRun, tmp_path: Path) -> None:
    """All ranks on one core, one of them with a host identity of its own, and a description of two hosts of other names."""
    cpu = min(os.sched_getaffinity(0))
    wrapper = tmp_path / "rank.sh"
    wrapper.write_text('#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 2 ] && export TOPOCCL_HOSTID=other\nexec "$@"\n')
    wrapper.chmod(0o755)
    command = (str(wrapper), "taskset", "-c", str(cpu), sys.executable, "-m", "topoccl", "doctor", "cluster:2x2,net=8Gbit/s", "--json")
    done = mpirun(3, "--bind-to", "none", *command)
    told = json.loads(done.stdout[: done.stdout.rindex("}") + 1])
    assert (told["hosts"], told["ranks"]) == (4, 3), "two that are described, two that are there"
    checks = {(one["check"], one["severity"]) for one in told["problems"]}
    assert ("cores", "error") in checks
    assert ("host names", "warning") in checks
    assert done.returncode == 1, "mpirun passes on that rank 0 found errors"


def test_a_wrong_description_ends_all_ranks(mpirun: MpiRun) -> None:
    done = mpirun(2, sys.executable, "-m", "topoccl", "doctor", "cluster:1x1")
    assert done.returncode == 2
    assert "has 1 slot, fewer than the 2 ranks" in done.stderr
