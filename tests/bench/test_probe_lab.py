"""``topoccl probe`` on real virtual clusters. Skipped where namespaces cannot be had (no root, no iproute2, a sandbox)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from probe_fabric import rates, structure

from topoccl.topology.load import load

REPOSITORY = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.usefixtures("virtual_cluster")


def probed(fabric: str, folder: Path, budget: int, *options: str) -> Path:
    """The topology file that a probe of ``bench/fabrics/<fabric>.yaml`` writes."""
    output = folder / "measured.yaml"
    lab = [sys.executable, str(REPOSITORY / "bench" / "lab.py"), "--state-dir", str(folder / "labs"), "run", *options]
    command = ["topoccl", "probe", "-o", str(output), "--budget", f"{budget}s"]
    result = subprocess.run(
        [*lab, f"bench/fabrics/{fabric}.yaml", "--", *command], capture_output=True, text=True, timeout=180, cwd=REPOSITORY
    )
    assert result.returncode == 0, result.stderr
    assert "measurements in" in result.stdout
    return output


@pytest.mark.parametrize(
    ("fabric", "budget", "options"),
    [
        ("slow-nic", 15, ()),
        ("two-racks", 20, ()),  # ranks alternate between the racks
        ("ring-5", 30, ()),
        ("uneven-3-2-1", 12, ("--placement", "round_robin")),
    ],
)
def test_planted_structure_is_found(fabric: str, budget: int, options: tuple[str, ...], tmp_path: Path) -> None:
    """Once more where a busy machine has spoilt it: what was planted must be found in one of two tries."""
    planted = load(REPOSITORY / "bench" / "fabrics" / f"{fabric}.yaml")
    for attempt in range(2):
        found = load(probed(fabric, tmp_path, budget * (1 + attempt), *options))
        wanted = rates(planted)
        close = {ends: rate / wanted[ends] for ends, rate in rates(found).items() if ends in wanted}
        if structure(found) == structure(planted) and all(0.9 < share < 1.1 for share in close.values()):
            break
    assert structure(found) == structure(planted)
    assert close == {ends: pytest.approx(1.0, abs=0.1) for ends in wanted}
    assert sorted(found.host_of_rank) == sorted(planted.host_of_rank)
