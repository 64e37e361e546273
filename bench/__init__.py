"""Benchmarks in the manner of nccl-tests, the virtual cluster, and reports."""

from __future__ import annotations

if __name__ != "topoccl.bench":
    raise ImportError(f"import this package as topoccl.bench, not as {__name__!r}: a second copy would have other classes")
