"""All that is private in torch's interface for process groups, or was renamed between its releases (2.4 to 2.13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ProcessGroup,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Store,
    Work,
)
from torch.distributed import rendezvous
from torch.distributed.constants import default_pg_timeout

__all__ = [
    "AllToAllOptions",
    "AllgatherOptions",
    "AllreduceCoalescedOptions",
    "AllreduceOptions",
    "BarrierOptions",
    "BroadcastOptions",
    "GatherOptions",
    "Group",
    "ReduceOptions",
    "ReduceScatterOptions",
    "ScatterOptions",
    "Work",
    "add_rendezvous",
    "both_names",
    "default_timeout",
    "options",
    "reduction",
    "seconds",
]

default_timeout: float = default_pg_timeout.total_seconds()  # which torch passes when the user says nothing

_Op = ReduceOp.RedOpType
_SUM = (_Op.SUM, ("sum", None))
_PREMUL = int(_Op.PREMUL_SUM.value)
_OPS: dict[int, str] = {
    int(getattr(_Op, name).value): name.lower() for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
}

# Names of methods: as torch 2.13 calls them, and before.
_OLD_NAMES = {
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}


def both_names(group: type) -> type:
    """Gives methods of a group their older names as well."""
    for new, old in _OLD_NAMES.items():
        setattr(group, old, getattr(group, new))
    return group


def reduction(op: Any) -> tuple[str, float | None]:
    """The name of a ``ReduceOp``, and the factor of a PREMUL_SUM."""
    if op == _SUM[0]:  # looking it up costs several times as much
        return _SUM[1]
    kind = op.op.value
    return _OPS[kind], float(op.factor) if kind == _PREMUL else None


def seconds(timeout: timedelta | None) -> float | None:
    """A timeout of torch's; None where nothing was said (None, zero or a negative one)."""
    if timeout is None or timeout.days < 0:
        return None
    return timeout.total_seconds() or None


def options(kind: Any, given: Any, *, root: int | None = None, op: Any = None, timeout: timedelta | None = None) -> Any:
    """The options of a call: those given, or new ones for the forms of the methods that spell them out."""
    if isinstance(given, kind):
        return given
    made = kind()
    if isinstance(given, ReduceOp | _Op):
        op = given
    elif isinstance(given, int):
        root = given
    elif isinstance(given, timedelta):
        timeout = given
    elif given is not None:
        raise TypeError(f"expected {kind.__name__}, got {type(given).__name__}")
    if root is not None:
        made.rootRank = root
    if op is not None:
        made.reduceOp = op
    if timeout is not None:
        made.timeout = timeout
    return made


class Group(ProcessGroup):  # type: ignore[misc]
    """What torch expects of any group, collectives aside.

    There is no ``new_group`` here: torch would call it and ignore the backend that was asked for.
    """

    def __init__(self, rank: int, size: int, name: str, store: Store) -> None:
        super().__init__(rank, size)
        self._name = name
        self._desc = "undefined"
        self._store: Store | None = store

    def getBackendName(self) -> str:
        return "topoccl"

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def get_group_store(self) -> Store | None:
        return self._store


def add_rendezvous(scheme: str, handler: Callable[..., Iterator[Any]], complete: Callable[[str], str]) -> None:
    """Makes ``init_method="SCHEME://"`` known, and lets ``env://`` go through ``complete``, which may return another address."""
    handlers = rendezvous._rendezvous_handlers
    if scheme in handlers:
        return
    rendezvous.register_rendezvous_handler(scheme, handler)
    from_environment = handlers["env"]

    def env(url: str, **kwargs: Any) -> Iterator[Any]:
        other = complete(url)
        found: Iterator[Any] = (handler if other.startswith(f"{scheme}:") else from_environment)(other, **kwargs)
        return found

    handlers["env"] = env


def read_all(store: Store, keys: Sequence[str]) -> list[bytes]:
    """The values of keys that are set."""
    return list(store.multi_get(keys)) if store.has_extended_api() else [store.get(key) for key in keys]
