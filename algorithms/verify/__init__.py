"""Proofs that a schedule does what its collective means, on any transport and for any number of segments.

:func:`verify` is a symbolic execution in four parts, each of which refuses a schedule with the step that is wrong:

1. structure (``structure.py``): the columns are well formed and the k-th send of every stream meets the k-th receive;
2. deadlock (``order.py``): with ``fifo`` messages of room per stream, no steps wait for each other in a circle;
3. races (``memory.py``): any two accesses of one place, one of them a write, are ordered whatever the timing;
4. values (``values.py``): every sum is a union of disjoint contributions, and every output holds exactly what it must.

Contributions are counted, not merely collected: a fold whose operands share a rank's contribution is refused where it happens
(unless the collective is idempotent), so every value is a multiset in which nothing occurs twice.
"""

from __future__ import annotations

from topoccl.algorithms.verify.order import happens_before_order
from topoccl.algorithms.verify.proof import PROOF_LIMIT, Proof, proof_size, verify
from topoccl.algorithms.verify.structure import ScheduleError

__all__ = ["PROOF_LIMIT", "Proof", "ScheduleError", "happens_before_order", "proof_size", "verify"]
