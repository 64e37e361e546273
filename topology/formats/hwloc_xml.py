"""hwloc's XML of versions 2 and 3 (``lstopo file.xml``).

NUMA nodes hang on the host's hub. Slots are the accelerators, in the order of the file; in a machine without any, the cores
that may be used. Of the PCIe tree only the way to accelerators and NICs is kept, and of bridges only upstream ports: an upstream
port and the downstream ports below it are one switch, a root port belongs to the processor (NCCL counts the same way). Bandwidths
between devices (NVLink, xGMI, Xe Link) come from the distance matrices, in the file's figures, and so do those of PCIe.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from topoccl.topology import constants
from topoccl.topology import fabric as fb
from topoccl.topology.formats import safe_xml
from topoccl.topology.formats.base import CERTAIN, LIKELY, NO, Format
from topoccl.topology.formats.draft import Draft
from topoccl.topology.formats.hwloc_distances import BANDWIDTH, LATENCY, Matrix, matrices
from topoccl.topology.formats.safe_xml import Element
from topoccl.topology.generators import MAX_SLOTS
from topoccl.topology.graph import Topology, VertexKind

_COPROCESSOR, _NETWORK, _OPENFABRICS = 8, 16, 32
_OSDEV_V2 = {1: 4, 2: _NETWORK, 3: _NETWORK | _OPENFABRICS, 4: 64, 5: _COPROCESSOR}
"""Version 2 numbers the types of OS devices; version 3 has bits."""
_COMPUTE = ("CUDA", "NVML", "RSMI", "LevelZero")
_ACCELERATORS = ("0302", "0380", "1200")
_DIRECT = {"NVLinkBandwidth": "nvlink", "XGMIBandwidth": "xgmi", "XeLinkBandwidth": "xelink"}
_VENDORS = {"Intel": "GenuineIntel", "AMD": "AuthenticAMD"}
_EVERY = -1
_MAX_NODES = 512


def recognise(text: str) -> int:
    if safe_xml.root_name(text) != "topology":
        return NO
    return CERTAIN if "hwloc" in text[:4096] or "<object" in text[:65536] else LIKELY


def parse(text: str, source: str) -> Topology:
    """One machine.

    Raises:
        TopologyError: not well-formed XML, or not hwloc's of version 2 or 3; the message names the line, the element, the value and
            what was expected.
    """
    root = safe_xml.parse(text, source)
    if root.tag != "topology":
        raise root.error("expected <topology>, the root of hwloc's XML")
    if not re.match(r"[23]\.", root.get("version")):
        said = f"version {root.get('version')!r}" if root.get("version") else "no version, as hwloc 1 wrote it"
        raise root.error(f"{said}; expected 2 or 3 (hwloc 2's lstopo converts: lstopo -i old.xml new.xml)")
    machine = next(root.all("object"), None)
    if machine is None or machine.get("type") != "Machine":
        raise root.error("expected an <object> of type Machine")
    return _Reader(root, machine).topology()


@dataclass
class _Numa:
    vertex: str
    number: int
    cpus: int


class _Reader:
    def __init__(self, root: Element, machine: Element) -> None:
        self.root, self.machine = root, machine
        self.v2 = root.get("version").startswith("2.")
        self.draft = Draft(root.source)
        self.infos = {info.get("name"): info.get("value") for at in (root, machine) for info in at.all("info")}
        name = self.infos.get("HostName", "")
        self.host = self.draft.free(name if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,62}", name, re.ASCII) else "h0")
        self.draft.host(self.host, attrs={"model": self.infos["DMIProductName"]} if self.infos.get("DMIProductName") else {})
        self.numa: list[_Numa] = []
        self.by_gp: dict[tuple[str, int], str] = {}
        self.slots: list[str] = []
        self.unsaid = self.virtual = 0
        self.wanted: dict[int, float] = {}
        """By ``id()`` the PCI devices and bridges that lead to an accelerator or a NIC, and the highest rate below them, GB/s."""

    def topology(self) -> Topology:
        objects = list(_objects(self.machine))
        self.processors([element for element in objects if element.get("type") in ("Package", "NUMANode", "Core", "PU")])
        self.want(self.machine)
        self.io(self.machine, _EVERY)
        tables = list(matrices(self.root))
        for table in tables:
            self.direct(table)
        self.distances(tables)
        if not self.slots:
            self.cores([element for element in objects if element.get("type") in ("Core", "PU")])
        self.state(any(element.get("type") in ("Bridge", "PCIDev") for element in objects))
        return self.draft.finish(self.slots)

    # Processors and memory

    def processors(self, objects: list[Element]) -> None:
        rate, origin = self.between_nodes([element for element in objects if element.get("type") == "Package"])
        nodes = [element for element in objects if element.get("type") == "NUMANode"]
        cores = [bitmap(element, "cpuset") for element in objects if element.get("type") == "Core"]
        if len(nodes) > _MAX_NODES or len(cores) > MAX_SLOTS:
            counts = f"{len(nodes)} NUMA nodes and {len(cores)} cores"
            raise self.machine.error(f"{counts}; at most {_MAX_NODES} and {MAX_SLOTS} are read")
        for element in sorted(nodes, key=lambda node: node.integer("os_index", 0, 1 << 30)):
            number, cpus = element.integer("os_index", 0, 1 << 30), bitmap(element, "cpuset")
            attrs = {"cores": sum(bool(core & cpus) for core in cores) or None, "subtype": element.get("subtype") or None}
            vertex = self.draft.put(self.host, f"numa{number}", VertexKind.NUMA, attrs)
            self.draft.link(vertex, self.host, rate, fb.NUMA_LATENCY, "numa", attrs=origin)
            self.numa.append(_Numa(vertex, number, cpus))
            self.name(element, vertex)
        for element in objects:
            if element.get("type") == "Package":
                self.name(element, self.hub(bitmap(element, "nodeset")))

    def between_nodes(self, packages: list[Element]) -> tuple[float, dict[str, Any]]:
        infos = {info.get("name"): info.get("value") for info in packages[0].all("info")} if packages else {}
        model_name = infos.get("CPUModel", "")
        named = next((vendor for name, vendor in _VENDORS.items() if name in model_name), "")
        vendor = infos.get("CPUVendor", named)
        arch = self.infos.get("Architecture") or infos.get("Architecture") or ("x86_64" if vendor else "")
        family, model = (_number(infos.get(f"CPU{key}Number", "")) for key in ("Family", "Model"))
        rate = constants.cpu_to_cpu(arch, vendor, family, model)
        if rate is not None:
            return rate, {}
        said = model_name or vendor or arch or "not said"
        self.draft.note(self.host, f"processors are not known ({said}): {fb.NUMA_BANDWIDTH / 1e9:g} GB/s between NUMA nodes assumed")
        return fb.NUMA_BANDWIDTH, {"source": "default"}

    def hub(self, nodes: int) -> str:
        """The NUMA node that stands for ``nodes`` (a bitmap): the only one with processors, else the host."""
        near = [node for node in self.numa if nodes >> node.number & 1 and node.cpus]
        return near[0].vertex if near and all(node.cpus == near[0].cpus for node in near) else self.host

    def name(self, element: Element, vertex: str) -> None:
        if element.get("gp_index"):
            self.by_gp.setdefault((element.get("type"), element.integer("gp_index", 0, 1 << 62)), vertex)

    def cores(self, objects: list[Element]) -> None:
        """A slot for every core of which a hardware thread may be used (for every thread where the file has no cores)."""
        allowed = bitmap(self.machine, "allowed_cpuset") if self.machine.get("allowed_cpuset") else _EVERY
        kind = "Core" if any(element.get("type") == "Core" for element in objects) else "PU"
        for element in objects:
            cpus = bitmap(element, "cpuset") & allowed
            if element.get("type") == kind and cpus > 0:
                hub = next((node.vertex for node in self.numa if cpus & node.cpus == cpus), self.host)
                cpu = (cpus & -cpus).bit_length() - 1
                slot = self.draft.put(self.host, f"s{len(self.slots)}", VertexKind.SLOT, {"cpu": cpu})
                self.draft.link(slot, hub, fb.MEMORY_BANDWIDTH, fb.MEMORY_LATENCY, "shm")
                self.slots.append(slot)

    # Devices

    def want(self, element: Element) -> float | None:
        """Marks devices of interest and every bridge above them; NVSwitches only count by their links. Returns the highest rate."""
        below = [rate for child in element.all("object") if (rate := self.want(child)) is not None]
        if element.get("type") == "PCIDev":
            below = [0.0] if self.is_accelerator(element) or self.ports(element) else []
        if not below:
            return None
        self.wanted[id(element)] = max(below)
        return max(*below, element.number("pci_link_speed", 0.0))

    def osdevs(self, element: Element) -> Iterator[tuple[Element, int]]:
        for child in element.all("object"):
            if child.get("type") == "OSDev":
                kind = child.integer("osdev_type", 0, 1 << 30, 0)
                yield child, _OSDEV_V2.get(kind, 0) if self.v2 else kind

    def is_accelerator(self, element: Element) -> bool:
        infos = [(child.get("subtype") or _info(child, "Backend"), bits) for child, bits in self.osdevs(element)]
        return pci_class(element) in _ACCELERATORS or any(kind in _COMPUTE or bits & _COPROCESSOR for kind, bits in infos)

    def ports(self, element: Element) -> list[Element]:
        """Of a NIC: its RDMA devices, or if it has none its interfaces."""
        devices = list(self.osdevs(element))
        return [child for child, bits in devices if bits & _OPENFABRICS] or [child for child, bits in devices if bits & _NETWORK]

    def io(self, element: Element, nodes: int) -> None:
        """Walks down to host bridges and to devices that hang on none."""
        nodes = bitmap(element, "nodeset") if element.get("nodeset") else nodes
        for child in element.all("object"):
            kind = child.get("type")
            if kind in ("Bridge", "PCIDev"):
                self.pci(child, self.hub(nodes), 0 if child.get("bridge_type").startswith("0-") else 1, 0.0)
            elif kind != "OSDev":
                self.io(child, nodes)

    def pci(self, element: Element, parent: str, level: int, above: float) -> None:
        """``level``: bridges between the processor and this; ``above``: the rate that the port above claims, 0 if none."""
        if id(element) not in self.wanted:
            self.virtual += element.get("type") == "PCIDev" and pci_class(element)[:2] == "02"
            for child in element.all("object"):
                if child.get("type") in ("Bridge", "PCIDev"):
                    self.pci(child, parent, level + 1, 0.0)
            return
        rate, said = element.number("pci_link_speed", 0.0) * 1e9, {}
        if element.get("type") == "PCIDev":
            rate = rate or above
            if not rate:
                self.unsaid += 1
                rate, said = constants.pcie(None, 0), {"source": "default"}
            self.device(element, parent, rate, said)
            return
        hub = parent
        if level and level % 2 == 0:
            hub = self.draft.put(self.host, element.must("pci_busid").lower(), VertexKind.PCIE)
            rate, said = self.upstream(element, rate or above)
            self.draft.below(parent, hub, rate, said)
            rate = 0.0
        for child in element.all("object"):
            if child.get("type") in ("Bridge", "PCIDev"):
                self.pci(child, hub, level + 1, rate)

    def upstream(self, element: Element, rate: float) -> tuple[float, dict[str, Any]]:
        """The rate of a switch's upstream port, which often claims generation 1 or 2 whatever it carries."""
        below = self.wanted[id(element)] * 1e9
        if rate and constants.is_old_pcie(rate) and below > rate and not constants.is_old_pcie(below):
            busid = element.get("pci_busid")
            self.draft.note(self.host, f"switch {busid} claims {rate / 1e9:g} GB/s above faster devices: their {below / 1e9:g} assumed")
            return below, {"source": "devices below", "claimed": rate}
        if rate:
            return rate, {}
        self.unsaid += 1
        return below or constants.pcie(None, 0), {"source": "default"}

    def device(self, element: Element, parent: str, rate: float, said: dict[str, Any]) -> None:
        busid = element.must("pci_busid").lower()
        if self.is_accelerator(element):
            model = next((text for child, _ in self.osdevs(element) if (text := _info(child, "GPUModel"))), _info(element, "PCIDevice"))
            attrs = {"accelerator": model or None, "busid": busid}
            vertex = self.draft.put(self.host, f"gpu{len(self.slots)}", VertexKind.SLOT, attrs)
            self.slots.append(vertex)
        else:
            ports = self.ports(element)
            if len(ports) > 1:
                vertex = self.draft.put(self.host, busid, VertexKind.SWITCH, {"nic": True})
                for port in ports:
                    self.draft.inside(vertex, self.port(element, port, busid), rate)
            else:
                vertex = self.port(element, ports[0], busid)
        self.draft.below(parent, vertex, rate, said)
        self.name(element, vertex)
        for child, _ in self.osdevs(element):
            self.name(child, vertex)

    def port(self, element: Element, device: Element, busid: str) -> str:
        net = next((child.get("name") for child, bits in self.osdevs(element) if bits == _NETWORK), None)
        name = device.get("name") or busid
        attrs = {"rate": fb.NET_BANDWIDTH, "source": "default", "busid": busid, "netdev": net if net != name else None}
        return self.draft.put(self.host, name, VertexKind.NIC, attrs)

    # Matrices

    def direct(self, table: Matrix) -> None:
        """Links between devices. Switches (devices that are neither accelerators nor processors) are one vertex, as in NCCL.

        A matrix tells of links from accelerators to switches, but not of those between switches (DGX-2: two boards of six).
        """
        kind = _DIRECT.get(table.name)
        if kind is None or not table.kind & BANDWIDTH:
            return
        ends = [None if table.by_os else self.by_gp.get(object_) for object_ in table.objects]
        switches = [index for index, (what, _) in enumerate(table.objects) if ends[index] is None and what == "PCIDev"]
        if switches:
            hub = self.draft.put(
                self.host, "nvswitch" if kind == "nvlink" else f"{kind}switch", VertexKind.SWITCH, {"chips": len(switches)}
            )
            for index in switches:
                ends[index] = hub
        rates: dict[tuple[str, str], float] = {}
        for a, row in zip(ends, table.values, strict=True):
            for b, megabytes in zip(ends, row, strict=True):
                if a is not None and b is not None and a != b and megabytes:
                    rates[a, b] = rates.get((a, b), 0.0) + megabytes * 1e6
        done, slots = set[tuple[str, str]](), set(self.slots)
        for (a, b), rate in rates.items():
            if (b, a) not in done:
                done.add((a, b))
                latency = constants.NVLINK_LATENCY * (2 if a in slots and b in slots else 1)
                self.draft.link(a, b, rate, latency, kind, back=rates.get((b, a)))
        lost = sum(end is None for end in ends)
        if lost:
            self.draft.note(self.host, f"{lost} objects of the matrix {table.name} have no place in the file: left out")

    def distances(self, tables: list[Matrix]) -> None:
        """Relative latencies between NUMA nodes, kept as an attribute: in the order of the nodes' numbers."""
        for table in tables:
            if not table.kind & LATENCY or {what for what, _ in table.objects} != {"NUMANode"}:
                continue
            numbers = {node.vertex: node.number for node in self.numa}
            keys = [number if table.by_os else numbers.get(self.by_gp.get(("NUMANode", number), "")) for _, number in table.objects]
            if sorted(key for key in keys if key is not None) != [node.number for node in self.numa]:
                continue
            order = [keys.index(node.number) for node in self.numa]
            for node, row in zip(self.numa, order, strict=True):
                self.draft.describe(node.vertex, {"distances": [table.values[row][column] for column in order]})
            return

    # The whole

    def state(self, devices: bool) -> None:
        if not devices:
            self.draft.note(self.host, "no I/O devices in the file: neither accelerators nor NICs are known")
        if not self.slots:
            self.draft.note(self.host, "neither accelerators nor usable cores in the file; no ranks")
        if self.unsaid:
            self.draft.note(self.host, f"{self.unsaid} PCIe links do not say their speed: 12 GB/s (generation 3, 16 lanes) assumed")
        if self.virtual:
            self.draft.note(self.host, f"{self.virtual} network devices without an interface (virtual functions) are left out")


def _objects(element: Element) -> Iterator[Element]:
    for child in element.all("object"):
        yield child
        yield from _objects(child)


def pci_class(element: Element) -> str:
    """``0302`` of ``pci_type="0302 [10de:1db8] ..."``."""
    return element.get("pci_type")[:4].lower()


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"\d{1,6}", text, re.ASCII) else 0


def _info(element: Element, name: str) -> str:
    return next((info.get("value") for info in element.all("info") if info.get("name") == name), "")


def bitmap(element: Element, name: str) -> int:
    """An hwloc bitmap such as ``0x00000303,0x03030000,,0x03030303`` as an integer, -1 for one that begins with ``0xf...f`` (no end)."""
    text = element.get(name)
    words = text.split(",")
    endless = words[0] == "0xf...f"
    if len(words) > 4096 or not all(re.fullmatch(r"(0x[0-9a-fA-F]{1,8})?", word) for word in words[endless:]):
        element.fail(name, "a bitmap such as 0x00000001,0xffffffff")
    value = int("".join(f"{int(word or '0', 16):08x}" for word in words[endless:]) or "0", 16)
    return value | (-1 << 32 * (len(words) - 1)) if endless else value


FORMAT = Format("hwloc-xml", "hwloc's XML, version 2 or 3 (lstopo file.xml)", recognise, parse)
