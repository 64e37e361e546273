"""Swing's all_reduce, and the order of partners that its trees (Bine trees) share.

In step s the rank at position r of a ring meets the one at r + rho(s) if r is even and at r - rho(s) if it is odd, modulo p, with
rho(s) = (1 - (-2)^(s+1)) / 3 = 1, -1, 3, -5, 11 ...: partners lie to both sides in turn and never farther than about 2^(s+1) / 3, where
recursive doubling goes 2^s one way (De Sensi et al., "Swing", NSDI 2024; reference: Swing / Bine).
"""

from __future__ import annotations

from functools import lru_cache

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import check, one_rank
from topoccl.algorithms.grids import host_wiring
from topoccl.algorithms.layout import ring_order
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

NAME = "swing"

Round = tuple[tuple[int, int, tuple[int, ...]], ...]
"""Of one round: (holder, who gets it, the blocks), all as positions."""


def partner(position: int, step: int, p: int) -> int:
    """Whom ``position`` of an even number ``p`` meets in ``step``."""
    power = 1 << (step + 1)
    distance = (1 - power if step % 2 else 1 + power) // 3
    return (position + distance if position % 2 == 0 else position - distance) % p


@lru_cache(maxsize=32)
def spreading(p: int) -> tuple[Round, ...]:
    """Rounds after which each block has gone from its owner to all of the even number ``p`` positions, far partners first.

    A position is given a block by its partner of the round if the partner has it and it has not: so every block arrives once, also
    where p is no power of two and ways cross.
    """
    held = [{position} for position in range(p)]
    rounds: list[Round] = []
    for step in reversed(range((p - 1).bit_length())):
        before = [frozenset(blocks) for blocks in held]
        moves = []
        for position in range(p):
            peer = partner(position, step, p)
            if given := before[position] - before[peer]:
                moves.append((position, peer, tuple(sorted(given))))
                held[peer] |= given
        rounds.append(tuple(moves))
    return tuple(rounds)


def tree_parents(p: int) -> list[int]:
    """The parent of each of ``p`` positions in the Bine tree of position 0, which is its own; an odd last one hangs on position 0."""
    parents = [0] * p
    for moves in spreading(p - p % 2) if p > 1 else ():
        for position, peer, blocks in moves:
            if 0 in blocks:
                parents[peer] = position
    return parents


def build(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """all_reduce by reduce-scatter (near partners first, which get most) and all-gather (the same way back) along Swing's partners.

    2 ceil(lg p) rounds; each rank sends about 2(p-1)/p n, all of it to ranks at most about p/3 away on the ring. With odd p one rank
    folds its vector into its neighbour's first and gets the result at the end: 2 rounds and 2 n bytes more. A message is split where
    its blocks are not adjacent, which does not happen for powers of two. No scratch. Each sum is made once, so all ranks end with the
    same bits. Right in place.

    Raises:
        ValueError: arguments that do not fit together.
    """
    check(NAME, spec, topology, ("all_reduce",))
    if spec.ranks == 1:
        return one_rank(NAME, spec)
    order = ring_order(topology)
    extra = order.pop() if len(order) % 2 else None
    p = len(order)
    place = _places(p)
    b = ScheduleBuilder(spec, NAME, chunks=p)
    added: set[tuple[int, int]] = set()  # (position, block) whose sum is in the output
    if extra is not None:
        b.send(b.lane(extra, "send"), (Buf.INPUT, 0), order[-1], p)
        b.recv_reduce(b.lane(order[-1], "receive"), extra, (Buf.INPUT, 0), (Buf.OUTPUT, 0), p)
        added |= {(p - 1, block) for block in range(p)}
    rounds = spreading(p)
    for moves in reversed(rounds):
        pieces = [(peer, position, run) for position, peer, blocks in moves for run in _runs(blocks, place, position, peer, added)]
        for sender, receiver, run in pieces:
            b.send(b.lane(order[sender], "send"), (_held(sender, run, added), place[run[0]]), order[receiver], len(run))
        for sender, receiver, run in pieces:
            at = place[run[0]]
            lane = b.lane(order[receiver], "receive")
            b.recv_reduce(lane, order[sender], (_held(receiver, run, added), at), (Buf.OUTPUT, at), len(run))
        added |= {(receiver, block) for _, receiver, run in pieces for block in run}
    for moves in rounds:
        for position, peer, blocks in moves:
            for run in _runs(blocks, place, position, peer, None):
                b.send(b.lane(order[position], "send"), (Buf.OUTPUT, place[run[0]]), order[peer], len(run))
                b.recv(b.lane(order[peer], "receive"), order[position], (Buf.OUTPUT, place[run[0]]), len(run))
    if extra is not None:
        b.send(b.lane(order[-1], "send"), (Buf.OUTPUT, 0), extra, p)
        b.recv(b.lane(extra, "receive"), order[-1], (Buf.OUTPUT, 0), p)
    return b.build()


def _places(p: int) -> list[int]:
    """The chunk of each block: blocks that travel together lie together."""
    keys: list[list[int]] = [[] for _ in range(p)]
    reached = [{position} for position in range(p)]
    for step in reversed(range((p - 1).bit_length())):
        reached = [reached[position] | reached[partner(position, step, p)] for position in range(p)]
        for position in range(p):
            keys[position].append(min(reached[position]))
    order = sorted(range(p), key=lambda position: (keys[position][::-1], position))
    return [order.index(position) for position in range(p)]


def _held(position: int, run: list[int], added: set[tuple[int, int]]) -> Buf:
    return Buf.OUTPUT if (position, run[0]) in added else Buf.INPUT


def _runs(blocks: tuple[int, ...], place: list[int], position: int, peer: int, added: set[tuple[int, int]] | None) -> list[list[int]]:
    """``blocks`` in stretches of adjacent chunks that both sides hold in one buffer."""
    runs: list[list[int]] = []
    for block in sorted(blocks, key=place.__getitem__):
        last = runs[-1][-1] if runs else None
        alike = added is None or last is None or all(((side, last) in added) == ((side, block) in added) for side in (position, peer))
        if last is not None and place[block] == place[last] + 1 and alike:
            runs[-1].append(block)
        else:
            runs.append([block])
    return runs


def reject(spec: CollectiveSpec, topology: Topology) -> str | None:
    """Why nearness of partners makes no difference here."""
    return None if host_wiring(topology) is not None else "hosts are not wired to each other, so that all partners are equally near"


ALGORITHMS = (
    Algorithm(
        name=NAME,
        collectives=("all_reduce",),
        build=build,
        reject=reject,
        summary="2 lg p rounds whose partners lie to both sides on a ring, a third nearer than halving and doubling's",
    ),
)
