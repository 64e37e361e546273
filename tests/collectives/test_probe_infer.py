"""The probe on networks that exist only as topologies: what was planted is found, in spite of noise."""

from __future__ import annotations

from pathlib import Path

import pytest
from probe_fabric import Simulated, rates, structure

from topoccl.collectives.probe.build import Builder, Setting
from topoccl.collectives.probe.fit import Fit
from topoccl.collectives.probe.infer import infer
from topoccl.collectives.probe.racks import Racks
from topoccl.collectives.probe.report import summary
from topoccl.collectives.probe.sharing import fill, share
from topoccl.collectives.probe.table import Flow, Outcome, Table, level
from topoccl.topology.dump import dump
from topoccl.topology.files import loads
from topoccl.topology.load import load

REPOSITORY = Path(__file__).resolve().parents[2]
FABRICS = sorted(path.stem for path in (REPOSITORY / "bench" / "fabrics").glob("*.yaml"))
GENERATED = [
    "cluster:2x1",
    "cluster:3x1",
    "cluster:16x1",
    "cluster:4x2,placement=round_robin",
    "cluster:4x1,net=200Mbit/s+100Mbit/s+100Mbit/s+50Mbit/s",
    "racks:2x2x1,net=200Mbit/s,uplink=200Mbit/s",
    "racks:2x4x2,oversub=2,placement=alternate",
    "racks:3x4x1,oversub=2",
    "racks:4x4x1,oversub=4,placement=alternate",
    "racks:2x8x1,oversub=2,placement=alternate",
    "ring:3,ranks=1",
    "ring:4,ranks=1",
    "ring:8,ranks=1",
    "ring:5,ranks=2",
    "line:6,ranks=1",
    "mesh:3x3,ranks=1",
    "torus:3x3,ranks=1",
]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("fabric", [*FABRICS, *GENERATED])
def test_planted_structure_is_found(fabric: str, seed: int) -> None:
    topology = load(fabric if ":" in fabric else REPOSITORY / "bench" / "fabrics" / f"{fabric}.yaml")
    table, found = Simulated(topology, seed=seed).probe()
    if fabric == "rails-2":  # ranks leave by one NIC or the other, and both look alike from outside
        assert len(structure(found)[0]) == 1
        return
    assert structure(found) == structure(topology), summary(table, found, 0)
    planted = rates(topology)
    for ends, rate in rates(found).items():
        assert rate == pytest.approx(planted[ends], rel=0.1), ends


@pytest.mark.parametrize("fabric", ["slow-nic", "two-racks", "cluster-4x2", "ring-5", "line-4"])
def test_a_busy_machine_makes_no_difference(fabric: str) -> None:
    topology = load(REPOSITORY / "bench" / "fabrics" / f"{fabric}.yaml")
    right = 0
    for seed in range(5):
        _, found = Simulated(topology, noise=0.03, disturbed=0.25, seed=seed).probe()
        right += structure(found) == structure(topology)
    assert right >= 4


@pytest.mark.parametrize("hosts", [8, 16, 32])
def test_repetitions_grow_as_the_number_of_hosts(hosts: int) -> None:
    network = Simulated(load(f"cluster:{hosts}x1"))
    table, _ = network.probe(budget=600)
    assert table.complete
    assert network.repetitions < 18 * hosts
    for outcome in table.of_kind("one_way", "both_ways", "cross"):  # rounds of disjoint pairs
        pairs = {frozenset(flow) for flow in outcome.flows}
        assert sum(map(len, pairs)) == len(frozenset().union(*pairs))


def test_links_say_where_they_come_from_and_how_sure_that_is() -> None:
    _, found = Simulated(load(REPOSITORY / "bench" / "fabrics" / "two-racks.yaml")).probe()
    net = [link for link in found.links if link.kind == "net"]
    assert {link.attrs["source"] for link in net} == {"measured"}
    assert all(0.5 < link.attrs["confidence"] < 1 for link in net)
    assert {link.attrs["source"] for link in found.links if link.kind == "shm"} == {"default"}
    text = dump(found)
    assert loads(text) == found
    assert dump(loads(text)) == text


def test_ranks_keep_their_places() -> None:
    topology = load("cluster:3x2,placement=round_robin")
    _, found = Simulated(topology).probe()
    assert found.host_of_rank == topology.host_of_rank


def test_ranks_with_nics_of_their_own() -> None:
    topology = load("rails:4x2,net=200Mbit/s")
    _, found = Simulated(topology, seed=3).probe()
    nics = [link for link in found.links if link.kind == "net" and link.src.startswith("h0.")]
    assert [link.src for link in nics] == ["h0.eth0", "h0.eth1"]
    assert all(link.bandwidth == pytest.approx(25e6, rel=0.15) for link in nics)


def test_one_rank_that_does_not_fill_a_nic() -> None:
    """Each rank moves 10 MB/s, the NIC 25: together four ranks fill it, and it is one NIC."""
    topology = load("cluster:2x4,net=200Mbit/s,memory=80Mbit/s")
    _, found = Simulated(topology, noise=0.02).probe()
    nics = [link for link in found.links if link.kind == "net" and link.dst == "switch0"]
    assert [link.src for link in nics] == ["h0.eth0", "h1.eth0"]
    assert all(link.bandwidth == pytest.approx(25e6, rel=0.1) for link in nics)


def test_a_slow_cable_in_a_ring() -> None:
    topology = loads(
        "defaults: {slots: 1, rate: 200Mbit/s}\nhosts: [a, b, c, d, e]\ncables:\n"
        "- {between: [a, b]}\n- {between: [b, c]}\n- {between: [c, d], rate: 80Mbit/s}\n- {between: [d, e]}\n- {between: [e, a]}\n"
    )
    _, found = Simulated(topology, noise=0.03).probe()
    assert structure(found) == structure(topology)
    assert rates(found)["c", "d"] == pytest.approx(10e6, rel=0.1)
    assert rates(found)["a", "b"] == pytest.approx(25e6, rel=0.1)


def test_without_time_what_is_known_is_still_a_topology() -> None:
    topology = load("cluster:8x1,net=200Mbit/s")
    table, found = Simulated(topology).probe(budget=2)
    assert not table.complete
    assert found.num_ranks == 8
    assert "budget" in summary(table, found, 2.0)


def test_one_host_has_no_network() -> None:
    found = infer(Table([[0, 1, 2]]), Setting(["here"]))
    assert (found.num_ranks, found.hosts) == (3, ("here",))
    assert all(link.kind == "shm" for link in found.links)


def test_rates_are_those_of_the_wire() -> None:
    table = Table([[0], [1]])
    for kind in ("one_way", "both_ways"):
        table.add(Outcome(kind, (Flow(0, 1),), ((23.75e6,),)))
        table.add(Outcome(kind, (Flow(1, 0),), ((23.75e6,),)))
    table.latencies[0, 1] = 113e-6
    found = infer(table, Setting(["a", "b"], efficiency=0.95, overhead=80e-6))
    links = [link for link in found.links if link.kind == "net"]
    assert {link.bandwidth for link in links} == {25e6}
    assert {link.latency for link in links} == {15e-6}  # half of 113 less 80 and four steps inside hosts


def test_a_wrong_structure_explains_less() -> None:
    topology = load(REPOSITORY / "bench" / "fabrics" / "two-racks.yaml")
    table, found = Simulated(topology).probe()
    builder = Builder(table, Setting([topology.host_of_rank[ranks[0]] for ranks in table.hosts]))
    flat = builder.build(Racks.of(table, ((0, 1, 2, 3),)))
    assert Fit(table, found, 1.0).misfit < 0.1 < Fit(table, flat, 1.0).misfit


def test_measuring_again_adds_to_what_is_known() -> None:
    table = Table([[0], [1], [2]])
    flows = (Flow(0, 1), Flow(0, 2))
    table.add(Outcome("together", flows, ((4.0, 6.0),)))
    table.add(Outcome("together", flows[::-1], ((12.0, 8.0),)))
    assert [outcome.runs for outcome in table.outcomes] == [((4.0, 6.0), (8.0, 12.0))]
    assert table.outcomes[0].total == 20.0
    assert table.find("together", flows) is table.outcomes[0]
    assert table.find("alone", flows) is None


def test_level_is_near_the_highest() -> None:
    assert level([]) == 0.0
    assert level([3.0]) == 3.0
    assert level([10.0, 9.5, 9.0, 2.0, 5.0]) == 9.5


def test_share_is_max_min() -> None:
    capacity = [10.0, 4.0, 100.0]
    assert share([[0], [0, 1], [1]], capacity) == [8.0, 2.0, 2.0]
    assert share([[0, 2], [0, 2]], capacity) == [5.0, 5.0]
    assert share([[0], [0]], capacity, [1.0, 3.0]) == [2.5, 7.5]
    assert share([[], [1]], capacity) == [float("inf"), 4.0]
    assert share([], capacity) == []
    assert fill([[0], [0, 1], [1], []], capacity)[1] == [0, 1, 1, None]


def test_how_flows_divide_a_full_link_says_nothing_about_the_structure() -> None:
    """Two racks whose uplink carries both flows: one gets nearly all of it, then the other."""
    topology = load("racks:2x2x1,net=200Mbit/s,uplink=200Mbit/s")
    flows = (Flow(0, 2), Flow(1, 3))
    for rates_of in ((24e6, 1e6), (12.5e6, 12.5e6)):
        table = Table([[0], [1], [2], [3]])
        table.add(Outcome("one_way", flows, (rates_of,)))
        assert Fit(table, topology, 1.0).misfit == pytest.approx(0.0)
