"""Names: ``topoccl`` is known to torch whatever is imported first, and neither import costs or breaks the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch_ranks import clean_environment

import topoccl

pytest.importorskip("torch.distributed")

_TELL = "import sys, torch.distributed as dist; print(dist.is_backend_available('topoccl'), 'topoccl' in sys.modules)"


def python(code: str, *options: str, env: dict[str, str] | None = None) -> str:
    """What a fresh Python says to ``code``, errors included."""
    done = subprocess.run(
        [sys.executable, *options, "-c", code], env=clean_environment(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("order", ["import topoccl, torch", "import torch, topoccl"])
def test_any_order_of_imports(order: str) -> None:
    code = f"""{order}
import torch.distributed as dist
dist.init_process_group("topoccl", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(t := torch.ones(2))
dist.monitored_barrier()
print(dist.get_backend(), t.tolist())
dist.destroy_process_group()
"""
    assert python(code, "-W", "error").splitlines()[-1] == "topoccl [1.0, 1.0]"


@pytest.mark.parametrize("first", ["topoccl.bench.runner", "topoccl.bench.compare", "topoccl.collectives.cli.main"])
def test_torch_may_be_loaded_while_topoccl_watches(first: str) -> None:
    """The backend's module is then loaded from within ``import torch``, where much of torch is not there yet."""
    code = f"import {first}, torch; print('topoccl' in torch.distributed.Backend.backend_list)"
    assert python(code, "-W", "error") == "True\n"


def test_import_is_cheap() -> None:
    heavy = ["numpy", "torch", "mpi4py", "networkx", "yaml", "rich", "subprocess"]
    assert python(f"import topoccl, sys; print([name for name in {heavy} if name in sys.modules])") == "[]\n"


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """An environment in which topoccl's entry point is known, as after an installation."""
    info = tmp_path / "topoccl-0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: topoccl\nVersion: 0.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntopoccl = topoccl.collectives.torch_backend.autoload:autoload\n")
    return {"PYTHONPATH": f"{tmp_path}:{Path(topoccl.__file__).parent.parent}"}


def test_torch_alone_knows_the_name(installed: dict[str, str]) -> None:
    assert python(_TELL, env=installed) == "True True\n"
    assert python(_TELL, env={**installed, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}) == "False False\n"


def test_torch_alone_imports_nothing_heavy(installed: dict[str, str]) -> None:
    code = "import torch, sys; print([n for n in sys.modules if n.startswith('topoccl.')])"
    assert all("torch_backend" in name or name == "'topoccl.collectives'" for name in python(code, env=installed).strip("[]\n").split(", "))


@pytest.mark.parametrize("options", [(), ("-W", "error")])
def test_a_broken_backend_does_not_break_torch(installed: dict[str, str], options: tuple[str, ...]) -> None:
    code = "import sys; sys.modules['topoccl.collectives.torch_backend.compat'] = None\n" + _TELL
    said = python(code, *options, env=installed)
    assert said.splitlines()[-1].startswith("False True") or "True True" not in said
    assert "Traceback" not in said


def test_public_names() -> None:
    code = """
import topoccl
print([getattr(topoccl, name).__name__ for name in ("init", "Communicator", "Pending", "TopocclError", "CollectiveTimeout")])
print("Communicator" in dir(topoccl))
topoccl.nothing
"""
    said = python(code)
    assert "['init', 'Communicator', 'Pending', 'TopocclError', 'CollectiveTimeout']\nTrue" in said
    assert "AttributeError: module 'topoccl' has no attribute 'nothing'; public names: init, empty, Communicator" in said
