"""The communicator: collectives on NumPy arrays and torch tensors among the ranks of a group."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from topoccl.algorithms.choice import Choice, format_choice
from topoccl.algorithms.select import Selector
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.collectives.calls import Bound, bind, check_root, counts_of, expect
from topoccl.collectives.config import check_timeout
from topoccl.collectives.control.control import Control
from topoccl.collectives.control.fingerprint import Fingerprint, Name, call_text, fingerprint, part
from topoccl.collectives.errors import CollectiveTimeout, ConfigError, MismatchError, TopocclError, TransportError
from topoccl.collectives.executor import reduction
from topoccl.collectives.executor.dtypes import Array, DType, elements
from topoccl.collectives.executor.pool import empty, pool
from topoccl.collectives.executor.program import Program
from topoccl.collectives.executor.run import Runner
from topoccl.collectives.executor.straight import Source, Straight, add_steps
from topoccl.collectives.executor.waiting import Waiter
from topoccl.collectives.hosts import Neighbours, meet
from topoccl.collectives.logging import Level, Subsystem
from topoccl.collectives.messages import Message, begin_recv, begin_send
from topoccl.collectives.pending import Pending, Worker
from topoccl.collectives.planner import Plan, Planner
from topoccl.collectives.repeats import Known, Repeats
from topoccl.collectives.transports.base import PeerCounters

if TYPE_CHECKING:
    from topoccl.collectives.config import Config
    from topoccl.collectives.logging import Logger
    from topoccl.collectives.transports.base import Transport
    from topoccl.topology.graph import Topology

_CALL_BITS = 20  # counters count this many bits of messages per call
_ALIGN = 64
_FROM_POOL = 1 << 20  # bytes of scratch that are worth whole blocks
_RECENT = 32  # calls that are remembered, for errors
_SIZES = fingerprint("sizes")  # of what_root_knows, whose name says the rest

open_communicators: weakref.WeakSet[Communicator] = weakref.WeakSet()


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
        self.timeout = config.timeout if timeout is None else timeout
        self.logger = logger
        self._arena = neighbours.arena
        self._cpus = neighbours.cpus
        self._crowd = neighbours.crowd
        waiter = Waiter(self._arena.flags, neighbours.load(self.rank) > 1) if self._arena is not None else None
        self._runner = Runner(transport, waiter)
        self._control: Control | None = None
        if self.size > 1:
            self._control = Control(transport, neighbours, self._describe)
            self._runner.watch, self._runner.beside = self._control.check, self._control.beside
            self._runner.calls = self._control
        self._rails = tuple(rails)
        self._planner = Planner(transport, selector, neighbours, self._announce, self._rails)
        self._worker = Worker(f"topoccl {name}")
        self._scratch: Array = np.empty(0, np.uint8)
        self._calls = 0
        self._traffic: dict[int, PeerCounters] = {peer: PeerCounters() for peer in range(self.size)}
        self._uncounted: list[Program] = []  # have been run since their traffic was added to that
        self._last: Plan | None = None
        self._repeats = Repeats()
        self._checked = self.timeout  # the last timeout of a call
        self._broken: BaseException | None = None
        self._recent: list[Fingerprint | None] = [None] * _RECENT
        self._name: Name | None = None  # what the calls under way are made for
        self._begun = False  # the next call was begun already, by what_root_knows
        self._closed = False
        open_communicators.add(self)

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
        if factor is None and not async_op and self._repeat("all_reduce", None, op, src, target, timeout):
            return None
        bound = bind("all_reduce", src, target)
        expect("all_reduce", "output", bound.out.size, bound.inp.size, "as many as the input")
        return self._reducing("all_reduce", None, bound, bound.inp.size, op, factor, async_op, timeout, (src, target))

    def reduce_scatter(
        self, src: Any, dst: Any, op: str = "sum", *, factor: float | None = None, async_op: bool = False, timeout: float | None = None
    ) -> Pending | None:
        """Rank r gets block r of the reduction: ``src`` has ``size`` blocks as large as ``dst``."""
        if factor is None and not async_op and self._repeat("reduce_scatter", None, op, src, dst, timeout):
            return None
        bound = bind("reduce_scatter", src, dst, -self.rank * elements(dst))
        expect("reduce_scatter", "input", bound.inp.size, bound.out.size * self.size, f"{self.size} ranks x {bound.out.size}")
        return self._reducing("reduce_scatter", None, bound, bound.out.size, op, factor, async_op, timeout, (src, dst))

    def reduce(
        self, src: Any, dst: Any = None, root: int = 0, op: str = "sum", *, factor: float | None = None, async_op: bool = False,
        timeout: float | None = None,
    ) -> Pending | None:  # fmt: skip
        """``root`` gets the reduction of all ``src`` in ``dst`` (in place without one); other ranks' ``dst`` is not looked at."""
        target = (src if dst is None else dst) if self.rank == root else None
        if factor is None and not async_op and self._repeat("reduce", root, op, src, target, timeout):
            return None
        check_root("reduce", root, self.size)
        bound = bind("reduce", src, target)
        if target is not None:
            expect("reduce", "output", bound.out.size, bound.inp.size, "as many as the input")
        return self._reducing("reduce", root, bound, bound.inp.size, op, factor, async_op, timeout, (src, target))

    def all_gather(self, src: Any, dst: Any, *, async_op: bool = False, timeout: float | None = None) -> Pending | None:
        """Every rank gets all ``src`` one after the other in ``dst``."""
        if not async_op and self._repeat("all_gather", None, None, src, dst, timeout):
            return None
        bound = bind("all_gather", src, dst, self.rank * elements(src))
        expect("all_gather", "output", bound.out.size, bound.inp.size * self.size, f"{self.size} ranks x {bound.inp.size}")
        return self._moving("all_gather", None, bound, bound.inp.size, async_op, timeout, (src, dst))

    def broadcast(self, buf: Any, root: int = 0, *, async_op: bool = False, timeout: float | None = None) -> Pending | None:
        """Every rank gets what ``root`` has in ``buf``."""
        src = buf if self.rank == root else None
        if not async_op and self._repeat("broadcast", root, None, src, buf, timeout):
            return None
        check_root("broadcast", root, self.size)
        bound = bind("broadcast", src, buf, writes=self.rank != root)
        return self._moving("broadcast", root, bound, bound.out.size, async_op, timeout, (src, buf))

    def gather(self, src: Any, dst: Any = None, root: int = 0, *, async_op: bool = False, timeout: float | None = None) -> Pending | None:
        """``root`` gets all ``src`` one after the other in ``dst``."""
        target = dst if self.rank == root else None
        if not async_op and self._repeat("gather", root, None, src, target, timeout):
            return None
        check_root("gather", root, self.size)
        if self.rank == root and dst is None:
            raise ConfigError(f"gather: rank {root} is the root and needs an output")
        bound = bind("gather", src, target, self.rank * elements(src))
        if self.rank == root:
            expect("gather", "output", bound.out.size, bound.inp.size * self.size, f"{self.size} ranks x {bound.inp.size}")
        return self._moving("gather", root, bound, bound.inp.size, async_op, timeout, (src, target))

    def scatter(self, src: Any, dst: Any, root: int = 0, *, async_op: bool = False, timeout: float | None = None) -> Pending | None:
        """Rank r gets block r of what ``root`` has in ``src``; other ranks' ``src`` is not looked at."""
        source = src if self.rank == root else None
        if not async_op and self._repeat("scatter", root, None, source, dst, timeout):
            return None
        check_root("scatter", root, self.size)
        if self.rank == root and src is None:
            raise ConfigError(f"scatter: rank {root} is the root and needs an input")
        bound = bind("scatter", source, dst, -self.rank * elements(dst))
        if self.rank == root:
            expect("scatter", "input", bound.inp.size, bound.out.size * self.size, f"{self.size} ranks x {bound.out.size}")
        return self._moving("scatter", root, bound, bound.out.size, async_op, timeout, (source, dst))

    def all_to_all(
        self, src: Any, dst: Any, send_counts: Sequence[int] | None = None, recv_counts: Sequence[int] | None = None, *,
        async_op: bool = False, timeout: float | None = None,
    ) -> Pending | None:  # fmt: skip
        """Rank r gets block r of every rank's ``src``. With counts (elements, on all ranks or on none) blocks differ in size."""
        if send_counts is None and recv_counts is None and not async_op and self._repeat("all_to_all", None, None, src, dst, timeout):
            return None
        bound = bind("all_to_all", src, dst)
        if bound.in_place:
            bound.inp, bound.in_place = bound.inp.copy(), False
        if (send_counts is None) != (recv_counts is None):
            raise ConfigError("all_to_all: send_counts and recv_counts must be given together")
        if send_counts is not None and recv_counts is not None:
            sending = counts_of("all_to_all", "input", send_counts, self.size, bound.inp.size)
            receiving = counts_of("all_to_all", "output", recv_counts, self.size, bound.out.size)
            limit = self._limit(timeout)
            return self._start(lambda: self._uneven(bound, sending, receiving, limit), async_op)
        expect("all_to_all", "output", bound.out.size, bound.inp.size, "as many as the input")
        if bound.inp.size % self.size:
            raise ConfigError(f"all_to_all: {bound.inp.size} elements cannot be divided among {self.size} ranks; give counts")
        return self._moving("all_to_all", None, bound, bound.inp.size // self.size, async_op, timeout, (src, dst))

    def barrier(self, *, async_op: bool = False, timeout: float | None = None) -> Pending | None:
        """Returns when all ranks have come."""
        empty: Array = np.empty(0, np.uint8)
        return self._moving("barrier", None, bind("barrier", empty, empty), 0, async_op, timeout, (empty, empty))

    # Point to point

    def send(self, buf: Any, peer: int, tag: int = 0, *, async_op: bool = False, timeout: float | None = None) -> Message | None:
        """Sends ``buf`` to ``peer``; messages with one tag arrive in order."""
        message = begin_send(self.transport, buf, peer, tag, self._limit(timeout))
        if async_op:
            return message
        message.wait()
        return None

    def recv(
        self, buf: Any, peer: int | None = None, tag: int = 0, *, async_op: bool = False, timeout: float | None = None
    ) -> Message | int | None:
        """Receives into ``buf`` from ``peer``, or from anyone; returns the sender's rank."""
        message = begin_recv(self.transport, buf, peer, tag, self._limit(timeout))
        if async_op:
            return message
        message.wait()
        return message.source

    # Groups

    def together(self, call: Callable[[], Any], *, async_op: bool = False) -> Any:
        """Runs ``call``, which makes calls of this group and returns something, as one call: nothing comes in between.

        Returns what ``call`` returns, or with ``async_op=True`` a :class:`Pending` with that result.
        """
        return self._start(call, async_op)

    def named(self, name: Name, call: Callable[[], Any]) -> Any:
        """Runs ``call`` inside :meth:`together`. Errors speak of its calls as ``name``, which all ranks compare."""
        before, self._name = self._name, name
        try:
            return call()
        except BaseException as error:
            if self._begun:
                self._begun = False
                self._give_up(error)
            raise
        finally:
            self._name = before

    def what_root_knows(self, root: int, count: int, mine: int, timeout: float | None = None) -> int:
        """What ``root`` says is the ``count`` of all ranks, or -1 when they differ; only it knows. Called inside :meth:`named`, and
        followed by the call that it is for. ``mine`` is this rank's.

        Where all ranks share memory this is read there, and costs no call of its own.
        """
        control, limit = self._control, self._limit(timeout)
        if control is None:
            return count
        if not control.hears_words:
            word = np.array([count], np.int64)
            self.broadcast(word, root, timeout=limit)
            return int(word[0])
        self._begin(_SIZES, limit, count)
        try:
            told = control.word_of(root)
            if told >= 0 and told != mine:
                control.differ()
        except BaseException as error:
            self._give_up(error)
        self._begun = True
        return told

    def subgroup(self, ranks: Sequence[int], group: int, name: str = "", timeout: float | None = None) -> Communicator:
        """A communicator among ``ranks`` of this group, renumbered in that order; called by its members only.

        Args:
            ranks: members, this rank among them, each once.
            group: a number, the same on all members, that no other open group of this world has (see Transport.subgroup).
            name: for messages.
            timeout: in seconds, for the set-up and for each call; None takes this group's.
        """
        if self._closed:
            raise TopocclError(f"group {self.name} is closed")
        limit = self._limit(timeout)
        members = [int(r) for r in ranks]
        if len(set(members)) != len(members) or not all(0 <= r < self.size for r in members) or self.rank not in members:
            raise ConfigError(f"subgroup {members}: expected different ranks below {self.size}, rank {self.rank} among them")
        transport = self.transport.subgroup(members, group)
        claims, cpus = [self.hosts[r] for r in members], [self._cpus[r] for r in members]
        neighbours = meet(transport, claims, cpus, limit, share=self.config.shm, attach=self.config.attach, least=self._crowd)
        topology = self.topology.place(members)
        selector = self._planner.selector.for_topology(topology)
        name = name or f"group {group}"
        return Communicator(transport, topology, neighbours, self.config, self.logger, selector, name, limit, self._rails)

    # Looking in

    def explain(self) -> str:
        """Why the last call's algorithm was chosen: its candidates with predicted times, and the bound."""
        return "no collective has run yet" if self._last is None else format_choice(self._last.agreed.choice)

    @property
    def last_choice(self) -> Choice | None:
        """The choice behind the last call."""
        return None if self._last is None else self._last.agreed.choice

    @property
    def last_segments(self) -> int:
        """Into how many pipeline segments the last call's data was cut; 0 before the first call."""
        return 0 if self._last is None else self._last.segments

    @property
    def planner(self) -> Planner:
        """Makes the plans of calls. Another one may take its place between calls, on all ranks, to measure other choices."""
        return self._planner

    @planner.setter
    def planner(self, planner: Planner) -> None:
        self._planner = planner
        self._repeats.clear()

    @property
    def broken(self) -> BaseException | None:
        """The error after which this group cannot be used any more."""
        return self._runner.aborted or self._broken

    @property
    def closed(self) -> bool:
        return self._closed

    def stats(self) -> dict[str, Any]:
        """Counts since the start, and memory in bytes.

        ``calls``; messages and payload bytes per peer over the ``transport`` and through ``shared_memory``; the address space of the
        group's ``arena`` for messages, of which only what was used takes memory; the process's ``pool`` of blocks for scratch and for
        :func:`topoccl.empty`: in use now, at most, and kept.
        """
        self._count_traffic()
        arena = 0 if self._closed or self._arena is None else self._arena.nbytes
        return {
            "calls": self._calls,
            "transport": dict(self.transport.counters),
            "shared_memory": dict(self._traffic),
            "arena": arena,
            "pool": pool().stats(),
        }

    @staticmethod
    def empty(shape: int | tuple[int, ...], dtype: Any = None) -> Any:
        """The same as :func:`topoccl.empty`."""
        return empty(shape, dtype)

    # Ending

    def abort(self, reason: str = "aborted") -> None:
        """Makes the call in flight, and every later one, raise."""
        self._runner.aborted = TopocclError(f"group {self.name}: {reason}")
        self._broken = self._broken or self._runner.aborted
        if self._control is not None:
            self._control.abort(self._runner.aborted)

    def settle(self, timeout: float) -> bool:
        """Takes no more asynchronous calls and waits at most ``timeout`` seconds until the open ones have ended; whether they have."""
        return self._worker.close(timeout)

    def close(self) -> None:
        """Lets open calls end and frees everything. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._worker.close(self.timeout)
        if self._control is not None:
            self._control.leave()
        self.transport.close()
        # The shared memory and its descriptor go with the last reference to them, not when the garbage is collected.
        self._runner.forget()
        self._repeats.clear()
        self._count_traffic()
        del self._planner, self._arena
        if self._last is not None:
            self._last = Plan(self._last.agreed, self._last.segments, self._last.fingerprint, _no_program)

    # Running

    def _limit(self, timeout: float | None) -> float:
        """The timeout of a call that was given ``timeout``."""
        if timeout is None:
            return self.timeout
        if timeout == self._checked:
            return timeout
        try:
            self._checked = found = check_timeout(timeout)
            return found
        except ValueError as error:
            raise ConfigError(f"timeout={timeout!r}: {error}") from None

    def _start(self, call: Callable[[], Any], async_op: bool) -> Any:
        if self._closed:
            raise TopocclError(f"group {self.name} is closed")
        return self._worker.submit(call) if async_op else self._worker.run(call)

    def _moving(
        self, what: str, root: int | None, bound: Bound, block: int, async_op: bool, timeout: float | None, given: tuple[Any, Any]
    ) -> Pending | None:  # fmt: skip
        limit = self._limit(timeout)
        pending = self._start(lambda: self._call(what, root, bound, block, None, limit), async_op)
        if pending is None:
            self._remember(what, root, None, None, bound, block, given)
        return pending

    def _reducing(
        self, what: str, root: int | None, bound: Bound, block: int, op: str, factor: float | None, async_op: bool, timeout: float | None,
        given: tuple[Any, Any],
    ) -> Pending | None:  # fmt: skip
        said, op = op, reduction.canonical_op(op)
        reduction.check_op(op, bound.dtype)
        if (op == "premul_sum") != (factor is not None):
            raise ConfigError(f"{what}: reduction {op} {'needs' if op == 'premul_sum' else 'takes no'} factor")
        limit = self._limit(timeout)

        def call() -> None:
            if factor is not None:
                bound.inp, bound.in_place = reduction.scaled(bound.inp, bound.dtype, factor), False
            self._call(what, root, bound, block, op, limit)
            if op == "avg" and bound.out.size:
                reduction.divide(bound.out, bound.dtype, self.size)
                bound.finish()

        pending = self._start(call, async_op)
        if pending is None and factor is None and op != "avg":
            self._remember(what, root, op, said, bound, block, given)
        return pending

    def _remember(
        self, what: str, root: int | None, op: str | None, said: str | None, bound: Bound, block: int, given: tuple[Any, Any]
    ) -> None:  # fmt: skip
        """Lets :meth:`_repeat` know a call that was made on the buffers ``given``, with the reduction ``op``, ``said`` so by the user."""
        plan = None if self._closed else self._planner.peek((what, root, block, bound.dtype.name, op, bound.in_place))
        if plan is not None:
            self._repeats.add(what, root, said, *given, bound, plan)

    def _repeat(self, what: str, root: int | None, op: str | None, src: Any, dst: Any, timeout: float | None) -> bool:
        """Makes a call if one of the same kind was made before, in half the time: small ones are many."""
        found = self._repeats.find(what, root, op, src, dst)
        if found is None or self._closed:
            return False
        if self.size == 1 and src is dst and self._broken is None and not self._worker.busy:
            self._calls = number = self._calls + 1
            self._last = plan = found[0].plan
            self._recent[number % _RECENT] = plan.fingerprint
            return True
        known, inp, out = found
        limit = self.timeout if timeout is None else timeout if timeout == self._checked else self._limit(timeout)
        worker = self._worker
        straight = known.straight
        if straight is None or worker.open or worker.owner:
            worker.run(self._make_again, found, limit)
            return True
        with worker.turn:
            if self._broken is not None:
                self._raise_broken()
            self._calls = number = self._calls + 1
            self._last = plan = known.plan
            self._recent[number % _RECENT] = plan.fingerprint
            parity = number & 1
            program = plan.programs[parity]
            assert program is not None
            try:
                straight[parity](inp.copy() if known.copies else inp, out, number, limit)
            except BaseException as error:
                self._give_up(error)
            if not program.runs:
                self._uncounted.append(program)
            program.runs += 1
        return True

    def _make_again(self, found: tuple[Known, Array, Array], limit: float) -> None:
        known, inp, out = found
        plan = known.plan
        self._begin(plan.fingerprint, limit, 0, plan.stamped)
        self._run(plan, inp.copy() if known.copies else inp, out, known.dtype, limit)
        if known.waits:
            known.waits -= 1
            if not known.waits:
                known.straight = self._straight(plan)

    def _straight(self, plan: Plan) -> tuple[Straight, Straight] | None:
        """Functions that do all that :meth:`_begin` and :meth:`_run` do for a plan, where all ranks share memory and steps are few."""
        control, runner, made = self._control, self._runner, []
        if control is None or not control.hears_words:
            return None
        for parity in (0, 1):
            program = plan.program(parity)
            if program.short is None:
                return None
            source = Source()
            control.write_begin(source, plan.fingerprint, parity)
            source.add(f"base = number << {_CALL_BITS}")
            add_steps(source, program.short, runner.flags, runner.waiting(program, self._describe))
            control.write_end(source, parity)
            made.append(source.function("inp, out, number, limit"))
        return made[0], made[1]

    def _begin_and_run(self, plan: Plan, bound: Bound, limit: float) -> None:
        self._begin(plan.fingerprint, limit, 0, plan.stamped)
        self._run_bound(plan, bound, limit)

    def _run_bound(self, plan: Plan, bound: Bound, limit: float) -> None:
        inp = bound.inp.copy() if bound.in_place and not plan.agreed.in_place else bound.inp
        self._run(plan, inp, bound.out, bound.dtype, limit)
        bound.finish()

    def _call(self, what: str, root: int | None, bound: Bound, block: int, op: str | None, limit: float) -> None:
        key = (what, root, block, bound.dtype.name, op, bound.in_place)
        plan = self._planner.find(key)
        if plan is None:
            call = fingerprint("barrier()" if what == "barrier" else call_text(what, bound.dtype.name, block, op, root))
            self._plan_and_run(key, call, what, root, bound, block, op, limit)
        else:
            self._begin_and_run(plan, bound, limit)

    def _plan_and_run(
        self, key: Hashable, call: Fingerprint, what: str, root: int | None, bound: Bound, block: int, op: str | None, limit: float
    ) -> None:
        spec = CollectiveSpec(what, self.size, root)
        blocks = 1 if what in ("all_reduce", "broadcast", "reduce", "barrier") else self.size
        self._begin(call, limit, 0, True)
        plan = self._plan(key, call, spec, blocks * block * bound.dtype.itemsize, block, bound, op, limit)
        self._run_bound(plan, bound, limit)

    def _uneven(self, bound: Bound, sending: Sequence[int], receiving: Sequence[int], limit: float) -> None:
        """all_to_all with counts: relays need everyone's, so these are gathered first; then all ranks see what does not fit."""
        rows = np.empty((self.size, 2, self.size), np.int64)
        mine = bind("all_to_all", np.array([sending, receiving], np.int64), rows)
        key: Hashable = ("all_to_all with counts", bound.dtype.name)
        plan = self._planner.find(key)
        if plan is None:
            call = fingerprint(call_text("all_to_all", bound.dtype.name) + " with counts")
            self._plan_and_run(key, call, "all_gather", None, mine, 2 * self.size, None, limit)
        else:
            self._begin_and_run(plan, mine, limit)
        counts = np.ascontiguousarray(rows[:, 0])
        wrong = np.argwhere(counts != rows[:, 1].T)
        if wrong.size:
            sender, receiver = wrong[0].tolist()
            what = "all_to_all" if self._name is None else self._name.text.partition("(")[0]
            raise MismatchError(
                f"{what}: rank {sender} sends {counts[sender, receiver]} elements to rank {receiver}, "
                f"which expects {rows[receiver, 1, sender]} (pairs that differ: {len(wrong)}); no data was moved, and the group goes on"
            )
        key = ("all_to_all", counts.tobytes(), bound.dtype.name)
        plan = self._planner.find(key)
        if plan is not None:
            self._begin(plan.fingerprint, limit, 0, plan.stamped)
        else:
            digest = blake2b(counts.tobytes(), digest_size=8).hexdigest()
            call = fingerprint(f"{call_text('all_to_all', bound.dtype.name)} with counts #{digest}")
            self._begin(call, limit, 0, True)
            largest = int(max(counts.sum(axis=0).max(), counts.sum(axis=1).max()))
            spec = CollectiveSpec("all_to_all", self.size, None, uneven=True)
            nbytes = largest * bound.dtype.itemsize
            plan = self._plan(key, call, spec, nbytes, counts.reshape(-1).tolist(), bound, None, limit)
        self._run_bound(plan, bound, limit)

    # Every call goes through _begin, _plan unless its plan is known, and _run, or through a function that is made of these.

    def _raise_broken(self) -> NoReturn:
        why = str(self._broken) or type(self._broken).__name__  # an interrupt says nothing
        raise TopocclError(f"group {self.name} cannot be used any more: {why}") from self._broken

    def _begin(self, call: Fingerprint, limit: float, word: int = 0, stamped: bool = False) -> None:
        if self._begun:
            self._begun = False
            return
        if self._name is not None:
            call = part(self._name, call.text)
        if self._broken is not None:
            self._raise_broken()
        self._calls = number = self._calls + 1
        self._recent[number % _RECENT] = call
        if self._control is not None:
            try:
                self._control.begin(call, limit, word, stamped)
            except BaseException as error:
                self._give_up(error)

    def _plan(
        self, key: Hashable, call: Fingerprint, spec: CollectiveSpec, nbytes: int, block: int | Sequence[int], bound: Bound,
        op: str | None, limit: float,
    ) -> Plan:  # fmt: skip
        control = self._control
        self._count_traffic()  # of plans that are forgotten for this one as well
        data = bound.inp if bound.inp.size else bound.out
        try:
            plan = self._planner.plan(
                key, spec, nbytes, block, bound.dtype, op, bound.in_place, data, call, limit, self._settle, self._check_on_others
            )
            if control is not None and not plan.stamped:
                control.compare()
            return plan
        except (CollectiveTimeout, TransportError, MismatchError) as error:
            self._give_up(error, "ranks had not agreed on its algorithm")
        except Exception as error:
            if control is not None and control.raised(error):
                self._give_up(error)
            if control is not None:
                control.compare()
                control.end()
            raise  # on all ranks alike
        except BaseException as error:
            self._give_up(error)

    def _settle(self) -> None:
        if self._control is not None:
            self._control.settle()

    def _check_on_others(self) -> None:
        if self._runner.aborted is not None:
            raise self._runner.aborted
        if self._control is not None:
            self._control.check()

    def _run(self, plan: Plan, inp: Array, out: Array, dtype: DType, limit: float) -> None:
        number = self._calls
        parity = number & 1
        control = self._control
        runner = self._runner
        try:
            program = plan.programs[parity] or plan.program(parity)
            scratch = self._scratch if not program.scratch else self._scratch_for(program.scratch * dtype.itemsize, dtype)
            runner.run(program, (inp, out, scratch), number << _CALL_BITS, limit, self._describe)
            if control is not None:
                control.end()
        except BaseException as error:
            self._give_up(error)
        if not program.runs:
            self._uncounted.append(program)
        program.runs += 1
        self._last = plan

    def _count_traffic(self) -> None:
        """Adds what the programs have moved that were run since the last time."""
        programs, self._uncounted = self._uncounted, []
        for program in programs:
            runs, program.runs = program.runs, 0
            if program.stamped is not None:
                self.transport.count(program.stamped.traffic, runs)
            for peer, moved in program.traffic.items():
                self._traffic[peer].add(moved, runs)

    def _describe(self) -> str:
        """The present call, for errors."""
        call = self._recent[self._calls % _RECENT]
        return f"{call.text if call else '?'} (call {self._calls} of group {self.name}, rank {self.rank} of {self.size})"

    def _give_up(self, error: BaseException, stage: str = "") -> NoReturn:
        """Ends the group's life: tells the other ranks, and raises what is known of the reason."""
        cause = error
        control = self._control
        if control is not None:
            if isinstance(error, CollectiveTimeout | TransportError) and self._runner.aborted is None:
                cause = control.explain(error, f"{self._describe()} failed: {stage}: " if stage else "")
            control.fail(cause)
        self._broken = cause
        self._dump_calls(cause)
        if cause is error:
            raise error
        raise cause from error

    def _dump_calls(self, error: BaseException) -> None:
        """Writes the last calls of every group of this process, where ``TOPOCCL_DEBUG`` asks for more than warnings."""
        if self.logger.level < Level.INFO:
            return
        self.logger.warn(Subsystem.COLL, "group %s has failed: %s", self.name, error)
        for group in list(open_communicators):
            self.logger.warn(Subsystem.COLL, "%s", group.recent_calls())

    def recent_calls(self) -> str:
        """The last calls that this rank has made in this group, a line each: number, what, and whether it has ended."""
        control, last = self._control, self._calls
        lines = [f"rank {self.rank} of group {self.name} has made {last} calls" + (", the last ones:" if last else "")]
        for number in range(max(1, last + 1 - _RECENT), last + 1):
            call = self._recent[number % _RECENT]
            open_still = control is not None and number == last and control.open
            lines.append(f"  {number}: {call.text if call else '?'}{', not ended' if open_still else ''}")
        return "\n".join(lines)

    def _scratch_for(self, nbytes: int, dtype: DType) -> Array:
        """The group's scratch memory, grown if need be: calls of a group never overlap, so they share it."""
        if self._scratch.size < nbytes:
            size = -(-nbytes // _ALIGN) * _ALIGN
            self._scratch = np.empty(0, np.uint8)  # what it was goes back before more is taken
            self._scratch = pool().bytes(size) if size > _FROM_POOL else np.empty(size, np.uint8)
        return self._scratch[:nbytes].view(dtype.carrier)

    def _announce(self, choice: Choice) -> None:
        if self.rank == 0:
            if choice.warning:
                self.logger.warn(Subsystem.TUNING, "%s", choice.warning)
            self.logger.info(Subsystem.TUNING, "%s", format_choice(choice))


def _after_fork() -> None:
    """A child shares its parent's memory with the other ranks, who would take it for the parent."""
    for communicator in list(open_communicators):
        communicator._broken = TopocclError(f"it belongs to process {os.getppid()}, of which this is a fork")
    open_communicators.clear()  # the child has nothing to close


os.register_at_fork(after_in_child=_after_fork)


def _no_program(parity: int) -> Program:
    raise TopocclError("the group of this plan is closed")
