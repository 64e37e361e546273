"""How ranks find each other: ``mpi://``, ``env://`` under mpirun, and what the ranks of a group tell each other in its store."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import torch.distributed as dist

from topoccl.collectives.bootstrap import KINDS, LaunchInfo, launch_environment, store_over_mpi
from topoccl.collectives.config import Config
from topoccl.collectives.control.failure import ranks_text
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

    Args:
        store: the group's.
        rank, size: of the group.
        timeout: seconds, for all that is heard here.
        ranks: how messages name the group's ranks, if not from 0 on.
        within: the store of a meeting that the group lies in, and the group's name there. By default the keys carry the group's
            generation, since a store may outlive a group whose name another one then gets.
        what: the call and the group, for errors.
    """

    def __init__(
        self, store: Store, rank: int, size: int, timeout: float, *, ranks: Sequence[int] | None = None, within: Store | None = None,
        what: str = "init_process_group",
    ) -> None:  # fmt: skip
        self.ranks = list(range(size)) if ranks is None else list(ranks)
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.given = store
        self.what = what
        self._end = time.monotonic() + timeout
        if within is None:
            generation = (store.add("topoccl/arrivals", 1) - 1) // size
            within = dist.PrefixStore(f"topoccl/{generation}", store)
        self.store = within

    def tell(self, key: str, make: Callable[[], Any]) -> None:
        """Sets ``key`` to what ``make`` returns (anything JSON can hold), or to the error it raises, for whoever hears it."""
        try:
            told = {"value": make()}
        except TopocclError as error:
            told = {"kind": type(error).__name__, "text": str(error)}
        self.store.set(key, json.dumps(told))

    def settle(self, say: Callable[[], Any], decide: Callable[[Iterator[tuple[int, Any]]], Any]) -> Any:
        """What the group's first rank decides from what all its ranks say, as it comes; every rank calls this, once. An error of one
        rank is raised on all.

        Raises:
            CollectiveTimeout: not all ranks came in time, naming those that did not.
            TransportError: the store has gone.
            TopocclError: what a rank said is an error; its kind is kept.
        """
        leader = self.ranks[0]
        self.tell(f"said/{self.ranks[self.rank]}", say)
        if self.rank == 0:
            self.tell(f"settled/{leader}", lambda: decide(self._hear_all()))
        try:
            return self._hear(f"settled/{leader}", leader, named=False)
        except CollectiveTimeout as error:
            self.tell(f"said/{self.ranks[self.rank]}", partial(_raise, error))  # for those who come later
            raise
        except TopocclError:
            if self.ranks == list(range(self.size)):  # else the store is one that goes on
                wait_until_all_have_heard(self.store, self.rank, self.size)
            raise

    def _hear_all(self) -> Iterator[tuple[int, Any]]:
        errors = []
        for rank in self.ranks:
            try:
                said = self._hear(f"said/{rank}", rank)
            except TopocclError as error:
                errors.append(error)
            else:
                yield rank, said
        if errors:
            raise errors[0]

    def _hear(self, key: str, teller: int, *, named: bool = True) -> Any:
        """What rank ``teller`` has told; an error of its is ``named`` by it."""
        left = max(math.ceil(1e3 * (self._end - time.monotonic())), 1)  # the store would cut off part of a millisecond, and end too early
        try:
            self.store.wait([key], timedelta(milliseconds=left))
            told = json.loads(self.store.get(key))
        except RuntimeError as error:
            if time.monotonic() < self._end:
                raise TransportError(f"{self.what}: the store was closed while rank {teller} was waited for: {error}") from error
            raise CollectiveTimeout(f"{self.what}: {self._absent(teller)} within {self.timeout:g} s") from error
        if "kind" in told:
            text = told["text"]
            raise KINDS[told["kind"]](f"rank {teller}: {text}" if named and not text.startswith("rank ") else text)
        return told["value"]

    def _absent(self, teller: int) -> str:
        """Who did not come."""
        try:
            absent = [rank for rank in self.ranks if not self.store.check([f"said/{rank}"])]
        except RuntimeError:  # the store has gone meanwhile
            absent = [teller]
        return f"{ranks_text(absent)} did not come" if absent else f"rank {teller} did not answer"


def _raise(error: TopocclError) -> None:
    raise error


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
