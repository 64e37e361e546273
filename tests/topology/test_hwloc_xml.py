"""hwloc's XML, versions 2 and 3."""

from __future__ import annotations

from pathlib import Path

import pytest

from topoccl.topology import Topology, TopologyError, VertexKind
from topoccl.topology.formats import parse
from topoccl.topology.formats.hwloc_xml import bitmap
from topoccl.topology.formats.safe_xml import parse as parse_xml

FIXTURES = Path(__file__).parent / "fixtures"
V3 = (FIXTURES / "hwloc-v3.xml").read_text("utf-8")


def rate(topology: Topology, a: str, b: str, kind: str) -> float:
    (found,) = (link.bandwidth for link in topology.links if (link.src, link.dst, link.kind) == (a, b, kind))
    return found / 1e9


@pytest.mark.parametrize("name", ["hwloc-v2.xml", "hwloc-v3.xml"])
def test_a_machine_with_accelerators(name: str) -> None:
    topology = parse((FIXTURES / name).read_text("utf-8"), name)
    assert topology.hosts == ("box",)
    assert topology.slots == ("box.gpu0", "box.gpu1")
    assert topology.vertices["box.gpu0"].attrs == {"accelerator": "A100-SXM4-40GB", "busid": "0000:03:00.0"}
    assert topology.vertices["box.mlx5_0"].attrs["netdev"] == "ib0"
    # an upstream port is the switch, root ports and downstream ports are none; the display controller is no accelerator
    assert [vertex.id for vertex in topology.vertices.values() if vertex.kind is VertexKind.PCIE] == ["box.0000:01:00.0"]
    assert rate(topology, "box.gpu0", "box.0000:01:00.0", "pcie") == pytest.approx(31.507692)
    assert rate(topology, "box.numa2", "box.0000:01:00.0", "pcie") == pytest.approx(31.507692)  # claims generation 1
    assert rate(topology, "box.0000:01:00.0", "box.mlx5_0", "pcie") == 12
    assert rate(topology, "box.numa5", "box.gpu1", "pcie") == pytest.approx(31.507692)
    assert rate(topology, "box.numa5", "box", "numa") == 10  # Skylake
    # NVSwitches are one; the matrix names objects by gp_index, processors among them
    assert rate(topology, "box.gpu0", "box.nvswitch", "nvlink") == 75
    assert rate(topology, "box.gpu1", "box.numa5", "nvlink") == 40
    # distances by os_index, in the order of the nodes' numbers
    assert topology.vertices["box.numa2"].attrs["distances"] == [11, 21]
    assert topology.vertices["box.numa5"].attrs["distances"] == [31, 10]
    assert list(topology.vertices["box"].attrs["notes"]) == [
        "switch 0000:01:00.0 claims 4 GB/s above faster devices: their 31.5077 assumed",
        "1 PCIe links do not say their speed: 12 GB/s (generation 3, 16 lanes) assumed",
        "1 network devices without an interface (virtual functions) are left out",
    ]


def test_distances_may_be_named_by_gp_index() -> None:
    by_gp = V3.replace('name="NUMALatency" indexing="os"', 'name="NUMALatency" indexing="gp"').replace(">5 2 <", ">8 3 <")
    assert parse(by_gp, "x").vertices["box.numa5"].attrs["distances"] == [31, 10]
    assert "distances" not in parse(by_gp.replace(">8 3 <", ">8 77 <"), "x").vertices["box.numa5"].attrs


def machine(inside: str, attrs: str = "", version: str = "3.0") -> str:
    return f'<topology version="{version}"><object type="Machine" {attrs}>{inside}</object></topology>'


def core(number: int) -> str:
    mask = f"{1 << number:#010x}"
    return f'<object type="Core" cpuset="{mask}"><object type="PU" os_index="{number}" cpuset="{mask}"/></object>'


def test_a_machine_without_accelerators_has_a_slot_per_usable_core() -> None:
    nodes = '<object type="NUMANode" os_index="0" cpuset="0x00000003"/><object type="NUMANode" os_index="3" cpuset="0x0000000c"/>'
    topology = parse(machine(nodes + "".join(map(core, range(4))), 'allowed_cpuset="0x0000000d"'), "x")
    assert [topology.vertices[slot].attrs["cpu"] for slot in topology.slots] == [0, 2, 3]
    hubs = [link.dst for link in topology.links if link.kind == "shm" and link.src in topology.slots]
    assert hubs == ["h0.numa0", "h0.numa3", "h0.numa3"]
    assert "no I/O devices in the file: neither accelerators nor NICs are known" in topology.vertices["h0"].attrs["notes"]


def test_hardware_threads_where_there_are_no_cores() -> None:
    threads = "".join(f'<object type="PU" os_index="{n}" cpuset="{1 << n:#010x}"/>' for n in range(3))
    assert parse(machine(threads), "x").num_ranks == 3
    assert "no ranks" in parse(machine(""), "x").vertices["h0"].attrs["notes"][-1]


def test_devices_between_nodes_hang_on_the_host_and_memory_alone_is_no_place() -> None:
    nodes = "".join(
        f'<object type="NUMANode" os_index="{n}" cpuset="{mask}"/>' for n, mask in [(0, "0x1"), (1, "0x2"), (4, "0x0"), (5, "0x1")]
    )
    device = '<object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0302 [10de:20b0] [0000:0000] a1 00" pci_link_speed="8.0"/>'
    for nodeset, hub in [("0x3", "h0"), ("0x11", "h0.numa0"), ("0x21", "h0.numa0"), ("0xf...f,0x00000000", "h0"), ("0x2", "h0.numa1")]:
        group = f'<object type="Group" nodeset="{nodeset}"><object type="Bridge" bridge_type="0-1">{device}</object></object>'
        topology = parse(machine(nodes + group), "x")
        assert rate(topology, hub, "h0.gpu0", "pcie") == 8


def test_a_device_below_one_of_no_interest() -> None:
    inner = '<object type="PCIDev" pci_busid="0000:01:00.1" pci_type="0302 [10de:20b0] [0:0] a1 00" pci_link_speed="8.0"/>'
    outer = f'<object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0880 [1:1] [0:0] 00 00">{inner}</object>'
    topology = parse(machine(f'<object type="Bridge" bridge_type="0-1">{outer}</object>'), "x")
    assert rate(topology, "h0", "h0.gpu0", "pcie") == 8


def test_there_are_limits() -> None:
    with pytest.raises(TopologyError, match="513 NUMA nodes and 0 cores; at most 512 and 65536"):
        parse(machine("".join(f'<object type="NUMANode" os_index="{n}"/>' for n in range(513))), "x")


def test_ports_of_a_nic_share_its_link() -> None:
    ports = "".join(f'<object type="OSDev" name="{name}" osdev_type="{kind}"/>' for name, kind in [("e0", 16), ("e1", 16), ("sda", 1)])
    device = f'<object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0200 [1:1] [0:0] 00 00" pci_link_speed="8.0">{ports}</object>'
    topology = parse(machine(f'<object type="Bridge" bridge_type="0-1">{device}</object>{core(0)}'), "x")
    assert rate(topology, "h0", "h0.0000:01:00.0", "pcie") == 8
    assert rate(topology, "h0.0000:01:00.0", "h0.e1", "port") == 8
    assert "h0.sda" not in topology.vertices


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x0000000f", 15),
        ("0x1,0x2", (1 << 32) + 2),
        ("0x1,,0x2", (1 << 64) + 2),
        ("", 0),
        ("0xf...f", -1),
        ("0xf...f,0x1", (-1 << 32) + 1),
    ],
)
def test_bitmaps(text: str, value: int) -> None:
    assert bitmap(parse_xml(f'<object cpuset="{text}"/>', "x"), "cpuset") == value


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('version="3.0"', "", r"^x:3: <topology>: no version, as hwloc 1 wrote it; expected 2 or 3 \(hwloc 2's lstopo converts"),
        ('version="3.0"', 'version="4.0"', "version '4.0'; expected 2 or 3"),
        ('type="Machine"', 'type="Package"', "expected an <object> of type Machine"),
        ('cpuset="0x0000000f"', 'cpuset="all"', ""),
        ('nodeset="0x00000024"', 'nodeset="7-9"', "nodeset is '7-9'; expected a bitmap"),
        ('nbobjs="2"', 'nbobjs="3"', "2 indexes; expected 3"),
        ('nbobjs="5"', 'nbobjs="99999"', "nbobjs is '99999'; expected an integer from 1 to 512"),
        (">10 31 21 11 <", ">10 31 21 <", "3 u64values; expected 4"),
        (">10 31 21 11 <", ">10 31 21 -11 <", "value '-11'; expected a number"),
        ("OSDev:22", "22", "index '22'; expected Type:number"),
        ('pci_link_speed="4.000000"', 'pci_link_speed="fast"', "pci_link_speed is 'fast'; expected a number"),
        ('os_index="2"', 'os_index="two"', "os_index is 'two'; expected an integer"),
    ],
)
def test_errors_name_the_place(old: str, new: str, problem: str) -> None:
    text = V3.replace(old, new, 1)
    assert text != V3
    if not problem:  # of a machine that has accelerators, cpusets do not matter
        assert parse(text, "x").num_ranks == 2
        return
    with pytest.raises(TopologyError, match=problem):
        parse(text, "x")
