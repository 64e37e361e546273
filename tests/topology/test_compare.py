"""What differs between two topologies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from topoccl.collectives.cli.main import main
from topoccl.topology import Topology
from topoccl.topology.compare import align, compare
from topoccl.topology.dump import dump
from topoccl.topology.files import loads
from topoccl.topology.load import load
from topoccl.topology.renaming import rename_hosts

SPECS = ["cluster:4x2", "racks:2x2x2,oversub=4", "torus:2x3", "dgx-1v:2", "ring:5,ranks=2", "rails:2x2"]


def texts(a: str, b: str) -> list[str]:
    first, second = (loads(text) if "hosts" in text else load(text) for text in (a, b))
    return [str(change) for change in compare(first, second)]


@pytest.mark.parametrize("spec", SPECS)
def test_equal_ones_differ_in_nothing(spec: str) -> None:
    topology = load(spec)
    renamed = Topology("other", list(topology.vertices.values())[::-1], topology.links[::-1], topology.slots)
    assert compare(topology, renamed) == []
    assert compare(topology, loads(dump(topology))) == []


@pytest.mark.parametrize("spec", SPECS)
def test_backwards_is_the_opposite(spec: str) -> None:
    a, b = load(spec), load("cluster:3x2")
    there, back = compare(a, b), compare(b, a)
    opposite = {"added": "removed", "removed": "added", "changed": "changed"}
    assert {(c.how, c.what, c.subject, str(c.before), str(c.after)) for c in there} == {
        (opposite[c.how], c.what, c.subject, str(c.after), str(c.before)) for c in back
    }
    assert there


def test_rates_of_links() -> None:
    assert texts("cluster:2x1,net=400Gbit/s", "cluster:2x1,net=400Gbit/s+20Gbit/s,pcie=50GB/s") == [
        "~ link h1.eth0 - sw0 (net): bandwidth 400 Gbit/s -> 20 Gbit/s"
    ]
    assert texts("cluster:2x1,latency=5us", "cluster:2x1,latency=7us,net=1Gbit/s,pcie=12GB/s")[0] == (
        "~ link h0.eth0 - sw0 (net): bandwidth 10 Gbit/s -> 1 Gbit/s, latency 5us -> 7us"
    )


def test_vertices_links_and_ranks() -> None:
    assert texts("cluster:2x1", "cluster:1+1") == []
    assert texts("cluster:1+1", "cluster:2+1") == [
        "+ slot h0.s1",
        "+ link h0 - h0.s1 (shm): bandwidth 10GB/s, latency 1us",
        "~ rank 1: slot h1.s0 -> h0.s1",
        "+ rank 2: slot h1.s0",
    ]


def test_directions_parallel_links_and_attributes() -> None:
    one = "hosts: [a, b]\nlinks: [{between: [a, b], bandwidth: 8Mbit/s, kind: net, attrs: {rail: 1}}]"
    two = "hosts: [a, {name: b, attrs: {rack: 7}}]\nlinks: [{between: [a, b], bandwidth: 8Mbit/s, back: 4Mbit/s, kind: net}]"
    three = f"{one[:-1]}, {{between: [a, b], bandwidth: 16Mbit/s, kind: net}}]"
    assert texts(one, two) == [
        "~ host b: rack none -> 7",
        "~ link a - b (net): bandwidth 8 Mbit/s -> 8 Mbit/s / 4 Mbit/s, rail 1 -> none",
    ]
    four = f"{one[:-1]}, {{between: [a, b], bandwidth: 8Mbit/s, kind: net, attrs: {{rail: 1}}}}]"
    assert texts(one, four) == ["~ link a - b (net): bandwidth 8 Mbit/s -> 8 Mbit/s / 8 Mbit/s, latency 0s -> 0s / 0s"]
    assert texts(one, three) == [
        "~ link a - b (net): bandwidth 8 Mbit/s -> 8 Mbit/s / 16 Mbit/s, latency 0s -> 0s / 0s, rail 1 -> 1 / none / 1 / none"
    ]


def test_what_people_cannot_see_is_told_exactly() -> None:
    text = "hosts: [a, b]\nlinks: [{{between: [a, b], bandwidth: {}, kind: net}}]"
    assert texts(text.format("1000000.0"), text.format("1000000.1")) == ["~ link a - b (net): bandwidth 1000000.0 -> 1000000.1"]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "a.yaml"
    saved.write_text(dump(load("cluster:2x2")))
    assert main(["topo", "cluster:2x2", str(saved)]) == 0
    assert capsys.readouterr().out == ""
    assert main(["topo", str(saved), "cluster:2x2,net=200Mbit/s"]) == 1
    assert capsys.readouterr().out == (
        "~ link h0.eth0 - sw0 (net): bandwidth 10 Gbit/s -> 200 Mbit/s\n~ link h1.eth0 - sw0 (net): bandwidth 10 Gbit/s -> 200 Mbit/s\n"
    )
    assert main(["topo", str(saved), "cluster:2x2,net=200Mbit/s", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["changes"][0] == {
        "how": "changed",
        "what": "link",
        "subject": "h0.eth0 - sw0 (net)",
        "before": {"bandwidth": 1.25e9},
        "after": {"bandwidth": 25e6},
    }
    assert main(["topo", "ring:3", "ring:4", "-f", "svg"]) == 2
    assert main(["topo", "ring:3", "no-such-file"]) == 2
    assert main(["topo", "cluster:2x2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "cluster:2x2"


def test_the_same_machines_under_other_names() -> None:
    a = load("dgx-1v:2")
    b = rename_hosts(a, {"h0": "node7", "h1": "node9"})
    assert compare(a, b)
    back, names = align(a, b)
    assert names == {"node7": "h0", "node9": "h1"}
    assert compare(a, back) == []
    for other in (load("dgx-1v:1"), load("cluster:2x1"), rename_hosts(a, {"h0": "node7"})):
        assert align(a, other) == (other, {})
    switch = loads("hosts: [{name: a, slots: 1}]\nswitches: [{name: h0, hosts: [a]}]\n")
    assert align(load("cluster:1x1"), switch) == (switch, {})  # h0 is something else there


def test_names_are_told_and_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, hosts in (("a", ("h0", "h1")), ("b", ("x", "y"))):
        (tmp_path / name).write_text(dump(rename_hosts(load("cluster:2x2"), dict(zip(("h0", "h1"), hosts, strict=True)))))
    assert main(["topo", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith("taken for the same in their order: x is h0, y is h1\n")


def test_merging_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    declared, measured = tmp_path / "declared.yaml", tmp_path / "measured.yaml"
    declared.write_text(dump(load("cluster:2x1,net=400Gbit/s,pcie=50GB/s")))
    measured.write_text(dump(load("cluster:2x1,net=20Gbit/s,pcie=50GB/s")))
    assert main(["topo", "--merge", str(declared), str(measured), "-o", str(tmp_path / "both.yaml")]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == (
        "topoccl: warning: h0.eth0->sw0: bandwidth: user (declared.yaml) says 50GB/s (400 Gbit/s), "
        "user (measured.yaml) says 2.5GB/s (20 Gbit/s); the first counts"
    )
    merged = load(tmp_path / "both.yaml")
    assert {link.bandwidth for link in merged.links if link.kind == "net"} == {50e9}
    assert main(["topo", "cluster:1x1", "cluster:1x1", "cluster:1x1"]) == 2
    assert "3 topologies: one is shown, two are compared" in capsys.readouterr().err
    assert main(["topo", "--merge", "cluster:2x1", "here"]) == 2
    assert "is none of those that are described: h0, h1" in capsys.readouterr().err
