"""Double binary tree all_reduce (Sanders, Speck, Träff; as NCCL arranges it)."""

from __future__ import annotations

from dataclasses import dataclass, field

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import check, check_choice, one_rank
from topoccl.algorithms.layout import host_groups, rotated
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

NAME = "tree"
INTRA = ("chain", "flat")


def binary_tree(n: int, second: bool = False) -> list[int | None]:
    """The parent of each of ``n`` nodes (None for the root) in one of two trees whose inner nodes are the other's leaves.

    The first tree: a node's parent is its number with the lowest set bit moved up (or only cleared, when that is past the end);
    node 0 is the root. The second is its mirror image when n is even, and shifted by one when n is odd.
    """
    parents: list[int | None] = [None] * n
    for node in range(1, n):
        bit = node & -node
        up = (node ^ bit) | bit << 1
        parents[node] = up if up < n else node ^ bit
    if not second:
        return parents

    def image(node: int) -> int:
        return n - 1 - node if n % 2 == 0 else (node + 1) % n

    moved: list[int | None] = [None] * n
    for node, parent in enumerate(parents):
        moved[image(node)] = None if parent is None else image(parent)
    return moved


@dataclass
class _Node:
    """One rank in one tree: its parent and its children, near ones (same host) and far ones apart."""

    shares_host: bool
    parent: int | None = None
    near: list[int] = field(default_factory=list)
    far: list[int] = field(default_factory=list)


def build(spec: CollectiveSpec, topology: Topology, *, intra: str = "chain") -> Schedule:
    """Half of the vector goes up and down each of two binary trees over the hosts; below each host's leader hang its other ranks.

    Inside a host the ranks form a chain (``intra="chain"``) or all serve the leader, which folds them in one step and answers in one
    step (``intra="flat"``). The two trees use different leaders where a host has several ranks. With one host the trees span the
    ranks instead.

    Rounds: 2 (lg H + L-1) (chain) or 2 (lg H + 1) (flat) with H hosts of at most L ranks; S segments follow each other closely. A
    host with two children and a parent in one tree is a leaf in the other: it sends and receives at most 2 n (n/2 up in each tree,
    n/2 down to each child), and all hosts together 2(H-1) n. A rank sends at most n more inside its host. No scratch. Every sum is
    made once, so all ranks end with the same bits. Right in place.

    Raises:
        ValueError: an unknown ``intra``, or arguments that do not fit together.
    """
    check(NAME, spec, topology, ("all_reduce",))
    check_choice(NAME, "intra", intra, INTRA)
    params = (("intra", intra),)
    if spec.ranks == 1:
        return one_rank(NAME, spec, params)
    b = ScheduleBuilder(spec, NAME, chunks=2, params=params)
    for tree in range(2):
        for rank, node in _nodes(topology, tree, intra).items():
            _add(b, tree, rank, node)
    return b.build()


def _nodes(topology: Topology, tree: int, intra: str) -> dict[int, _Node]:
    groups = host_groups(topology)
    nodes = {rank: _Node(shares_host=len(group) > 1) for group in groups for rank in group}
    if len(groups) == 1:
        groups = tuple((rank,) for rank in groups[0])
    units = [rotated(group, tree) for group in groups]
    for unit, parent in zip(units, binary_tree(len(units), second=tree == 1), strict=True):
        if parent is not None:
            nodes[unit[0]].parent = units[parent][0]
            nodes[units[parent][0]].far.append(unit[0])
        for at, rank in enumerate(unit[1:]):
            above = unit[at] if intra == "chain" else unit[0]
            nodes[rank].parent = above
            nodes[above].near.append(rank)
    return nodes


def _add(b: ScheduleBuilder, tree: int, rank: int, node: _Node) -> None:
    # Where both trees leave a host at the same rank, the second one takes another NIC if there is one.
    def lane(name: str) -> int:
        return b.lane(rank, (name, tree), channel=tree, rail=0 if node.shares_host else tree)

    partial, result = (Buf.INPUT, tree), (Buf.OUTPUT, tree)
    children = [*node.near, *node.far]
    if children:
        partial = result
        b.step(lane("fold"), [(Buf.INPUT, tree), *((Buf.PEER, child) for child in children)], partial)
    if node.parent is not None:
        b.send(lane("up"), partial, node.parent)
        b.recv(lane("down"), node.parent, result)
    # What goes through memory does not wait behind what goes through the network.
    for name, below in (("far", node.far), ("near", node.near)):
        if below:
            b.send(lane(name), result, below)


ALGORITHMS = (
    Algorithm(
        name=NAME,
        collectives=("all_reduce",),
        build=build,
        variants=({"intra": "chain"}, {"intra": "flat"}),
        summary="two binary trees over the hosts, half of the vector up and down each",
    ),
)
