"""What to do: collective specs, schedules, their proofs, builders, costs and the choice among them.

Pure: no environment, no clock, no sockets, no torch.
"""

from __future__ import annotations

if __name__ != "topoccl.algorithms":
    raise ImportError(f"import this package as topoccl.algorithms, not as {__name__!r}: a second copy would have other classes")
