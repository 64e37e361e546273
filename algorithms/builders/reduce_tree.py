"""Reduce along a tree: binomial, chain, hierarchical, and direct within one host. n = bytes, p = ranks, H = hosts.

Every rank but the root sends n bytes once, so p - 1 transfers of n in all; with S segments a tree of depth D takes D + S - 1
rounds of n / S bytes. A rank that passes its sum to a rank of its own host folds straight into that message; between hosts the
sum goes through scratch, so that the network sends and receives at once.

The order of every sum is fixed by the tree alone: the same ranks on the same placement give the same bits.
"""

from __future__ import annotations

from typing import Any

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import check_choice
from topoccl.algorithms.builders.rooted_trees import SHAPES, Tree, chain_tree, checked_root, flat_tree, host_tree
from topoccl.algorithms.builders.swing import reject as reject_bine
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

COLLECTIVES = ("reduce",)


def build_binomial(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """A binomial tree inside each host, then one over the hosts: the broadcast's tree, reversed.

    At most ceil(lg L) + ceil(lg H) rounds with L ranks on the largest host; every host but the root's sends n bytes once.
    A rank's sum is ((own + child) + child) + ..., children of its host first, small subtrees first.
    """
    root = checked_root("binomial", spec, topology, COLLECTIVES)
    return _along(spec, topology, "binomial", host_tree(topology, root, "binomial", "binomial"))


def build_bine(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """The Bine tree of the broadcast, reversed: a binomial tree whose children lie to both sides in turn.

    Rounds, bytes and order of the sums as with :func:`build_binomial`.
    """
    root = checked_root("bine", spec, topology, COLLECTIVES)
    return _along(spec, topology, "bine", host_tree(topology, root, "bine", "bine"))


def build_chain(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """One chain through host after host that ends at the root, for long messages in many segments.

    p - 1 + S - 1 rounds of n / S bytes; every link between neighbouring hosts carries n bytes once, in one direction.
    The sum is root + (next + (... + last)), in the order of the chain.
    """
    root = checked_root("chain", spec, topology, COLLECTIVES)
    return _along(spec, topology, "chain", chain_tree(topology, root))


def build_hierarchical(spec: CollectiveSpec, topology: Topology, *, inter: str = "binomial") -> Schedule:
    """One leader per host folds all ranks of its host in one step, then a tree of shape ``inter`` over the leaders.

    Rounds: 1 + ceil(lg H) (binomial), H (chain) or 2 (flat); every host but the root's sends n bytes once.
    The sum of a host is left to right in rank order; the sums of the leader's children are then added one by one, small subtrees
    first.
    """
    root = checked_root("hierarchical", spec, topology, COLLECTIVES)
    check_choice("hierarchical", "inter", inter, SHAPES)
    return _along(spec, topology, "hierarchical", host_tree(topology, root, inter, "flat"), at_once=True, inter=inter)


def build_direct(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """All ranks send to the root, which folds p operands left to right in rank order in one step: one round, n (p - 1) bytes to
    the root."""
    root = checked_root("direct", spec, topology, COLLECTIVES)
    return _along(spec, topology, "direct", flat_tree(topology, root), at_once=True)


def _along(spec: CollectiveSpec, topology: Topology, algorithm: str, tree: Tree, at_once: bool = False, **params: Any) -> Schedule:
    """``at_once``: a rank folds itself and its children on its own host in one step, in rank order."""
    b = ScheduleBuilder(spec, algorithm, params=params.items())
    host = topology.host_of_rank
    own = (Buf.INPUT, 0)
    for rank in reversed(tree.order):
        near = sorted((c for c in tree.children[rank] if host[c] == host[rank]), key=lambda c: (tree.sizes[c], c))
        far = sorted((c for c in tree.children[rank] if host[c] != host[rank]), key=lambda c: (tree.sizes[c], c))
        groups = [near, *([c] for c in far)] if at_once and near else [[c] for c in near + far]
        parent = tree.parent[rank]
        total = own
        for i, children in enumerate(groups):
            operands = [total, *((Buf.PEER, c) for c in children)]
            if at_once and children is near:
                operands = [own if r == rank else (Buf.PEER, r) for r in sorted([rank, *near])]
            last = i == len(groups) - 1
            lane = b.lane(rank, "fold")
            if last and rank != tree.root and host[parent] == host[rank]:
                b.step(lane, operands, targets=[parent])
                break
            if total == own:
                total = (Buf.OUTPUT, 0) if rank == tree.root else (Buf.SCRATCH, b.scratch(rank, [0]))
            b.step(lane, operands, total)
        else:
            if rank != tree.root:
                b.send(b.lane(rank, "send"), total, parent)
            elif not groups:
                b.copy(b.lane(rank, "own"), own, (Buf.OUTPUT, 0))
    return b.build()


def _reject_hierarchical(spec: CollectiveSpec, topology: Topology) -> str | None:
    return None if len(topology.ranks_by_host) > 1 else "one host: the same as direct"


def _reject_direct(spec: CollectiveSpec, topology: Topology) -> str | None:
    hosts = len(topology.ranks_by_host)
    return None if hosts <= 1 else f"{hosts} hosts: each host would send as many sums as it has ranks"


ALGORITHMS = (
    Algorithm("binomial", COLLECTIVES, build_binomial, summary="binomial tree inside each host, then over the hosts"),
    Algorithm("bine", COLLECTIVES, build_bine, reject=reject_bine, summary="binomial tree from both sides, for hosts wired to each other"),
    Algorithm("chain", COLLECTIVES, build_chain, summary="pipelined chain through host after host"),
    Algorithm(
        "hierarchical", COLLECTIVES, build_hierarchical, tuple({"inter": shape} for shape in SHAPES), _reject_hierarchical,
        summary="each host's leader folds its host in one step, then a tree over the leaders",
    ),
    Algorithm("direct", COLLECTIVES, build_direct, reject=_reject_direct, summary="the root folds all ranks in one step"),
)  # fmt: skip
