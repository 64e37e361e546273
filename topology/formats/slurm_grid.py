"""Slurm's topologies without switches: rings and three-dimensional tori of hosts (topology.conf(5), topology.yaml(5), ring and torus3d).

Every host gets one slot and a NIC per neighbour. A torus has as many hosts as coordinates, or leaves some coordinates empty: then
what is next to an empty one ends there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from topoccl.topology import fabric as fb
from topoccl.topology.document import Cursor
from topoccl.topology.formats.draft import Draft
from topoccl.topology.formats.support import DEFAULT, finish, need, shown, whole, word
from topoccl.topology.formats.switch_tree import ONE_SLOT
from topoccl.topology.generators import MAX_SLOTS
from topoccl.topology.graph import Topology, TopologyError

Error = Callable[[str], TopologyError]
_Cell = tuple[int, ...]
_AXES = ("x", "y", "z")
_NOTE = "rates are not stated: 10 Gbit/s per cable; hosts that are next to one another are taken to have one"


class Grid:
    """Collects rings and tori; ``error`` makes a TopologyError of a sentence, with the place before it."""

    def __init__(self, source: str, name: str) -> None:
        self.draft = Draft(source)
        self.draft.name = name
        self.notes = [_NOTE, ONE_SLOT]
        self._names: set[str] = set()
        self._hosts: dict[str, int] = {}
        self._layers = 0

    def ring(self, name: str, hosts: Sequence[str], error: Error) -> None:
        """Hosts in a ring, in their order."""
        self._new("ring", name, error)
        self._wire((len(hosts),), {(number,): host for number, host in enumerate(hosts)}, error)

    def torus(self, at: Cursor, expand: Callable[[Cursor], list[str]]) -> None:
        """One entry of ``toruses``."""
        fields = at.entries("a torus with name, dims, and nodes or regions")
        self._new("torus", word(need(fields, "name", at), "the name of a torus"), at.error)
        dims = _triple(need(fields, "dims", at), 1)
        if math.prod(dims) > MAX_SLOTS:
            fields["dims"].fail(f"at most {MAX_SLOTS} coordinates")
        if ("nodes" in fields) == ("regions" in fields):
            raise at.error("expected either nodes or regions")
        cells: dict[_Cell, str] = {}
        parts = [(fields["nodes"], (0, 0, 0), dims)] if "nodes" in fields else [_region(item, dims) for item in fields["regions"].items()]
        for nodes, anchor, size in parts:
            hosts = expand(nodes)
            if len(hosts) > math.prod(size):
                raise nodes.error(f"{len(hosts)} hosts for {math.prod(size)} coordinates ({' x '.join(map(str, size))})")
            for number, host in enumerate(hosts):  # x varies fastest
                step = (number % size[0], number // size[0] % size[1], number // (size[0] * size[1]))
                cell = tuple(start + offset for start, offset in zip(anchor, step, strict=True))
                if cell in cells:
                    raise nodes.error(f"hosts {cells[cell]!r} and {host!r} have the same coordinate {cell}")
                cells[cell] = host
        self._wire(dims, cells, at.error)
        for (x, y, z), host in cells.items():
            self.draft.describe(host, {"cell": [self._layers + z, y, x]})  # where pictures put it
        self._layers += dims[2]

    def build(self) -> Topology:
        """The topology.

        Raises:
            TopologyError: no host.
        """
        for note in self.notes:
            self.draft.note(next(iter(self._hosts), ""), note)
        return finish(self.draft)

    def _new(self, what: str, name: str, error: Error) -> None:
        if name in self._names:
            raise error(f"{what} {name!r} is defined twice")
        self._names.add(name)

    def _wire(self, dims: _Cell, cells: Mapping[_Cell, str], error: Error) -> None:
        for host in cells.values():
            if host in self._hosts:
                raise error(f"host {shown(host)} is listed twice")
            self._hosts[host] = 0
            self.draft.host(host)
            self.draft.slot(host, attrs=DEFAULT)
        for cell, host in cells.items():
            for axis, length in enumerate(dims):
                if length == 1 or (length == 2 and cell[axis]):  # two have one cable between them, not two
                    continue
                peer = cells.get((*cell[:axis], (cell[axis] + 1) % length, *cell[axis + 1 :]))
                if peer is not None:
                    self.draft.link(self._port(host), self._port(peer), fb.NET_BANDWIDTH, fb.NET_LATENCY, "net", attrs=DEFAULT)

    def _port(self, host: str) -> str:
        self._hosts[host] += 1
        return self.draft.nic(host, f"eth{self._hosts[host] - 1}", fb.NET_BANDWIDTH, attrs=DEFAULT)


def _triple(at: Cursor, least: int) -> tuple[int, int, int]:
    fields = at.entries("a mapping with x, y and z")
    x, y, z = (whole(need(fields, axis, at), least=least) for axis in _AXES)
    return x, y, z


def _region(at: Cursor, dims: _Cell) -> tuple[Cursor, tuple[int, int, int], tuple[int, int, int]]:
    fields = at.entries("a region with anchor, dims and nodes")
    anchor, size = _triple(need(fields, "anchor", at), 0), _triple(need(fields, "dims", at), 1)
    if any(start + length > most for start, length, most in zip(anchor, size, dims, strict=True)):
        raise at.error(f"the region of {size} from {anchor} does not fit into the torus of {dims}")
    return need(fields, "nodes", at), anchor, size
