"""``topoccl simulate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from topoccl.collectives.cli.main import main


def test_it_compares_the_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "all_reduce", "64M", "--topology", "dgx-h100:4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "all_reduce of 64M among 32 ranks of dgx-h100:4, links alone"
    assert lines[2].startswith("hierarchical[inter=direct]")
    assert "busy 9" in lines[2]
    assert lines[-1].startswith("swing")
    assert lines[-1].endswith("equally near")


def test_json_and_plot_have_a_point_for_each_number_of_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "growth.svg"
    assert (
        main(
            [
                "simulate",
                "all_reduce",
                "1M",
                "-t",
                "cluster:5x2",
                "--plot",
                str(picture),
                "--json",
                "--algorithms",
                "ring[channels=2]; two_shot",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert [point["ranks"] for point in found["points"]] == [2, 4, 8, 10]
    assert all({row["algorithm"] for row in point["algorithms"]} == {"ring[channels=2]", "two_shot"} for point in found["points"])
    seconds = [min(row["seconds"] for row in point["algorithms"]) for point in found["points"]]
    assert seconds == sorted(seconds)
    assert "<svg" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["broadcast", "1M", "-t", "ring:4"], "broadcast has no outlines; known: all_reduce"),
        (["all_reduce", "1M", "-t", "ring:4", "--algorithms", "star"], "no outline of 'star'; known: ring[channels=1]; "),
        (["all_reduce", "1M", "-t", "ring:4", "--ranks", "5"], "has 4 slots, fewer than the 5 ranks"),
        (["all_reduce", "1M", "-t", "ring:4", "--plot", "x.txt"], "expected a name that ends with .png or .svg"),
        (["all_reduce", "1Q", "-t", "ring:4"], "1Q"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *arguments]) == 2
    assert message in capsys.readouterr().err
