"""Errors of the executing side. Each message names the subject, the reason and the values."""

from __future__ import annotations


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
