"""What starts quickly does so because it imports little: the time itself depends on the machine, the modules do not."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "scipy", "networkx", "matplotlib", "mpi4py")


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("from topoccl.collectives.cli.main import main; main(['topo'])", ("numpy", *HEAVY)),
        ("from topoccl.collectives.cli.main import main; main(['topo', 'cluster:4x2', '--json'])", ("numpy", "rich", *HEAVY)),
        ("import topoccl.collectives.setup", ("rich", "topoccl.topology.formats", "topoccl.topology.render", *HEAVY)),
    ],
)
def test_modules_that_are_not_needed_are_not_imported(code: str, unwanted: tuple[str, ...]) -> None:
    code = f"import sys; {code}; print([name for name in {unwanted} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)
    assert done.stderr.splitlines()[-1] == "[]", done.stderr
