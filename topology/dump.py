"""The file format of topologies, written: every vertex and link as it is, so that reading gives an equal topology."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from topoccl.topology.files import VERSION
from topoccl.topology.graph import Link, Topology, TopologyError, Vertex, VertexKind
from topoccl.topology.units import format_rate, format_time, parse_rate, parse_time

_PLAIN = re.compile(r"\w[\w.-]*(?:[:/+=][\w.-]+)*", re.ASCII)
_ODD = re.compile(r"[^\n\x20-\x7e\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|[\u2028\u2029\n\"\\]")
_resolver: Any = yaml.resolver.Resolver()


def document(topology: Topology) -> dict[str, Any]:
    """``topology`` as plain data in the file format.

    Raises:
        TopologyError: an attribute that is not plain data.
    """
    members: dict[str | None, list[Vertex]] = {}
    hosts = []
    for vertex in topology.vertices.values():
        if vertex.kind is VertexKind.HOST:
            hosts.append(vertex)
        else:
            members.setdefault(vertex.host, []).append(vertex)
    data: dict[str, Any] = {"topoccl": VERSION, "name": topology.name, "hosts": []}
    order: list[str] = []
    for host in hosts:
        entry: dict[str, Any] = {"name": host.id} | ({"host": host.host} if host.host is not None else {}) | _attrs(host)
        parts = [{"id": part.id, "kind": part.kind.value} | _attrs(part) for part in members.get(host.id, ())]
        data["hosts"].append(entry | ({"parts": parts} if parts else {}))
        order += [host.id, *(part.id for part in members.get(host.id, ()))]
    if None in members:
        data["switches"] = [
            {"name": v.id} | ({} if v.kind is VertexKind.SWITCH else {"kind": v.kind.value}) | _attrs(v) for v in members[None]
        ]
        order += [vertex.id for vertex in members[None]]
    if topology.links:
        data["links"] = list(_links(topology.links))
    reordered = order != list(topology.vertices)
    if reordered or list(topology.slots) != [v.id for v in topology.vertices.values() if v.kind is VertexKind.SLOT]:
        data["placement"] = list(topology.slots)
    if reordered:
        data["order"] = list(topology.vertices)
    return data


def dump(topology: Topology, *, style: str = "yaml") -> str:
    """The text of a topology file (``style`` is yaml or json). ``loads(dump(t)) == t``, and dumping that gives the same text.

    Raises:
        TopologyError: an attribute that is not plain data, or text that no file can hold.
        ValueError: unknown style.
    """
    if style not in ("yaml", "json"):
        raise ValueError(f"unknown style {style!r}; known: yaml, json")
    data = document(topology)
    if style == "json":
        return json.dumps(data, indent=1, ensure_ascii=True, allow_nan=False) + "\n"
    return "".join(f"{line}\n" for line in _yaml(data))


def _links(links: tuple[Link, ...]) -> Iterator[dict[str, Any]]:
    """Links as entries; two neighbouring ones that are each other's way back share one."""
    index = 0
    while index < len(links):
        link = links[index]
        entry: dict[str, Any] = {"between": [link.src, link.dst], "bandwidth": _exact(link.bandwidth, format_rate, parse_rate)}
        back = links[index + 1] if index + 1 < len(links) else None
        same = back is not None and (back.src, back.dst, back.kind) == (link.dst, link.src, link.kind)
        if back is not None and same and back.latency == link.latency and back.attrs == link.attrs:
            if back.bandwidth != link.bandwidth:
                entry["back"] = _exact(back.bandwidth, format_rate, parse_rate)
            index += 1
        else:
            entry["duplex"] = "one_way"
        if link.latency:
            entry["latency"] = _exact(link.latency, format_time, parse_time)
        yield entry | {"kind": link.kind} | _attrs(link)
        index += 1


def _exact(value: float, write: Any, parse: Any) -> str | float:
    """The readable text if it stands for exactly this value, else the number."""
    text: str = write(value)
    return text if parse(text) == value else float(value)


def _attrs(thing: Vertex | Link) -> dict[str, Any]:
    if not thing.attrs:
        return {}
    subject = thing.id if isinstance(thing, Vertex) else thing.name
    return {"attrs": _checked(thing.attrs, subject)}


def _checked(value: Any, subject: str) -> Any:
    """Plain data, keys sorted."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _checked(value[key], subject) for key in sorted(value)}
    if type(value) is list:
        return [_checked(item, subject) for item in value]
    if value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value)):
        return value
    raise TopologyError(f"{subject}: attribute {value!r} cannot be written; expected text, finite numbers, booleans, lists and mappings")


# YAML. Written here rather than by PyYAML: one line per vertex and link, the same bytes with and without libyaml, and 20 times faster.


def _yaml(data: Mapping[str, Any]) -> Iterator[str]:
    for key, value in data.items():
        if key == "hosts":
            yield "hosts:" if value else "hosts: []"
            for host in value:
                rest = {name: item for name, item in host.items() if name != "parts"}
                if "parts" not in host:
                    yield f"- {_flow(rest)}"
                    continue
                for position, (name, item) in enumerate(rest.items()):
                    yield f"{'-' if position == 0 else ' '} {name}: {_flow(item)}"
                yield "  parts:"
                yield from (f"  - {_flow(part)}" for part in host["parts"])
        elif isinstance(value, list) and key in ("switches", "links"):
            yield f"{key}:"
            yield from (f"- {_flow(item)}" for item in value)
        else:
            yield f"{key}: {_flow(value)}"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        text = repr(value)
        return text if "e" not in text or "." in text else text.replace("e", ".0e")  # YAML 1.1 wants the point
    return "null" if value is None else str(value).lower()


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and _resolver.resolve(yaml.ScalarNode, text, (True, False)).endswith(":str"):
        return text
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise TopologyError(f"text {text!r} cannot be written: it is not valid Unicode")
    return '"' + _ODD.sub(_escape, text) + '"'


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if char in '"\\':
        return "\\" + char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
