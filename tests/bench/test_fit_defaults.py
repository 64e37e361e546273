"""The fit of default constants finds what made the measured times."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from topoccl.algorithms.calibration import default_profile
from topoccl.algorithms.registry import build_verified, by_name
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.algorithms.tuning.fit import Sample, predicted_seconds
from topoccl.algorithms.tuning.measured import with_constants
from topoccl.bench.fit_defaults import calls_of, errors, fit, main
from topoccl.topology.dump import dump
from topoccl.topology.load import load

FABRIC = "ring:4,net=200Mbit/s"
OURS = default_profile("tcp")
EACH, CALL = 1.3 * OURS.network.stamped_overhead, 3 * OURS.network.stamped_call
TRUE = with_constants(OURS, [("network.stamped_overhead", EACH), ("network.stamped_call", CALL)])


def document() -> dict[str, object]:
    """What a check would measure on four hosts that share two cores if :data:`TRUE` were right, and a long call, which does not count."""
    topology = load(FABRIC)
    spec = CollectiveSpec("all_reduce", 4)
    calls = []
    for nbytes in (4, 4096, 16384, 1 << 20):
        rows = []
        for label, params in (("ring[channels=1]", {"channels": 1}), ("ring[channels=2]", {"channels": 2}), ("direct", {})):
            schedule = build_verified(by_name("all_reduce", label.partition("[")[0]), spec, topology, params)
            there = TRUE.on_hosts(1.0, attach=True, machine=2.0)
            seconds = predicted_seconds(Sample(schedule, topology, nbytes, 1, 1.0), there)
            rows.append({"algorithm": label, "segments": 1, "pulls": False, "first_seconds": seconds, "second_seconds": None})
        calls.append({"collective": "all_reduce", "bytes": nbytes, "root": None, "candidates": rows})
    return {"calls": calls}


def test_constants_are_found_again() -> None:
    calls = calls_of(load(FABRIC), document(), 2)
    assert len(calls) == 3
    assert fmean(errors(calls, TRUE)) == pytest.approx(0, abs=1e-9)
    found = fit(calls, OURS, ("stamped_overhead", "stamped_call"), 14)
    assert found.network.stamped_overhead == pytest.approx(EACH, rel=0.1)
    assert found.network.stamped_call == pytest.approx(CALL, rel=0.1)


def test_it_says_how_far_defaults_are_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fabric = tmp_path / "ring.yaml"
    fabric.write_text(dump(load(FABRIC)))
    (tmp_path / "check.json").write_text(json.dumps(document()))
    assert main([f"{fabric}={tmp_path / 'check.json'}", "--check"]) == 0
    assert capsys.readouterr().out.startswith("3 calls, off by ")
