"""The cost model: seconds from a schedule's own steps over the topology's routes, with contention.

Alpha (latencies and overheads), beta (links, shared max-min fairly) and gamma (memory) of one profile; never a formula per
algorithm, so what is predicted cannot drift from what is executed. :mod:`lowering` turns a schedule into flows on resources,
:mod:`events` simulates them, :mod:`wavefront` bounds and estimates them, :mod:`model` is the interface.
"""

from __future__ import annotations

from topoccl.algorithms.cost.model import CostModel, Mode, Prediction, block_bytes, choose_segments, predict

__all__ = ["CostModel", "Mode", "Prediction", "block_bytes", "choose_segments", "predict"]
