"""NCCL's topology XML (``NCCL_TOPO_FILE``, ``NCCL_TOPO_DUMP_FILE``) and RCCL's version 2 of it with xGMI links.

One host per ``host_hash``. A ``cpu`` is a NUMA node on the host's hub, a ``pci`` with others below it a switch, a ``gpu`` a slot (in
the order of ``rank``), a ``net`` a NIC. All NVSwitches of a host are one vertex, as in NCCL. Two-level Broadcom switches stay as
the file has them, which NCCL flattens for its search. Links' figures are NCCL's (:mod:`topoccl.topology.constants`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from topoccl.topology import constants
from topoccl.topology import fabric as fb
from topoccl.topology.formats import safe_xml
from topoccl.topology.formats.base import CERTAIN, NO, Format
from topoccl.topology.formats.draft import Draft
from topoccl.topology.formats.safe_xml import Element
from topoccl.topology.graph import Topology, VertexKind

_BUS_ID = re.compile(r"([0-9a-f]{1,8}:)?[0-9a-f]{1,4}:[0-9a-f]{1,2}(\.[0-9a-f]{1,2})?")
_KNOWN = {
    "system": ("cpu", "pci"),
    "cpu": ("pci", "nic"),
    "pci": ("pci", "gpu", "nic", "pcilink"),
    "gpu": ("nvlink", "xgmi", "c2c"),
    "nic": ("net",),
}
_MBITS_PLAUSIBLE = 10_000_000


def recognise(text: str) -> int:
    return CERTAIN if safe_xml.root_name(text) == "system" else NO


def parse(text: str, source: str) -> Topology:
    """A machine (or, with several ``host_hash``, several) as NCCL sees it.

    Raises:
        TopologyError: not well-formed XML, or not NCCL's; the message names the line, the element, the value and what was expected.
    """
    root = safe_xml.parse(text, source)
    if root.tag != "system":
        raise root.error("expected <system>, the root of NCCL's topology XML")
    version = root.integer("version", 0, 1 << 30, 1)
    if version not in (1, 2):
        root.fail("version", "1 (NCCL) or 2 (RCCL)")
    return _Reader(root).topology()


@dataclass
class _Gpu:
    """A device with ``gpu`` elements, or one that its PCI class makes an accelerator."""

    vertex: str
    numa: str
    slots: list[tuple[str, int | None]]
    elements: list[Element]


@dataclass
class _Host:
    name: str
    gpus: dict[str, _Gpu] = field(default_factory=dict)
    """By bus id; the first of equal ones."""
    switches: dict[str, str] = field(default_factory=dict)
    links: list[tuple[str, Element]] = field(default_factory=list)
    ports: dict[str, str] = field(default_factory=dict)
    nics: list[tuple[str, float, dict[str, Any]]] = field(default_factory=list)
    inferred: list[int] = field(default_factory=lambda: [0, 0])
    unclassed: int = 0


class _Reader:
    def __init__(self, root: Element) -> None:
        self.root = root
        self.draft = Draft(root.source)
        self.hosts: dict[str, _Host] = {}

    def topology(self) -> Topology:
        for element in self.known(self.root, None):
            key = element.get("host_hash").lower() if element.tag == "cpu" else next(iter(self.hosts), "")
            if key not in self.hosts:
                self.hosts[key] = _Host(self.draft.host(self.draft.free(f"h{len(self.hosts)}")))
            if element.tag == "cpu":
                self.cpu(self.hosts[key], element)
            else:
                self.pci(self.hosts[key], element, self.hosts[key].name, self.hosts[key].name)
        if not self.hosts:
            raise self.root.error("describes no machine; expected a <cpu>")
        nvswitches: dict[str, str] = {}
        for host in self.hosts.values():
            self.direct(host, nvswitches)
            self.pcilinks(host)
            self.state(host)
        if len(self.hosts) > 1:
            self.network()
        return self.draft.finish(self.order())

    def known(self, element: Element, host: _Host | None) -> Iterator[Element]:
        """Children that NCCL knows here; others are passed over and noted."""
        for child in element.children:
            if child.tag in _KNOWN.get(element.tag, ()):
                yield child
            elif host is not None:
                self.draft.note(host.name, f"<{child.tag}> in <{element.tag}> (line {child.line}) is not known and was passed over")

    # Processors and PCIe

    def cpu(self, host: _Host, element: Element) -> None:
        numa = element.integer("numaid", -(1 << 31), (1 << 31) - 1)
        arch, vendor = element.get("arch"), element.get("vendor")
        family, model = element.integer("familyid", -1, 1 << 31, 0), element.integer("modelid", -1, 1 << 31, 0)
        attrs: dict[str, Any] = {"arch": arch or None, "vendor": vendor or None, "cores": self.cores(element)}
        node = self.draft.put(host.name, f"numa{numa}", VertexKind.NUMA, attrs)
        rate = constants.cpu_to_cpu(arch, vendor, family, model)
        if rate is None:
            said = f"{arch or 'no arch'}, {vendor or 'no vendor'}"
            self.draft.note(host.name, f"processors are not known ({said}): {fb.NUMA_BANDWIDTH / 1e9:g} GB/s between NUMA nodes assumed")
        origin = {"source": "default"} if rate is None else {}
        self.draft.link(node, host.name, rate or fb.NUMA_BANDWIDTH, fb.NUMA_LATENCY, "numa", attrs=origin)
        for child in self.known(element, host):
            if child.tag == "nic":
                self.card(host, child, node, constants.LOCAL, None)
            else:
                self.pci(host, child, node, node)

    def cores(self, element: Element) -> int | None:
        mask = element.get("affinity").replace(",", "").strip()
        if not mask:
            return None
        if len(mask) > 1 << 14 or not re.fullmatch(r"(0x)?[0-9a-fA-F]+", mask):
            element.fail("affinity", "a mask such as 00000000,0000ffff")
        return int(mask, 16).bit_count() or None

    def pci(self, host: _Host, element: Element, parent: str, numa: str) -> None:
        busid = element.must("busid").lower()
        if not _BUS_ID.fullmatch(busid):
            element.fail("busid", "a PCI address such as 0000:41:00.0")
        pci_class, below = element.get("class").lower(), {child.tag for child in element.children}
        rate, attrs = self.pcie_rate(host, element)
        if busid in host.gpus or busid in host.switches:
            self.draft.note(host.name, f"bus id {busid} is given twice (line {element.line}); links to it lead to the first")
        if "gpu" in below:
            self.gpu(host, element, busid, parent, numa, rate, attrs)
        elif "nic" in below:
            for nic in element.all("nic"):
                self.card(host, nic, parent, rate, busid)
        elif "pci" not in below and constants.is_accelerator(pci_class):
            host.inferred[0] += 1
            slot = self.draft.put(host.name, f"gpu{len(host.gpus)}", VertexKind.SLOT, {"busid": busid, "source": "pci class"})
            self.draft.below(parent, slot, rate, attrs)
            host.gpus.setdefault(busid, _Gpu(slot, numa, [], [])).slots.append((slot, None))
        elif "pci" not in below and constants.is_network(pci_class):
            host.inferred[1] += 1
            said = {"busid": busid, "rate": constants.net(0), "source": "default"}
            self.draft.below(parent, self.port(host, f"nic{len(host.nics)}", constants.net(0), said), rate, attrs)
        else:
            host.unclassed += not pci_class and not below
            vertex = self.draft.put(host.name, busid, VertexKind.PCIE, {"class": pci_class or None})
            host.switches.setdefault(busid, vertex)
            self.draft.below(parent, vertex, rate, attrs)
            for child in self.known(element, host):
                if child.tag == "pci":
                    self.pci(host, child, vertex, numa)
                elif child.tag == "pcilink":
                    host.links.append((vertex, child))

    def pcie_rate(self, host: _Host, element: Element) -> tuple[float, dict[str, Any]]:
        """Bytes/s between a device and its parent, and attributes that say where they come from."""
        speed, width = element.get("link_speed"), element.integer("link_width", -1, 1 << 16, 0)
        lane, busid = constants.pcie_lane(speed), element.get("busid")
        said = {"link_speed": speed, "link_width": width}
        if width > 32 or width < 0:  # sysfs says 255 for unknown
            self.draft.note(host.name, f"{busid} claims {width} lanes (line {element.line}): 16 assumed")
            width = 0
        if speed and speed[:7].lower() != "unknown" and lane is None:
            self.draft.note(host.name, f"link speed {speed!r} is not known: counted as generation 3, as NCCL does")
        below = [constants.pcie_lane(child.get("link_speed")) or 0 for child in element.all("pci")]
        if lane is not None and lane < constants.PCIE_GEN3 <= max(below, default=0):
            # The internal upstream port of a switch often reports generation 1 or 2, whatever it carries.
            self.draft.note(host.name, f"switch {busid} claims {speed!r} above faster devices (line {element.line}): their speed assumed")
            return constants.pcie(max(below), width), said | {"source": "devices below"}
        if width == 0 or lane is None:
            return constants.pcie(lane, width), {"source": "default"} | said
        return constants.pcie(lane, width), {}

    # Accelerators

    def gpu(self, host: _Host, element: Element, busid: str, parent: str, numa: str, rate: float, attrs: dict[str, Any]) -> None:
        gpus = list(element.all("gpu"))
        slots = []
        for gpu in gpus:
            dev = gpu.integer("dev", -1, 1 << 20, len(host.gpus))
            rank = gpu.integer("rank", -1, 1 << 24) if gpu.get("rank") else None
            sm, gcn = gpu.integer("sm", 0, 1 << 16, 0), gpu.get("gcn")
            name = constants.gcn_name(gcn) if gcn else f"sm{sm}" if sm else None
            said = {"accelerator": name, "busid": busid, "rank": rank, "gdr": gpu.get("gdr") == "1" if gpu.get("gdr") else None}
            slots.append((self.draft.put(host.name, f"gpu{dev}", VertexKind.SLOT, said), rank))
        vertex = slots[0][0]
        if len(slots) > 1:  # several ranks on one device share its link
            vertex = self.draft.put(host.name, busid, VertexKind.SWITCH)
            for slot, _ in slots:
                self.draft.inside(vertex, slot, constants.LOCAL)
        self.draft.below(parent, vertex, rate, attrs)
        host.gpus.setdefault(busid, _Gpu(vertex, numa, [], [])).slots.extend(slots)
        if host.gpus[busid].vertex == vertex:
            host.gpus[busid].elements.extend(gpus[:1])

    def direct(self, host: _Host, nvswitches: dict[str, str]) -> None:
        """NVLink, xGMI and C2C, each the sum of its elements."""
        direct: dict[tuple[str, str, str], tuple[float, int]] = {}
        for busid, gpu in host.gpus.items():
            for element in gpu.elements:
                for child in self.known(element, host):
                    count = child.integer("count", 0, 4096, 1)
                    if child.tag == "c2c":
                        rate = constants.c2c(child.number("bw", 0.0), count)
                        if rate > 0:
                            self.draft.link(gpu.vertex, gpu.numa, rate, constants.C2C_LATENCY, "c2c", attrs={"lanes": count})
                        continue
                    each = constants.xgmi(element.get("gcn")) if child.tag == "xgmi" else constants.nvlink(self.sm(element))
                    peer = self.peer(host, busid, child, nvswitches)
                    if peer is not None and count:
                        rate, lanes = direct.get((gpu.vertex, peer, child.tag), (0.0, 0))
                        direct[gpu.vertex, peer, child.tag] = rate + count * each, lanes + count
        done: set[tuple[str, str, str]] = set()
        ends = {gpu.vertex for gpu in host.gpus.values()}
        for (a, b, tag), (rate, lanes) in direct.items():
            if (b, a, tag) in done:
                continue
            done.add((a, b, tag))
            if b in ends and (b, a, tag) not in direct:
                self.draft.note(host.name, f"{a} declares {tag} to {b}, which declares none back: taken for both ways")
            back = direct.get((b, a, tag), (rate, lanes))[0]
            latency = constants.NVLINK_LATENCY * (2 if b in ends else 1)
            self.draft.link(a, b, rate, latency, tag, back=back, attrs={"lanes": lanes})

    def sm(self, element: Element) -> int | None:
        return element.integer("sm", 0, 1 << 16, 0) or None

    def peer(self, host: _Host, busid: str, link: Element, nvswitches: dict[str, str]) -> str | None:
        """The vertex that an ``nvlink`` or ``xgmi`` leads to, by its class: an accelerator, the processor, or the NVSwitch."""
        target, tclass = link.get("target").lower(), link.get("tclass").lower()
        if constants.is_accelerator(tclass) or (not tclass and target in host.gpus):
            if target == busid or target not in host.gpus:
                why = "itself" if target == busid else f"{target or 'no target'}, which is not in the file"
                self.draft.note(host.name, f"{link.tag} of {busid} to {why}, is left out (line {link.line})")
                return None
            return host.gpus[target].vertex
        if tclass.startswith("0x068001"):
            return host.gpus[busid].numa
        key = host.name if len(self.hosts) == 1 else ""  # NVLink between hosts: one switch for all, as in NCCL
        if key not in nvswitches:
            name = f"{host.name}.nvswitch" if key else "nvswitch"
            nvswitches[key] = self.draft.switch(self.draft.free(name), key or None)
        return nvswitches[key]

    def pcilinks(self, host: _Host) -> None:
        """Shortcuts between PCIe switches."""
        done: set[tuple[str, str]] = set()
        for vertex, element in host.links:
            target = host.switches.get(element.must("target").lower())
            if target is None or target == vertex:
                why = "itself" if target else f"{element.get('target')}, which is no switch of the file"
                self.draft.note(host.name, f"pcilink of {vertex} to {why}, is left out (line {element.line})")
            elif (target, vertex) not in done and (vertex, target) not in done:
                done.add((vertex, target))
                self.draft.link(vertex, target, constants.LOCAL, fb.PCIE_LATENCY, "pcie", attrs={"pcilink": True})

    # NICs

    def card(self, host: _Host, nic: Element, parent: str, rate: float, busid: str | None) -> None:
        """A ``nic``: its port where there is one, else a device with ports that share its link."""
        nets = [net for net in self.known(nic, host) if net.get("dev") and net.get("net") != "0"]
        if not nets:
            self.draft.note(host.name, f"a <nic> without ports that NCCL uses (line {nic.line}) is left out")
        card = parent if busid is None or len(nets) < 2 else self.draft.put(host.name, busid, VertexKind.SWITCH, {"nic": True})
        if card != parent:
            self.draft.below(parent, card, rate)
        for net in nets:
            port, speed = self.net(host, net, busid)
            if card != parent:
                self.draft.inside(card, port, speed)
            else:
                self.draft.below(parent, port, rate)

    def net(self, host: _Host, net: Element, busid: str | None) -> tuple[str, float]:
        mbits = net.integer("speed", -(1 << 40), 1 << 40, 0)
        rate, name = constants.net(mbits), net.get("name") or f"net{net.get('dev')}"
        if mbits <= 0 or mbits > _MBITS_PLAUSIBLE:
            taken = "taken for 10 Gbit/s, as NCCL does" if mbits <= 0 else "not plausible, but taken as it is"
            self.draft.note(host.name, f"NIC {name} has speed {mbits} Mbit/s (line {net.line}): {taken}")
        guid = net.get("guid").lower() or None
        attrs: dict[str, Any] = {
            "rate": rate,
            "busid": busid,
            "guid": guid,
            "port": net.integer("port", -1, 1 << 30, 0),
            "gdr": net.get("gdr") == "1" if net.get("gdr") else None,
            "latency": net.number("latency", 0.0) * 1e-6 or None,
            "source": "default" if mbits <= 0 else None,
        }
        vertex = self.port(host, name, rate, attrs)
        first = host.ports.setdefault(guid, vertex) if guid and guid.strip("0x") else vertex
        if first != vertex:
            self.draft.note(host.name, f"NICs {first} and {vertex} have one guid: ports of one card")
        return vertex, rate

    def port(self, host: _Host, name: str, rate: float, attrs: dict[str, Any]) -> str:
        vertex = self.draft.put(host.name, name, VertexKind.NIC, attrs)
        host.nics.append((vertex, rate, attrs))
        return vertex

    def network(self) -> None:
        """Several hosts: the file does not say what joins them."""
        nics = [nic for host in self.hosts.values() for nic in host.nics]
        if nics:
            switch = self.draft.switch(self.draft.free("network"))
            for vertex, rate, _ in nics:
                self.draft.link(vertex, switch, rate, fb.NET_LATENCY, "net", attrs={"source": "default"})
            first = next(iter(self.hosts.values())).name
            self.draft.note(first, "the network between the hosts is not in the file: one switch for all NICs assumed")

    # The whole

    def state(self, host: _Host) -> None:
        """Notes on what NCCL would have read from the running machine."""
        accelerators, nics = host.inferred
        if accelerators:
            self.draft.note(host.name, f"{accelerators} accelerators inferred from their PCI class; their direct links are not in the file")
        if nics:
            self.draft.note(host.name, f"{nics} NICs inferred from their PCI class; 10 Gbit/s assumed")
        if host.unclassed:
            self.draft.note(host.name, f"{host.unclassed} PCI devices have no class: which are accelerators or NICs is not in the file")
        if not host.gpus:
            self.draft.note(host.name, "no accelerators in the file: neither gpu elements nor devices of such a PCI class; no ranks")

    def order(self) -> list[str]:
        """Slots by rank. Where some have a rank, those without are not part of the group, as in NCCL."""
        slots = [(host, slot, rank) for host in self.hosts.values() for gpu in host.gpus.values() for slot, rank in gpu.slots]
        ranked = [(rank, index, slot) for index, (_, slot, rank) in enumerate(slots) if rank is not None and rank >= 0]
        if not ranked:
            return [slot for _, slot, _ in slots]
        for host, slot, rank in slots:
            if rank is None or rank < 0:
                self.draft.note(host.name, f"{slot} has no rank: a place that the group does not use")
        if len({rank for rank, _, _ in ranked}) < len(ranked):
            self.draft.note(next(iter(self.hosts.values())).name, "some ranks are given twice: taken in the order of the file")
        return [slot for _, _, slot in sorted(ranked)]


FORMAT = Format("nccl-xml", "NCCL's or RCCL's topology XML (NCCL_TOPO_DUMP_FILE)", recognise, parse)
