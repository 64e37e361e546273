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
_read: tuple[str, Forest] | None = None  # what at_hand has read, with its key, until it is asked for


def keep_in(store: Store | None) -> None:
    """From now on forests are looked for in ``store``, and put there; None forgets it."""
    global _store, _read
    _store, _read = store, None


def remembered(topology: Topology, collective: str, root: int | None, k: int, ways: str, make: Callable[[], Forest]) -> Forest:
    """What ``make`` returns, or what it returned for the same arguments before."""
    global _read
    if _store is None:
        return make()
    key = _key(topology, collective, root, k, ways)
    before, _read = _read, None
    found = before[1] if before is not None and before[0] == key else _recalled(key, topology.num_ranks)
    if found is None:
        found = make()
        _store.put(key, write(found))
    return found


def at_hand(topology: Topology, collective: str, root: int | None, k: int, ways: str) -> bool:
    """Whether the store has the forest for these arguments, which :func:`remembered`, asked next, does not read again."""
    global _read
    key = _key(topology, collective, root, k, ways)
    found = _recalled(key, topology.num_ranks)
    _read = None if found is None else (key, found)
    return found is not None


def _recalled(key: str, ranks: int) -> Forest | None:
    text = None if _store is None else _store.get(key)
    return None if text is None else read(text, ranks)


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
