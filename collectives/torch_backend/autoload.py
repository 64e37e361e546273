"""Makes ``torch.distributed`` know the name ``topoccl``, without importing anything that is not imported anyway.

Two ways lead here: the entry point ``torch.backends``, which ``import torch`` calls, and ``import topoccl``. The group itself,
and all it needs, is imported when the first group is made.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

NAME = "topoccl"
_TORCH = "torch.distributed.distributed_c10d"  # when this has been imported, a backend can be registered


def autoload() -> None:
    """The entry point. Whatever goes wrong here must not break ``import torch``."""
    try:
        attach()
    except Exception as error:
        with contextlib.suppress(RuntimeWarning):  # where warnings are errors
            warnings.warn(f"the torch.distributed backend {NAME} is not available: {error}", RuntimeWarning, stacklevel=2)


def attach() -> None:
    """Registers the backend now, or as soon as torch.distributed has been imported."""
    module = sys.modules.get(_TORCH)
    if module is None:
        if not any(isinstance(finder, _Watch) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Watch())
    elif hasattr(module, "init_process_group"):  # else it is just being imported, under the watch that an earlier call has set up
        _register()


def _register() -> None:
    from torch.distributed.distributed_c10d import Backend

    if NAME in Backend.backend_list:
        return
    from topoccl.collectives.torch_backend import patches
    from topoccl.collectives.torch_backend.compat import add_rendezvous

    Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    add_rendezvous("mpi", _over_mpi, _completed)
    patches.install()


def _create(options: Any, backend_options: Any = None) -> Any:
    from topoccl.collectives.torch_backend.creator import create

    return create(options)


def _over_mpi(url: str, **kwargs: Any) -> Iterator[Any]:
    from topoccl.collectives.torch_backend.rendezvous import over_mpi

    return over_mpi(url, **kwargs)


def _completed(url: str) -> str:
    from topoccl.collectives.torch_backend.rendezvous import completed

    return completed(url)


class _Watch:
    """A finder of modules that waits for torch.distributed to be imported, and registers the backend then."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != _TORCH:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader)  # type: ignore[assignment]
        return spec


class _Registering:
    """A loader that registers the backend when the module has been loaded."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        autoload()
