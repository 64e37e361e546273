"""Doing it: configuration, transports, the executor, the communicator, the torch backend and the command line."""

from __future__ import annotations

if __name__ != "topoccl.collectives":
    raise ImportError(f"import this package as topoccl.collectives, not as {__name__!r}: a second copy would have other classes")
