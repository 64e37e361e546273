"""The communicator: collectives on NumPy arrays and torch tensors among the ranks of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from topoccl.algorithms.choice import Choice, format_choice
from topoccl.algorithms.select import Selector
from topoccl.collectives.calling import Caller
from topoccl.collectives.calls import bind, check_root, counts_of, expect
from topoccl.collectives.control.fingerprint import Name
from topoccl.collectives.errors import ConfigError, TopocclError
from topoccl.collectives.executor.dtypes import Array, elements
from topoccl.collectives.executor.pool import empty, pool
from topoccl.collectives.group import Group
from topoccl.collectives.hosts import Neighbours, meet
from topoccl.collectives.messages import Message, begin_recv, begin_send
from topoccl.collectives.pending import Pending
from topoccl.collectives.planner import Planner

if TYPE_CHECKING:
    from topoccl.collectives.config import Config
    from topoccl.collectives.logging import Logger
    from topoccl.collectives.transports.base import Transport
    from topoccl.topology.graph import Topology


class Communicator:
    """A group of ranks that run collectives together.

    Made by :func:`topoccl.init` or :meth:`subgroup`. Buffers are tensors or arrays of any shape; sizes count elements. Every
    method that takes ``async_op`` returns None, or with ``async_op=True`` a :class:`Pending`. Calls of one group run in the
    order in which they are made, which must be the same on every rank.

    Raises (all collectives): ConfigError for arguments that do not fit together, MismatchError when ranks make different calls,
    CollectiveTimeout when peers do not come, TransportError when one is gone. What one rank raises while a call is made, all raise.
    After that, ConfigError aside, the group cannot be used any more.
    """

    def __init__(
        self, transport: Transport, topology: Topology, neighbours: Neighbours, config: Config, logger: Logger, selector: Selector,
        name: str = "world", timeout: float | None = None, rails: Sequence[frozenset[str]] = (),
    ) -> None:  # fmt: skip
        """``rails``: those of the transport, each by its switches; none where it has only one."""
        self.transport = transport
        self.rank = transport.rank
        self.size = transport.size
        self.topology = topology
        self.hosts = neighbours.hosts
        self.config = config
        self.name = name
        self.logger = logger
        self._cpus = neighbours.cpus
        self._crowd = neighbours.crowd
        self._arena_bytes = 0 if neighbours.arena is None else neighbours.arena.nbytes
        self._rails = tuple(rails)
        limit = config.timeout if timeout is None else timeout
        self._group = Group(transport, neighbours, selector, logger, name, limit, self._rails)
        self._caller = Caller(self._group)

    @property
    def timeout(self) -> float:
        """How long a call may take that is given no timeout, in seconds."""
        return self._group.timeout

    @timeout.setter
    def timeout(self, timeout: float) -> None:
        self._group.timeout = timeout

    # Collectives

    def all_reduce(
        self,
        src: Any,
        dst: Any = None,
        op: str = "sum",
        *,
        factor: float | None = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Pending | None:
        """Every rank gets the reduction of all ``src`` in ``dst`` (in place without one); all ranks bitwise the same."""
        target = src if dst is None else dst
        if factor is None and not async_op and self._caller.repeat("all_reduce", None, op, src, target, timeout):
            return None
        bound = bind("all_reduce", src, target)
        expect("all_reduce", "output", bound.out.size, bound.inp.size, "as many as the input")
        return self._caller.reducing("all_reduce", None, bound, bound.inp.size, op, factor, async_op, timeout, (src, target))

    def reduce_scatter(
        self, src: Any, dst: Any, op: str = "sum", *, factor: float | None = None, async_op: bool = False, timeout: float | None = None
    ) -> Pending | None:
        """Rank r gets block r of the reduction: ``src`` has ``size`` blocks as large as ``dst``."""
        if factor is None and not async_op and self._caller.repeat("reduce_scatter", None, op, src, dst, timeout):
            return None
        bound = bind("reduce_scatter", src, dst, -self.rank * elements(dst))
        expect("reduce_scatter", "input", bound.inp.size, bound.out.size * self.size, f"{self.size} ranks x {bound.out.size}")
        return self._caller.reducing("reduce_scatter", None, bound, bound.out.size, op, factor, async_op, timeout, (src, dst))

    def reduce(
        self, src: Any, dst: Any = None, root: int = 0, op: str = "sum", *, factor: float | None = None, async_op: bool = False,
        timeout: float | None = None,
    ) -> Pending | None:  # fmt: skip
        """``root`` gets the reduction of all ``src`` in ``dst`` (in place without one); other ranks' ``dst`` is not looked at."""
        target = (src if dst is None else dst) if self.rank == root else None
        if factor is None and not async_op and self._caller.repeat("reduce", root, op, src, target, timeout):
            return None
        check_root("reduce", root, self.size)
        bound = bind("reduce", src, target)
        if target is not None:
            expect("reduce", "output", bound.out.size, bound.inp.size, "as many as the input")
        return self._caller.reducing("reduce", root, bound, bound.inp.size, op, factor, async_op, timeout, (src, target))

    def all_gather(self, src: Any, dst: Any, *, async_op: bool = False, timeout: float | None = None) -> Pending | None:
        """Every rank gets all ``src`` one after the other in ``dst``."""
        if not async_op and self._caller.repeat("all_gather", None, None, src, dst, timeout):
            return None
        bound = bind("all_gather", src, dst, self.rank * elements(src))
        expect("all_gather", "output", bound.out.size, bound.inp.size * self.size, f"{self.size} ranks x {bound.inp.size}")
        return self._caller.moving("all_gather", None, bound, bound.inp.size, async_op, timeout, (src, dst))

    def broadcast(self, buf: Any, root: int = 0, *, async_op: bool = False, timeout: float | None = None) -> Pending | None:
        """Every rank gets what ``root`` has in ``buf``."""
        src = buf if self.rank == root else None
        if not async_op and self._caller.repeat("broadcast", root, None, src, buf, timeout):
            return None
        check_root("broadcast", root, self.size)
        bound = bind("broadcast", src, buf, writes=self.rank != root)
        return self._caller.moving("broadcast", root, bound, bound.out.size, async_op, timeout, (src, buf))

    def gather(self, src: Any, dst: Any = None, root: int = 0, *, async_op: bool = False, timeout: float | None = None) -> Pending | None:
        """``root`` gets all ``src`` one after the other in ``dst``."""
        target = dst if self.rank == root else None
        if not async_op and self._caller.repeat("gather", root, None, src, target, timeout):
            return None
        check_root("gather", root, self.size)
        if self.rank == root and dst is None:
            raise ConfigError(f"gather: rank {root} is the root and needs an output")
        bound = bind("gather", src, target, self.rank * elements(src))
        if self.rank == root:
            expect("gather", "output", bound.out.size, bound.inp.size * self.size, f"{self.size} ranks x {bound.inp.size}")
        return self._caller.moving("gather", root, bound, bound.inp.size, async_op, timeout, (src, target))

    def scatter(self, src: Any, dst: Any, root: int = 0, *, async_op: bool = False, timeout: float | None = None) -> Pending | None:
        """Rank r gets block r of what ``root`` has in ``src``; other ranks' ``src`` is not looked at."""
        source = src if self.rank == root else None
        if not async_op and self._caller.repeat("scatter", root, None, source, dst, timeout):
            return None
        check_root("scatter", root, self.size)
        if self.rank == root and src is None:
            raise ConfigError(f"scatter: rank {root} is the root and needs an input")
        bound = bind("scatter", source, dst, -self.rank * elements(dst))
        if self.rank == root:
            expect("scatter", "input", bound.inp.size, bound.out.size * self.size, f"{self.size} ranks x {bound.out.size}")
        return self._caller.moving("scatter", root, bound, bound.out.size, async_op, timeout, (source, dst))

    def all_to_all(
        self, src: Any, dst: Any, send_counts: Sequence[int] | None = None, recv_counts: Sequence[int] | None = None, *,
        async_op: bool = False, timeout: float | None = None,
    ) -> Pending | None:  # fmt: skip
        """Rank r gets block r of every rank's ``src``. With counts (elements, on all ranks or on none) blocks differ in size."""
        if (
            send_counts is None
            and recv_counts is None
            and not async_op
            and self._caller.repeat("all_to_all", None, None, src, dst, timeout)
        ):
            return None
        bound = bind("all_to_all", src, dst)
        if bound.in_place:
            bound.inp, bound.in_place = bound.inp.copy(), False
        if (send_counts is None) != (recv_counts is None):
            raise ConfigError("all_to_all: send_counts and recv_counts must be given together")
        if send_counts is not None and recv_counts is not None:
            sending = counts_of("all_to_all", "input", send_counts, self.size, bound.inp.size)
            receiving = counts_of("all_to_all", "output", recv_counts, self.size, bound.out.size)
            return self._caller.uneven(bound, sending, receiving, async_op, timeout)
        expect("all_to_all", "output", bound.out.size, bound.inp.size, "as many as the input")
        if bound.inp.size % self.size:
            raise ConfigError(f"all_to_all: {bound.inp.size} elements cannot be divided among {self.size} ranks; give counts")
        return self._caller.moving("all_to_all", None, bound, bound.inp.size // self.size, async_op, timeout, (src, dst))

    def barrier(self, *, async_op: bool = False, timeout: float | None = None) -> Pending | None:
        """Returns when all ranks have come."""
        empty: Array = np.empty(0, np.uint8)
        return self._caller.moving("barrier", None, bind("barrier", empty, empty), 0, async_op, timeout, (empty, empty))

    # Point to point

    def send(self, buf: Any, peer: int, tag: int = 0, *, async_op: bool = False, timeout: float | None = None) -> Message | None:
        """Sends ``buf`` to ``peer``; messages with one tag arrive in order."""
        message = begin_send(self.transport, buf, peer, tag, self._caller.limit(timeout))
        if async_op:
            return message
        try:
            message.wait()
        except BaseException:  # a signal's, too: the bytes are the caller's again
            message.give_up()
            raise
        return None

    def recv(
        self, buf: Any, peer: int | None = None, tag: int = 0, *, async_op: bool = False, timeout: float | None = None
    ) -> Message | int | None:
        """Receives into ``buf`` from ``peer``, or from anyone; returns the sender's rank."""
        message = begin_recv(self.transport, buf, peer, tag, self._caller.limit(timeout))
        if async_op:
            return message
        message.wait()
        return message.source

    # Groups

    def together(self, call: Callable[[], Any], *, async_op: bool = False) -> Any:
        """Runs ``call``, which makes calls of this group and returns something, as one call: nothing comes in between.

        Returns what ``call`` returns, or with ``async_op=True`` a :class:`Pending` with that result.
        """
        return self._group.start(call, async_op)

    def named(self, name: Name, call: Callable[[], Any]) -> Any:
        """Runs ``call`` inside :meth:`together`. Errors speak of its calls as ``name``, which all ranks compare."""
        return self._group.named(name, call)

    def what_root_knows(self, root: int, count: int, mine: int, timeout: float | None = None) -> int:
        """What ``root`` says is the ``count`` of all ranks, or -1 when they differ; only it knows. Called inside :meth:`named`, and
        followed by the call that it is for. ``mine`` is this rank's.

        Where all ranks share memory this is read there, and costs no call of its own.
        """
        limit = self._caller.limit(timeout)
        if self.size == 1:
            return count
        if self._group.hears_words:
            return self._group.ask_root(root, count, mine, limit)
        word = np.array([count], np.int64)
        self.broadcast(word, root, timeout=limit)
        return int(word[0])

    def subgroup(self, ranks: Sequence[int], group: int, name: str = "", timeout: float | None = None) -> Communicator:
        """A communicator among ``ranks`` of this group, renumbered in that order; called by its members only.

        Args:
            ranks: members, this rank among them, each once.
            group: a number, the same on all members, that no other open group of this world has (see Transport.subgroup).
            name: for messages.
            timeout: in seconds, for the set-up and for each call; None takes this group's.
        """
        if self._group.closed:
            raise TopocclError(f"group {self.name} is closed")
        limit = self._caller.limit(timeout)
        members = [int(r) for r in ranks]
        if len(set(members)) != len(members) or not all(0 <= r < self.size for r in members) or self.rank not in members:
            raise ConfigError(f"subgroup {members}: expected different ranks below {self.size}, rank {self.rank} among them")
        transport = self.transport.subgroup(members, group)
        claims, cpus = [self.hosts[r] for r in members], [self._cpus[r] for r in members]
        neighbours = meet(transport, claims, cpus, limit, share=self.config.shm, attach=self.config.attach, least=self._crowd)
        topology = self.topology.place(members)
        selector = self._group.planner.selector.for_topology(topology)
        name = name or f"group {group}"
        return Communicator(transport, topology, neighbours, self.config, self.logger, selector, name, limit, self._rails)

    # Looking in

    def explain(self) -> str:
        """Why the last call's algorithm was chosen: its candidates with predicted times, and the bound."""
        choice = self.last_choice
        return "no collective has run yet" if choice is None else format_choice(choice)

    @property
    def last_choice(self) -> Choice | None:
        """The choice behind the last call."""
        last = self._group.record.last
        return None if last is None else last.agreed.choice

    @property
    def last_segments(self) -> int:
        """Into how many pipeline segments the last call's data was cut; 0 before the first call."""
        last = self._group.record.last
        return 0 if last is None else last.segments

    @property
    def planner(self) -> Planner:
        """Makes the plans of calls. Another one may take its place between calls, on all ranks, to measure other choices."""
        return self._group.planner

    @planner.setter
    def planner(self, planner: Planner) -> None:
        self._group.use(planner)

    @property
    def broken(self) -> BaseException | None:
        """The error after which this group cannot be used any more."""
        return self._group.broken

    @property
    def closed(self) -> bool:
        return self._group.closed

    def recent_calls(self) -> str:
        """The last calls that this rank has made in this group, a line each: number, what, and whether it has ended."""
        return self._group.recent_calls()

    def stats(self) -> dict[str, Any]:
        """Counts since the start, and memory in bytes.

        ``calls``; messages and payload bytes per peer over the ``transport`` and through ``shared_memory``; the address space of the
        group's ``arena`` for messages, of which only what was used takes memory; the process's ``pool`` of blocks for scratch and for
        :func:`topoccl.empty`: in use now, at most, and kept.
        """
        record = self._group.record
        shared = record.traffic()
        return {
            "calls": record.calls,
            "transport": dict(self.transport.counters),
            "shared_memory": shared,
            "arena": 0 if self.closed else self._arena_bytes,
            "pool": pool().stats(),
        }

    @staticmethod
    def empty(shape: int | tuple[int, ...], dtype: Any = None) -> Any:
        """The same as :func:`topoccl.empty`."""
        return empty(shape, dtype)

    # Ending

    def abort(self, reason: str = "aborted") -> None:
        """Makes the call in flight, and every later one, raise."""
        self._group.abort(reason)

    def settle(self, timeout: float) -> bool:
        """Takes no more asynchronous calls and waits at most ``timeout`` seconds until the open ones have ended; whether they have."""
        return self._group.settle(timeout)

    def close(self) -> None:
        """Lets open calls end and frees everything. Safe to call twice."""
        self._group.close()
