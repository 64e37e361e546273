"""The outlines of all_reduce's algorithms. Their traffic is that of the builders of the same names, which tests compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from topoccl.algorithms.algorithm import read_label
from topoccl.algorithms.builders.halving_doubling import fold
from topoccl.algorithms.builders.swing import spreading
from topoccl.algorithms.builders.tree import binary_tree
from topoccl.algorithms.layout import host_groups, rail_owners, ring_order, rotated
from topoccl.algorithms.outlines.rounds import MOST_MESSAGES, Ints, Outline, Round, TooLarge, rotation
from topoccl.algorithms.registry import by_name
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

Pairs = list[tuple[int, int]]


def outline(label: str, topology: Topology) -> Outline:
    """The outline that :data:`OUTLINES` knows as ``label``, for all ranks of ``topology``.

    Raises:
        ValueError: an unknown label (the message lists the known ones), or an algorithm that makes no sense on this topology.
        TooLarge: too many messages at once.
    """
    shape = OUTLINES.get(label)
    if shape is None:
        raise ValueError(f"no outline of {label!r}; known: {', '.join(OUTLINES)}")
    spec = CollectiveSpec("all_reduce", topology.num_ranks)
    reason = by_name(spec.collective, read_label(label)[0]).reject(spec, topology)
    if reason is not None:
        raise ValueError(reason)
    return Outline(label, *shape(topology)) if topology.num_ranks > 1 else Outline(label, ())


Shape = tuple[tuple[tuple[Round, ...], ...], bool]


def _ring(topology: Topology, channels: int) -> Shape:
    p = topology.num_ranks
    orders = [ring_order(topology, channel) for channel in range(channels)]
    host_size = {rank: len(group) for group in topology.ranks_by_host for rank in group}
    turn = rotation(orders, 1 / (channels * p), 2 * (p - 1))
    rails = [channel - channel % host_size[rank] for channel, order in enumerate(orders) for rank in order]
    return ((replace(turn, rail=np.array(rails)),),), False


def _hierarchical(topology: Topology, inter: str, channels: int = 1) -> Shape:
    groups, owners = host_groups(topology), rail_owners(topology)
    hosts, rails = len(groups), len(owners[0])
    within = [(rank, owner) for group, own in zip(groups, owners, strict=True) for owner in own for rank in group if rank != owner]
    between: list[tuple[Round, ...]] = []
    if hosts > 1:
        by_rail = [[own[rail] for own in owners] for rail in range(rails)]
        if inter == "ring":
            orders, nics = [], []
            for number, ring in enumerate(by_rail):
                for channel in range(channels):
                    orders.append(ring[::-1] if (number * channels + channel) % 2 else ring)
                    nics.append(channel * rails)
            between = [(rotation(orders, 1 / (rails * hosts * channels), 2 * (hosts - 1), nics),)]
        else:
            if rails * hosts * (hosts - 1) > MOST_MESSAGES:
                raise TooLarge(f"{rails * hosts * (hosts - 1)} messages between {hosts} hosts at once; at most {MOST_MESSAGES}")
            pairs = [(a, b) for ring in by_rail for a in ring for b in ring if a != b]
            step = _round(pairs, 1 / rails if inter == "exchange" else 1 / (rails * hosts))
            between = [(step,)] if inter == "exchange" else [(step,), (step,)]
    return ((_round(within, 1 / rails),), *between, (_round([(b, a) for a, b in within], 1 / rails),)), True


def _halving_doubling(topology: Topology) -> Shape:
    p = topology.num_ranks
    core, folded = fold(host_groups(topology), p)
    ranks = np.array(core, np.int64)
    halving = []
    for bit in range(len(core).bit_length() - 1):
        halving.append(Round(ranks, ranks[np.arange(len(core)) ^ 1 << bit], 2.0 ** -(bit + 1)))
    inward, outward = [(a, b) for a, b in folded.items()], [(b, a) for a, b in folded.items()]
    return (((_round(inward, 1.0), *halving, *reversed(halving), _round(outward, 1.0)),)), True


def _swing(topology: Topology) -> Shape:
    order = ring_order(topology)
    extra = [order.pop()] if len(order) % 2 else []
    p, ranks = len(order), np.array(order, np.int64)
    spread = []
    for moves in spreading(p):
        ends = np.array([(a, b) for a, b, _ in moves], np.int64)
        spread.append(Round(ranks[ends[:, 0]], ranks[ends[:, 1]], np.array([len(blocks) / p for _, _, blocks in moves])))
    back = [Round(one.dst, one.src, one.share) for one in reversed(spread)]
    inward = [(rank, order[-1]) for rank in extra]
    return (((_round(inward, 1.0), *back, *spread, _round([(b, a) for a, b in inward], 1.0)),)), True


def _two_shot(topology: Topology) -> Shape:
    p = topology.num_ranks
    if p * (p - 1) > MOST_MESSAGES:
        raise TooLarge(f"{p * (p - 1)} messages at once; at most {MOST_MESSAGES}")
    src = np.repeat(np.arange(p), p - 1)
    everyone = Round(src, (src + np.tile(np.arange(1, p), p)) % p, 1 / p)
    return ((everyone,), (everyone,)), True


def _tree(topology: Topology) -> Shape:
    """Chains inside hosts: the builder's ``intra=chain``. A stage is one level of both trees, whose links differ."""
    groups = host_groups(topology)
    if len(groups) == 1:
        groups = tuple((rank,) for rank in groups[0])
    shares_host = {rank: len(group) > 1 for group in topology.ranks_by_host for rank in group}
    levels: dict[int, list[tuple[int, int, int]]] = {}
    for tree in range(2):
        units = [rotated(group, tree) for group in groups]
        parents = binary_tree(len(units), second=tree == 1)
        depth = _depths(parents)
        for number, (unit, parent) in enumerate(zip(units, parents, strict=True)):
            if parent is not None:
                levels.setdefault(depth[number] - 1, []).append((unit[0], units[parent][0], tree))
            for at, rank in enumerate(unit[1:]):
                levels.setdefault(max(depth) + at, []).append((rank, unit[at], tree))
    up = []
    for level in sorted(levels, reverse=True):
        src, dst, tree_of = (np.array(column, np.int64) for column in zip(*levels[level], strict=True))
        rail = np.array([0 if shares_host[rank] else tree for rank, tree in zip(src.tolist(), tree_of.tolist(), strict=True)])
        up.append((src, dst, rail))
    stages = [(Round(src, dst, 0.5, rail),) for src, dst, rail in up]
    stages += [(Round(dst, src, 0.5, rail),) for src, dst, rail in reversed(up)]
    return tuple(stages), True


def _depths(parents: list[int | None]) -> list[int]:
    depth: list[int] = []
    for node in range(len(parents)):
        steps, at = 0, parents[node]
        while at is not None:
            steps, at = steps + 1, parents[at]
        depth.append(steps)
    return depth


def _round(pairs: Pairs, share: float) -> Round:
    columns: Ints = np.array(pairs, np.int64).reshape(-1, 2)
    return Round(columns[:, 0], columns[:, 1], share)


OUTLINES: dict[str, Callable[[Topology], Shape]] = {
    "ring[channels=1]": partial(_ring, channels=1),
    "ring[channels=2]": partial(_ring, channels=2),
    "ring[channels=4]": partial(_ring, channels=4),
    "tree[intra=chain]": _tree,
    "halving_doubling": _halving_doubling,
    "hierarchical[inter=ring]": partial(_hierarchical, inter="ring"),
    "hierarchical[inter=ring,channels=2]": partial(_hierarchical, inter="ring", channels=2),
    "hierarchical[inter=direct]": partial(_hierarchical, inter="direct"),
    "hierarchical[inter=exchange]": partial(_hierarchical, inter="exchange"),
    "two_shot": _two_shot,
    "swing": _swing,
}
"""By the label of the schedule: what makes its stages, and whether it is pipelined."""
