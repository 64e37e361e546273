"""Output of ``ibnetdiscover``: the switches, channel adapters and cables of an InfiniBand fabric.

Two forms: nodes with their ports, and one line per port (``-p``). A cable is known by its two ends (node and port number), never by the
port's guid: two ports may share one. Lines of ``-p`` have the guids of ports, so that ports of one adapter are known by its description.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from topoccl.topology import fabric as fb
from topoccl.topology.formats.base import CERTAIN, LIKELY, NO, Format
from topoccl.topology.formats.draft import Draft
from topoccl.topology.formats.support import DEFAULT, HEAD, Line, finish, lines, shown
from topoccl.topology.formats.switch_tree import ONE_SLOT
from topoccl.topology.graph import Topology, TopologyError, VertexKind

LANE = {
    "SDR": 2.0,
    "DDR": 4.0,
    "QDR": 8.0,
    "FDR10": 10.0,
    "FDR": 14.0625 * 64 / 66,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
"""Gbit/s of payload per lane (after 8b/10b or 64b/66b coding)."""

_NODE = re.compile(r'(Switch|Ca|Rt)\s+(\d+)\s+"([SHR]-[0-9a-fA-F]+)"\s*(?:#\s*"(.*)"(?:[^"]*))?$')
_HEAD = re.compile(r'^[ \t]*(Switch|Ca|Rt)[ \t]+\d+[ \t]+"[SHR]-[0-9a-fA-F]+"', re.MULTILINE)
_TITLE = re.compile(r"^# *Topology file: generated on", re.MULTILINE)
_EXT = r"(?:\s*\[ext [^\]]*\])?"
_PORT = re.compile(
    rf'\[(\d+)\]{_EXT}(?:\(([0-9a-fA-F]+)\))?\s+"([SHR]-[0-9a-fA-F]+)"\s*\[(\d+)\]{_EXT}(?:\(([0-9a-fA-F]+)\))?\s*(?:#(.*))?$'
)
_KINDS = {"SW": "S", "CA": "H", "RT": "R"}
_REPORT = re.compile(r"^[ \t]*(?:SW|CA|RT)[ \t]+\d+[ \t]+\d+[ \t]+0x[0-9a-fA-F]{4,16}[ \t]+(?:\d+x|\?\?)[ \t]+\S", re.MULTILINE)
_REPORTED = re.compile(
    r"(SW|CA|RT)\s+\d+\s+(\d+)\s+0x([0-9a-fA-F]+)\s+(\S+)\s+(\S+)"
    r"(?:\s+-\s+(SW|CA|RT)\s+\d+\s+(\d+)\s+0x([0-9a-fA-F]+)\s+\(\s*'(.*)'\s+-\s+'(.*)'\s*\)|\s+(?!-\s).*)?$"
)
_SPEED = re.compile(r"\b(\d+)x(?:([A-Z]+\d*)|\S+)\s*(?:\(.*\))?$")
_QUOTED = re.compile(r'"(.*)"')
_ADAPTER = re.compile(r"(\S+)\s+((?:HCA-|mlx\d+_|mthca|hfi1_|qib|ib\w|roce\w|bnxt_re|irdma|efa_)\S*)$")
_GENERIC = re.compile(r"\bMellanox\b|\bTechnologies\b|^MT\d|ConnectX|InfiniHost|^$", re.IGNORECASE)

_End = tuple[str, int]


@dataclass
class _Nodes:
    """Nodes by guid, with what is said about them (by themselves, or by a neighbour), and the cables between them."""

    said: dict[str, str] = field(default_factory=dict)
    own: dict[str, None] = field(default_factory=dict)
    cables: dict[tuple[_End, _End], float | None] = field(default_factory=dict)

    def join(self, a: _End, b: _End, rate: float | None) -> None:
        """A cable, or what its other end says of it: the lower rate counts."""
        low, high = sorted((a, b))
        self.cables[low, high] = min(filter(None, (self.cables.get((low, high)), rate)), default=None)


def recognise(text: str) -> int:
    head = text[:HEAD]
    return CERTAIN if _HEAD.search(head) or _REPORT.search(head) else LIKELY if _TITLE.search(head) else NO


def parse(text: str, source: str) -> Topology:
    """Hosts are adapters with one host name in their descriptions; every cabled port of theirs is a NIC.

    Aggregation nodes (SHARP) are no hosts and left out. An adapter without a host name in its description is a host of its own.

    Raises:
        TopologyError: a line that is not as ibnetdiscover writes it, no cable, no adapter.
    """
    nodes = _read_report(text, source) if _REPORT.search(text[:HEAD]) else _read(text, source)
    if not nodes.cables:
        raise TopologyError(
            f"{source}: not one cable (nodes: {len(nodes.own)}); expected lines such as"
            ' [1] "H-e41d2d0300000001"[1](e41d2d0300000001) # "host mlx5_0" lid 4 4xHDR'
        )
    draft = Draft(source)
    adapters = _hosts(draft, nodes)
    vertices = _switches(draft, nodes)
    ports: dict[str, int] = {}
    for (a, b), stated in nodes.cables.items():
        if a[0] == b[0] or any(guid[0] == "H" and guid not in adapters for guid, _ in (a, b)):
            continue  # a cable of a switch to itself; an aggregation node
        rate = stated or fb.NET_BANDWIDTH
        ends = []
        for guid, port in (a, b):
            if guid in adapters:
                host, name = adapters[guid]
                ports[guid] = ports.get(guid, 0) + 1
                label = name if ports[guid] == 1 else f"{name}:{ports[guid]}"
                attrs = {"guid": guid[2:], "port": port, **({} if stated else DEFAULT)}
                ends.append(draft.nic(host, label, rate, attrs=attrs))
            else:
                ends.append(vertices[guid])
        draft.link(ends[0], ends[1], rate, fb.NET_LATENCY, "net", attrs={} if stated else DEFAULT)
    return finish(draft)


def _read(text: str, source: str) -> _Nodes:
    nodes = _Nodes()
    here: str | None = None
    for line in lines(text, source):
        body = line.text.strip()
        if re.match(r"(Switch|Ca|Rt)\s", body):
            match = _NODE.match(body)
            if match is None:
                line.fail("a node", body, 'a line such as Switch 36 "S-248a0703008a8500" # "name" base port 0 lid 1 lmc 0')
            here = match[3]
            nodes.own[here] = None
            nodes.said[here] = (match[4] or "").strip()
        elif re.match(r"\[\d", body):
            _cable(line, body, here, nodes)
        elif not body:
            here = None
    return nodes


def _cable(line: Line, body: str, here: str | None, nodes: _Nodes) -> None:
    match = _PORT.match(body)
    if match is None:
        line.fail("a port", body, 'a line such as [1] "H-e41d2d0300000001"[1](e41d2d0300000001) # "host mlx5_0" lid 4 4xHDR')
    if here is None:
        raise line.error(f"port {shown(body)} belongs to no node; expected a Switch or Ca line before it")
    comment = (match[6] or "").strip()
    peer, quoted, speed = match[3], _QUOTED.search(comment), _SPEED.search(comment[-40:])
    if peer not in nodes.own:
        nodes.said.setdefault(peer, quoted[1].strip() if quoted else "")
    nodes.join((here, int(match[1][:6])), (peer, int(match[4][:6])), _rate(speed[1], speed[2] or "") if speed is not None else None)


def _rate(width: str, speed: str) -> float | None:
    """Bytes/s of payload for ``4`` and ``EDR``; None for what is not known."""
    lanes = int(width[:3])
    return lanes * LANE[speed] * 1e9 / 8 if speed in LANE and 0 < lanes <= 12 else None


def _read_report(text: str, source: str) -> _Nodes:
    """The form with a line per port: both ends of its cable, or none."""
    nodes = _Nodes()
    adapters: dict[str, list[tuple[str, dict[int, str]]]] = {}  # by description: nodes, each with the guids of its ports

    def node(kind: str, guid: str, port: int, description: str) -> str:
        key = f"{_KINDS[kind]}-{guid}"
        if kind == "CA" and not _GENERIC.search(description):
            same = adapters.setdefault(description, [])
            known = next((entry for entry in same if entry[1].setdefault(port, guid) == guid), None)
            if known is None:
                same.append(known := (key, {port: guid}))
            key = known[0]
        nodes.own[key] = None
        nodes.said.setdefault(key, description)
        return key

    for line in lines(text, source):
        body = line.text.strip()
        if not re.match(r"(SW|CA|RT)\s+\d", body):
            continue
        match = _REPORTED.match(body)
        if match is None:
            line.fail(
                "a port", body, "a line such as CA 4 1 0xe41d2d0300000001 4x EDR - SW 1 7 0x248a0703008a8500 ( 'h1 mlx5_0' - 'leaf' )"
            )
        if match[6] is None:
            continue
        here, there = ((int(match[at][:6]), match[at + 1].lower()) for at in (2, 7))
        ends = (
            (node(match[1], here[1], here[0], match[9].strip()), here[0]),
            (node(match[6], there[1], there[0], match[10].strip()), there[0]),
        )
        nodes.join(*ends, _rate(match[4][:-1], match[5]) if re.fullmatch(r"\d{1,3}x", match[4], re.ASCII) else None)
    return nodes


def _hosts(draft: Draft, nodes: _Nodes) -> dict[str, tuple[str, str]]:
    """Adds the hosts; returns the host and the adapter's name by guid."""
    cabled = {guid for pair in nodes.cables for guid, _ in pair}
    adapters: dict[str, tuple[str, str]] = {}
    names: dict[tuple[str, str], str] = {}
    nameless = skipped = doubled = 0
    for guid, text in nodes.said.items():
        if not guid.startswith("H-") or guid not in cabled:
            continue
        if "aggregation node" in text.lower():
            skipped += 1
            continue
        match = _ADAPTER.match(text)
        if match is not None:
            host, adapter = match[1], match[2]
        elif _GENERIC.search(text):
            host, adapter = f"ca-{guid[2:]}", "ib0"
            nameless += 1
        else:
            host, adapter = text.split()[0], text.split()[1] if " " in text else "ib0"
        if (host, adapter) in names:  # two machines with one name
            doubled += 1
            host = f"{host}#{guid[2:]}"
        names[host, adapter] = guid
        adapters[guid] = (host, adapter)
    notes = [ONE_SLOT]
    if skipped:
        notes.append(f"{skipped} aggregation nodes are no hosts: left out")
    if nameless:
        notes.append(f"{nameless} adapters do not say their host: each is a host of its own")
    if doubled:
        notes.append(f"{doubled} adapters have a name that another has: each is a host of its own")
    for host in dict.fromkeys(host for host, _ in adapters.values()):
        draft.host(host)
        draft.slot(host, attrs=DEFAULT)
    for note in notes if adapters else ():
        draft.note(next(iter(adapters.values()))[0], note)
    return adapters


def _switches(draft: Draft, nodes: _Nodes) -> dict[str, str]:
    """Adds the switches and routers, under their names where these are unique; returns vertex ids by guid."""
    taken: dict[str, int] = {vertex.id: 1 for vertex in draft.vertices}
    guids = [guid for guid in nodes.said if guid[0] in "SR"]
    labels = {}
    for guid in guids:
        text = nodes.said[guid]
        match = re.fullmatch(r"MF\d+;([^:;\s]+):\S*", text)
        labels[guid] = match[1] if match else "" if _GENERIC.search(text) or " " in text else text
        taken[labels[guid]] = taken.get(labels[guid], 0) + 1
    for guid in guids:
        if taken[labels[guid]] > 1 or not labels[guid]:
            labels[guid] = f"sw-{guid[2:]}" if guid[0] == "S" else f"rt-{guid[2:]}"
        draft.add(labels[guid], VertexKind.SWITCH, attrs={"guid": guid[2:], "description": nodes.said[guid]})
    return labels


FORMAT = Format("ibnetdiscover", "output of ibnetdiscover", recognise, parse)
