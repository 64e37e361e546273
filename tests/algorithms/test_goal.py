"""GOAL documents, read back by a small reader of their own and run until nothing is left."""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque

import pytest

from topoccl.algorithms import goal
from topoccl.algorithms.goal import write_goal
from topoccl.algorithms.registry import algorithms_for, build_verified, by_name
from topoccl.algorithms.schedule import Schedule
from topoccl.algorithms.spec import COLLECTIVES, ROOTED, CollectiveSpec
from topoccl.topology.generators import generate
from topoccl.topology.graph import Topology

LINE = re.compile(r"l(\d+): (?:(send|recv) (\d+)b (?:to|from) (\d+) tag (\d+)|calc 0) cpu (\d+)$")


def run(text: list[str]) -> tuple[int, Counter[tuple[int, int]]]:
    """The number of operations that were run and the bytes from rank to rank; every one must be run and every message be matched."""
    ranks = int(re.fullmatch(r"num_ranks (\d+)", text[0]).group(1))
    waits: Counter[tuple[int, int]] = Counter()
    followers: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    operations: dict[tuple[int, int], tuple[str, int, int, int] | None] = {}
    receivers: dict[tuple[int, int, int], tuple[int, int]] = {}
    rank = -1
    for line in text[1:]:
        if opened := re.fullmatch(r"rank (\d+) \{", line):
            assert int(opened.group(1)) == rank + 1
            rank += 1
        elif needed := re.fullmatch(r"l(\d+) requires l(\d+)", line):
            later, earlier = (rank, int(needed.group(1))), (rank, int(needed.group(2)))
            assert operations.keys() >= {later, earlier}
            followers[earlier].append(later)
            waits[later] += 1
        elif line != "}":
            label, kind, size, peer, tag, _ = LINE.fullmatch(line).groups()
            node = (rank, int(label))
            assert node not in operations
            operations[node] = (kind, int(size), int(peer), int(tag)) if kind else None
            if kind == "recv":
                assert (int(peer), rank, int(tag)) not in receivers
                receivers[int(peer), rank, int(tag)] = node
                waits[node] += 1
    assert rank == ranks - 1
    ready = deque(node for node in operations if not waits[node])
    traffic: Counter[tuple[int, int]] = Counter()
    done = 0
    while ready:
        node = ready.popleft()
        done += 1
        operation = operations[node]
        unlocked = list(followers[node])
        if operation is not None and operation[0] == "send":
            _, size, peer, tag = operation
            receive = receivers.pop((node[0], peer, tag))
            assert operations[receive][1] == size
            traffic[node[0], peer] += size
            unlocked.append(receive)
        for other in unlocked:
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    assert done == len(operations)
    assert not receivers
    return done, traffic


def schedules(topology: Topology) -> list[Schedule]:
    found = []
    for collective in COLLECTIVES:
        spec = CollectiveSpec(collective, topology.num_ranks, 1 if collective in ROOTED else None)
        for algorithm in algorithms_for(collective):
            if algorithm.reject(spec, topology) is None:
                found.append(build_verified(algorithm, spec, topology))
    return found


@pytest.mark.parametrize("text", ["cluster:2+3", "mesh:2x3"])
@pytest.mark.parametrize("segments", [1, 4])
def test_every_operation_runs_and_every_message_is_matched(text: str, segments: int) -> None:
    topology = generate(text)
    for schedule in schedules(topology):
        run(list(write_goal(schedule, topology, 4800.0, segments)))


def test_bytes_are_those_of_the_schedule() -> None:
    topology = generate("cluster:1x4")
    schedule = build_verified(by_name("all_reduce", "ring"), CollectiveSpec("all_reduce", 4), topology)
    done, traffic = run(list(write_goal(schedule, topology, 4000, 2)))
    assert set(traffic.values()) == {6 * 1000}
    assert len(traffic) == 4
    assert done == 2 * 4 * (6 * 2 + 6 + 6)  # per segment and rank: 6 sends and 6 receives, each in a step with a calc


def test_tags_tell_channels_apart() -> None:
    topology = generate("cluster:1x2")
    schedule = build_verified(by_name("all_reduce", "ring"), CollectiveSpec("all_reduce", 2), topology, {"channels": 2})
    _, traffic = run(list(write_goal(schedule, topology, 4000)))
    assert traffic == {(0, 1): 4000, (1, 0): 4000}


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = generate("cluster:1x4")
    schedule = build_verified(by_name("all_reduce", "ring"), CollectiveSpec("all_reduce", 4), topology)
    with pytest.raises(ValueError, match=r"ring\[channels=1\]: 0 segments; expected at least 1"):
        write_goal(schedule, topology, 4000, 0)
    monkeypatch.setattr(goal, "MAX_OPERATIONS", 95)
    with pytest.raises(ValueError, match="96 operations in 1 segments; at most 95 are written"):
        write_goal(schedule, topology, 4000)
