"""Groups that also have a backend of torch's for another device, as in "cpu:topoccl,cuda:nccl"."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from topoccl.collectives.torch_backend.compat import not_compiled
from topoccl.collectives.torch_backend.patches import backend_for
from topoccl.collectives.torch_backend.process_group import TopocclGroup

# Methods whose first tensor, or the device in whose options, says which backend runs them.
_METHODS = (
    "allreduce", "allreduce_coalesced", "reduce", "broadcast", "allgather", "allgather_coalesced", "gather", "scatter", "reduce_scatter",
    "alltoall", "send", "recv", "recv_anysource", "barrier", "_start_coalescing", "_end_coalescing",
    "all_gather_single", "_allgather_base", "all_gather_single_coalesced", "allgather_into_tensor_coalesced",
    "reduce_scatter_single", "_reduce_scatter_base", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced",
    "all_to_all_single", "alltoall_base",
)  # fmt: skip


def with_devices(group: TopocclGroup, others: dict[str, str], options: Any) -> TopocclGroup:
    """``group``, with a backend for each device in ``others``, which gives their names; as it is when there are none."""
    if not others:
        return group
    group.__class__ = _routed(type(group))
    routed: Any = group
    routed.others = {}
    for device, name in others.items():
        other = routed.others[device] = backend_for(device, name, options)
        backend = other._get_backend(torch.device(device))
        group._register_backend(torch.device(device), torch._C._distributed_c10d.ProcessGroup.BackendType.CUSTOM, backend)
    return group


_classes: dict[type, type] = {}


def _routed(base: type[TopocclGroup]) -> Any:
    """A class of groups that hand calls for tensors of other devices to those devices' backends."""
    if base in _classes:
        return _classes[base]

    def route(name: str) -> Callable[..., Any]:
        ours = getattr(base, name)

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            other = self.others.get(_device(args) or _device(kwargs.values()))
            return ours(self, *args, **kwargs) if other is None else getattr(other, name)(*args, **kwargs)

        return method

    def device_types(self: Any) -> list[torch.device]:
        return [torch.device("cpu"), *map(torch.device, self.others)]

    def get_backend(self: Any, device: Any) -> Any:
        other = self.others.get(torch.device(device).type)
        return base._get_backend(self, device) if other is None else other._get_backend(device)

    def set_timeout(self: Any, timeout: timedelta) -> None:
        base.set_timeout(self, timeout)
        for device, other in self.others.items():
            backend = other._get_backend(torch.device(device))
            if hasattr(backend, "_set_default_timeout"):
                backend._set_default_timeout(timeout)

    def ending(name: str) -> Callable[..., None]:
        def method(self: Any) -> None:
            others, self.others = self.others, {}
            for other in others.values():
                getattr(other, name)()
            getattr(base, name)(self)

        return method

    names: dict[str, Any] = {name: route(name) for name in _METHODS if hasattr(base, name)}
    names.update(_device_types=property(device_types), _get_backend=get_backend, set_timeout=set_timeout)
    names.update(shutdown=ending("shutdown"), abort=ending("abort"))
    made = _classes[base] = not_compiled(type(f"{base.__name__}WithDevices", (base,), names))
    return made


def _device(arguments: Any) -> str | None:
    """The kind of device of the first tensor in nested lists, of the first device, or of the one in options."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return argument.device.type
        if isinstance(argument, torch.device):
            return argument.type
        if isinstance(argument, list | tuple):
            found = _device(argument)
            if found is not None:
                return found
        elif getattr(argument, "device", None) is not None:
            return torch.device(argument.device).type
    return None
