"""Cases that all ranks of a world call at once, each in a group of its own: over threads, or as a program by each rank of a job."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

import topoccl
from topoccl.collectives.bootstrap import launch_environment
from topoccl.collectives.communicator import Communicator

Case = Callable[[Communicator], None]


class Cases(dict[str, Case]):
    """Cases by their names.

    Args:
        limit: seconds that a group's calls may take.
        backwards: whether its ranks are counted the other way round.
    """

    def __init__(self, limit: float, *, backwards: bool = False) -> None:
        self._limit = limit
        self._order = -1 if backwards else 1

    def case(self, function: Case) -> Case:
        """Adds one."""
        self[function.__name__] = function
        return function

    def run(self, world: Communicator, name: str, number: int) -> None:
        """Runs a case in a group of its own."""
        group = world.subgroup(range(world.size)[:: self._order], number, "tested", self._limit)
        try:
            self[name](group)
            world.barrier()
        finally:
            group.close()

    def main(self, hosts: str, names: list[str], more: Callable[[Communicator], str] = lambda world: "") -> int:
        """A rank's program: runs all cases, or those of these names; what ``more`` says ends its last line."""
        rank = launch_environment(os.environ).rank
        world = topoccl.init(hostid=hosts[rank], timeout=60)
        for number, name in enumerate(names or self, 100):
            try:
                self.run(world, name, number)
            except BaseException:
                print(f"rank {rank}: {name} failed\n{traceback.format_exc()}", flush=True)
                os._exit(1)
        world.barrier()
        print(f"all well over {world.transport.name}{more(world)}", flush=True)
        world.close()
        return 0
