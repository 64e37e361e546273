"""From a topology and a collective to a forest: the best rate, the trees that reach it, and who does what inside hosts.

Trees span the ranks, or, where hosts have several ranks, the hosts: then every host has a leader for each piece, in turn, that talks to
other hosts; the other ranks of the host hang on it. That is as good as trees over ranks wherever links between hosts are what limits,
and much less work, so it is what large clusters get. Whichever comes closer to the bound is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from fractions import Fraction
from functools import partial

from topoccl.algorithms.forest.few import few_trees
from topoccl.algorithms.forest.free import free_pieces
from topoccl.algorithms.forest.pieces import over_ranks, shared_out, trees_of
from topoccl.algorithms.forest.scaling import GOOD
from topoccl.algorithms.forest.splitting import Allowed
from topoccl.algorithms.forest.spreading import Spread, spread
from topoccl.algorithms.forest.store import at_hand, remembered
from topoccl.algorithms.forest.trees import Forest, Piece, with_rails
from topoccl.algorithms.forest.ways import paired
from topoccl.topology.bounds import certificate
from topoccl.topology.bounds.cuts import tightest
from topoccl.topology.bounds.exchange import best_exchange
from topoccl.topology.bounds.network import Network, by_host, host_groups, network_of
from topoccl.topology.graph import Topology
from topoccl.topology.routes import Routes, routes_of
from topoccl.topology.wiring import owner

GATHERING = ("all_gather", "reduce_scatter")
ROOTED = ("broadcast", "reduce")
WAYS = ("own", "any")
MOST_RANKS = 64
"""Trees span ranks up to so many of them, else only hosts."""
FEW_RANKS = 24
"""Up to so many ranks trees span ranks whenever messages may take any ways."""
MOST_HOSTS = 24
"""Trees span hosts up to so many of them."""
QUICK_HOSTS = 16
"""With so many hosts of up to :data:`MOST_RANKS` ranks in all it takes a few seconds where links between them limit."""
K = 8
"""So many trees per root are tried at most, unless a number is asked for."""
_ROOTED_TOTALS = (1, 2, 3, 4, 6, 8, 12, 16)


def refuses(topology: Topology) -> str | None:
    """Why no forest is made for a topology, or None."""
    hosts = len(topology.ranks_by_host)
    if topology.num_ranks < 2:
        return "there is nothing to send"
    if hosts == 1 and topology.num_ranks > MOST_RANKS:
        return f"{topology.num_ranks} ranks on one host; trees span at most {MOST_RANKS} ranks"
    if hosts > MOST_HOSTS:
        return f"{hosts} hosts; trees span at most {MOST_HOSTS} hosts or {MOST_RANKS} ranks"
    return None


def quick(topology: Topology, collective: str, root: int | None = None) -> bool:
    """Whether a forest is at hand at once, since it is kept, or after a few seconds, since links between few hosts are what limits."""
    if at_hand(topology, collective, root, 0, "own"):
        return True
    if collective in ROOTED or not 1 < len(topology.ranks_by_host) <= QUICK_HOSTS or topology.num_ranks > MOST_RANKS:
        return False
    links = (topology.links[link] for link in certificate(topology, collective, root, search=False).cut.links)
    return all(owner(topology, link.src) != owner(topology, link.dst) for link in links)


def synthesise(topology: Topology, collective: str, root: int | None = None, k: int = 0, ways: str = "own") -> Forest:
    """The forest of ``collective`` among the ranks of ``topology``.

    Args:
        root: of broadcast and reduce.
        k: trees per root, fewer if fewer are exact; 0 takes as many as it takes to lose less than 1.5 %, if :data:`K` are enough.
        ways: ``own`` for messages that take the network's own ways, ``any`` for messages that take whatever ways there are.

    Raises:
        ValueError: a collective that has no forest, or a fabric on which none was found.
    """
    if ways not in WAYS:
        raise ValueError(f"forest: ways is {ways!r}; known: {', '.join(WAYS)}")
    make = _freely if ways == "any" else _synthesise
    return remembered(topology, collective, root, k, ways, lambda: make(topology, collective, root, k))


def _freely(topology: Topology, collective: str, root: int | None, k: int) -> Forest:
    """Trees over ranks by any ways; on large fabrics trees over hosts come first, by the network's own ways."""
    if topology.num_ranks > FEW_RANKS:
        over_hosts = _synthesise(topology, collective, root, k)
        if topology.num_ranks > MOST_RANKS or (not k and over_hosts.share >= GOOD):
            return over_hosts
    bound = float(certificate(topology, collective, root).seconds_per_byte)
    blocks = topology.num_ranks if collective in GATHERING else 1
    pieces, seconds = with_rails(topology, routes_of(topology), free_pieces(topology, collective, root, k), blocks)
    return Forest(tuple(pieces), seconds, bound / seconds, "ranks")


def _synthesise(topology: Topology, collective: str, root: int | None, k: int) -> Forest:
    bound = certificate(topology, collective, root).seconds_per_byte
    routes = routes_of(topology)
    fabric, passed = _used(topology, routes) if topology.num_ranks <= MOST_RANKS else (topology, {})
    blocks = topology.num_ranks if collective in GATHERING else 1
    best: Forest | None = None
    problem = ""
    for level, strict, other in _attempts(topology, collective):
        network = network_of(fabric) if level == "ranks" else by_host(fabric, network_of(fabric))
        allowed = partial(_passes, network, passed if strict else {})
        try:
            pieces = _pieces(topology, network, allowed, collective, root, k, other)
        except ValueError as error:
            problem = str(error)
            continue
        for parts in (1, 2, 3, 4):
            railed, seconds = with_rails(topology, routes, [piece for piece in pieces for _ in range(parts)], blocks)
            forest = Forest(tuple(railed), seconds, float(bound) / seconds, level)
            if best is None or forest.share > best.share * 1.005:
                best = forest
            if best.share >= GOOD:
                return best
    if best is None:
        raise ValueError(f"no forest for {collective} on {topology.name}: {problem}")
    return best


def _per_root(k: int) -> Sequence[int]:
    """Numbers of trees per root to try."""
    return [k] if k else range(1, K + 1)


def _attempts(topology: Topology, collective: str) -> Iterator[tuple[str, bool, bool]]:
    """(level, whether arcs keep to the routes of messages, another way), likely ones first.

    Splitting off may join a way in and a way out of a switch that no route has, as over PCIe beside NVLink; keeping to routes
    avoids that, but loses capacity elsewhere. The other way of broadcast and reduce is that the root's host relays, that of all_reduce
    are equal roots and half of every link for each part.
    """
    hosts = len(topology.ranks_by_host)
    others = (False, True) if collective in ("broadcast", "reduce", "all_reduce") else (False,)
    if 1 < hosts < topology.num_ranks or (collective == "all_reduce" and hosts > 1):
        yield from (("hosts", False, other) for other in others)
    if topology.num_ranks <= MOST_RANKS or hosts == topology.num_ranks:
        for strict in (False, True) if topology.num_ranks <= MOST_RANKS else (False,):
            yield from (("ranks", strict, other) for other in others if not (other and collective in ROOTED))


def _used(topology: Topology, routes: Routes) -> tuple[Topology, dict[tuple[str, str], set[str]]]:
    """The topology with only those links that a message between two ranks may take; what it may pass between two slots."""
    used: set[int] = set()
    passed: dict[tuple[str, str], set[str]] = {}
    for src in range(topology.num_ranks):
        for dst in range(topology.num_ranks):
            if src != dst:
                vertices = passed.setdefault((topology.slots[src], topology.slots[dst]), set())
                for rail in range(routes.rails(src, dst)):
                    path = routes.path(src, dst, rail)
                    used.update(path)
                    vertices.update(topology.links[link].dst for link in path)
    links = [link for index, link in enumerate(topology.links) if index in used]
    return Topology(topology.name, topology.vertices.values(), links, topology.slots), passed


def _passes(network: Network, passed: Mapping[tuple[str, str], Set[str]], tail: int, switch: int, head: int) -> bool:
    """Whether messages between two vertices may pass a third; where that is not known they may."""
    names = network.names
    through = passed.get((names[tail], names[head]))
    return through is None or names[switch] in through


def _pieces(topology: Topology, network: Network, allowed: Allowed, collective: str, root: int | None, k: int, other: bool) -> list[Piece]:
    ranks_at: dict[int, list[int]] = {}
    for rank, vertex in enumerate(network.vertex_of_rank):
        ranks_at.setdefault(vertex, []).append(rank)
    network = _balanced(network)
    match collective:
        case "all_gather" | "reduce_scatter":
            turned = collective == "reduce_scatter"
            weights = {vertex: len(ranks) for vertex, ranks in ranks_at.items()}
            totals = [topology.num_ranks * each for each in _per_root(k)]
            trees = _spread(network.reversed() if turned else network, weights, totals, partial(_turned, allowed) if turned else allowed)
            return shared_out(topology, ranks_at, trees, turned)
        case "broadcast" | "reduce":
            assert root is not None
            turned = collective == "reduce"
            totals = [k] if k else list(_ROOTED_TOTALS)
            here = network.vertex_of_rank[root]
            trees = _spread(network.reversed() if turned else network, {here: 1}, totals, partial(_turned, allowed) if turned else allowed)
            led = [(tree, turn) for tree in trees.trees for turn in range(max(map(len, ranks_at.values())))]
            grown = [(tree, over_ranks(topology, ranks_at, tree, root, turn, other)) for tree, turn in led]
            return [Piece(0, tree.weight, over if turned else None, None if turned else over) for tree, over in grown]
        case "all_reduce":
            return _exchange(topology, network, ranks_at, k, allowed, other)
    raise ValueError(f"forest: does not build {collective}")


def _balanced(network: Network) -> Network:
    """The network with links as slow both ways as the slower way, if otherwise more would enter a switch than leaves it."""
    ranks = set(network.ranks)
    ins, outs = [0] * len(network.names), [0] * len(network.names)
    for (tail, head), capacity in zip(network.arcs, network.capacity, strict=True):
        outs[tail] += capacity
        ins[head] += capacity
    if all(ins[v] == outs[v] for v in range(len(network.names)) if v not in ranks):
        return network
    width = dict(zip(network.arcs, network.capacity, strict=True))
    equal = tuple(min(c, width.get((head, tail), 0)) for (tail, head), c in zip(network.arcs, network.capacity, strict=True))
    return replace(network, capacity=equal)


def _turned(allowed: Allowed, tail: int, switch: int, head: int) -> bool:
    """:func:`_passes` for a network that is turned around."""
    return allowed(head, switch, tail)


def _spread(network: Network, weights: dict[int, int], totals: Sequence[int], allowed: Allowed) -> Spread:
    """The fastest out-trees with roots of these weights."""
    blocks, capacity, _ = tightest(network, weights, network.ranks)
    rate = Fraction(capacity, blocks)
    total = sum(weights.values())
    # No more than everything ever crosses a link once for each vertex; memory is often a hundred times wider than that.
    enough = rate * total * len(network.names)
    capacities = {arc: min(Fraction(c), enough) for arc, c in zip(network.arcs, network.capacity, strict=True)}
    return spread(capacities, {vertex: rate * weight for vertex, weight in weights.items()}, network.ranks, totals, allowed)


def _exchange(topology: Topology, network: Network, ranks_at: dict[int, list[int]], k: int, allowed: Allowed, halves: bool) -> list[Piece]:
    """Trees up and trees down with equal roots, cut into pieces that have one of each."""
    turned = network.reversed()
    if halves:
        roots = dict.fromkeys(network.ranks, Fraction(1))
        totals = [len(roots) * each for each in _per_root(k)]
        down = _spread(network, dict.fromkeys(roots, 1), totals, allowed)
        up = _spread(turned, dict.fromkeys(roots, 1), totals, partial(_turned, allowed))
    else:
        best = best_exchange(network, publish=False, groups=host_groups(topology, network))
        roots = {vertex: x for vertex, x in zip(network.ranks, best.roots, strict=True) if x}
        count = len(roots)
        if len(set(roots.values())) == 1:
            totals = [count * each for each in _per_root(k)]
        else:
            totals = list(range(count, max(2 * count, 32) + 1)) if not k else [count * each for each in _per_root(k)]
        down = spread(dict(zip(network.arcs, best.down, strict=True)), roots, network.ranks, totals, allowed)
        up = spread(dict(zip(turned.arcs, best.up, strict=True)), roots, network.ranks, totals, partial(_turned, allowed))
    pairs = [pair for vertex in roots for pair in paired(trees_of(up, down, vertex), trees_of(down, up, vertex))]
    if not (halves or k) and len(pairs) > len(roots):
        few = few_trees(network, best.rate, len(pairs) - 1)
        pairs = pairs if few is None else [(1, above, below) for above, below in few]
    pieces = []
    leaders = max(map(len, ranks_at.values()))
    for weight, above, below in pairs:
        ranks = ranks_at[below.root]
        for turn in range(leaders):
            trees = [over_ranks(topology, ranks_at, tree, ranks[turn % len(ranks)], turn) for tree in (above, below)]
            pieces.append(Piece(0, weight, trees[0], trees[1]))
    return pieces
