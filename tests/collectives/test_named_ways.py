"""Schedules that name ways run on transports that cannot choose them; ``topoccl check`` follows the ways."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from executor_harness import execute, expected, inputs_for

from topoccl.algorithms.builders import forest
from topoccl.algorithms.msccl import write_msccl
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.collectives.cli.main import main
from topoccl.topology.dump import dump
from topoccl.topology.graph import Link, Topology, Vertex, VertexKind

NAMES = ("a", "b", "c", "bridge")
BESIDE = Topology(
    "beside",
    [Vertex("h", VertexKind.HOST), Vertex("bridge", VertexKind.PCIE, "h"), *(Vertex(name, VertexKind.SLOT, "h") for name in NAMES[:3])],
    [Link(a, b, 4e9 if "bridge" in (a, b) else 2e9) for a in NAMES for b in NAMES if a != b],
)
"""Three ranks, all linked to each other, and a bridge beside them."""


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"])
def test_results_are_right_whatever_way_messages_go(collective: str) -> None:
    spec = CollectiveSpec(collective, 3, 0 if collective in ("broadcast", "reduce") else None)
    schedule = forest.build(spec, BESIDE, ways="any")
    assert schedule.ways
    inputs = inputs_for(spec, 97)
    for hosts in ([[0, 1, 2]], [[0], [1], [2]]):
        for got, want in zip(execute(schedule, hosts, 97, inputs, segments=2).outputs, expected(spec, 97, inputs), strict=True):
            np.testing.assert_array_equal(got, want)


def test_check_follows_the_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fabric, document = tmp_path / "beside.yaml", tmp_path / "forest.xml"
    fabric.write_text(dump(BESIDE))
    document.write_text(write_msccl(forest.build(CollectiveSpec("all_gather", 3), BESIDE, ways="any")))
    assert main(["check", str(document), "--topology", str(fabric), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["endless_fraction"] == pytest.approx(1)
    assert main(["check", str(document), "--topology", "mesh:1x3", "--json"]) == 1
    assert "way" in json.loads(capsys.readouterr().out)["problem"]
