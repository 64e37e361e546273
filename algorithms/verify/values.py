"""Last part of a proof: what every value is made of.

A value is a chunk id and, where the collective reduces, the set of ranks in it as bits. Operands of a fold must be of the same
chunk and, unless the collective is idempotent, have no rank in common: so a set that is built without complaint is a multiset
in which no rank counts twice. A hash of the order of every sum comes along, to tell whether all ranks round alike.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from topoccl.algorithms.schedule import Buf, Schedule
from topoccl.algorithms.verify.memory import UNWRITTEN, Definitions, Elements, Places
from topoccl.algorithms.verify.structure import Ints, Messages, ScheduleError

Words = npt.NDArray[np.uint64]


def check_values(
    schedule: Schedule, places: Places, elements: Elements, messages: Messages, definitions: Definitions, level: Ints, segments: int
) -> bool:
    """Executes the schedule symbolically and checks stores, folds and final outputs.

    Returns:
        Whether all ranks that end with a block made it by the same sums in the same order, and so agree to the last bit.
    """
    s = schedule
    made, own = len(elements.step), places.inputs + places.outputs
    leaf = segments * made  # elements first, then the input places of all segments

    source = np.full(segments * int(elements.operand_ptr[-1]), UNWRITTEN, dtype=np.int64)
    source[definitions.operand] = np.where(definitions.read >= 0, definitions.read, leaf - 2 - definitions.read)
    count = s.count[messages.send_step].astype(np.int64)
    which = np.repeat(np.arange(len(count)), count)
    index = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    base = np.arange(segments)[:, None]
    taken = base * elements.operand_ptr[-1] + elements.operand_ptr[messages.operand[which]] + index
    source[taken] = base * made + elements.ptr[messages.send_step[which]] + index

    first = elements.operand_ptr[s.operand_ptr[elements.step]] + elements.index  # first operand of each element
    operands = np.diff(s.operand_ptr)[elements.step]
    parent = np.arange(leaf + segments * own)
    parent[:leaf] = source[(base * elements.operand_ptr[-1] + first).ravel()]
    origin = _follow(parent)
    chunk = np.tile(places.chunk, segments)[origin - leaf]
    fold = np.flatnonzero(np.tile(operands > 1, segments))
    parent[fold] = fold
    root = _follow(parent) if len(fold) else origin

    words = (s.spec.ranks + 63) // 64 if s.spec.reduces else 0
    members = np.zeros((len(parent), words), dtype=np.uint64)
    tree = np.zeros(len(parent), dtype=np.uint64)
    if words:
        rank = np.repeat(np.arange(s.spec.ranks), np.diff(np.append(places.base[Buf.INPUT], places.inputs)))
        at = leaf + base * own + np.arange(places.inputs)
        members[at, rank // 64] = np.uint64(1) << (rank % 64).astype(np.uint64)
        tree[at] = _mix(rank.astype(np.uint64))
        _fold(s, elements, source, root, chunk, members, tree, fold, level)

    where = np.flatnonzero(np.tile(s.dst_buf[elements.step] != Buf.NONE, segments))
    step = elements.step[where % max(made, 1)]
    buf, rank_of = s.dst_buf[step], s.step_rank[step]
    place = places.base[buf, rank_of] + s.dst_off[step] + elements.index[where % max(made, 1)]
    expected = np.empty(len(place), dtype=np.int64)
    scratch = buf == Buf.SCRATCH
    expected[scratch], expected[~scratch] = places.scratch_chunk[place[scratch]], places.chunk[place[~scratch]]
    unlike = expected != chunk[where]
    if s.weights is None and not s.spec.uneven:
        # Blocks are equal, so in scratch the place of a block's chunk serves for the same chunk of any block.
        unlike[scratch] = (expected[scratch] - chunk[where][scratch]) % s.chunks != 0
    wrong = np.flatnonzero((expected >= 0) & unlike)
    if len(wrong):
        i = wrong[np.argmin(level[step[wrong]])]
        raise ScheduleError(s, int(step[i]), f"stores chunk {chunk[where[i]]} in a place for chunk {expected[i]}")

    return _check_outputs(s, places, elements, definitions.final, leaf, root, members, tree)


def _follow(parent: Ints) -> Ints:
    """The end of each chain of parents, by doubling."""
    while True:
        further = parent[parent]
        if np.array_equal(further, parent):
            return parent
        parent = further


def _fold(
    s: Schedule, elements: Elements, source: Ints, root: Ints, chunk: Ints, members: Words, tree: Words, fold: Ints, level: Ints
) -> None:
    """Fills in members and tree of all folds, a level of steps at a time."""
    made = len(elements.step)
    depth = level[elements.step[fold % made]]
    order = np.argsort(depth, kind="stable")
    fold, depth = fold[order], depth[order]
    cuts = np.flatnonzero(np.diff(depth)) + 1
    for group in np.split(fold, cuts):
        element = group % made
        step = elements.step[element]
        operands = np.diff(s.operand_ptr)[step]
        at = (group // made) * elements.operand_ptr[-1] + elements.operand_ptr[s.operand_ptr[step]] + elements.index[element]
        for j in range(int(operands.max(initial=0))):
            some = np.flatnonzero(operands > j)
            mine, taken = group[some], source[at[some] + j * s.count[step[some]]]
            new = root[taken]
            if j:
                odd = np.flatnonzero(chunk[taken] != chunk[mine])
                if len(odd):
                    i = odd[0]
                    raise ScheduleError(s, int(step[some[i]]), f"adds chunk {chunk[taken[i]]} to chunk {chunk[mine[i]]}")
                both = members[mine] & members[new]
                if not s.spec.idempotent and both.any():
                    i = int(np.flatnonzero(both.any(axis=1))[0])
                    raise ScheduleError(s, int(step[some[i]]), f"counts the contribution of {_ranks(both[i])} twice")
                tree[mine] = _mix(tree[mine] * np.uint64(0x9E3779B97F4A7C15) + (tree[new] ^ np.uint64(0x5851F42D4C957F2D)))
            else:
                tree[mine] = tree[new]
            members[mine] |= members[new]


def _ranks(bits: Words) -> str:
    """The ranks in a set, as text."""
    ranks = np.flatnonzero(np.unpackbits(bits.astype("<u8").view(np.uint8), bitorder="little")).tolist()
    shown = ", ".join(map(str, ranks[:8])) + (f", ... ({len(ranks)} in all)" if len(ranks) > 8 else "")
    return ("rank " if len(ranks) == 1 else "ranks ") + (shown or "none")


def _mix(x: Words) -> Words:
    """A bijection of 64-bit words that scatters them (splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _check_outputs(
    s: Schedule, places: Places, elements: Elements, final: Ints, leaf: int, root: Ints, members: Words, tree: Words
) -> bool:
    """Every output place is written and complete; returns whether copies agree bit for bit.

    That it holds the right chunk is known: stores are checked, and an aliased input is of the same block. So where nothing is
    reduced its contributor is right, too.
    """
    made = max(len(elements.step), 1)
    wanted = places.chunk[places.inputs :]
    ranks = np.repeat(np.arange(s.spec.ranks), np.diff(np.append(places.base[Buf.OUTPUT], places.inputs + places.outputs)))

    def refuse(segment: int, at: int, problem: str) -> None:
        value = int(final[segment, at])
        offset = at + places.inputs - int(places.base[Buf.OUTPUT, ranks[at]])
        step = int(elements.step[value % made]) if value >= 0 else None
        raise ScheduleError(s, step, f"at the end output[{offset}] of rank {ranks[at]} (chunk {wanted[at]}) {problem}")

    missing = np.argwhere(final == UNWRITTEN)
    if len(missing):
        refuse(int(missing[0, 0]), int(missing[0, 1]), "has never been written")
    value = np.where(final >= 0, final, leaf - 2 - final)
    if not s.spec.reduces:
        return True
    full = np.zeros(members.shape[1], dtype=np.uint64)
    everyone = np.arange(s.spec.ranks)
    np.bitwise_or.at(full, everyone // 64, np.uint64(1) << (everyone % 64).astype(np.uint64))
    lacking = full & ~members[root[value]]
    short = np.argwhere(lacking.any(axis=2))
    if len(short):
        segment, at = short[0].tolist()
        refuse(segment, at, f"lacks the contribution of {_ranks(lacking[segment, at])}")
    order = np.argsort(wanted, kind="stable")
    same_chunk = np.diff(wanted[order]) == 0
    sums = tree[root[value]][:, order]
    return bool((sums[:, 1:] == sums[:, :-1])[:, same_chunk].all()) or s.spec.idempotent
