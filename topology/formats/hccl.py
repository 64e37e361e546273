"""Ascend HCCL rank tables, versions 1.0 and 1.2: servers with their NPUs, addresses and ranks; 1.2 adds super pods.

A table says nothing of links. Assumed: NPUs of one server meet in an HCCS switch (7 links of 28 GB/s each, as in an Atlas 800T A2),
servers of one super pod by the same links, all NPUs with an address in one network at 100 Gbit/s.
"""

from __future__ import annotations

import re

from topoccl.topology import fabric as fb
from topoccl.topology.document import Cursor, read
from topoccl.topology.formats.base import CERTAIN, NO, Format
from topoccl.topology.formats.draft import Draft
from topoccl.topology.formats.support import DEFAULT, HEAD, finish, need, shown, whole, word
from topoccl.topology.graph import Topology, TopologyError

HCCS = 7 * 28e9
"""What one NPU moves over HCCS, bytes/s per direction."""
ROCE = 12.5e9
_LATENCY = 0.35e-6
_VERSIONS = ("1.0", "1.2")
_SERVERS = re.compile(r'"server_list"\s*:')
_DEVICES = re.compile(r'"(device|rank_id|super_pod_list)"\s*:')
# What is not closed ends with the line or the text, so that no part is looked at twice.
_COMMENT = re.compile(
    r'("(?:[^"\\\n]|\\[^\n])*"?)|//[^\n]*|/\*.*?(?:\*/|\Z)|^[ \t]*#[^\n]*|(?<=[\s,\[{}\]])#[^\n]*', re.DOTALL | re.MULTILINE
)


def recognise(text: str) -> int:
    head = text[:HEAD]
    return CERTAIN if _SERVERS.search(head) and (_DEVICES.search(head) or '"server_id"' in head) else NO


def parse(text: str, source: str) -> Topology:
    """Rank ``r`` sits on the NPU whose ``rank_id`` is ``r``. Comments (``//``, ``/* */``, ``#``) are passed over.

    Raises:
        TopologyError: not JSON, another version, a table that is still being made, a count that does not match, a rank or an NPU
            given twice, ranks that are not 0 to n-1.
    """
    document = read(_COMMENT.sub(lambda match: match[1] or " ", text), source)
    given = document.entries("a mapping with server_list (an HCCL rank table)")
    if "RankTable" in given:
        document = given["RankTable"]
        given = document.entries()
    if "version" in given and str(given["version"].plain()) not in _VERSIONS:
        given["version"].fail(f"version {' or '.join(_VERSIONS)} of a rank table")
    if "status" in given and given["status"].plain() != "completed":
        given["status"].fail("completed: the table is not ready yet")
    servers = need(given, "server_list", document).items("a list of servers")
    if "server_count" in given and whole(given["server_count"]) != len(servers):
        given["server_count"].fail(f"{len(servers)}, the number of servers in server_list")
    draft = Draft(source)
    ranks: dict[int, str] = {}
    addresses: list[tuple[str, str]] = []
    hosts: dict[str, tuple[str, int]] = {}
    for at in servers:
        _server(draft, at, hosts, ranks, addresses)
    missing = next((rank for rank in range(len(ranks)) if rank not in ranks), None)
    if missing is not None:
        raise TopologyError(f"{source}: rank_id {missing} is missing; expected ranks 0 to {len(ranks) - 1}")
    if len(hosts) > 1:
        _network(draft, hosts, addresses)
    if "super_pod_list" in given:
        _pods(draft, given["super_pod_list"], hosts)
    return finish(draft, [ranks[rank] for rank in range(len(ranks))])


def _server(draft: Draft, at: Cursor, hosts: dict[str, tuple[str, int]], ranks: dict[int, str], addresses: list[tuple[str, str]]) -> None:
    fields = at.entries()
    host = word(need(fields, "server_id", at), "the name or address of a server")
    if host in hosts:
        fields["server_id"].fail("a server that is not in the list yet")
    draft.host(host)
    draft.note(host, "links are not stated: HCCS at 196 GB/s per NPU, 100 Gbit/s per NPU between servers")
    devices = need(fields, "device", at).items("a list of devices")
    seen: set[int] = set()
    slots = []
    for item in devices:
        device = item.entries()
        number = whole(need(device, "device_id", item), 1 << 20)
        if number in seen:
            device["device_id"].fail(f"a device that server {host!r} does not have yet")
        seen.add(number)
        rank = whole(need(device, "rank_id", item), 1 << 20)
        if rank in ranks:
            device["rank_id"].fail(f"a rank that is not given yet (this one is {ranks[rank]})")
        attrs: dict[str, object] = {"accelerator": "ascend", "device": number}
        attrs |= {key: str(device[key].plain()) for key in ("device_ip", "super_device_id") if key in device}
        ranks[rank] = slot = draft.bare_slot(host, attrs)
        slots.append(slot)
        if str(attrs.get("device_ip") or ""):
            addresses.append((host, slot))
    hub = draft.switch(f"{host}.hccs", host)
    for slot in slots:
        draft.link(slot, hub, HCCS, _LATENCY, "hccs", attrs=DEFAULT)
    hosts[host] = (hub, len(slots))


def _network(draft: Draft, hosts: dict[str, tuple[str, int]], addresses: list[tuple[str, str]]) -> None:
    """One switch: a NIC for every NPU with an address, for other servers one for all their NPUs."""
    switch = draft.switch(_free(hosts, "roce"))
    ports: dict[str, int] = dict.fromkeys(hosts, 0)
    with_nic = {host for host, _ in addresses}
    pairs = [*addresses, *((host, hub) for host, (hub, count) in hosts.items() if host not in with_nic and count)]
    for host, hub in pairs:
        nic = draft.nic(host, f"eth{ports[host]}", ROCE, hub=hub, pcie=2 * ROCE, attrs=DEFAULT)
        ports[host] += 1
        draft.link(nic, switch, ROCE, fb.NET_LATENCY, "net", attrs=DEFAULT)


def _pods(draft: Draft, at: Cursor, hosts: dict[str, tuple[str, int]]) -> None:
    placed: set[str] = set()
    names: set[str] = set()
    for item in at.items("a list of super pods"):
        fields = item.entries()
        label = word(need(fields, "super_pod_id", item), "the id of a super pod")
        if label in names:
            fields["super_pod_id"].fail("a super pod that is not in the list yet")
        names.add(label)
        pod = draft.switch(_free(hosts, f"pod{label}"))
        for server in need(fields, "server_list", item).items("a list of servers"):
            host = word(need(server.entries(), "server_id", server), "the name of a server")
            if host not in hosts:
                raise server.error(f"server {host!r} is not in server_list; known: {shown(list(hosts)[:8], 120)}")
            if host in placed:
                raise server.error(f"server {host!r} is in two super pods")
            placed.add(host)
            hub, count = hosts[host]
            if count:
                draft.link(hub, pod, count * HCCS, _LATENCY, "hccs", attrs=DEFAULT)


def _free(hosts: dict[str, tuple[str, int]], name: str) -> str:
    return f"{name}#switch" if name in hosts else name


FORMAT = Format("hccl", "an Ascend HCCL rank table, 1.0 or 1.2", recognise, parse)
