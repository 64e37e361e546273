"""Makes a group for torch: the first one opens a transport, the others share it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from topoccl.collectives.bootstrap import LaunchInfo, exchange, open_transport
from topoccl.collectives.config import Config, check_agreement, variable_of
from topoccl.collectives.errors import ConfigError, MismatchError, TopocclError
from topoccl.collectives.logging import Subsystem
from topoccl.collectives.setup import connect
from topoccl.collectives.torch_backend import patches
from topoccl.collectives.torch_backend.compat import default_timeout, not_compiled, watch_store
from topoccl.collectives.torch_backend.devices import with_devices
from topoccl.collectives.torch_backend.process_group import TopocclGroup
from topoccl.collectives.torch_backend.rendezvous import Meeting, launched_by_mpi, master_address

if TYPE_CHECKING:
    from topoccl.collectives.communicator import Communicator
    from topoccl.collectives.transports.base import Transport


FAREWELL_SECONDS = 5.0
_LOCAL_NAME = "[0-9a-f]{40}"  # names of groups made with use_local_synchronization


@not_compiled
class World(TopocclGroup):
    """The group of all ranks; sub-groups send over its transport, under numbers that it gives out."""

    def __init__(self, communicator: Communicator, name: str, meeting: Meeting) -> None:
        super().__init__(communicator, name, meeting.given, communicator.close)
        self._meeting: Meeting | None = meeting
        self._freed: deque[int] = deque()
        self._local: dict[tuple[int, ...], int] = {}

    def meeting_of(self, ranks: list[int], options: Any) -> Meeting:
        """Where the members of a sub-group meet.

        Torch's names for groups that only their members make count all groups of a rank, and of these not all ranks need have equally
        many. So the members of those meet by who they are, and by how many such groups they have made.
        """
        assert self._meeting is not None
        place = f"groups/{options.group_id}"
        if re.fullmatch(_LOCAL_NAME, options.group_id):
            members = tuple(ranks)
            number = self._local[members] = self._local.get(members, 0) + 1
            digest = hashlib.sha1(repr(members).encode(), usedforsecurity=False).hexdigest()
            place = f"members/{digest}/{number}"
        return Meeting(
            options.store, options.group_rank, len(ranks), options.timeout.total_seconds(), ranks=ranks,
            within=dist.PrefixStore(place, self._meeting.store), what=f"new_group {options.group_id} of ranks {_some(ranks)}",
        )  # fmt: skip

    def take_number(self) -> int:
        """A number that no open sub-group has: unused ones first, so that late messages of a closed group find nobody."""
        transport = self.communicator.transport
        assert self._meeting is not None
        number = int(self._meeting.store.add("groups", 1))
        if number <= transport.max_group:
            return number
        if not self._freed:
            raise ConfigError(f"too many groups are open: transport {transport.name} has numbers for {transport.max_group}")
        return self._freed.popleft()

    def give_back(self, number: int) -> None:
        """Ends the use of a number that this rank took."""
        self._freed.append(number)

    def shutdown(self) -> None:
        """Leaves together with the others, in bounded time.

        A store that rank 0 serves ends when it has left. A rank that began its next group before, at the same address, would meet
        the old store and lose it, so the others wait for its end.
        """
        meeting, self._meeting = self._meeting, None
        if meeting is None:
            return
        watch = watch_store(meeting.given) if meeting.rank and self.communicator.broken is None else None
        if self.communicator.broken is None:
            self.communicator.together(self._farewell)  # after all open calls
        super().shutdown()
        self.communicator.logger.close()
        if watch is not None:
            with watch, contextlib.suppress(OSError):
                watch.settimeout(FAREWELL_SECONDS)
                watch.recv(1)

    def _farewell(self) -> None:
        if self.communicator.broken is not None:
            return
        try:
            exchange(self.communicator.transport, None, FAREWELL_SECONDS)
        except TopocclError as error:
            text = "destroy_process_group: not all ranks have called it within %g s; going on (%s)"
            self.communicator.logger.warn(Subsystem.INIT, text, FAREWELL_SECONDS, error)


def create(options: Any) -> TopocclGroup:
    """What torch calls for each group, on its members; as :func:`_create`, with backends for the other devices that were asked for."""
    patches.install_hooks()
    with patches.other_devices() as others:
        return with_devices(_create(options), others, options)


def _create(options: Any) -> TopocclGroup:
    """A group for tensors of the CPU.

    Args:
        options: torch's: the group's store, this rank, the number of ranks, the timeout, the name, and the ranks in the default
            group (none when it is the default group that is made).

    Raises:
        ConfigError: a variable that cannot be used, or on which ranks do not agree; on every rank.
        MismatchError: ranks disagree about who is a member.
        TransportError, CollectiveTimeout: ranks do not reach each other.
    """
    given = options.timeout.total_seconds()
    ranks = list(options.global_ranks_in_group)
    world = dist.group.WORLD
    if ranks and isinstance(world, World):
        return _subgroup(world, ranks, world.meeting_of(ranks, options), options.group_id, given)
    meeting = Meeting(options.store, options.group_rank, options.group_size, given, what="new_group" if ranks else "init_process_group")
    transport, config = _open(meeting)
    try:
        communicator = connect(transport, config, options.group_id, _timeout(given, config))
    except BaseException:
        transport.close()
        raise
    if ranks:
        return TopocclGroup(communicator, options.group_id, meeting.given, communicator.close)
    return World(communicator, options.group_id, meeting)


def _timeout(given: float, config: Config) -> float:
    """A timeout given to torch beats the variable; torch's default, which stands for none given, does not."""
    return config.timeout if given == default_timeout and config.sources.get("timeout", "default") != "default" else given


def _open(meeting: Meeting) -> tuple[Transport, Config]:
    """A transport among the ranks of a group, of the kind that all of them can use."""
    found: list[Config] = []

    def wish() -> dict[str, Any]:
        config = Config.from_environment(os.environ)
        found.append(config)
        return {"size": meeting.size, "asked": config.transport, "usable": _usable(config.transport, meeting.rank, meeting.size)}

    def decide(said: Iterator[tuple[int, dict[str, Any]]]) -> str:
        wishes = []
        for rank, wish in said:
            if wish["size"] != meeting.size:
                sizes = f"rank {meeting.ranks[0]} is told that there are {meeting.size} ranks, rank {rank} that there are {wish['size']}"
                raise MismatchError(f"{meeting.what}: {sizes}")
            wishes.append(wish)
        check_agreement([{variable_of("transport"): wish["asked"]} for wish in wishes])
        return next(name for name in wishes[0]["usable"] if all(name in wish["usable"] for wish in wishes))

    name = meeting.settle(wish, decide)
    (config,) = found
    info = LaunchInfo("torchrun", meeting.rank, meeting.size, master=master_address())
    store = dist.PrefixStore("gloo", meeting.store)
    return open_transport(name, info, _timeout(meeting.timeout, config), config.socket_ifname, store), config


def _usable(asked: str, rank: int, size: int) -> list[str]:
    """The transports that this rank of a group can use, the best first.

    Raises:
        ConfigError: the one that was asked for is not among them.
    """
    if asked == "tcp":
        asked = "auto"  # of what there is to meet on
    if size == 1 and asked in ("auto", "memory"):
        return ["memory"]
    usable = ["gloo"]
    why = "it joins threads of one process; a group of torch.distributed has one rank per process"
    if asked in ("auto", "mpi"):
        info = launched_by_mpi(rank, size)
        if info is None:
            why = f"the group's rank {rank} of {size} is not a rank of one MPI job (start the ranks with mpirun)"
        else:
            try:
                from topoccl.collectives.transports.mpi_process import import_mpi

                import_mpi()
                usable.insert(0, "mpi")
            except ConfigError as error:
                if asked == "mpi":
                    raise
                why = str(error)
    if asked != "auto":
        if asked not in usable:
            raise ConfigError(f"transport {asked}: {why}. Usable here: auto, {', '.join(usable)}")
        return [asked]
    return usable


def _subgroup(world: World, ranks: list[int], meeting: Meeting, name: str, given: float) -> TopocclGroup:
    taken: list[int] = []

    def number(said: Iterator[tuple[int, list[int]]]) -> int:
        for rank, theirs in said:
            if theirs != ranks:
                raise MismatchError(
                    f"new_group: rank {ranks[0]} makes group {name} of ranks {_some(ranks)}, rank {rank} of ranks {_some(theirs)}; "
                    "all ranks must make the same groups in the same order"
                )
        taken.append(world.take_number())
        return taken[0]

    number_of_group = meeting.settle(lambda: ranks, number)
    parent = world.communicator
    communicator = parent.subgroup(ranks, number_of_group, name, _timeout(given, parent.config))

    def ended() -> None:
        communicator.close()
        for number in taken:
            world.give_back(number)

    return TopocclGroup(communicator, name, meeting.given, ended)


def _some(ranks: list[int]) -> str:
    return str(ranks) if len(ranks) <= 16 else f"{ranks[:16]} and {len(ranks) - 16} more"
