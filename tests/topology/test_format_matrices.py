"""Vendors' matrices: what they say is what the topology has, whatever a terminal did to the text; the rest is refused with the place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoccl.topology import Topology, TopologyError, VertexKind
from topoccl.topology.dump import dump
from topoccl.topology.files import loads
from topoccl.topology.formats import parse, recognise
from topoccl.topology.paths import PathClass, path_class
from topoccl.topology.routes import Routes

FIXTURES = Path(__file__).parent / "fixtures"
HANDED = Path(__file__).resolve().parents[3] / "shared" / "topologies"
CLASSES = {name: PathClass[name] for name in ("PIX", "PXB", "PHB", "SYS")} | {"NODE": PathClass.PHB, "SOC": PathClass.SYS}
MATRICES = [
    *(FIXTURES / name for name in ("nvidia-8xh100-10nic.txt", "mthreads-8xs5000.txt", "npu-8x910b.txt")),
    *sorted(HANDED.glob("nvidia_smi/*.txt")),
    *sorted(HANDED.glob("other_vendor/*.txt")),
]
SMALL = """\
        GPU0    GPU1    GPU2    GPU3    mlx5_0  CPU Affinity    NUMA Affinity
GPU0     X      NV4     PHB     SYS     PIX     0-15,32-47      0
GPU1    NV4      X      PHB     SYS     PHB     0-15,32-47      0
GPU2    PHB     PHB      X      SYS     PHB     0-15,32-47      0
GPU3    SYS     SYS     SYS      X      SYS     16-31,48-63     1
mlx5_0  PIX     PHB     PHB     SYS      X
"""


def fixture(name: str) -> Topology:
    return parse((FIXTURES / name).read_text("utf-8"), name)


def links(topology: Topology, kind: str) -> dict[tuple[str, str], float]:
    return {(link.src, link.dst): link.bandwidth for link in topology.links if link.kind == kind}


def words(path: Path) -> tuple[list[str], dict[str, list[str]]]:
    """The matrix as a person reads it: columns, and the cells of each row."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", path.read_text("utf-8")).split("\n")
    start = next(number for number, line in enumerate(text) if re.match(r"\s+(GPU0|NPU0)\s+(GPU1|NPU1)", line))
    columns = re.split(r"\s+(?:CPU|Node|NUMA) Aff", text[start])[0].split()
    rows = [line.split() for line in text[start + 1 : start + 1 + len(columns)]]
    return columns, {row[0]: row[1 : 1 + len(columns)] for row in rows}


@pytest.mark.parametrize("path", MATRICES, ids=lambda path: path.name)
def test_classes_of_our_routes_are_those_of_the_matrix(path: Path) -> None:
    topology = parse(path.read_text("utf-8"), path.name)
    columns, rows = words(path)
    vertices = [vertex.id for vertex in topology.vertices.values() if vertex.kind in (VertexKind.SLOT, VertexKind.NIC)]
    assert len(vertices) == len(columns)
    routes = Routes(topology)
    compared = 0
    for a, name in enumerate(columns):
        for b, cell in enumerate(rows[name]):
            if cell in CLASSES:
                assert path_class(routes, vertices[a], vertices[b]) is CLASSES[cell], (name, columns[b])
                compared += 1
            elif a != b:
                assert path_class(routes, vertices[a], vertices[b]) is PathClass.NVL, (name, columns[b])
    assert compared or path.name == "litgpt-4gpu-nv12-mixed-ws.txt" or "910b" in path.name


def test_h100_with_terminal_codes_affinities_and_names_of_nics() -> None:
    topology = fixture("nvidia-8xh100-10nic.txt")
    assert topology.num_ranks == 8
    assert topology.slots[0] == "h0.gpu0"
    assert topology.vertices["h0.gpu0"].attrs["cpus"] == "0-55,112-167"
    assert topology.vertices["h0.mlx5_9"].attrs["label"] == "NIC9"
    nvlinks = links(topology, "nvlink")
    assert len(nvlinks) == 16
    assert nvlinks["h0.gpu3", "h0.nvswitch"] == pytest.approx(18 * 20.6e9)
    assert {vertex.id for vertex in topology.vertices.values() if vertex.kind is VertexKind.NUMA} == {"h0.numa0", "h0.numa1"}
    assert any("sm90" in note for note in topology.vertices["h0"].attrs["notes"])


@pytest.mark.parametrize(
    ("matrix", "rate"),
    [
        ("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 X\n", 4 * 12e9),  # a bridge between two A6000
        ("GPU0 GPU1\nGPU0 X NV12\nGPU1 NV12 X\n", 12 * 20e9),  # bridges between two A100
        ("GPU0 GPU1\nGPU0 X NV18\nGPU1 NV18 X\n", 18 * 20.6e9),
        ("GPU0 GPU1 GPU2 GPU3\nGPU0 X NV4 NV4 NV4\nGPU1 NV4 X NV4 NV4\nGPU2 NV4 NV4 X NV4\nGPU3 NV4 NV4 NV4 X\n", 4 * 20e9),  # 4 A100
    ],
)
def test_what_an_nvlink_carries_is_inferred_from_their_number(matrix: str, rate: float) -> None:
    assert set(links(parse(matrix), "nvlink").values()) == {rate}


def test_a_saved_machine_is_the_same_machine() -> None:
    topology = fixture("nvidia-8xh100-10nic.txt")
    text = dump(topology)
    assert loads(text) == topology
    assert dump(loads(text)) == text


def test_islands_of_nvlink_get_a_switch_each() -> None:
    names = [f"GPU{i}" for i in range(8)]
    rows = [[name, *("X" if i == j else "NV12" if i // 4 == j // 4 else "SYS" for j in range(8))] for i, name in enumerate(names)]
    topology = parse("\n".join(["\t".join(row) for row in [["", *names], *rows]]))
    switches = {dst for src, dst in links(topology, "nvlink") if "gpu" in src}
    assert switches == {"h0.nvswitch", "h0.nvswitch1"}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.replace("        GPU0", "\t\x1b[4mGPU0", 1).replace("NUMA Affinity", "NUMA Affinity\x1b[0m", 1),
        lambda text: text.replace("        GPU0", "[4mGPU0", 1).replace("NUMA Affinity", "NUMA Affinity[0m", 1),
        lambda text: text.replace("        GPU0", "^[[4mGPU0", 1),
        lambda text: text.replace("        GPU0", "GPU0", 1),  # shifted header
        lambda text: text.replace("        GPU0", " " * 30 + "GPU0", 1),
        lambda text: re.sub(r" {2,}(?=\S)", "\t", text),
        lambda text: text.replace("SYS     ", "SOC     "),
        lambda text: "$ nvidia-smi topo -m\n\n```\n" + text + "\n```\n",
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text.replace("PHB     SYS     PHB     0-15", "PHB     SYS     PHB0-15", 1),  # glued cells
        lambda text: text.replace("SYS     SYS     SYS      X ", "SYSSYS  SYS      X "),
        lambda text: text.replace("0-15,32-47      0", "0-15, 32-47     0"),
        lambda text: text.replace("16-31,48-63     1", "16-31,48-631"),  # glued affinities
        lambda text: text.replace("\nmlx5_0  PIX     PHB     PHB     SYS      X", ""),  # all of it is in the columns
        lambda text: text + "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n",
    ],
)
def test_what_terminals_and_columns_do_to_a_matrix_changes_nothing(change: object) -> None:
    assert callable(change)
    text = change(SMALL)
    assert recognise(text.removeprefix("\ufeff")).name == "nvidia-smi"
    expected, found = parse(SMALL), parse(text)
    assert [(link.src, link.dst, link.bandwidth, link.kind) for link in found.links] == [
        (link.src, link.dst, link.bandwidth, link.kind) for link in expected.links
    ]
    assert [found.vertices[slot].attrs["cpus"].replace(" ", "") for slot in found.slots] == [
        expected.vertices[slot].attrs["cpus"] for slot in expected.slots
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALL[: SMALL.index("GPU3    SYS")], r":1: the matrix has no row for GPU3; .*cut off"),
        (SMALL[: SMALL.index("PHB     PHB      X ") + 12], r":4: row GPU2 has 2 of 5 cells; .*cut off"),
        (SMALL.replace("NV4      X", "NV8      X"), r":2: GPU0 to GPU1 is 'NV4', but line 3 says 'NV8' of GPU1 to GPU0"),
        (SMALL.replace("GPU1    NV4      X ", "GPU1    NV4      PIX"), r":3: GPU1 to itself is 'PIX'; expected X"),
        (SMALL.replace("X      NV4", "X      WIFI"), r":2: cell 2 of row GPU0 is 'WIFI'; expected one of X, PIX"),
        (SMALL.replace("NV4", "NV0"), r"'NV0' stands for 0 links; expected 1 to 1024"),
        (SMALL.replace("GPU3    SYS     SYS", "GPU2    SYS     SYS"), r":5: row GPU2 is given twice"),
        (SMALL.replace("GPU3    SYS     SYS", "GPU7    SYS     SYS"), r":5: row GPU7 has no column"),
        (SMALL.replace("GPU0    GPU1    GPU2 ", "GPU0    GPU1    GPU1 "), r":1: column GPU1 is given twice"),
        (
            SMALL.replace("SYS     PIX     0", "SYS     NV2     0").replace("mlx5_0  PIX", "mlx5_0  NV2"),
            "only accelerators have such links",
        ),
        (SMALL + SMALL.replace("GPU3", "GPU4"), "a second matrix with other devices"),
    ],
)
def test_a_damaged_matrix_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message) as caught:
        parse(text, "topo.txt")
    assert str(caught.value).startswith("topo.txt:")


@pytest.mark.parametrize("cells", ["X OK OK|OK X OK|OK OK X", "X CNS OK|CNS X NS|OK NS X", "X GNS U|GNS X OK|U OK X"])
def test_peer_access_matrices_are_refused_with_a_hint(cells: str) -> None:
    rows = [f"\tGPU{index}\t{row}".replace(" ", "\t") for index, row in enumerate(cells.split("|"))]
    text = "\n".join([" \tGPU0\tGPU1\tGPU2", *(row.strip() for row in rows), "", "Legend:", "  X    = Self", "  OK   = Status Ok"])
    with pytest.raises(TopologyError, match=r"nvidia-smi topo -p2p.*give the output of nvidia-smi topo -m"):
        parse(text, "p2p.txt")


def test_moore_threads_glued_affinities() -> None:
    topology = fixture("mthreads-8xs5000.txt")
    assert topology.vertices["h0.gpu7"].attrs["cpus"] == "64-127,192-238,240-255"
    assert ("h0.numa1", "h0.gpu7") in links(topology, "pcie")
    assert "h0.mlx5_bond_0" in topology.vertices
    mtlinks = links(topology, "mtlink")
    assert len(mtlinks) == 56
    assert set(mtlinks.values()) == {2 * 28e9}


def test_glued_affinities_without_any_whole_one() -> None:
    text = "GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X MT2 0-31,64-950\nGPU1 MT2 X 32-63,96-1271\n"
    topology = parse(text)
    assert [topology.vertices[slot].attrs["cpus"] for slot in topology.slots] == ["0-31,64-95", "32-63,96-127"]
    assert {"h0.numa0", "h0.numa1"} <= set(topology.vertices)


def test_a_column_that_is_only_empty_is_not_taken_for_a_glued_one() -> None:
    topology = parse("GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X MT2 0-127\nGPU1 MT2 X 0-127\n")
    assert {topology.vertices[slot].attrs["cpus"] for slot in topology.slots} == {"0-127"}


def test_numa_nodes_need_not_be_contiguous() -> None:
    topology = parse(SMALL.replace("32-47      0", "32-47      1").replace("48-63     1", "48-63     8"))
    assert {v.id for v in topology.vertices.values() if v.kind is VertexKind.NUMA} == {"h0.numa1", "h0.numa8"}


@settings(deadline=None, max_examples=60)
@given(data=st.data(), gpus=st.integers(1, 6), nics=st.integers(0, 3), numa=st.booleans())
def test_any_matrix_becomes_a_machine_without_islands(data: st.DataObject, gpus: int, nics: int, numa: bool) -> None:
    names = [*(f"GPU{i}" for i in range(gpus)), *(f"mlx5_{i}" for i in range(nics))]
    classes = st.sampled_from(["PIX", "PXB", "PHB", "NODE", "SYS", "N/A"])
    cells = {}
    for a in range(len(names)):
        for b in range(a):
            cells[a, b] = cells[b, a] = data.draw(st.sampled_from(["NV1", "NV2", "NV18"]) | classes if a < gpus else classes)
    rows = []
    for a, name in enumerate(names):
        affinity = [f"{a % 2 * 8}-{a % 2 * 8 + 7}", str(a % 2)] if numa and a < gpus else []
        rows.append([name, *("X" if a == b else cells[a, b] for b in range(len(names))), *affinity])
    titles = ["CPU", "Affinity", "NUMA", "Affinity"] if numa else []
    topology = parse("\n".join("\t".join(row) for row in [["", *names, *titles], *rows]), "random.txt")
    assert topology.num_ranks == gpus
    routes = Routes(topology)
    ends = [vertex.id for vertex in topology.vertices.values() if vertex.kind in (VertexKind.SLOT, VertexKind.NIC)]
    assert all(path_class(routes, a, b) < PathClass.NET for a in ends for b in ends)


def test_nearness_that_makes_no_tree_is_noted() -> None:
    text = "GPU0 GPU1 GPU2\nGPU0 X PIX SYS\nGPU1 PIX X PIX\nGPU2 SYS PIX X\n"
    notes = parse(text).vertices["h0"].attrs["notes"]
    assert any("makes no tree: 1 pairs" in note and "gpu0 and gpu2" in note for note in notes)
    assert not any("tree" in note for note in parse(SMALL).vertices["h0"].attrs["notes"])


def test_ascend_mesh_and_dies() -> None:
    mesh = links(fixture("npu-8x910b.txt"), "hccs")
    assert len(mesh) == 56
    assert set(mesh.values()) == {28e9}
    dies = fixture("npu-4xa3.txt")
    assert links(dies, "sio")[dies.slots[2], dies.slots[3]] == 270e9
    assert links(dies, "hccs") == {pair: 196e9 for slot in dies.slots for pair in ((slot, "h0.hccs"), ("h0.hccs", slot))}


def test_metax_islands() -> None:
    text = (
        "MetaX System Management Interface Log\n        GPU0 GPU1 GPU2 Node Affinity  CPU Affinity\n"
        "GPU0 X MX NODE 3 0-31,64-95\nGPU1 MX X NODE 3 0-31,64-95\nGPU2 NODE NODE X 3 0-31,64-95\n"
    )
    topology = parse(text)
    assert list(links(topology, "metaxlink").values()) == [32e9, 32e9]
    assert "h0.numa3" in topology.vertices
    with pytest.raises(TopologyError, match="cell 2 of row GPU0"):
        parse(text.replace("GPU0 X MX NODE", "GPU0 X MY NODE"), "mx.txt")


def test_rocm_tables() -> None:
    topology = fixture("rocm-8xmi300x.txt")
    assert len(links(topology, "xgmi")) == 56
    assert set(links(topology, "xgmi").values()) == {48e9}
    assert ("h0.numa1", "h0.gpu4") in links(topology, "pcie")
    partly = fixture("rocm-4xmi250x.txt")  # two hops are no link of their own
    assert len(links(partly, "xgmi")) == 24
    assert set(links(partly, "xgmi").values()) == {36e9}
    assert ("h0.numa3", "h0.gpu0") in links(partly, "pcie")


def test_rocm_mixed_types_and_measured_rates() -> None:
    text = (
        "==== Link Type between two GPUs ====\n       GPU0 GPU1 GPU2\nGPU0   0 XGMI PCIE\nGPU1   XGMI 0 PCIE\nGPU2   PCIE PCIE 0\n"
        "==== Bandwidth between two GPUs ====\n       GPU0 GPU1 GPU2\nGPU0 N/A 50000-100000 N/A\n"
        "GPU1 50000-100000 N/A N/A\nGPU2 N/A N/A N/A\n"
    )
    assert links(parse(text), "xgmi") == {("h0.gpu0", "h0.gpu1"): 100e9, ("h0.gpu1", "h0.gpu0"): 100e9}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: text.index("Link Type")], "none of link types"),
        (lambda text: text[: text.index("GPU7   XGMI")], "no row for GPU7"),
        (lambda text: text.replace("XGMI", "PCIE", 1), "GPU0 to GPU1 is 'PCIE', but"),
        (lambda text: text.replace("GPU3   XGMI", "GPU3   WIFI"), r":\d+: cell 1 of row GPU3 is 'WIFI'; expected XGMI"),
    ],
)
def test_damaged_rocm_tables_are_refused(change: object, message: str) -> None:
    assert callable(change)
    with pytest.raises(TopologyError, match=message):
        parse(change((FIXTURES / "rocm-8xmi300x.txt").read_text("utf-8")), "rocm.txt")


def test_rocm_json() -> None:
    text = """{"system": {"(Topology) Weight between DRM devices 0 and 1": "15", "(Topology) Hops between DRM devices 0 and 1": "1",
        "(Topology) Link type between DRM devices 0 and 1": "XGMI"},
        "card0": {"(Topology) Numa Node": "1", "(Topology) Numa Affinity": "1"}, "card1": {"(Topology) Numa Node": "0"}}"""
    topology = parse(text, "topo.json")
    assert recognise(text).name == "rocm-smi"
    assert list(links(topology, "xgmi").values()) == [36e9, 36e9]
    assert ("h0.numa1", "h0.gpu0") in links(topology, "pcie")
    with pytest.raises(TopologyError, match="no link type between devices 0 and 1"):
        parse(text.replace("Link type", "Link kind"), "topo.json")


def test_amd_smi_text_and_json() -> None:
    topology = fixture("amd-smi-4xmi300x.txt")
    assert len(links(topology, "xgmi")) == 12
    assert set(links(topology, "xgmi").values()) == {50e9}
    assert topology.vertices["h0.gpu1"].attrs["busid"] == "0000:22:00.0"
    link = '{{"gpu": {}, "bdf": "0000:0c:00.0", "weight": 15, "link_type": "{}", "num_hops": 1, "bandwidth": "{}"}}'
    gpus = [
        f'{{"gpu": {a}, "bdf": "0000:{a}c:00.0", "links": ['
        + ", ".join(link.format(b, "SELF" if a == b else "XGMI", "N/A" if a == b else "32000-64000") for b in (0, 1))
        + "]}"
        for a in (0, 1)
    ]
    text = f"[{', '.join(gpus)}]"
    assert recognise(text).name == "amd-smi"
    assert set(links(parse(text, "topo.json"), "xgmi").values()) == {64e9}
    with pytest.raises(TopologyError, match=r"\[1\]\.links\[0\]\.link_type is 'PCIE'; expected XGMI, as the other GPU says"):
        parse(text[: text.rindex("XGMI")] + "PCIE" + text[text.rindex("XGMI") + 4 :], "topo.json")


def test_amd_smi_without_types_is_refused() -> None:
    text = (FIXTURES / "amd-smi-4xmi300x.txt").read_text("utf-8")
    with pytest.raises(TopologyError, match="no LINK TYPE TABLE"):
        parse(text[: text.index("LINK TYPE")], "amd.txt")


GRACE = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tNV18\tNODE\t0-71\t0,2-17\t\t2
GPU1\tNV18\t X \tNV18\tNV18\tNODE\t0-71\t0,2-17\t\t10
GPU2\tNV18\tNV18\t X \tNV18\tSYS\t72-143\t1,18-33\t\t18
GPU3\tNV18\tNV18\tNV18\t X \tSYS\t72-143\t1,18-33\t\t26
NIC0\tNODE\tNODE\tSYS\tSYS\t X \t\t\t\t
"""


def test_memory_of_gpus_as_numa_nodes_means_chip_to_chip_links() -> None:
    topology = parse(GRACE, "tray.txt")
    assert links(topology, "c2c")["h0.gpu0", "h0.numa0"] == pytest.approx(223.56e9)
    assert links(topology, "c2c")["h0.gpu3", "h0.numa1"] == pytest.approx(223.56e9)
    assert links(topology, "nvlink")["h0.gpu1", "h0.nvswitch"] == pytest.approx(18 * 40.1e9)
    without = parse(re.sub(r"\t\t\d+\n", "\t\tN/A\n", GRACE), "tray.txt")
    assert not links(without, "c2c")
    assert links(without, "nvlink")["h0.gpu1", "h0.nvswitch"] == pytest.approx(18 * 20.6e9)


def test_xgmi_without_a_bandwidth_is_no_direct_link() -> None:
    """The tools count one hop for every way over xGMI, also past another GPU."""
    names = ["0000:c1:00.0", "0000:c6:00.0", "0000:c9:00.0"]

    def table(title: str, own: str, cells: dict[tuple[int, int], str], other: str) -> str:
        rows = [[own if a == b else cells.get((min(a, b), max(a, b)), other) for b in range(3)] for a in range(3)]
        return "\n".join([f"{title} TABLE:", " ".join(["", *names]), *(" ".join([names[a], *row]) for a, row in enumerate(rows)), "", ""])

    text = table("HOPS", "0", {}, "1") + table("LINK TYPE", "SELF", {}, "XGMI")
    rates = {(0, 1): "50000-200000", (1, 2): "50000-50000"}
    direct = {("h0.gpu0", "h0.gpu1"): 200e9, ("h0.gpu1", "h0.gpu2"): 50e9}
    topology = parse(text + table("NUMA BW", "N/A", rates, "0-0"), "amd.txt")
    assert links(topology, "xgmi") == direct | {(b, a): rate for (a, b), rate in direct.items()}
    assert len(links(parse(text, "amd.txt"), "xgmi")) == 6  # nothing said: all are taken for direct


def test_unified_bus_counts_as_a_switch() -> None:
    topology = parse("       NPU0  NPU1  NIC0\nNPU0   X     UB    NA\nNPU1   UB    X     NA\n", "a5.txt")
    assert len(links(topology, "hccs")) == 4
    assert "196 GB/s into an HCCS switch or UB" in "".join(topology.vertices["h0"].attrs["notes"])
