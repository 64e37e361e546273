"""Rings along the axes of a grid, one axis after the other (as in BlueConnect and in the bucket algorithms of tori)."""

from __future__ import annotations

import numpy as np

from topoccl.algorithms.algorithm import Algorithm
from topoccl.algorithms.builders.common import MOST_PARTS, check, check_count, one_rank
from topoccl.algorithms.grids import host_grid, rank_grid
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import CollectiveSpec
from topoccl.topology.graph import Topology

NAME = "torus"


def build(spec: CollectiveSpec, topology: Topology, *, channels: int = 1) -> Schedule:
    """all_reduce by a ring reduce-scatter along each axis of :func:`~topoccl.algorithms.grids.rank_grid`, then ring all-gathers back.

    Ranks of one host are an axis of their own and come first; a pair of channels (forwards and backwards) starts at the first axis
    between hosts, the next pair at the second, and so on: with two channels per axis a torus keeps every link busy.

    Steps: 2 sum(d_i - 1) over the lengths d_i of the axes, against 2(p-1) of one ring. Bytes sent by a rank: 2(p-1)/p n, of which an axis
    carries 2(d-1)/d of what the axes before it left. No scratch. Each sum is made once, so all ranks end with the same bits. Right in
    place.

    Raises:
        ValueError: ``channels`` not from 1 to ``MOST_PARTS``, or arguments that do not fit together.
    """
    check(NAME, spec, topology, ("all_reduce",))
    check_count(NAME, "channels", channels, most=MOST_PARTS)
    params = (("channels", channels),)
    if spec.ranks == 1:
        return one_rank(NAME, spec, params)
    grid = rank_grid(topology)
    b = ScheduleBuilder(spec, NAME, chunks=channels * spec.ranks, params=params)
    for channel in range(channels):
        _channel(b, grid, _axes(topology, grid, channel // 2), channel)
    return b.build()


def _axes(topology: Topology, grid: np.ndarray, turn: int) -> list[int]:
    """The order of the axes: the ranks of a host, then the axes between hosts from number ``turn`` on, cyclically."""
    inside = [grid.ndim - 1] if len(topology.ranks_by_host) < topology.num_ranks else []
    between = [axis for axis in range(grid.ndim) if axis not in inside]
    turn %= max(len(between), 1)
    return inside + between[turn:] + between[:turn]


def _channel(b: ScheduleBuilder, grid: np.ndarray, axes: list[int], channel: int) -> None:
    p, forward = grid.size, 1 - 2 * (channel % 2)
    first = {int(rank): channel * p for rank in grid.flat}
    size = p
    stages = []
    for stage, axis in enumerate(axes):
        length = grid.shape[axis]
        size //= length
        rings = np.moveaxis(grid, axis, -1).reshape(-1, length)[:, ::forward]
        stages.append((stage, rings, dict(first), size))
        for ring in rings.tolist():
            for at, rank in enumerate(ring):
                _reduce_scatter(b, ring, at, first[rank], size, stage, channel)
        for ring in rings.tolist():
            for at, rank in enumerate(ring):
                first[rank] += (at + 1) % length * size
    for stage, rings, began, size in reversed(stages):
        for ring in rings.tolist():
            for at, rank in enumerate(ring):
                _all_gather(b, ring, at, began[rank], size, stage, channel)


def _lanes(b: ScheduleBuilder, rank: int, stage: int, channel: int) -> tuple[int, int]:
    return b.lane(rank, ("send", channel, stage), channel=channel), b.lane(rank, ("receive", channel, stage), channel=channel)


def _reduce_scatter(b: ScheduleBuilder, ring: list[int], at: int, base: int, size: int, stage: int, channel: int) -> None:
    """Leaves rank ``ring[at]`` with piece ``at + 1`` of the ``len(ring)`` pieces of ``size`` chunks from ``base``."""
    d = len(ring)
    send, receive = _lanes(b, ring[at], stage, channel)
    for step in range(d - 1):
        source = Buf.OUTPUT if stage or step else Buf.INPUT
        b.send(send, (source, base + (at - step) % d * size), ring[(at + 1) % d], size)
        piece = base + (at - step - 1) % d * size
        b.recv_reduce(receive, ring[at - 1], (Buf.OUTPUT if stage else Buf.INPUT, piece), (Buf.OUTPUT, piece), size)


def _all_gather(b: ScheduleBuilder, ring: list[int], at: int, base: int, size: int, stage: int, channel: int) -> None:
    d = len(ring)
    send, receive = _lanes(b, ring[at], stage, channel)
    for step in range(d - 1):
        b.send(send, (Buf.OUTPUT, base + (at + 1 - step) % d * size), ring[(at + 1) % d], size)
        b.recv(receive, ring[at - 1], (Buf.OUTPUT, base + (at - step) % d * size), size)


def _reject(spec: CollectiveSpec, topology: Topology) -> str | None:
    if host_grid(topology) is None:
        return "hosts are not wired as a mesh or torus"
    sizes = sorted(set(map(len, topology.ranks_by_host)))
    return None if len(sizes) == 1 else f"hosts have from {sizes[0]} to {sizes[-1]} ranks"


ALGORITHMS = (
    Algorithm(
        name=NAME,
        collectives=("all_reduce",),
        build=build,
        variants=({"channels": 1}, {"channels": 2}, {"channels": 4}),
        reject=_reject,
        summary="rings along one axis of a mesh or torus after the other, starting at several axes at once",
    ),
)
