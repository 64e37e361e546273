"""Networks of ASTRA-sim, htsim and ns-3, topologies and sketches of TACCL, and what only looks like a topology."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from topoccl.topology import Topology, TopologyError
from topoccl.topology.formats import parse, recognise
from topoccl.topology.routes import Routes

RING = "topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 50.0 ]  # GB/s\nlatency: [ 500.0 ]  # ns\n"
FAT_TREE = """\
Nodes 16
Tiers 3
Podsize 8

Tier 0
Downlink_speed_Gbps 200
Radix_Down 4
Radix_Up 4
Downlink_Latency_ns 1000
Switch_Latency_ns 100

Tier 1
Downlink_speed_Gbps 400
Radix_Down 4
Radix_Up 4
Downlink_Latency_ns 1000
Bundle 2

Tier 2
Downlink_speed_Gbps 100
Radix_Down 2
Downlink_Latency_ns 1000
Bundle 1
"""
NS3 = "6 2 5\n4 5\n0 4 400Gbps 0.0005ms 0\n1 4 400Gbps 0.0005ms 0\n2 5 200Gbps 1us 0\n3 5 200Gbps 1us 0\n4 5 100Gbps 2us 0\n"
PROFILE = {
    "name": "NDv2_32KB",
    "gpus_per_node": 8,
    "nics_per_node": 1,
    "alpha": 3,
    "node_betas_list": [7.18, 14.38],
    "node_invbws_list": [10.18, 17.38],
    "remote_alpha": 26,
    "remote_beta": 32.8,
    "remote_invbw": 59,
}
SKETCH = {
    "nnodes": 2,
    "intranode_sketch": {"strategy": "switch", "switches": [[0, 1, 2, 3]], "switch_hyperedge_strategy": ["uc-min"]},
    "internode_sketch": {"strategy": "relay", "internode_conn": {"1": [0], "3": [2]}, "gpus_to_sender_rev_map": {"1": [0, 1], "3": [2, 3]}},
    "symmetry_offsets": [[2, 4]],
}


def links(topology: Topology, kind: str) -> dict[tuple[str, str], tuple[float, float]]:
    return {(link.src, link.dst): (link.bandwidth, link.latency) for link in topology.links if link.kind == kind}


def reachable(topology: Topology) -> bool:
    routes = Routes(topology)
    return all(routes.path(0, rank) for rank in range(1, topology.num_ranks))


def test_astra_sim_ring() -> None:
    topology = parse(RING, "Ring_8npus.yml")
    assert recognise(RING).name == "astra-sim"
    found = links(topology, "net")
    assert len(found) == 16
    assert set(found.values()) == {(50e9, 500 / 1e9)}
    assert ("h7.s0", "h0.s0") in found
    assert reachable(topology)


@pytest.mark.parametrize(
    ("blocks", "sizes", "degrees", "switches"),
    [
        (["Switch"], [4], {1}, 1),
        (["FullyConnected"], [5], {4}, 0),
        (["Ring"], [2], {1}, 0),
        (["Mesh"], [3], {1, 2}, 0),
        (["Ring", "Ring"], [4, 3], {4}, 0),  # a torus
        (["FullyConnected", "Switch"], [3, 2], {3}, 3),
        (["Ring", "Ring", "Ring"], [2, 2, 2], {3}, 0),
    ],
)
def test_astra_sim_dimensions(blocks: list[str], sizes: list[int], degrees: set[int], switches: int) -> None:
    rates, times = [10.0] * len(sizes), [1.0] * len(sizes)
    topology = parse(json.dumps({"topology": blocks, "npus_count": sizes, "bandwidth": rates, "latency": times}), "net.yml")
    degree = Counter(link.src for link in topology.links if link.src in topology.slots)
    assert set(degree.values()) == degrees
    assert sum(vertex.kind == "switch" for vertex in topology.vertices.values()) == switches
    assert len(topology.hosts) == topology.num_ranks
    assert reachable(topology)


def test_astra_sim_takes_a_fast_first_dimension_for_a_host() -> None:
    text = "topology: [ Switch, Ring ]\nnpus_count: [ 8, 4 ]\nbandwidth: [400, 50 ]\nlatency: [ 936.25, 1000 ]\n"
    topology = parse(text, "hgx.yml")
    assert [len(ranks) for ranks in topology.ranks_by_host] == [8] * 4
    assert "taken for the inside of a host" in topology.vertices["h0"].attrs["notes"][0]
    assert links(topology, "link")["h1.s3", "h1.switch"] == (400e9, 936.25 / 1e9)
    assert ("h0.s2", "h1.s2") in links(topology, "net")
    assert reachable(topology)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Ring", "Moebius", r":1: topology\[0\] is 'Moebius'; expected one of Ring, FullyConnected, Switch, Mesh"),
        ("[ 8 ]", "[ 8, 2 ]", r"npus_count: 2 values for 1 dimensions"),
        ("[ 8 ]", "[ 0 ]", r"npus_count\[0\] is 0; expected a whole number from 1"),
        ("[ 8 ]", "[ 99999999 ]", "expected a whole number from 1 to 65536"),
        ("[ 50.0 ]", "[ tbd ]", r":3: bandwidth\[0\] is 'tbd'; expected a number of GB/s"),
        ("[ 50.0 ]", "[ -1 ]", "expected a number of GB/s, positive"),
        ("[ 500.0 ]", "[ .inf ]", "expected a number of ns"),
        ("latency: [ 500.0 ]", "", "key 'latency' is missing"),
    ],
)
def test_astra_sim_mistakes(old: str, new: str, message: str) -> None:
    assert old in RING
    with pytest.raises(TopologyError, match=message):
        parse(RING.replace(old, new), "net.yml")


def test_too_large_a_mesh_is_refused_before_it_is_built() -> None:
    with pytest.raises(TopologyError, match="links; at most"):
        parse(RING.replace("Ring", "FullyConnected").replace("[ 8 ]", "[ 60000 ]"), "net.yml")


def test_htsim_fat_tree() -> None:
    topology = parse(FAT_TREE, "fat.topo")
    assert topology.num_ranks == 16
    found = links(topology, "net")
    assert len(found) == 2 * (16 + 2 * 2 * 2 + 2 * 2 * 4)
    assert found["n5.s0", "tor0.1"] == (25e9, pytest.approx(1.05e-6))
    assert found["tor1.0", "agg1.1"] == (2 * 50e9, pytest.approx(1.05e-6))
    assert found["agg0.1", "core7"] == (12.5e9, pytest.approx(1e-6))
    assert reachable(topology)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Tiers 3", "Tiers 2", "Tiers is 2 and 3 tiers are described"),
        ("Podsize 8", "Podsize 7", "Podsize is 7; expected a divisor of the 16 nodes"),
        (
            "Radix_Down 4\nRadix_Up 4\nDownlink_Latency_ns 1000\nSwitch",
            "Radix_Down 3\nRadix_Up 4\nDownlink_Latency_ns 1000\nSwitch",
            "shared out",
        ),
        ("Bundle 2", "Bundle 3", "shared out by bundle of tier 1, 3"),
        ("Bundle 1", "Bundle 4", "radix_down is 2; expected 2 pods x bundle 4"),
        ("Nodes 16", "Nodes many", "no known description|Nodes is 'many'"),
        ("Downlink_speed_Gbps 100", "Downlink_speed_Gbps 0", "tier 2: downlink_speed_gbps is 0"),
        ("Switch_Latency_ns 100", "Switch_Color 7", r":10: unknown key 'Switch_Color'"),
        ("Tier 1", "Tier 4", "tier is '4'; expected tier 1"),
        ("Nodes 16", "Nodes 16 17", r":1: a line is 'Nodes 16 17'"),
    ],
)
def test_htsim_mistakes(old: str, new: str, message: str) -> None:
    assert old in FAT_TREE
    with pytest.raises(TopologyError, match=message):
        parse(FAT_TREE.replace(old, new), "fat.topo")


def test_ns3_links() -> None:
    topology = parse(NS3, "physical.txt")
    assert topology.num_ranks == 4
    assert links(topology, "net")["sw4", "sw5"] == (12.5e9, 2e-6)
    assert links(topology, "net")["n0.s0", "sw4"] == (50e9, pytest.approx(0.5e-6))
    assert reachable(topology)
    described = parse(f"{NS3}\n\nsrc0 dst0 rate delay error_rate\n", "physical.txt")
    assert len(described.links) == len(topology.links)
    assert described.vertices["n0"].attrs["notes"] == ["1 lines after the 5 links that the first line counts are passed over, as ns-3 does"]
    with pytest.raises(TopologyError, match="2 switches and 4 links; the first line says 2 and 5"):
        parse(NS3[: NS3.rindex("4 5")], "cut.txt")
    with pytest.raises(TopologyError, match=r":3: a number is '9'; expected a whole number from 0 to 5"):
        parse(NS3.replace("0 4 400", "9 4 400"), "physical.txt")
    with pytest.raises(TopologyError, match=r":4: bad rate '0Gbps'"):
        parse(NS3.replace("1 4 400", "1 4 0"), "physical.txt")


@pytest.mark.parametrize(
    ("size", "scale", "unit"), [("32KB", 1.0, 1e-7), ("1KB", 1.0, 1e-7), ("1MB", 0.1, 1e-6)]
)  # the unit follows from alpha, which all profiles agree on
def test_taccl_profiles(size: str, scale: float, unit: float) -> None:
    given = {**PROFILE, "name": f"NDv2_{size}", "alpha": 3 * scale}
    topology = parse(json.dumps(given), "topo.json")
    nvlink = links(topology, "nvlink")
    chunk = {"1KB": 1 << 10, "32KB": 1 << 15, "1MB": 1 << 20}[size]
    assert nvlink["h0.s0", "h0.s1"] == (pytest.approx(chunk / (7.18 * unit)), pytest.approx(0.3e-6))
    assert nvlink["h0.s0", "h0.s2"][0] == pytest.approx(chunk / (14.38 * unit))
    assert len(nvlink) == 32
    assert topology.vertices["h0.ib0"].attrs["latency"] == pytest.approx(26 * unit)
    assert "units of" in topology.vertices["h0"].attrs["notes"][0]


def test_taccl_profiles_of_the_published_sizes_agree() -> None:
    small = {**PROFILE, "name": "NDv2_1KB", "alpha": 30, "node_betas_list": [2.24, 4.5], "remote_beta": 10.25, "remote_alpha": 260}
    large = {**PROFILE, "name": "NDv2_1MB", "alpha": 0.3, "node_betas_list": [23, 46], "remote_beta": 105, "remote_alpha": 2.6}
    rates = [links(parse(json.dumps(given), "t.json"), "nvlink")["h0.s0", "h0.s1"] for given in (small, PROFILE, large)]
    for rate, latency in rates:
        assert rate == pytest.approx(1048576 / 23e-6, rel=0.01)
        assert latency == pytest.approx(0.3e-6)


def test_taccl_on_a_switch_and_by_matrices() -> None:
    switch = parse(json.dumps({**PROFILE, "name": "X", "alpha": 0.7, "node_betas_list": [8], "gpus_per_node": 4}), "t.json")
    assert links(switch, "nvlink")["h0.s3", "h0.nvswitch"][0] == pytest.approx(1048576 / 8e-6)  # us per MB without a size in the name
    custom = {
        "name": "custom",
        "gpus_per_node": 3,
        "alpha": 1,
        "links": [[0, 1, 0], [1, 0, 1], [1, 0, 0]],
        "betas": [[0, 10, 0], [20, 0, 10], [10, 0, 0]],
        "invbws": [[0, 10, 0], [20, 0, 10], [10, 0, 0]],
    }
    found = links(parse(json.dumps(custom), "t.json"), "nvlink")  # links[dst][src]
    assert set(found) == {("h0.s1", "h0.s0"), ("h0.s0", "h0.s1"), ("h0.s2", "h0.s1"), ("h0.s0", "h0.s2")}
    assert found["h0.s0", "h0.s1"][0] == pytest.approx(found["h0.s1", "h0.s0"][0] / 2)


def test_taccl_sketch_with_switches() -> None:
    topology = parse(json.dumps(SKETCH), "sketch.json")
    assert [len(ranks) for ranks in topology.ranks_by_host] == [4, 4]
    pcie = links(topology, "pcie")
    assert {("h0.s0", "h0.pcie0"), ("h0.s1", "h0.pcie0"), ("h0.s3", "h0.pcie1")} <= set(pcie)
    assert len(links(topology, "net")) == 8
    assert reachable(topology)
    mapped = json.loads(json.dumps(SKETCH))
    mapped["internode_sketch"] = {"strategy": "relay", "internode_conn": "direct-map"}
    assert len(links(parse(json.dumps(mapped), "sketch.json"), "net")) == 16


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**SKETCH, "intranode_sketch": {"strategy": "none"}}, "strategy 'none' does not say how GPUs are linked"),
        ({**SKETCH, "intranode_sketch": {"strategy": "switch", "switches": [[0, 2]]}}, "numbers that are not 0 to 1"),
        ({**SKETCH, "nnodes": 0}, "nnodes is 0"),
        ({**PROFILE, "gpus_per_node": 6}, "2 betas for 6 GPUs"),
        ({**PROFILE, "alpha": "fast"}, "alpha is 'fast'; expected a number of units of time"),
        ({**PROFILE, "node_betas_list": [0, 1]}, r"node_betas_list\[0\] is 0; expected a number of units of time, positive"),
        ({key: value for key, value in PROFILE.items() if key != "remote_beta"}, "key 'remote_beta' is missing"),
        ({**PROFILE, "links": [[1]], "betas": [[1]]}, "is no matrix of 8 x 8"),
    ],
)
def test_taccl_mistakes(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message) as caught:
        parse(json.dumps(given), "taccl.json")
    assert str(caught.value).startswith("taccl.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n    "logical-dims": ["8","2"]\n}\n', "give the physical topology file of ns-3"),
        ('{"scheduling-policy": "LIFO", "all-reduce-implementation": ["ring"]}', "how an ASTRA-sim system runs collectives"),
        ('<algo name="a" nchannels="1" ngpus="8" coll="allreduce">\n</algo>', "a schedule in MSCCL's XML"),
    ],
)
def test_what_is_no_topology_is_refused_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message) as caught:
        parse(text, "file")
    assert str(caught.value).startswith("file: this is ")
