"""Functions of torch that ask for backends by name, taught to know ours. Each hands every other group on to torch's own."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
from torch.distributed import distributed_c10d

from topoccl.collectives.torch_backend.compat import AllgatherOptions, Group, register_work

_module: Any = distributed_c10d
_MARK = "__wrapped_by_topoccl__"
_NAME = "topoccl"

# The backends of other devices that the group which is being made shall have, by device: {"cuda": "nccl"}.
_others: ContextVar[dict[str, str]] = ContextVar("_others")


def install() -> None:
    """Replaces functions of ``torch.distributed``; calling it again changes nothing."""
    for replacement in (monitored_barrier, split_group, _set_pg_timeout, _new_process_group_helper, _coalescing_manager):
        _replace(replacement)


_library: list[Any] = []  # keeps kernels registered


def install_hooks() -> None:
    """What needs all of torch to have been imported: a method of DistributedDataParallel, and a kernel that reaches no group in Python."""
    if not _library:
        library = torch.library.Library("_c10d_functional", "IMPL")
        library.impl("all_gather_into_tensor_out", _all_gather_into_tensor_out, "CPU")
        _library.append(library)
    model: Any = import_module("torch.nn.parallel.distributed").DistributedDataParallel
    if not hasattr(model._register_builtin_comm_hook, _MARK):
        model._register_builtin_comm_hook = _wrapped(_register_builtin_comm_hook, model._register_builtin_comm_hook)


def _wrapped(replacement: Callable[..., Any], of_torch: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(of_torch)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return replacement(of_torch, *args, **kwargs)

    setattr(wrapper, _MARK, True)
    return wrapper


def _replace(replacement: Callable[..., Any]) -> None:
    name = replacement.__name__
    of_torch = getattr(_module, name, None)
    if of_torch is None or hasattr(of_torch, _MARK):
        return
    wrapper = _wrapped(replacement, of_torch)
    setattr(_module, name, wrapper)
    package: Any = sys.modules["torch.distributed"]
    if hasattr(package, name):  # else it is still being imported, and will take the new one
        setattr(package, name, wrapper)


def monitored_barrier(of_torch: Any, group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
    """Torch's refuses all backends but Gloo."""
    ours = _module.GroupMember.WORLD if group is None else group
    if not isinstance(ours, Group):
        return of_torch(group, timeout, wait_all_ranks)
    if isinstance(timeout, int | float):
        timeout = timedelta(seconds=timeout)
    monitored: Any = ours
    return monitored.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)


def _set_pg_timeout(of_torch: Any, timeout: timedelta, group: Any = None) -> Any:
    """Torch's warns about all backends but NCCL and Gloo, and does nothing."""
    ours = _module._get_default_group() if group is None else group
    if not isinstance(ours, Group):
        return of_torch(timeout, group)
    timed: Any = ours
    return timed.set_timeout(timeout)


def split_group(
    of_torch: Any, parent_pg: Any = None, split_ranks: Any = None, timeout: timedelta | None = None, pg_options: Any = None,
    group_desc: str | None = None, backend: Any = None,
) -> Any:  # fmt: skip
    """Torch's asks for an accelerator. Like there, ranks count within the parent, and those in no part get None."""
    parent: Any = _module._get_default_group() if parent_pg is None else parent_pg
    if not isinstance(parent, Group):
        return of_torch(parent_pg, split_ranks, timeout, pg_options, group_desc, backend)
    splits = [sorted(ranks) for ranks in split_ranks or ()]
    if not splits:
        raise ValueError("split_ranks cannot be None or empty")
    seen: set[int] = set()
    for ranks in splits:
        if not ranks:
            raise ValueError("the split group cannot be empty")
        if len(set(ranks)) < len(ranks) or seen & set(ranks):
            raise ValueError(f"split_ranks {splits}: a rank is named twice")
        if ranks[0] < 0 or ranks[-1] >= parent.size():
            raise ValueError(f"split_ranks {splits}: the parent has ranks 0 to {parent.size() - 1}")
        seen |= set(ranks)
    # Every rank of the parent counts this split, so that all know its name, whatever other groups they have.
    number = parent.__dict__["splits"] = parent.__dict__.get("splits", 0) + 1
    at = next((i for i, ranks in enumerate(splits) if parent.rank() in ranks), None)
    if at is None:
        return None
    of_world = _module.get_process_group_ranks(parent)
    members = [of_world[rank] for rank in splits[at]]
    _, store = _module._world.pg_map[_module._get_default_group()]
    names = _module.Backend(backend or _module._world.pg_map[parent][0])
    group, _ = _module._new_process_group_helper(
        len(members), splits[at].index(parent.rank()), members, names, store,
        _module.GroupName(f"{parent.group_name}:split:{number}:{at}"), timeout=timeout or _module.default_pg_timeout,
        group_desc=group_desc or f"{parent.group_desc}:split:{number}",
    )  # fmt: skip
    _module._world.pg_group_ranks[group] = {rank: at for at, rank in enumerate(members)}
    return group


@contextmanager
def _coalescing_manager(of_torch: Any, group: Any = None, device: Any = None, async_ops: bool = False) -> Iterator[Any]:
    """After an error in its body torch's goes on collecting calls, which then are never made."""
    ours: Any = group or _module._get_default_group()
    try:
        with of_torch(group, device, async_ops) as manager:
            yield manager
    except BaseException:
        if isinstance(ours, Group):
            _module._world.pg_coalesce_state.pop(ours, None)
            ours._end_coalescing(device)
        raise


def _register_builtin_comm_hook(of_torch: Any, self: Any, comm_hook_type: Any) -> None:
    """The C++ hooks want futures that only C++ can make; those in Python do the same."""
    if not isinstance(self.process_group, Group):
        return of_torch(self, comm_hook_type)
    hooks: Any = import_module("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
    found = {"ALLREDUCE": hooks.allreduce_hook, "FP16_COMPRESS": hooks.fp16_compress_hook}[comm_hook_type.name]
    self.register_comm_hook(self.process_group, found)
    self.logger._set_comm_hook_name(str(comm_hook_type))


def _new_process_group_helper(
    of_torch: Any, group_size: int, group_rank: int, global_ranks_in_group: Any, backend: Any, *args: Any, **kwargs: Any
) -> Any:
    """Torch's lets a group that is written in Python replace what was asked for for other devices: "cpu:topoccl,cuda:nccl"."""
    asked = _module.BackendConfig(_module.Backend(backend)).get_device_backend_map()
    others = {device: name for device, name in asked.items() if name != _NAME}
    if len(others) == len(asked) or not others:
        return of_torch(group_size, group_rank, global_ranks_in_group, backend, *args, **kwargs)
    ours_first = ",".join(f"{device}:{name}" for device, name in sorted(asked.items(), key=lambda item: item[1] != _NAME))
    token = _others.set(others)
    try:
        return of_torch(group_size, group_rank, global_ranks_in_group, ours_first, *args, **kwargs)
    finally:
        _others.reset(token)


def _all_gather_into_tensor_out(input: torch.Tensor, group_size: int, group_name: str, *, out: torch.Tensor) -> torch.Tensor:
    """What inductor makes of several all_gathers. Torch's kernel asks the C++ side of a group for its backend."""
    group = _module._resolve_process_group(group_name)
    options = AllgatherOptions()
    options.asyncOp = True
    register_work(out, group._allgather_base(out, input, options))
    return out


@contextmanager
def other_devices() -> Iterator[dict[str, str]]:
    """The backends of other devices that the group which is being made shall have; groups made inside have none."""
    others = _others.get({})
    token = _others.set({})
    try:
        yield others
    finally:
        _others.reset(token)


def backend_for(device: str, name: str, options: Any) -> Any:
    """A group of torch's own among the same ranks with backend ``name`` for ``device``; torch's lists of groups do not know it."""
    world = _module._world
    of_torch = _module._new_process_group_helper
    store = options.store
    group_name = _module.GroupName(f"{options.group_id}:{device}")
    group, _ = of_torch(
        options.group_size, options.group_rank, list(options.global_ranks_in_group), _module.Backend(f"{device}:{name}"), store,
        group_name, timeout=options.timeout,
    )  # fmt: skip
    for known in (world.pg_map, world.pg_names, world.pg_backend_config):
        del known[group]
    tag = world.pg_to_tag.pop(group)
    for named in (tag, ""):
        if group in world.tags_to_pg.get(named, []):
            world.tags_to_pg[named].remove(group)
    _module._unregister_process_group(group_name)
    return group
