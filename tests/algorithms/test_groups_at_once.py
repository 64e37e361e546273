"""Groups that run at once: what they share, who is slowed, and by which link."""

from __future__ import annotations

import pytest

from topoccl.algorithms.calibration import IDEAL
from topoccl.algorithms.concurrent import Group, check_groups, limits_in_words, mesh_groups, together
from topoccl.algorithms.select import select
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology
from topoccl.topology.load import load

M = 1 << 20
FABRIC = load("cluster:4x2,net=25MB/s,latency=0")


def group(name: str, ranks: tuple[int, ...], nbytes: int, topology: Topology = FABRIC, collective: str = "all_reduce") -> Group:
    spec = CollectiveSpec(collective, len(ranks), 0 if collective == "broadcast" else None)
    return Group(name, ranks, select(spec, topology.place(ranks), nbytes, 4))


def test_meshes_are_those_of_torch() -> None:
    assert mesh_groups({"dp": 2, "tp": 3}, 6) == {"dp": [(0, 3), (1, 4), (2, 5)], "tp": [(0, 1, 2), (3, 4, 5)]}
    assert mesh_groups({"a": 2, "b": 1, "c": 2}, 4)["b"] == [(0,), (1,), (2,), (3,)]
    with pytest.raises(ValueError, match="a mesh of 4x2 has 8 places, but there are 9 ranks"):
        mesh_groups({"a": 4, "b": 2}, 9)


def test_equal_groups_on_one_link_take_turns() -> None:
    columns = [group(f"dp {at}", ranks, 4 * M) for at, ranks in enumerate(mesh_groups({"dp": 4, "tp": 2}, 8)["dp"])]
    found = together(columns, FABRIC, IDEAL)
    for share in found.shares:
        assert share.seconds == pytest.approx(2 * share.alone, rel=0.03)
        assert share.on_limit == pytest.approx(12.5e6, rel=1e-6)
    assert found.rate == pytest.approx(25e6, rel=1e-6)
    assert found.link is not None
    assert "net" in FABRIC.links[found.link].kind
    assert "2 groups together use 100% of it" in limits_in_words(FABRIC, found)


def test_groups_without_a_common_link_do_not_slow_each_other() -> None:
    rows = [group(f"tp {at}", ranks, 4 * M) for at, ranks in enumerate(mesh_groups({"dp": 4, "tp": 2}, 8)["tp"])]
    found = together([*rows, group("dp", (0, 2, 4, 6), 4 * M)], FABRIC, IDEAL)
    assert [share.seconds for share in found.shares] == pytest.approx([share.alone for share in found.shares])
    assert {share.limit for share in found.shares} == {None}
    assert limits_in_words(FABRIC, found).endswith("none is slower than alone")


def test_a_short_call_ends_first_and_leaves_the_link_to_the_long_one() -> None:
    long, short = group("long", (0, 2), 8 * M), group("short", (1, 3), 2 * M)
    found = together([long, short], FABRIC, IDEAL)
    first, second = found.shares
    assert second.seconds == pytest.approx(2 * second.alone, rel=0.05)  # half the link until it is done
    assert first.seconds == pytest.approx(first.alone + second.alone, rel=0.05)


def test_a_group_that_is_slow_elsewhere_leaves_its_part_to_others() -> None:
    slow = load("bench/fabrics/slow-nic.yaml")
    hosts = [min(ranks) for ranks in slow.ranks_by_host]
    rates = [min(link.bandwidth for link in slow.links if link.src.startswith(f"h{host}.") and link.kind == "net") for host in range(4)]
    narrow = rates.index(min(rates))
    fast = [host for host in range(4) if host != narrow]
    # Both groups use the same fast host; one of them also the slow one.
    one = group("slow", (hosts[fast[0]], hosts[narrow]), 4 * M, slow)
    other = group("fast", (hosts[fast[0]], hosts[fast[1]]), 4 * M, slow)
    found = together([one, other], slow, IDEAL)
    assert found.shares[0].seconds == pytest.approx(found.shares[0].alone, rel=0.02)  # a quarter of the link is less than half
    assert found.shares[1].seconds == pytest.approx(found.shares[1].alone / 0.75, rel=0.05)


def test_what_is_no_group() -> None:
    check_groups([(0, 1), (7, 2)], FABRIC)
    with pytest.raises(ValueError, match="group of ranks 0, 8: rank 8 does not exist, there are 8"):
        check_groups([(0, 8)], FABRIC)
    with pytest.raises(ValueError, match="has each of its ranks once"):
        check_groups([(1, 1)], FABRIC)


def test_groups_of_one_and_empty_calls() -> None:
    found = together([group("one", (3,), M), group("empty", (0, 1), 0)], FABRIC, IDEAL)
    assert found.shares[0].seconds == 0
    assert found.link is None
    assert limits_in_words(FABRIC, found) == "no group sends anything"
