"""Pictures: well formed for any topology, everything in its place, nothing drawn over something else."""

from __future__ import annotations

import io
import itertools
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoccl.collectives.cli.main import main
from topoccl.topology import Link, Topology, Vertex, VertexKind
from topoccl.topology.files import loads
from topoccl.topology.load import load
from topoccl.topology.render import FORMATS, render, to_png
from topoccl.topology.render.boxes import Box
from topoccl.topology.render.drawing import Line, Rect, draw
from topoccl.topology.render.edges import CUT_COLOR, edges, rate_text, width
from topoccl.topology.render.layout import lay_out
from topoccl.topology.render.tree import to_text

REPOSITORY = Path(__file__).resolve().parents[2]
SPECS = [
    *("cluster:4x2", "cluster:3+2+1", "cluster:2x12", "torus:4x4", "torus:2x3x4", "mesh:3x5,ranks=2", "ring:8", "ring:5,ranks=2"),
    *(
        "line:4,ranks=1",
        "racks:2x2x2,oversub=4",
        "fattree:k=4",
        "rails:4x2",
        "dgx-1v:1",
        "dgx-1v:2",
        "dgx-a100:2",
        "dgx-a100:2,fabric=rails",
    ),
]
SVG = "{http://www.w3.org/2000/svg}"


def classes(svg: str, name: str) -> list[ET.Element]:
    return [element for element in ET.fromstring(svg).iter() if name in element.get("class", "").split()]


@pytest.mark.parametrize("spec", SPECS)
def test_svg_shows_every_host_rank_and_link_between_hosts(spec: str) -> None:
    topology = load(spec)
    svg = render(topology, "svg")
    assert [element.text for element in classes(svg, "rank")] == [str(rank) for rank in range(topology.num_ranks)]
    assert [element.text for element in classes(svg, "name")] == list(topology.hosts)
    switches = [vertex for vertex in topology.vertices.values() if vertex.kind is VertexKind.SWITCH]
    assert len([element for element in classes(svg, "switch") if element.tag == f"{SVG}rect"]) == len(switches)
    titles = {element.findtext(f"{SVG}title") for element in classes(svg, "line")}
    crossing = [edge for edge in edges(topology) if edge.kind in ("net", "nvlink")]
    assert all(any(title and title.startswith(f"{edge.a} to {edge.b}: ") for title in titles) for edge in crossing)


def apart(a: Box, b: Box) -> bool:
    return abs(a.x - b.x) >= (a.w + b.w) / 2 or abs(a.y - b.y) >= (a.h + b.h) / 2


@pytest.mark.parametrize("spec", [*SPECS, "cluster:64x2", "racks:3x5x2", "rails:2x2,nics=4", "ring:12"])
def test_boxes_do_not_overlap_and_lie_on_the_page(spec: str) -> None:
    topology = load(spec)
    picture = lay_out(topology)
    big = [*picture.hosts.values(), *picture.switches.values()]
    assert all(apart(a, b) for a, b in itertools.combinations(big, 2))
    for host, box in picture.hosts.items():
        parts = [picture.parts[v.id] for v in topology.vertices.values() if v.host == host and v.id in picture.parts]
        assert all(apart(a, b) for a, b in itertools.combinations(parts, 2))
        for part in parts:
            assert box.left <= part.left
            assert part.x + part.w / 2 <= box.x + box.w / 2
            assert box.top <= part.top
            assert part.bottom <= box.bottom
    assert all(box.left >= 0 and box.top >= 60 and box.x + box.w / 2 <= picture.width and box.bottom <= picture.height for box in big)


def test_numa_nodes_hold_their_slots() -> None:
    topology = loads("hosts: [{name: a, slots: 1, numa: [{slots: 2}, {slots: 3}]}]")
    parts = lay_out(topology).parts
    node, slots = parts["a.numa1"], [parts[f"a.s{index}"] for index in (2, 3, 4)]
    hubs = {link.src: link.dst for link in topology.links if link.kind == "shm"}
    held = [parts[slot] for slot in topology.slots if hubs[slot] == "a.numa1"]
    assert len(held) == len(slots)
    assert all(node.left < slot.left and slot.bottom < node.bottom for slot in held)
    assert all(apart(parts[slot], node) for slot in topology.slots if hubs[slot] != "a.numa1")


def test_lines_are_wider_where_links_are_faster() -> None:
    widths = [width(rate, 1e6) for rate in (1e6, 4e6, 64e6, 1e30)]
    assert widths == [1.5, 2.5, 4.5, 8.0]
    lines = classes(render(load("racks:2x2x1,oversub=4"), "svg"), "line")
    by_rate = {line.findtext(f"{SVG}title", "").partition(": ")[2]: float(line.get("stroke-width", "")) for line in lines}
    assert by_rate["net 10 Gbit/s, 5us"] > by_rate["net 5 Gbit/s, 5us"]


def test_many_hosts_are_cut_short_and_said_so() -> None:
    svg = render(load("cluster:100x2"), "svg")
    assert "100 hosts, 200 ranks, 68 hosts not drawn" in svg
    assert len(classes(svg, "name")) == 32


@pytest.mark.parametrize(
    ("rate", "text"), [(25e6, "200 Mbit/s"), (12.5e9, "100 Gbit/s"), (1e12, "8 Tbit/s"), (125, "1 kbit/s"), (1, "8 bit/s")]
)
def test_network_rates_in_bits(rate: float, text: str) -> None:
    assert rate_text(rate, "net") == text
    assert rate_text(25e6, "pcie") == "25MB/s"


def test_tree_of_a_cluster() -> None:
    assert to_text(load("cluster:3+1,net=200Mbit/s,placement=round_robin")) == (
        "cluster:3+1,net=200Mbit/s,placement=round_robin  2 hosts, 4 ranks, 1 switch\n"
        "├── h0  ranks 0, 2-3\n"
        "│   ├── memory  ranks 0, 2-3 by shm 10GB/s 1us\n"
        "│   └── eth0  to sw0 by net 200 Mbit/s 5us; pcie 12GB/s 500ns\n"
        "├── h1  rank 1\n"
        "│   ├── memory  rank 1 by shm 10GB/s 1us\n"
        "│   └── eth0  to sw0 by net 200 Mbit/s 5us; pcie 12GB/s 500ns\n"
        "└── network\n"
        "    └── sw0  h0, h1 at 2 x 200 Mbit/s\n"
    )


def test_trees_of_accelerators_racks_and_many_hosts() -> None:
    box = to_text(load("dgx-1v:2"))
    assert "ib1  to ib0 by net 100 Gbit/s 1us; ranks 2-3 by pcie 12.5GB/s 500ns" in box
    assert "nvlink 40GB/s 700ns: 0-3 0-4 1-2 1-5 2-3 4-7 5-6 6-7" in box
    assert "nvswitch  ranks 8-15 by nvlink 300GB/s 350ns" in to_text(load("dgx-a100:2"))
    assert "core  to rack0, rack1 by net 5 Gbit/s 5us" in to_text(load("racks:2x2x2,oversub=4"))
    assert "rank 5 to ranks 1, 4, 6, 9 by net 10 Gbit/s 5us" in to_text(load("torus:4x4"))
    many = to_text(load("cluster:200x8"))
    assert "h1 to h199  199 more like h0, ranks 8-1599" in many
    assert len(many.splitlines()) == 7


def test_dot_has_a_cluster_per_host_and_an_edge_per_link() -> None:
    topology = load("racks:2x2x2")
    dot = render(topology, "dot")
    assert dot.count("subgraph cluster_") == 4
    assert dot.count(" -> ") == len(topology.links) // 2
    assert '"h0.s1" [shape=box, label="s1\\nrank 1"];'.replace("\\\\", "\\") in dot
    assert dot.count("{") == dot.count("}")


def test_dot_marks_the_bottleneck() -> None:
    dot = render(load("racks:2x4x2,oversub=16"), "dot")
    assert [line.split()[0] for line in dot.splitlines() if CUT_COLOR in line] == ['"rack0"', '"rack1"']
    assert 'label="red limits all_reduce: at best 312.5MB/s";' in dot


def test_unknown_format() -> None:
    with pytest.raises(ValueError, match="unknown format 'gif'; known: tree, json, yaml, dot, svg"):
        render(load("ring:3"), "gif")


def red(spec: str) -> set[str]:
    """Links that shine in the picture, by their ends."""
    topology = loads(spec) if spec.startswith("hosts") else load(spec)
    lines = classes(render(topology, "svg"), "cut")
    return {title.partition(": ")[0] for line in lines if (title := line.findtext(f"{SVG}title", ""))}


def test_the_bottleneck_is_red() -> None:
    assert red("racks:2x4x2,oversub=16") == {"rack0 to core", "rack1 to core", "red limits all_reduce"}
    limit = next(text.text for text in classes(render(load("racks:2x4x2,oversub=16"), "svg"), "note") if "red" in str(text.text))
    assert limit == "red limits all_reduce: at best 312.5MB/s"
    slow = red("cluster:4x2,net=10Gbit/s+10Gbit/s+1Gbit/s+10Gbit/s")
    assert slow == {"h2.eth0 to sw0", "red limits all_reduce"}
    assert red("dgx-a100:2") == {*(f"h{h}.ib{n} to ib0" for h in (0, 1) for n in range(8)), "red limits all_reduce"}
    assert red("cluster:1x1") == red("torus:4x4") == red("dgx-a100:1") == set()
    assert "every rank's own links limit all_reduce alike: at best 5GB/s" in render(load("torus:4x4"), "svg")
    many = render(load("cluster:100x2"), "svg")
    assert not classes(many, "cut"), "the cut of all hosts would not be in a picture of some"


@pytest.mark.parametrize("spec", ["dgx-a100:2", "cluster:4x2", "torus:4x4", "dgx-1v:1", "cluster:1x1"])
def test_png_is_the_same_picture(spec: str) -> None:
    image = pytest.importorskip("matplotlib.image")
    data = to_png(load(spec))
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    pixels = image.imread(io.BytesIO(data))
    sheet = draw(load(spec))
    assert pixels.shape[:2] == (int(sheet.height * 2), int(sheet.width * 2)) or abs(pixels.shape[0] - sheet.height * 2) <= 2
    if spec in ("dgx-a100:2", "cluster:4x2"):
        reddish = (pixels[..., 0] > 0.8) & (pixels[..., 1] < 0.65) & (pixels[..., 2] < 0.65)
        assert reddish.sum() > 500


def test_png_of_odd_names() -> None:
    pytest.importorskip("matplotlib")
    topology = Topology("$x^2$ \u4e2d", [Vertex("$h_0$", VertexKind.HOST), Vertex("\x01", VertexKind.SLOT, "$h_0$")], [])
    assert to_png(topology).startswith(b"\x89PNG")


def test_png_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ValueError, match=r"need matplotlib .*: pip install 'topoccl\[plot\]'"):
        to_png(load("ring:3"))


NAMES = st.text(min_size=1, max_size=8).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    ids = draw(st.lists(NAMES, min_size=1, max_size=9, unique=True))
    hosts = ids[: draw(st.integers(1, len(ids)))]
    cell = st.none() | st.lists(st.integers(0, 3), min_size=1, max_size=3) | st.just("odd")
    vertices = [Vertex(name, VertexKind.HOST, None, {"cell": draw(cell)}) for name in hosts]
    for name in ids[len(hosts) :]:
        kind = draw(st.sampled_from([kind for kind in VertexKind if kind is not VertexKind.HOST]))
        vertices.append(Vertex(name, kind, draw(st.sampled_from(hosts if kind is VertexKind.SLOT else [None, *hosts]))))
    links = []
    if len(ids) > 1:
        for a, b in draw(st.lists(st.sampled_from(list(itertools.permutations(ids, 2))), max_size=10)):
            links.append(
                Link(a, b, draw(st.floats(1e-6, 1e18)), draw(st.floats(0, 10)), draw(st.sampled_from(["net", "shm", "pcie", "odd<&"])))
            )
    return Topology(draw(NAMES), vertices, links)


@settings(deadline=None, max_examples=200)
@given(topologies())
def test_any_topology_can_be_drawn(topology: Topology) -> None:
    for style in FORMATS:
        text = render(topology, style)
        assert text.endswith("\n")
        if style == "svg":
            ET.fromstring(text)


# The command


def run(*argv: str) -> int:
    return main(["topo", *argv])


def test_command_prints_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    for style in FORMATS:
        assert run("cluster:2x2", "--format", style) == 0
        assert capsys.readouterr().out == render(load("cluster:2x2"), style)


def test_command_discovers_this_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert "1 host" in capsys.readouterr().out.splitlines()[0]


def test_command_writes_files_in_the_format_of_their_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "net.yml"
    assert run("racks:2x2x1", "-o", str(saved)) == 0
    assert run(str(saved), "-o", str(tmp_path / "net.svg")) == 0
    assert load(saved) == load("racks:2x2x1")
    ET.fromstring((tmp_path / "net.svg").read_text("utf-8"))
    assert run(str(saved), "-o", str(tmp_path / "again.txt"), "-f", "yaml") == 0
    assert (tmp_path / "again.txt").read_bytes() == saved.read_bytes()
    pytest.importorskip("matplotlib")
    assert run(str(saved), "-o", str(tmp_path / "net.png")) == 0
    assert (tmp_path / "net.png").read_bytes() == to_png(load(saved))
    assert run("ring:3", "-o", str(tmp_path / "net.gif")) == 2
    assert "no format is known by this name; say --format tree|json|yaml|dot|svg|png" in capsys.readouterr().err


def test_command_reports_bad_input_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("hosts: [a]\nlinks:\n- {between: [a, b], bandwidth: -1}\n")
    assert run(str(bad)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"topoccl: error: {bad}:3: links[0].between[1] is 'b'; expected a declared vertex; known: a")
    assert error.count("\n") == 1


def test_switches_of_one_level_are_linked_side_to_side() -> None:
    topology = load(REPOSITORY / "bench" / "fabrics" / "two-racks.yaml")
    sheet = draw(topology)
    boxes = {shape.note: shape.box for shape in sheet.shapes if isinstance(shape, Rect) and shape.style == "switch"}
    left, right = sorted((boxes["rack0"], boxes["rack1"]), key=lambda box: box.x)
    lines = [shape for shape in sheet.shapes if isinstance(shape, Line) and shape.style == "line"]
    (uplink,) = [line for line in lines if "rack0" in line.note and "rack1" in line.note]
    ends = sorted(numbers for _, numbers in uplink.path)
    assert ends == [(left.x + left.w / 2, left.y), (right.left, right.y)]


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("hosts: [a, b, c]\ncables: [{between: [a, b]}, {between: [b, c]}]", "row"),
        ("hosts: [a, b, c, d]\ncables: [{between: [a, b]}, {between: [b, c]}, {between: [c, d]}, {between: [d, a]}]", "circle"),
        ("hosts: [a, b, c, d]\ncables: [{between: [a, b]}, {between: [b, c]}, {between: [c, d]}, {between: [b, d]}]", "circle"),
    ],
)
def test_hosts_stand_in_a_row_only_if_no_link_passes_one(text: str, shape: str) -> None:
    picture = lay_out(loads(f"defaults: {{slots: 1, rate: 10Gbit/s}}\n{text}\n"))
    assert (len({box.y for box in picture.hosts.values()}) == 1) == (shape == "row")
