"""Forests: for any fabric, trees that move the data as fast as its links allow (ForestColl, with unequal roots for all_reduce).

``synthesis.py`` puts it together: switches are split off (``splitting.py``), weights are made small (``scaling.py``), trees are packed
(``packing.py``), and every message gets its rail (``trees.py``); results may be kept (``store.py``). Where messages may take any ways
(``free.py``), the ways behind split-off arcs are kept (``ways.py``), and trees are laid over them (``laying.py``).
"""

from __future__ import annotations

from topoccl.algorithms.forest.store import keep_in
from topoccl.algorithms.forest.synthesis import quick, refuses, synthesise
from topoccl.algorithms.forest.trees import Forest, Piece, Tree

__all__ = ["Forest", "Piece", "Tree", "keep_in", "quick", "refuses", "synthesise"]
