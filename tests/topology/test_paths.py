"""NCCL's classes of paths, and the matrix that nvidia-smi prints of the same machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from topoccl.topology import Link, Topology, Vertex, VertexKind
from topoccl.topology.formats import parse
from topoccl.topology.load import load
from topoccl.topology.paths import PathClass, class_matrix, classify, path_class
from topoccl.topology.routes import Routes

FIXTURES = Path(__file__).parent / "fixtures"


def smi(text: str) -> dict[tuple[str, str], PathClass]:
    """A matrix of ``nvidia-smi topo -m``; NODE is one of the ways through the processor, which NCCL calls PHB."""
    rows = [line.split("\t") for line in text.splitlines() if line.startswith(("\t", "GPU", "mlx"))]
    columns = [name for name in rows[0][1:] if name.startswith(("GPU", "mlx"))]
    table = {}
    for row in rows[1:]:
        for name, cell in zip(columns, row[1:], strict=False):
            word = cell.strip()
            table[row[0], name] = PathClass["LOC" if word == "X" else "NVL" if word[:2] == "NV" else "PHB" if word == "NODE" else word]
    return table


def test_the_classes_of_a_dgx1_are_those_that_nvidia_smi_prints() -> None:
    topology = load(FIXTURES / "dgx1v-nccl.xml")
    routes, table = Routes(topology), smi((FIXTURES / "dgx1v-nvidia-smi-topo.txt").read_text("utf-8"))
    assert len(table) == 144
    for (a, b), expected in table.items():
        assert path_class(routes, f"h0.{a.lower()}", f"h0.{b.lower()}") is expected, (a, b)
    for a in range(8):
        for b in range(8):  # between ranks, by the very ways that schedules take
            assert classify(topology, routes.path(a, b)) is table[f"GPU{a}", f"GPU{b}"]


def test_the_matrix_itself_gives_the_same_classes() -> None:
    path = FIXTURES / "dgx1v-nvidia-smi-topo.txt"
    topology, table = load(path), smi(path.read_text("utf-8"))
    names = [vertex.id for vertex in topology.vertices.values() if vertex.kind in (VertexKind.SLOT, VertexKind.NIC)]
    matrix = class_matrix(topology, names)
    size = range(len(names))
    assert [matrix[a][b] for a in size for b in size] == list(table.values())


def test_the_order_is_nccls() -> None:
    assert " ".join(entry.name for entry in sorted(PathClass)) == "LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS NET DIS"


def chain(kinds: list[tuple[str, VertexKind]], hosts: tuple[str, ...] = ("h",) * 20) -> Topology:
    """A slot, then a link of each kind to a vertex of each kind."""
    vertices = [Vertex("h", VertexKind.HOST), Vertex("g", VertexKind.HOST), Vertex("v0", VertexKind.SLOT, hosts[0])]
    vertices += [Vertex(f"v{n}", kind, hosts[n]) for n, (_, kind) in enumerate(kinds, 1)]
    return Topology("chain", vertices, [Link(f"v{n}", f"v{n + 1}", 1e9, 1e-6, link) for n, (link, _) in enumerate(kinds)])


GPU, PCI, NIC, NUMA, SWITCH = VertexKind.SLOT, VertexKind.PCIE, VertexKind.NIC, VertexKind.NUMA, VertexKind.SWITCH


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([], "LOC"),
        ([("nvlink", GPU)], "NVL"),
        ([("xgmi", GPU)], "NVL"),
        ([("nvlink", SWITCH), ("nvlink", GPU)], "NVL"),
        ([("nvlink", GPU), ("nvlink", GPU)], "NVB"),
        ([("c2c", NUMA)], "C2C"),
        ([("c2c", NUMA), ("c2c", GPU)], "C2C"),
        ([("pcie", PCI), ("pcie", GPU)], "PIX"),
        ([("pcie", PCI), ("pcie", SWITCH), ("port", NIC)], "PIX"),
        ([("pcie", PCI), ("pcie", PCI), ("pcie", NIC)], "PXB"),
        ([("c2c", NUMA), ("pcie", PCI), ("pcie", NIC)], "P2C"),
        ([("nvlink", GPU), ("pcie", PCI), ("pcie", NIC)], "PXN"),
        ([("nvlink", SWITCH), ("nvlink", GPU), ("pcie", PCI), ("pcie", NIC)], "PXN"),
        ([("nvlink", GPU), ("pcie", NUMA), ("pcie", NIC)], "PHB"),
        ([("pcie", NUMA), ("pcie", GPU)], "PHB"),
        ([("shm", NUMA), ("shm", GPU)], "PHB"),
        ([("pcie", NUMA), ("numa", NUMA), ("pcie", GPU)], "SYS"),
        ([("pcie", NIC), ("net", SWITCH), ("net", NIC), ("pcie", GPU)], "NET"),
    ],
)
def test_classes(kinds: list[tuple[str, VertexKind]], expected: str) -> None:
    topology = chain(kinds)
    assert classify(topology, range(len(kinds))).name == expected


def test_no_way_is_dis_and_another_host_is_net() -> None:
    topology = chain([("nvlink", GPU)])
    assert class_matrix(topology) == [[PathClass.LOC, PathClass.NVL], [PathClass.DIS, PathClass.LOC]]
    assert classify(chain([("link", GPU)], ("h", "g")), [0]) is PathClass.NET
    assert classify(chain([("nvlink", GPU)], ("h", "g")), [0]) is PathClass.NVL


def test_generated_machines() -> None:
    matrix = class_matrix(load("dgx-1v:2"))
    assert [entry.name for entry in matrix[0][:9]] == ["LOC", "NVL", "NVL", "NVL", "NVL", "NVB", "NVB", "NVB", "NET"]
    assert [entry.name for entry in matrix[0][16:20]] == ["PIX", "PXN", "PXN", "PXN"]
    assert all(matrix[a][b] is matrix[b][a] for a in range(16) for b in range(16))
    assert [entry.name for entry in class_matrix(load("cluster:2x2"))[0]] == ["LOC", "PHB", "NET", "NET", "PHB", "NET"]


def test_an_accelerator_prefers_its_switch_to_its_processor() -> None:
    text = (FIXTURES / "nccl-traps.xml").read_text("utf-8")
    topology = parse(text, "traps")
    routes = Routes(topology)
    assert path_class(routes, "h0.gpu0", "h0.gpu1") is PathClass.NVL
    assert path_class(routes, "h0.gpu0", "h0.mlx5_0") is PathClass.PIX
    assert path_class(routes, "h0.gpu0", "h0.numa7") is PathClass.C2C
    assert path_class(routes, "h0.gpu0", "h0.eth0") is PathClass.P2C
