"""Bounds: known optima come out, and no simple schedule on the same routes is ever faster."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoccl.topology import Topology
from topoccl.topology.bounds import lower_bound, tightest_cuts
from topoccl.topology.load import load
from topoccl.topology.routes import Routes

HOSTS = "latency=0,net=1GB/s,memory=1TB/s,memory_latency=0"
BARE = "latency=0,net=1GB/s"


@pytest.mark.parametrize(
    ("spec", "collective", "root", "expected"),
    [
        (f"cluster:4x2,{HOSTS}", "all_reduce", None, 2 * 3 / 4),
        (f"cluster:4x2,placement=round_robin,{HOSTS}", "all_reduce", None, 2 * 3 / 4),
        (f"cluster:3+2+1,{HOSTS}", "all_reduce", None, 2 * 2 / 3),
        (f"ring:5,ranks=1,{HOSTS}", "all_reduce", None, 4 / 5),
        (f"ring:5,ranks=1,{HOSTS}", "broadcast", 2, 1 / 2),
        (f"ring:5,ranks=1,{HOSTS}", "all_gather", None, 2 / 5),
        (f"mesh:2x3,ranks=1,{HOSTS}", "all_reduce", None, 5 / 7),
        (f"mesh:2x3,ranks=1,{HOSTS}", "broadcast", 0, 1 / 2),
        (f"line:4,{BARE}", "all_reduce", None, 1.0),
        (f"line:4,{BARE}", "all_to_all", None, 4 / 4),
        (f"racks:2x2x1,oversub=4,placement=alternate,{HOSTS}", "all_reduce", None, 2.0),
        (f"racks:2x2x1,oversub=4,placement=alternate,{HOSTS}", "all_to_all", None, 2.0),
        (f"cluster:4x1,{HOSTS.replace('1GB/s', '1GB/s+1GB/s+1GB/s+250MB/s')}", "all_reduce", None, 4.0),
        (f"cluster:4x2,{HOSTS}", "all_to_all", None, 2 * 6 / 8),
        (f"cluster:4x2,{HOSTS}", "gather", 0, 6 / 8),
        (f"cluster:4x2,{HOSTS}", "scatter", 5, 6 / 8),
        (f"cluster:4x2,{HOSTS}", "reduce", 0, 1.0),
        (f"cluster:4x2,{HOSTS}", "reduce_scatter", None, 6 / 8),
        (f"ring:8,{BARE}", "all_gather", None, 7 / 2 / 8),
        (f"ring:8,{BARE}", "all_to_all", None, 8 * 7 * (16 / 7) / 8 / 16),
        (f"torus:4x4,{BARE}", "all_gather", None, 15 / 4 / 16),
        ("dgx-a100:1,nvlink=1GB/s", "all_reduce", None, 2 * 7 / 8),
    ],
)
def test_known_optima(spec: str, collective: str, root: int | None, expected: float) -> None:
    bound = lower_bound(load(spec), collective, 10**9, root)
    assert bound.seconds == pytest.approx(expected, rel=1e-12)
    assert bound.links


def test_the_binding_cut_of_two_dgx_is_one_accelerator() -> None:
    topology = load("dgx-a100:2")
    bound = lower_bound(topology, "all_gather", 16 * 10**9)
    assert bound.seconds == pytest.approx(3 / 65)
    assert {topology.links[link].name for link in bound.links} == {"h0.nvswitch->h0.s0", "h0.pcie0->h0.s0"}
    assert bound.description == "rank 0 can only be reached over h0.nvswitch->h0.s0, h0.pcie0->h0.s0: 325GB/s"


def test_uneven_boxes_with_one_uplink() -> None:
    """Four and two accelerators, 100 each into their switch, one uplink of 10: all_gather takes 4/10 of a rank's block."""
    topology = load("cluster:4+2,net=10GB/s,memory=100GB/s,latency=0,memory_latency=0")
    assert lower_bound(topology, "all_gather", 6 * 10**9).seconds == pytest.approx(2 / 5)


def test_small_calls_are_bound_by_latency() -> None:
    topology = load("cluster:2x2,latency=20us")
    bound = lower_bound(topology, "all_reduce", 4)
    assert bound.seconds == bound.latency_seconds == pytest.approx(43e-6)
    assert bound.description == "latency between ranks 0 and 2: 43us"
    assert bound.links == ()
    assert lower_bound(topology, "barrier", 0).seconds == pytest.approx(43e-6)
    assert lower_bound(load("line:5,latency=1us"), "broadcast", 1, 2).seconds == pytest.approx(2e-6)
    assert lower_bound(load("cluster:1x1"), "all_reduce", 1 << 20).seconds == 0


def test_arguments_are_checked() -> None:
    topology = load("ring:4")
    with pytest.raises(ValueError, match="unknown collective 'allsum'; known: all_reduce"):
        lower_bound(topology, "allsum", 1)
    with pytest.raises(ValueError, match="broadcast: root is None; expected a rank below 4"):
        lower_bound(topology, "broadcast", 1)
    with pytest.raises(ValueError, match="reduce: root is 4; expected a rank below 4"):
        lower_bound(topology, "reduce", 1, 4)
    with pytest.raises(ValueError, match="all_reduce: root is 0; it has none"):
        lower_bound(topology, "all_reduce", 1, 0)
    with pytest.raises(ValueError, match="-1 bytes"):
        lower_bound(topology, "all_reduce", -1)


def busiest(topology: Topology, messages: list[tuple[int, int, float]]) -> float:
    """Seconds of the busiest link when all messages move at once in an endless stream."""
    loads = Routes(topology).link_bytes(messages)
    return max((load / link.bandwidth for load, link in zip(loads.tolist(), topology.links, strict=True)), default=0.0)


SPECS = st.sampled_from(
    [
        *("ring:6", "line:5", "torus:3x3", "mesh:2x3,ranks=2", "cluster:3+2+1", "cluster:2x3,nics=2", "rails:3x2,net=1GB/s+500MB/s"),
        *("racks:3x2x1,oversub=3", "fattree:k=4", "dgx-1v:1", "dgx-1v:2", "dgx-a100:2,fabric=rails", "cluster:1x4"),
    ]
)


@settings(deadline=None, max_examples=60)
@given(SPECS, st.data())
def test_no_plain_schedule_beats_the_bound(spec: str, data: st.DataObject) -> None:
    """Rings, chains and direct exchanges, endlessly pipelined, on random placements of random sub-groups."""
    fabric = load(spec)
    order = data.draw(st.permutations(range(fabric.num_ranks)))
    p = data.draw(st.integers(2, fabric.num_ranks))
    topology = fabric.place(order[:p])
    n, root = 1 << 20, data.draw(st.integers(0, p - 1))
    block = n / p
    ring = [(rank, (rank + 1) % p) for rank in range(p)]
    chain = [((root + step) % p, (root + step + 1) % p) for step in range(p - 1)]
    pairs = [(a, b) for a in range(p) for b in range(p) if a != b]
    schedules: list[tuple[str, int | None, list[tuple[int, int, float]]]] = [
        ("all_reduce", None, [(a, b, 2 * (p - 1) * block) for a, b in ring]),
        ("all_gather", None, [(a, b, (p - 1) * block) for a, b in ring]),
        ("reduce_scatter", None, [(a, b, block) for a, b in pairs]),
        ("all_to_all", None, [(a, b, block) for a, b in pairs]),
        ("broadcast", root, [(a, b, n) for a, b in chain]),
        ("reduce", root, [(b, a, n) for a, b in chain]),
        ("gather", root, [(a, root, block) for a in range(p) if a != root]),
        ("scatter", root, [(root, a, block) for a in range(p) if a != root]),
    ]
    for collective, where, messages in schedules:
        bound = lower_bound(topology, collective, n, where)
        assert bound.bandwidth_seconds <= busiest(topology, messages) * (1 + 1e-9), (collective, bound.description)
        assert bound.latency_seconds <= max(Routes(topology).latency(Routes(topology).path(a, b)) for a, b in pairs) + 1e-12


def test_a_thousand_hosts() -> None:
    bound = lower_bound(load("cluster:1024x8"), "all_reduce", 1 << 30)
    assert bound.seconds == pytest.approx(2 * 1023 / 1024 * 2**30 / 1.25e9)


def test_all_cuts_that_are_tightest() -> None:
    def named(spec: str) -> tuple[float, set[str]]:
        topology = load(spec)
        seconds, links = tightest_cuts(topology, "all_reduce")
        return seconds, {topology.links[link].name for link in links}

    seconds, names = named("racks:2x4x2,oversub=16")
    assert names == {"rack0->core", "core->rack0", "rack1->core", "core->rack1"}
    assert seconds == pytest.approx(1 / 312.5e6)
    assert named("dgx-a100:2,net=25GB/s")[1] == {f"h{h}.ib{n}->ib0" for h in (0, 1) for n in range(8)} | {
        f"ib0->h{h}.ib{n}" for h in (0, 1) for n in range(8)
    }
    assert len(named("torus:4x4")[1]) == 64
    assert named("cluster:1x1") == (0.0, set())
