"""Gather and scatter along a tree: direct, binomial, hierarchical. n = bytes of one block, p = ranks, H = hosts.

A rank with a subtree handles the blocks of that subtree as one message, packed in scratch in the order of the tree; a block
that travels alone goes straight from input to output. A scatter is its gather reversed, with the same counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.rooted_trees import Tree, checked_root, flat_tree, host_tree
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

COLLECTIVES = ("gather", "scatter")


def build_direct(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """The root exchanges one message of n bytes with each other rank: p - 1 messages, one round, no copies."""
    root = checked_root("direct", spec, topology, COLLECTIVES)
    return _along(spec, topology, "direct", flat_tree(topology, root))


def build_binomial(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """A binomial tree over the hosts, and one inside each host, for small blocks: each message holds a subtree's blocks.

    At most ceil(lg H) + ceil(lg L) rounds with L ranks on the largest host. The root handles n (p - 1) bytes in as many messages
    as it has children; a block crosses up to ceil(lg H) links between hosts.
    """
    root = checked_root("binomial", spec, topology, COLLECTIVES)
    return _along(spec, topology, "binomial", host_tree(topology, root, "binomial", "binomial"))


def build_hierarchical(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """The root exchanges one message with a leader of each other host, which exchanges blocks with the ranks of its host.

    Two rounds, H - 1 messages between hosts; every block crosses its host's link once.
    """
    root = checked_root("hierarchical", spec, topology, COLLECTIVES)
    return _along(spec, topology, "hierarchical", host_tree(topology, root, "flat", "flat"))


def _along(spec: CollectiveSpec, topology: Topology, algorithm: str, tree: Tree) -> Schedule:
    b = ScheduleBuilder(spec, algorithm)
    if spec.collective == "gather":
        _gather(b, tree)
    else:
        _scatter(b, tree, topology.host_of_rank)
    return b.build()


def _gather(b: ScheduleBuilder, tree: Tree) -> None:
    for rank in reversed(tree.order):
        root = rank == tree.root
        held = (Buf.INPUT, 0)
        if not root and tree.sizes[rank] > 1:
            held = (Buf.SCRATCH, b.scratch(rank, tree.subtree(rank)))
            b.copy(b.lane(rank, "own"), (Buf.INPUT, 0), held)
        for child, start in _below(tree, rank):
            blocks = tree.subtree(child)
            lane = b.lane(rank, ("receive", child))
            if not root:
                b.recv(lane, child, (Buf.SCRATCH, held[1] + start), len(blocks))
            elif len(blocks) == 1:
                b.recv(lane, child, (Buf.OUTPUT, child))
            else:
                # Blocks of the output lie apart when a call is cut into segments, so a packed message is unpacked.
                packed = b.scratch(rank, blocks)
                b.recv(lane, child, (Buf.SCRATCH, packed), len(blocks))
                for i, block in enumerate(blocks):
                    b.copy(lane, (Buf.SCRATCH, packed + i), (Buf.OUTPUT, block))
        if root:
            b.copy(b.lane(rank, "own"), (Buf.INPUT, 0), (Buf.OUTPUT, rank))
        else:
            b.send(b.lane(rank, "send"), held, tree.parent[rank], tree.sizes[rank])


def _scatter(b: ScheduleBuilder, tree: Tree, host: Sequence[str]) -> None:
    for rank in tree.order:
        root = rank == tree.root
        held = (Buf.INPUT, rank) if root else (Buf.OUTPUT, 0)
        if not root:
            if tree.sizes[rank] > 1:
                held = (Buf.SCRATCH, b.scratch(rank, tree.subtree(rank)))
            b.recv(b.lane(rank, "receive"), tree.parent[rank], held, tree.sizes[rank])
        for child, start in _below(tree, rank):
            blocks = tree.subtree(child)
            # One after the other to other hosts, big subtrees first, since all leave through one port.
            lane = b.lane(rank, ("send", child) if host[child] == host[rank] else "send remote")
            if not root:
                b.send(lane, (Buf.SCRATCH, held[1] + start), child, len(blocks))
            elif len(blocks) == 1:
                b.send(lane, (Buf.INPUT, child), child)
            else:
                packed = b.scratch(rank, blocks)
                for i, block in enumerate(blocks):
                    b.copy(lane, (Buf.INPUT, block), (Buf.SCRATCH, packed + i))
                b.send(lane, (Buf.SCRATCH, packed), child, len(blocks))
        if root or tree.sizes[rank] > 1:
            b.copy(b.lane(rank, "own"), held, (Buf.OUTPUT, 0))


def _below(tree: Tree, rank: int) -> list[tuple[int, int]]:
    """The children in the order in which data should leave, each with the place of its first block in the subtree's range."""
    place = {r: i for i, r in enumerate(tree.subtree(rank))}
    return [(child, place[child]) for child in tree.children[rank]]


def _reject_hierarchical(spec: CollectiveSpec, topology: Topology) -> str | None:
    groups = topology.ranks_by_host
    if len(groups) <= 1:
        return "one host: the same as direct"
    return None if max(map(len, groups)) > 1 else "one rank on every host: the same as direct"


ALGORITHMS = (
    Algorithm("direct", COLLECTIVES, build_direct, summary="the root exchanges one message with each other rank"),
    Algorithm("binomial", COLLECTIVES, build_binomial, summary="binomial tree whose messages hold the blocks of a subtree"),
    Algorithm(
        "hierarchical", COLLECTIVES, build_hierarchical, reject=_reject_hierarchical,
        summary="one message per host, to a leader that serves its host",
    ),
)  # fmt: skip
