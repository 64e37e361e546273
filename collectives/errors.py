"""Errors of the executing side. Each message names the subject, the reason and the values."""

from __future__ import annotations

import os


def one_line(error: BaseException) -> str:
    """What a command prints of an error: its message on one line; of a file that cannot be used its name and the reason."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    unsaid = "out of memory" if isinstance(error, MemoryError) else type(error).__name__
    return " ".join(str(error).split()) or unsaid


class TopocclError(RuntimeError):
    """Base of all errors raised while setting up or running collectives."""


class ConfigError(TopocclError, ValueError):
    """A variable, option or argument that cannot be used."""


class TransportError(TopocclError):
    """A peer could not be reached, died, or sent something else than agreed."""


class CollectiveTimeout(TopocclError, TimeoutError):
    """A call did not finish within its timeout; the message names the ranks that were waited for."""


class MismatchError(TopocclError):
    """Ranks of one group made calls that do not fit together."""
