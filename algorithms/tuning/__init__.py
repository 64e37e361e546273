"""Measurements that take the place of predictions: ``TOPOCCL_TUNE_FILE``, which ``topoccl tune`` writes.

:mod:`measured` says what measurements tell of a call, :mod:`files` reads and writes them, :mod:`fit` fits the constants of the cost
model to them, :mod:`nccl` translates from and to the tables of NCCL's tuner plugin.
"""

from __future__ import annotations

from topoccl.algorithms.tuning.files import MAX_SEGMENTS, dump_tuning, load_tuning, parse_tuning
from topoccl.algorithms.tuning.measured import GAP, REACH, Fitted, Measured, Measurement, Range, Tuning, TuningError, fabric_digest, merge

__all__ = [
    "GAP", "MAX_SEGMENTS", "REACH", "Fitted", "Measured", "Measurement", "Range", "Tuning", "TuningError", "dump_tuning", "fabric_digest",
    "load_tuning", "merge", "parse_tuning",
]  # fmt: skip
