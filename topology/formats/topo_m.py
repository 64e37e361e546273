"""What ``nvidia-smi topo -m`` and the tools made after it have in common: one matrix of classes, then legends."""

from __future__ import annotations

import re
from dataclasses import dataclass

from topoccl.topology.formats.machine import LEVELS, Device, Machine
from topoccl.topology.formats.matrix import SELF, Table, read_tables
from topoccl.topology.formats.support import HEAD, plain, shown
from topoccl.topology.graph import TopologyError

CLASSES = ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC")
UNKNOWN = ("NA", "N/A", "UNK", "ETH")
_LEGEND = re.compile(r"^[ \t]*(NIC\d+)[ \t]*[:=][ \t]*([\w.:-]+)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Tool:
    """How one tool prints: names of accelerators, tokens of its own links, and what an accelerator is called."""

    name: str
    label: str
    links: str
    accelerator: str

    @property
    def cell(self) -> re.Pattern[str]:
        return re.compile("|".join([*map(re.escape, ("X", *CLASSES, *UNKNOWN)), self.links]))

    @property
    def row(self) -> re.Pattern[str]:
        """A row of such a matrix, in the middle of whatever text."""
        return re.compile(rf"^[ \t]*(?:{self.label})[ \t]+(?:{self.cell.pattern})(?=[ \t\r\n]|\Z)", re.MULTILINE)

    @property
    def linked(self) -> re.Pattern[str]:
        """A row with one of the tool's own links in it."""
        return re.compile(rf"^[ \t]*(?:{self.label})[ \t][^\n]*(?<=[ \t])(?:{self.links})(?=[ \t\r\n]|\Z)", re.MULTILINE)


def looks(tool: Tool, text: str) -> tuple[bool, bool]:
    """Whether ``text`` has a row of such a matrix, and one with a link of the tool's own."""
    head = plain(text[:HEAD])
    return tool.row.search(head) is not None, tool.linked.search(head) is not None


def read_machine(tool: Tool, text: str, source: str) -> tuple[Machine, dict[tuple[int, int], str]]:
    """The machine without direct links, and the tokens of direct links by pairs of accelerators (``a < b``).

    Raises:
        TopologyError: no matrix, one that is cut off, not symmetric, with cells that are none, or two different ones.
    """
    label = re.compile(tool.label)
    expected = f"one of X, {', '.join(CLASSES)} or a link of {tool.name}"
    tables = read_tables(text, source, label, tool.cell, expected)
    table = tables[0]
    if any(other.columns != table.columns for other in tables[1:]):
        raise tables[1].line.error(f"a second matrix with other devices; the first is in line {table.line.number}, expected one machine")
    names = dict(_LEGEND.findall(plain(text)))
    devices = [_device(tool, label, table, name, names) for name in table.columns]
    machine = Machine(source, devices)
    links: dict[tuple[int, int], str] = {}
    missing = [name for name in table.columns if name not in table.rows]
    if missing:
        machine.note(f"rows of {', '.join(missing)[:200]} are missing: taken from the columns")
    for a, name in enumerate(table.columns):
        own = table.rows[name].cells[a] if name in table.rows else "X"
        if own not in SELF:
            raise table.rows[name].line.error(f"{name} to itself is {shown(own)}; expected X")
        for b in range(a + 1, len(table.columns)):
            cell = table.cell(name, table.columns[b])
            if cell in LEVELS:
                machine.near[a, b] = LEVELS[cell]
            elif cell in SELF:
                raise table.line.error(f"{name} to {table.columns[b]} is {shown(cell)}, which only a device is to itself")
            elif cell not in UNKNOWN:
                if devices[a].nic or devices[b].nic:
                    raise table.line.error(f"{name} to {table.columns[b]} is {shown(cell)}; only accelerators have such links")
                links[a, b] = cell
    return machine, links


def _device(tool: Tool, label: re.Pattern[str], table: Table, name: str, names: dict[str, str]) -> Device:
    row = table.rows.get(name)
    cpus, numa = (row.cpus, row.numa) if row else (None, None)
    if label.fullmatch(name):
        coherent = row is not None and row.memory is not None
        return Device(name.lower(), cpus=cpus, numa=numa, coherent=coherent, attrs={"accelerator": tool.accelerator})
    return Device(names.get(name, name), nic=True, cpus=cpus, numa=numa, attrs={"label": name} if name in names else {})


def count(token: str, source: str) -> int:
    """The number at the end of a token such as ``NV12``.

    Raises:
        TopologyError: 0 or beyond 1024.
    """
    digits = re.search(r"\d+$", token, re.ASCII)
    number = int(digits[0][:6]) if digits else 1
    if not 1 <= number <= 1024:
        raise TopologyError(f"{source}: {shown(token)} stands for {number} links; expected 1 to 1024")
    return number
