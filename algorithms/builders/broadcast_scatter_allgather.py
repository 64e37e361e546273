"""Broadcast as a scatter and an all_gather (van de Geijn), for long messages. n = bytes, p = ranks."""

from __future__ import annotations

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.rooted_trees import checked_root, host_tree
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

NAME = "scatter_allgather"
COLLECTIVES = ("broadcast",)


def build(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """Cuts the data into p chunks, scatters them along a binomial tree, and passes them on along the tree's preorder.

    Chunk i belongs to the i-th rank of the preorder, so what a subtree needs is one range of the data and no message is packed.
    The second phase is a ring of p - 1 rounds of n / p bytes in which nothing is sent that the receiver already holds from the
    first. So no chunk reaches a rank or a host twice: n (p - 1) bytes in all, n into every host but the root's, less than 2n out
    of any host. On one host about 2n beta and (lg p + p - 1) alpha.
    """
    root, p = checked_root(NAME, spec, topology, COLLECTIVES), spec.ranks
    tree = host_tree(topology, root, "binomial", "binomial")
    position = {rank: at for at, rank in enumerate(tree.order)}
    b = ScheduleBuilder(spec, NAME, chunks=p)
    buf = [Buf.OUTPUT] * p
    buf[root] = Buf.INPUT
    host = topology.host_of_rank
    for rank in tree.order:
        if rank != root:
            b.recv(b.lane(rank, "receive part"), tree.parent[rank], (Buf.OUTPUT, position[rank]), tree.sizes[rank])
        for child in tree.children[rank]:
            b.send(b.lane(rank, ("send part", host[child] == host[rank])), (buf[rank], position[child]), child, tree.sizes[child])
    # The ring, on a channel of its own. In round k position i passes chunk i - k on.
    for k in range(p - 1):
        for at, rank in enumerate(tree.order):
            following = tree.order[(at + 1) % p]
            chunk = (at - k) % p
            if not position[following] <= chunk < position[following] + tree.sizes[following]:
                b.send(b.lane(rank, "pass on", channel=1), (buf[rank], chunk), following)
            previous = tree.order[at - 1]
            chunk = (at - 1 - k) % p
            if not at <= chunk < at + tree.sizes[rank]:
                b.recv(b.lane(rank, "take", channel=1), previous, (Buf.OUTPUT, chunk))
    b.copy(b.lane(root, "own"), (Buf.INPUT, 0), (Buf.OUTPUT, 0), p)
    return b.build()


def _reject(spec: CollectiveSpec, topology: Topology) -> str | None:
    return None if spec.ranks > 2 else f"{spec.ranks} ranks: the same as chain"


ALGORITHMS = (Algorithm(NAME, COLLECTIVES, build, reject=_reject, summary="scatter, then all_gather in a ring"),)
