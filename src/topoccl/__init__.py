"""topoccl: a topology-aware collective communication library for PyTorch and NumPy.

The four sub-packages form one pipeline, imported in one direction only::

    collectives (doing it) -> algorithms (what to do) -> topology (what the fabric is)

``import topoccl`` is cheap: NumPy, torch, mpi4py and networkx are imported when something needs them. It makes the name
``topoccl`` known to ``torch.distributed``, also where torch is imported later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from topoccl.collectives.torch_backend.autoload import autoload as _autoload

if TYPE_CHECKING:
    from topoccl.collectives.communicator import Communicator as Communicator
    from topoccl.collectives.errors import CollectiveTimeout as CollectiveTimeout
    from topoccl.collectives.errors import ConfigError as ConfigError
    from topoccl.collectives.errors import MismatchError as MismatchError
    from topoccl.collectives.errors import TopocclError as TopocclError
    from topoccl.collectives.errors import TransportError as TransportError
    from topoccl.collectives.executor.pool import empty as empty
    from topoccl.collectives.pending import Pending as Pending
    from topoccl.collectives.setup import init as init

__version__ = "0.1.0"

_HOMES = {
    "init": "setup", "empty": "executor.pool", "Communicator": "communicator", "Pending": "pending", "TopocclError": "errors",
    "ConfigError": "errors",
    "TransportError": "errors", "CollectiveTimeout": "errors", "MismatchError": "errors",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'topoccl' has no attribute {name!r}; public names: {', '.join(_HOMES)}")
    from importlib import import_module

    value = getattr(import_module(f"topoccl.collectives.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]


_autoload()
