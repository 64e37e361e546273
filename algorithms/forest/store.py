"""Forests as text, and whatever keeps them between runs: synthesis may take seconds, and its result depends on the topology alone.

This package touches no files. A program that has a place for them says so once (:func:`keep_in`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, Protocol

from topoccl.algorithms.forest.trees import Forest, Piece, Tree
from topoccl.topology.graph import Topology

VERSION = 4
"""Changes whenever synthesis may give another result for the same arguments."""


class Store(Protocol):
    """Texts by key. It may forget anything at any time, and must not raise."""

    def get(self, key: str) -> str | None: ...

    def put(self, key: str, text: str) -> None: ...


_store: Store | None = None


def keep_in(store: Store | None) -> None:
    """From now on forests are looked for in ``store``, and put there; None forgets it."""
    global _store
    _store = store


def remembered(topology: Topology, collective: str, root: int | None, k: int, ways: str, make: Callable[[], Forest]) -> Forest:
    """What ``make`` returns, or what it returned for the same arguments before."""
    if _store is None:
        return make()
    found = recalled(topology, collective, root, k, ways)
    if found is None:
        found = make()
        _store.put(_key(topology, collective, root, k, ways), write(found))
    return found


def recalled(topology: Topology, collective: str, root: int | None, k: int, ways: str) -> Forest | None:
    """The forest that the store has for these arguments."""
    text = None if _store is None else _store.get(_key(topology, collective, root, k, ways))
    return None if text is None else read(text, topology.num_ranks)


def _key(topology: Topology, collective: str, root: int | None, k: int, ways: str) -> str:
    return hashlib.sha256(repr((VERSION, topology.digest, collective, root, k, ways)).encode()).hexdigest()[:40]


def write(forest: Forest) -> str:
    """One line of JSON with its checksum before it."""
    pieces = [[piece.block, piece.weight, _rows(piece.up), _rows(piece.down)] for piece in forest.pieces]
    body = json.dumps(
        {"level": forest.level, "seconds_per_byte": forest.seconds_per_byte, "share": forest.share, "pieces": pieces}, separators=(",", ":")
    )
    return f"{_sum(body)} {body}\n"


def read(text: str, ranks: int) -> Forest | None:
    """The forest that a text of :func:`write` holds, or None if it is damaged or for another number of ranks."""
    checksum, _, body = text.rstrip("\n").partition(" ")
    if checksum != _sum(body):
        return None
    data = json.loads(body)
    pieces = tuple(Piece(block, weight, _tree(up), _tree(down)) for block, weight, up, down in data["pieces"])
    if any(tree is not None and len(tree.parent) != ranks for piece in pieces for tree in (piece.up, piece.down)):
        return None
    return Forest(pieces, data["seconds_per_byte"], data["share"], data["level"])


def _sum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _rows(tree: Tree | None) -> list[Any] | None:
    return None if tree is None else [tree.root, tree.parent, tree.rail, tree.ways]


def _tree(rows: list[Any] | None) -> Tree | None:
    return None if rows is None else Tree(rows[0], tuple(rows[1]), tuple(rows[2]), tuple(map(tuple, rows[3])))
