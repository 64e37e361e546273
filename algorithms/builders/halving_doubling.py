"""Recursive halving and doubling (Rabenseifner's all_reduce)."""

from __future__ import annotations

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import check, one_rank
from topoccl.algorithms.layout import host_groups
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

NAME = "halving_doubling"


def build(spec: CollectiveSpec, topology: Topology) -> Schedule:
    """all_reduce by recursive halving (reduce-scatter) and doubling (all-gather) over q = 2^floor(lg p) ranks.

    The largest message (n/2) goes to the neighbour in the ring order, the smallest (n/q) to the farthest: with hosts contiguous in
    the order, partners of the large messages share a host. The p-q ranks beyond the power of two first fold their vector
    into a partner's, in the same host where there is one, and get the result back at the end.

    Rounds: 2 lg q, plus 2 when p is no power of two. Bytes sent by a rank: 2(q-1)/q n, plus n for partners and n alone for folded ranks.
    Packed on H hosts of L ranks, both powers of two, a host sends 2(H-1)/H n, the least possible. No scratch. Each sum is made once, so
    all ranks end with the same bits. Right in place.

    Raises:
        ValueError: arguments that do not fit together.
    """
    check(NAME, spec, topology, ("all_reduce",))
    if spec.ranks == 1:
        return one_rank(NAME, spec)
    core, folded = fold(host_groups(topology), spec.ranks)
    q = len(core)
    b = ScheduleBuilder(spec, NAME, chunks=q)
    for rank, partner in folded.items():
        b.send(b.lane(rank, "send"), (Buf.INPUT, 0), partner, q)
        b.recv_reduce(b.lane(partner, "receive"), rank, (Buf.INPUT, 0), (Buf.OUTPUT, 0), q)
    partners = set(folded.values())
    for at, rank in enumerate(core):
        _halve_and_double(b, core, at, Buf.OUTPUT if rank in partners else Buf.INPUT)
    for rank, partner in folded.items():
        b.send(b.lane(partner, "send"), (Buf.OUTPUT, 0), rank, q)
        b.recv(b.lane(rank, "receive"), partner, (Buf.OUTPUT, 0), q)
    return b.build()


def fold(groups: tuple[tuple[int, ...], ...], p: int) -> tuple[list[int], dict[int, int]]:
    """The ranks that take part, a power of two of them in the order of ``groups``, and the partner of each rank that does not.

    Pairs are made inside hosts first, one from each host in turn, so that hosts stay even; then over neighbouring hosts.
    """
    extra = p - (1 << (p.bit_length() - 1))
    folded: dict[int, int] = {}
    pairs = [[(group[i + 1], group[i]) for i in range(0, len(group) - 1, 2)] for group in groups]
    by_turn = sorted(((turn, at) for at, of_host in enumerate(pairs) for turn in range(len(of_host))), key=lambda x: (x[0], x[1]))
    folded.update(pairs[at][turn] for turn, at in by_turn[:extra])
    left = [rank for group in groups for rank in group if rank not in folded and rank not in folded.values()]
    missing = extra - len(folded)
    folded.update({left[2 * i + 1]: left[2 * i] for i in range(missing)})
    return [rank for group in groups for rank in group if rank not in folded], folded


def _halve_and_double(b: ScheduleBuilder, core: list[int], at: int, source: Buf) -> None:
    rank, q = core[at], len(core)
    send, receive = b.lane(rank, "send"), b.lane(rank, "receive")
    rounds, first, size = [], 0, q
    for bit in range(q.bit_length() - 1):
        size //= 2
        upper = at >> bit & 1
        keep, give = first + size * upper, first + size * (1 - upper)
        peer = core[at ^ 1 << bit]
        src = Buf.OUTPUT if bit else source
        b.send(send, (src, give), peer, size)
        b.recv_reduce(receive, peer, (src, keep), (Buf.OUTPUT, keep), size)
        rounds.append((peer, keep, give, size))
        first = keep
    for peer, keep, give, size in reversed(rounds):
        b.send(send, (Buf.OUTPUT, keep), peer, size)
        b.recv(receive, peer, (Buf.OUTPUT, give), size)


ALGORITHMS = (
    Algorithm(
        name=NAME,
        collectives=("all_reduce",),
        build=build,
        summary="2 lg p rounds of halving and doubling messages, the largest between neighbours",
    ),
)
