"""How ranks find each other: ``mpi://``, ``env://`` under mpirun, and what the ranks of a group tell each other in its store."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import torch.distributed as dist

from topoccl.collectives.bootstrap import KINDS, LaunchInfo, launch_environment, store_over_mpi
from topoccl.collectives.config import Config
from topoccl.collectives.errors import CollectiveTimeout, ConfigError, TopocclError, TransportError
from topoccl.collectives.torch_backend.compat import default_timeout
from topoccl.collectives.transports.rendezvous import wait_until_all_have_heard

if TYPE_CHECKING:
    from torch.distributed import Store


def over_mpi(url: str, timeout: timedelta | None = None, **kwargs: Any) -> Iterator[tuple[Store, int, int]]:
    """The handler of ``mpi://``: rank 0 opens a store on a free port, and its address goes out over MPI."""
    info = launch_environment(os.environ)
    if info.kind != "mpirun":
        raise ConfigError(
            f"{url}: this process was not started by mpirun (none of OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK is set); use env:// or tcp://"
        )
    asked = dict(parse_qsl(urlsplit(url).query))
    for name, value in (("rank", info.rank), ("world_size", info.size)):
        if int(asked.get(name, value)) != value:
            raise ConfigError(f"{name}={asked[name]} was given to init_process_group, but mpirun says {value}")
    config, problem = Config(), None
    try:
        config = Config.from_environment(os.environ)
    except TopocclError as error:  # raised on every rank
        problem = error
    limit = default_timeout if timeout is None else timeout.total_seconds()
    store, _ = store_over_mpi(info, limit, config.socket_ifname, problem)
    yield store, info.rank, info.size
    raise RuntimeError("cannot meet again through mpi://")


def completed(url: str) -> str:
    """An ``env://`` address whose variables are missing under mpirun, completed from mpirun's; any other address as it is."""
    asked = dict(parse_qsl(urlsplit(url).query))
    env = os.environ
    master = bool(env.get("MASTER_ADDR") and env.get("MASTER_PORT"))
    if master and ("rank" in asked or env.get("RANK")) and ("world_size" in asked or env.get("WORLD_SIZE")):
        return url
    try:
        info = launch_environment(env)
    except ConfigError:
        return url  # env:// says better what is missing
    if info.kind != "mpirun":
        return url
    query = urlencode({"rank": info.rank, "world_size": info.size, **asked})
    return f"{'env' if master else 'mpi'}://?{query}"


class Meeting:
    """The ranks of a group at its store, before they have a transport.

    Keys carry the group's generation, since a store may outlive a group whose name another one then gets.

    Args:
        store: the group's.
        rank, size: of the group.
        timeout: seconds, for all that is heard here.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: float) -> None:
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.given = store
        self._end = time.monotonic() + timeout
        generation = (store.add("topoccl/arrivals", 1) - 1) // size
        self.store = dist.PrefixStore(f"topoccl/{generation}", store)

    def tell(self, key: str, make: Callable[[], Any]) -> None:
        """Sets ``key`` to what ``make`` returns (anything JSON can hold), or to the error it raises, for whoever hears it."""
        try:
            told = {"value": make()}
        except TopocclError as error:
            told = {"kind": type(error).__name__, "text": str(error)}
        self.store.set(key, json.dumps(told))

    def settle(self, say: Callable[[], Any], decide: Callable[[list[Any]], Any]) -> Any:
        """What rank 0 decides from what all ranks say; every rank calls this, once. An error of one rank is raised on all.

        Raises: as :meth:`hear`.
        """
        self.tell(f"said/{self.rank}", say)
        if self.rank == 0:
            self.tell("settled", lambda: decide(self._hear_all()))
        try:
            return self.hear("settled", 0)
        except TopocclError:
            wait_until_all_have_heard(self.store, self.rank, self.size)
            raise

    def _hear_all(self) -> list[Any]:
        said, errors = [], []
        for rank in range(self.size):
            try:
                said.append(self.hear(f"said/{rank}", rank))
            except TopocclError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return said

    def hear(self, key: str, teller: int) -> Any:
        """What rank ``teller`` of the default group has told.

        Raises:
            CollectiveTimeout: it did not come in time.
            TransportError: the store has gone.
            TopocclError: what it told is an error; its kind is kept.
        """
        left = max(self._end - time.monotonic(), 0.001)
        try:
            self.store.wait([key], timedelta(seconds=left))
            told = json.loads(self.store.get(key))
        except RuntimeError as error:
            if time.monotonic() < self._end:
                raise TransportError(f"the store of the group was closed while rank {teller} was waited for: {error}") from error
            raise CollectiveTimeout(f"rank {teller} did not come to its group of {self.size} ranks within {self.timeout:g} s") from error
        if "kind" in told:
            named = told["text"] if told["text"].startswith("rank ") else f"rank {teller}: {told['text']}"
            raise KINDS[told["kind"]](named)
        return told["value"]


def launched_by_mpi(rank: int, size: int) -> LaunchInfo | None:
    """What mpirun says, where its ranks are those of a group: this rank, and as many."""
    try:
        info = launch_environment(os.environ)
    except ConfigError:  # RANK without MASTER_ADDR: torch was told otherwise where to meet
        return None
    return info if info.kind == "mpirun" and (info.rank, info.size) == (rank, size) else None


def master_address() -> tuple[str, int] | None:
    """Where rank 0 can be reached, if the environment says so."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    return (host, int(port)) if host and port.isdigit() else None
