"""Generated fabrics: counts, capacities, placements, and what wrong expressions are told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from topoccl.topology import Topology, TopologyError, VertexKind
from topoccl.topology.generators import GENERATORS, generate
from topoccl.topology.load import load, require_ranks
from topoccl.topology.wiring import cables


def egress(topology: Topology, vertex: str, kind: str = "") -> float:
    return sum(link.bandwidth for link in topology.links if link.src == vertex and kind in ("", link.kind))


@pytest.mark.parametrize(
    ("spec", "hosts", "ranks", "wires"),
    [
        ("ring:8", 8, 8, 8),
        ("ring:2", 2, 2, 1),
        ("ring:1", 1, 1, 0),
        ("line:8", 8, 8, 7),
        ("torus:4x4", 16, 16, 32),
        ("torus:3x5", 15, 15, 30),
        ("torus:2x3x4", 24, 24, 12 + 24 + 24),
        ("mesh:3x5", 15, 15, 22),
        ("mesh:2x3,ranks=2", 6, 12, 7),
        ("cluster:4x2", 4, 8, 4),
        ("cluster:4x2,nics=2", 4, 8, 8),
        ("cluster:3+2+1", 3, 6, 3),
        ("cluster:1x8", 1, 8, 0),
        ("rails:4x2", 4, 8, 8),
        ("racks:2x2x1", 4, 4, 4 + 2),
        ("fattree:2x4x8,oversub=4", 8, 64, 8 + 2),
        ("racks:1x3x2", 3, 6, 3),
        ("fattree:k=4", 16, 16, 16 + 16 + 16),
        ("fattree:k=4,ranks=2", 16, 32, 48),
        ("dgx-a100:2", 2, 16, 16),
        ("dgx-h100:4", 4, 32, 32),
        ("dgx-1v:1", 1, 8, 0),
        ("dgx-1v:2", 2, 16, 8),
    ],
)
def test_counts(spec: str, hosts: int, ranks: int, wires: int) -> None:
    topology = load(spec)
    assert (len(topology.hosts), topology.num_ranks, len(cables(topology))) == (hosts, ranks, wires)
    assert topology.name == spec
    assert all((link.dst, link.src) in {(other.src, other.dst) for other in topology.links} for link in topology.links)


def test_a_bare_ring_has_equal_links_and_nothing_else() -> None:
    topology = load("ring:8,net=25GB/s,latency=2us")
    assert {link.bandwidth for link in topology.links} == {25e9}
    assert {link.latency for link in topology.links} == {2e-6}
    assert {topology.vertices[link.src].kind for link in topology.links} == {VertexKind.SLOT}
    assert Counter(link.src for link in topology.links) == Counter(dict.fromkeys(topology.slots, 2))


def test_hosts_of_cpus() -> None:
    topology = load("cluster:2x2,net=200Mbit/s,latency=20us,memory=5GB/s,memory_latency=2us")
    figures = {link.kind: (link.bandwidth, link.latency) for link in topology.links}
    assert figures == {"shm": (5e9, 2e-6), "pcie": (12e9, 0.5e-6), "net": (25e6, 20e-6)}
    assert {link.bandwidth for link in load("cluster:2x2,net=200Gbit/s").links if link.kind == "pcie"} == {48e9}


def test_rates_per_host_and_per_rail() -> None:
    slow = load("cluster:3x1,net=200Mbit/s+200Mbit/s+50Mbit/s")
    assert [egress(slow, f"h{host}.eth0", "net") for host in range(3)] == [25e6, 25e6, 6.25e6]
    rails = load("rails:2x1,net=200Mbit/s+100Mbit/s+50Mbit/s")
    assert [egress(rails, f"rail{rail}") for rail in range(3)] == [50e6, 25e6, 12.5e6]


def test_racks() -> None:
    topology = load("racks:2x4x2,net=100Mbit/s,oversub=4")
    assert egress(topology, "core") == 2 * 12.5e6
    assert egress(load("racks:2x4x2,net=100Mbit/s,uplink=7MB/s"), "core") == 14e6
    ranks = load("racks:2x2x2,placement=alternate")
    assert ranks.slots == ("h0.s0", "h2.s0", "h1.s0", "h3.s0", "h0.s1", "h2.s1", "h1.s1", "h3.s1")


def test_placements() -> None:
    assert load("cluster:3+2+1").slots == ("h0.s0", "h0.s1", "h0.s2", "h1.s0", "h1.s1", "h2.s0")
    assert load("cluster:3+2+1,placement=round_robin").slots == ("h0.s0", "h1.s0", "h2.s0", "h0.s1", "h1.s1", "h0.s2")


def test_fat_tree_has_full_bisection() -> None:
    topology = load("fattree:k=4,net=1GB/s")
    for switch in (vertex.id for vertex in topology.vertices.values() if vertex.kind is VertexKind.SWITCH):
        assert egress(topology, switch) == 4e9


@pytest.mark.parametrize(("model", "nvlink", "nic"), [("dgx-a100", 300e9, 25e9), ("dgx-h100", 450e9, 50e9)])
def test_nvswitch_boxes(model: str, nvlink: float, nic: float) -> None:
    topology = load(f"{model}:2")
    for slot in topology.slots:
        assert egress(topology, slot, "nvlink") == nvlink
        assert egress(topology, slot) == nvlink + nic
    assert egress(topology, "ib0") == 16 * nic
    assert egress(load(f"{model}:1"), "h0.s0") == nvlink


def test_the_cube_mesh_gives_every_accelerator_six_links() -> None:
    topology = load("dgx-1v:1")
    assert {egress(topology, slot) for slot in topology.slots} == {6 * 20e9}
    assert Counter(link.bandwidth for link in topology.links) == {20e9: 16, 40e9: 16}
    assert {link.dst for link in topology.links if link.src == "h0.s0"} == {"h0.s1", "h0.s2", "h0.s3", "h0.s4"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rng:8", r"unknown topology generator 'rng:8' \(did you mean 'ring'\?\); known: ring:8, line:8"),
        ("cluster:4x2,foo=1", "'cluster:4x2,foo=1': unknown option 'foo'; known: net, latency, memory"),
        ("cluster:4x2,net", "'net' is not OPTION=VALUE; known options: net, latency"),
        ("cluster:4x2,net=fast", "option net: bad rate 'fast': expected a rate such as 200Mbit/s"),
        ("cluster:4x2,net=-1GB/s", "option net: bad rate '-1GB/s'"),
        ("cluster:4x2,latency=soon", "option latency: bad time 'soon': expected a time such as 5us"),
        ("cluster:4x2,net=1GB/s,net=2GB/s", "option 'net' is given twice"),
        ("cluster:4x2,net=1GB/s+2GB/s", "option net has 2 values for 4 hosts; expected 1 or 4"),
        ("cluster:4x2,memory=1GB/s+2GB/s", "option memory has 2 rates; expected one"),
        ("cluster:4x2,placement=random", "option placement is 'random'; known: packed, round_robin"),
        ("cluster:4x2,nics=0", "option nics is '0'; expected a number from 1"),
        ("cluster:4", r"shape '4'; expected positive numbers such as 4x2 \(hosts x ranks\)"),
        ("cluster:4x0", "shape '4x0'; expected positive numbers"),
        ("cluster:3+x", r"shape '3\+x'; expected ranks per host such as 3\+2\+1"),
        ("cluster:", "shape ''; expected positive numbers"),
        ("torus:4", "shape '4'; expected positive numbers such as 4x4 or 4x4x4"),
        ("cluster:99999x99", "9899901 slots; at most 65536 can be generated"),
        ("cluster:99999999x2", "199999998 slots; at most 65536 can be generated"),
        ("cluster:9999999+1", "10000000 slots; at most 65536 can be generated"),
        ("fattree:k=3", "expected an even k"),
        ("fattree:k=4,oversub=2", "expected an even k"),
        ("fattree:k=200", "slots; at most 65536"),
        ("racks:2x2x2,oversub=2,uplink=1GB/s", "options uplink and oversub say the same thing"),
        ("racks:2x2x2,oversub=-1", "option oversub is '-1'; expected a positive number"),
        ("ring:8,memory=1GB/s", "option memory needs ranks=N"),
        ("dgx-a100:2,fabric=mesh", "option fabric is 'mesh'; known: switch, rails"),
    ],
)
def test_wrong_expressions(spec: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        load(spec)


def test_every_generator_makes_its_example() -> None:
    for name, generator in GENERATORS.items():
        assert generate(f"{name}:{generator.shape}").num_ranks >= 1


def test_load_prefers_expressions_and_says_what_it_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ring:8").write_text("hosts: [{name: a, slots: 3}]")
    assert load("ring:8").num_ranks == 8
    assert load("./ring:8").num_ranks == 3
    assert load(Path("ring:8")).num_ranks == 3
    with pytest.raises(TopologyError, match=r"no topology 'missing\.yaml': no such file, and not a generator; known generators: ring:8"):
        load("missing.yaml")


def test_require_ranks() -> None:
    topology = load("cluster:2x2")
    assert require_ranks(topology, 4) is topology
    assert require_ranks(topology, 3).slots == topology.slots[:3]
    with pytest.raises(TopologyError, match="'cluster:2x2' has 4 slots, fewer than the 5 ranks"):
        require_ranks(topology, 5)
    with pytest.raises(TopologyError, match="0 ranks"):
        require_ranks(topology, 0)


def test_cables_must_go_both_ways() -> None:
    fabric = load("line:2")
    half = Topology("half", fabric.vertices.values(), fabric.links[:1])
    with pytest.raises(TopologyError, match=r"link h0\.s0->h1\.s0 has no link back"):
        cables(half)


def test_cables_of_parallel_and_unequal_links() -> None:
    fabric = load("line:2,net=2GB/s")
    slow = load("line:2,net=1GB/s")
    topology = Topology("two cables", fabric.vertices.values(), [fabric.links[0], slow.links[0], fabric.links[1], slow.links[1]])
    assert [(cable.rate_ab, cable.rate_ba) for cable in cables(topology)] == [(2e9, 2e9), (1e9, 1e9)]
