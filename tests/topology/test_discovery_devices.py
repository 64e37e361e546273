"""PCIe, RDMA, caches and GPUs of fake machines, and the graph of all that."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from machines import FakeNvml, device, rdma, two_gpus_and_nics, write

from topoccl.topology import VertexKind
from topoccl.topology.discovery import HostFacts, NicFacts, assemble, pci
from topoccl.topology.discovery.facts import PciHop
from topoccl.topology.discovery.inventory import Inventory, caches_text, describe, take_inventory
from topoccl.topology.discovery.nvml import read_gpus
from topoccl.topology.discovery.processors import read_caches, read_model, read_numa
from topoccl.topology.discovery.rdma import read_ports
from topoccl.topology.dump import dump
from topoccl.topology.files import loads
from topoccl.topology.routes import Routes

GEN4, GEN5 = ("16.0 GT/s PCIe", "16"), ("32.0 GT/s PCIe", "16")


def no_report(line: str) -> None:
    raise AssertionError(line)


def way(root: Path, address: str) -> tuple[PciHop, ...]:
    return pci.hops(pci.way_up(pci.read_tree(root), address))


def test_links_by_nccls_figures(tmp_path: Path) -> None:
    device(tmp_path, ["0000:00:01.0"], "0x0604", link=GEN4)
    device(tmp_path, ["0000:00:01.0", "0000:01:00.0"], "0x0200", link=("8.0 GT/s PCIe", "8"), best=GEN5)
    card, port = way(tmp_path, "0000:01:00.0")
    assert (card.address, card.rate) == ("0000:01:00.0", 6e9)
    assert card.best == 24e9, "the port above can do no more than generation 4"
    assert port == PciHop("0000:00:01.0", 24e9, 24e9)


@pytest.mark.parametrize(
    ("speed", "width"), [("", ""), ("Unknown", "16"), ("16.0 GT/s PCIe", "0"), ("16.0 GT/s PCIe", "255"), ("x" * 99, "x")]
)
def test_what_a_link_does_not_say_is_unknown(tmp_path: Path, speed: str, width: str) -> None:
    device(tmp_path, ["0000:00:01.0"], "0x0200", link=(speed, width))
    assert way(tmp_path, "0000:00:01.0") == (PciHop("0000:00:01.0"),)


def test_false_generation_1_is_not_believed(tmp_path: Path) -> None:
    two_gpus_and_nics(tmp_path)
    honest, liar = way(tmp_path, "0000:1c:00.0"), way(tmp_path, "0000:9c:00.0")
    assert [hop.false_gen1 for hop in honest] == [False] * 4
    assert [(hop.address, hop.rate, hop.false_gen1) for hop in liar][2] == ("0000:98:00.0", None, True)
    gpu = way(tmp_path, "0000:1b:00.0")[0]
    assert (gpu.rate, gpu.best, gpu.false_gen1) == (3e9, 48e9, False), "an idle GPU's own link does run at generation 1"


def test_no_devices_and_broken_ones(tmp_path: Path) -> None:
    assert pci.read_tree(tmp_path) == {}
    assert pci.chain(tmp_path) == ()
    write(tmp_path, {"sys/bus/pci/devices/garbage/class": "0x020000\n", "sys/bus/pci/devices/0000:00:02.0/class": "no number\n"})
    assert pci.read_tree(tmp_path) == {"0000:00:02.0": pci.PciDevice("0000:00:02.0", None, 0)}


def test_rdma_ports(tmp_path: Path) -> None:
    card = device(tmp_path, ["0000:3b:00.0"], "0x0207", numa=1)
    rdma(tmp_path, card, "mlx5_0", "200 Gb/sec (4X HDR)", "ib0")
    rdma(tmp_path, card, "mlx5_1", "2.5 Gb/sec (1X SDR)", state="1: DOWN", layer="Ethernet")
    write(card, {"net/eth7/dev_port": "0\n", "net/eth8/dev_port": "1\n"})
    rdma(tmp_path, card, "mlx5_2", "nothing")
    first, down, silent = read_ports(tmp_path)
    assert (first.name, first.rate, first.active, first.layer, first.interface) == ("mlx5_0:1", 25e9, True, "InfiniBand", "ib0")
    assert (first.address, first.guid) == ("0000:3b:00.0", "b8ce:f603:00aa:0001")
    assert (down.rate, down.active, down.layer) == (312.5e6, False, "Ethernet")
    assert (silent.rate, silent.interface) == (None, "eth7")


def test_caches_numa_and_model(tmp_path: Path) -> None:
    files = {}
    for cpu in range(4):
        at = f"sys/devices/system/cpu/cpu{cpu}/cache"
        for index, (level, kind, size, shared) in enumerate(
            [(1, "Data", "32K", str(cpu)), (2, "Unified", "1M", f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"), (3, "Unified", "16M", "0-3")]
        ):
            base = f"{at}/index{index}"
            files |= {f"{base}/level": f"{level}", f"{base}/type": kind, f"{base}/size": size, f"{base}/shared_cpu_list": shared}
    files["sys/devices/system/cpu/cpu0/cache/index9/level"] = "4"  # says nothing else
    write(tmp_path, files)
    caches = read_caches(tmp_path, (0, 1, 2))
    assert [(cache.level, cache.kind, cache.size, cache.cpus) for cache in caches] == [
        *((1, "data", 32768, (cpu,)) for cpu in range(3)),
        (2, "unified", 1 << 20, (0, 1)),
        (2, "unified", 1 << 20, (2, 3)),
        (3, "unified", 16 << 20, (0, 1, 2, 3)),
    ]
    assert caches_text(caches) == "L1d 32K x3, L2 1M x2, L3 16M"
    two_gpus_and_nics(tmp_path)
    assert [node.distances for node in read_numa(tmp_path)] == [(10, 32), (32, 10)]
    write(tmp_path, {"sys/devices/system/node/node0/distance": "10\n"})
    assert [node.distances for node in read_numa(tmp_path)] == [(), (32, 10)]
    model = read_model(tmp_path)
    assert (model.vendor, model.family, model.model, model.name) == ("AuthenticAMD", 25, 17, "AMD EPYC 9354")
    assert read_model(tmp_path / "nowhere").name == ""


# NVML


def test_gpus_by_nvml() -> None:
    fake = FakeNvml({"0000:1b:00.0": ["switch", "switch", None], "0000:9b:00.0": ["0000:1b:00.0", None, "switch"]})
    first, second = read_gpus(report=no_report, module=fake)
    assert (first.index, first.name, first.uuid, first.sm) == (0, "NVIDIA H100 80GB HBM3", "GPU-0", 90)
    assert (first.address, first.peers, first.nvlink_version) == ("0000:1b:00.0", ("switch", "switch"), 4)
    assert (first.generation, first.width) == (5, None)
    assert second.peers == ("0000:1b:00.0", "switch")
    assert fake.open == 0


def test_nvml_that_fails_or_hangs_costs_a_line() -> None:
    class Lost(FakeNvml):
        def nvmlDeviceGetPciInfo(self, handle: int) -> object:
            raise RuntimeError("GPU is lost")

    class Hangs(FakeNvml):
        def nvmlDeviceGetCount(self) -> int:
            stuck.wait(20)
            return 1

    lines: list[str] = []
    stuck = threading.Event()
    assert read_gpus(report=lines.append, module=Lost({"0000:1b:00.0": []})) == ()
    assert read_gpus(report=lines.append, module=Hangs({}), seconds=0.1) == ()
    stuck.set()
    assert lines == ["NVML: GPU is lost; GPUs are not looked at", "NVML does not answer within 0.1 s; GPUs are not looked at"]


# The graph


def inventory_of(root: Path, nvml: FakeNvml | None = None) -> Inventory:
    return take_inventory(report=no_report, root=root, tools=(), interfaces=lambda name: False, nvml=nvml or FakeNvml({}))


def test_the_graph_of_a_machine(tmp_path: Path) -> None:
    two_gpus_and_nics(tmp_path)
    nvml = FakeNvml({"0000:1b:00.0": ["0000:9b:00.0"] * 18, "0000:9b:00.0": ["0000:1b:00.0"] * 18})
    merged = describe(inventory_of(tmp_path, nvml), no_report, "box")
    assert merged.contradictions == ()
    topology = merged.topology
    (host,) = topology.hosts
    assert topology.slots == (f"{host}.gpu0", f"{host}.gpu1")
    gpu = topology.vertices[topology.slots[0]].attrs
    assert (gpu["accelerator"], gpu["busid"], gpu["uuid"]) == ("NVIDIA H100 80GB HBM3", "0000:1b:00.0", "GPU-0")
    assert gpu["source"] == "vendor"
    links = {(link.src.removeprefix(f"{host}."), link.dst.removeprefix(f"{host}.")): link for link in topology.links}
    nvlink = links["gpu0", "gpu1"]
    assert (nvlink.kind, nvlink.bandwidth, nvlink.attrs["lanes"], nvlink.attrs["source"]) == ("nvlink", 18 * 20.6e9, 18, "vendor")
    assert links["gpu0", "pci-0000:18:00.0"].bandwidth == 48e9, "idle, it runs at generation 1; it can do 5"
    assert links["mlx5_0-1", "pci-0000:18:00.0"].attrs["source"] == "sysfs"
    assert links["pci-0000:18:00.0", "numa0"].bandwidth == 48e9
    assert links["pci-0000:98:00.0", "numa1"].bandwidth == 48e9, "the switch that claims generation 1 does not limit"
    assert (links["numa0", host].bandwidth, links["numa0", host].kind) == (16e9, "numa")
    nic = topology.vertices[f"{host}.mlx5_1-1"]
    assert (nic.kind, nic.attrs["rate"], nic.attrs["rdma"]) == (VertexKind.NIC, 50e9, "mlx5_1:1")
    assert topology.vertices[f"{host}.numa1"].attrs["distances"] == [32, 10]
    assert Routes(topology).bottleneck(Routes(topology).path(0, 1)) == 18 * 20.6e9
    text = dump(topology)
    assert loads(text) == topology
    assert dump(loads(text)) == text


def test_nvswitches_count_as_one(tmp_path: Path) -> None:
    two_gpus_and_nics(tmp_path)
    nvml = FakeNvml({"0000:1b:00.0": ["switch"] * 12, "0000:9b:00.0": ["switch"] * 12}, "A100", (8, 0))
    topology = describe(inventory_of(tmp_path, nvml), no_report).topology
    rates = {link.bandwidth for link in topology.links if link.kind == "nvlink" and link.dst.endswith(".nvswitch")}
    assert rates == {12 * 20e9}


def test_gpus_that_sysfs_does_not_show(tmp_path: Path) -> None:
    nvml = FakeNvml({"0000:1b:00.0": ["", "0000:77:00.0"]})
    topology = describe(inventory_of(tmp_path, nvml), no_report).topology
    (host,) = topology.hosts
    assert topology.slots == (f"{host}.gpu0",)
    pcie = next(link for link in topology.links if link.src == f"{host}.gpu0")
    assert (pcie.dst, pcie.bandwidth, pcie.attrs["source"]) == (host, 48e9, "default")
    assert topology.vertices[host].attrs["notes"] == ["NVLinks that lead to no GPU of this host and are left out: 2"]


def test_simple_displays_are_no_accelerators(tmp_path: Path) -> None:
    device(tmp_path, ["0000:00:02.0"], "0x0300", vendor="0x1a03")
    facts = inventory_of(tmp_path).facts
    topology = describe(inventory_of(tmp_path), no_report).topology
    assert topology.num_ranks == len(facts.affinity)


# NICs of ranks


def nic(name: str, address: str, hops: tuple[PciHop, ...], numa: int | None = None) -> NicFacts:
    return NicFacts(name, 25e9, True, True, numa, (address,), hops, "mlx5_0:1" if name == "eth0" else "")


def test_nics_share_what_is_above_them() -> None:
    bridge, root = PciHop("0000:01:00.0", 24e9, 24e9), PciHop("0000:00:01.0")
    facts = HostFacts(
        *("a", "boot", 1, (0,), None, ((0,),), ()),
        nics=(
            nic("eth0", "10.0.0.1/24", (PciHop("0000:03:00.0", 24e9), PciHop("0000:02:00.0"), bridge, root)),
            nic("eth1", "10.0.1.1/24", (PciHop("0000:03:00.1", 24e9), PciHop("0000:02:00.0"), bridge, root)),
            nic("eth2", "10.0.2.1/24", (PciHop("0000:04:00.0", 12e9), PciHop("0000:02:01.0", 24e9), bridge, root)),
            nic("eth3", "10.0.3.1/24", ()),
        ),
        shm_size=None,
        shm_free=None,
    )
    topology = assemble([facts], ["a"])
    pcie = {(link.src, link.dst): (link.bandwidth, link.attrs["source"]) for link in topology.links if link.kind == "pcie"}
    assert pcie["a.eth0", "a.pci-0000:03:00"] == pcie["a.eth1", "a.pci-0000:03:00"] == (48e9, "default")
    assert pcie["a.pci-0000:03:00", "a.pci-0000:01:00.0"] == (24e9, "sysfs"), "two ports of one card share its link"
    assert pcie["a.eth2", "a.pci-0000:01:00.0"] == (12e9, "sysfs"), "the narrowest link on the way"
    assert pcie["a.pci-0000:01:00.0", "a"] == (24e9, "sysfs")
    assert pcie["a.eth3", "a"] == (48e9, "default")
    assert topology.vertices["a.eth0"].attrs["rdma"] == "mlx5_0:1"
    assert topology.vertices["a.eth0"].attrs["busid"] == "0000:03:00.0"
    assert loads(dump(topology)) == topology
