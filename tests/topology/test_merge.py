"""Several descriptions of one fabric: what is the same, who is believed, who said what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoccl.topology import Link, Topology, TopologyError, Vertex, VertexKind
from topoccl.topology.dump import dump
from topoccl.topology.files import loads
from topoccl.topology.load import load
from topoccl.topology.merge import Merged, Origin, Part, merge
from topoccl.topology.routes import Routes

SPECS = [
    "cluster:3x2",
    "cluster:3x2,net=1Gbit/s",
    "racks:2x2x2",
    "rails:2x2",
    "ring:4",
    "ring:3,ranks=2",
    "dgx-1v:2",
    "dgx-a100:1",
    "torus:2x3",
]


def nets(topology: Topology) -> dict[str, Link]:
    return {link.name: link for link in topology.links if link.kind == "net"}


def of(*parts: tuple[Origin, str | Topology]) -> Merged:
    return merge([Part(origin, load(spec) if isinstance(spec, str) else spec) for origin, spec in parts])


@pytest.mark.parametrize("spec", SPECS)
def test_one_description_stays_what_it_is(spec: str) -> None:
    topology = load(spec)
    merged = of((Origin.USER, topology))
    assert merged.contradictions == ()
    same = merged.topology
    assert same.slots == topology.slots
    assert [(v.id, v.kind, v.host) for v in same.vertices.values()] == [(v.id, v.kind, v.host) for v in topology.vertices.values()]
    assert [(k.name, k.bandwidth, k.latency, k.kind) for k in same.links] == [
        (k.name, k.bandwidth, k.latency, k.kind) for k in topology.links
    ]
    assert {v.attrs["source"] for v in same.vertices.values()} == {k.attrs["source"] for k in same.links} == {"user"}
    assert loads(dump(same)) == same


@pytest.mark.parametrize("spec", SPECS)
def test_the_same_twice_is_still_one(spec: str) -> None:
    for weaker in Origin:
        merged = of((Origin.USER, spec), (weaker, spec))
        assert merged.contradictions == ()
        assert len(merged.topology.links) == len(load(spec).links)
        assert list(merged.topology.vertices) == list(load(spec).vertices)


def test_the_stronger_wins_whatever_the_order() -> None:
    parts = [
        Part(Origin.SYSFS, load("cluster:2x1,net=100Gbit/s"), "sysfs"),
        Part(Origin.USER, load("cluster:2x1,net=400Gbit/s"), "cluster.yaml"),
        Part(Origin.MEASURED, load("cluster:2x1,net=20Gbit/s"), "probe.yaml"),
    ]
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        merged = merge([parts[i] for i in order])
        link = nets(merged.topology)["h0.eth0->sw0"]
        assert (link.bandwidth, link.attrs["source"]) == (50e9, "user")
        told = [one for one in merged.contradictions if one.subject == "h0.eth0->sw0"]
        assert [(one.attribute, one.values) for one in told] == [
            ("bandwidth", (("user (cluster.yaml)", 50e9), ("measured (probe.yaml)", 2.5e9), ("sysfs (sysfs)", 12.5e9)))
        ]
    merged = merge(parts[::2])
    assert nets(merged.topology)["h0.eth0->sw0"].bandwidth == 2.5e9, "measured beats sysfs"


def machine(net: Mapping[str, Any], bandwidth: float = 1.25e9, latency: float = 5e-6) -> Topology:
    vertices = [
        *(Vertex(h, VertexKind.HOST) for h in "ab"),
        *(Vertex(f"{h}.s0", VertexKind.SLOT, h) for h in "ab"),
        *(Vertex(f"{h}.eth0", VertexKind.NIC, h) for h in "ab"),
        Vertex("sw", VertexKind.SWITCH),
    ]
    links = []
    for h in "ab":
        for x, y, kind, rate, far, attrs in (
            (f"{h}.s0", h, "shm", 1e10, 1e-6, {}),
            (h, f"{h}.eth0", "pcie", 1e10, 1e-6, {}),
            (f"{h}.eth0", "sw", "net", bandwidth, latency, net),
        ):
            links += [Link(x, y, rate, far, kind, attrs), Link(y, x, rate, far, kind, attrs)]
    return Topology("machine", vertices, links)


def test_a_default_gives_way_figure_by_figure() -> None:
    declared = machine({"sources": {"bandwidth": "default"}}, latency=9e-6)
    merged = of((Origin.USER, declared), (Origin.MEASURED, machine({"confidence": 0.9}, bandwidth=2e9, latency=1e-6)))
    link = nets(merged.topology)["a.eth0->sw"]
    assert (link.bandwidth, link.latency) == (2e9, 9e-6)
    assert link.attrs == {"confidence": 0.9, "source": "measured", "sources": {"latency": "user"}}
    assert [one.attribute for one in merged.contradictions] == ["latency", "latency"], "defaults contradict nothing"
    again = of((Origin.USER, merged.topology), (Origin.SYSFS, machine({}, bandwidth=7e9)))
    assert nets(again.topology)["a.eth0->sw"].bandwidth == 2e9, "what was merged remembers where it is from"


def test_what_was_only_seen_to_carry_at_least_so_much_is_no_contradiction() -> None:
    merged = of((Origin.SYSFS, machine({}, bandwidth=9e9)), (Origin.MEASURED, machine({"limits": False}, bandwidth=1e9)))
    assert nets(merged.topology)["a.eth0->sw"].bandwidth == 9e9
    assert merged.contradictions == ()


def test_small_differences_are_no_contradiction() -> None:
    assert of((Origin.USER, "cluster:2x1,net=10Gbit/s"), (Origin.MEASURED, "cluster:2x1,net=9.4Gbit/s")).contradictions == ()
    (one,) = of((Origin.USER, "ring:2,net=10Gbit/s"), (Origin.MEASURED, "ring:2,net=7Gbit/s")).contradictions
    assert one.subject == "h0.s0->h1.s0", "both directions are told once"


def test_hosts_parts_and_switches_of_other_names() -> None:
    """One machine each: the host, the only NIC and the ranks are the same whatever they are called; so is the switch they hang on."""
    theirs = loads(
        "hosts: [{name: x, parts: [{id: x.gpu0, kind: slot}, {id: x.gpu1, kind: slot}, {id: x.nic, kind: nic, attrs: {guid: '0x1'}}]}]\n"
        "switches: [leaf]\n"
        "links: [{between: [x.nic, leaf], bandwidth: 1GB/s, kind: net}, {between: [x.gpu0, x.gpu1], bandwidth: 5GB/s, kind: nvlink}]"
    )
    ours = loads("hosts: [{name: box, slots: 2, nics: [{rate: 10Gbit/s, to: sw}]}]\nswitches: [sw]")
    merged = of((Origin.USER, ours), (Origin.VENDOR, theirs)).topology
    assert set(merged.vertices) == {"box", "box.s0", "box.s1", "box.eth0", "sw"}
    nvlink = [link for link in merged.links if link.kind == "nvlink"]
    assert [link.name for link in nvlink] == ["box.s0->box.s1", "box.s1->box.s0"]
    assert merged.vertices["box.eth0"].attrs == {"guid": "0x1", "source": "user", "sources": {"guid": "vendor"}}


def test_what_never_changes_identifies() -> None:
    def two(first: str, second: str, names: str) -> Topology:
        parts = ", ".join(f"{{id: h.{n}, kind: nic, attrs: {{busid: '{bus}'}}}}" for n, bus in zip(names, (first, second), strict=True))
        return loads(f"hosts: [{{name: h, slots: 1, parts: [{parts}]}}]")

    swapped = of((Origin.VENDOR, two("0000:01:00.0", "0000:02:00.0", "ab")), (Origin.SYSFS, two("0000:02:00.0", "0000:01:00.0", "cd")))
    assert [v.id for v in swapped.topology.vertices.values() if v.kind is VertexKind.NIC] == ["h.a", "h.b"]
    same_name = of((Origin.VENDOR, two("0000:01:00.0", "0000:02:00.0", "ab")), (Origin.SYSFS, two("0000:02:00.0", "0000:01:00.0", "ab")))
    assert same_name.topology.vertices["h.a"].attrs["busid"] == "0000:01:00.0"
    assert same_name.contradictions == ()


def test_nothing_is_counted_twice() -> None:
    """The user hangs the NIC on the host and knows one; sysfs hangs two on NUMA nodes."""
    user = loads("hosts: [{name: h, slots: 2, nics: [{name: ib0, rate: 100Gbit/s, to: sw}]}]\nswitches: [sw]")
    sysfs = loads(
        "hosts: [{name: h, numa: [{slots: 1}, {slots: 1}], "
        "nics: [{name: eth0, rate: 1Gbit/s, numa: numa0}, {name: ib0, rate: 90Gbit/s, numa: numa1}]}]"
    )
    merged = of((Origin.USER, user), (Origin.SYSFS, sysfs))
    assert set(merged.topology.vertices) == {"h", "h.s0", "h.s1", "h.ib0", "sw"}
    assert len(merged.topology.links) == len(user.links)
    assert [(one.subject, one.attribute, one.values) for one in merged.contradictions] == [
        ("h", "number of NICs", (("user", 1), ("sysfs", 2)))
    ]


def test_what_is_missing_comes_from_the_weaker() -> None:
    inside = loads("hosts: [{name: a, numa: [{slots: 1}, {slots: 1}]}, {name: b, numa: [{slots: 1}, {slots: 1}]}]")
    network = loads("hosts: [{name: a, nics: [{rate: 1Gbit/s, to: sw}]}, {name: b, nics: [{rate: 1Gbit/s, to: sw}]}]\nswitches: [sw]")
    merged = of((Origin.MEASURED, network), (Origin.SYSFS, inside)).topology
    assert merged.num_ranks == 4
    assert {vertex.kind for vertex in merged.vertices.values()} >= {VertexKind.NUMA, VertexKind.SWITCH}
    assert Routes(merged).path(0, 2)
    assert merged.vertices["a.numa0"].attrs["source"] == "sysfs"


def test_a_host_that_only_one_knows_is_added() -> None:
    merged = of((Origin.USER, "cluster:2x1"), (Origin.SYSFS, "cluster:3x1")).topology
    assert merged.hosts == ("h0", "h1", "h2")
    assert merged.num_ranks == 3
    assert Routes(merged).path(0, 2)


def test_notes_add_up_and_nothing_is_refused() -> None:
    def noted(*notes: str) -> Topology:
        return Topology("n", [Vertex("h", VertexKind.HOST, None, {"notes": list(notes)}), Vertex("h.s0", VertexKind.SLOT, "h")], [])

    merged = of((Origin.USER, noted("a", "b")), (Origin.SYSFS, noted("b", "c"))).topology
    assert merged.vertices["h"].attrs["notes"] == ["a", "b", "c"]
    with pytest.raises(TopologyError, match="nothing to merge"):
        merge([])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(list(Origin)), st.sampled_from(SPECS)), min_size=1, max_size=3))
def test_any_descriptions_make_one(parts: list[tuple[Origin, str]]) -> None:
    merged = of(*parts)
    strongest = max(origin for origin, _ in parts)
    base = load(next(spec for origin, spec in parts if origin is strongest))
    assert merged.topology.slots[: base.num_ranks] == base.slots
    assert set(base.vertices) <= set(merged.topology.vertices)
    assert {link.name for link in base.links} <= {link.name for link in merged.topology.links}
    assert loads(dump(merged.topology)) == merged.topology
    assert of(*parts).topology.digest == merged.topology.digest
