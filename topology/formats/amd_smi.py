"""Output of ``amd-smi topology``, as text (tables by PCI address) or ``--json``; rates as in :mod:`topoccl.topology.formats.rocm_smi`."""

from __future__ import annotations

import re

from topoccl.topology.document import Cursor, read
from topoccl.topology.formats.base import CERTAIN, NO, Format
from topoccl.topology.formats.machine import Device, Machine
from topoccl.topology.formats.matrix import MAX_DEVICES, SELF, Table, read_tables
from topoccl.topology.formats.rocm_smi import xgmi_machine
from topoccl.topology.formats.support import HEAD, need, plain, shown, whole
from topoccl.topology.graph import Topology, TopologyError

_LABEL = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]|GPU_?\d+", re.ASCII)
_CELL = re.compile(r"SELF|XGMI|PCIE|ENABLED|DISABLED|N/?A|UNKNOWN|T|F|C|NC|(?:\d+|N/A)(?:-(?:\d+|N/A))?|\d+(?:,\d+)+", re.IGNORECASE)
_TABLE = re.compile(r"^[ \t]*(ACCESS|WEIGHT|HOPS|LINK TYPE|NUMA BW) TABLE", re.MULTILINE)
_KEYS = re.compile(r'"link_type"\s*:')


def recognise(text: str) -> int:
    head = plain(text[:HEAD])
    as_json = _KEYS.search(head) and re.search(r'"(num_hops|link_status|weight)"\s*:', head)
    return CERTAIN if _TABLE.search(head) or as_json else NO


def parse(text: str, source: str) -> Topology:
    """One machine; slots in the order of the tables.

    Raises:
        TopologyError: no table of link types, a table that is cut off or not symmetric, a cell that is none.
    """
    if plain(text).lstrip()[:1] in ("[", "{"):
        return _json(text, source)
    tables = {table.title.upper(): table for table in read_tables(text, source, _LABEL, _CELL, "SELF, XGMI, PCIE, a number, or N/A")}
    types = tables.get("LINK TYPE TABLE")
    if types is None:
        raise TopologyError(f"{source}: tables {shown(list(tables), 200)}, but no LINK TYPE TABLE; expected the output of amd-smi topology")
    columns = types.columns
    kinds = {}
    for a, name in enumerate(columns):
        own = types.cell(name, name)
        if own.upper() not in (*SELF, "N/A"):
            raise types.rows[name].line.error(f"{name} to itself is {shown(own)}; expected SELF")
        for b in range(a + 1, len(columns)):
            kinds[a, b] = types.cell(name, columns[b]).upper()
    hops = {pair: int(text) for pair, text in _upper(tables.get("HOPS TABLE"), columns).items() if re.fullmatch(r"\d{1,6}", text, re.ASCII)}
    rates = {pair: _rate(text) for pair, text in _upper(tables.get("NUMA BW TABLE"), columns).items()}
    devices = [Device(f"gpu{index}", attrs={"accelerator": "amd", "busid": name.lower()}) for index, name in enumerate(columns)]
    return xgmi_machine(Machine(source, devices), kinds, hops, {pair: rate for pair, rate in rates.items() if rate})


def _upper(table: Table | None, columns: list[str]) -> dict[tuple[int, int], str]:
    if table is None or table.columns != columns:
        return {}
    return {(a, b): table.rows[name].cells[b] for a, name in enumerate(columns) for b in range(a + 1, len(columns))}


def _rate(text: str) -> float:
    """Bytes/s for ``50000-50000`` (least and most, MB/s); 0 where it says nothing."""
    match = re.fullmatch(r"\d+-(\d{1,9})", text, re.ASCII)
    return float(match[1]) * 1e6 if match else 0.0


def _json(text: str, source: str) -> Topology:
    document = read(text, source)
    entries = document.items() if document.is_list else next(iter(document.entries().values()), document).items("a list of GPUs")
    if not 0 < len(entries) <= MAX_DEVICES:
        raise document.error(f"{len(entries)} GPUs; expected 1 to {MAX_DEVICES}")
    position: dict[int, int] = {}
    devices, links = [], []
    for at in entries:
        fields = at.entries("a GPU with its links (amd-smi topology --json)")
        gpu = whole(need(fields, "gpu", at), 1 << 16)
        if gpu in position:
            fields["gpu"].fail("a GPU that is not in the list yet")
        position[gpu] = len(position)
        busid = fields["bdf"].plain() if "bdf" in fields else None
        devices.append(Device(f"gpu{gpu}", attrs={"accelerator": "amd", "busid": busid if isinstance(busid, str) else None}))
        links += [(gpu, item) for item in need(fields, "links", at).items("a list of links")]
    kinds: dict[tuple[int, int], str] = {}
    hops: dict[tuple[int, int], int] = {}
    rates: dict[tuple[int, int], float] = {}
    for gpu, item in links:
        _link(item, gpu, position, kinds, hops, rates)
    missing = next(((a, b) for a in range(len(position)) for b in range(a + 1, len(position)) if (a, b) not in kinds), None)
    if missing is not None:
        raise TopologyError(f"{source}: no link type between GPUs {missing[0]} and {missing[1]} (is it cut off?)")
    return xgmi_machine(Machine(source, devices), kinds, hops, {pair: rate for pair, rate in rates.items() if rate})


def _link(
    at: Cursor,
    gpu: int,
    position: dict[int, int],
    kinds: dict[tuple[int, int], str],
    hops: dict[tuple[int, int], int],
    rates: dict[tuple[int, int], float],
) -> None:
    fields = at.entries("a link")
    peer = whole(need(fields, "gpu", at), 1 << 16)
    if peer not in position:
        fields["gpu"].fail("a GPU of the list")
    kind = need(fields, "link_type", at).text("a type of link").upper()
    if peer == gpu:
        return
    low, high = sorted((position[gpu], position[peer]))
    if kinds.setdefault((low, high), kind) != kind:
        fields["link_type"].fail(f"{kinds[low, high]}, as the other GPU says")
    if "num_hops" in fields and isinstance(fields["num_hops"].plain(), int):
        hops[low, high] = whole(fields["num_hops"], 1 << 20)
    if "bandwidth" in fields:
        rates[low, high] = _rate(str(fields["bandwidth"].plain()))


FORMAT = Format("amd-smi", "output of amd-smi topology", recognise, parse)
