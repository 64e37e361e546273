from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest

from topoccl.collectives.config import Config
from topoccl.collectives.logging import DEFAULT_SUBSYSTEMS, Level, Logger, Subsystem, parse_subsystems


class Unprintable:
    def __str__(self) -> str:
        raise AssertionError("formatted although the line is dropped")


def test_line_format() -> None:
    out = io.StringIO()
    Logger(Level.TRACE, rank=3, host="left", stream=out).info(Subsystem.INIT, "%d ranks on %s", 4, "two hosts")
    Logger(host="left", stream=out).warn(Subsystem.COLL, "100%\nsecond line")
    pid = os.getpid()
    assert out.getvalue() == (
        f"left:{pid}:3 [INFO] INIT 4 ranks on two hosts\nleft:{pid}:- [WARN] COLL 100%\nleft:{pid}:- [WARN] COLL second line\n"
    )


@pytest.mark.parametrize(("level", "printed"), [(Level.WARN, "w"), (Level.INFO, "wi"), (Level.TRACE, "wit")])
def test_levels(level: Level, printed: str) -> None:
    out = io.StringIO()
    log = Logger(level, {Subsystem.TOPO}, stream=out)
    log.warn(Subsystem.TOPO, "w")
    log.info(Subsystem.TOPO, "i")
    log.trace(Subsystem.TOPO, "t")
    assert "".join(line[-1] for line in out.getvalue().splitlines()) == printed


def test_subsystems_choose_all_but_warnings() -> None:
    out = io.StringIO()
    log = Logger(Level.TRACE, {Subsystem.TOPO}, stream=out)
    log.info(Subsystem.NET, "%s", Unprintable())
    log.trace(Subsystem.SHM, "%s", Unprintable())
    assert not log.enabled(Level.INFO, Subsystem.NET)
    assert out.getvalue() == ""
    log.warn(Subsystem.NET, "heard")
    assert out.getvalue().endswith("[WARN] NET heard\n")


def test_warn_once() -> None:
    out = io.StringIO()
    log = Logger(stream=out)
    for name in ("a", "a", "b", "a"):
        log.warn_once(name, Subsystem.SHM, "about %s", name)
    assert [line[-1] for line in out.getvalue().splitlines()] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("", DEFAULT_SUBSYSTEMS),
        ("ALL", frozenset(Subsystem)),
        ("coll, P2P", frozenset({Subsystem.COLL, Subsystem.P2P})),
        ("^NET", frozenset(Subsystem) - {Subsystem.NET}),
        ("^ALL", frozenset()),
    ],
)
def test_parse_subsystems(text: str, chosen: frozenset[Subsystem]) -> None:
    assert parse_subsystems(text) == chosen


def test_file_by_host_and_process(tmp_path: Path) -> None:
    config = Config(debug_file=str(tmp_path / "log.%h.%p.%%h.%x"), debug=Level.INFO)
    with config.logger(rank=1) as log:
        assert list(tmp_path.iterdir()) == [], "the file is made with the first line"
        log.info(Subsystem.INIT, "one")
        log.close()
        log.info(Subsystem.INIT, "two")
        log.trace(Subsystem.INIT, "three")
    (path,) = tmp_path.iterdir()
    assert path.name == f"log.{log.host}.{os.getpid()}.%h.%x"
    assert [line.split()[-1] for line in path.read_text().splitlines()] == ["one", "two"]


def test_default_stream_is_standard_error_at_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    Logger().warn(Subsystem.INIT, "careful")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("careful\n")


def test_lines_of_threads_stay_whole() -> None:
    out = io.StringIO()
    log = Logger(stream=out, host="h")
    threads = [threading.Thread(target=lambda n=n: [log.warn(Subsystem.INIT, "%s", str(n) * 50) for _ in range(50)]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = out.getvalue().splitlines()
    assert len(lines) == 200
    assert {line.split()[-1] for line in lines} == {str(n) * 50 for n in range(4)}


def test_a_file_that_cannot_be_written_fails_no_call(tmp_path: Path) -> None:
    out = io.StringIO()
    log = Logger(pattern=str(tmp_path / "nowhere" / "%p.log"), rank=1, host="left", stream=out)
    log.warn(Subsystem.INIT, "first")
    log.warn(Subsystem.INIT, "second")
    told, first, second = out.getvalue().splitlines()
    assert f"nowhere/{os.getpid()}.log' (No such file or directory); they go on here" in told
    assert (first[-5:], second[-6:]) == ("first", "second")


def test_without_any_stream_lines_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    Logger().warn(Subsystem.INIT, "nobody hears this")
    closed = io.StringIO()
    closed.close()
    Logger(stream=closed).warn(Subsystem.INIT, "nor this")
