"""The way a message takes from rank to rank, as indices into ``topology.links``, found on demand.

Which of several ways is taken, first match wins:

1. ranks of one host: inside the host, and there past no other slot if that can be had (an accelerator relays only as a last
   resort), else with the fewest relaying slots;
2. ranks of different hosts: out of the one host, over switches, into the other; past no other slot if that can be had, else
   with the fewest relaying slots of these two hosts (an accelerator that owns the right NIC);
3. through other hosts, but past no slot (hosts in a ring, a line, a mesh);
4. anything, with the fewest relaying slots (accelerators that are linked directly: ``ring:8``).

Among the ways of one class the lowest latency wins, then the fewest links, then (for NICs) the widest bottleneck. Equal ways are
shared out by the ranks' positions in their hosts, so that parallel NICs and spines all carry traffic; ``rail`` steps on to the
next one. Equal ways through other hosts (3 and 4) are those of routing tables that spread the pairs of hosts over the cables
(:mod:`topoccl.topology.spread`). Everything is deterministic and equal on all ranks.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topoccl.topology.graph import Topology, TopologyError, VertexKind
from topoccl.topology.spread import spread

_MAX_PATHS = 1 << 18
_TREE_VERTICES = 1_500_000  # vertices of all remembered trees together
_MOST_HOSTS = 512  # of which routing tables are made
_ANY = -2
_OUTSIDE = -1


class _Key(NamedTuple):
    """What ways are compared by. Latency is in whole picoseconds: sums of floats would make equal ways differ."""

    relays: int
    latency: int
    hops: int


class _Tree(NamedTuple):
    """Best ways from (or, reversed, to) one vertex: per reached vertex its key and all equally good (neighbour, link).

    ``settled`` are those of which that is final, ``heap`` what is left to look at.
    """

    keys: dict[int, _Key]
    before: dict[int, list[tuple[int, int]]]
    settled: set[int]
    heap: list[tuple[int, int, int, int]]


@dataclass(frozen=True, slots=True)
class _Door:
    """A link between a host and the outside, with the way between a slot and that link inside the host (both included)."""

    key: _Key
    bandwidth: float
    path: tuple[int, ...]
    outside: int
    link: int


class _Way(NamedTuple):
    key: _Key
    narrowness: float
    exit: _Door
    entries: tuple[_Door, ...]


class Routes:
    """Routes between the ranks of one topology.

    Nothing is computed ahead: inside a host and between switches the searches are small and remembered, whatever the number of
    hosts; whole-graph searches happen only where hosts or accelerators relay.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        ids = self._ids = {vertex: number for number, vertex in enumerate(topology.vertices)}
        self._slots = [ids[slot] for slot in topology.slots]
        self._is_slot = [vertex.kind is VertexKind.SLOT for vertex in topology.vertices.values()]
        self._host = [_OUTSIDE if v.host is None else ids[v.host] for v in topology.vertices.values()]
        for host in topology.hosts:
            self._host[ids[host]] = ids[host]
        self._out: list[list[tuple[int, int, int]]] = [[] for _ in ids]
        self._in: list[list[tuple[int, int, int]]] = [[] for _ in ids]
        self._ends: list[tuple[int, int]] = []
        self._leaving: dict[int, list[int]] = {}
        self._arriving: dict[int, list[int]] = {}
        for index, link in enumerate(topology.links):
            a, b, cost = ids[link.src], ids[link.dst], round(link.latency * 1e12)
            self._ends.append((a, b))
            self._out[a].append((b, index, cost))
            self._in[b].append((a, index, cost))
            if self._host[a] != self._host[b]:
                self._leaving.setdefault(self._host[a], []).append(index)
                self._arriving.setdefault(self._host[b], []).append(index)
        self._position = [0] * topology.num_ranks
        for ranks in topology.ranks_by_host:
            for position, rank in enumerate(ranks):
                self._position[rank] = position
        self._paths: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self._trees: OrderedDict[tuple[int, int, bool, bool], _Tree] = OrderedDict()
        self._doors: dict[tuple[int, bool, bool], tuple[_Door, ...]] = {}

    # Queries

    def path(self, src: int, dst: int, rail: int = 0) -> tuple[int, ...]:
        """Links from rank ``src`` to rank ``dst`` in order, none for ``src == dst``.

        ``rail`` picks among parallel ways, modulo their number (:meth:`rails`).

        Raises:
            TopologyError: no route, or no such rank; the message names both ranks.
        """
        key = (src, dst, rail)
        found = self._paths.get(key)
        if found is None:
            self._check(src, dst)
            found = () if src == dst else self._search(src, dst, rail)
            if len(self._paths) >= _MAX_PATHS:
                self._paths.clear()
            self._paths[key] = found
        return found

    def between(self, src: str, dst: str) -> tuple[int, ...] | None:
        """Links from one vertex to another (a slot to a NIC), inside their host if they share one; None if there is no way.

        Past other slots only if there is no other way, as between ranks.
        """
        a, b = self._ids[src], self._ids[dst]
        for scope in (self._host[a], _ANY) if self._host[a] == self._host[b] else (_ANY,):
            for relay in (False, True):
                tree = self._tree(a, scope, relay)
                if b in tree.keys:
                    return self._walk(tree, a, b, 0)
        return None

    def rails(self, src: int, dst: int) -> int:
        """How many links out of ``src``'s host lead to rank ``dst`` in another host without passing a third one; at least 1."""
        self._check(src, dst)
        if self.same_host(src, dst):
            return 1
        return max(1, len(self._ways(src, dst, relay=True)))

    def latency(self, path: Iterable[int]) -> float:
        """Seconds: the sum over the links of ``path``."""
        return math.fsum(self.topology.links[link].latency for link in path)

    def bottleneck(self, path: Iterable[int]) -> float:
        """Bytes/s of the narrowest link of ``path``; infinite for an empty one."""
        return min((self.topology.links[link].bandwidth for link in path), default=math.inf)

    def same_host(self, a: int, b: int) -> bool:
        """Whether ranks ``a`` and ``b`` sit in one host."""
        return self._host[self._slots[a]] == self._host[self._slots[b]]

    def link_bytes(self, messages: Iterable[tuple[int, int, float]]) -> NDArray[np.float64]:
        """Bytes that each link carries when every ``(src, dst, nbytes)`` takes its route: an array over ``topology.links``."""
        loads = np.zeros(len(self.topology.links))
        for src, dst, nbytes in messages:
            for link in self.path(src, dst):
                loads[link] += nbytes
        return loads

    def link_kind_bytes(self, messages: Iterable[tuple[int, int, float]]) -> dict[str, float]:
        """The bytes of :meth:`link_bytes` summed over the links of each kind; a message counts on every link that it crosses."""
        totals = dict.fromkeys((link.kind for link in self.topology.links), 0.0)
        for link, nbytes in zip(self.topology.links, self.link_bytes(messages).tolist(), strict=True):
            totals[link.kind] += nbytes
        return totals

    # Search

    def _check(self, src: int, dst: int) -> None:
        for rank in (src, dst):
            if not 0 <= rank < len(self._slots):
                name, count = self.topology.name, len(self._slots)
                raise TopologyError(f"topology {name!r}: no route from rank {src} to rank {dst}: {rank} is not among {count} ranks")

    def _search(self, src: int, dst: int, rail: int) -> tuple[int, ...]:
        a, b = self._slots[src], self._slots[dst]
        if self.same_host(src, dst):
            for relay in (False, True):
                tree = self._tree(a, self._host[a], relay)
                if b in tree.keys:
                    return self._walk(tree, a, b, self._position[src] + self._position[dst] + rail)
        ways = self._ways(src, dst, relay=False)
        if len(ways) <= rail or not ways:
            ways = self._ways(src, dst, relay=True) or ways
        if ways:
            return self._join(ways, src, dst, rail)
        for relay in (False, True):
            tree = self._tree(a, _ANY, relay, until=b)
            if b in tree.settled:
                return self._through_hosts(tree, a, b, dst + rail)
        slots = self.topology.slots
        raise TopologyError(f"topology {self.topology.name!r}: no route from rank {src} ({slots[src]}) to rank {dst} ({slots[dst]})")

    def _through_hosts(self, tree: _Tree, a: int, b: int, seed: int) -> tuple[int, ...]:
        """As :meth:`_walk`, over the hosts that the routing tables say if one of the equally good ways does."""
        host, came_from = self._host, self._hosts_before(self._host[a], self._host[b])
        dead: set[int] = set()
        at, links = [b], list[int]()
        while at[-1] != a:
            here = at[-1]
            options = [
                (vertex, link)
                for vertex, link in tree.before[here]
                if vertex not in dead and host[vertex] in (host[here], came_from.get(host[here]))
            ]
            if options:
                vertex, link = options[seed % len(options)]
                at.append(vertex)
                links.append(link)
                continue
            dead.add(at.pop())
            if not at:
                return self._walk(tree, a, b, seed)
            links.pop()
        return tuple(reversed(links))

    def _hosts_before(self, first: int, last: int) -> dict[int, int]:
        """For each host on the way between two hosts that the routing tables say, the one before it."""
        table = self._tables.get(last, {})
        found: dict[int, int] = {}
        while first != last and first in table:
            found[table[first]] = first
            first = table[first]
        return found

    @cached_property
    def _tables(self) -> dict[int, dict[int, int]]:
        """For each host the next one on the way to it from every other one; none above :data:`_MOST_HOSTS` hosts."""
        hosts = [self._ids[host] for host in self.topology.hosts]
        if len(hosts) > _MOST_HOSTS:
            return {}
        graph: dict[int, dict[int, float]] = {host: {} for host in hosts}
        for link, (a, b) in zip(self.topology.links, self._ends, strict=True):
            x, y = self._host[a], self._host[b]
            if x != y and _OUTSIDE not in (x, y):
                graph[x][y] = max(graph[x].get(y, 0.0), link.bandwidth)
        return dict(zip(hosts, spread(graph, hosts), strict=True))

    def _ways(self, src: int, dst: int, relay: bool) -> list[_Way]:
        """The best way through each of the exits of ``src``'s host, best first, over switches only."""
        entries = self._host_doors(self._slots[dst], leaving=False, relay=relay)
        ways = []
        for door in self._host_doors(self._slots[src], leaving=True, relay=relay):
            best: tuple[_Key, float] | None = None
            chosen: list[_Door] = []
            across = self._tree(door.outside, _OUTSIDE, False) if self._host[door.outside] == _OUTSIDE else None
            for entry in entries:
                if across is None:
                    if entry.link != door.link:
                        continue
                    middle, shared = (0, -1), round(self.topology.links[door.link].latency * 1e12)
                elif (between := across.keys.get(entry.outside)) is not None:
                    middle, shared = (between.latency, between.hops), 0
                else:
                    continue
                relays = door.key.relays + entry.key.relays
                latency = door.key.latency + entry.key.latency + middle[0] - shared
                key = _Key(relays, latency, door.key.hops + entry.key.hops + middle[1])
                found = (key, -min(door.bandwidth, entry.bandwidth))
                if best is None or found < best:
                    best, chosen = found, []
                if found == best:
                    chosen.append(entry)
            if best is not None:
                ways.append(_Way(*best, door, tuple(chosen)))
        ways.sort(key=lambda way: way[:2])
        return ways

    def _join(self, ways: list[_Way], src: int, dst: int, rail: int) -> tuple[int, ...]:
        equal = sum(way[:2] == ways[0][:2] for way in ways)
        rail %= len(ways)
        way = ways[(self._position[src] + rail) % equal if rail < equal else rail]
        entry = way.entries[(self._position[dst] + rail) % len(way.entries)]
        if entry.link == way.exit.link:
            return (*way.exit.path, *entry.path[1:])
        across = self._tree(way.exit.outside, _OUTSIDE, False)
        return (*way.exit.path, *self._walk(across, way.exit.outside, entry.outside, dst + rail), *entry.path)

    def _host_doors(self, slot: int, leaving: bool, relay: bool) -> tuple[_Door, ...]:
        """The links out of (into) the host of ``slot`` that it reaches (that reach it) inside the host."""
        key = (slot, leaving, relay)
        doors = self._doors.get(key)
        if doors is None:
            host = self._host[slot]
            tree = self._tree(slot, host, relay, backwards=not leaving)
            found = []
            for link in (self._leaving if leaving else self._arriving).get(host, ()):
                inside, outside = self._ends[link] if leaving else self._ends[link][::-1]
                if inside in tree.keys and (relay or inside == slot or not self._is_slot[inside]):
                    way = self._walk(tree, slot, inside, 0)
                    path = (*way, link) if leaving else (link, *reversed(way))
                    near = tree.keys[inside]
                    relays = near.relays + (self._is_slot[inside] and inside != slot)
                    total = _Key(relays, near.latency + round(self.topology.links[link].latency * 1e12), near.hops + 1)
                    found.append(_Door(total, self.bottleneck(path), path, outside, link))
            doors = self._doors[key] = tuple(found)
        return doors

    def _tree(self, root: int, scope: int, relay: bool, backwards: bool = False, until: int | None = None) -> _Tree:
        """Dijkstra from ``root`` over the vertices of one host, of no host (``_OUTSIDE``) or of all; slots relay only if ``relay``.

        It stops at ``until``, and goes on from there when asked for more.
        """
        cache_key = (root, scope, relay, backwards)
        tree = self._trees.get(cache_key)
        if tree is None:
            tree = _Tree({root: _Key(0, 0, 0)}, {}, set(), [(0, 0, 0, root)])
            self._grow(tree, *cache_key, until)
            self._trees[cache_key] = tree
            largest = len(self._host) if scope == _ANY else len(tree.keys)
            limit = max(64, _TREE_VERTICES // max(1, largest))
            while len(self._trees) > limit:
                self._trees.popitem(last=False)
            return tree
        self._trees.move_to_end(cache_key)
        if until not in tree.settled:
            self._grow(tree, *cache_key, until)
        return tree

    def _grow(self, tree: _Tree, root: int, scope: int, relay: bool, backwards: bool, until: int | None) -> None:
        edges, host, is_slot = (self._in if backwards else self._out), self._host, self._is_slot
        keys, before, settled, heap = tree
        while heap and until not in settled:
            relays, latency, hops, vertex = heapq.heappop(heap)
            if (relays, latency, hops) != keys[vertex]:
                continue
            settled.add(vertex)
            if is_slot[vertex] and vertex != root:
                if not relay:
                    continue
                relays += 1
            for neighbour, link, cost in edges[vertex]:
                if scope not in (_ANY, host[neighbour]):
                    continue
                key = _Key(relays, latency + cost, hops + 1)
                known = keys.get(neighbour)
                if known is None or key < known:
                    keys[neighbour] = key
                    before[neighbour] = [(vertex, link)]
                    heapq.heappush(heap, (*key, neighbour))
                elif key == known:
                    before[neighbour].append((vertex, link))

    @staticmethod
    def _walk(tree: _Tree, root: int, target: int, seed: int) -> tuple[int, ...]:
        """Links from ``root`` to ``target``; the digits of ``seed`` choose among equally good ones (as D-mod-k routing does)."""
        links = []
        while target != root:
            options = tree.before[target]
            target, link = options[seed % len(options)]
            seed //= len(options)
            links.append(link)
        return tuple(reversed(links))


@lru_cache(maxsize=16)
def routes_of(topology: Topology) -> Routes:
    """The routes of ``topology``, one object for all who ask: what one of them has searched for the others need not."""
    return Routes(topology)


def describe_path(topology: Topology, path: Sequence[int]) -> str:
    """``h0.s0 -> h0 -> h0.eth0 -> sw0`` for messages; empty for an empty path."""
    if not path:
        return ""
    return " -> ".join([topology.links[path[0]].src, *(topology.links[link].dst for link in path)])
