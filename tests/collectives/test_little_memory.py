"""Hosts that give ranks less than they want: little memory to share, or no leave to read each other's."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_calls_in_step import on_threads
from torch_ranks import all_well, run_ranks

from topoccl.collectives.communicator import Communicator
from topoccl.collectives.errors import TransportError
from topoccl.collectives.executor import arena, reach

K = 1 << 10
DOOR = reach.Door()

LIMITED = """
import resource
import numpy as np
import topoccl
resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
world = topoccl.init()
data = np.arange(3 << 20, dtype=np.float32) % 1009
world.all_reduce(data)
assert (data == 2 * (np.arange(3 << 20) % 1009)).all()
assert world.stats()["arena"] < 4 << 20 and len(set(world.hosts)) == 1
assert sum(t.sent_bytes for t in world.stats()["shared_memory"].values()) > 0
world.close()
"""


def long_calls(world: Communicator) -> int:
    """Calls of several MiB, right or not; returns the bytes of the arena."""
    block = 300_000
    whole = (np.arange(block * world.size) % 1009 + world.rank).astype(np.float32)
    everyone = [(np.arange(block * world.size) % 1009 + r).astype(np.float32) for r in range(world.size)]
    mine, out, part = slice(world.rank * block, (world.rank + 1) * block), np.empty_like(whole), np.empty(block, np.float32)
    world.all_reduce(whole, out)
    np.testing.assert_array_equal(out, sum(everyone))
    world.all_to_all(whole, out)
    np.testing.assert_array_equal(out, np.concatenate([e[mine] for e in everyone]))
    world.reduce_scatter(whole, part)
    np.testing.assert_array_equal(part, sum(e[mine] for e in everyone))
    world.all_gather(part, out)
    np.testing.assert_array_equal(out, sum(everyone))
    world.broadcast(out, 1)
    np.testing.assert_array_equal(out, sum(everyone))
    return int(world.stats()["arena"])


@pytest.mark.parametrize("hosts", ["aaa", "aab", "aabb"])
def test_a_smaller_arena_where_memory_is_short(hosts: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(arena, "_room", lambda: 1 << 20)
    sizes = on_threads(hosts, long_calls, attach=False)
    for host, size in zip(hosts, sizes, strict=True):
        members = hosts.count(host)
        assert size == (arena.arena_size(members, 64 * K) if members > 1 else 0)
    assert capfd.readouterr().err.count("memory is short on a host: 64 KiB per rank") == 1


def test_steps_between_a_full_arena_and_none(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = [0]
    truncate = os.ftruncate

    def limited(fd: int, size: int) -> None:
        if size > limit[0]:
            raise OSError(errno.ENOSPC, "no space")
        truncate(fd, size)

    monkeypatch.setattr(os, "ftruncate", limited)
    areas = []
    for limit[0] in (1 << 40, 20 << 20, 4 << 20, arena.arena_size(2, 64 * K)):
        made, offer = arena.create(2)
        assert made.area == offer.area
        areas.append(made.area // K)
        joined = arena.join(offer, 2)
        assert joined is not None
        assert joined.area == made.area
        joined.close_fd()
        made.close_fd()
    assert areas == [8192, 2048, 512, 64]
    limit[0] -= 1
    with pytest.raises(OSError, match="no space"):
        arena.create(2)


@pytest.mark.parametrize("hosts", ["aaa", "aab"])
@pytest.mark.parametrize("fits", [True, False])
def test_a_rank_that_has_no_room_for_the_arena(
    hosts: str, fits: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A limit of one rank alone: all take a smaller arena, or none."""
    mapped = arena.Arena.__init__

    def limited(self: arena.Arena, fd: int, members: int, area: int) -> None:
        if threading.current_thread() in joining and area > (512 * K if fits else 0):
            raise OSError(errno.ENOMEM, "no address space")
        mapped(self, fd, members, area)

    join, joining = arena.join, set()

    def joins(offer: arena.ArenaOffer, members: int) -> arena.Arena | None:
        joining.add(threading.current_thread())
        try:
            return join(offer, members)
        finally:
            joining.discard(threading.current_thread())

    monkeypatch.setattr(arena.Arena, "__init__", limited)
    monkeypatch.setattr(arena, "join", joins)
    sizes = on_threads(hosts, long_calls, attach=False)
    together = hosts.count("a")
    full = arena.arena_size(together, 512 * K) if fits else 0
    assert sizes == [full if host == "a" else 0 for host in hosts]
    said = capfd.readouterr().err
    assert said.count("memory is short on a host: 512 KiB per rank") == int(fits)
    assert ("shared memory is not used on a host: " in said) == (not fits)


def test_a_limit_on_the_size_of_files() -> None:
    results = run_ranks(2, ["-c", LIMITED], env={"TOPOCCL_TRANSPORT": "gloo"})
    all_well(results)
    assert sum(text.count("memory is short on a host") for _, text in results) == 1


def refused(*_: Any) -> int:
    ctypes.set_errno(errno.EPERM)
    return -1


def refusing(when: Callable[[], bool]) -> Callable[..., int]:
    """A process_vm_readv that Yama refuses ``when`` says so."""
    allowed = reach._readv
    return lambda *args: refused() if when() else allowed(*args)


@pytest.mark.skipif(not reach.opens(DOOR.offer), reason="this system does not let processes read each other's memory")
@pytest.mark.parametrize("who", ["nobody", "one", "all"])
def test_no_leave_to_read_others_memory(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unlucky: set[int] = set()
    monkeypatch.setattr(reach, "_readv", refusing(lambda: who == "all" or (who == "one" and threading.get_ident() in unlucky)))
    lock = threading.Lock()

    def work(world: Communicator) -> bool:
        long_calls(world)
        assert world.last_choice is not None
        reads = world.planner.site.reach is not None
        assert reads or not world.last_choice.pulls
        return reads

    opens = reach.opens

    def asked(offer: tuple[int, int, bytes]) -> bool:
        with lock:
            if not unlucky:
                unlucky.add(threading.get_ident())  # the first that asks
        return opens(offer)

    monkeypatch.setattr("topoccl.collectives.hosts.opens", asked)
    assert set(on_threads("aaa", work)) == {who == "nobody"}  # all do alike


def test_leave_that_is_withdrawn_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    withdrawn = [False]
    monkeypatch.setattr(reach, "_readv", refusing(lambda: withdrawn[0]))
    data, flags = np.arange(9), memoryview(bytearray(64)).cast("q")
    read = reach.Reach({1: os.getpid()}).of(1, flags, 0)
    reach.show(flags, 0, 7, reach.address_of(data), 0)
    target = np.zeros(9, np.int64)
    withdrawn[0] = True
    with pytest.raises(TransportError, match=r"the memory of rank 1 .process .* cannot be read: Operation not permitted"):
        read(7, 0, 0, 72, reach.address_of(target))


@pytest.mark.parametrize(("scope", "asks"), [("0\n", False), ("1\n", True), ("2\n", False), (None, False)])
def test_siblings_are_admitted_where_yama_wants_that_said(
    scope: str | None, asks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[int, ...]] = []
    file = tmp_path / "ptrace_scope"
    if scope is not None:
        file.write_text(scope)
    monkeypatch.setattr(reach, "_YAMA", str(file))
    monkeypatch.setattr(reach, "_prctl", lambda *args: said.append(args))
    reach.Door()
    assert said == ([(0x59616D61, os.getppid(), 0, 0, 0)] if asks else [])
