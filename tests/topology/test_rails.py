"""Rails: which networks reach every host, and which of them a message takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from topoccl.topology.graph import Topology
from topoccl.topology.load import load
from topoccl.topology.rails import RailTable, rails_of, without
from topoccl.topology.routes import routes_of

FABRICS = Path(__file__).resolve().parents[2] / "bench" / "fabrics"


@pytest.fixture(scope="module")
def unequal() -> Topology:
    return load(FABRICS / "rails-2.yaml")


def test_the_fastest_rail_comes_first() -> None:
    rails = rails_of(load("rails:3x2,nics=3,net=100Mbit/s+400Mbit/s+200Mbit/s"))
    assert [(str(rail), rail.rate * 8 / 1e6) for rail in rails] == [("rail1", 400), ("rail2", 200), ("rail0", 100)]
    assert rails[0].nics == {f"h{host}": f"h{host}.eth1" for host in range(3)}


@pytest.mark.parametrize(
    ("fabric", "count"),
    [("cluster:4x2", 1), ("cluster:2x2,nics=2", 1), ("rails:4x2,nics=4", 4), ("ring:5,ranks=1", 0), ("fattree:2x2x2", 1)],
)
def test_rails_are_separate_networks(fabric: str, count: int) -> None:
    assert len(rails_of(load(fabric))) == count


def test_a_network_that_lacks_a_host_is_no_rail(tmp_path: Path) -> None:
    both = "[{rate: 200Mbit/s, to: a}, {rate: 100Mbit/s, to: b}]"
    file = tmp_path / "lacking.yaml"
    file.write_text(
        f"topoccl: 1\nhosts:\n- {{name: x, slots: 1, nics: {both}}}\n- {{name: y, slots: 1, nics: {both}}}\n"
        "- {name: z, slots: 1, nics: [{rate: 200Mbit/s, to: a}]}\nswitches: [a, b]\n"
    )
    whole = load(file)
    assert [str(rail) for rail in rails_of(whole)] == ["a"]
    assert [str(rail) for rail in rails_of(whole.place([0, 1]))] == ["a", "b"]  # z has no rank of the group


def test_messages_take_the_rail_of_their_route(unequal: Topology) -> None:
    table = RailTable(unequal, [rail.switches for rail in rails_of(unequal)])
    assert [table.number(0, 2, rail) for rail in range(4)] == [0, 1, 0, 1]
    assert table.number(0, 1, 1) == 0  # inside the host
    turned = RailTable(unequal, [rail.switches for rail in reversed(rails_of(unequal))])
    assert [turned.number(0, 2, rail) for rail in range(2)] == [1, 0]
    assert RailTable(unequal, [frozenset({"elsewhere"})]).number(0, 2, 1) == 0
    assert table.ways(0, 2) == [0, 1]
    assert turned.ways(0, 2) == [1, 0]
    assert RailTable(unequal, [frozenset({"elsewhere"})]).ways(0, 2) == [0]


def test_what_carries_nothing_is_left_out(unequal: Topology) -> None:
    fast, slow = rails_of(unequal)
    assert without(unequal, ()) is unequal
    for lost, left in ((fast, slow), (slow, fast)):
        rest = without(unequal, [lost])
        assert rails_of(rest) == (left,)
        assert rest.slots == unequal.slots
        routes, links = routes_of(rest), rest.links
        for src, dst in ((0, 2), (7, 1)):
            assert routes.rails(src, dst) == 1
            assert [links[link].dst for link in routes.path(src, dst, 1)].count(str(left)) == 1
    assert [link for link in rest.links if link.kind != "net"] == [link for link in unequal.links if link.kind != "net"]
