"""Vendors' tools: one that answers, one that fails, hangs, floods, prints garbage; none of them stops discovery."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from machines import tool

from topoccl.topology.discovery.inventory import describe, take_inventory
from topoccl.topology.discovery.tools import TOOLS, Tool, ask_all, run_tool

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV12\t0-3\t0\nGPU1\tNV12\t X \t0-3\t0\n"


@pytest.fixture
def lines() -> list[str]:
    return []


def test_what_a_tool_prints(tmp_path: Path, lines: list[str]) -> None:
    path = tool(tmp_path, "smi", 'printf "%s|%s|%s" "$1" "$LC_ALL" "$TERM"; read x; printf "|%s" "$x"; echo noise >&2')
    assert run_tool([str(path), "a; rm b"], report=lines.append) == "a; rm b|C|dumb|"
    assert lines == []


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo half; exit 9", "smi topo ended with status 9; its answer is not used"),
        ("kill -9 $$", "smi topo ended with status -9"),
        ("sleep 600", "smi topo does not end within 0.3 s"),
        ("while :; do echo x; sleep 0.05; done", "smi topo does not end within 0.3 s"),
        ("sleep 600 & echo begun", "smi topo does not end within 0.3 s"),
        ("yes", "smi topo prints more than 4096 bytes"),
    ],
)
def test_what_goes_wrong_costs_a_line(tmp_path: Path, lines: list[str], script: str, reason: str) -> None:
    path = tool(tmp_path, "smi", script)
    begun = time.monotonic()
    assert run_tool([str(path), "topo"], report=lines.append, seconds=0.3, limit=4096) is None
    assert time.monotonic() - begun < 5
    assert len(lines) == 1
    assert lines[0].startswith(reason)


def test_children_of_a_hanging_tool_are_ended(tmp_path: Path, lines: list[str]) -> None:
    path = tool(tmp_path, "smi", f"sleep 600 & echo $! > {tmp_path}/child; wait")
    assert run_tool([str(path)], report=lines.append, seconds=0.5) is None
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":  # nobody reaps orphans in some containers
                return
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the tool's child still runs")


def test_a_program_that_cannot_be_run(tmp_path: Path, lines: list[str]) -> None:
    broken = tmp_path / "smi"
    broken.write_bytes(b"\x7fELF nothing")
    broken.chmod(0o755)
    assert run_tool([str(broken)], report=lines.append) is None
    assert lines[0].startswith("smi cannot be run: ")


def test_the_first_command_that_answers_counts(tmp_path: Path, lines: list[str]) -> None:
    tool(tmp_path, "old", "exit 1")
    tool(tmp_path, "new", "echo fine")
    tool(tmp_path, "mute", "true")
    wanted = (
        Tool("x", (("absent",), ("old", "--topo"), ("new", "topology"))),
        Tool("y", (("absent",),)),
        Tool("z", (("mute",),)),
    )
    answers = ask_all(wanted, report=lines.append, search=str(tmp_path))
    assert [(answer.tool, answer.command, answer.text) for answer in answers] == [("x", "new topology", "fine\n")]
    assert lines == ["old --topo ended with status 1; its answer is not used"]


def test_tools_are_asked_side_by_side(tmp_path: Path, lines: list[str]) -> None:
    begun = " -a ".join(f"-e {tmp_path}/{name}.on" for name in "abc")
    for name in "abc":  # each waits until all have begun: one after the other, none would end
        tool(tmp_path, name, f"touch {tmp_path}/{name}.on; while ! [ {begun} ]; do sleep 0.02; done; echo {name}")
    answers = ask_all([Tool(name, ((name,),)) for name in "abc"], report=lines.append, search=f"{tmp_path}:/usr/bin:/bin", seconds=20)
    assert [answer.text for answer in answers] == ["a\n", "b\n", "c\n"]


def test_every_vendor_is_asked() -> None:
    commands = {" ".join(command) for one in TOOLS for command in one.commands}
    assert commands >= {
        "nvidia-smi topo -m",
        "rocm-smi --showtopo",
        "amd-smi topology",
        "npu-smi info -t topo",
        "mx-smi topo -m",
        "mthreads-gmi topo -m",
        "lstopo --of xml -",
    }


def test_answers_become_part_of_the_graph(tmp_path: Path, lines: list[str]) -> None:
    """One tool answers, one hangs up, one prints garbage: the first is used, the others are told of."""
    bin_ = tmp_path / "bin"
    (tmp_path / "matrix").write_text(MATRIX)
    tool(bin_, "nvidia-smi", f"cat {tmp_path}/matrix")
    tool(bin_, "mx-smi", "exit 3")
    tool(bin_, "npu-smi", "echo the driver is sorry")
    (tmp_path / "root").mkdir()
    inventory = take_inventory(report=lines.append, root=tmp_path / "root", search=f"{bin_}:/usr/bin:/bin", nvml=Broken())
    merged = describe(inventory, lines.append)
    nvlinks = [link for link in merged.topology.links if link.kind == "nvlink"]
    assert len(nvlinks) == 2
    assert nvlinks[0].attrs["lanes"] == 12
    assert merged.topology.vertices[nvlinks[0].src].host == inventory.facts.hostname
    assert any(line.startswith("mx-smi topo -m ended with status 3") for line in lines)
    assert any(line.startswith("npu-smi info -t topo: no known description") and line.count("\n") == 0 for line in lines)
    assert any(line == "NVML: out of order; GPUs are not looked at" for line in lines)
    assert len(lines) == 3


class Broken:
    def nvmlInit(self) -> None:
        raise RuntimeError("out of order")


@pytest.mark.parametrize(
    ("code", "text", "reason"),
    [
        ("from some_binding import xml; print(xml)", "<topology/>\n", None),
        ("import os; os.abort()", None, "python (some_binding) ended with status -6; its answer is not used"),
        ("import time; time.sleep(600)", None, "python (some_binding) does not end within 2 s; its answer is not used"),
    ],
)
def test_a_binding_stands_in_for_a_missing_program(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, code: str, text: str | None, reason: str | None
) -> None:
    (tmp_path / "some_binding.py").write_text("xml = '<topology/>'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    asked = Tool("hwloc", (("no-such-program",),), "some_binding", code)
    answers = ask_all([asked], report=lines.append, search=str(tmp_path), seconds=2)
    assert [answer.text for answer in answers] == ([text] if text is not None else [])
    assert lines == ([reason] if reason else [])
    assert ask_all([Tool("hwloc", (), "no_such_binding", code)], report=lines.append) == []
