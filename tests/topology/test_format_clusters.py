"""What schedulers, fabric managers and rank tables say of hosts and switches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from topoccl.topology import Topology, TopologyError, VertexKind
from topoccl.topology.bounds import lower_bound
from topoccl.topology.formats import parse, recognise
from topoccl.topology.formats.hostlist import expand
from topoccl.topology.routes import Routes

FIXTURES = Path(__file__).parent / "fixtures"
TREE = """\
# comment
SwitchName=top Switches=s[1-2]   # another
SwitchName=s1 Nodes=n[1-3,07] LinkSpeed=100
switchname=s2 \\
  nodes=m5,n[10-11]
"""
BLOCKS = "BlockName=b1 Nodes=n[01-04]\nBlockName=b2 Nodes=n[05-08]\nBlockSizes=4,8\n"
MODEL = """\
# Switch Model
switches:
  S1:
    labels: {topology.kubernetes.io/region: us}
    switches: [S2, S3]
blocks:
- switch: S2
  nodes: ["I[21-22]", "I25"]
  annotations: {accelerator.topology.test/domain: nvl2}
- switch: S3
  nodes: ["I[34-36]"]
  labels: {network.topology.nvidia.com/accelerator: nvl3}
"""
OLD_MODEL = """\
topology: "topology/tree"
switches:
- name: sw3
  switches: [sw1,sw2]
- name: sw1
  capacity_blocks: [cb1]
- name: sw2
  capacity_blocks: [cb2]
capacity_blocks:
- name: cb1
  type: H100
  nvlink: nv1
  nodes: [n1-1,n1-2]
- name: cb2
  type: H100
  nodes: [n2-1]
- name: cb0
  nodes: [n0-1]
"""


def fixture(name: str) -> Topology:
    return parse((FIXTURES / name).read_text("utf-8"), name)


def notes(topology: Topology) -> str:
    return " | ".join(topology.vertices[topology.hosts[0]].attrs["notes"])


def cables(topology: Topology, kind: str = "net") -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for link in topology.links:
        if link.kind == kind:
            ends = (topology.vertices[link.src].host or link.src, topology.vertices[link.dst].host or link.dst)
            found[ends] = found.get(ends, 0.0) + link.bandwidth
    return found


def plannable(topology: Topology) -> None:
    """Every pair of ranks has a route, and a collective a bound."""
    routes = Routes(topology)
    ranks = range(topology.num_ranks)
    assert all(routes.path(a, b) for a in ranks for b in ranks if a != b)
    assert lower_bound(topology, "all_reduce", 1 << 20).seconds > 0


def fail(problem: str) -> TopologyError:
    return TopologyError(problem)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07],m5", ["n1", "n2", "n3", "n07", "m5"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]c[01-02]-ib", ["r1c01-ib", "r1c02-ib", "r2c01-ib", "r2c02-ib"]),
        ("[1101-1102]", ["1101", "1102"]),
        ("switch.2.[1-2]", ["switch.2.1", "switch.2.2"]),
    ],
)
def test_host_lists(text: str, names: list[str]) -> None:
    assert expand(text, fail) == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n[1-3", "not closed"),
        ("n1-3]", "no partner"),
        ("n[[1-2]]", "no partner"),
        ("n[3-1]", "runs backwards"),
        ("n[1-a]", "'1-a' in brackets"),
        ("n[]", "'' in brackets"),
        ("a,,b", "is no name"),
        ("n[0-99999999999]", "more than 65536 names"),
        ("n[0-999]x[0-999]", "more than 65536 names"),
        ("n[1-2]=3", "is no name"),
    ],
)
def test_host_lists_that_are_none(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        expand(text, fail)


def test_slurm_tree() -> None:
    topology = parse(TREE, "topology.conf")
    assert topology.hosts == ("n1", "n2", "n3", "n07", "m5", "n10", "n11")
    assert topology.slots == tuple(f"{host}.s0" for host in topology.hosts)
    found = cables(topology)
    assert found["n07", "s1"] == 1.25e9
    assert found["s1", "top"] == 4 * 1.25e9  # no bottleneck that nobody stated
    assert topology.vertices["s1"].attrs["link_speed"] == "100"
    assert all(link.attrs["source"] == "default" for link in topology.links if link.kind == "net")
    assert "rates are not stated" in notes(topology)
    plannable(topology)


def test_slurm_blocks() -> None:
    topology = parse(BLOCKS, "topology.conf")
    assert len(topology.hosts) == 8
    assert cables(topology)["b1", "core"] == 4 * 1.25e9
    assert "'core' is assumed" in notes(topology)
    plannable(topology)


def neighbours(topology: Topology) -> set[frozenset[str]]:
    hosts = {vertex.id: vertex.host for vertex in topology.vertices.values()}
    return {frozenset((hosts[link.src] or "", hosts[link.dst] or "")) for link in topology.links if link.kind == "net"}


def test_slurm_rings_are_rings_of_their_own() -> None:
    topology = parse("RingName=r0 Nodes=a[1-4]\nRingName=r1 Nodes=b[1-2]\nRingName=r2 Nodes=c\n")
    ends = {("a1", "a2"), ("a2", "a3"), ("a3", "a4"), ("a4", "a1"), ("b1", "b2")}
    assert neighbours(topology) == set(map(frozenset, ends))
    assert topology.hosts == ("a1", "a2", "a3", "a4", "b1", "b2", "c")
    as_yaml = "- topology: t\n  ring:\n    rings:\n    - {ring: r0, nodes: 'a[1-4]'}\n    - {ring: r1, nodes: [b1, b2]}\n"
    assert neighbours(parse(as_yaml, "topology.yaml")) == neighbours(topology)


def test_slurm_torus_with_x_fastest_and_regions() -> None:
    whole = "- topology: t\n  torus3d: {toruses: [{name: p, dims: {x: 3, y: 2, z: 1}, nodes: 'n[1-6]'}]}\n"
    topology = parse(whole, "topology.yaml")
    along_x = {("n1", "n2"), ("n2", "n3"), ("n3", "n1"), ("n4", "n5"), ("n5", "n6"), ("n6", "n4")}
    assert neighbours(topology) == set(map(frozenset, along_x | {("n1", "n4"), ("n2", "n5"), ("n3", "n6")}))
    assert cables(topology)["n1", "n2"] == 1.25e9
    plannable(topology)
    column = "{anchor: {x: 0, y: 0, z: 0}, dims: {x: 1, y: 2, z: 1}, nodes: 'n[1,4]'}"
    corner = "{anchor: {x: 2, y: 1, z: 0}, dims: {x: 1, y: 1, z: 1}, nodes: n6}"
    parted = parse(whole.replace("nodes: 'n[1-6]'", f"regions: [{column}, {corner}]"), "topology.yaml")
    assert neighbours(parted) == set(map(frozenset, {("n1", "n4"), ("n6", "n4")}))  # an empty coordinate joins nothing


def test_slurm_switches_and_hosts_have_separate_names() -> None:
    topology = parse("SwitchName=a Nodes=a,b\n")
    assert topology.hosts == ("a", "b")
    assert "a#switch" in topology.vertices


def test_a_host_below_two_switches_has_two_nics() -> None:
    topology = parse("SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[1-2]\n")
    assert {"n1.eth0", "n1.eth1"} <= set(topology.vertices)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SwitchName=a Switches=b Nodes=n1\n", r":1: switch 'a' lists switch 'b', which is never defined"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a Nodes=n1\n", "switches form a ring"),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", r":2: switch 'a' is defined twice"),
        ("SwitchName=a Nodes=n1,n1\n", r":1: switch 'a' lists host 'n1' twice"),
        ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n2\n", r":2: BlockName in a file that began with SwitchName"),
        ("SwitchName=a Knots=n1\n", r":1: a word is 'Knots=n1'; expected KEY=VALUE with one of SwitchName"),
        ("SwitchName=a Nodes=\n", r":1: Nodes has no value"),
        ("SwitchName=a Nodes=ALL\n", "which is not read; list them"),
        ("SwitchName=a Nodes=n[1-\n", r":1: host list"),
        ("SwitchName=s[1-2] Nodes=n1\n", r"expected one name"),
        ("SwitchName=a\n", "describes no place for a rank"),
        ("SwitchName=a Nodes=n1 \\", r":1: .* the file ends"),
        ("Nodes=n1\nSwitchName=a Nodes=n2\n", r":1: .*names no switch"),
        ("include other.conf\nSwitchName=a Nodes=n2\n", r":1: includes 'other.conf'; other files are not read"),
        ("BlockName=a Nodes=n1\nBlockSizes=x\n", r":2: BlockSizes is 'x'; expected numbers"),
        ("BlockName=a Switches=b\n", r":1: key Switches does not go with BlockName"),
    ],
)
def test_slurm_mistakes(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message) as caught:
        parse(text, "topology.conf")
    assert str(caught.value).startswith("topology.conf")


YAML = """\
---
- topology: blocks
  cluster_default: false
  block: {block_sizes: [2], blocks: [{block: b1, nodes: "n[1-2]"}, {block: b2, nodes: "n[3-4]"}]}
- topology: switches
  cluster_default: true
  tree:
    switches:
    - switch: root
      children: s[1-2]
    - switch: s1
      nodes: node[1-2]
    - switch: s2
      nodes: node[3-4]
- topology: plain
  flat: true
"""


def test_slurm_yaml_takes_the_default_topology() -> None:
    topology = parse(YAML, "topology.yaml")
    assert topology.name == "switches"
    assert topology.hosts == ("node1", "node2", "node3", "node4")
    assert "one of 3 in the file" in notes(topology)
    plannable(topology)
    blocks = parse(YAML.replace("cluster_default: true", "cluster_default: false"), "topology.yaml")
    assert blocks.hosts == ("n1", "n2", "n3", "n4")
    plannable(blocks)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- topology: a\n  flat: true\n", "is flat: it names no hosts"),
        ("- topology: a\n  hypercube: {}\n", "expected one of tree, block, ring, torus3d, flat"),
        ("- topology: a\n  torus3d: {}\n", "key 'toruses' is missing"),
        ("- topology: a\n  torus3d: {toruses: [{name: t, dims: {x: 2, y: 1, z: 1}, nodes: 'n[1-3]'}]}\n", "3 hosts for 2 coordinates"),
        ("- topology: a\n  torus3d: {toruses: [{name: t, dims: {x: 2, y: 1, z: 1}}]}\n", "expected either nodes or regions"),
        ("- topology: a\n  torus3d: {toruses: [{name: t, dims: {x: 9999, y: 9999, z: 1}, nodes: n1}]}\n", "at most 65536 coordinates"),
        (
            "- topology: a\n  torus3d: {toruses: [{name: t, dims: {x: 2, y: 1, z: 1}, regions: "
            "[{anchor: {x: 1, y: 0, z: 0}, dims: {x: 2, y: 1, z: 1}, nodes: n1}]}]}\n",
            "does not fit into the torus",
        ),
        ("- topology: a\n  ring: {rings: [{ring: r, nodes: 'n1,n2,n1'}]}\n", "host 'n1' is listed twice"),
        ("- topology: a\n  tree: {switches: [{nodes: n1}]}\n", r":2: \[0\]\.tree\.switches\[0\]: key 'switch' is missing"),
        ("- topology: a\n  tree: {switches: [{switch: s, nodes: 'n[2-1]'}]}\n", "runs backwards"),
        ("- topology: a\n  tree: !!python/object:os.system {}\n", "tag"),
    ],
)
def test_slurm_yaml_mistakes(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse(text, "topology.yaml")


def test_topograph_models() -> None:
    topology = parse(MODEL, "model.yaml")
    assert topology.hosts == ("I21", "I22", "I25", "I34", "I35", "I36")
    assert cables(topology)["S2", "S1"] == 3 * 1.25e9
    nvlink = cables(topology, "nvlink")
    assert ("I21", "nvl2") in nvlink
    assert ("I34", "nvl3") in nvlink
    plannable(topology)
    routes = Routes(topology)
    assert {topology.links[link].kind for link in routes.path(0, 1)} == {"nvlink"}
    assert "net" in {topology.links[link].kind for link in routes.path(0, 3)}


def test_older_topograph_models_and_nodes_without_a_switch() -> None:
    topology = parse(OLD_MODEL, "model.yaml")
    assert set(topology.hosts) == {"n1-1", "n1-2", "n2-1", "n0-1"}
    assert ("n1-1", "nv1") in cables(topology, "nvlink")
    assert "1 nodes name no switch" in notes(topology)
    assert "'core' is assumed" in notes(topology)
    plannable(topology)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("I25", "I21"), r"node 'I21' is in two blocks|lists host 'I21' twice"),
        (lambda text: text.replace("I[34-36]", "I21"), r"node 'I21' is in two blocks, first in blocks\[0\]"),
        (lambda text: text.replace("[S2, S3]", "[S1]"), "switches form a ring"),
        (lambda text: text.replace('nodes: ["I[34-36]"]', "notes: 3"), r"blocks\[1\]: key 'nodes' is missing"),
        (lambda text: text[: text.index("blocks:")] + "blocks: []\n", "describes no place for a rank"),
        (lambda text: text.replace("switches: [S2, S3]", "switches: S2"), "expected a list of switches"),
    ],
)
def test_topograph_mistakes(change: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message) as caught:
        parse(change(MODEL), "model.yaml")
    assert str(caught.value).startswith("model.yaml")


def test_infiniband_fabric() -> None:
    topology = fixture("ibnetdiscover-two-leaves.out")
    assert topology.hosts == ("node1", "node2", "node3", "ca-e41d2d0300a40001")
    found = cables(topology)
    assert found["node1", "leaf1"] == 2 * 25e9  # two ports with one guid are two cables
    assert {"node1.mlx5_0", "node1.mlx5_0:2", "node3.mlx5_1"} <= set(topology.vertices)
    assert found["node2", "leaf1"] == 12.5e9
    assert found["node3", "leaf2"] == pytest.approx(2 * 12.5e9)
    assert found["leaf1", "spine1"] == 2 * 25e9  # each cable is listed at both ends and counts once
    assert "aggregation nodes are no hosts" in notes(topology)
    plannable(topology)


def test_infiniband_cut_off_behind_the_first_switch_still_knows_its_cables() -> None:
    text = (FIXTURES / "ibnetdiscover-two-leaves.out").read_text("utf-8")
    topology = parse(text[: text.index('[41]\t"H-')], "cut.out")
    assert topology.hosts == ("node1", "node2")
    assert cables(topology)["leaf1", "spine1"] == 2 * 25e9


def test_infiniband_of_chassis_unknown_rates_and_equal_names() -> None:
    text = (
        'Switch\t24 "S-01"\t\t# "ISR9024D Voltaire" enhanced port 0 lid 6 lmc 0\n'
        '[1][ext 7]\t"H-0a"[1](0b) \t\t# "localhost HCA-1" lid 4 4xSDR\n[2]\t"H-0c"[1](0d) \t\t# "localhost HCA-1" lid 5 4x?\n'
        '[3]\t"R-0e"[1]\t\t# "router" lid 5\n[4]\t"S-01"[5]\t\t# "loop" lid 6 4xSDR\n'
    )
    topology = parse(text, "fabric.out")
    assert topology.hosts == ("localhost", "localhost#0c")
    assert cables(topology)["localhost", "sw-01"] == 1e9
    assert cables(topology)["localhost#0c", "sw-01"] == 1.25e9
    assert topology.vertices["router"].kind is VertexKind.SWITCH


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('Ca\t1 "H-b8e92403009ca838"\t\t# "dgx HCA-1"\n', "not one cable"),
        ('Switch\t41 "S-01"\n[1]\t"H-0a"[1](0a\n', r":2: a port is"),
        ('Switch\t41 "S-01"\n\n[1]\t"H-0a"[1](0a)\n', r":3: .*belongs to no node"),
        ('Switch\t41 "S-01\n', r":1: a node is|no known description"),
        ('Switch\t41 "S-01"\n[1]\t"S-02"[1]\t\t# "sw" lid 2 4xHDR\n', "describes no place for a rank"),
        ("#\n# Topology file: generated on Mon Nov  3 10:00:00 2025\n#\n", "not one cable"),
    ],
)
def test_infiniband_mistakes(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse(text, "fabric.out")


def test_rank_tables_place_ranks_as_they_say_and_may_have_comments() -> None:
    topology = fixture("hccl-1.0.json")
    assert topology.host_of_rank == ("10.155.111.141",) * 4 + ("10.155.111.140",) * 4
    assert topology.vertices[topology.slots[0]].attrs["device_ip"] == "192.1.27.8"
    assert cables(topology)["10.155.111.140", "roce"] == 4 * 12.5e9
    assert "links are not stated" in notes(topology)
    plannable(topology)


def test_rank_tables_with_super_pods() -> None:
    topology = fixture("hccl-1.2.json")
    assert cables(topology, "hccs")["172.22.0.188", "pod11"] == 2 * 196e9
    path = Routes(topology).path(0, 3)
    assert {topology.links[link].kind for link in path} == {"hccs"}
    plannable(topology)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": "1.2"', '"version": "2.0"', r"version is '2.0'; expected version 1.0 or 1.2"),
        ('"status": "completed"', '"status": "initializing"', "the table is not ready yet"),
        ('"server_count": "2"', '"server_count": "3"', "server_count is '3'; expected 2"),
        ('"rank_id": "3"', '"rank_id": "2"', r"server_list\[1\].device\[1\].rank_id is '2'; expected a rank that is not given yet"),
        ('"rank_id": "3"', '"rank_id": "7"', "rank_id 3 is missing; expected ranks 0 to 3"),
        ('"rank_id": "3"', '"rank_id": "-1"', "rank_id is '-1'; expected a whole number"),
        ('{"server_id": "172.22.0.212"}', '{"server_id": "10.0.0.1"}', "server '10.0.0.1' is not in server_list"),
        ('"device_id": "1", "device_ip": "192.45', '"device_id": "0", "device_ip": "192.45', "does not have yet"),
        ("}\n    ]\n}", "}\n    ]", "not JSON"),
    ],
)
def test_rank_table_mistakes(old: str, new: str, message: str) -> None:
    text = (FIXTURES / "hccl-1.2.json").read_text("utf-8")
    assert old in text
    with pytest.raises(TopologyError, match=message) as caught:
        parse(text.replace(old, new), "table.json")
    assert str(caught.value).startswith("table.json")


PORTS = """\
CA    11  1 0x1070fd0300a1b2c4 4x HDR - SW     1  7 0x1070fd0300000010 ( 'n1 mlx5_0' - 'leaf1' )
CA    12  2 0x1070fd0300a1b2c5 4x HDR - SW     2  7 0x1070fd0300000020 ( 'n1 mlx5_0' - 'leaf2' )
CA    21  1 0x1070fd0300a1b3d4 2x NDR - SW     2  9 0x1070fd0300000020 ( 'n2 mlx5_0' - 'leaf2' )
CA    31  1 0x1070fd0300a1b3ff 4x HDR - SW     1 41 0x1070fd0300000010 ( 'Mellanox Technologies Aggregation Node' - 'leaf1' )
SW     1  7 0x1070fd0300000010 4x HDR - CA    11  1 0x1070fd0300a1b2c4 ( 'leaf1' - 'n1 mlx5_0' )
SW     1 20 0x1070fd0300000010 4x EDR - SW     2 20 0x1070fd0300000020 ( 'leaf1' - 'leaf2' )
SW     1 21 0x1070fd0300000010 4x SDR                                    'leaf1'
SW     1 22 0x1070fd0300000010 4x QDR                                   leaf1 of old
"""


def test_ibnetdiscover_with_a_line_per_port() -> None:
    topology = parse(PORTS, "ports.out")
    assert topology.hosts == ("n1", "n2")
    assert {v.id for v in topology.vertices.values() if v.host == "n1" and v.kind.value == "nic"} == {"n1.mlx5_0", "n1.mlx5_0:2"}
    rates = cables(topology)
    assert rates["n1", "leaf1"] == 25e9
    assert rates["n2", "leaf2"] == 25e9
    assert rates["leaf1", "leaf2"] == 12.5e9
    assert "1 aggregation nodes are no hosts" in notes(topology)
    plannable(topology)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PORTS.replace("- SW     2  9 0x", "- SW     2  9 "), r"ports.out:3: a port is .CA    21"),
        ("SW     1 21 0x1070fd0300000010 4x SDR   'leaf1'\n", "not one cable"),
    ],
)
def test_ibnetdiscover_ports_mistakes(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse(text, "ports.out")


def test_rank_tables_before_version_1_are_refused_by_name() -> None:
    text = '{"group_count": "1", "group_list": [{"instance_list": [{"devices": [], "server_id": "a"}]}], "status": "completed"}'
    with pytest.raises(TopologyError, match=r"form before 1.0 \(group_list, instance_list\)"):
        parse(text, "old.json")


NETQ = """[{"nodes": [
 {"id": "tier-1", "node_type": "tier", "compounded_nodes": [{"id": "node0", "name": "leaf", "device_type": "switch"}]},
 {"id": "tier--1", "node_type": "tier", "compounded_nodes": [
  {"id": "node2", "name": "dgx-04", "device_type": "discovered_via_lldp"}, {"id": "node7", "name": "dgx-08", "device_type": "host"}]}],
 "links": [
 {"id": "x", "compounded_links": [
  {"id": "a", "interfaces": [{"interface": "swp1", "node": "node0"}, {"interface": "ens4f0np0", "node": "node2"}]},
  {"id": "b", "interfaces": [{"interface": "swp2", "node": "node0"}, {"interface": "ens1f1np3", "node": "node2"}]}]},
 {"id": "y", "interfaces": [{"node": "node0"}, {"node": "node7"}]}]}]"""


def test_netq_graph() -> None:
    topology = parse(NETQ, "topologyGraph.json")
    assert recognise(NETQ).name == "netq"
    assert topology.hosts == ("dgx-04", "dgx-08")
    assert cables(topology)["dgx-04", "leaf"] == 2 * 1.25e9
    plannable(topology)
    with pytest.raises(TopologyError, match=r"links\[1\]\.interfaces\[1\]\.node is 'node9'; expected a node of the graph"):
        parse(NETQ.replace('{"node": "node7"}]', '{"node": "node9"}]'), "graph.json")


def test_netq_compute_nodes_share_an_nvlink_domain() -> None:
    node = '{{"Name": "n{}", "DomainUUID": "{}", "GpuIDList": ["{}a", "{}b"], "LocationInfo": {{"ChassisID": 1, "SlotID": {}}}}}'
    text = "[" + ", ".join(node.format(i, "3fb" if i < 2 else "4cc", i, i, i) for i in range(3)) + "]"
    topology = parse(text, "computeNodes.json")
    assert topology.host_of_rank == ("n0", "n0", "n1", "n1", "n2", "n2")
    assert topology.vertices["nvlink0"].attrs["domain"] == "3fb"
    assert topology.vertices["n2"].attrs["SlotID"] == 2
    routes = Routes(topology)
    assert routes.path(0, 3)
    with pytest.raises(TopologyError, match=r"no route|no way|reach"):
        routes.path(0, 4)  # the network between domains is not in the file
    with pytest.raises(TopologyError, match=r"\[1\]\.Name is 'n0'"):
        parse(text.replace('"n1"', '"n0"'), "computeNodes.json")
