"""All XML formats: real files where they are at hand, recognition by content, and mutations that must not end in anything but an answer."""

from __future__ import annotations

import copy
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from topoccl.collectives.cli.main import main
from topoccl.topology import Topology, TopologyError, VertexKind
from topoccl.topology.dump import dump
from topoccl.topology.files import loads
from topoccl.topology.formats import FORMATS, parse, recognise
from topoccl.topology.formats.hwloc_xml import parse as parse_hwloc
from topoccl.topology.formats.nccl_graph import parse as parse_graph
from topoccl.topology.formats.nccl_xml import parse as parse_nccl
from topoccl.topology.load import load
from topoccl.topology.routes import Routes

FIXTURES = Path(__file__).parent / "fixtures"
HANDED = Path(__file__).resolve().parents[3] / "shared" / "topologies"
FILES = [
    *[("nccl-xml", path) for path in sorted(HANDED.glob("nccl_xml/*.xml"))],
    *[("nccl-xml", path) for path in sorted(HANDED.glob("rccl_xml/*.xml"))],
    *[("hwloc-xml", path) for path in sorted(HANDED.glob("hwloc/*.xml"))],
]
NO_RANKS = {"aws-g5.48xl-topo", "aws-p5.48xl-topo-2023"}  # they list bridges and devices without a class
PARSERS: dict[str, Callable[[str, str], Topology]] = {"nccl-xml": parse_nccl, "nccl-graph": parse_graph, "hwloc-xml": parse_hwloc}
SEEDS = {
    "dgx1v-nccl.xml": "nccl-xml",
    "nccl-traps.xml": "nccl-xml",
    "rccl-small.xml": "nccl-xml",
    "nccl-graph.xml": "nccl-graph",
    "hwloc-v2.xml": "hwloc-xml",
    "hwloc-v3.xml": "hwloc-xml",
}
TEXTS = {name: (FIXTURES / name).read_text("utf-8") for name in SEEDS}


def survives_a_file(topology: Topology) -> None:
    text = dump(topology)
    again = loads(text, "saved.yaml")
    assert again == topology
    assert dump(again) == text


@pytest.mark.skipif(not FILES, reason="the collection of real files is not beside this checkout")
def test_there_are_real_files() -> None:
    assert len(FILES) >= 48


@pytest.mark.parametrize(("name", "path"), [pytest.param(*entry, id=entry[1].stem) for entry in FILES])
def test_real_files_load_survive_and_are_routed(name: str, path: Path) -> None:
    topology = load(path)
    assert recognise(path.read_text("utf-8")).name == name
    survives_a_file(topology)
    assert (topology.num_ranks == 0) == (topology.name in NO_RANKS)
    if topology.name in NO_RANKS:
        assert any("no accelerators in the file" in note for note in topology.vertices[topology.hosts[0]].attrs["notes"])
    routes = Routes(topology)
    ranks = range(min(16, topology.num_ranks))
    assert all(routes.path(a, b) for a in ranks for b in ranks if a != b)
    nics = [vertex.id for vertex in topology.vertices.values() if vertex.kind is VertexKind.NIC]
    assert all(routes.between(topology.slots[a], nic) for a in ranks for nic in nics)


@pytest.mark.parametrize("name", SEEDS)
def test_recognised_by_content_shown_and_saved(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recognise(TEXTS[name]).name == SEEDS[name]
    misnamed = tmp_path / "slurm.conf.yaml"
    misnamed.write_bytes(b"\xef\xbb\xbf" + TEXTS[name].replace("\n", "\r\n").encode())
    topology = load(misnamed)
    survives_a_file(topology)
    wide = tmp_path / "wide"
    wide.write_text(TEXTS[name].replace('encoding="UTF-8"', ""), "utf-16")
    assert load(wide) == topology
    assert main(["topo", str(misnamed)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("slurm.conf  1 host, ")
    for note in topology.vertices[topology.hosts[0]].attrs.get("notes", ()):
        assert " ".join(note.split()) in " ".join(shown.replace("│", " ").split())


@pytest.mark.parametrize("content", [b"", b"\n \r\n", b"\xef\xbb\xbf", b"\0\0\0\0"])
def test_empty_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "topology.xml"
    path.write_bytes(content)
    with pytest.raises(TopologyError, match=f"^{re.escape(str(path))}: the file is empty"):
        load(path)


def test_what_nobody_knows_lists_what_is_known() -> None:
    with pytest.raises(
        TopologyError, match=r"^x: no known description of a topology \(it begins with '<manifest/>'\); known formats:"
    ) as error:
        parse("\n<manifest/>", "x")
    assert all(f"\n  {entry.name}: {entry.summary}" in str(error.value) for entry in FORMATS)


@pytest.mark.parametrize("name", SEEDS)
def test_any_truncation_is_refused(name: str) -> None:
    text, parser = TEXTS[name].rstrip(), PARSERS[SEEDS[name]]
    for end in [*range(0, len(text), max(1, len(text) // 60)), len(text) - 1]:
        with pytest.raises(TopologyError, match=r"^cut:\d+: "):
            parser(text[:end], "cut")


# Mutations

_NASTY = ["", "0", "-1", "1e999", "99999999999999999999", "0x", "nan", "é", "0000:06:00.0", "0x030200", "0x068000", "0xf...f", "Bridge"]
_VALUES = st.one_of(
    st.sampled_from(_NASTY),
    st.text(st.characters(exclude_characters='<&"\0', exclude_categories=["Cs", "Cc"]), max_size=12),
)


def _element_mutation(draw: st.DrawFn, root: ET.Element) -> None:
    """Changes a value, or drops, repeats or moves an element: what stays is well-formed."""
    parents = {child: parent for parent in root.iter() for child in parent}
    element = draw(st.sampled_from(list(root.iter())))
    kind = draw(st.sampled_from(["value", "value", "value", "forget", "drop", "repeat", "move", "text"]))
    if kind in ("value", "forget") and element.attrib:
        name = draw(st.sampled_from(sorted(element.attrib)))
        element.attrib.pop(name)
        if kind == "value":
            others = [other.get(name, "") for other in root.iter() if name in other.attrib]
            element.set(name, draw(st.one_of(_VALUES, st.sampled_from(others)) if others else _VALUES))
    elif kind == "text":
        element.text = draw(_VALUES)
    elif element in parents:
        parent = parents[element]
        if kind == "repeat":
            parent.append(copy.deepcopy(element))
        else:
            parent.remove(element)
            if kind == "move":
                draw(st.sampled_from([root, *(other for other in root.iter())])).append(element)


@st.composite
def mutations(draw: st.DrawFn, text: str) -> str:
    root = ET.fromstring(text)
    for _ in range(draw(st.integers(1, 6))):
        _element_mutation(draw, root)
    text = ET.tostring(root, encoding="unicode")
    if draw(st.integers(0, 9)) == 0:  # not XML any more
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.text(max_size=8)) + text[at + draw(st.integers(0, 40)) :]
    return text


def answer(parser: Callable[[str, str], Topology], text: str) -> Topology | None:
    """A topology that can be saved, or None for a TopologyError that begins with the source; anything else fails the test."""
    try:
        topology = parser(text, "fuzz")
    except TopologyError as error:
        if not str(error).startswith("fuzz"):
            raise
        return None
    survives_a_file(topology)
    return topology


@pytest.mark.parametrize("name", SEEDS)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_mutated_files_are_read_or_refused(name: str, data: st.DataObject) -> None:
    answer(PARSERS[SEEDS[name]], data.draw(mutations(TEXTS[name])))


_MARKUP = st.builds("<{0} {1}>{2}</{0}>".format, st.sampled_from(["system", "graphs", "topology"]), st.text(), st.text())


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=80, deadline=None)
@given(text=st.one_of(st.text(), _MARKUP))
@example("<system><cpu numaid='0'><pci busid='0:0:0'>" * 2)
@example("<topology version='3.0'><object type='Machine'/></topology>")
def test_any_text_is_read_or_refused(name: str, text: str) -> None:
    answer(PARSERS[name], text)
    answer(parse, text)
