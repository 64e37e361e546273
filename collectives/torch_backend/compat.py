"""All that is private in torch's interface for process groups, or was renamed between its releases (2.4 to 2.13)."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import distributed_c10d
from torch.distributed.constants import default_pg_timeout
from torch.distributed.rendezvous import _rendezvous_handlers, register_rendezvous_handler

if TYPE_CHECKING:
    from torch.distributed import Store

_c10d: Any = import_module("torch._C._distributed_c10d")  # its types fit neither its overloads nor what it really calls
AllgatherOptions = _c10d.AllgatherOptions
AllreduceCoalescedOptions = _c10d.AllreduceCoalescedOptions
AllreduceOptions = _c10d.AllreduceOptions
AllToAllOptions = _c10d.AllToAllOptions
BarrierOptions = _c10d.BarrierOptions
BroadcastOptions = _c10d.BroadcastOptions
GatherOptions = _c10d.GatherOptions
ReduceOptions = _c10d.ReduceOptions
ReduceScatterOptions = _c10d.ReduceScatterOptions
ScatterOptions = _c10d.ScatterOptions
Work: Any = _c10d.Work

register_work: Callable[[torch.Tensor, Any], None] = _c10d._register_work

default_timeout: float = default_pg_timeout.total_seconds()  # which torch passes when the user says nothing


# Looked up when called: where topoccl was imported first, this module is loaded while torch still is (see autoload).
def profiling() -> bool:
    """Whether a profiler runs on this thread."""
    enabled: bool = torch._C._autograd._profiler_enabled()
    return enabled


def record_function(name: str, inputs: Sequence[Any] = (), keywords: dict[str, Any] | None = None) -> Any:
    """A context that the profiler shows under ``name``, with the shapes of ``inputs``."""
    return torch._C._profiler._RecordFunctionFast(name, list(inputs), keywords or {})


_Op = _c10d.ReduceOp.RedOpType
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


def not_compiled(kind: type) -> type:
    """Lets torch.compile leave a class's methods, and all they call, alone; costs nothing when they are called."""
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    for base in kind.__mro__:
        for member in vars(base).values() if base.__module__.startswith("topoccl.") else ():
            function = member.fget if isinstance(member, property) else member
            if isinstance(function, FunctionType):
                function._torchdynamo_disable = True  # type: ignore[attr-defined]
                eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return kind


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
    if isinstance(given, _c10d.ReduceOp | _Op):
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


class Group(_c10d.ProcessGroup):
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

    def _get_backend(self, device: Any) -> Any:
        """What runs the calls for tensors of ``device``: for those of the CPU the group itself, which torch asks things of a backend."""
        if torch.device(device).type == "cpu":
            return self
        return super()._get_backend(device)

    supports_splitting = supports_coalescing = supports_time_estimate = False

    @property
    def options(self) -> None:
        """What a backend of torch was made with; ours takes nothing here."""


def watch_store(store: Store) -> socket.socket | None:
    """A connection that ends when the store does, where it is one that rank 0's torch opened at an address known beforehand."""
    met_by = distributed_c10d._default_pg_init_method
    if met_by is None or not met_by.startswith(("env:", "tcp:")) or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    inner: Any = store
    while hasattr(inner, "underlying_store"):
        inner = inner.underlying_store
    try:
        return socket.create_connection((inner.host, inner.port), timeout=1.0)
    except (AttributeError, OSError):  # another kind of store, or one that has gone
        return None


def add_rendezvous(scheme: str, handler: Callable[..., Iterator[Any]], complete: Callable[[str], str]) -> None:
    """Makes ``init_method="SCHEME://"`` known, and lets ``env://`` go through ``complete``, which may return another address."""
    if scheme in _rendezvous_handlers:
        return
    register_rendezvous_handler(scheme, handler)
    from_environment = _rendezvous_handlers["env"]

    def env(url: str, **kwargs: Any) -> Iterator[Any]:
        other = complete(url)
        found: Iterator[Any] = (handler if other.startswith(f"{scheme}:") else from_environment)(other, **kwargs)
        return found

    _rendezvous_handlers["env"] = env
