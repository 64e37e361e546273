"""Trees over the ranks of a group, shaped by its hosts: what the rooted collectives send along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topoccl.algorithms.builders.common import check
from topoccl.algorithms.builders.swing import tree_parents
from topoccl.algorithms.layout import host_groups, rotated
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

SHAPES = ("binomial", "chain", "flat")


@dataclass(frozen=True)
class Tree:
    """A tree over all ranks.

    Attributes:
        root: its root.
        parent: each rank's parent; the root's is the root itself.
        children: each rank's children in the order in which data should leave: those on other hosts first, big subtrees first.
        order: all ranks in preorder, own host and small subtrees first. Every subtree is a contiguous range of it, and so is every
            host of a :func:`host_tree`.
        sizes: the number of ranks in each rank's subtree, itself included.
    """

    root: int
    parent: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    sizes: tuple[int, ...]

    def subtree(self, rank: int) -> tuple[int, ...]:
        """The ranks below and including ``rank``, itself first."""
        at = self.order.index(rank)
        return self.order[at : at + self.sizes[rank]]


def checked_root(algorithm: str, spec: CollectiveSpec, topology: Topology, collectives: Sequence[str]) -> int:
    """The root of ``spec``, after the checks of :func:`~topoccl.algorithms.builders.common.check`."""
    check(algorithm, spec, topology, collectives)
    assert spec.root is not None  # rooted collectives have one
    return spec.root


def hosts_from(topology: Topology, root: int) -> list[list[int]]:
    """The ranks of each host, the root's host first and the root first in it; the rest in the order of the layout."""
    groups = host_groups(topology)
    first = next(i for i, group in enumerate(groups) if root in group)
    rest = [list(group) for group in groups[first + 1 :] + groups[:first]]
    return [list(rotated(groups[first], groups[first].index(root))), *rest]


def host_tree(topology: Topology, root: int, inter: str, intra: str) -> Tree:
    """A tree of shape ``inter`` over one leader per host (the root, and elsewhere the first of the layout), below each leader a tree
    of shape ``intra`` over the ranks of its host. Each host but the root's is entered exactly once."""
    hosts = hosts_from(topology, root)
    parent = [root] * topology.num_ranks
    _shape(parent, [host[0] for host in hosts], inter)
    for host in hosts:
        _shape(parent, host, intra)
    return _tree(topology, root, parent)


def flat_tree(topology: Topology, root: int) -> Tree:
    """Every rank directly below the root."""
    return _tree(topology, root, [root] * topology.num_ranks)


def chain_tree(topology: Topology, root: int) -> Tree:
    """One chain that starts at the root and goes through host after host."""
    parent = [root] * topology.num_ranks
    _shape(parent, [rank for host in hosts_from(topology, root) for rank in host], "chain")
    return _tree(topology, root, parent)


def _shape(parent: list[int], members: Sequence[int], shape: str) -> None:
    """Sets the parents of all ``members`` but the first."""
    if shape == "bine":
        for rank, above in zip(members, tree_parents(len(members)), strict=True):
            parent[rank] = members[above] if rank != members[0] else parent[rank]
        return
    for at in range(1, len(members)):
        # In a binomial tree the parent of a position is that position without its lowest set bit.
        parent[members[at]] = members[at & (at - 1) if shape == "binomial" else at - 1 if shape == "chain" else 0]


def _tree(topology: Topology, root: int, parent: Sequence[int]) -> Tree:
    host = topology.host_of_rank
    below: list[list[int]] = [[] for _ in parent]
    for rank, above in enumerate(parent):
        if rank != root:
            below[above].append(rank)
    downward = [root]
    for rank in downward:
        downward.extend(below[rank])
    sizes = [1] * len(parent)
    for rank in reversed(downward[1:]):
        sizes[parent[rank]] += sizes[rank]

    def remote(rank: int) -> bool:
        return host[rank] != host[parent[rank]]

    order: list[int] = []
    stack = [root]
    while stack:
        rank = stack.pop()
        order.append(rank)
        stack.extend(sorted(below[rank], key=lambda r: (remote(r), sizes[r], r), reverse=True))
    children = tuple(tuple(sorted(ranks, key=lambda r: (not remote(r), -sizes[r], r))) for ranks in below)
    return Tree(root, tuple(parent), children, tuple(order), tuple(sizes))
