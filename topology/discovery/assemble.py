"""From every rank's facts to one cluster. Pure: the same facts in the same order give the same topology everywhere."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Sequence
from typing import Any

from topoccl.topology import fabric as fb
from topoccl.topology.discovery.facts import HostFacts, NicFacts, NumaFacts
from topoccl.topology.discovery.pcie import Device, plug
from topoccl.topology.fabric import Fabric
from topoccl.topology.graph import Topology, TopologyError, VertexKind

_ASSUMED = {"source": "default"}
_UNSEEN = NicFacts(name="net", speed=None, up=True, physical=False, numa=None, addresses=())
"""Stands for whatever carries the traffic of a host where no usable NIC was seen."""


def assemble(facts: Sequence[HostFacts], host_ids: Sequence[str], name: str = "discovered") -> Topology:
    """One topology of all ranks: rank ``r`` saw ``facts[r]`` and is on the host ``host_ids[r]``.

    Hosts are named by their host names (``#2`` and so on tells equal names apart). NUMA nodes appear where ranks and NICs are on
    several, and a slot hangs on the node that its rank is bound to. NICs hang on PCIe, with bridges where they share them. The NICs
    of different hosts are joined by one switch per subnet if each of the subnets reaches every host (rails), else by one switch.
    What discovery could not find out has ``source: default`` in its attributes.

    Raises:
        TopologyError: no facts, or not as many host ids as facts.
    """
    if not facts or len(facts) != len(host_ids):
        raise TopologyError(f"topology {name!r}: facts of {len(facts)} ranks and {len(host_ids)} host ids; expected as many, at least one")
    ranks: dict[str, list[int]] = {}
    for rank, host_id in enumerate(host_ids):
        ranks.setdefault(host_id, []).append(rank)
    fabric = Fabric(name)
    taken: set[str] = set()
    slots: dict[int, str] = {}
    ports: dict[str, list[tuple[str, NicFacts]]] = {}
    for members in ranks.values():
        seen = len(fabric.vertices)
        host = _free(taken, facts[members[0]].hostname or "host")
        ports[host] = _host(fabric, host, [facts[rank] for rank in members], members, slots)
        for vertex in fabric.vertices[seen:]:
            taken.update(itertools.accumulate(vertex.id.split("."), "{}.{}".format))
    if len(ports) > 1:
        _network(fabric, ports, taken)
    return fabric.build([slots[rank] for rank in range(len(facts))])


def _free(taken: set[str], name: str) -> str:
    """``name``, or ``name#2`` and so on if it is taken as an id or as what ids of another host begin with."""
    return next(free for free in itertools.chain([name], (f"{name}#{number}" for number in itertools.count(2))) if free not in taken)


def _host(fabric: Fabric, host: str, facts: list[HostFacts], ranks: list[int], slots: dict[int, str]) -> list[tuple[str, NicFacts]]:
    """Adds one host; returns its NICs with their vertices."""
    first = facts[0]
    cores = {cpu for one in facts for cpu in one.affinity}
    fabric.host(host, attrs={"cores": len(cores)} | ({"cpu_quota": first.cpu_quota} if first.cpu_quota is not None else {}))
    hubs: dict[int, str] = {}
    used = [node for node in first.numa if set(node.cpus) & cores or any(nic.numa == node.id for nic in first.usable_nics)]
    if len(used) > 1:
        for node in used:
            known = {"cores": len(set(node.cpus) & cores)} | distances(node)
            hubs[node.id] = fabric.add(f"{host}.numa{node.id}", VertexKind.NUMA, host, known)
            fabric.link(hubs[node.id], host, fb.NUMA_BANDWIDTH, fb.NUMA_LATENCY, "numa", attrs=_ASSUMED)
    for rank, one in zip(ranks, facts, strict=True):
        near = [node.id for node in used if set(node.cpus) & set(one.affinity)]
        slots[rank] = fabric.bare_slot(host)
        hub = hubs.get(near[0], host) if len(near) == 1 else host
        fabric.link(slots[rank], hub, fb.MEMORY_BANDWIDTH, fb.MEMORY_LATENCY, "shm", attrs=_ASSUMED)
    ports, devices = [], []
    for nic in first.usable_nics or (_UNSEEN,):
        port = fabric.add(f"{host}.{nic_name(nic)}", VertexKind.NIC, host, nic_attrs(nic))
        hub = hubs.get(nic.numa, host) if nic.numa is not None else host
        devices.append(Device(port, nic.pci, hub, fb.pcie_for(nic.speed or fb.NET_BANDWIDTH)))
        ports.append((port, nic))
    plug(fabric, host, devices)
    return ports


def distances(node: NumaFacts) -> dict[str, Any]:
    """How far a NUMA node is from each, as an attribute."""
    return {"distances": list(node.distances)} if node.distances else {}


def nic_name(nic: NicFacts) -> str:
    """A NIC's name in ids: its own, unless slots, NUMA nodes or bridges have such names."""
    return f"nic-{nic.name}" if re.fullmatch(r"(s|gpu|numa)\d+|pci-.*", nic.name) else nic.name


def nic_attrs(nic: NicFacts) -> dict[str, Any]:
    """What is known of a NIC: its rate and where that is from, its PCI address, its RDMA port."""
    bus = {"busid": nic.pci[0].address} if nic.pci else {}
    known = {"rate": nic.speed or fb.NET_BANDWIDTH, "source": "sysfs" if nic.speed else "default"}
    return known | bus | ({"rdma": nic.rdma} if nic.rdma else {})


def _network(fabric: Fabric, ports: dict[str, list[tuple[str, NicFacts]]], taken: set[str]) -> None:
    reach: dict[str | None, set[str]] = {}
    for host, nics in ports.items():
        for _, nic in nics:
            reach.setdefault(_subnet(nic), set()).add(host)
    rails = None not in reach and all(members == set(ports) for members in reach.values())
    switches = [fabric.switch(_free(taken, f"switch{number}")) for number in range(len(reach) if rails else 1)]
    switch_of = {subnet: switches[number if rails else 0] for number, subnet in enumerate(reach)}
    for nics in ports.values():
        for port, nic in nics:
            source = "sysfs" if nic.speed else "default"
            fabric.link(port, switch_of[_subnet(nic)], nic.speed or fb.NET_BANDWIDTH, fb.NET_LATENCY, "net", attrs={"source": source})


def _subnet(nic: NicFacts) -> str | None:
    """The first IPv4 network of a NIC, or else the first IPv6 one."""
    for address in sorted(nic.addresses, key=lambda text: ":" in text):
        return str(ipaddress.ip_interface(address).network)
    return None
