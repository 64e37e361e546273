"""NCCL's and RCCL's topology XML: figures, order of ranks, and every trap that real files hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from topoccl.topology import Topology, TopologyError, VertexKind
from topoccl.topology.formats import parse
from topoccl.topology.routes import Routes

FIXTURES = Path(__file__).parent / "fixtures"


def read(name: str) -> Topology:
    return parse((FIXTURES / name).read_text("utf-8"), name)


def rate(topology: Topology, a: str, b: str, kind: str | None = None) -> float:
    (found,) = (link.bandwidth for link in topology.links if (link.src, link.dst) == (a, b) and kind in (None, link.kind))
    return found / 1e9


def notes(topology: Topology) -> str:
    return "\n".join(note for host in topology.hosts for note in topology.vertices[host].attrs.get("notes", ()))


def machine(inside: str, cpu: str = 'arch="x86_64" vendor="AuthenticAMD"', version: int = 1) -> Topology:
    return parse(f'<system version="{version}">\n<cpu numaid="0" {cpu}>\n{inside}\n</cpu>\n</system>', "m.xml")


def gpu(busid: str, inside: str = "", attrs: str = 'dev="0" sm="80"', speed: str = "16 GT/s", width: object = 16) -> str:
    link = f'link_speed="{speed}" link_width="{width}"'
    return f'<pci busid="{busid}" class="0x030200" {link}><gpu {attrs}>{inside}</gpu></pci>'


def test_a_dgx1() -> None:
    topology = read("dgx1v-nccl.xml")
    assert topology.slots == tuple(f"h0.gpu{index}" for index in range(8))
    assert topology.vertices["h0.gpu3"].attrs == {"accelerator": "sm70", "busid": "0000:0b:00.0", "rank": 3, "gdr": True}
    assert rate(topology, "h0.gpu0", "h0.gpu4") == rate(topology, "h0.gpu4", "h0.gpu0") == 40
    assert rate(topology, "h0.gpu0", "h0.gpu1") == 20
    assert rate(topology, "h0.gpu0", "h0.0000:04:00.0") == 12
    assert rate(topology, "h0.numa0", "h0") == 6  # Broadwell
    assert topology.vertices["h0.numa1"].attrs["cores"] == 40
    assert topology.vertices["h0.mlx5_2"].attrs["rate"] == 12.5e9
    assert rate(topology, "h0.0000:83:00.0", "h0.mlx5_2") == 12
    assert len(topology.links) == 2 * (16 + 12 + 4 + 2)
    assert not notes(topology)


def test_bandwidths_of_pcie_follow_nccls_prefixes() -> None:
    for speed, width, expected in [
        ("8 GT/s", 16, 12),
        ("16 GT/s", 16, 24),
        ("32 GT/s", 16, 48),
        ("32 GT/s PCIe/s", 16, 48),
        ("16.0 GT/s PCIe", 8, 12),
        ("32.0 GT/s PCIe", 16, 48),
        ("64.0 GT/s PCIe", 16, 96),
        ("2.5 GT/s PCIe", 1, 0.1875),
        ("5.0 GT/s PCIe", 4, 1.5),
        ("16.0 GT/s", 16, 12),  # unknown to NCCL without "PCIe"
        ("Unknown speed", 16, 12),
        ("", 0, 12),
        ("16 GT/s", 0, 24),
        ("16 GT/s", 255, 24),
    ]:
        topology = machine(gpu("0000:01:00.0", speed=speed, width=width))
        assert rate(topology, "h0.numa0", "h0.gpu0") == pytest.approx(expected), speed
        assert ("not known" in notes(topology)) == (speed == "16.0 GT/s")


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79"', 6),
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"', 10),
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"', 22),
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207"', 40),
        ('arch="x86_64" vendor="GenuineIntel" familyid="19" modelid="207"', 6),
        ('arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1"', 16),
        ('arch="x86_64" vendor="CentaurHauls" familyid="7" modelid="91"', 9),
        ('arch="x86_64" vendor="  Shanghai  " familyid="7" modelid="59"', 6),
        ('arch="ppc64"', 32),
        ('arch="arm64"', 6),
        ('arch="x86_64" vendor="Nobody"', 40),
        ("", 40),
    ],
)
def test_bandwidth_between_processors(cpu: str, expected: float) -> None:
    topology = machine(gpu("0000:01:00.0"), cpu)
    assert rate(topology, "h0.numa0", "h0") == expected
    assert ("processors are not known" in notes(topology)) == (expected == 40 and "207" not in cpu)


@pytest.mark.parametrize(("sm", "each"), [(60, 18), (70, 20), (80, 20), (86, 12), (89, 20), (90, 20.6), (100, 40.1), (120, 40.1)])
def test_nvlink_by_compute_capability(sm: int, each: float) -> None:
    link = '<nvlink target="{}" count="4" tclass="0x030200"/>'
    one = gpu("0000:01:00.0", link.format("0000:02:00.0"), f'dev="0" sm="{sm}" rank="0"')
    two = gpu("0000:02:00.0", link.format("0000:01:00.0"), f'dev="1" sm="{sm}" rank="1"')
    topology = machine(one + two)
    assert rate(topology, "h0.gpu0", "h0.gpu1") == rate(topology, "h0.gpu1", "h0.gpu0") == pytest.approx(4 * each)


def test_rccl_has_xgmi_and_other_classes() -> None:
    topology = read("rccl-small.xml")
    assert [topology.vertices[slot].attrs["accelerator"] for slot in topology.slots] == ["gfx90a", "gfx90a", "gfx942"]
    assert rate(topology, "h0.gpu0", "h0.gpu1", "xgmi") == 4 * 36
    assert rate(topology, "h0.gpu2", "h0.gpu1", "xgmi") == 36
    assert "h0.gpu1 declares xgmi to h0.gpu2, which declares none back" in notes(topology)
    for gcn, each in [("906", 24), ("908", 24), ("gfx90a", 36), ("940", 48), ("gfx942", 48), ("gfx950", 24)]:
        again = parse((FIXTURES / "rccl-small.xml").read_text().replace('gcn="910"', f'gcn="{gcn}"'), "x")
        assert rate(again, "h0.gpu0", "h0.gpu1", "xgmi") == 4 * each


def test_traps() -> None:
    topology = read("nccl-traps.xml")
    said = notes(topology)
    assert topology.slots == ("h0.gpu1", "h0.gpu0")  # by rank; gpu2 has none
    assert "h0.gpu2 has no rank" in said
    assert {"h0.numa7", "h0.numa1"} <= topology.vertices.keys()
    # NVSwitches are not in the file, and one vertex; a link to itself or to nowhere is none
    assert rate(topology, "h0.gpu0", "h0.nvswitch") == rate(topology, "h0.gpu1", "h0.nvswitch") == pytest.approx(18 * 20.6)
    assert "nvlink of 0003:00:00.0 to itself, is left out" in said
    assert "nvlink of 0003:00:00.0 to 0009:00:00.0, which is not in the file" in said
    assert rate(topology, "h0.gpu0", "h0.numa7", "c2c") == 450
    # a virtual switch that claims generation 2 above a NIC of generation 5
    assert rate(topology, "h0.numa7", "h0.ffff:ff:01.0") == 48
    assert "switch ffff:ff:01.0 claims '5.0 GT/s PCIe' above faster devices" in said
    assert rate(topology, "h0.numa1", "h0.ffff:ff:02.0") == 12
    assert "255 lanes" in said
    # two ports of one card share its link; a port without dev is not used
    assert rate(topology, "h0.ffff:ff:01.0", "h0.0002:00:00.0") == 48
    assert rate(topology, "h0.0002:00:00.0", "h0.mlx5_0") == 22.5
    assert topology.vertices["h0.mlx5_1"].attrs["rate"] == 1.25e9
    assert "NICs h0.mlx5_0 and h0.mlx5_1 have one guid" in said
    assert rate(topology, "h0.numa7", "h0.eth0") == 5000
    assert "h0.unused" not in topology.vertices
    # one bus id for a GPU and a switch
    assert topology.vertices["h0.0003:00:00.0"].kind is VertexKind.PCIE
    assert "bus id 0003:00:00.0 is given twice (line 39)" in said
    assert rate(topology, "h0.ffff:ff:02.0", "h0.ffff:ff:01.0") == 5000
    assert "dead:00:00.0, which is no switch" in said
    assert "<wonder> in <pci> (line 43) is not known" in said
    assert Routes(topology).path(0, 1)


def test_line_ends_and_marks_change_nothing() -> None:
    text = (FIXTURES / "nccl-traps.xml").read_text("utf-8")
    assert parse("\ufeff" + text.replace("\n", "\r\n"), "nccl-traps.xml") == parse(text, "nccl-traps.xml")


def test_accelerators_and_nics_by_class_where_there_is_no_more() -> None:
    pci = '<pci busid="0001:00:0{}.0" class="{}" link_speed="16 GT/s" link_width="16"/>'
    topology = machine(
        "".join(pci.format(*pair) for pair in enumerate(["0x030200", "0x038000", "0x120000", "0x020000", "0x0207", "0x060400"]))
    )
    assert len(topology.slots) == 3
    assert [vertex.id for vertex in topology.vertices.values() if vertex.kind is VertexKind.NIC] == ["h0.nic0", "h0.nic1"]
    assert "3 accelerators inferred from their PCI class" in notes(topology)
    assert "2 NICs inferred from their PCI class; 10 Gbit/s assumed" in notes(topology)


def test_what_is_missing_is_said() -> None:
    topology = machine('<pci busid="0000:00:16.0"/><pci busid="45:00.0"><pci busid="0000:46:00.0"/></pci>', "")
    assert topology.slots == ()
    assert "2 PCI devices have no class" in notes(topology)
    assert "no accelerators in the file" in notes(topology)


def test_several_ranks_on_one_device_share_its_link() -> None:
    topology = machine(gpu("0000:01:00.0", '</gpu><gpu dev="0" sm="80" rank="0">', 'dev="0" sm="80" rank="1"'))
    assert topology.slots == ("h0.gpu0#2", "h0.gpu0")
    assert rate(topology, "h0.numa0", "h0.0000:01:00.0") == 24


def test_ranks_given_twice_keep_the_order_of_the_file() -> None:
    topology = machine("".join(gpu(f"0000:0{n}:00.0", attrs=f'dev="{n}" sm="80" rank="{rank}"') for n, rank in enumerate([1, 0, 1])))
    assert topology.slots == ("h0.gpu1", "h0.gpu0", "h0.gpu2")
    assert "ranks are given twice" in notes(topology)


def test_hosts_with_nvlink_between_them() -> None:
    def cpu(host: str, rank: int) -> str:
        links = '<nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/><c2c bw="40000" count="10"/>'
        device = gpu("0008:01:00.0", links, f'dev="0" sm="100" rank="{rank}"')
        return f'<cpu host_hash="{host}" numaid="0" arch="arm64">{device}<nic><net name="eth0" dev="0" speed="400000"/></nic></cpu>'

    topology = parse(f'<system version="1">{cpu("0xa", 0)}{cpu("0xb", 1)}</system>', "m.xml")
    assert topology.hosts == ("h0", "h1")
    assert rate(topology, "h1.gpu0", "nvswitch") == pytest.approx(18 * 40.1)
    assert rate(topology, "h1.gpu0", "h1.numa0", "c2c") == 400
    assert rate(topology, "h0.eth0", "network") == 50
    assert "one switch for all NICs assumed" in notes(topology)
    assert [topology.links[link].kind for link in Routes(topology).path(0, 1)] == ["nvlink", "nvlink"]


def test_nvlink_to_the_processor() -> None:
    topology = machine(
        gpu("0000:01:00.0", '<nvlink target="0000:04:00.0" count="3" tclass="0x068001"/>', 'dev="0" sm="70" rank="0"'), 'arch="ppc64"'
    )
    assert rate(topology, "h0.gpu0", "h0.numa0", "nvlink") == 60


def test_many_parts_of_one_name_get_ids_of_their_own() -> None:
    ports = '<net name="eth0" dev="0" speed="1"/>' * 20_000  # quadratic ways of naming them would not end
    topology = machine(f'<nic><net name="eth0#3" dev="0"/>{ports}</nic>')
    names = [vertex.id for vertex in topology.vertices.values() if vertex.kind is VertexKind.NIC]
    assert names[:4] == ["h0.eth0#3", "h0.eth0", "h0.eth0#2", "h0.eth0#4"]
    assert names[-1] == "h0.eth0#20001"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<system/>", "^x:1: <system>: describes no machine; expected a <cpu>"),
        ('<system version="3"><cpu numaid="0"/></system>', r"version is '3'; expected 1 \(NCCL\) or 2 \(RCCL\)"),
        ("<system><cpu/></system>", "^x:1: <cpu>: numaid is missing"),
        ('<system><cpu numaid="x"/></system>', "numaid is 'x'; expected an integer"),
        ('<system><cpu numaid="0"><pci/></cpu></system>', "<pci>: busid is missing"),
        ('<system><cpu numaid="0"><pci busid="x;y"/></cpu></system>', "busid is 'x;y'; expected a PCI address such as"),
        ('<system><cpu numaid="0"><pci busid="0:1:0" link_width="many"/></cpu></system>', "link_width is 'many'; expected an integer"),
        ('<system><cpu numaid="0" affinity="zz"/></system>', "affinity is 'zz'; expected a mask"),
        ('<system><cpu numaid="0"><nic><net dev="0" speed="fast"/></nic></cpu></system>', "speed is 'fast'; expected an integer"),
    ],
)
def test_errors_name_the_place(text: str, problem: str) -> None:
    with pytest.raises(TopologyError, match=problem):
        parse(text, "x")
