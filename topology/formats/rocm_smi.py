"""Output of ``rocm-smi --showtopo`` (or ``--showtopotype``): tables of weights, hops and link types, then NUMA nodes; also its JSON.

Two GPUs are linked where the link is XGMI and, if there is a table of hops, one hop long. Rates: what ``--shownodesbw`` says, else
RCCL's figure for a gfx94x (48 GB/s) where each GPU of eight has its seven links, and for a gfx90a (36 GB/s) elsewhere.
"""

from __future__ import annotations

import re

from topoccl.topology import constants
from topoccl.topology.document import read
from topoccl.topology.formats.base import CERTAIN, LIKELY, NO, Format
from topoccl.topology.formats.machine import Device, Machine
from topoccl.topology.formats.matrix import SELF, Table, read_tables
from topoccl.topology.formats.support import DEFAULT, HEAD, plain, shown
from topoccl.topology.graph import Topology, TopologyError

_LABEL = re.compile(r"GPU\d+")
_CELL = re.compile(r"XGMI|PCIE|X|N/?A|UNKNOWN|XXXX|True|False|\d+|\d+-\d+", re.IGNORECASE)
_ROW = re.compile(r"^[ \t]*GPU\d+[ \t]+(?:0[ \t]+(?:XGMI|PCIE)|(?:XGMI|PCIE))(?=[ \t\r\n]|\Z)", re.MULTILINE)
_TITLE = re.compile(r"(?:Weight|Hops|Link Type|Link accessibility|Bandwidth) between two GPUs|\(Topology\) Numa", re.IGNORECASE)
_NUMA = re.compile(r"GPU ?\[? ?(\d{1,4}) ?\]?[ \t]*:[ \t]*\(Topology\) Numa Node:[ \t]*(-?\d{1,4})")
_PAIR = re.compile(r"\(Topology\) (Weight|Hops|Link type) between DRM devices (\d{1,4}) and (\d{1,4})", re.IGNORECASE)
EXPECTED = "XGMI, PCIE, a number, or N/A"


def recognise(text: str) -> int:
    head = plain(text[:HEAD])
    if _TITLE.search(head) or _PAIR.search(head):
        return CERTAIN
    return LIKELY + 1 if _ROW.search(head) else NO


def parse(text: str, source: str) -> Topology:
    """One machine; slots in the order of the matrix.

    Raises:
        TopologyError: no table of link types, a table that is cut off or not symmetric, a cell that is none.
    """
    if plain(text).lstrip()[:1] == "{":
        return _json(text, source)
    tables = read_tables(text, source, _LABEL, _CELL, EXPECTED)
    types = next((t for t in tables if "type" in t.title.lower()), None) or next((t for t in tables if _is_types(t)), None)
    if types is None:
        titles = ", ".join(shown(table.title) for table in tables[:6])
        raise TopologyError(f"{source}: tables {titles}, but none of link types; expected the output of rocm-smi --showtopo")
    columns = types.columns
    hops = _numbers(next((t for t in tables if "hops" in t.title.lower()), None), columns)
    rates = _numbers(next((t for t in tables if "bandwidth" in t.title.lower()), None), columns)
    numa = {f"GPU{gpu}": int(node) for gpu, node in _NUMA.findall(plain(text))}
    devices = [Device(name.lower(), numa=_node(numa.get(name)), attrs={"accelerator": "amd"}) for name in columns]
    kinds = {}
    for a, name in enumerate(columns):
        own = types.cell(name, name)
        if own.upper() not in (*SELF, "N/A", "NA"):
            raise types.rows[name].line.error(f"{name} to itself is {shown(own)}; expected 0")
        for b in range(a + 1, len(columns)):
            kinds[a, b] = types.cell(name, columns[b]).upper()
    return xgmi_machine(Machine(source, devices), kinds, hops, {pair: rate * 1e6 for pair, rate in rates.items() if rate})


def _is_types(table: Table) -> bool:
    return any(cell.upper() in ("XGMI", "PCIE") for row in table.rows.values() for cell in row.cells)


def _node(node: int | None) -> int | None:
    return node if node is not None and node >= 0 else None


def _numbers(table: Table | None, columns: list[str]) -> dict[tuple[int, int], int]:
    """Cells as numbers, the upper one of a range; none where there is no such table."""
    found: dict[tuple[int, int], int] = {}
    if table is not None and table.columns == columns:
        for a, name in enumerate(columns):
            for b in range(a + 1, len(columns)):
                digits = re.findall(r"\d+", table.rows[name].cells[b], re.ASCII)
                if digits:
                    found[a, b] = int(digits[-1][:9])
    return found


def xgmi_machine(
    machine: Machine, kinds: dict[tuple[int, int], str], hops: dict[tuple[int, int], int], rates: dict[tuple[int, int], float]
) -> Topology:
    """The machine whose pairs of GPUs are linked as ``kinds`` says (XGMI or something else), over ``hops``, at ``rates`` bytes/s."""
    pairs = [pair for pair, kind in kinds.items() if kind == "XGMI"]
    near = [pair for pair in pairs if hops.get(pair, 1) == 1] or pairs
    if rates:  # the tools count one hop for every way over xGMI; only direct links have a bandwidth
        near = [pair for pair in near if pair in rates]
    count = len(machine.devices)
    full = count == 8 and len(near) == count * (count - 1) // 2
    assumed = constants.xgmi("gfx942" if full else "gfx90a")
    for a, b in near:
        rate = rates.get((a, b))
        machine.link(a, b, rate or assumed, "xgmi", {} if rate else DEFAULT)
    if any(pair not in rates for pair in near):
        machine.note(f"rates of xGMI are not stated: {assumed / 1e9:g} GB/s per link assumed")
    return machine.build()


def _json(text: str, source: str) -> Topology:
    """``rocm-smi --showtopo --json``: a key for every pair."""
    given = read(text, source).entries("a mapping (rocm-smi --showtopo --json)")
    kinds: dict[tuple[int, int], str] = {}
    hops: dict[tuple[int, int], int] = {}
    numa: dict[int, int] = {}
    for name, at in given.items():
        card = re.fullmatch(r"card(\d{1,4})", name)
        for key, value in at.entries().items() if at.is_mapping else ():
            pair, said = _PAIR.fullmatch(key), str(value.plain())
            if pair is not None and pair[2] != pair[3]:
                low, high = sorted((int(pair[2]), int(pair[3])))
                if pair[1].lower() == "link type":
                    kinds[low, high] = said.upper()
                elif pair[1].lower() == "hops" and re.fullmatch(r"\d{1,6}", said, re.ASCII):
                    hops[low, high] = int(said)
            elif card is not None and key.endswith("Numa Node") and re.fullmatch(r"\d{1,4}", said, re.ASCII):
                numa[int(card[1])] = int(said)
    gpus = sorted({gpu for pair in kinds for gpu in pair} | set(numa))
    if not gpus:
        raise TopologyError(f"{source}: no link types between devices; expected the output of rocm-smi --showtopo --json")
    position = {gpu: index for index, gpu in enumerate(gpus)}
    missing = next(((a, b) for a in gpus for b in gpus if a < b and (a, b) not in kinds), None)
    if missing is not None:
        raise TopologyError(f"{source}: no link type between devices {missing[0]} and {missing[1]} (is it cut off?)")
    machine = Machine(source, [Device(f"gpu{gpu}", numa=numa.get(gpu), attrs={"accelerator": "amd"}) for gpu in gpus])
    at_index = {(position[a], position[b]): kind for (a, b), kind in kinds.items()}
    return xgmi_machine(machine, at_index, {(position[a], position[b]): n for (a, b), n in hops.items() if (a, b) in kinds}, {})


FORMAT = Format("rocm-smi", "output of rocm-smi --showtopo", recognise, parse)
