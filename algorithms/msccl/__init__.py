"""MSCCL XML: published schedules become ours, ours become MSCCL's.

``docs/msccl.md`` has the mapping, the attributes that topoccl adds and what became of the published files it was tried on.
"""

from __future__ import annotations

from topoccl.algorithms.msccl.document import MAX_BYTES, MscclError
from topoccl.algorithms.msccl.read import read_msccl
from topoccl.algorithms.msccl.write import write_msccl

__all__ = ["MAX_BYTES", "MscclError", "read_msccl", "write_msccl"]
