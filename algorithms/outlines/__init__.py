"""Algorithms in outline: what they send where, without their steps, for tens of thousands of ranks.

A schedule has a step for each message of each rank; at 16 384 ranks a ring has a thousand million of them. An outline keeps what repeats:
which ranks exchange how much at once, how often, and which of these stages overlap. Contention is the same as in the cost model (every
link of every route), but time is counted by rounds and stages, so it is an estimate where the cost model simulates.
"""

from topoccl.algorithms.outlines.rounds import Estimate, Outline, Rotation, Round, estimate
from topoccl.algorithms.outlines.shapes import OUTLINES, outline

__all__ = ["OUTLINES", "Estimate", "Outline", "Rotation", "Round", "estimate", "outline"]
