"""NCCL's graph XML."""

from __future__ import annotations

from pathlib import Path

import pytest

from topoccl.topology import TopologyError
from topoccl.topology.formats import parse

TEXT = (Path(__file__).parent / "fixtures" / "nccl-graph.xml").read_text("utf-8")


def test_channels_add_up_and_graphs_are_alternatives() -> None:
    topology = parse(TEXT, "graph.xml")
    assert topology.slots == ("h0.gpu0", "h0.gpu1", "h0.gpu2")
    rates = {(link.src, link.dst): (link.bandwidth / 1e9, link.kind) for link in topology.links}
    assert rates["h0.gpu0", "h0.gpu1"] == (30, "nvlink")  # the tree's 30 is more than the ring's 20
    assert rates["h0.gpu1", "h0.gpu0"] == (20, "nvlink")
    assert rates["h0.net0", "h0.gpu0"] == (10, "pcie")
    assert "what they do not use is not in the file" in topology.vertices["h0"].attrs["notes"][0]


def test_a_ring_without_nics_closes() -> None:
    ring = '<channel><gpu dev="0x{}"/><gpu dev="0x1"/><gpu dev="0x2"/></channel>'
    text = f'<graphs version="1"><graph id="0" pattern="4" speedintra="24" typeintra="SYS">{ring.format(0) * 2}</graph></graphs>'
    topology = parse(text, "graph.xml")
    assert {(link.src[-1], link.dst[-1]): link.bandwidth for link in topology.links}["2", "0"] == 48e9
    assert {link.kind for link in topology.links} == {"pcie"}


def test_the_top_byte_of_a_device_is_its_host() -> None:
    gpus = '<gpu dev="0x0" rank="1"/><gpu dev="0x100000000000000" rank="0"/>'
    topology = parse(f'<graphs><graph pattern="4" speedintra="20"><channel>{gpus}</channel></graph></graphs>', "graph.xml")
    assert topology.slots == ("h1.gpu0", "h0.gpu0")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('pattern="4"', 'pattern="ring"', "pattern is 'ring'; expected an integer"),
        ('dev="0"', 'dev="zero"', "^g.xml:4: <net dev='zero'>: dev is 'zero'; expected a hexadecimal number"),
        ('typeintra="NVL"', 'typeintra="FAST"', "typeintra is 'FAST'; expected one of LOC, NVL"),
        ('speedintra="20"', 'speedintra="-1"', "speedintra is '-1'; expected a number, not negative"),
        ('graphs version="1"', 'graphs version="9"', "version is '9'; expected 1"),
    ],
)
def test_errors_name_the_place(old: str, new: str, problem: str) -> None:
    with pytest.raises(TopologyError, match=problem):
        parse(TEXT.replace(old, new), "g.xml")


def test_a_graph_without_accelerators_is_refused() -> None:
    with pytest.raises(TopologyError, match="no <gpu> in any channel"):
        parse("<graphs version='1'/>", "g.xml")
