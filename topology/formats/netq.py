"""NetQ's JSON: the graph of switches and hosts (``topologyGraph``), and the compute nodes of NVLink domains (``computeNodes``)."""

from __future__ import annotations

import re

from topoccl.topology import fabric as fb
from topoccl.topology.document import Cursor, read
from topoccl.topology.formats.base import CERTAIN, NO, Format
from topoccl.topology.formats.draft import Draft
from topoccl.topology.formats.support import DEFAULT, HEAD, finish, need, shown, word
from topoccl.topology.formats.switch_tree import ONE_SLOT
from topoccl.topology.graph import Topology, VertexKind

_NVLINK = 18 * 40.1e9
_LATENCY = 0.35e-6
_SWITCH = re.compile(r"switch", re.IGNORECASE)


def recognise(text: str) -> int:
    head = text[:HEAD]
    graph = re.search(r'"compounded_(links|nodes)"\s*:', head)
    nodes = re.search(r'"GpuIDList"\s*:', head) and re.search(r'"DomainUUID"\s*:', head)
    return CERTAIN if graph or nodes else NO


def parse(text: str, source: str) -> Topology:
    """A graph's hosts get one slot each and a NIC per cable; compute nodes a slot per GPU, on one NVLink switch per domain.

    Raises:
        TopologyError: not JSON, a node without id or name, a link to an unknown node, a node given twice.
    """
    document = read(text, source)
    at = document
    if document.is_list:
        entries = document.items()
        if not entries:
            document.fail("NetQ's list of nodes, or its graph")
        if not entries[0].is_mapping or "nodes" not in entries[0].entries():
            return _nodes(document, entries, source)
        at = entries[0]
    return _graph(at, source)


def _nodes(document: Cursor, entries: list[Cursor], source: str) -> Topology:
    draft = Draft(source)
    domains: dict[str, list[str]] = {}
    seen: dict[str, None] = {}
    for at in entries:
        fields = at.entries("a compute node")
        name = word(need(fields, "Name", at), "the name of a node")
        if name in seen:
            fields["Name"].fail("a node that is not in the list yet")
        seen[name] = None
        place = fields["LocationInfo"].entries() if "LocationInfo" in fields else {}
        attrs: dict[str, object] = {key: place[key].plain() for key in ("ChassisID", "SlotID", "TrayIndex", "HostID") if key in place}
        draft.host(name, attrs=attrs)
        draft.note(name, "rates are not stated: 18 links of NVLink 5 per GPU")
        domain = word(need(fields, "DomainUUID", at), "the id of an NVLink domain")
        for gpu in need(fields, "GpuIDList", at).items("a list of GPUs"):
            slot = draft.bare_slot(name, {"accelerator": "nvidia", "id": word(gpu, "the id of a GPU")})
            domains.setdefault(domain, []).append(slot)
    for number, (domain, slots) in enumerate(domains.items()):
        label = f"nvlink{number}"
        switch = draft.add(f"{label}#switch" if label in seen else label, VertexKind.SWITCH, attrs={"domain": domain})
        for slot in slots:
            draft.link(slot, switch, _NVLINK, _LATENCY, "nvlink", attrs=DEFAULT)
    if len(domains) > 1:
        draft.note(next(iter(seen)), "the network between NVLink domains is not in the file")
    return finish(draft)


def _graph(at: Cursor, source: str) -> Topology:
    given = at.entries("NetQ's graph, a mapping with nodes and links")
    draft = Draft(source)
    vertices: dict[str, str] = {}
    hosts: set[str] = set()
    taken: set[str] = set()
    for node in _devices(need(given, "nodes", at)):
        fields = node.entries()
        number = word(need(fields, "id", node), "the id of a node")
        if number in vertices:
            fields["id"].fail("a node that is not in the graph yet")
        name = word(fields["name"], "the name of a node") if "name" in fields else number
        vertices[number] = name = name if name not in taken else f"{name}#{number}"
        taken.add(name)
        kind = word(fields["device_type"], "a type") if "device_type" in fields else ""
        if _SWITCH.search(kind):
            draft.add(name, VertexKind.SWITCH)
        else:
            draft.host(name)
            if not hosts:
                draft.note(name, "rates are not stated: 10 Gbit/s per cable")
                draft.note(name, ONE_SLOT)
            draft.slot(name, attrs=DEFAULT)
            hosts.add(name)
    ports: dict[str, int] = {}
    for link in need(given, "links", at).items("a list of links"):
        fields = link.entries()
        cables = fields["compounded_links"].items() if "compounded_links" in fields else [link]
        for cable in cables:
            inner = cable.entries()
            pair = need(inner, "interfaces", cable).items("a list of two ends")
            if len(pair) != 2:
                inner["interfaces"].fail("a list of two ends")
            ends = [_end(draft, end, vertices, hosts, ports) for end in pair]
            if ends[0] == ends[1]:
                raise cable.error("both ends are the same node")
            draft.link(ends[0], ends[1], fb.NET_BANDWIDTH, fb.NET_LATENCY, "net", attrs=DEFAULT)
    return finish(draft)


def _devices(at: Cursor) -> list[Cursor]:
    """Nodes, with those inside of tiers."""
    found: list[Cursor] = []
    waiting = at.items("a list of nodes")[::-1]
    while waiting:
        node = waiting.pop()
        fields = node.entries()
        if "compounded_nodes" in fields:
            waiting += fields["compounded_nodes"].items("a list of nodes")[::-1]
        else:
            found.append(node)
    return found


def _end(draft: Draft, at: Cursor, vertices: dict[str, str], hosts: set[str], ports: dict[str, int]) -> str:
    fields = at.entries()
    number = word(need(fields, "node", at), "the id of a node")
    if number not in vertices:
        fields["node"].fail(f"a node of the graph; known: {shown(list(vertices)[:8], 120)}")
    name = vertices[number]
    if name not in hosts:
        return name
    ports[name] = ports.get(name, 0) + 1
    label = word(fields["interface"], "the name of an interface") if "interface" in fields else "eth"
    return draft.nic(name, f"{label}#{ports[name]}" if label in ("eth", "s0") else label, fb.NET_BANDWIDTH, attrs=DEFAULT)


FORMAT = Format("netq", "NetQ's JSON: topologyGraph or computeNodes", recognise, parse)
