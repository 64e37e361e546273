"""A topology that was saved on one machine plans the same on another: no bit of it may be lost on the way through a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from topoccl.algorithms.calibration import default_profile
from topoccl.algorithms.select import select
from topoccl.algorithms.selection_rules import AlgoRules
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology import Topology
from topoccl.topology.dump import dump
from topoccl.topology.files import loads
from topoccl.topology.load import load

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "topology" / "fixtures"
HANDED = ROOT.parent / "shared" / "topologies"
SPECS = [
    *(
        "cluster:4x2",
        "cluster:3+2+1,placement=round_robin",
        "racks:2x2x2,oversub=4,placement=alternate",
        "torus:3x3",
        "ring:5,ranks=2",
        "rails:2x4",
    ),
    *(str(FIXTURES / name) for name in ("dgx1v-nccl.xml", "nvidia-8xh100-10nic.txt", "rocm-4xmi250x.txt", "hccl-1.2.json", "hwloc-v3.xml")),
    *(str(HANDED / name) for name in ("nccl_xml/oci-H100-topology.xml", "taccl/topo-ndv2-1MB.json", "rccl_xml/topo_8p6l.xml")),
]


def plans(topology: Topology) -> list[tuple[str, str, float]]:
    """The algorithm, the digest of the schedule and the predicted seconds for some calls."""
    found = []
    for collective, nbytes in (("all_reduce", 64 << 20), ("all_reduce", 8), ("all_to_all", 1 << 20)):
        spec = CollectiveSpec(collective, topology.num_ranks)
        choice = select(spec, topology, nbytes, 4, AlgoRules(), default_profile("gloo"))
        found.append((choice.algorithm, choice.schedule.digest, choice.seconds))
    return found


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: Path(spec).name)
def test_the_same_plans_from_a_dump(spec: str) -> None:
    if "/" in spec and not Path(spec).exists():
        pytest.skip("no files were handed over")
    topology = load(spec)
    for style in ("yaml", "json"):
        text = dump(topology, style=style)
        again = loads(text, f"saved.{style}")
        assert dump(again, style=style) == text
        assert again.digest == topology.digest
    assert plans(again) == plans(topology)
