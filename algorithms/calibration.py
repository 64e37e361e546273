"""What a transport costs beyond the links themselves: the constants of the cost model.

A topology says what the wires can do; a :class:`Profile` says what is left of it after software. The defaults are typical
figures of one small machine, good enough to rank algorithms; their ratios carry over, their absolute values do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

TRANSPORTS = ("tcp", "mpi", "gloo", "memory")
"""The transports that have a profile of their own; ``ideal`` is the profile without any overhead."""

PULL_FROM = 512 << 10
"""Bytes of a chunk below which nobody reads another process's memory: then two copies through shared memory stay in cache. Where values
are folded, which reads a copy in cache anyway, the double; where all read the same, four times as many."""


TURN = 1e-6
"""Seconds of its processor that a rank loses by each message for each other rank on its core, since they run with cold caches then,"""
TURNS = 25e-6
"""and seconds that each of these others may use the core before a message is seen."""

LOCAL_TURNS = 8e-6
"""The same for a message inside a host that shares a machine with others, which are busy but part of the time."""

STAMPED = 64 << 10
"""Bytes up to which calls may be stamped: messages of longer ones had better have receives."""

COLD = 2e-6
"""Seconds of its processor that a rank whose host shares a machine with others loses by each message inside its host, at either side,
for each other rank on its core."""

BUCKET = 32 << 10
"""Bytes that links pass at once between hosts of one machine: they are no wires, and what limits them is a bucket of tokens."""


@dataclass(frozen=True, slots=True)
class Medium:
    """One way for a message to go from rank to rank.

    Attributes:
        send_overhead: seconds of the sender's processor per message.
        recv_overhead: seconds of the receiver's processor per message.
        latency: seconds that a message takes besides what the links on its route say; between hosts that share a machine as often as there
            are other ranks on a core, for so long it waits for a turn.
        call_overhead: seconds of each rank's processor per call, before and after all messages, where some go this way.
        stamped_overhead: seconds of the processor, of both sides, per message of short calls whose messages tell every rank that all others
            make the same call (:mod:`~topoccl.algorithms.hearing`), so that nothing else has to; 0 where messages cannot.
        stamped_call: ``call_overhead`` of these calls.
        stamped_rate: bytes/s at which the processor, on both sides, handles what these messages hold: all of one before the next step,
            while of messages of longer calls it handles parts as they come.
        staged: the message passes through memory that both ranks see: the sender copies it in, the receiver copies it out,
            unless it folds it straight from there.
        both_ways: the share of the both directions' rate that is left when two ranks send to each other at the same time,
            from 0.5 (as if they took turns) to 1.
        efficiency: payload bytes per byte on the wire.
        burst: bytes on the wire that a link passes at once after a pause, as those do that a token bucket limits.
        room: bytes of messages that one rank can have under way in one segment; longer calls run in more segments.
        piece: bytes; pipeline segments are not chosen so small that a block's share of one falls below this where all messages go this way.
        pull_bandwidth: bytes/s at which a rank reads another one's buffers without a copy in between; 0 where it cannot.
        pull_small_pages: the same where these buffers do not lie on huge pages, each of which costs as much as a small one to find.
        pull_overhead: seconds of the receiver's processor for each such read.
    """

    send_overhead: float = 0.0
    recv_overhead: float = 0.0
    latency: float = 0.0
    call_overhead: float = 0.0
    stamped_overhead: float = 0.0
    stamped_call: float = 0.0
    stamped_rate: float = math.inf
    staged: bool = False
    both_ways: float = 1.0
    efficiency: float = 1.0
    burst: float = 0.0
    room: float = math.inf
    piece: int = 1
    pull_bandwidth: float = 0.0
    pull_small_pages: float = 0.0
    pull_overhead: float = 0.0

    def __post_init__(self) -> None:
        for name in (
            "send_overhead",
            "recv_overhead",
            "latency",
            "call_overhead",
            "stamped_overhead",
            "stamped_call",
            "burst",
            "pull_bandwidth",
            "pull_small_pages",
            "pull_overhead",
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value!r}; expected a finite number, not negative")
        if not 0.5 <= self.both_ways <= 1:
            raise ValueError(f"both_ways is {self.both_ways!r}; expected a share from 0.5 to 1")
        if not 0 < self.efficiency <= 1:
            raise ValueError(f"efficiency is {self.efficiency!r}; expected a share above 0, at most 1")
        if not self.stamped_rate > 0:
            raise ValueError(f"stamped_rate is {self.stamped_rate!r}; expected a positive number of bytes/s")
        if not self.room >= 1:
            raise ValueError(f"room is {self.room!r}; expected a positive number of bytes")


@dataclass(frozen=True, slots=True)
class Profile:
    """The constants of one transport.

    Attributes:
        name: for people.
        local: between ranks of one host.
        network: between hosts.
        copy_bandwidth: bytes/s that one rank copies within memory.
        reduce_bandwidth: bytes/s of result that one rank makes from two operands.
        min_segment: pipeline segments are not chosen so small that a block's share of one falls below this many bytes.
        max_segments: the most pipeline segments that are tried.
        crowd: how many ranks share a core; all ranks of a host together then copy and reduce no faster than its cores can.
        machine: how many ranks share a core where hosts share a machine (containers, the virtual cluster): of those whose messages keep
            them busy at a moment, no more get on at full speed than there are cores.
    """

    name: str
    local: Medium = Medium()
    network: Medium = Medium()
    copy_bandwidth: float = math.inf
    reduce_bandwidth: float = math.inf
    min_segment: int = 4096
    max_segments: int = 256
    crowd: float = 1.0
    machine: float = 1.0

    def __post_init__(self) -> None:
        for name in ("copy_bandwidth", "reduce_bandwidth"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name} is {value!r}; expected a positive number of bytes/s")
        if math.isinf(self.copy_bandwidth) and not math.isinf(self.reduce_bandwidth):
            raise ValueError(f"copies are free but reductions run at {self.reduce_bandwidth!r} bytes/s; give copy_bandwidth a number too")
        if not self.crowd >= 1:
            raise ValueError(f"crowd is {self.crowd!r}; expected a number of ranks, at least 1")
        if self.min_segment < 1 or self.max_segments < 1:
            raise ValueError(f"min_segment {self.min_segment!r} and max_segments {self.max_segments!r}: expected positive numbers")

    def on_hosts(self, crowd: float, *, attach: bool, machine: float = 1.0, shared: bool | None = None) -> Profile:
        """The same transport when ``crowd`` ranks of a host share a core, and ranks of a host can read each other's memory or not.

        ``machine`` is the same for hosts that share a machine, and ``shared`` whether they do: as told by more ranks on a core of a machine
        than of a host, or, however many cores there are, by those who know.
        """
        waits = machine > crowd  # then what ranks take from each other is simulated, but not how long they wait for a turn
        others = machine - 1
        busy = 1.0 if waits else crowd
        local = replace(
            self.local,
            send_overhead=self.local.send_overhead * busy + (COLD * others if waits else 0.0),
            recv_overhead=self.local.recv_overhead * busy + (COLD * others if waits else TURN * (crowd - 1)),
            latency=self.local.latency + (LOCAL_TURNS * others if waits else TURNS * (crowd - 1)),
            piece=round(self.local.piece * crowd),
            pull_bandwidth=self.local.pull_bandwidth if attach else 0.0,
            pull_small_pages=self.local.pull_small_pages if attach else 0.0,
            pull_overhead=self.local.pull_overhead * crowd,
        )
        network = replace(self.network, latency=self.network.latency * max(1.0, others if waits else 1.0))
        if shared or (shared is None and waits):
            network = replace(network, burst=float(BUCKET))
        return replace(self, local=local, network=network, crowd=crowd, machine=max(crowd, machine))

    def on_small_pages(self) -> Profile:
        """The same for buffers that do not lie on huge pages."""
        return replace(self, local=replace(self.local, pull_bandwidth=self.local.pull_small_pages))

    def without_shared_memory(self) -> Profile:
        """The same transport when ranks of one host talk through it too (``TOPOCCL_SHM=0``)."""
        return replace(self, name=f"{self.name}, no shared memory", local=self.network)


IDEAL = Profile("ideal")
"""Nothing but the links: latency and bandwidth as the topology says, processors and memory infinitely fast."""

# Typical of two cores of a small x86 server: one message through shared memory costs Python some three microseconds on each side, one
# between hosts, with its share of the kernel's work and with caches that the wait has left cold, ten times as much; a Gloo message
# also a hand-over to a thread and back. Memory moves 10 GB/s per core, and the
# area of a rank for messages to others of its host has 8 MiB. 5 % of a TCP stream over Ethernet are headers.
_SHARED_MEMORY = Medium(
    send_overhead=3e-6,
    recv_overhead=3e-6,
    staged=True,
    room=1 << 20,
    piece=128 << 10,
    pull_bandwidth=10e9,
    pull_small_pages=5.5e9,
    pull_overhead=3e-6,
)
_PROFILES = {
    "tcp": Profile(
        "tcp",
        local=_SHARED_MEMORY,
        network=Medium(
            send_overhead=30e-6,
            recv_overhead=30e-6,
            latency=18e-6,
            call_overhead=200e-6,
            stamped_overhead=9.5e-6,
            stamped_call=14e-6,
            stamped_rate=550e6,
            efficiency=0.95,
        ),
        copy_bandwidth=10e9,
        reduce_bandwidth=8e9,
    ),
    "mpi": Profile(
        "mpi",
        local=_SHARED_MEMORY,
        network=Medium(send_overhead=25e-6, recv_overhead=25e-6, both_ways=0.95, efficiency=0.95),
        copy_bandwidth=10e9,
        reduce_bandwidth=8e9,
    ),
    "gloo": Profile(
        "gloo",
        local=_SHARED_MEMORY,
        network=Medium(send_overhead=40e-6, recv_overhead=40e-6, efficiency=0.95),
        copy_bandwidth=10e9,
        reduce_bandwidth=8e9,
    ),
    "memory": Profile(
        "memory",
        local=Medium(send_overhead=10e-6, recv_overhead=10e-6, staged=True),
        network=Medium(send_overhead=10e-6, recv_overhead=10e-6, staged=True),
        copy_bandwidth=10e9,
        reduce_bandwidth=8e9,
    ),
    "ideal": IDEAL,
}


def default_profile(transport: str) -> Profile:
    """The profile of a transport for which nothing was measured.

    Raises:
        ValueError: an unknown transport; the message lists the known ones.
    """
    try:
        return _PROFILES[transport]
    except KeyError:
        raise ValueError(f"no cost profile for transport {transport!r}; known: {', '.join(_PROFILES)}") from None
