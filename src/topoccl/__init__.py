"""topoccl: a topology-aware collective communication library for PyTorch and NumPy.

The four sub-packages form one pipeline, imported in one direction only::

    collectives (doing it) -> algorithms (what to do) -> topology (what the fabric is)

``import topoccl`` is cheap: torch, mpi4py and networkx are imported when something needs them.
"""

from __future__ import annotations

__version__ = "0.1.0"
