"""Plans of virtual clusters, checked by walking packets through their commands. No root is needed."""

from __future__ import annotations

import ipaddress
import itertools
from collections import Counter
from pathlib import Path

import pytest

from topoccl.bench.virtual import LabError
from topoccl.bench.virtual.plan import FABRIC, HOST_DEVICE, Plan, host_names, make_plan
from topoccl.topology import Link, Topology, Vertex, VertexKind
from topoccl.topology.load import load
from topoccl.topology.spread import spread

FABRIC_FILES = Path(__file__).resolve().parents[2] / "bench" / "fabrics"
FABRICS = {
    "cluster:4x2,net=200Mbit/s": 2,
    "cluster:3+2+1,net=200Mbit/s": 2,
    "cluster:3x1,net=200Mbit/s+200Mbit/s+50Mbit/s": 2,
    "racks:2x2x1,net=200Mbit/s,uplink=100Mbit/s": 4,
    "ring:5,ranks=1,net=200Mbit/s": 2,
    "ring:4,net=200Mbit/s": 2,
    "mesh:2x3,ranks=1,net=200Mbit/s": 3,
    "line:4,net=50Mbit/s": 3,
    "torus:3x3,net=50Mbit/s": 2,
    "rails:3x2,net=200Mbit/s+100Mbit/s": 2,
    "cluster:3x1,nics=2,net=100Mbit/s": 2,
    "fattree:k=4,net=100Mbit/s": 6,
    "cluster:300x1,net=100Mbit/s": 2,
}
"""Expression, and over how many cables the farthest hosts are apart."""


class Walker:
    """Reads a plan's commands as the kernel would, and sends packets."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.across = {}
        for a, b in plan.cables:
            self.across[a.space, a.device] = b
            self.across[b.space, b.device] = a
        self.bridge_of = {end.device: end.bridge for end in plan.ends() if end.bridge is not None}
        self.fdb: dict[tuple[str, str], str] = {}
        for line in plan.fdb_lines:
            _, _, mac, _, device, *_ = line.split()
            key = (self.bridge_of[device], mac)
            assert key not in self.fdb, f"two ways for {key}"
            self.fdb[key] = device
        self.addresses: dict[str, set[str]] = {}
        self.routes: dict[str, list[tuple[ipaddress.IPv4Network, str | None, str]]] = {}
        self.neighbours: dict[tuple[str, str, str], str] = {}
        for space, lines in plan.ip_lines.items():
            self.addresses[space], self.routes[space] = set(), []
            for words in map(str.split, lines):
                options = dict(itertools.pairwise(words))
                if words[:2] == ["addr", "add"]:
                    interface = ipaddress.ip_interface(words[2])
                    self.addresses[space].add(str(interface.ip))
                    if interface.network.prefixlen < 32:
                        self.routes[space].append((interface.network, None, options["dev"]))
                elif words[:2] == ["route", "add"] and "table" not in words:
                    self.routes[space].append((ipaddress.ip_network(words[2]), options.get("via"), options["dev"]))
                elif words[:2] == ["neigh", "add"]:
                    self.neighbours[space, words[2], options["dev"]] = options["lladdr"]

    def send(self, source: str, address: str) -> list[str]:
        """Names of the links a packet to ``address`` passes; fails where the kernel would drop it."""
        space, passed = source, []
        while address not in self.addresses[space]:
            matches = [route for route in self.routes[space] if ipaddress.ip_address(address) in route[0]]
            assert matches, f"{space} has no route to {address}"
            _, via, device = max(matches, key=lambda route: route[0].prefixlen)
            mac = self.neighbours[space, via or address, device]
            sender = next(end for end in self.plan.ends() if (end.space, end.device) == (space, device))
            passed.append(sender.link)
            end = self.across[space, device]
            while end.space == FABRIC:
                port = self.fdb[end.bridge, mac]
                assert port != end.device, "a bridge does not send a packet back"
                passed.append(next(e.link for e in self.plan.ends() if (e.space, e.device) == (FABRIC, port)))
                end = self.across[FABRIC, port]
            assert end.mac == mac, f"{end.space}:{end.device} ignores a packet for {mac}"
            space = end.space
            assert len(passed) < 100, "a loop"
        return passed


@pytest.mark.parametrize("expression", FABRICS)
def test_packets_reach_every_host_by_shortest_ways(expression: str) -> None:
    plan = make_plan(load(expression))
    walker = Walker(plan)
    hosts = plan.hosts if len(plan.hosts) < 20 else plan.hosts[::37]
    farthest = 0
    for a, b in itertools.permutations(hosts, 2):
        farthest = max(farthest, len(walker.send(a.name, b.address)))
    assert farthest == FABRICS[expression]


@pytest.mark.parametrize("expression", ["rails:3x2,net=200Mbit/s+100Mbit/s", "cluster:3x1,nics=2,net=100Mbit/s"])
def test_every_address_of_a_host_is_reached_at_its_own_interface(expression: str) -> None:
    plan = make_plan(load(expression))
    walker = Walker(plan)
    for host in plan.hosts:
        addresses = sorted(walker.addresses[host.name])
        assert len(addresses) == 2
        for other in plan.hosts:
            if other is not host:
                entries = {walker.send(other.name, address)[-1] for address in addresses}
                assert len(entries) == 2
        for address in addresses:
            assert f"{address} {host.name}" in plan.etc_hosts


def test_one_switch_in_full() -> None:
    plan = make_plan(load("cluster:2x2,net=200Mbit/s"))
    bundle = "gso_max_size 24000"
    assert plan.cable_lines({FABRIC: 11, "h0": 12, "h1": 13}) == (
        "link add br0 type bridge stp_state 0 mcast_snooping 0",
        f"link add eth0 {bundle} address 02:00:00:00:00:00 netns 12 type veth peer name p0b {bundle} address 02:01:00:00:00:00 netns 11",
        f"link add eth0 {bundle} address 02:00:00:00:00:01 netns 13 type veth peer name p1b {bundle} address 02:01:00:00:00:01 netns 11",
    )
    assert plan.ip_lines["h1"] == (
        "link set lo up",
        "link set eth0 up",
        "addr add 10.1.0.2/16 dev eth0",
        "neigh add 10.1.0.1 lladdr 02:00:00:00:00:00 dev eth0 nud permanent",
    )
    assert plan.shape_lines("h0") == ("qdisc add dev eth0 root tbf rate 200000000bit burst 32k limit 16mb",)
    assert plan.shape_lines(FABRIC) == tuple(
        f"qdisc add dev {port} root tbf rate 200000000bit burst 32k limit 16mb" for port in ("p0b", "p1b")
    )
    assert plan.etc_hosts.startswith("127.0.0.1 localhost\n10.1.0.1 h0\n10.1.0.2 h1\n")
    assert plan.subnets == ("10.1.0.0/16",)
    assert [host.device for host in plan.hosts] == ["eth0", "eth0"]
    assert not plan.routed


def test_uplinks_between_racks_have_their_own_rate() -> None:
    plan = make_plan(load("racks:2x2x1,net=200Mbit/s,uplink=100Mbit/s"))
    rates = {end.link: end.rate for end in plan.ends()}
    assert rates["rack0->core"] == rates["core->rack1"] == 12.5e6
    assert rates["h0.eth0->rack0"] == rates["rack0->h0.eth0"] == 25e6
    assert Walker(plan).send("h0", plan.host("h2").address) == ["h0.eth0->rack0", "rack0->core", "core->rack1", "rack1->h2.eth0"]


def test_hosts_without_a_switch_forward_and_have_one_address() -> None:
    plan = make_plan(load("ring:5,ranks=1,net=200Mbit/s"))
    assert plan.routed
    assert plan.bridges == {}
    assert {host.device for host in plan.hosts} == {HOST_DEVICE}
    walker = Walker(plan)
    assert all(len(walker.addresses[host.name]) == 1 for host in plan.hosts)
    assert walker.send("h0", plan.host("h3").address) == ["h0.eth1->h4.eth1", "h4.eth0->h3.eth1"]


@pytest.mark.parametrize(("expression", "links"), [("ring:4,net=1Gbit/s", 8), ("torus:4x4,net=1Gbit/s", 64), ("fattree:k=4", 96)])
def test_equally_short_ways_are_shared_out(expression: str, links: int) -> None:
    """On a symmetric fabric with traffic between all pairs, no link carries more than half as much again as the average one of its kind."""
    plan = make_plan(load(expression))
    walker = Walker(plan)
    load_of: Counter[str] = Counter()
    for a, b in itertools.permutations(plan.hosts, 2):
        load_of.update(walker.send(a.name, b.address))
    assert len(load_of) == links
    kinds: dict[tuple[str, ...], list[int]] = {}
    for link, flows in load_of.items():
        kinds.setdefault(tuple(end.rstrip("0123456789.")[:2] for end in link.split("->")), []).append(flows)
    for flows_of_kind in kinds.values():
        assert max(flows_of_kind) <= 1.5 * sum(flows_of_kind) / len(flows_of_kind)


def test_routes_are_the_same_every_time() -> None:
    first, second = (make_plan(load("torus:4x4,net=1Gbit/s")) for _ in range(2))
    assert first.ip_lines == second.ip_lines
    assert first.fdb_lines == second.fdb_lines


def test_spread_prefers_links_with_room() -> None:
    graph = {"a": {"thin": 2.0, "wide": 3.0}, "thin": {"z": 2.0}, "wide": {"z": 3.0}, "z": {}}
    ways = [table["a"] for table in spread(graph, ["z"] * 10)]
    # Both nodes in between send 10 flows of their own: 12 of 2 and 18 of 3 fill both links alike.
    assert ways.count("wide") == 8


def test_spread_lets_the_first_targets_know_of_the_later_ones() -> None:
    """Opposite hosts of a ring have two ways of equal length, which must be taken alike."""
    ring = {host: {(host + 1) % 8: 1.0, (host - 1) % 8: 1.0} for host in range(8)}
    load: Counter[tuple[int, int]] = Counter()
    for target, table in zip(ring, spread(ring, list(ring)), strict=True):
        for host in table:
            while host != target:
                load[host, table[host]] += 1
                host = table[host]
    assert max(load.values()) <= 9  # 8 on average


def fabric(links: list[tuple[str, str, float]], hosts: str = "ab", switches: tuple[str, ...] = ()) -> Topology:
    vertices = [Vertex(host, VertexKind.HOST) for host in hosts]
    vertices += [Vertex(f"{host}.s", VertexKind.SLOT, host) for host in hosts]
    vertices += [Vertex(switch, VertexKind.SWITCH) for switch in switches]
    return Topology("test", vertices, [Link(*link) for link in links])


def test_each_direction_is_shaped_to_its_own_rate() -> None:
    plan = make_plan(fabric([("a", "b", 1e6), ("b", "a", 2e6)]))
    assert plan.shape_lines("a") == ("qdisc add dev eth0 root tbf rate 8000000bit burst 32k limit 16mb",)
    assert plan.shape_lines("b") == ("qdisc add dev eth0 root tbf rate 16000000bit burst 32k limit 16mb",)


def test_parallel_links_add_up_in_one_cable() -> None:
    plan = make_plan(fabric([("a", "b", 1e6), ("b", "a", 1e6), ("b", "a", 2e6), ("a", "b", 3e6)]))
    assert {end.link: end.rate for end in plan.ends()} == {"a->b": 4e6, "b->a": 3e6}


def test_links_inside_a_host_are_not_built() -> None:
    plan = make_plan(load("dgx-a100:1"))
    assert plan.cables == ()
    assert len(plan.hosts) == 1


def test_hosts_on_different_switches_joined_by_a_host_are_routed_through_it() -> None:
    both = [("a", "s0"), ("b", "s0"), ("b", "s1"), ("c", "s1")]
    plan = make_plan(fabric([(x, y, 1e6) for x, y in both] + [(y, x, 1e6) for x, y in both], "abc", ("s0", "s1")))
    assert plan.routed
    assert Walker(plan).send("a", plan.host("c").address) == ["a->s0", "s0->b", "b->s1", "s1->c"]


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (fabric([("a", "b", 1e6)]), "link a->b has no link back"),
        (fabric([]), "host 'b' has no way over the network to host 'a'"),
        (Topology("test", [Vertex("s", VertexKind.SWITCH)], []), "has no hosts"),
        (
            Topology(
                "test",
                [Vertex("a", VertexKind.HOST), Vertex("n", VertexKind.NIC)],
                [Link("a", "n", 1.0), Link("n", "a", 1.0)],
            ),
            "nic 'n' belongs to no host",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(topology: Topology, message: str) -> None:
    with pytest.raises(LabError, match=message):
        make_plan(topology)


def test_host_names_are_legal_and_distinct() -> None:
    names = host_names(("h0", "Node_1.rack", "rack 0/a", "rack-0-a", "7", "fabric", "..", "localhost"))
    assert list(names.values()) == ["h0", "Node_1.rack", "rack-0-a", "rack-0-a-2", "h7", "fabric-2", "h", "localhost-2"]


def test_an_unknown_host_is_named_with_the_known_ones() -> None:
    plan = make_plan(load("cluster:2x1"))
    with pytest.raises(LabError, match="unknown host 'h9'; known hosts: h0, h1"):
        plan.host("h9")


MBIT = 125e3
FILES: dict[str, tuple[int, int, set[float]]] = {
    "cluster-2x4": (2, 8, {200}),
    "cluster-4x2": (4, 8, {200}),
    "cluster-8x1": (8, 8, {200}),
    "line-4": (4, 4, {200}),
    "mesh-2x3": (6, 6, {200}),
    "rails-2": (4, 8, {200, 100}),
    "ring-5": (5, 5, {200}),
    "slow-nic": (4, 4, {200, 50}),
    "two-racks": (4, 4, {200, 100}),
    "uneven-3-2-1": (3, 6, {200}),
}


def test_the_fabrics_of_the_benchmarks() -> None:
    """Hosts, ranks and Mbit/s of the files in bench/fabrics; all hosts of each reach each other."""
    found = {}
    for file in sorted(FABRIC_FILES.glob("*.yaml")):
        plan = make_plan(load(file))
        walker = Walker(plan)
        for a, b in itertools.permutations(plan.hosts, 2):
            walker.send(a.name, b.address)
        found[file.stem] = (len(plan.hosts), plan.topology.num_ranks, {end.rate / MBIT for end in plan.ends()})
    assert found == FILES
