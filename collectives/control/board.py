"""What the ranks of one host tell each other of their calls, in their shared memory.

Each rank writes only its own page (a new call's entry by ``Control.begin``, in a hurry). A call's entry is one of two, used in turn: no
rank can be two calls ahead, since a call ends only when all ranks have made it. The text is written first, then the value, then the
number, so whoever sees the number sees the rest
(on which the order of memory see :mod:`~topoccl.collectives.executor.arena`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from topoccl.collectives.control.failure import Failure
from topoccl.collectives.control.fingerprint import TEXT, read
from topoccl.collectives.executor.arena import CONTROL

if TYPE_CHECKING:
    from topoccl.collectives.executor.arena import Arena

_PAGE = CONTROL // 8  # words
_ENTRY = 8  # words from one entry to the next: value, number, a word for the others
_DONE, _LEFT, _PID, _BORN = 16, 17, 18, 19
_FAILED, _BY, _LENGTH = 24, 25, 26  # kind of failure + 1, the rank that failed first, bytes of the text
_VERDICT = 32
_ALARM = 40  # of the first page only; set by whoever fails or leaves
_TEXTS = 1024  # bytes from a page's start
_REASON = 2048


class Board:
    """One rank's view of it.

    Args:
        arena: the host's shared memory.
        member: place in the arena of each rank that shares it.
        rank: this one.
    """

    def __init__(self, arena: Arena, member: dict[int, int], rank: int) -> None:
        self.bytes = arena.control
        self.words = arena.control.cast("q")
        self.ranks = tuple(sorted(member))
        self.leader = self.ranks[0]
        self.others = tuple(r for r in self.ranks if r != rank)
        self._start = {r: member[r] * _PAGE for r in self.ranks}
        self._mine = mine = self._start[rank]
        self.alarm = _ALARM
        self.my_done = mine + _DONE
        # By parity of the call: where this rank writes text and value, and where the others have written their values. The number is
        # in the word after a value.
        texts = mine * 8 + _TEXTS
        self.mine = tuple((slice(texts + p * TEXT, texts + (p + 1) * TEXT), mine + p * _ENTRY) for p in (0, 1))
        self.their_values = tuple(tuple(self._start[r] + p * _ENTRY for r in self.others) for p in (0, 1))
        pid = os.getpid()
        self.words[mine + _BORN] = _born(pid) or 0
        self.words[mine + _PID] = pid  # last: who sees it sees the other

    def arrived(self, number: int) -> bool:
        """Whether all ranks have made call ``number``."""
        words = self.words
        return all(words[at + 1] >= number for at in self.their_values[number & 1])

    def number_word(self, rank: int, number: int) -> int:
        """Where a rank writes ``number`` when it makes that call; its word for the others lies behind."""
        return self._start[rank] + (number & 1) * _ENTRY + 1

    def differs(self, number: int, value: int) -> bool:
        """Whether a rank has made another call ``number``."""
        words = self.words
        return any(words[at + 1] == number and words[at] != value for at in self.their_values[number & 1])

    def last(self, rank: int) -> int:
        """The number of the last call that a rank has made."""
        start = self._start[rank]
        return max(self.words[start + 1], self.words[start + _ENTRY + 1])

    def text(self, rank: int, number: int) -> str:
        """A rank's call ``number``, one of its last two."""
        start = self._start[rank] * 8 + _TEXTS + (number & 1) * TEXT
        return read(bytes(self.bytes[start : start + TEXT]))

    def calls(self, number: int) -> dict[int, str]:
        """Call ``number`` of each rank that has made it."""
        return {rank: self.text(rank, number) for rank in self.ranks if self.last(rank) == number}

    def absent(self, number: int) -> dict[int, tuple[int, str]]:
        """The ranks that have not made call ``number``, with their last ones."""
        found = {}
        for rank in self.ranks:
            last = self.last(rank)
            if last < number:
                found[rank] = (last, self.text(rank, last) if last else "")
        return found

    # The verdict of the leader, where there are other hosts

    @property
    def verdict(self) -> int:
        """The last call that is known to be the same on all ranks of all hosts."""
        return self.words[self._start[self.leader] + _VERDICT]

    @property
    def verdict_word(self) -> int:
        return self._start[self.leader] + _VERDICT

    def agree(self, number: int) -> None:
        self.words[self._mine + _VERDICT] = number

    # Failing, leaving, dying

    def fail(self, failure: Failure) -> None:
        """Tells the others that this rank has given up."""
        start, text = self._mine * 8 + _REASON, failure.text.encode()[: CONTROL - _REASON]
        self.bytes[start : start + len(text)] = text
        words = self.words
        words[self._mine + _LENGTH] = len(text)
        words[self._mine + _BY] = failure.rank
        words[self._mine + _FAILED] = failure.kind + 1
        words[_ALARM] = 1

    def failure(self, rank: int) -> Failure | None:
        start = self._start[rank]
        kind = self.words[start + _FAILED]
        if not kind:
            return None
        text = start * 8 + _REASON
        told = bytes(self.bytes[text : text + self.words[start + _LENGTH]])
        return Failure(kind - 1, self.words[start + _BY], told.decode(errors="replace"))

    def leave(self) -> None:
        """Tells the others that this rank makes no more calls."""
        self.words[self._mine + _LEFT] = 1
        self.words[_ALARM] = 1

    def left(self, rank: int) -> bool:
        return bool(self.words[self._start[rank] + _LEFT])

    def done(self, rank: int) -> int:
        """The number of the last call that has ended on a rank."""
        return self.words[self._start[rank] + _DONE]

    def pid(self, rank: int) -> int:
        return self.words[self._start[rank] + _PID]

    def alive(self, rank: int) -> bool:
        """Whether a rank's process is still there (true where it cannot be seen)."""
        pid = self.pid(rank)
        if not pid or pid == os.getpid():
            return True
        born = _born(pid)
        return born is not None and (not born or born == self.words[self._start[rank] + _BORN])


def _born(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None when it has ended, 0 when nobody can tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        return 0
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
