"""What a group's calls have in common with each other: that all ranks make the same ones, and hear when one cannot go on.

Every call is posted (:meth:`Control.begin`) before its data moves and is decided before it returns (:meth:`Control.end`), when all ranks
are known to have made the same one. Inside a host each rank compares what the others have posted with its own. Where there are more
hosts, one rank of each compares for its host, tells the leaders of the others, beside the data, and lets its host know the verdict.

Short calls are *stamped*: messages between hosts say which call they belong to, and a rank sends its first when all of its host have made
that call. Where everybody hears of everybody so (:mod:`~topoccl.collectives.executor.stamped`), leaders tell each other nothing, unless
one has waited for a while: then it asks, and all that wait answer.

Whatever waits in between calls :meth:`Control.check`, so that a difference or the end of another rank is noticed at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from topoccl.collectives.control.board import Board
from topoccl.collectives.control.failure import Failure, absence_text, mismatch_text, ranks_text
from topoccl.collectives.control.leaders import Attendance, HeardFailure, Leaders
from topoccl.collectives.errors import CollectiveTimeout, MismatchError, TopocclError, TransportError
from topoccl.collectives.executor.waiting import FIRST_NAP, LONGEST_NAP, PATIENCE
from topoccl.collectives.transports.base import CHECK_SECONDS

if TYPE_CHECKING:
    from topoccl.collectives.control.fingerprint import Fingerprint
    from topoccl.collectives.executor.straight import Source
    from topoccl.collectives.hosts import Neighbours
    from topoccl.collectives.transports.base import Request, Transport

_LOOK = 0.2  # seconds between looks at whether the other processes are alive
_GATHER = 1.0  # seconds in which ranks that give up tell each other why
_TELL = 5.0  # seconds that ranks have to say what they have called, once they know that it differs
_ASK = 0.05  # seconds after which a leader asks whether all make the same call, where their messages should tell
_STAMPED = 1 << 63  # a bit of all stamps


class Control:
    """One rank's part in it.

    Args:
        transport: the group's.
        neighbours: who shares this rank's memory.
        describe: says what the present call is, for errors.

    Attributes:
        number: of the last call that has begun.
        ended: of the last one that has ended well.
    """

    def __init__(self, transport: Transport, neighbours: Neighbours, describe: Callable[[], str]) -> None:
        self.transport = transport
        self.rank = transport.rank
        arena, hosts = neighbours.arena, neighbours.together
        self.board = Board(arena, neighbours.member, self.rank) if arena is not None else None
        self._waiter = neighbours.waiter(self.rank, self.board.words) if self.board is not None else None
        first = self.board.leader if self.board is not None else self.rank
        self._several = len(hosts) > 1
        self._leaders = Leaders(transport, hosts) if self._several and first == self.rank else None
        self.number = 0
        self.beside: list[Request] = []  # the message of another leader that is waited for
        self._call: Fingerprint | None = None
        self._shown: list[Fingerprint | None] = [None, None]  # whose texts lie on the board
        self._before: Fingerprint | None = None
        self._value = 0
        self._limit = self._begun = self._look = self._serve = 0.0
        self._decided = True
        self._stamped = False  # the present call's messages decide
        self._asks = False  # its leaders tell each other nevertheless
        self._failed = False
        self.aborted: TopocclError | None = None
        self.ended = 0
        self._final: BaseException | None = None  # what was raised here that others have told
        self._late: BaseException | None = None  # the timeout that was raised here
        self._cause: Failure | None = None  # what made the first rank give up, where it is known
        self._describe = describe
        self._pid = os.getpid()  # a fork must not speak for its parent

    # A call

    def begin(self, call: Fingerprint, limit: float, word: int = 0, stamped: bool = False) -> None:
        """Says that this rank makes ``call``, which may take ``limit`` seconds, and ``word`` to who asks for it (:meth:`word_of`).

        ``stamped`` is the same on all ranks that make the same call, and says that its messages, each with the stamp of
        :meth:`assemble`, tell every rank that all others make it.

        Raises:
            TopocclError: another rank has given up, or has left.
        """
        self.number = number = self.number + 1
        self._before, self._call = self._call, call
        self._limit = limit
        self._begun = time.monotonic()
        self._decided = False
        self._value = value = call.value + number
        self._stamped, self._asks = stamped and self._several, False
        board = self.board
        if board is not None:
            # The text first, then the value, then the number (see Board).
            words = board.words
            text, where = board.mine[number & 1]
            if self._shown[number & 1] is not call:
                board.bytes[text] = call.data
                self._shown[number & 1] = call
            words[where] = value
            words[where + 2] = word
            words[where + 1] = number
            if words[board.alarm]:
                self.check()
        if self._leaders is not None:
            self.beside.clear()  # what somebody has asked about an earlier call
            self._leaders.begin(number, call)
            if not stamped:
                self._advance()

    def compare(self) -> None:
        """Takes it back that the present call is stamped."""
        if self._stamped:
            self._stamped = False
            if self._leaders is not None:
                self._advance()

    def assemble(self) -> int:
        """Returns when all ranks of this host have made the present call: its stamp. Raises as :meth:`end`."""
        board = self.board
        if board is not None:
            words, value = board.words, self._value
            for word in board.their_values[self.number & 1]:
                if words[word] != value:
                    self._await_host(board)
                    break
        return self._value | _STAMPED

    def _await_host(self, board: Board) -> None:
        assert self._waiter is not None
        for word in board.their_values[self.number & 1]:
            self._waiter.wait(word + 1, self.number, self._check_in_time)
        if board.differs(self.number, self._value):
            self.doubt()

    def doubt(self) -> NoReturn:
        """For who has met a message of another call: raises as :meth:`end` when leaders know what all call."""
        board = self.board
        self._asks = True
        while not (self._decided or (board is not None and board.verdict >= self.number)):
            self._check_in_time()
            time.sleep(FIRST_NAP)
        raise TransportError(f"{self._describe()} failed: a message of another call has come, though all ranks make this one")

    def write_begin(self, source: Source, call: Fingerprint, parity: int) -> None:
        """What :meth:`begin` does for a call ``number`` like an earlier one, which is stamped or whose ranks all share memory, as lines of
        a function. They leave the variable ``value``."""
        board, leaders = self.board, self._leaders
        me, it = source.name(self), source.name(call)
        if self._several:
            source.add(f"{me}._before = {me}._call")
        source.add(
            f"{me}.number = number",
            f"{me}._limit = limit",
            f"{me}._call = {it}",
            f"{me}._decided = False",
            f"{me}._value = value = {source.name(call.value)} + number",
        )
        if self._several:
            source.add(f"{me}._begun = {source.name(time.monotonic)}()", f"{me}._stamped = True", f"{me}._asks = False")
        if board is not None:
            text, where = board.mine[parity]
            words, value, count = source.name(board.words), source.name(where), source.name(where + 1)
            source.add(
                f"if {source.name(self._shown)}[{parity}] is not {it}:",
                f"    {source.name(board.bytes)}[{source.name(text)}] = {source.name(call.data)}",
                f"    {source.name(self._shown)}[{parity}] = {it}",
                f"{words}[{value}] = value",
                f"{words}[{count}] = number",
                f"if {words}[{source.name(board.alarm)}]: {source.name(self.check)}()",
            )
        if leaders is not None:
            source.add(f"{source.name(self.beside.clear)}()", f"{source.name(leaders.begin)}(number, {it})")

    def write_assemble(self, source: Source, parity: int) -> None:
        """What :meth:`assemble` does, behind what :meth:`write_begin` has written: leaves the variable ``stamp``."""
        board = self.board
        source.add(f"stamp = value | {source.name(_STAMPED)}")
        if board is not None:
            words = source.name(board.words)
            for word in board.their_values[parity]:
                source.add(f"if {words}[{source.name(word)}] != value: {source.name(self._await_host)}({source.name(board)})")

    def write_end(self, source: Source, parity: int) -> None:
        """What :meth:`end` does, behind these, :meth:`write_assemble` included where the call is stamped."""
        board = self.board
        me = source.name(self)
        if self._several:
            source.add(f"{me}._decided = True")
        elif board is not None:
            words = source.name(board.words)
            for word in board.their_values[parity]:
                source.add(f"if {words}[{source.name(word)}] != value: {source.name(self._settle_from_now)}()")
        if board is not None:
            source.add(f"{source.name(board.words)}[{source.name(board.my_done)}] = number")
        source.add(f"{me}.ended = number")

    def _settle_from_now(self) -> None:
        self._begun = time.monotonic()
        self._settle()

    def settle(self) -> None:
        """As :meth:`end`, for a call that goes on afterwards."""
        self.compare()
        if not self._decided:
            self._settle()

    def end(self) -> None:
        """Returns when all ranks have made the same call.

        Raises:
            MismatchError: they have not.
            CollectiveTimeout: some have not come in time.
            TopocclError: another rank has given up, or has left.
        """
        board, number = self.board, self.number
        if self._stamped:
            self.assemble()
            self._decided = True
        elif self._several:
            if not self._decided:
                self._settle()
        elif board is not None:
            words, value = board.words, self._value
            for word in board.their_values[number & 1]:
                if words[word] != value:
                    self._settle()
                    break
        if board is not None:
            board.words[board.my_done] = number
        self.ended = number

    @property
    def hears_words(self) -> bool:
        """Whether all ranks share memory, so that :meth:`word_of` can be asked."""
        return self.board is not None and not self._several

    def word_of(self, rank: int) -> int:
        """What ``rank`` has said with the present call.

        Raises:
            MismatchError: it makes another call; else as :meth:`end`.
        """
        board, waiter = self.board, self._waiter
        assert board is not None
        assert waiter is not None
        at = board.number_word(rank, self.number)
        waiter.wait(at, self.number, self._check_in_time)
        if board.words[at - 1] != self._value:
            self.differ()
        return board.words[at + 1]

    def differ(self) -> NoReturn:
        """For who sees that ranks make different calls, in what they were not compared by: raises MismatchError, about all of them."""
        assert self.board is not None
        self._raise_mismatch(self.board)

    def _settle(self) -> None:
        """Waits until the call is decided."""
        board, leaders, waiter = self.board, self._leaders, self._waiter
        if board is not None and waiter is not None:
            if self._several and leaders is None:
                waiter.wait(board.verdict_word, self.number, self._check_in_time)
            else:
                for word in board.their_values[self.number & 1]:
                    waiter.wait(word + 1, self.number, self._check_in_time)
                self.check()
        nap = FIRST_NAP
        while leaders is not None and not self._decided:
            if self.beside:
                self.transport.progress(self.beside, PATIENCE)
            else:
                time.sleep(nap)
                nap = min(nap * 1.5, LONGEST_NAP)
            self._check_in_time()
        self._decided = True

    def _check_in_time(self) -> None:
        self.check()
        if time.monotonic() > self._begun + self._limit and not self._decided:
            self._late = CollectiveTimeout(f"{self._describe()} did not end within its timeout of {self._limit:g} s")
            raise self._late

    def check(self) -> None:
        """Looks what other ranks have to say; raises as :meth:`end`, or the error with which the group was aborted."""
        if self.aborted is not None:
            raise self.aborted
        board, leaders = self.board, self._leaders
        if board is not None:
            if board.words[board.alarm]:
                self._heed_alarm(board)
            if not self._several and board.differs(self.number, self._value):
                self._raise_mismatch(board)
        now = time.monotonic()
        if leaders is not None or now >= self._serve:  # without leaders for the sake of users' messages alone
            self._serve = now + CHECK_SECONDS
            self.transport.progress((), 0.0)
        if leaders is not None:
            try:
                leaders.listen()
            except HeardFailure as heard:
                raise self._say(heard.failure.error(self._describe()), heard.failure) from None
            if not self._decided and self._tells():
                self._advance()
        if now >= self._look:
            self._look = now + _LOOK
            if board is not None:
                self._look_for_the_dead(board)

    def _tells(self) -> bool:
        """Whether this leader tells others, in the present call: in stamped ones only when somebody wants to know."""
        if self._stamped and not self._asks:
            assert self._leaders is not None
            self._asks = self._leaders.asked or time.monotonic() > self._begun + _ASK
        return self._asks or not self._stamped

    def _advance(self) -> None:
        """A leader's: goes as far as it can without waiting."""
        board, leaders = self.board, self._leaders
        assert leaders is not None
        same = True
        if board is not None:
            if not board.arrived(self.number):
                return
            same = not board.differs(self.number, self._value)
        try:
            verdict = leaders.advance(same)
        except HeardFailure as heard:
            raise self._say(heard.failure.error(self._describe()), heard.failure) from None
        self.beside[:] = leaders.waiting
        if verdict is None:
            return
        self._decided = True
        if verdict:
            if board is not None:
                board.agree(self.number)
            return
        assert self._call is not None
        calls = board.calls(self.number) if board is not None else {self.rank: self._call.text}
        try:
            text = leaders.tell_calls(calls, f"call {self.number}", min(_TELL, max(self._begun + self._limit - time.monotonic(), _GATHER)))
        except TopocclError:  # too slow, or gone: what is known here must do
            text = mismatch_text(calls, f"call {self.number}; ranks of other hosts make others")
        raise self._say(MismatchError(text))

    def _raise_mismatch(self, board: Board) -> NoReturn:
        """Calls differ inside the only host: those that have not come yet are given a moment, so that all can be named."""
        end = time.monotonic() + min(self._limit, _GATHER)
        while not board.arrived(self.number) and time.monotonic() < end:
            time.sleep(LONGEST_NAP)
        raise self._say(MismatchError(mismatch_text(board.calls(self.number), f"call {self.number}")))

    def _heed_alarm(self, board: Board) -> None:
        for rank in board.others:
            failure = board.failure(rank)
            if (failure is None and not board.left(rank)) or self._is_past(board, rank):
                continue
            if failure is not None:
                raise self._say(failure.error(self._describe()), failure)
            text = f"{self._describe()} failed: rank {rank} has left the group{self._after(board, rank)}"
            raise self._say(TransportError(text))

    def _look_for_the_dead(self, board: Board) -> None:
        for rank in board.others:
            if board.done(rank) < self.number and not board.alive(rank) and not self._is_past(board, rank):
                text = f"{self._describe()} failed: rank {rank} (process {board.pid(rank)}) has died{self._after(board, rank)}"
                raise self._say(TransportError(text))

    def _is_past(self, board: Board, rank: int) -> bool:
        """Whether a rank needs this call no more, and is not needed. To be asked after what became of it: a rank that was found in
        this call a moment before can have ended it and left."""
        return board.done(rank) >= self.number

    def _say(self, error: TopocclError, cause: Failure | None = None) -> TopocclError:
        self._final, self._cause = error, cause
        return error

    def _after(self, board: Board, rank: int) -> str:
        last = board.last(rank)
        if last >= self.number:
            return " in this call"
        return f" after call {last}, {board.text(rank, last)}" if last else " before its first call"

    # When a call cannot go on

    def raised(self, error: BaseException) -> bool:
        """Whether an error comes from here, or from :meth:`abort`."""
        return error is self._final or error is self._late

    def explain(self, error: TopocclError, prefix: str = "") -> TopocclError:
        """What is behind an error that a call has met: a message of another length, or none, is what calls that differ look like to
        the transport, and a timeout says more when it names who is absent. ``prefix`` goes before what this object did not raise."""
        final = error is self._final
        if prefix and not final and error is not self._late:
            error = type(error)(f"{prefix}{error}")
        if self._failed:
            return error
        if isinstance(error, CollectiveTimeout):
            return self._explain_timeout(error, final)
        if final:
            return error
        better = self._listen(_GATHER, until_decided=True)
        if better is None:
            return error
        return better if isinstance(better, MismatchError) else type(error)(f"{error}; {better}")

    def _listen(self, seconds: float, *, until_decided: bool) -> TopocclError | None:
        """What others say why they have given up, if they say it within ``seconds``."""
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                self.check()
                if self._decided and until_decided:
                    break
                time.sleep(LONGEST_NAP)
        except TopocclError as error:
            return error
        return None

    def _explain_timeout(self, error: CollectiveTimeout, told: bool) -> TopocclError:
        board, leaders = self.board, self._leaders
        over = f"its timeout of {self._limit:g} s is over"
        if self._several and self._decided:
            return error if told else CollectiveTimeout(f"{error}; all ranks are in it")
        if leaders is None:
            if told:
                return error
            if self._several:  # the leader knows more
                better = self._listen(2 * _GATHER, until_decided=False)
                if isinstance(better, MismatchError):
                    return better
                if better is not None:
                    cause = self._cause
                    return CollectiveTimeout(f"{error}; {better if cause is None else f'rank {cause.rank} says: {cause.text}'}")
            text = absence_text(*self._attendance(board))
        else:
            cause = self._cause or Failure.of(self.rank, error, over)
            try:
                leaders.fail(cause, self.number)
                reports = leaders.exchange(self._attendance(board), _GATHER)
            except TopocclError:
                reports = {self.rank: self._attendance(board)}
            present, absent = [], {}
            for inside, outside in reports.values():
                present += inside
                absent.update(outside)
            silent = [ranks for ranks in leaders.hosts if ranks[0] not in reports]
            # All ranks have made every call before this one. Who is in this one would have been heard of.
            absent.update({ranks[0]: (self.number - 1, self._before.text if self._before is not None else "") for ranks in silent})
            text = absence_text(present, absent)
            unknown = [rank for ranks in silent for rank in ranks[1:]]
            if unknown:
                text += f"; nothing is known of {ranks_text(unknown)}"
        self._cause = Failure.of(self._cause.rank if self._cause is not None else self.rank, error, f"{over}; {text}")
        return CollectiveTimeout(f"{error}; {text}")

    def _attendance(self, board: Board | None) -> Attendance:
        """The ranks of this host that have made the present call, and of the others the last call."""
        if board is None:
            return [self.rank], {}
        absent = board.absent(self.number)
        return [rank for rank in board.ranks if rank not in absent], absent

    def abort(self, error: TopocclError) -> None:
        """Ends the present call, and every later one; may be called from any thread."""
        self._final = self.aborted = error
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Tells the others that this rank has given up, because of ``error``; only the first one counts."""
        if self._failed or self._pid != os.getpid():
            return
        self._failed = True
        cause = self._cause or Failure.of(self.rank, error)
        if self.board is not None:
            self.board.fail(cause)
        if self._leaders is not None:
            with suppress(TopocclError):
                self._leaders.fail(cause, self.ended + 1)

    def leave(self) -> None:
        """Tells the others that this rank makes no more calls, and lets go of the shared memory."""
        board, self.board, self._waiter = self.board, None, None
        if self._pid != os.getpid():
            return
        if board is not None:
            board.leave()
        if self._leaders is not None and not self._failed:
            with suppress(TopocclError):
                self._leaders.leave()
