"""What each collective means: which blocks of data a rank holds before, and which it must hold after.

The data of a collective is a list of *blocks*. A block is the unit the definition speaks of (the whole vector of an
all_reduce, the part that rank 3 contributes to an all_gather, what rank 1 sends to rank 2 in an all_to_all); a schedule cuts
every block into ``chunks`` pieces. Chunk ``j`` of block ``b`` has the id ``b * chunks + j``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "barrier")
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce", "barrier"})


def canonical_collective(name: str) -> str:
    """The canonical spelling of a collective's name: ``AllReduce``, ``allreduce`` and ``all-reduce`` are all ``all_reduce``.

    Raises:
        ValueError: an unknown name; the message lists the known ones.
    """
    key = name.strip().lower().replace("_", "").replace("-", "")
    for known in COLLECTIVES:
        if known.replace("_", "") == key:
            return known
    raise ValueError(f"unknown collective {name!r}; known: {', '.join(COLLECTIVES)}")


@dataclass(frozen=True)
class CollectiveSpec:
    """One collective among ``ranks`` ranks.

    Attributes:
        collective: one of :data:`COLLECTIVES`.
        ranks: the size of the group.
        root: the root of a rooted collective, else None.
        uneven: blocks differ in size (all_to_all with counts of its own for each pair); sizes are then known only when a plan
            is made, and a schedule may not use one chunk's place for another chunk.
    """

    collective: str
    ranks: int
    root: int | None = None
    uneven: bool = False

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise ValueError(f"unknown collective {self.collective!r}; known: {', '.join(COLLECTIVES)}")
        if self.ranks < 1:
            raise ValueError(f"{self.collective}: {self.ranks} ranks; expected at least 1")
        if (self.root is not None) != (self.collective in ROOTED):
            raise ValueError(f"{self.collective}: root is {self.root}; it {'needs one' if self.collective in ROOTED else 'has none'}")
        if self.root is not None and not 0 <= self.root < self.ranks:
            raise ValueError(f"{self.collective}: root {self.root} is not a rank of a group of {self.ranks}")

    @property
    def num_blocks(self) -> int:
        if self.collective in ("all_gather", "reduce_scatter", "gather", "scatter"):
            return self.ranks
        return self.ranks**2 if self.collective == "all_to_all" else 1

    @property
    def reduces(self) -> bool:
        return self.collective in REDUCING

    @property
    def idempotent(self) -> bool:
        """Whether a contribution may arrive more than once (a barrier's token; never data that is summed)."""
        return self.collective == "barrier"

    def input_blocks(self, rank: int) -> range:
        """Blocks of ``rank``'s input buffer, in the order in which they lie there."""
        p = self.ranks
        match self.collective:
            case "all_reduce" | "reduce" | "barrier":
                return range(1)
            case "broadcast":
                return range(1 if rank == self.root else 0)
            case "all_gather" | "gather":
                return range(rank, rank + 1)
            case "reduce_scatter":
                return range(p)
            case "scatter":
                return range(p if rank == self.root else 0)
            case _:
                return range(rank * p, rank * p + p)

    def output_blocks(self, rank: int) -> range:
        """Blocks of ``rank``'s output buffer, in the order in which they lie there."""
        p = self.ranks
        match self.collective:
            case "all_reduce" | "broadcast" | "barrier":
                return range(1)
            case "reduce":
                return range(1 if rank == self.root else 0)
            case "all_gather":
                return range(p)
            case "gather":
                return range(p if rank == self.root else 0)
            case "reduce_scatter" | "scatter":
                return range(rank, rank + 1)
            case _:
                return range(rank, p * p, p)

    def contributors(self, block: int) -> range:
        """The ranks whose contributions the final value of ``block`` holds, each exactly once."""
        match self.collective:
            case "all_reduce" | "reduce" | "reduce_scatter" | "barrier":
                return range(self.ranks)
            case "broadcast" | "scatter":
                assert self.root is not None
                return range(self.root, self.root + 1)
            case "all_gather" | "gather":
                return range(block, block + 1)
            case _:
                return range(block // self.ranks, block // self.ranks + 1)

    @cached_property
    def aliases(self) -> bool:
        """Whether callers may pass one buffer as input and output (in place); all_to_all has no such form."""
        return self.collective != "all_to_all"

    def aliased_output(self, rank: int, position: int) -> int | None:
        """Where block ``position`` of the input lies in the output buffer when a call is in place, None when outside it.

        all_gather and gather read block ``rank`` of the output; reduce_scatter and scatter write block ``rank`` of the
        input (nccl-tests' convention); the others use the same offsets.
        """
        if not self.aliases:
            return None
        if self.collective in ("all_gather", "gather"):
            return rank if len(self.output_blocks(rank)) else None
        if self.collective in ("reduce_scatter", "scatter"):
            return 0 if position == rank else None
        return position if position < len(self.output_blocks(rank)) else None
