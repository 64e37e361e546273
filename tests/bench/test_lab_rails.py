"""Two NICs per host of unequal rates: both carry their share, and what keeps one from being used is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FABRIC = "rails:2x1,net=200Mbit/s+100Mbit/s"
PROGRAM = """
import numpy as np, topoccl
from topoccl.topology.rails import rails_of
comm = topoccl.init(algo="forest")
data = np.arange(1 << 19, dtype=np.float32) % 1000
for _ in range(3):
    out = np.empty_like(data)
    comm.all_reduce(data * (comm.rank + 1), out)
    assert (out == 3 * data).all()
    comm.all_to_all(data + comm.rank, out)
    mine = np.split(data, 2)[comm.rank]
    assert (out == np.concatenate([mine, mine + 1])).all()
print(f"rank {comm.rank} plans with", *map(str, rails_of(comm.topology)))
comm.close()
"""


pytestmark = pytest.mark.usefixtures("virtual_cluster")


def run(directory: Path, *settings: str) -> tuple[int, str, dict[str, int]]:
    """The status and output of the program, and the bytes over each direction of each link."""
    carried = directory / "bytes.json"
    options = [word for setting in settings for word in ("-x", setting)]
    words = ["--state-dir", str(directory), "run", "--launcher", "env", "--bytes-json", str(carried), *options, FABRIC]
    lab = [sys.executable, str(REPOSITORY / "bench" / "lab.py"), *words, "--", "python", "-c", PROGRAM]
    done = subprocess.run(lab, capture_output=True, text=True, cwd=REPOSITORY, timeout=280)
    links = json.loads(carried.read_text())["links"]
    return done.returncode, done.stdout + done.stderr, {link["link"]: link["bytes"] for link in links}


@pytest.mark.parametrize("transport", ["tcp", "gloo"])
def test_rails_carry_messages_by_their_rates(transport: str, tmp_path: Path) -> None:
    status, output, carried = run(tmp_path, f"TOPOCCL_TRANSPORT={transport}", "TOPOCCL_RAILS=1")
    assert status == 0, output
    for host in ("h0", "h1"):
        fast, slow = carried[f"{host}.eth0->rail0"], carried[f"{host}.eth1->rail1"]
        assert 1.6 < fast / slow < 2.4, carried
        assert fast + slow > 3 * (3 << 20)


def test_an_interface_that_may_not_be_used_is_named(tmp_path: Path) -> None:
    status, output, _ = run(tmp_path, "TOPOCCL_RAILS=1", "TOPOCCL_SOCKET_IFNAME==eth0")
    assert status != 0
    assert "TOPOCCL_RAILS=1: rank 0 on h0: NIC h0.eth1 of rail rail1 is none of its interfaces; known and allowed are eth0" in output


def test_otherwise_all_goes_over_the_other(tmp_path: Path) -> None:
    status, output, carried = run(tmp_path, "TOPOCCL_SOCKET_IFNAME==eth0")
    assert status == 0, output
    assert output.count("plans with rail0\n") == 2
    assert (
        output.count("nothing goes over rail1 of the rails, nor is planned for it: rank 0 on h0: NIC h0.eth1 of rail rail1 is none of its")
        == 1
    )
    assert carried["h0.eth1->rail1"] == 0
    assert carried["h0.eth0->rail0"] > 3 * (3 << 20)
