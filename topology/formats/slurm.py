"""Slurm's ``topology.conf`` (tree, block and ring) and ``topology.yaml`` (slurm.schedmd.com, topology.conf(5), topology.yaml(5))."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from topoccl.topology.document import Cursor, read
from topoccl.topology.formats.base import CERTAIN, NO, Format
from topoccl.topology.formats.hostlist import expand
from topoccl.topology.formats.slurm_grid import Grid
from topoccl.topology.formats.support import HEAD, Line, lines, need, shown, word
from topoccl.topology.formats.switch_tree import SwitchTree
from topoccl.topology.graph import Topology, TopologyError

_KEYS = ("SwitchName", "Switches", "Nodes", "LinkSpeed", "BlockName", "BlockSizes", "RingName")
_KNOWN = {key.lower(): key for key in _KEYS}
_CONF = re.compile(r"^[ \t]*(switchname|blockname|blocksizes|ringname)[ \t]*=", re.IGNORECASE | re.MULTILINE)
_YAML = re.compile(r"^-[ \t]+[\"']?topology[\"']?[ \t]*:", re.MULTILINE)
_KINDS = ("tree", "block", "ring", "torus3d", "flat")
_KEYS_OF = {"SwitchName": _KEYS[:4], "BlockName": ("BlockName", "Nodes", "BlockSizes"), "RingName": ("RingName", "Nodes")}
_CORE = "core"


def recognise_conf(text: str) -> int:
    return CERTAIN if _CONF.search(text[:HEAD]) else NO


def parse_conf(text: str, source: str) -> Topology:
    """A tree of switches, blocks on one assumed switch, or rings of hosts.

    Raises:
        TopologyError: a line that is not of ``KEY=VALUE`` pairs, an unknown key, a list of hosts that is none, both switches and
            blocks, a switch that is missing or below itself.
    """
    tree, grid = SwitchTree(source, PurePath(source).stem), Grid(source, PurePath(source).stem)
    kind = ""
    sizes: list[int] = []
    for line in _joined(text, source):
        given = _pairs(line)
        if "Include" in given:
            raise line.error(f"includes {given['Include']!r}; other files are not read: put its lines here")
        this = "BlockName" if "BlockName" in given or "BlockSizes" in given else "RingName" if "RingName" in given else "SwitchName"
        if kind and this != kind:
            raise line.error(f"{this} in a file that began with {kind}; expected one kind of topology")
        kind = this
        if "BlockSizes" in given:
            sizes = _sizes(line, given["BlockSizes"])
        if this not in given:
            if "BlockSizes" in given:
                continue
            raise line.error(f"{shown(line.text.strip())} names no switch; expected SwitchName=NAME")
        name = given[this]
        if not re.fullmatch(r"[^\s\[\],=]+", name):
            line.fail(this, name, "one name")
        wrong = [key for key in given if key not in _KEYS_OF[kind]]
        if wrong:
            raise line.error(f"key {wrong[0]} does not go with {kind}")
        hosts = _hosts(given["Nodes"], line) if "Nodes" in given else []
        if kind == "RingName":
            grid.ring(name, hosts, line.error)
            continue
        attrs = {"link_speed": given["LinkSpeed"]} if "LinkSpeed" in given else {}
        tree.switch(
            name,
            line.error,
            children=expand(given["Switches"], line.error) if "Switches" in given else (),
            hosts=hosts,
            attrs=attrs if kind == "SwitchName" else {"block_sizes": sizes} if sizes else {},
        )
    if kind == "RingName":
        return grid.build()
    if kind == "BlockName":
        tree.join(_CORE)
    return tree.build()


def _joined(text: str, source: str) -> Iterator[Line]:
    """Lines that say something: without comments, those that end with a backslash joined with the next."""
    start, held = 0, ""
    for line in lines(text, source):
        body = re.sub(r"(?<!\\)#.*", "", line.text).rstrip()
        start = start or line.number
        if body.endswith("\\"):
            held += body[:-1] + " "
            continue
        if (held + body).strip():
            yield Line(source, start, held + body)
        start, held = 0, ""
    if held.strip():
        raise TopologyError(f"{source}:{start}: {shown(held.strip())} goes on with a backslash, but the file ends")


def _pairs(line: Line) -> dict[str, str]:
    found: dict[str, str] = {}
    words = line.text.split()
    if words[0].lower() == "include":
        return {"Include": " ".join(words[1:])}
    for text in re.sub(r" ?= ?", "=", " ".join(words)).split():
        key, equals, value = text.partition("=")
        known = _KNOWN.get(key.lower())
        if known is None or not equals:
            line.fail("a word", text, f"KEY=VALUE with one of {', '.join(_KEYS)}")
        if not value:
            raise line.error(f"{known} has no value")
        if known in found:
            raise line.error(f"{known} is given twice in one line")
        found[known] = value
    return found


def _hosts(text: str, line: Line) -> list[str]:
    if text.upper() == "ALL":
        raise line.error("Nodes=ALL stands for the nodes of slurm.conf, which is not read; list them")
    return expand(text, line.error)


def _sizes(line: Line, text: str) -> list[int]:
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text, re.ASCII):
        line.fail("BlockSizes", text, "numbers such as 18,36,72")
    return [int(size) for size in text.split(",")]


def recognise_yaml(text: str) -> int:
    return CERTAIN if _YAML.search(text[:HEAD]) else NO


def parse_yaml(text: str, source: str) -> Topology:
    """The first topology marked ``cluster_default``, or else the first.

    Raises:
        TopologyError: not YAML, no topology, one of a kind that names no hosts, or wrong as :func:`parse_conf`.
    """
    entries = read(text, source).items("a list of topologies (Slurm's topology.yaml)")
    if not entries:
        raise TopologyError(f"{source}: no topology in the list")
    fields = [at.entries("a mapping with topology and one of " + ", ".join(_KINDS)) for at in entries]
    default = next((n for n, given in enumerate(fields) if "cluster_default" in given and given["cluster_default"].plain() is True), 0)
    at, given = entries[default], fields[default]
    name = word(need(given, "topology", at), "the name of a topology")
    kinds = [key for key in given if key not in ("topology", "cluster_default")]
    if len(kinds) != 1 or kinds[0] not in _KINDS:
        raise at.error(f"topology {name!r} is of {shown(kinds)}; expected one of {', '.join(_KINDS)}")
    kind = kinds[0]
    if kind == "flat":
        raise given[kind].error(f"topology {name!r} is flat: it names no hosts, only that all are alike")
    others = [f"topology {name!r} is one of {len(entries)} in the file; the others are left out"] if len(entries) > 1 else []
    inner = given[kind].entries()
    if kind in ("ring", "torus3d"):
        return _grid(Grid(source, name), kind, inner, given[kind], others)
    tree = SwitchTree(source, name)
    tree.notes += others
    key, unit = ("switches", "switch") if kind == "tree" else ("blocks", "block")
    for item in need(inner, key, given[kind]).items():
        one = item.entries()
        label = need(one, unit, item)
        tree.switch(
            word(label, f"the name of a {unit}"),
            item.error,
            children=_expand(one["children"]) if "children" in one and kind == "tree" else (),
            hosts=_expand(one["nodes"]) if "nodes" in one else (),
        )
    if kind == "block":
        tree.join(_CORE)
    return tree.build()


def _grid(grid: Grid, kind: str, inner: dict[str, Cursor], at: Cursor, notes: list[str]) -> Topology:
    grid.notes += notes
    for item in need(inner, "rings" if kind == "ring" else "toruses", at).items():
        if kind == "torus3d":
            grid.torus(item, _expand)
        else:
            one = item.entries()
            grid.ring(word(need(one, "ring", item), "the name of a ring"), _expand(need(one, "nodes", item)), item.error)
    return grid.build()


def _expand(at: Cursor) -> list[str]:
    if at.is_list:
        return [name for item in at.items() for name in expand(word(item, "a list of hosts"), item.error)]
    return expand(word(at, "a list of hosts such as n[1-4]"), at.error)


CONF = Format("slurm-conf", "Slurm's topology.conf: tree, block or ring", recognise_conf, parse_conf)
YAML = Format("slurm-yaml", "Slurm's topology.yaml", recognise_yaml, parse_yaml)
