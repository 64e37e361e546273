"""From every rank's facts to one cluster. Pure: the same facts in the same order give the same topology everywhere."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Sequence

from topoccl.topology import fabric as fb
from topoccl.topology.discovery.facts import HostFacts, NicFacts
from topoccl.topology.fabric import Fabric
from topoccl.topology.graph import Topology, TopologyError

_UNSEEN = NicFacts(name="net", speed=None, up=True, physical=False, numa=None, addresses=())
"""Stands for whatever carries the traffic of a host where no usable NIC was seen."""


def assemble(facts: Sequence[HostFacts], host_ids: Sequence[str], name: str = "discovered") -> Topology:
    """One topology of all ranks: rank ``r`` saw ``facts[r]`` and is on the host ``host_ids[r]``.

    Hosts are named by their host names (``#2`` and so on tells equal names apart). NUMA nodes appear where a host has several, and a
    slot hangs on the node that its rank is bound to. NICs of a rank's host are joined by one switch per subnet if each of the subnets
    reaches every host (rails), else by one switch. What discovery could not find out has ``source: default`` in its attributes.

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
    used = [node for node in first.numa if set(node.cpus) & cores]
    if len(used) > 1:
        for node in used:
            hubs[node.id] = fabric.numa(host, f"numa{node.id}", attrs={"cores": len(set(node.cpus) & cores)})
    for rank, one in zip(ranks, facts, strict=True):
        near = [node.id for node in used if set(node.cpus) & set(one.affinity)]
        slots[rank] = fabric.slot(host, hub=hubs.get(near[0]) if len(near) == 1 else None)
    ports = []
    for nic in first.usable_nics or (_UNSEEN,):
        hub = hubs.get(nic.numa) if nic.numa is not None else None
        name = f"nic-{nic.name}" if re.fullmatch(r"(s|numa)\d+", nic.name) else nic.name  # the ids of slots and NUMA nodes
        rate = nic.speed or fb.NET_BANDWIDTH
        port = fabric.nic(host, name, rate, hub=hub, attrs={"rate": rate, "source": "sysfs" if nic.speed else "default"})
        ports.append((port, nic))
    return ports


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
