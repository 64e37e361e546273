"""Groups that run at once and share links: how long each one's call takes then, and which link limits them.

Each group runs the schedule that it would choose alone. Alone, a call of group ``g`` takes ``T_g`` and keeps link ``l`` busy for
``b_gl`` seconds, thus uses the share ``d_gl = b_gl / T_g`` of it. At once, a group runs at a pace of ``s_g <= 1`` of that, the same on all
of its links, since its ranks wait for each other. A link gives every group as much of its time as the others, as long as the group can use
it (max-min fair, as flows of TCP share a link); the group that is slowed most is settled first, and what it leaves is shared by the rest.
When the call of one group is over, the others share anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topoccl.algorithms.calibration import Profile
from topoccl.algorithms.choice import Choice
from topoccl.algorithms.cost import CostModel, block_bytes
from topoccl.topology.graph import Topology
from topoccl.topology.units import format_ranks

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Group:
    """A group and its call.

    Attributes:
        name: for people.
        ranks: of the whole topology, in the order of the group's own ranks.
        choice: what it runs, chosen for ``topology.place(ranks)``.
    """

    name: str
    ranks: tuple[int, ...]
    choice: Choice


@dataclass(frozen=True)
class Share:
    """What one group gets.

    Attributes:
        alone, seconds: of its call when nothing else runs, and when all groups call at the same moment.
        limit: the link that slows it (an index into ``topology.links``); None when nothing does.
        on_limit: bytes/s on the link of :attr:`Together.link` while all run, headers included; 0 when it does not use it.
    """

    alone: float
    seconds: float
    limit: int | None
    on_limit: float


@dataclass(frozen=True)
class Together:
    """All groups at once.

    Attributes:
        shares: one for each group.
        link: the link that all calls together keep busy longest; None without messages.
        rate: bytes/s that all groups together get on it while all run, headers included.
    """

    shares: tuple[Share, ...]
    link: int | None
    rate: float


def mesh_groups(sizes: Mapping[str, int], ranks: int) -> dict[str, list[tuple[int, ...]]]:
    """The groups of each dimension of a mesh whose last dimension varies fastest, as in ``torch.distributed.init_device_mesh``.

    Raises:
        ValueError: as many ranks as the mesh has places do not exist.
    """
    places = math.prod(sizes.values())
    if places != ranks:
        raise ValueError(f"a mesh of {'x'.join(map(str, sizes.values()))} has {places} places, but there are {ranks} ranks")
    table = np.arange(ranks).reshape(tuple(sizes.values()))
    return {
        name: [tuple(row) for row in np.moveaxis(table, axis, -1).reshape(-1, size).tolist()]
        for axis, (name, size) in enumerate(sizes.items())
    }


def check_groups(groups: Sequence[Sequence[int]], topology: Topology) -> None:
    """Refuses ranks that do not exist and those that a group names twice.

    Raises:
        ValueError: naming the group.
    """
    for ranks in groups:
        wrong = [rank for rank in ranks if not 0 <= rank < topology.num_ranks]
        if wrong or len(set(ranks)) != len(ranks) or not ranks:
            reason = f"rank {wrong[0]} does not exist, there are {topology.num_ranks}" if wrong else "a group has each of its ranks once"
            raise ValueError(f"group of {format_ranks(ranks)}: {reason}")


def together(groups: Sequence[Group], topology: Topology, profile: Profile) -> Together:
    """What the groups get when all begin their calls at the same moment.

    Args:
        topology: of all ranks.
    """
    alone = np.array([group.choice.seconds for group in groups])
    busy = np.zeros((len(groups), len(topology.links)))
    for row, group in zip(busy, groups, strict=True):
        model = CostModel(group.choice.schedule, topology.place(group.ranks), profile)
        row[:] = model.link_seconds(block_bytes(group.choice.schedule.spec, group.choice.nbytes))
    demand = np.divide(busy, alone[:, None], out=np.zeros_like(busy), where=alone[:, None] > 0)
    pace, limits = _paces(demand)
    total = busy.sum(axis=0)
    link = int(total.argmax()) if total.max(initial=0.0) > 0 else None
    rate = np.zeros(len(groups)) if link is None else pace * demand[:, link] * topology.links[link].bandwidth
    seconds = _ends(alone, demand)
    return Together(tuple(Share(*row) for row in zip(alone.tolist(), seconds, limits, rate.tolist(), strict=True)), link, float(rate.sum()))


def _ends(alone: Floats, demand: Floats) -> list[float]:
    """When each group's call is over."""
    left, ends, now = alone.copy(), np.zeros(len(alone)), 0.0
    running = np.flatnonzero(left > 0)
    while len(running):
        pace, _ = _paces(demand[running])
        step = float((left[running] / pace).min())
        now += step
        left[running] = np.maximum(left[running] - pace * step, 0.0)
        over = running[left[running] <= 1e-9 * alone[running]]
        ends[over] = now
        running = np.setdiff1d(running, over)
    return [float(end) for end in ends]


def _paces(demand: Floats) -> tuple[Floats, list[int | None]]:
    """The pace of each group, 1 if nothing slows it, and the link that does."""
    shared = np.flatnonzero(demand.sum(axis=0) > 1 + 1e-9)
    pace = np.ones(len(demand))
    limits: list[int | None] = [None] * len(demand)
    waiting = list(range(len(demand)))
    used = np.zeros(len(shared))
    while waiting and len(shared):
        wanted = demand[waiting][:, shared]
        level = np.array([_level(column, 1.0 - taken) for column, taken in zip(wanted.T, used, strict=True)])
        slowed = np.where(wanted > level, level / np.where(wanted > 0, wanted, 1.0), 1.0)
        at, link = np.unravel_index(int(slowed.argmin()), slowed.shape)
        group = waiting.pop(int(at))
        pace[group] = max(float(slowed[at, link]), 1e-9)
        if pace[group] < 1:
            limits[group] = int(shared[link])
        used = np.minimum(used + pace[group] * demand[group, shared], 1.0)
    return pace, limits


def _level(wanted: Floats, capacity: float) -> float:
    """The most that any one may take so that all together take no more than ``capacity``."""
    left, level = max(capacity, 0.0), math.inf
    ordered = np.sort(wanted)
    for at, want in enumerate(ordered.tolist()):
        if want * (len(ordered) - at) >= left:
            return left / (len(ordered) - at)
        left -= want
    return level


def limits_in_words(topology: Topology, found: Together) -> str:
    """One sentence: the link that limits, and how much of it all groups together use."""
    if found.link is None:
        return "no group sends anything"
    link = topology.links[found.link]
    users = sum(share.on_limit > 0 for share in found.shares)
    who = f"{users} groups together use" if users > 1 else "one group uses"
    slowest = max(share.seconds / share.alone if share.alone else 1.0 for share in found.shares)
    slowed = f"at most {slowest:.3g} times slower than alone" if slowest > 1.005 else "none is slower than alone"
    return f"the busiest link is {link.name}: {who} {found.rate / link.bandwidth:.0%} of it while all run; {slowed}"
