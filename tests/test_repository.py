"""The repository's own shape: one import package through links, a complete wheel, imports in one direction."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDERS = ("topology", "algorithms", "collectives", "bench")


def python(*argv: str, cwd: Path = REPOSITORY, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    return subprocess.run([sys.executable, *argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def copy_sources(target: Path) -> Path:
    """A copy of what a build and the import contracts need, links kept."""
    target.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, target)
    for name in ("src", *FOLDERS):
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(REPOSITORY / name, target / name, symlinks=True, ignore=ignore)
    return target


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_is_linked_into_the_package(folder: str) -> None:
    link = REPOSITORY / "src" / "topoccl" / folder
    assert os.readlink(link) == f"../../{folder}"
    assert link.resolve() == REPOSITORY / folder


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_refuses_to_be_imported_under_another_name(folder: str) -> None:
    result = python("-c", f"import {folder}")
    assert result.returncode == 1
    assert f"import this package as topoccl.{folder}, not as '{folder}'" in result.stderr


def test_import_is_cheap() -> None:
    code = (
        "import sys, topoccl, topoccl.collectives.cli.main as m; print(sorted({'torch', 'mpi4py', 'networkx', 'numpy'} & set(sys.modules)))"
    )
    result = python("-c", code)
    assert result.stdout.strip() == "[]", result.stderr


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the sources (``source``), and the sdist and the wheel that is made from it (``dist``)."""
    base = tmp_path_factory.mktemp("build")
    source = copy_sources(base / "source")
    result = python("-m", "build", "--no-isolation", "--outdir", str(base / "dist"), str(source), cwd=base)
    assert result.returncode == 0, result.stdout + result.stderr
    return base


def test_wheel_holds_every_source_as_a_real_file(base: Path) -> None:
    (wheel,) = base.glob("dist/*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [info.filename for info in archive.infolist() if (info.external_attr >> 28) == 0o12], "links"
        content = {name: archive.read(name) for name in archive.namelist() if name.startswith("topoccl/")}
    package = base / "source" / "src" / "topoccl"
    places = [(package, "*"), *((package / folder, "**/*") for folder in FOLDERS)]
    sources = {
        f"topoccl/{path.relative_to(package)}": path.read_bytes()
        for folder, pattern in places
        for path in folder.glob(pattern)
        if path.is_file() and path.suffix in (".py", ".yaml", ".json", ".typed")
    }
    assert len(sources) > 20
    assert not sorted(set(sources) - set(content)), "not in the wheel (has every folder its __init__.py?)"
    assert not sorted(set(content) - set(sources)), "only in the wheel"
    assert sources == content


def test_sdist_holds_real_files(base: Path) -> None:
    (sdist,) = base.glob("dist/*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert not [member.name for member in archive if member.issym() or member.islnk()]


def test_installed_wheel_runs_without_the_clone(base: Path, tmp_path: Path) -> None:
    (wheel,) = base.glob("dist/*.whl")
    site = tmp_path / "site"
    install = (
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(wheel),
    )
    result = python(*install, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    where = python("-c", "import topoccl.topology as t; print(t.__file__, t.Topology.__module__)", cwd=tmp_path, path=site)
    assert where.stdout.split() == [str(site / "topoccl" / "topology" / "__init__.py"), "topoccl.topology.graph"], where.stderr
    version = subprocess.run(
        [site / "bin" / "topoccl", "--version"], env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    assert re.fullmatch(r"topoccl \d+\.\d+\.\d+\n", version.stdout), version.stderr


def lint_imports(repository: Path, *options: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    return python("-c", code, "--no-cache", "--no-logo", *options, cwd=repository, path=repository / "src")


def test_imports_go_one_way() -> None:
    result = lint_imports(REPOSITORY)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("topology/x", "from topoccl.algorithms import spec", "layers"),
        ("topology/x", "import topoccl.collectives.errors", "layers"),
        ("algorithms/x", "from topoccl.collectives import errors", "layers"),
        ("collectives/x", "def late():\n    import topoccl.bench", "layers"),
        ("collectives/cli/x", "def late():\n    from topoccl.bench import y", "layers"),
        ("topology/x", "import torch.distributed", "no-runtime"),
        ("algorithms/x", "from mpi4py import MPI", "no-runtime"),
        ("topology/x", "from os import environ", "pure"),
        ("algorithms/x", "import time", "pure"),
        ("algorithms/x", "import socket", "pure"),
        ("topology/x", "import subprocess", "pure"),
    ],
)
def test_import_contract_can_fail(tmp_path: Path, module: str, line: str, contract: str) -> None:
    repository = copy_sources(tmp_path / "copy")
    (repository / f"{module}.py").write_text(line + "\n")
    (repository / "bench" / "y.py").touch()
    result = lint_imports(repository, "--contract", contract)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "BROKEN" in result.stdout
    assert f"topoccl.{module.replace('/', '.')} -> " in result.stdout


def test_import_contracts_let_discovery_and_the_command_line_through(tmp_path: Path) -> None:
    repository = copy_sources(tmp_path / "copy")
    if not (repository / "topology" / "discovery").is_dir():
        (repository / "topology" / "discovery.py").write_text("import os, socket, subprocess, time\n")
    else:
        (repository / "topology" / "discovery" / "x.py").write_text("import os, socket, subprocess, time\n")
    for name in ("bench", "lab"):
        (repository / "collectives" / "cli" / f"{name}.py").write_text(
            "def run(args):\n    from topoccl.bench import y\n    import topoccl.bench\n"
        )
    (repository / "bench" / "y.py").write_text("import topoccl.collectives.config, torch\n")
    result = lint_imports(repository)
    assert result.returncode == 0, result.stdout + result.stderr


def test_nothing_speaks_of_one_machine() -> None:
    """No tracked text file holds an absolute path below a home or work folder."""
    if shutil.which("git") is None or not (REPOSITORY / ".git").exists():
        pytest.skip("not a git clone")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split("\0")
    private = re.compile(r"(?<![\w.$}~>*])/(?:root|work|home/\w+|Users/\w+)/\w")
    found = []
    for name in filter(None, tracked):
        path = REPOSITORY / name
        if path.is_symlink() or not path.is_file():
            continue
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [f"{name}:{number}: {text.strip()[:100]}" for number, text in enumerate(lines, 1) if private.search(text)]
    assert not found, "\n".join(found)
