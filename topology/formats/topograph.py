"""Models of NVIDIA topograph: ``switches`` by name, ``blocks`` of nodes, NVLink domains; also the older ``capacity_blocks``."""

from __future__ import annotations

import re
from pathlib import PurePath

from topoccl.topology.document import Cursor, read
from topoccl.topology.formats.base import CERTAIN, NO, Format
from topoccl.topology.formats.hostlist import expand
from topoccl.topology.formats.support import HEAD, need, word
from topoccl.topology.formats.switch_tree import SwitchTree
from topoccl.topology.graph import Topology

_BLOCKS = re.compile(r"^(blocks|capacity_blocks)[ \t]*:", re.MULTILINE)
_SWITCHES = re.compile(r"^switches[ \t]*:", re.MULTILINE)
_DOMAINS = ("accelerator.topology.test/domain", "network.topology.nvidia.com/accelerator")
_NVLINK = 18 * 40.1e9
"""One accelerator of an NVL72 rack: 18 links of NVLink 5, NCCL's figure per link."""


def recognise(text: str) -> int:
    head = text[:HEAD]
    return CERTAIN if _BLOCKS.search(head) and (_SWITCHES.search(head) or "capacity_blocks" in head) else NO


def parse(text: str, source: str) -> Topology:
    """Switches as named, one slot per node; nodes of one NVLink domain also share an NVLink switch.

    Raises:
        TopologyError: not YAML, a block of a switch that is not there, a node in two blocks, a ring of switches.
    """
    document = read(text, source)
    given = document.entries("a mapping with switches and blocks (a topograph model)")
    tree = SwitchTree(source, PurePath(source).stem)
    below: dict[str, list[Cursor]] = {}
    places: dict[str, Cursor] = {}
    home: dict[str, str] = {}  # of capacity blocks, which the older form names in the switch
    for name, at in _named(given["switches"]) if "switches" in given and given["switches"].node.value is not None else ():
        if name in places:
            raise at.error(f"switch {name!r} is defined twice")
        fields = at.entries() if at.node.value is not None else {}
        places[name] = at
        below[name] = fields["switches"].items("a list of switches") if "switches" in fields else []
        for block in fields["capacity_blocks"].items() if "capacity_blocks" in fields else ():
            home[word(block, "the name of a block")] = name
    nodes: dict[str, list[str]] = {}
    taken: dict[str, str] = {}
    stray: list[str] = []
    key = "blocks" if "blocks" in given else "capacity_blocks"
    for label, at in _named(need(given, key, document)):
        fields = at.entries()
        switch = word(fields["switch"], "the name of a switch") if "switch" in fields else home.get(label)
        members = [host for item in need(fields, "nodes", at).items("a list of nodes") for host in expand(word(item, "nodes"), item.error)]
        for host in members:
            if host in taken:
                raise at.error(f"node {host!r} is in two blocks, first in {taken[host]}")
            taken[host] = at.path
        (nodes.setdefault(switch, []) if switch is not None else stray).extend(members)
        domain = _domain(fields)
        if domain is not None:
            tree.domain(domain, members)
    children = {name: [word(item, "the name of a switch") for item in items] for name, items in below.items()}
    for name in [*children, *(child for some in list(children.values()) for child in some), *nodes]:
        if name not in tree.switches:
            place = places.get(name, document)
            tree.switch(name, place.error, children=children.get(name, ()), hosts=nodes.get(name, ()))
    if stray:
        free = next(f"unplaced{n or ''}" for n in range(len(tree.switches) + 1) if f"unplaced{n or ''}" not in tree.switches)
        tree.switch(free, document.error, hosts=stray)
        tree.notes.append(f"{len(stray)} nodes name no switch: they hang on {free!r}")
    tree.join("core")
    if tree.domains:
        tree.notes.append("rates of NVLink domains are not stated: 18 links of NVLink 5 per slot")
    return tree.build(_NVLINK)


def _named(at: Cursor) -> list[tuple[str, Cursor]]:
    """Entries with their names: keys of a mapping, or what a list's items say."""
    if at.is_mapping:
        return list(at.entries().items())
    found = []
    for item in at.items("a mapping or a list"):
        fields = item.entries()
        found.append((word(fields["name"], "a name") if "name" in fields else item.path, item))
    return found


def _domain(fields: dict[str, Cursor]) -> str | None:
    """The NVLink domain of a block: an annotation or a label, ``nvlink`` in the older form."""
    for key in ("annotations", "labels"):
        if key in fields and fields[key].node.value is not None:
            marks = fields[key].entries()
            for mark in _DOMAINS:
                if mark in marks:
                    return word(marks[mark], "the name of an NVLink domain")
    return word(fields["nvlink"], "the name of an NVLink domain") if "nvlink" in fields else None


FORMAT = Format("topograph", "a model of NVIDIA topograph", recognise, parse)
