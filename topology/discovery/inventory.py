"""All that can be found out about this host, and the one graph that it makes.

``take_inventory`` looks (sysfs, NVML, vendors' tools), ``describe`` is pure. Ranks that start up use neither: what planning needs is in
:class:`~topoccl.topology.discovery.facts.HostFacts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from topoccl.topology import constants
from topoccl.topology import fabric as fb
from topoccl.topology.discovery import pci
from topoccl.topology.discovery.assemble import assemble, distances, nic_attrs, nic_name
from topoccl.topology.discovery.facts import HostFacts, NicFacts
from topoccl.topology.discovery.gpus import gpu_topology, without_pcie
from topoccl.topology.discovery.host import discover_host, usual_interface
from topoccl.topology.discovery.nvml import GpuFacts, read_gpus
from topoccl.topology.discovery.pci import PciDevice
from topoccl.topology.discovery.pcie import Device, plug
from topoccl.topology.discovery.processors import CacheFacts, CpuModel, read_caches, read_model
from topoccl.topology.discovery.rdma import RdmaPort, read_ports
from topoccl.topology.discovery.tools import TOOLS, Answer, Report, Tool, ask_all
from topoccl.topology.fabric import Fabric
from topoccl.topology.formats import parse
from topoccl.topology.graph import Topology, TopologyError, VertexKind
from topoccl.topology.merge import Merged, Origin, Part, merge
from topoccl.topology.renaming import rename_hosts
from topoccl.topology.units import format_size

_MAKERS = {0x10DE: "nvidia", 0x1002: "amd", 0x19E5: "huawei", 0x9999: "metax", 0x1ED5: "mthreads", 0x8086: "intel", 0x1DA3: "habana"}
"""Vendors of PCI; Habana, Huawei and others have classes of their own for accelerators."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What one process finds on its host. ``answers`` are the texts of vendors' tools."""

    facts: HostFacts
    model: CpuModel
    caches: tuple[CacheFacts, ...]
    pci: tuple[PciDevice, ...]
    rdma: tuple[RdmaPort, ...]
    gpus: tuple[GpuFacts, ...]
    answers: tuple[Answer, ...]


def take_inventory(
    *,
    report: Report,
    interfaces: Callable[[str], bool] = usual_interface,
    root: Path = Path("/"),
    tools: Sequence[Tool] = TOOLS,
    search: str | None = None,
    nvml: Any = None,
) -> Inventory:
    """Looks at everything; milliseconds where no vendor's tool is installed, else as long as the slowest of them.

    Args:
        report: gets a line for each tool that fails, which does no other harm.
        interfaces: which network interfaces to look at, by name.
        root: where /proc, /sys and /dev are looked for (tests give a copy).
        tools: which tools to ask.
        search: where they are looked for, as in PATH, which is the default.
        nvml: stands in for the module ``pynvml``.
    """
    facts = discover_host(interfaces, root)
    return Inventory(
        facts=facts,
        model=read_model(root),
        caches=read_caches(root, facts.affinity),
        pci=tuple(pci.read_tree(root).values()),
        rdma=read_ports(root),
        gpus=read_gpus(report=report, module=nvml),
        answers=tuple(ask_all(tools, report=report, search=search)),
    )


def describe(inventory: Inventory, report: Report, name: str | None = None) -> Merged:
    """One graph of what was found: slots are the accelerators, or, in a host without any, the CPUs that this process may use.

    Vendors' tools and NVML count before /sys, hwloc's XML beside it. An answer that its parser refuses costs a reported line.
    """
    host = inventory.facts.hostname or "this host"
    parts = [Part(Origin.SYSFS, _from_sysfs(inventory, host), "sysfs")]
    if inventory.gpus:
        parts.append(Part(Origin.VENDOR, gpu_topology(inventory.gpus, host), "NVML"))
        if not {gpu.address for gpu in inventory.gpus} & {device.address for device in inventory.pci}:
            parts.append(Part(Origin.DEFAULT, without_pcie(inventory.gpus, host), "NVML"))
    for answer in inventory.answers:
        try:
            topology = _on(host, parse(answer.text, answer.command))
        except TopologyError as error:
            said = " ".join(str(error).partition("; known formats")[0].split())
            report(f"{said}; its answer is not used")
            continue
        parts.append(Part(Origin.SYSFS if answer.tool == "hwloc" else Origin.VENDOR, topology, answer.tool))
    return merge(parts, name or host)


def _on(host: str, topology: Topology) -> Topology:
    """A machine that its tool does not name, under this host's name."""
    if len(topology.hosts) != 1 or topology.hosts[0] == host or host in topology.vertices:
        return topology
    return rename_hosts(topology, {topology.hosts[0]: host})


def _from_sysfs(inventory: Inventory, host: str) -> Topology:
    facts = inventory.facts
    tree = {device.address: device for device in inventory.pci}
    known = {gpu.address for gpu in inventory.gpus}
    accelerators = [device for device in inventory.pci if device.address in known or _is_accelerator(device)]
    about = {"cpu": inventory.model.name, "caches": caches_text(inventory.caches)}
    about = {key: value for key, value in about.items() if value}
    if not accelerators:
        topology = assemble([replace(facts, affinity=(cpu,)) for cpu in facts.affinity], [host] * len(facts.affinity), name=host)
        told = [replace(v, attrs={**v.attrs, **about}) if v.kind is VertexKind.HOST else v for v in topology.vertices.values()]
        return Topology(topology.name, told, topology.links, topology.slots)
    fabric = Fabric(host)
    fabric.host(host, attrs={"cores": len(facts.affinity), **about})
    model = inventory.model
    between = constants.cpu_to_cpu(model.arch, model.vendor, model.family, model.model)
    hubs: dict[int | None, str] = {None: host}
    for node in facts.numa if len(facts.numa) > 1 else ():
        vertex = fabric.add(f"{host}.numa{node.id}", VertexKind.NUMA, host, {"cores": len(node.cpus)} | distances(node))
        origin = {"source": "default"} if between is None else {}
        fabric.link(vertex, host, between or fb.NUMA_BANDWIDTH, fb.NUMA_LATENCY, "numa", attrs=origin)
        hubs[node.id] = vertex
    devices = []
    for index, device in enumerate(accelerators):
        maker = _MAKERS.get(device.vendor, f"{device.vendor:04x}")
        attrs = {"accelerator": f"{maker} {device.device:04x}", "busid": device.address}
        slot = fabric.add(f"{host}.gpu{index}", VertexKind.SLOT, host, attrs)
        way = pci.hops(pci.way_up(tree, device.address))
        # An idle accelerator's link slows down to save power: what it can do counts, as for NCCL.
        way = (replace(way[0], rate=way[0].best or way[0].rate), *way[1:])
        devices.append(Device(slot, way, hubs.get(device.numa, host), constants.pcie(None, 0)))
    for nic in _all_nics(inventory):
        port = fabric.add(f"{host}.{nic_name(nic)}", VertexKind.NIC, host, nic_attrs(nic))
        devices.append(Device(port, nic.pci, hubs.get(nic.numa, host), fb.pcie_for(nic.speed or fb.NET_BANDWIDTH)))
    plug(fabric, host, devices)
    return fabric.build()


def _all_nics(inventory: Inventory) -> list[NicFacts]:
    """Interfaces that can carry traffic, and RDMA ports that are up without such an interface."""
    nics = list(inventory.facts.usable_nics)
    tree = {device.address: device for device in inventory.pci}
    taken = {nic.rdma for nic in nics}
    for port in inventory.rdma:
        if port.active and port.name not in taken:
            way = pci.way_up(tree, port.address)
            numa = way[0].numa if way else None
            nics.append(NicFacts(port.name.replace(":", "-"), port.rate, True, True, numa, (), pci.hops(way), port.name))
    return nics


def _is_accelerator(device: PciDevice) -> bool:
    """3D controllers and processing accelerators; display controllers only of makers of accelerators (boards have simple ones)."""
    if device.kind in (0x0302, 0x1200):
        return True
    return device.kind in (0x0300, 0x0380) and _MAKERS.get(device.vendor) in ("nvidia", "amd", "metax", "mthreads")


def caches_text(caches: Sequence[CacheFacts]) -> str:
    """``L1d 32K x2, L2 1M x2, L3 32M``."""
    counts = Counter((f"L{one.level}{one.kind[:1] if one.kind != 'unified' else ''}", one.size) for one in caches)
    return ", ".join(f"{label} {format_size(size)}{f' x{count}' if count > 1 else ''}" for (label, size), count in counts.items())
