"""Broadcast along a tree: binomial, chain, hierarchical, and direct within one host. n = bytes, p = ranks, H = hosts.

Every rank receives the n bytes once, so p - 1 transfers of n in all; with S segments a tree of depth D takes D + S - 1 rounds of
n / S bytes. Children on one host are served by one step with several targets, which shared memory writes once.
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

COLLECTIVES = ("broadcast",)


def build_binomial(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """A binomial tree over the hosts, and one inside each host.

    At most ceil(lg H) + ceil(lg L) rounds with L ranks on the largest host; every host but the root's receives n bytes once, the
    root's host sends n ceil(lg H).
    """
    root = checked_root("binomial", spec, topology, COLLECTIVES)
    return _along(spec, topology, "binomial", host_tree(topology, root, "binomial", "binomial"))


def build_bine(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """A Bine tree over the hosts, and one inside each host: a binomial tree whose children lie to both sides in turn.

    Rounds and bytes of a host as with :func:`build_binomial`; on a ring of hosts the busiest link carries less, since the two sides share
    the load and no child is farther than about H/3.
    """
    root = checked_root("bine", spec, topology, COLLECTIVES)
    return _along(spec, topology, "bine", host_tree(topology, root, "bine", "bine"))


def build_chain(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """One chain through host after host, for long messages in many segments.

    p - 1 + S - 1 rounds of n / S bytes; every link between neighbouring hosts carries n bytes once, in one direction.
    """
    root = checked_root("chain", spec, topology, COLLECTIVES)
    return _along(spec, topology, "chain", chain_tree(topology, root))


def build_hierarchical(spec: CollectiveSpec, topology: Topology, *, inter: str = "binomial") -> Schedule:
    """A tree of shape ``inter`` over one leader per host; each leader serves its whole host with one step.

    Rounds: ceil(lg H) + 1 (binomial), H (chain) or 2 (flat); every host but the root's receives n bytes once.
    """
    root = checked_root("hierarchical", spec, topology, COLLECTIVES)
    check_choice("hierarchical", "inter", inter, SHAPES)
    return _along(spec, topology, "hierarchical", host_tree(topology, root, inter, "flat"), inter=inter)


def build_direct(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """The root serves all others: one round; n bytes written once for the root's host, n bytes for each rank elsewhere."""
    root = checked_root("direct", spec, topology, COLLECTIVES)
    return _along(spec, topology, "direct", flat_tree(topology, root))


def _along(spec: CollectiveSpec, topology: Topology, algorithm: str, tree: Tree, **params: Any) -> Schedule:
    b = ScheduleBuilder(spec, algorithm, params=params.items())
    host = topology.host_of_rank
    for rank in tree.order:
        held = (Buf.INPUT if rank == tree.root else Buf.OUTPUT, 0)
        if rank != tree.root:
            b.recv(b.lane(rank, "receive"), tree.parent[rank], held)
        for child in tree.children[rank]:
            if host[child] != host[rank]:
                b.send(b.lane(rank, "remote"), held, child)
        if near := [child for child in tree.children[rank] if host[child] == host[rank]]:
            b.send(b.lane(rank, "local"), held, near)
    # Last, since in place it would hold back the sends.
    b.copy(b.lane(tree.root, "own"), (Buf.INPUT, 0), (Buf.OUTPUT, 0))
    return b.build()


def _reject_hierarchical(spec: CollectiveSpec, topology: Topology) -> str | None:
    return None if len(topology.ranks_by_host) > 1 else "one host: the same as direct"


def _reject_direct(spec: CollectiveSpec, topology: Topology) -> str | None:
    hosts = len(topology.ranks_by_host)
    return None if hosts <= 1 else f"{hosts} hosts: the root would send the same bytes to a host several times"


ALGORITHMS = (
    Algorithm("binomial", COLLECTIVES, build_binomial, summary="binomial tree over the hosts, then inside each host"),
    Algorithm("bine", COLLECTIVES, build_bine, reject=reject_bine, summary="binomial tree to both sides, for hosts wired to each other"),
    Algorithm("chain", COLLECTIVES, build_chain, summary="pipelined chain through host after host"),
    Algorithm(
        "hierarchical", COLLECTIVES, build_hierarchical, tuple({"inter": shape} for shape in SHAPES), _reject_hierarchical,
        summary="tree over one leader per host, which serves its host at once",
    ),
    Algorithm("direct", COLLECTIVES, build_direct, reject=_reject_direct, summary="the root serves all others at once"),
)  # fmt: skip
