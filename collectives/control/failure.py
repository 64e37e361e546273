"""Why a call cannot go on, as ranks tell each other, and the sentences about who called what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from topoccl.collectives.errors import CollectiveTimeout, ConfigError, MismatchError, TopocclError, TransportError

_KINDS: tuple[type[TopocclError], ...] = (TopocclError, ConfigError, TransportError, CollectiveTimeout, MismatchError)


@dataclass(frozen=True)
class Failure:
    """What made ``rank`` give up. ``kind`` is a number, since it travels."""

    kind: int
    rank: int
    text: str

    @classmethod
    def of(cls, rank: int, error: BaseException, text: str | None = None) -> Failure:
        """``error`` as another rank should know it; ``text`` in the place of its own."""
        kind = next((i for i in reversed(range(len(_KINDS))) if isinstance(error, _KINDS[i])), None)
        if kind is None:
            return cls(0, rank, f"{type(error).__name__}: {error}" if text is None else text)
        return cls(kind, rank, str(error) if text is None else text)

    def error(self, call: str) -> TopocclError:
        """What a rank raises that hears of it in ``call``."""
        kind = _KINDS[self.kind]
        if kind is MismatchError:
            return MismatchError(self.text)  # about all ranks alike
        return kind(f"{call} failed: rank {self.rank} has given up: {self.text}")


def ranks_text(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    one = len(spans) == 1 and spans[0][0] == spans[0][1]
    shown = [str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in spans]
    more = f" and {len(shown) - 16} more ranges" if len(shown) > 16 else ""
    return ("rank " if one else "ranks ") + ", ".join(shown[:16]) + more


def mismatch_text(calls: Mapping[int, str], call: str) -> str:
    """Who calls what; ranks that call the same are named together."""
    together: dict[str, list[int]] = {}
    for rank in sorted(calls):
        together.setdefault(calls[rank], []).append(rank)
    said = [f"{ranks_text(ranks)} {'calls' if len(ranks) == 1 else 'call'} {text}" for text, ranks in together.items()]
    more = f", and {len(said) - 8} other calls" if len(said) > 8 else ""
    return (
        f"ranks make different calls ({call}): {', '.join(said[:8])}{more}; outputs may be partly written, "
        "and the group cannot be used any more"
    )


def absence_text(present: Iterable[int], absent: Mapping[int, tuple[int, str]]) -> str:
    """Who has not made a call: of each its last call, (0, "") for none."""
    together: dict[tuple[int, str], list[int]] = {}
    for rank in sorted(absent):
        together.setdefault(absent[rank], []).append(rank)
    said = []
    for (number, text), ranks in together.items():
        one = len(ranks) == 1
        last = f"{'its' if one else 'their'} last call was {number}, {text}" if number else "nor any before"
        said.append(f"{ranks_text(ranks)} {'has' if one else 'have'} not called it ({last})")
    inside = list(present)
    if inside:
        said.append(f"{ranks_text(inside)} {'is' if len(inside) == 1 else 'are'} in it")
    return "; ".join(said)
