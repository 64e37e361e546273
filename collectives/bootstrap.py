"""From processes that someone started to ranks that can talk: who am I, over what do we talk, and the first words.

The first words are small objects sent point-to-point; no collective of MPI or Gloo is used.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from topoccl.collectives.errors import CollectiveTimeout, ConfigError, MismatchError, TopocclError, TransportError
from topoccl.collectives.transports.base import TAG_BITS, Bytes, Request, Transport
from topoccl.topology.graph import TopologyError

if TYPE_CHECKING:
    from torch.distributed import Store

    from topoccl.collectives.config import InterfaceFilter

TAG = (1 << TAG_BITS) - 1  # of all messages of this module
_LENGTH = 8  # bytes of the length that goes ahead of every object


def send_object(transport: Transport, peers: Sequence[int], data: bytes, tag: int = TAG) -> list[Request]:
    """Begins to send bytes whose number only the sender knows."""
    parts = (np.frombuffer(len(data).to_bytes(_LENGTH, "little"), np.uint8), np.frombuffer(data, np.uint8))
    return [transport.isend(peer, tag, part) for peer in peers for part in parts]


def receive_objects(
    transport: Transport, peers: Sequence[int], timeout: float, tag: int = TAG, check: Callable[[], None] | None = None
) -> list[Bytes]:
    """What :func:`send_object` has sent, from each of ``peers``; for ``check`` see :meth:`Transport.wait`."""
    lengths = [np.empty(_LENGTH, np.uint8) for _ in peers]
    transport.wait([transport.irecv(peer, tag, length) for peer, length in zip(peers, lengths, strict=True)], timeout, check)
    objects = [np.empty(int.from_bytes(length.tobytes(), "little"), np.uint8) for length in lengths]
    transport.wait([transport.irecv(peer, tag, data) for peer, data in zip(peers, objects, strict=True)], timeout, check)
    return objects


def agree(transport: Transport, obj: Any, timeout: float, check: Callable[[], None] | None = None) -> Any:
    """What rank 0 passes as ``obj`` (a picklable object), on every rank. Binomial tree; every rank must call it.

    ``check`` is called now and then while this waits, and raises to give up.

    Raises:
        CollectiveTimeout: naming the ranks waited for.
        TransportError: a peer died.
    """
    rank, size = transport.rank, transport.size
    if rank == 0:
        data = pickle.dumps(obj, protocol=5)
        reach = 1 << max(size - 1, 0).bit_length()
    else:
        reach = rank & -rank
        data = receive_objects(transport, [rank - reach], timeout, TAG, check)[0].tobytes()
    children = []
    while reach > 1:
        reach >>= 1
        if rank + reach < size:
            children.append(rank + reach)
    transport.wait(send_object(transport, children, data), timeout, check)
    return obj if rank == 0 else pickle.loads(data)


def exchange(transport: Transport, obj: Any, timeout: float) -> list[Any]:
    """The picklable objects of all ranks, by rank: gathered at rank 0, then spread as :func:`agree` does. Every rank must call it.

    Raises: as :func:`agree`.
    """
    if transport.rank:
        transport.wait(send_object(transport, [0], pickle.dumps(obj, protocol=5)), timeout)
        return list(agree(transport, None, timeout))
    others = receive_objects(transport, range(1, transport.size), timeout)
    return list(agree(transport, [obj, *(pickle.loads(data.data) for data in others)], timeout))


@dataclass(frozen=True)
class _Failure:
    kind: str
    text: str


KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (ConfigError, TransportError, CollectiveTimeout, MismatchError, TopocclError, TopologyError)
}


def exchange_or_raise(transport: Transport, obj: Any, timeout: float) -> list[Any]:
    """As :func:`exchange`, but a rank may contribute an exception, which then is raised on every rank, naming the rank.

    The kind of error is kept where it is one of topoccl's; any other becomes a :class:`TopocclError`.
    """
    if isinstance(obj, BaseException):
        kind = type(obj).__name__
        obj = _Failure(kind, str(obj)) if kind in KINDS else _Failure(TopocclError.__name__, f"{kind}: {obj}")
    objects = exchange(transport, obj, timeout)
    failed = {rank: item for rank, item in enumerate(objects) if isinstance(item, _Failure)}
    if failed:
        first = next(iter(failed.values()))
        same = [rank for rank, failure in failed.items() if failure == first]
        who = "every rank" if len(same) == transport.size else f"rank {', '.join(map(str, same))}"
        rest = len(failed) - len(same)
        raise KINDS[first.kind](f"{who}: {first.text}" + (f" (and other errors on {rest} other ranks)" if rest else ""))
    return objects


@dataclass(frozen=True)
class LaunchInfo:
    """How this process was started.

    Attributes:
        kind: ``mpirun`` for any MPI launcher (mpirun, mpiexec, srun), ``torchrun`` for RANK and WORLD_SIZE in the environment,
            ``single`` for none.
        rank, size: of the job.
        local_rank, local_size: among the ranks that the launcher started on this host; -1 when it does not say.
        said_by: the variable that told the rank; empty for ``single``.
        master: address and port of the store at rank 0, when the environment names them.
        agent_store: the store at ``master`` is kept by torchrun's agent, so rank 0 must not open one.
        attempt: how often torchrun has restarted the job.
    """

    kind: Literal["mpirun", "torchrun", "single"]
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    said_by: str = ""
    master: tuple[str, int] | None = None
    agent_store: bool = False
    attempt: int = 0


# rank, size, local rank, local size, of each launcher; the size of a job of srun's has an older name, too.
_MPI_LAUNCHERS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMIX_RANK", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)


def launch_environment(env: Mapping[str, str]) -> LaunchInfo:
    """Reads from the environment how this process was started.

    Workers of torchrun count as such even when torchrun itself was started by mpirun; other processes with an MPI launcher's
    variables count as its ranks even when RANK is set, too.

    Raises:
        ConfigError: variables that are incomplete or not numbers, naming them.
    """
    master = _master(env)
    if "TORCHELASTIC_RUN_ID" not in env:
        for rank, sizes, local_rank, local_size in _MPI_LAUNCHERS:
            size = next((name for name in sizes if name in env), None)
            if rank in env and (size is not None or rank != "PMIX_RANK"):
                return _launched(env, "mpirun", (rank, size or sizes[0], local_rank, local_size), master)
    if "RANK" in env or "WORLD_SIZE" in env:
        if master is None:
            raise ConfigError("RANK or WORLD_SIZE is set, but MASTER_ADDR and MASTER_PORT are not: where is rank 0?")
        return _launched(env, "torchrun", ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), master)
    return LaunchInfo("single")


def _launched(
    env: Mapping[str, str], kind: Literal["mpirun", "torchrun"], names: tuple[str, str, str, str], master: tuple[str, int] | None
) -> LaunchInfo:
    rank, size, local_rank, local_size = names
    info = LaunchInfo(
        kind,
        rank=_number(env, rank),
        size=_number(env, size),
        local_rank=_number(env, local_rank, -1),
        local_size=_number(env, local_size, -1),
        said_by=rank,
        master=master,
        agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True",
        attempt=_number(env, "TORCHELASTIC_RESTART_COUNT", 0),
    )
    if not 0 <= info.rank < info.size:
        raise ConfigError(f"{rank}={info.rank} is not in 0 to {size}-1 = {info.size - 1}")
    return info


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None:
        if default is None:
            raise ConfigError(f"{name} is not set, though its companions are")
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a whole number") from None


def _master(env: Mapping[str, str]) -> tuple[str, int] | None:
    if "MASTER_ADDR" not in env or "MASTER_PORT" not in env:
        return None
    return env["MASTER_ADDR"], _number(env, "MASTER_PORT")


def choose_transport(config_transport: str, info: LaunchInfo) -> str:
    """The transport on which ranks meet: ``mpi``, ``gloo`` or ``memory``.

    ``auto`` and ``tcp`` take mpi under an MPI launcher, gloo under torchrun; ``auto`` takes memory for a process on its own.

    Raises:
        ConfigError: (on every rank alike) the transport cannot work in a job that was started this way.
    """
    known = {"mpirun": ("mpi", "gloo"), "torchrun": ("gloo",), "single": ("memory",)}[info.kind]
    if config_transport == "auto" or (config_transport == "tcp" and info.kind != "single"):
        return known[0]
    if config_transport in known:
        return config_transport
    if config_transport not in ("tcp", "mpi", "gloo", "memory"):
        raise ConfigError(f"transport {config_transport!r} is unknown; known are auto, tcp, mpi, gloo, memory")
    if config_transport == "mpi" and info.kind == "torchrun":
        why = f"under torchrun and the like ({info.said_by} is set) each rank is an MPI job of its own; start the program with mpirun"
    elif config_transport == "memory":
        why = f"it joins threads of one process, and this job has {info.size} processes ({info.said_by} is set)"
    else:
        why = "no launcher's variables are set (OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK, RANK); start the program with " + (
            "mpirun" if config_transport == "mpi" else "mpirun or torchrun"
        )
    raise ConfigError(f"transport {config_transport}: {why}. Usable here: auto, {', '.join(known)}")


def open_transport(
    name: str,
    info: LaunchInfo,
    timeout: float,
    interfaces: InterfaceFilter | None = None,
    store: Store | None = None,
    problem: TopocclError | None = None,
) -> Transport:
    """Opens the transport ``name`` among all ranks of the job; every rank must call it.

    Args:
        name: what :func:`choose_transport` said.
        info: rank and size; a torch backend passes those of its group.
        timeout: seconds, for the set-up and for Gloo's waits.
        interfaces: which network interfaces Gloo may use.
        store: where Gloo's ranks meet, under keys of its own; None opens one: at MASTER_ADDR if that is set, and else (under
            mpirun) at rank 0, whose address then goes out over MPI point-to-point.
        problem: why this rank cannot go on; where a store is used it is raised on every rank.

    Raises:
        ConfigError: a library is missing or no address can be used, naming it.
        TransportError, CollectiveTimeout: peers cannot be reached.
    """
    if name == "memory":
        from topoccl.collectives.transports.memory import MemoryHub

        return MemoryHub(1).transport(0)
    if name == "mpi":
        from topoccl.collectives.transports.mpi import mpi_transport

        return mpi_transport(info.size, timeout=timeout)
    if name != "gloo":
        raise ConfigError(f"transport {name!r} is unknown; known are mpi, gloo, memory")
    from topoccl.collectives.transports import rendezvous
    from topoccl.collectives.transports.gloo import import_torch_distributed

    dist = import_torch_distributed()
    master = info.master
    if store is None and master is not None:
        store = rendezvous.open_store(dist, master, info.size, timeout, serve=info.rank == 0 and not info.agent_store, attempt=info.attempt)
    elif store is None:
        store, master = store_over_mpi(info, timeout, interfaces)
    return open_gloo(store, info, timeout, interfaces, master, problem)


def open_gloo(
    store: Store,
    info: LaunchInfo,
    timeout: float,
    interfaces: InterfaceFilter | None,
    master: tuple[str, int] | None,
    problem: TopocclError | None = None,
) -> Transport:
    """Gloo among ranks that meet in ``store``; the rest as :func:`open_transport`."""
    from topoccl.collectives.transports.gloo import gloo_transport
    from topoccl.collectives.transports.rendezvous import choose_address

    address = choose_address(store, info.rank, info.size, interfaces, master, timeout, problem)
    transport = gloo_transport(store, info.rank, info.size, timeout, address)
    try:
        # The store may end with rank 0: nobody goes on before all ranks are done with it.
        exchange(transport, os.getpid(), timeout)
    except BaseException:
        transport.close()
        raise
    return transport


def store_over_mpi(
    info: LaunchInfo, timeout: float, interfaces: InterfaceFilter | None, problem: TopocclError | None = None
) -> tuple[Store, tuple[str, int] | None]:
    """As :func:`share_store`, over an MPI transport of its own. ``problem`` is raised on every rank."""
    from topoccl.collectives.transports.mpi import mpi_transport

    mpi = mpi_transport(info.size, timeout=timeout, for_transport="gloo")
    try:
        exchange_or_raise(mpi, problem, timeout)
        return share_store(mpi, info.size, timeout, interfaces)
    finally:
        mpi.close()


def share_store(
    transport: Transport, size: int, timeout: float, interfaces: InterfaceFilter | None
) -> tuple[Store, tuple[str, int] | None]:
    """A store at rank 0, whose address goes out over ``transport``, and by which address it was reached (None at rank 0)."""
    from topoccl.collectives.transports import rendezvous
    from topoccl.collectives.transports.gloo import import_torch_distributed

    store: Store | None = None
    master: tuple[str, int] | None = None
    offer: Any = None
    problem: TopocclError | None = None
    try:
        dist = import_torch_distributed()
        if transport.rank == 0:
            store, offer = rendezvous.serve_store(dist, size, timeout, interfaces)
    except TopocclError as exc:
        offer = exc
    offer = exchange_or_raise(transport, offer, timeout)[0]
    try:
        if store is None:
            store, master = rendezvous.join_store(dist, offer, size, timeout)
    except TopocclError as exc:
        problem = exc
    exchange_or_raise(transport, problem, timeout)
    assert store is not None
    return store, master
