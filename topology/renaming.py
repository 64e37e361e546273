"""The same fabric under other names. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from topoccl.topology.graph import Topology


def rename_hosts(topology: Topology, names: Mapping[str, str]) -> Topology:
    """``topology`` with each host ``old`` called ``names[old]``; what is inside a host and begins with its name changes with it.

    Raises:
        TopologyError: a new name that something else has.
    """
    new: dict[str, str] = {}
    for vertex in topology.vertices.values():
        if vertex.id in names:
            new[vertex.id] = names[vertex.id]
        elif vertex.host is not None and vertex.host in names and vertex.id.startswith(f"{vertex.host}."):
            new[vertex.id] = f"{names[vertex.host]}.{vertex.id.removeprefix(f'{vertex.host}.')}"
        else:
            new[vertex.id] = vertex.id
    vertices = [replace(v, id=new[v.id], host=None if v.host is None else new[v.host]) for v in topology.vertices.values()]
    links = [replace(link, src=new[link.src], dst=new[link.dst]) for link in topology.links]
    return Topology(topology.name, vertices, links, [new[slot] for slot in topology.slots])
