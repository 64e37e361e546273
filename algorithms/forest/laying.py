"""Trees laid over ways: on each arc every tree takes one of its ways; one that needs several is cut into pieces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from topoccl.algorithms.forest.packing import Arborescence
from topoccl.algorithms.forest.ways import Arc, Way


def lay(trees: Sequence[Arborescence], rows: Mapping[Arc, Mapping[Way, int]], scale: Fraction) -> list[Arborescence]:
    """The trees cut into pieces that take one way on each arc; weights become whole numbers again, in proportion.

    Args:
        rows: the ways of each arc; times ``scale`` their amounts are in the unit of the weights. They are wide enough together.
    """
    users: dict[Arc, list[int]] = {}
    for at, tree in enumerate(trees):
        for head, tail in tree.parent.items():
            users.setdefault((tail, head), []).append(at)
    parts: list[dict[int, list[tuple[Fraction, Way]]]] = [{} for _ in trees]
    for arc, mine in users.items():
        left = {way: amount * scale for way, amount in rows[arc].items()}
        # Those that fit best first, so that few are cut; what is left of the others goes where most room is.
        for at in sorted(mine, key=lambda at: -trees[at].weight):
            wanted = Fraction(trees[at].weight)
            row = parts[at].setdefault(arc[1], [])
            while wanted:
                fitting = [way for way, room in left.items() if room >= wanted]
                way = min(fitting, key=left.__getitem__) if fitting else max(left, key=left.__getitem__)
                part = min(wanted, left[way])
                if not part:
                    raise ValueError(f"the ways of an arc are too narrow: {rows[arc]} for {[trees[at].weight for at in mine]}")
                row.append((part, way))
                left[way] -= part
                wanted -= part
    cut = [piece for tree, mine in zip(trees, parts, strict=True) for piece in _cut(tree, mine)]
    common = math.lcm(*(weight.denominator for weight, _, _ in cut))
    return [Arborescence(tree.root, int(weight * common), tree.parent, ways) for weight, tree, ways in cut]


def _cut(
    tree: Arborescence, parts: Mapping[int, Sequence[tuple[Fraction, Way]]]
) -> Iterator[tuple[Fraction, Arborescence, dict[int, Way]]]:
    """A tree cut wherever one of its arcs changes to another way."""
    at = dict.fromkeys(parts, 0)
    left = {head: row[0][0] for head, row in parts.items()}
    whole = Fraction(tree.weight)
    while whole:
        part = min(left.values(), default=whole)
        yield part, tree, {head: row[at[head]][1] for head, row in parts.items()}
        whole -= part
        for head, row in parts.items():
            left[head] -= part
            if not left[head] and whole:
                at[head] += 1
                left[head] = row[at[head]][0]
