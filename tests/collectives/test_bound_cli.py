"""``topoccl bound`` and ``topoccl check``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from topoccl.algorithms.msccl import write_msccl
from topoccl.algorithms.registry import build_verified, by_name
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.collectives.cli.main import main
from topoccl.topology.load import load


def bound(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["bound", *argv]) == 0
    return capsys.readouterr().out


def test_a_ring(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(bound(capsys, "ring:8,latency=3us", "allgather", "--json"))
    assert (data["collective"], data["inverse_throughput"], data["unit_bandwidth"]) == ("all_gather", "7/2", 1.25e9)
    assert data["cut"] == {"ranks": [0], "links": ["h1.s0->h0.s0", "h7.s0->h0.s0"], "direction": "into"}
    assert data["seconds_per_byte"] == pytest.approx(7 / 2 / 8 / 1.25e9)
    assert data["latency_seconds"] == pytest.approx(12e-6)


def test_another_unit(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(bound(capsys, "dgx-a100:2", "all_gather", "--unit", "1GB/s", "--json"))
    assert (data["inverse_throughput"], data["unit_bandwidth"]) == ("3/65", 1e9)
    out = bound(capsys, "dgx-a100:2", "reduce_scatter", "--unit", "1GB/s")
    assert "exactly: 3/65 of the time that one rank's block takes at 1GB/s\n" in out
    assert "can only be heard over" in out


def test_words(capsys: pytest.CaptureFixture[str]) -> None:
    out = bound(capsys, "cluster:4x1,net=1GB/s+1GB/s+1GB/s+250MB/s", "all_reduce")
    assert out.startswith("all_reduce among 4 ranks of cluster:4x1,net=1GB/s+1GB/s+1GB/s+250MB/s: at most 250MB/s of the call's bytes\n")
    assert "h3.eth0" in out
    assert bound(capsys, "cluster:4x2", "broadcast", "--root", "3").startswith("broadcast with root 3 among 8 ranks")
    assert "(the best of the likely cuts)" in bound(capsys, "cluster:150x2", "all_to_all")
    assert bound(capsys, "ring:8", "all_reduce", "--ranks", "1").startswith("all_reduce among 1 rank of ring:8: one rank: nothing to send")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["ring:8", "allsum"], "unknown collective 'allsum'"),
        (["ring:8", "broadcast", "--root", "8"], "root 8 is not a rank of a group of 8"),
        (["ring:8", "all_reduce", "--root", "1"], "root is 1; it has none"),
        (["ring:8", "all_reduce", "--ranks", "9"], "fewer than the 9 ranks"),
        (["ring:8", "all_reduce", "--unit", "fast"], "bad rate 'fast'"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert main(["bound", *argv]) == 2
    err = capsys.readouterr().err
    assert err.startswith("topoccl: error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.fixture
def ring_xml(tmp_path: Path) -> Path:
    topology = load("ring:4,latency=0")
    schedule = build_verified(by_name("all_gather", "ring"), CollectiveSpec("all_gather", 4), topology, {"channels": 2})
    path = tmp_path / "ring.xml"
    path.write_text(write_msccl(schedule), encoding="utf-8")
    return path


def test_a_right_schedule(capsys: pytest.CaptureFixture[str], ring_xml: Path) -> None:
    assert main(["check", str(ring_xml), "--topology", "ring:4,latency=0", "--size", "1M"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("right: all_gather of 4 ranks by ring")
    assert "at best 100% of the bound" in out
    assert main(["check", str(ring_xml), "--topology", "ring:4,latency=0", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["right"], data["in_place"]) == (True, True)
    assert data["endless_fraction"] == pytest.approx(1)
    # Four accelerators of a DGX-1V: a ring enters each by two single links of the six that it has.
    assert main(["check", str(ring_xml), "--topology", "dgx-1v:1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["endless_fraction"] == pytest.approx(1 / 3)


def test_a_wrong_schedule(capsys: pytest.CaptureFixture[str], ring_xml: Path) -> None:
    text = ring_xml.read_text(encoding="utf-8").replace(' topoccl_version="1"', "")
    first = text.index('dstoff="', text.index('type="r"')) + len('dstoff="')
    wrong = str(int(text[first]) ^ 1)
    ring_xml.write_text(text[:first] + wrong + text[first + 1 :], encoding="utf-8")
    assert main(["check", str(ring_xml)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("wrong: all_gather by ")
    assert main(["check", str(ring_xml), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problem"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "MSCCL XML: no element found: line 1, column 0"),
        (b"<system/>", "MSCCL XML, line 1: <system> at the top; expected <algo>"),
        (b"\xe9", "not UTF-8: byte 0xe9 at offset 0"),
    ],
)
def test_what_is_no_schedule_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "ring.xml"
    if content is not None:
        file.write_bytes(content)
    assert main(["check", str(file)]) == 2
    assert capsys.readouterr().err == f"topoccl: error: {file}: {message}\n"


def test_check_needs_enough_slots(capsys: pytest.CaptureFixture[str], ring_xml: Path) -> None:
    assert main(["check", str(ring_xml), "-t", "ring:3"]) == 2
    assert "fewer than the 4 ranks" in capsys.readouterr().err
