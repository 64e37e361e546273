"""What is wrong, or odd, with a fabric and with how a job sits on it. Pure: over a topology and what ranks saw of their hosts.

To add a check: a function from :class:`Case` to problems, and its name in :data:`CHECKS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from topoccl.topology.discovery.facts import HostFacts, NicFacts
from topoccl.topology.graph import Topology, VertexKind
from topoccl.topology.merge import Contradiction
from topoccl.topology.render.edges import rate_text
from topoccl.topology.units import format_ranks, format_rate, format_size, format_time
from topoccl.topology.wiring import owner

SHM_PER_RANK = 16 << 20
"""Bytes of /dev/shm that Open MPI takes for each rank (btl_sm_segment_size)."""
SHM_SMALL = 64 << 20
"""What containers get unless told otherwise."""
WRONG = 2.0
"""Figures that differ by this factor are an error, not a warning."""


class Severity(StrEnum):
    """Errors break a job or slow it down several times, warnings may, notes are worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding: what it is about, what is the matter, the figures behind it, and what to do."""

    severity: Severity
    subject: str
    reason: str
    values: Mapping[str, Any]
    advice: str
    check: str = ""


@dataclass(frozen=True)
class Case:
    """What is examined.

    Attributes:
        topology: of all ranks, merged of all sources.
        facts: what each rank saw of its host; empty if only a description is examined.
        hosts: the host of each rank; equal texts share memory.
        claims: the host that each rank claimed to be on, before memory was tried.
        no_sharing: why shared memory is not used at all; empty if it is.
        contradictions: what the sources disagree about.
    """

    topology: Topology
    facts: Sequence[HostFacts] = ()
    hosts: Sequence[str] = ()
    claims: Sequence[str] = ()
    no_sharing: str = ""
    contradictions: Sequence[Contradiction] = field(default=())

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """Ranks by host."""
        groups: dict[str, list[int]] = {}
        for rank, host in enumerate(self.hosts):
            groups.setdefault(host, []).append(rank)
        return groups

    def named(self, ranks: Sequence[int]) -> str:
        """A host, for people: its name and its ranks."""
        return f"host {self.facts[ranks[0]].hostname!r} ({format_ranks(ranks)})"


def examine(case: Case) -> list[Problem]:
    """All problems of all checks, the gravest first."""
    found = []
    for name, check in CHECKS:
        found += [Problem(p.severity, p.subject, p.reason, p.values, p.advice, name) for p in check(case)]
    return sorted(found, key=lambda problem: list(Severity).index(problem.severity))


# What sources say


def contradictions(case: Case) -> Iterator[Problem]:
    """Sources that disagree, such as a declared 400 Gbit/s NIC that measures 20."""
    for one in case.contradictions:
        numbers = [value for _, value in one.values if isinstance(value, int | float)]
        wrong = one.attribute in ("rate", "bandwidth") and max(numbers) >= WRONG * min(numbers)
        said = {who: figure(one.attribute, value) for who, value in one.values}
        yield Problem(
            Severity.ERROR if wrong else Severity.WARNING,
            one.subject,
            f"{one.attribute} is given differently by different sources",
            said,
            "the first is planned with: correct it, or repair the link",
        )


def unknown_rates(case: Case) -> Iterator[Problem]:
    """NICs whose rate nobody knows, so that a default is planned with."""
    names = _unknown(case.topology)
    several = len(set(case.topology.host_of_rank)) > 1
    if names:
        rate = _rates(case.topology).get(names[0]) or case.topology.vertices[names[0]].attrs.get("rate")
        yield Problem(
            Severity.WARNING if several else Severity.NOTE,
            _some(names),
            "the rate is not known (virtual machines often do not say)",
            {"assumed": format_rate(rate) if isinstance(rate, float) else None, "nics": len(names)},
            "measure it with `topoccl probe`, or give a topology file in TOPOCCL_TOPO_FILE",
        )


def assumptions(case: Case) -> Iterator[Problem]:
    """What a description does not say and its parser assumed."""
    for host in case.topology.hosts:
        for note in case.topology.vertices[host].attrs.get("notes") or ():
            yield Problem(Severity.NOTE, host, str(note), {}, "if that is wrong, say it in a topology file")


# Ranks and cores


def cores(case: Case) -> Iterator[Problem]:
    """All ranks of a host on one core, ranks that share a core, more ranks than cores or than the container's quota."""
    for ranks in case.groups.values():
        cpus = set().union(*(case.facts[rank].affinity for rank in ranks))
        who, quota = case.named(ranks), case.facts[ranks[0]].cpu_quota
        pinned = Counter(case.facts[rank].affinity[0] for rank in ranks if len(case.facts[rank].affinity) == 1)
        twice = [cpu for cpu, count in pinned.items() if count > 1]
        bind = "start with another binding (mpirun --bind-to core or none; taskset; the container's cpuset)"
        if len(ranks) > 1 and len(cpus) == 1:
            yield Problem(Severity.ERROR, who, f"all {len(ranks)} ranks may run on one core only", {"cpu": min(cpus)}, bind)
        elif twice:
            yield Problem(Severity.ERROR, who, "several ranks are bound to one and the same core", {"cpus": twice}, bind)
        elif len(ranks) > len(cpus):
            values = {"ranks": len(ranks), "cores": len(cpus)}
            yield Problem(
                Severity.WARNING, who, "more ranks than cores: they wait for each other's time slices", values, "start fewer ranks"
            )
        if quota is not None and quota < len(ranks):
            allowed = {"cores' worth of time": quota, "ranks": len(ranks)}
            reason = "the container's CPU quota is smaller than the number of ranks: they are stopped for parts of every period"
            yield Problem(Severity.WARNING, who, reason, allowed, "raise the quota (docker run --cpus, limits.cpu)")


# Memory that ranks share


def shm(case: Case) -> Iterator[Problem]:
    """/dev/shm too small for Open MPI and for PyTorch's data loaders (topoccl's own shared memory is anonymous)."""
    for ranks in case.groups.values():
        first, who = case.facts[ranks[0]], case.named(ranks)
        if first.shm_size is None or first.shm_free is None:
            yield Problem(Severity.WARNING, who, "there is no /dev/shm", {}, "mount a tmpfs there")
            continue
        values = {"size": format_size(first.shm_size), "free": format_size(first.shm_free), "ranks": len(ranks)}
        advice = "give it more: docker run --shm-size=8g, an emptyDir of medium Memory, mount -o remount,size=8g /dev/shm"
        need = SHM_PER_RANK * len(ranks)
        if first.shm_free < need:
            reason = f"/dev/shm has less room than Open MPI takes ({format_size(need)}): bus errors"
            yield Problem(Severity.ERROR, who, reason, values, advice)
        elif first.shm_size <= SHM_SMALL:
            yield Problem(Severity.WARNING, who, "/dev/shm is small: data loaders fail with bus errors", values, advice)


def sharing(case: Case) -> Iterator[Problem]:
    """Ranks of one host that do not share memory and so talk over the transport."""
    if case.no_sharing and any(len(ranks) > 1 for ranks in case.groups.values()):
        reason = "ranks of one host do not use shared memory"
        yield Problem(Severity.WARNING, "shared memory", reason, {"because": case.no_sharing}, "unset TOPOCCL_SHM, if that is it")
    claimed: dict[str, dict[str, list[int]]] = {}
    for rank, (claim, host) in enumerate(zip(case.claims, case.hosts, strict=True)):
        claimed.setdefault(claim, {}).setdefault(host, []).append(rank)
    for claim, parts in claimed.items():
        if len(parts) > 1:
            sides = [format_ranks(ranks) for ranks in parts.values()]
            reason = f"{' and '.join(sides)} claim one host but could not open each other's memory"
            advice = "containers of one pod need a common process namespace and user; else give them different TOPOCCL_HOSTID"
            yield Problem(Severity.ERROR, f"host {claim!r}", reason, {"parts": sides}, advice)


def names(case: Case) -> Iterator[Problem]:
    """Different hosts that have one name."""
    by_name: dict[str, dict[str, list[int]]] = {}
    for rank, (facts, claim) in enumerate(zip(case.facts, case.claims, strict=True)):
        by_name.setdefault(facts.hostname, {}).setdefault(claim, []).append(rank)
    for name, parts in by_name.items():
        if len(parts) > 1:
            sides = [format_ranks(ranks) for ranks in parts.values()]
            boots = {case.facts[ranks[0]].boot_id for ranks in parts.values()}
            why = "containers or network namespaces of one machine" if len(boots) == 1 else "different machines"
            reason = f"{len(parts)} hosts have this name ({why}): files that place ranks by host name cannot tell them apart"
            advice = "give each a name of its own (hostname, docker run --hostname)"
            yield Problem(Severity.WARNING, f"host name {name!r}", reason, {"ranks": sides}, advice)


# NICs


def far_nics(case: Case) -> Iterator[Problem]:
    """A NIC on a NUMA node on which none of its host's ranks run."""
    topology = case.topology
    regions = _regions(topology)
    for host in topology.hosts:
        homes = {regions[slot] for slot in topology.slots if topology.vertices[slot].host == host}
        if not homes or regions[host] in homes:  # ranks that are bound to no node are near to everything
            continue
        for nic in _nics(topology):
            if topology.vertices[nic].host == host and regions[nic] not in homes and regions[nic] != regions[host]:
                near = sorted(v.id for v in topology.vertices.values() if v.kind is VertexKind.NUMA and regions[v.id] in homes)
                there = [v.id for v in topology.vertices.values() if v.kind is VertexKind.NUMA and regions[v.id] == regions[nic]]
                yield Problem(
                    Severity.WARNING,
                    nic,
                    "hangs on another NUMA node than all ranks of its host: everything it carries crosses between the nodes",
                    {"nic on": there, "ranks on": near},
                    "bind ranks to the NIC's node, or use another NIC (TOPOCCL_SOCKET_IFNAME)",
                )


def mixed_nics(case: Case) -> Iterator[Problem]:
    """NICs of different rates in one group: a collective goes at the pace of the slowest host."""
    unknown = set(_unknown(case.topology))
    rates = {nic: rate for nic, rate in _rates(case.topology).items() if nic not in unknown}
    kinds = {case.topology.vertices[link.dst].kind for link in case.topology.links if link.src in rates and link.kind == "net"}
    together = sum if kinds == {VertexKind.SWITCH} else max  # neighbours by cable differ in number
    by_host: dict[str, list[float]] = {}
    for nic, rate in rates.items():
        by_host.setdefault(owner(case.topology, nic), []).append(rate)
    per_host = {host: together(some) for host, some in by_host.items()}
    used = {host: rate for host, rate in per_host.items() if host in set(case.topology.host_of_rank)}
    if len(used) > 1 and max(used.values()) > 1.05 * min(used.values()):
        slow = [host for host, rate in used.items() if rate < max(used.values()) / 1.05]
        values = {"slowest": format_rate(min(used.values())), "fastest": format_rate(max(used.values()))}
        advice = "leave them out, or look why they are slower"
        yield Problem(Severity.WARNING, _some(slow), "slower NICs than other hosts of the group: all wait for them", values, advice)
    elif len({round(rate) for rate in rates.values()}) > 1:
        reason = "NICs of different rates in every host: traffic is split by rate only where rails are told apart"
        different = {"rates": sorted({format_rate(rate) for rate in rates.values()})}
        yield Problem(Severity.NOTE, _some(list(rates)), reason, different, "choose NICs with TOPOCCL_SOCKET_IFNAME")


def pcie(case: Case) -> Iterator[Problem]:
    """PCIe links of NICs that are trained below what they can do, or narrower than the NIC."""
    for who, nic in _seen_nics(case):
        for hop in nic.pci:
            if hop.rate is not None and hop.best is not None and hop.rate < 0.95 * hop.best:
                values = {"device": hop.address, "now": format_rate(hop.rate), "could do": format_rate(hop.best)}
                reason = "its PCIe link runs below what both ends can do"
                yield Problem(Severity.WARNING, f"{nic.name} of {who}", reason, values, "reseat the card, look at slot and BIOS settings")
        known = [hop.rate for hop in nic.pci if hop.rate is not None]
        if known and nic.speed is not None and min(known) < 0.95 * nic.speed:
            values = {"PCIe": format_rate(min(known)), "NIC": format_rate(nic.speed)}
            reason = "PCIe is narrower than the NIC"
            yield Problem(Severity.WARNING, f"{nic.name} of {who}", reason, values, "put the card into a wider or faster slot")


def false_gen1(case: Case) -> Iterator[Problem]:
    """Upstream PCIe switches that claim generation 1 (or 2) above faster devices (those of files stand in their notes)."""
    told = "claims PCIe generation 1 or 2 although what is below it is faster; the claim is not believed"
    advice = "nothing, if transfers are fast; else look with lspci -vv whether the link trained down"
    for who, nic in _seen_nics(case):
        for hop in nic.pci:
            if hop.false_gen1:
                yield Problem(Severity.NOTE, f"PCIe switch {hop.address} of {who}", told, {"above": nic.name}, advice)


# The whole


def connected(case: Case) -> Iterator[Problem]:
    """Ranks that cannot reach each other."""
    topology = case.topology
    forward: dict[str, list[str]] = {}
    backward: dict[str, list[str]] = {}
    for link in topology.links:
        forward.setdefault(link.src, []).append(link.dst)
        backward.setdefault(link.dst, []).append(link.src)
    if not topology.slots:
        yield Problem(Severity.ERROR, topology.name, "there is no slot: no rank can run anywhere", {}, "declare slots of hosts")
        return
    both = _reach(topology.slots[0], forward) & _reach(topology.slots[0], backward)
    lost = [rank for rank, slot in enumerate(topology.slots) if slot not in both]
    if lost:
        values = {"unreachable": format_ranks(lost), "ranks": topology.num_ranks}
        alone = len({owner(topology, slot) for slot in topology.slots}) == 1
        reason = "not connected with rank 0 in both directions"
        yield Problem(
            Severity.NOTE if alone and not case.facts else Severity.ERROR, format_ranks(lost), reason, values, "add the missing links"
        )


CHECKS: tuple[tuple[str, Callable[[Case], Iterator[Problem]]], ...] = (
    ("connected", connected),
    ("contradictions", contradictions),
    ("cores", cores),
    ("shm", shm),
    ("sharing", sharing),
    ("host names", names),
    ("far NICs", far_nics),
    ("mixed NICs", mixed_nics),
    ("unknown rates", unknown_rates),
    ("pcie", pcie),
    ("false gen 1", false_gen1),
    ("assumptions", assumptions),
)


# Helpers


def _seen_nics(case: Case) -> Iterator[tuple[str, NicFacts]]:
    """Usable NICs as the first rank of each host saw them."""
    for ranks in case.groups.values():
        for nic in case.facts[ranks[0]].usable_nics:
            yield f"host {case.facts[ranks[0]].hostname!r}", nic


def _nics(topology: Topology) -> list[str]:
    return [vertex.id for vertex in topology.vertices.values() if vertex.kind is VertexKind.NIC]


def _unknown(topology: Topology) -> list[str]:
    """NICs of whose rate neither they themselves nor their cables know more than a default."""
    told = {link.src for link in topology.links if link.kind == "net" and link.attrs.get("source") != "default"}
    return [nic for nic in _nics(topology) if topology.vertices[nic].attrs.get("source") == "default" and nic not in told]


def _rates(topology: Topology) -> dict[str, float]:
    """What leaves each NIC for the network, bytes/s."""
    rates: dict[str, float] = {}
    for link in topology.links:
        if topology.vertices[link.src].kind is VertexKind.NIC and owner(topology, link.dst) != owner(topology, link.src):
            rates[link.src] = rates.get(link.src, 0.0) + link.bandwidth
    return rates


def _regions(topology: Topology) -> dict[str, int]:
    """What hangs together inside a host without crossing between NUMA nodes or over direct links of accelerators."""
    near: dict[str, list[str]] = {}
    for link in topology.links:
        if link.kind in ("shm", "pcie", "port") and owner(topology, link.src) == owner(topology, link.dst):
            near.setdefault(link.src, []).append(link.dst)
            near.setdefault(link.dst, []).append(link.src)
    regions: dict[str, int] = {}
    for number, vertex in enumerate(topology.vertices):
        if vertex not in regions:
            regions.update(dict.fromkeys(_reach(vertex, near), number))
    return regions


def _reach(start: str, near: Mapping[str, Sequence[str]]) -> set[str]:
    reached, waiting = {start}, [start]
    while waiting:
        for other in near.get(waiting.pop(), ()):
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return reached


def figure(attribute: str, value: Any) -> str:
    if attribute in ("rate", "bandwidth") and isinstance(value, int | float):
        return f"{format_rate(value)} ({rate_text(value, 'net')})"
    return format_time(value) if attribute == "latency" and isinstance(value, int | float) else str(value)


def _some(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
