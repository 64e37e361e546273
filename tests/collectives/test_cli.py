from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from types import ModuleType

import pytest

import topoccl
from topoccl.collectives.cli.ending import INTERRUPTED, READER_GONE
from topoccl.collectives.cli.main import COMMANDS, main
from topoccl.collectives.config import ConfigWarning
from topoccl.collectives.errors import CollectiveTimeout
from topoccl.topology import TopologyError


def topoccl_command(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables}
    return subprocess.run([sys.executable, "-m", "topoccl", *argv], env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], int]], None]:
    """Puts a function in the place of what ``topoccl env`` runs."""

    def replace(run: Callable[[], int]) -> None:
        module = ModuleType("topoccl.collectives.cli.env")
        module.add_parser = lambda subparsers: subparsers.add_parser("env")  # type: ignore[attr-defined]
        module.run = lambda args: run()  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "topoccl.collectives.cli.env", module)

    monkeypatch.delenv("TOPOCCL_DEBUG", raising=False)
    return replace


def test_version_and_help_as_a_program() -> None:
    result = topoccl_command("--version")
    assert (result.returncode, result.stdout) == (0, f"topoccl {topoccl.__version__}\n")
    result = topoccl_command("--help")
    assert result.returncode == 0
    for name, text in COMMANDS:
        assert name in result.stdout
        assert text.split()[-1] in result.stdout


@pytest.mark.parametrize("name", [name for name, _ in COMMANDS])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: topoccl {name} ")


@pytest.mark.parametrize(
    ("argv", "message"), [(["tpo"], "invalid choice: 'tpo'"), ([], "required: COMMAND"), (["--loud"], "required: COMMAND")]
)
def test_bad_command_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_only_the_chosen_command_is_imported() -> None:
    code = "import sys; from topoccl.collectives.cli.main import main; main(['env']); print([m for m in sys.modules if '.cli.' in m])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    expected = [f"topoccl.collectives.cli.{name}" for name in ("ending", "main", "env")]
    assert result.stdout.splitlines()[-1] == str(expected), result.stderr


def test_status_is_passed_on(command: Callable[[Callable[[], int]], None]) -> None:
    command(lambda: 7)
    assert main(["env"]) == 7


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (TopologyError("topology 'x': no slots"), 2, "topoccl: error: topology 'x': no slots\n"),
        (CollectiveTimeout("all_reduce: no word\nfrom rank 3"), 2, "topoccl: error: all_reduce: no word from rank 3\n"),
        (ValueError("bad size '3Q'"), 2, "topoccl: error: bad size '3Q'\n"),
        (FileNotFoundError(2, "No such file or directory", "a.yaml"), 2, "topoccl: error: a.yaml: No such file or directory\n"),
        (ValueError(), 2, "topoccl: error: ValueError\n"),
        (KeyboardInterrupt(), INTERRUPTED, ""),
    ],
)
def test_errors_are_one_line(
    error: BaseException,
    status: int,
    message: str,
    command: Callable[[Callable[[], int]], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> int:
        raise error

    command(fail)
    assert main(["env"]) == status
    assert capsys.readouterr().err == message
    if message:
        monkeypatch.setenv("TOPOCCL_DEBUG", "TRACE")
        with pytest.raises(type(error)):
            main(["env"])


def test_bugs_keep_their_traceback(command: Callable[[Callable[[], int]], None]) -> None:
    def fail() -> int:
        raise ZeroDivisionError

    command(fail)
    with pytest.raises(ZeroDivisionError):
        main(["env"])


def test_warnings_are_one_line_and_the_filters_come_back(
    command: Callable[[Callable[[], int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def warn() -> int:
        warnings.warn("unknown variable TOPOCCL_X", ConfigWarning, stacklevel=1)
        return 0

    command(warn)
    before = warnings.showwarning
    assert main(["env"]) == 0
    assert capsys.readouterr().err == "topoccl: warning: unknown variable TOPOCCL_X\n"
    assert warnings.showwarning is before


def test_reader_that_goes_away_ends_the_program_quietly() -> None:
    code = (
        "import sys, types; m = types.ModuleType('m'); m.add_parser = lambda s: s.add_parser('env')\n"
        "def run(args):\n    while True: print('x' * 100)\n"
        "m.run = run; sys.modules['topoccl.collectives.cli.env'] = m\n"
        "from topoccl.collectives.cli.main import main; sys.exit(main(['env']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "x" * 100 + "\n"
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(timeout=60) == READER_GONE


def test_env_shows_values_and_sources() -> None:
    result = topoccl_command("env", TOPOCCL_TIMEOUT="2min", TOPOCCL_SHN="0")
    assert result.returncode == 0
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert rows["TOPOCCL_TIMEOUT"] == ["120s", "variable"]
    assert rows["TOPOCCL_TRANSPORT"] == ["auto", "default"]
    assert result.stderr == "topoccl: warning: unknown variable TOPOCCL_SHN has no effect; did you mean TOPOCCL_SHM?\n"


def test_bad_variable_ends_the_program() -> None:
    result = topoccl_command("env", TOPOCCL_TRANSPORT="ucx")
    assert result.returncode == 2
    assert result.stdout == ""
    assert (
        result.stderr
        == "topoccl: error: TOPOCCL_TRANSPORT='ucx': unknown value; known values: auto, tcp, mpi, gloo, memory (threads of one process)\n"
    )
    assert "Traceback" in topoccl_command("env", TOPOCCL_TRANSPORT="ucx", TOPOCCL_DEBUG="TRACE").stderr


def test_bad_rules_end_the_program(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOCCL_ALGO", "all_reduce:rng")
    assert main(["env"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("topoccl: error: TOPOCCL_ALGO='all_reduce:rng': unknown algorithm 'rng' for all_reduce; known: direct, ")


def test_bad_variable_is_told_on_every_rank(mpirun: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    result = mpirun(2, sys.executable, "-m", "topoccl", "env", env={"TOPOCCL_SHM": "maybe"})
    assert result.returncode != 0
    assert "topoccl: error: TOPOCCL_SHM='maybe': neither 0 nor 1; known values: 1, 0\n" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["probe", "tune", "bench"])
def test_another_rank_speaks_when_rank_0_does_not(command: str) -> None:
    code = "import sys; from topoccl.collectives.cli import ending, main; ending._PATIENCE = 0.1; sys.exit(main.main())"
    env = {**os.environ, "RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    argv = [sys.executable, "-c", code, command, *(["all_reduce"] if command == "bench" else []), "--loud"]
    result = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr.startswith(f"rank 1 of 3: usage: topoccl {command}")
    assert result.stderr.endswith(": error: unrecognized arguments: --loud\n")
