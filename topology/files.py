"""The file format of topologies, read: YAML or JSON, described in docs/topology-format.md.

A file mixes two ways of saying the same: exact parts (``parts`` of a host, ``switches``, ``links``), which are taken as they
are and which :func:`topoccl.topology.dump.dump` writes, and short forms for people (``slots``, ``numa``, ``nics``, the ``hosts`` and
``uplink`` of a switch, ``cables``), which stand for vertices and links of the model in :mod:`topoccl.topology.fabric`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from topoccl.topology import fabric as fb
from topoccl.topology.document import MAX_BYTES, Cursor, read
from topoccl.topology.fabric import Fabric
from topoccl.topology.generators import MAX_SLOTS
from topoccl.topology.graph import Link, Topology, TopologyError, Vertex, VertexKind

VERSION = 1

TOP = ("topoccl", "name", "defaults", "hosts", "switches", "cables", "links", "placement", "order")
DEFAULTS = ("slots", "memory", "memory_latency", "pcie", "rate", "latency")
HOST = ("name", "slots", "cores", "memory", "memory_latency", "pcie", "numa", "nics", "parts", "host", "attrs")
NUMA = ("name", "slots", "cores", "bandwidth", "latency", "attrs")
NIC = ("name", "rate", "to", "latency", "pcie", "numa", "attrs")
PART = ("id", "kind", "attrs")
SWITCH = ("name", "kind", "hosts", "uplink", "to", "latency", "attrs")
CABLE = ("between", "rate", "back", "latency")
LINK = ("between", "bandwidth", "back", "latency", "kind", "duplex", "attrs")
DUPLEX = ("full", "one_way")
_PARTS = tuple(kind.value for kind in VertexKind if kind is not VertexKind.HOST)


def load_file(path: str | Path) -> Topology:
    """The topology that a file describes.

    Raises:
        TopologyError: unreadable, malformed or inconsistent; the message names the file, the line (of YAML), the path, the value and
            what was expected.
    """
    return loads(read_file(path), str(path))


def read_file(path: str | Path, most: int = MAX_BYTES) -> str:
    """The text of a file of any format, without a byte-order mark; UTF-8, or UTF-16 where a byte-order mark says so.

    Raises:
        TopologyError: unreadable, over ``most`` bytes, or not such text.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise TopologyError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(data) > most:
        raise TopologyError(f"{path}: larger than {most} bytes, the most that is read")
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        return data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise TopologyError(f"{path}: not UTF-{16 if wide else 8}: byte 0x{data[error.start]:02x} at offset {error.start}") from None


def loads(text: str, source: str = "topology") -> Topology:
    """The topology that ``text`` describes; ``source`` is the name that errors begin with.

    Raises:
        TopologyError: as :func:`load_file`.
    """
    return _Reader(read(text, source)).topology()


@dataclass
class _Host:
    nics: int = 0
    plugged: bool = False
    """Whether the host says itself what its NICs are."""
    numa: dict[str, str] = field(default_factory=dict)


@dataclass
class _Nic:
    host: str
    at: Cursor
    rate: float
    latency: float
    to: Cursor | None
    stated: bool = False
    """Whether the file says the rate."""


class _Reader:
    def __init__(self, document: Cursor) -> None:
        self.document = document
        self.fields = document.fields(TOP, (), "a mapping with hosts (see docs/topology-format.md)")
        self.declared: dict[str, Cursor] = {}
        self.hosts: dict[str, _Host] = {}
        self.nics: dict[str, _Nic] = {}
        self.slots: dict[str, None] = {}
        stem = Path(document.source).stem
        self.fabric = Fabric(self.fields["name"].text() if "name" in self.fields else stem)

    def topology(self) -> Topology:
        if "topoccl" in self.fields and self.fields["topoccl"].plain() != VERSION:
            self.fields["topoccl"].fail(f"{VERSION}, the only version of this format")
        self.defaults = self.fields["defaults"].fields(DEFAULTS) if "defaults" in self.fields else {}
        if "hosts" not in self.fields:
            raise self.document.error("key 'hosts' is missing")
        self.racks = self.rack_of_hosts()
        for at in self.section("hosts"):
            self.host(at)
        for at in self.section("switches"):
            self.switch(at)
        self.plug()
        for at in self.section("switches"):
            self.uplink(at)
        for at in self.section("cables"):
            self.cable(at)
        for at in self.section("links"):
            self.link(at)
        self.state_rates()
        slots, vertices = self.placement(), self.order()
        try:
            return Topology(self.fabric.name, vertices, self.fabric.links, slots)
        except TopologyError as error:  # what no single value shows
            raise TopologyError(f"{self.document.source}: {error}") from None

    # Small helpers

    def section(self, key: str) -> list[Cursor]:
        return self.fields[key].items() if key in self.fields else []

    def rate(self, given: dict[str, Cursor], key: str, default: float) -> float:
        at = given.get(key) or self.defaults.get(key)
        return at.rate() if at is not None else default

    def time(self, given: dict[str, Cursor], key: str, default: float) -> float:
        at = given.get(key) or self.defaults.get(key)
        return at.time() if at is not None else default

    def attrs(self, given: dict[str, Cursor]) -> dict[str, Any]:
        """The attributes of a vertex or link; ``cores`` is one that has a key of its own."""
        attrs: dict[str, Any] = {}
        if "attrs" in given:
            if not given["attrs"].is_mapping:
                given["attrs"].fail("a mapping")
            attrs = given["attrs"].plain()
        if "cores" in given:
            attrs["cores"] = given["cores"].count()
        return attrs

    def declare(self, vertex: str, at: Cursor) -> str:
        first = self.declared.setdefault(vertex, at)
        if first is not at:
            place = first.path if first.node.line is None else f"line {first.node.line}"
            raise at.error(f"{vertex!r} is declared twice, first at {place}")
        return vertex

    def known(self, at: Cursor, what: str) -> str:
        """The id of a declared vertex."""
        name = at.text(f"the name of a {what}")
        if name not in self.declared:
            at.fail(f"a declared {what}; {_some('known', self.declared)}")
        return name

    # Hosts

    def rack_of_hosts(self) -> dict[str, tuple[str, Cursor]]:
        """The switch that lists each host, and where it does."""
        racks: dict[str, tuple[str, Cursor]] = {}
        for at in self.section("switches"):
            given = at.fields(SWITCH, ("name",)) if at.is_mapping else {}
            for member in given["hosts"].items("a list of host names") if "hosts" in given else []:
                host = member.text("the name of a host")
                if host in racks:
                    raise member.error(f"host {host!r} already hangs on switch {racks[host][0]!r}")
                racks[host] = given["name"].text(), member
        return racks

    def host(self, at: Cursor) -> None:
        given = {"name": at} if at.is_text else at.fields(HOST, ("name",), "the name of a host, or a mapping with name")
        name = self.declare(given["name"].text(), given["name"])
        host = self.hosts[name] = _Host()
        outer = given["host"].text("the name of a host") if "host" in given else None
        self.fabric.host(name, rack=self.racks[name][0] if name in self.racks else None, inside=outer, attrs=self.attrs(given))
        for part in given["parts"].items() if "parts" in given else []:
            self.part(name, part)
        for numa in given["numa"].items() if "numa" in given else []:
            self.numa(name, host, given, numa)
        if "slots" in given:
            self.some_slots(name, given, given["slots"], None)
        elif "slots" in self.defaults and not {"numa", "parts"} & given.keys():
            self.some_slots(name, given, self.defaults["slots"], None)
        host.plugged = "nics" in given
        for nic in given["nics"].items() if "nics" in given else []:
            self.nic(name, host, given, nic)

    def part(self, host: str, at: Cursor) -> None:
        given = at.fields(PART, ("id", "kind"))
        kind = VertexKind(given["kind"].one_of(_PARTS))
        vertex = self.declare(given["id"].text(), given["id"])
        self.fabric.add(vertex, kind, host, self.attrs(given))
        if kind is VertexKind.SLOT:
            self.slots[vertex] = None

    def numa(self, name: str, host: _Host, outer: dict[str, Cursor], at: Cursor) -> None:
        given = at.fields(NUMA)
        node = given["name"].text() if "name" in given else f"numa{len(host.numa)}"
        self.declare(f"{name}.{node}", given.get("name", at))
        bandwidth = given["bandwidth"].rate() if "bandwidth" in given else fb.NUMA_BANDWIDTH
        latency = given["latency"].time() if "latency" in given else fb.NUMA_LATENCY
        host.numa[node] = self.fabric.numa(name, node, bandwidth=bandwidth, latency=latency, attrs=self.attrs(given))
        if "slots" in given:
            self.some_slots(name, outer, given["slots"], host.numa[node])

    def some_slots(self, host: str, given: dict[str, Cursor], at: Cursor, hub: str | None) -> None:
        memory = self.rate(given, "memory", fb.MEMORY_BANDWIDTH)
        latency = self.time(given, "memory_latency", fb.MEMORY_LATENCY)
        count = at.count(MAX_SLOTS)
        if len(self.slots) + count > MAX_SLOTS:  # a few bytes may ask for any number of them
            raise at.error(f"{len(self.slots) + count} slots up to here; at most {MAX_SLOTS} are read")
        for _ in range(count):
            vertex = self.fabric.slot(host, hub=hub, memory=memory, latency=latency)
            self.declare(vertex, replace(at))
            self.slots[vertex] = None

    def nic(self, name: str, host: _Host, outer: dict[str, Cursor], at: Cursor) -> None:
        given = at.fields(NIC)
        port = given["name"].text() if "name" in given else f"eth{host.nics}"
        hub = None
        if "numa" in given:
            node = given["numa"].text("the name of a NUMA node")
            if node not in host.numa:
                given["numa"].fail(f"a NUMA node of host {name!r}; {_some('known', host.numa)}")
            hub = host.numa[node]
        rate = self.rate(given, "rate", fb.NET_BANDWIDTH)
        self.new_nic(name, port, rate, at, hub=hub, pcie=given.get("pcie") or outer.get("pcie"), attrs=self.attrs(given))
        self.nics[f"{name}.{port}"] = _Nic(
            name, at, rate, self.time(given, "latency", fb.NET_LATENCY), given.get("to"), "rate" in given or "rate" in self.defaults
        )

    def new_nic(
        self,
        host: str,
        port: str,
        rate: float,
        at: Cursor,
        *,
        hub: str | None = None,
        pcie: Cursor | None = None,
        attrs: dict[str, Any] | None = None,
    ) -> str:
        self.hosts[host].nics += 1
        self.declare(f"{host}.{port}", replace(at))
        width = pcie or self.defaults.get("pcie")
        return self.fabric.nic(host, port, rate, hub=hub, pcie=width.rate() if width else None, attrs=attrs or {})

    # The network

    def switch(self, at: Cursor) -> None:
        given = {"name": at} if at.is_text else at.fields(SWITCH, ("name",), "the name of a switch, or a mapping with name")
        kinds = [kind.value for kind in VertexKind if kind not in (VertexKind.HOST, VertexKind.SLOT)]
        kind = VertexKind(given["kind"].one_of(kinds)) if "kind" in given else VertexKind.SWITCH
        self.fabric.add(self.declare(given["name"].text(), given["name"]), kind, attrs=self.attrs(given))

    def plug(self) -> None:
        """Cables of the NICs, in the order of the hosts: where a NIC says, or into the switch that lists its host."""
        for host, (_, at) in self.racks.items():
            if host not in self.hosts:
                at.fail(f"a declared host; {_some('known', self.hosts)}")
            if not self.hosts[host].plugged:
                rate, latency = self.rate({}, "rate", fb.NET_BANDWIDTH), self.time({}, "latency", fb.NET_LATENCY)
                self.nics[self.new_nic(host, self.free_port(host), rate, at)] = _Nic(host, at, rate, latency, None)
        done: set[str] = set()
        for name, nic in self.nics.items():
            if nic.to is None and nic.host in self.racks:
                switch = self.racks[nic.host][0]
                self.fabric.link(name, switch, nic.rate, nic.latency, "net")
            elif nic.to is not None and name not in done:
                target = self.known(nic.to, "switch or NIC")
                if target in self.hosts or target in self.slots or target == name:
                    nic.to.fail("a switch or another NIC")
                peer = self.nics.get(target)
                if peer is not None and peer.to is not None:
                    if peer.to.text() != name:
                        raise nic.to.error(f"NIC {target!r} is plugged into {peer.to.text()!r}, not into {name!r}")
                    done.add(target)
                self.fabric.link(name, target, nic.rate, nic.latency, "net", back=peer.rate if peer else None)

    def state_rates(self) -> None:
        """The rate of a NIC that is not plugged in is no link's: it becomes an attribute."""
        plugged = {end for link in self.fabric.links if link.kind == "net" for end in (link.src, link.dst)}
        loose = {name: nic.rate for name, nic in self.nics.items() if nic.stated and name not in plugged}
        self.fabric.vertices = [
            replace(vertex, attrs={"rate": loose[vertex.id], **vertex.attrs}) if vertex.id in loose else vertex
            for vertex in self.fabric.vertices
        ]

    def free_port(self, host: str) -> str:
        return next(port for n in itertools.count(self.hosts[host].nics) if f"{host}.{(port := f'eth{n}')}" not in self.declared)

    def uplink(self, at: Cursor) -> None:
        if not at.is_mapping:
            return
        given = at.fields(SWITCH, ("name",))
        if "uplink" not in given:
            for key in ("to", "latency"):
                if key in given:
                    raise given[key].error("means nothing without uplink")
            return
        if "to" not in given:
            raise given["uplink"].error("an uplink needs to: the switch it leads to")
        name, target = given["name"].text(), self.known(given["to"], "switch")
        if target == name or target in self.hosts:
            given["to"].fail("another switch")
        self.fabric.link(name, target, given["uplink"].rate(), self.time(given, "latency", fb.NET_LATENCY), "net")

    def cable(self, at: Cursor) -> None:
        """A network link; an end that is a host gets a NIC of its own for it."""
        given = at.fields(CABLE, ("between",))
        ends = self.ends(given["between"], "host, switch or NIC")
        rate = self.rate(given, "rate", fb.NET_BANDWIDTH)
        back = given["back"].rate() if "back" in given else rate
        names = [
            self.new_nic(end, self.free_port(end), speed, cursor) if end in self.hosts else end
            for (end, cursor), speed in zip(ends, (rate, back), strict=True)
        ]
        self.fabric.link(names[0], names[1], rate, self.time(given, "latency", fb.NET_LATENCY), "net", back=back)

    def ends(self, at: Cursor, what: str) -> list[tuple[str, Cursor]]:
        pair = at.items("a list of two names")
        if len(pair) != 2:
            at.fail("a list of two names")
        names = [(self.known(end, what), end) for end in pair]
        if names[0][0] == names[1][0]:
            raise at.error(f"connects {names[0][0]!r} with itself; expected two different names")
        return names

    def link(self, at: Cursor) -> None:
        given = at.fields(LINK, ("between", "bandwidth"))
        (a, _), (b, _) = self.ends(given["between"], "vertex")
        rate = given["bandwidth"].rate()
        latency = given["latency"].time() if "latency" in given else 0.0
        kind = given["kind"].text() if "kind" in given else "link"
        attrs = self.attrs(given)
        both = "duplex" not in given or given["duplex"].one_of(DUPLEX) == "full"
        if "back" in given and not both:
            raise given["back"].error("a one_way link has no way back")
        self.fabric.links.append(Link(a, b, rate, latency, kind, attrs))
        if both:
            self.fabric.links.append(Link(b, a, given["back"].rate() if "back" in given else rate, latency, kind, attrs))

    # Ranks

    def placement(self) -> list[str]:
        at = self.fields.get("placement")
        if at is None:
            return list(self.slots)
        if not at.is_list:
            return self.fabric.slots(at.one_of(fb.PLACEMENTS))
        seen: dict[str, None] = {}
        for item in at.items():
            slot = item.text("the name of a slot")
            if slot not in self.slots:
                item.fail(f"a declared slot; {_some('known', self.slots)}")
            if slot in seen:
                raise item.error(f"slot {slot!r} is listed twice")
            seen[slot] = None
        return list(seen)

    def order(self) -> list[Vertex]:
        """The vertices, sorted as listed (``dump`` writes the list where the order of the sections would be another one)."""
        at, vertices = self.fields.get("order"), self.fabric.ordered()
        if at is None:
            return vertices
        position: dict[str, int] = {}
        for item in at.items():
            vertex = self.known(item, "vertex")
            if vertex in position:
                raise item.error(f"{vertex!r} is listed twice")
            position[vertex] = len(position)
        for name in self.declared:
            if name not in position:
                raise at.error(f"{name!r} is missing; expected every vertex once")
        return sorted(vertices, key=lambda vertex: position[vertex.id])


def _some(word: str, names: Any, most: int = 12) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{word}: {', '.join(names[:most]) or 'none'}{more}"
