"""From a topology to the devices, addresses, routes and commands that stand for it. Pure.

- A HOST vertex is a network namespace with a host name and a /dev/shm of its own; links inside a host are not built.
- A switch outside all hosts is a bridge in one more namespace, the *fabric*, so that the machine's own network is not touched.
- A link between a vertex of a host and such a switch, between two switches, or between vertices of two hosts is a veth pair.
  Each end is shaped to the rate of its direction. Latency is not shaped. Parallel links add up.

Addresses: if some connected set of switches (a *domain*) reaches every host, each domain is a subnet and a host is known by its
address in the first such domain. Otherwise the cluster is *routed*: a host has one address, on a device of its own, and hosts
forward for each other along shortest paths. Neither broadcasts nor learns: neighbours and forwarding tables are static, so the
counters hold the programs' traffic only, and loops of switches are harmless.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from topoccl.bench.virtual import LabError
from topoccl.topology import Topology, TopologyError, VertexKind, wiring
from topoccl.topology.spread import spread

FABRIC = "fabric"  # the namespace of the bridges; host names are kept apart from it
HOST_DEVICE = "host0"  # carries the one address of a host in a routed cluster
# Packets stay in bundles that tbf passes whole: it splits those above its burst, and single packets of 7 links both ways fill two cores.
_BUNDLE = "gso_max_size 24000"
_SHAPE = "tbf rate {bits}bit burst 32k limit 16mb"  # a small queue drops packets and measures TCP's recovery instead
_PORT = "learning off flood off mcast_flood off bcast_flood off"
_SUBNET_SIZE = 250 * 250


@dataclass(frozen=True, slots=True)
class End:
    """One end of a cable: a device in the namespace ``space`` that sends at ``rate`` bytes/s over the link called ``link``."""

    space: str
    device: str
    mac: str
    rate: float
    link: str
    vertex: str
    bridge: str | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """A host: the id of its vertex, its name in the cluster, the address and the device by which the others reach it."""

    id: str
    name: str
    address: str
    device: str


@dataclass(frozen=True)
class Plan:
    """Everything that is to be done, per namespace (``spaces``: the hosts' names and the fabric)."""

    topology: Topology
    hosts: tuple[Host, ...]
    bridges: Mapping[str, str]
    cables: tuple[tuple[End, End], ...]
    subnets: tuple[str, ...]
    routed: bool
    ip_lines: Mapping[str, tuple[str, ...]]
    fdb_lines: tuple[str, ...]
    etc_hosts: str

    @property
    def spaces(self) -> tuple[str, ...]:
        return (FABRIC, *(h.name for h in self.hosts))

    def ends(self) -> Iterator[End]:
        for cable in self.cables:
            yield from cable

    def cable_lines(self, pids: Mapping[str, int]) -> tuple[str, ...]:
        """``ip -batch`` lines that create bridges and cables, given a process in each namespace; run in the fabric's."""
        lines = [f"link add {bridge} type bridge stp_state 0 mcast_snooping 0" for bridge in self.bridges.values()]
        for a, b in self.cables:
            lines.append(
                f"link add {a.device} {_BUNDLE} address {a.mac} netns {pids[a.space]} type veth "
                f"peer name {b.device} {_BUNDLE} address {b.mac} netns {pids[b.space]}"
            )
        return tuple(lines)

    def shape_lines(self, space: str) -> tuple[str, ...]:
        """``tc -batch`` lines of one namespace."""
        return tuple(
            f"qdisc add dev {e.device} root {_SHAPE.format(bits=max(8, round(e.rate * 8)))}" for e in self.ends() if e.space == space
        )

    def host(self, name: str) -> Host:
        """The host of that name or vertex id.

        Raises:
            LabError: there is none.
        """
        for host in self.hosts:
            if name in (host.name, host.id):
                return host
        raise LabError(f"unknown host {name!r}; known hosts: {', '.join(h.name for h in self.hosts)}")

    def host_of_slot(self, slot: int) -> Host:
        return self.host(self.topology.host_of_rank[slot])


def make_plan(topology: Topology) -> Plan:
    """Plan a virtual cluster.

    Raises:
        LabError: no hosts, a link in one direction only, a device outside all hosts, or hosts that cannot reach each other.
    """
    if not topology.hosts:
        raise LabError(f"topology {topology.name!r} has no hosts; a cluster needs at least one vertex of kind host")
    return _Planner(topology).plan()


def host_names(ids: tuple[str, ...]) -> dict[str, str]:
    """Distinct host names for ids of HOST vertices: the ids, where they can be ones (``rack 0/a`` is ``rack-0-a``, ``7`` is ``h7``).

    Programs find their host in the topology by its name, so as little as possible is changed.
    """
    names: dict[str, str] = {}
    for host in ids:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", host).strip("-.")[:50] or "h"
        stem = f"h{stem}" if stem[0].isdigit() else stem  # it might be read as an address
        name, n = stem, 1
        while name in names.values() or name in (FABRIC, "localhost"):
            n += 1
            name = f"{stem}-{n}"
        names[host] = name
    return names


class _Planner:
    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.names = host_names(topology.hosts)
        self.index = {host: i for i, host in enumerate(topology.hosts)}
        self.wires = self._wires()
        self.switches = tuple(dict.fromkeys(port.owner for wire in self.wires for port in (wire.a, wire.b) if port.owner not in self.index))
        self.bridges = {switch: f"br{i}" for i, switch in enumerate(self.switches)}
        self.domains = self._domains()
        self.routed = not (self.domains and self._members(self.domains[0]) == set(topology.hosts))
        self.ip: dict[str, list[str]] = {FABRIC: [], **{name: ["link set lo up"] for name in self.names.values()}}

    # What is there

    def _wires(self) -> list[wiring.Cable]:
        """The topology's cables, those that run in parallel between the same two vertices added up."""
        wires: dict[tuple[str, str], wiring.Cable] = {}
        try:
            found = wiring.cables(self.topology)
        except TopologyError as error:
            raise LabError(str(error)) from None
        for wire in found:
            for port in (wire.a, wire.b):
                kind = self.topology.vertices[port.owner].kind
                if kind not in (VertexKind.HOST, VertexKind.SWITCH):
                    raise LabError(f"topology {self.topology.name!r}: {kind.value} {port.vertex!r} belongs to no host; only switches may")
            a, b, rate_ab, rate_ba = wire.a, wire.b, wire.rate_ab, wire.rate_ba
            if (b.vertex, a.vertex) in wires:
                a, b, rate_ab, rate_ba = b, a, rate_ba, rate_ab
            if other := wires.get((a.vertex, b.vertex)):
                rate_ab, rate_ba = rate_ab + other.rate_ab, rate_ba + other.rate_ba
            wires[a.vertex, b.vertex] = wiring.Cable(a, b, rate_ab, rate_ba, wire.latency)
        return list(wires.values())

    def _domains(self) -> list[tuple[str, ...]]:
        """Connected sets of switches, those that reach every host first."""
        beside: dict[str, list[str]] = {switch: [] for switch in self.switches}
        for wire in self.wires:
            if wire.a.owner in beside and wire.b.owner in beside:
                beside[wire.a.owner].append(wire.b.owner)
                beside[wire.b.owner].append(wire.a.owner)
        domains: list[tuple[str, ...]] = []
        seen: set[str] = set()
        for first in self.switches:
            if first in seen:
                continue
            found, stack = {first}, [first]
            while stack:
                for switch in beside[stack.pop()]:
                    if switch not in found:
                        found.add(switch)
                        stack.append(switch)
            seen |= found
            domains.append(tuple(s for s in self.switches if s in found))
        return sorted(domains, key=lambda d: self._members(d) != set(self.topology.hosts))

    def _members(self, domain: tuple[str, ...]) -> set[str]:
        """The hosts plugged into a domain."""
        ends = [(wire.a.owner, wire.b.owner) for wire in self.wires]
        return {host for a, b in ends for host, switch in ((a, b), (b, a)) if switch in domain and host in self.index}

    # Cables

    def _cables(self) -> list[tuple[End, End]]:
        domain_of = {switch: d for d, domain in enumerate(self.domains) for switch in domain}
        taken: dict[str, set[int]] = {host: set() for host in self.topology.hosts}

        def number(host: str, peer: str) -> int:
            """The n of ethn: that of the domain, so that it is the same on all hosts, else the next free one after them."""
            wanted = domain_of.get(peer)
            if wanted is None or wanted in taken[host]:
                wanted = max([len(self.domains) - 1, *taken[host]]) + 1
            taken[host].add(wanted)
            return wanted

        cables = []
        for n, wire in enumerate(self.wires):
            ends = []
            for side, (port, peer, rate) in enumerate(((wire.a, wire.b, wire.rate_ab), (wire.b, wire.a, wire.rate_ba))):
                if port.owner in self.bridges:
                    space, device, bridge = FABRIC, f"p{n}{'ab'[side]}", self.bridges[port.owner]
                else:
                    space, device, bridge = self.names[port.owner], f"eth{number(port.owner, peer.owner)}", None
                mac = f"02:{side:02x}:00:00:{n >> 8:02x}:{n & 255:02x}"
                ends.append(End(space, device, mac, rate, f"{port.vertex}->{peer.vertex}", port.vertex, bridge))
            cables.append((ends[0], ends[1]))
        return cables

    # Addresses, neighbours, routes

    def plan(self) -> Plan:
        cables = self._cables()
        ports = [(a, b) if a.space != FABRIC else (b, a) for a, b in cables if (a.space == FABRIC) != (b.space == FABRIC)]
        for bridge in self.bridges.values():
            self.ip[FABRIC].append(f"link set {bridge} up")
        for end in (end for cable in cables for end in cable):
            if end.bridge is not None:
                self.ip[FABRIC] += [f"link set {end.device} master {end.bridge}", f"link set {end.device} type bridge_slave {_PORT}"]
            self.ip[end.space].append(f"link set {end.device} up")
        aliases: list[tuple[str, str]] = []
        if self.routed:
            hosts = self._address_hosts()
            subnets: tuple[str, ...] = ("10.0.0.0/16",)
            self._route(cables, ports, hosts)
        else:
            hosts, subnets = self._address_ports(ports, aliases)
        etc = ["127.0.0.1 localhost", *(f"{h.address} {h.name}" for h in hosts), *(f"{address} {name}" for address, name in aliases)]
        # A socket for both versions of IP shows its peers as mapped addresses; torch warns about each that has no name.
        etc += [f"::ffff:{host.address} {host.name}.mapped" for host in hosts]
        return Plan(
            self.topology,
            hosts,
            self.bridges,
            tuple(cables),
            subnets,
            self.routed,
            {space: tuple(lines) for space, lines in self.ip.items()},
            self._forwarding(cables, ports),
            "\n".join(etc) + "\n",
        )

    def _address_hosts(self) -> tuple[Host, ...]:
        hosts = []
        for host, i in self.index.items():
            hosts.append(Host(host, self.names[host], _address(0, i), HOST_DEVICE))
            # a bridge without ports: a device that is always there and up, and, unlike lo, has no other address
            self.ip[self.names[host]] += [
                f"link add {HOST_DEVICE} type bridge",
                f"addr add {_address(0, i)}/32 dev {HOST_DEVICE}",
                f"link set {HOST_DEVICE} up",
            ]
        return tuple(hosts)

    def _address_ports(self, ports: list[tuple[End, End]], aliases: list[tuple[str, str]]) -> tuple[tuple[Host, ...], tuple[str, ...]]:
        """One subnet per domain. A second interface of a host in one domain sends what comes from its own address."""
        index_of = {name: self.index[host] for host, name in self.names.items()}
        host_at: dict[str, Host] = {}
        subnets = []
        for d, domain in enumerate(self.domains):
            members = [end for end, port in ports if port.vertex in domain]
            firsts: dict[str, End] = {}
            addresses: dict[End, str] = {}
            extra = len(self.index)
            for end in members:
                number = index_of[end.space]
                if firsts.setdefault(end.space, end) is not end:
                    number, extra = extra, extra + 1
                addresses[end] = _address(d + 1, number)
            for end, address in addresses.items():
                lines = self.ip[end.space]
                first = firsts[end.space]
                if end is first:
                    lines.append(f"addr add {address}/16 dev {end.device}")
                else:
                    table = 100 + int(end.device.removeprefix("eth"))
                    lines += [
                        f"addr add {address}/32 dev {end.device}",
                        f"route add 10.{d + 1}.0.0/16 dev {end.device} src {address} table {table}",
                        f"rule add from {address} table {table}",
                    ]
                lines += [
                    f"neigh add {addresses[e]} lladdr {e.mac} dev {end.device} nud permanent" for e in members if e.space != end.space
                ]
                if d == 0 and end is first:
                    host = self.topology.hosts[index_of[end.space]]
                    host_at[end.space] = Host(host, end.space, address, end.device)
                else:
                    aliases.append((address, f"{end.space}-{end.device}"))
            if len(firsts) == len(self.names):
                subnets.append(f"10.{d + 1}.0.0/16")
        return tuple(host_at[name] for name in self.names.values()), tuple(subnets)

    def _route(self, cables: list[tuple[End, End]], ports: list[tuple[End, End]], hosts: tuple[Host, ...]) -> None:
        """Routes between hosts that forward for each other; a domain of switches connects all its members."""
        by_name = {h.name: h for h in hosts}
        ways: dict[str, dict[str, tuple[End, End]]] = {name: {} for name in by_name}
        for domain in self.domains:
            members = [end for end, port in ports if port.vertex in domain]
            for a in members:
                for b in members:
                    if a.space != b.space:
                        ways[a.space].setdefault(b.space, (a, b))
        for a, b in cables:
            if FABRIC not in (a.space, b.space):
                # a direct cable beats a way through switches; of several cables between two hosts the fastest is used
                for x, y in ((a, b), (b, a)):
                    best = ways[x.space].get(y.space)
                    if best is None or best[0].rate < x.rate:
                        ways[x.space][y.space] = (x, y)
        for name, ends in ways.items():
            for peer, (end, other) in ends.items():
                self.ip[name].append(f"neigh add {by_name[peer].address} lladdr {other.mac} dev {end.device} nud permanent")
        graph = {name: {peer: end.rate for peer, (end, _) in ends.items()} for name, ends in ways.items()}
        for target, table in zip(hosts, spread(graph, [h.name for h in hosts]), strict=True):
            cut_off = [h.id for h in hosts if h.name != target.name and h.name not in table]
            if cut_off:
                raise LabError(f"topology {self.topology.name!r}: host {cut_off[0]!r} has no way over the network to host {target.id!r}")
            for name, nxt in table.items():
                via = "" if nxt == target.name else f" via {by_name[nxt].address} onlink"
                device = ways[name][nxt][0].device
                self.ip[name].append(f"route add {target.address}/32{via} dev {device} src {by_name[name].address}")

    def _forwarding(self, cables: list[tuple[End, End]], ports: list[tuple[End, End]]) -> tuple[str, ...]:
        """``bridge -batch`` lines: for each interface's hardware address the port that leads to it, on every switch of its domain."""
        graph: dict[str, dict[str, float]] = {switch: {} for switch in self.switches}
        uplinks: dict[tuple[str, str], End] = {}
        for a, b in cables:
            if a.space == FABRIC and b.space == FABRIC:
                for x, y in ((a, b), (b, a)):
                    graph[x.vertex][y.vertex] = x.rate
                    uplinks[x.vertex, y.vertex] = x
        lines = []
        for (end, port), table in zip(ports, spread(graph, [port.vertex for _, port in ports]), strict=True):
            exits = {port.vertex: port, **{switch: uplinks[switch, nxt] for switch, nxt in table.items()}}
            lines += [f"fdb replace {end.mac} dev {exits[s].device} master static" for s in self.switches if s in exits]
        return tuple(lines)


def _address(subnet: int, number: int) -> str:
    if number >= _SUBNET_SIZE or subnet > 255:
        raise LabError(
            f"no address left for interface {number} of subnet {subnet}; a cluster has at most {_SUBNET_SIZE} of them in 255 subnets"
        )
    return f"10.{subnet}.{number // 250}.{number % 250 + 1}"
