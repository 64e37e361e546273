"""Running lanes side by side, where messages go over a transport: whatever can go on does.

A message costs its ends far more processor time in Python than in the kernel, so nothing is looked at twice. What every item waits for is
counted when a program is made (:class:`Flow`); in a run each event, an item that is done or a message that is through, counts down
those that wait for it, and who has come to zero is run. Only counters in shared memory are looked at again and again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from topoccl.collectives.errors import CollectiveTimeout, TransportError
from topoccl.collectives.executor.actions import Act, Bufs
from topoccl.collectives.executor.program import Item, Mark, NetMessage
from topoccl.collectives.executor.waiting import FIRST_NAP, LONGEST_NAP, PATIENCE
from topoccl.collectives.transports.base import Request

if TYPE_CHECKING:
    from topoccl.collectives.executor.run import Runner

_POLL = 100e-6  # first sleep on the transport while something in shared memory is waited for,
_LONGEST_POLL = 1e-3  # and longest

_Bytes = tuple[int, int, int, int, int, int, float]  # peer, tag, rail, buffer, first and last byte, share of the rate
_Step = tuple[Act | None, tuple[Mark, ...], tuple[Mark, ...], tuple[_Bytes, ...], tuple[int, ...], tuple[int, ...]]
_RAN = -1


class Flow:
    """The items of all lanes with what waits for what. Items are numbers here, lane after lane.

    An item is *posted* when its receives are begun, and *run* when all is there that it waits for.

    Attributes:
        steps: of each item what it does, waits for in shared memory and announces there, its sends, and the items of which one thing less
            has to come before they are run, or posted, when it is done.
        waits, posts: for how many things an item waits until it is run, and until it is posted.
        receives: of each item.
        next_post: the item of the same lane that may not be posted before, or -1.
        left_behind: the items that wait until all sends of one have left: those that then may be run, and posted.
        ready, postable: the items that wait for nothing.
    """

    def __init__(self, lanes: list[list[Item]], itemsize: int) -> None:
        items = [item for lane in lanes for item in lane]
        start = [0]
        for lane in lanes:
            start.append(start[-1] + len(lane))
        size = len(items)
        number = {id(item): at for at, item in enumerate(items)}
        then_run: list[list[int]] = [[] for _ in items]
        then_post: list[list[int]] = [[] for _ in items]
        self.items = items
        self.first = start
        self.waits = [0] * size
        self.posts = [0] * size
        self.next_post = [-1] * size
        self.left_behind: dict[int, tuple[list[int], list[int]]] = {}
        for at, lane in enumerate(lanes):
            last = -1  # the item before with receives
            for index, item in enumerate(lane):
                here = start[at] + index
                before = {start[other] + where for other, where in item.deps}
                sent = {number[id(other)] for other in item.awaits if other.sends}
                posted = bool(item.receives)
                for earlier in before | ({here - 1} if index else set()):
                    then_run[earlier].append(here)
                    self.waits[here] += 1
                if posted and index > item.ahead:
                    before_post = {here - 1 - item.ahead} | (set() if item.staged else before)
                else:
                    before_post = set() if item.staged or not posted else before
                for earlier in before_post:
                    then_post[earlier].append(here)
                    self.posts[here] += 1
                for earlier in sent:
                    run, post = self.left_behind.setdefault(earlier, ([], []))
                    run.append(here)
                    self.waits[here] += 1
                    if posted and not item.staged:
                        post.append(here)
                        self.posts[here] += 1
                if posted:
                    self.waits[here] += len(item.receives)
                    if last >= 0:
                        self.next_post[last] = here
                        self.posts[here] += 1
                    last = here
        self.receives = [tuple(_bytes(message, itemsize) for message in item.receives) for item in items]
        self.steps: list[_Step] = [
            (
                item.act,
                item.guards,
                item.signals,
                tuple(_bytes(message, itemsize) for message in item.sends),
                tuple(then_run[here]),
                tuple(then_post[here]),
            )
            for here, item in enumerate(items)
        ]
        self.ready = [here for here in range(size) if not self.waits[here]]
        self.postable = [here for here, item in enumerate(items) if item.receives and not self.posts[here]]


def _bytes(message: NetMessage, itemsize: int) -> _Bytes:
    return message.peer, message.tag, message.rail, message.buf, message.lo * itemsize, message.hi * itemsize, message.share


class LaneRun:
    """One run of a :class:`Flow`; arguments as for :meth:`Runner.run`, ``waits_for`` says who sets a counter."""

    def __init__(
        self, runner: Runner, flow: Flow, waits_for: dict[int, int], bufs: Bufs, base: int, timeout: float, what: Callable[[], str]
    ) -> None:
        self.runner = runner
        assert runner.transport is not None
        self.transport = runner.transport
        self.flags = runner.flags  # kept even when the group is closed meanwhile, from another thread
        self.flow = flow
        self.waits_for = waits_for
        self.bufs = bufs
        self.octets = [buf.view("u1") for buf in bufs]
        self.base = base
        self.timeout = timeout
        self.what = what
        self.waits = flow.waits.copy()
        self.posts = flow.posts.copy()
        self.ready = flow.ready.copy()
        self.postable = flow.postable.copy()
        self.watching: list[int] = []  # items that wait for counters in shared memory only
        self.left = len(flow.items)
        # Messages under way: each with its item, ~item for a send, and the peer.
        self.open: list[tuple[Request, int, int]] = []
        self.leaving: dict[int, int] = {}  # sends under way of items for which others wait
        self.nap = FIRST_NAP
        self.poll = _POLL

    def run(self) -> None:
        end = time.monotonic() + self.timeout
        while True:
            while self.postable or self.ready:
                self._post()
                self._go()
            if not self.left:
                break
            if self.watching and self._look():
                continue
            self._idle(end)
        while self.open:
            self._idle(end)

    def _post(self) -> None:
        """Begins the receives of all items that may be posted."""
        receives, next_post, posts, octets, postable = self.flow.receives, self.flow.next_post, self.posts, self.octets, self.postable
        irecv, opened = self.transport.irecv, self.open
        for item in postable:  # grows while it is walked through
            for peer, tag, rail, buf, lo, hi, _ in receives[item]:
                request = irecv(peer, tag, octets[buf][lo:hi], rail)
                if request.done:
                    self._through(request, item)
                else:
                    opened.append((request, item, peer))
            following = next_post[item]
            if following >= 0:
                posts[following] -= 1
                if not posts[following]:
                    postable.append(following)
        postable.clear()

    def _go(self) -> None:
        """Runs all items that can be run."""
        steps, waits, posts, ready, postable = self.flow.steps, self.waits, self.posts, self.ready, self.postable
        flags, base, bufs, octets = self.flags, self.base, self.bufs, self.octets
        left_behind, isend, opened = self.flow.left_behind, self.transport.isend, self.open
        for item in ready:  # grows while it is walked through
            act, guards, signals, sends, then_run, then_post = steps[item]
            for word, count in guards:
                if flags[word] < base + count:
                    self.watching.append(item)
                    break
            else:
                if act is not None:
                    act(bufs)
                for word, count in signals:
                    flags[word] = base + count
                if sends:
                    if item in left_behind:
                        self.leaving[item] = len(sends)
                    for peer, tag, rail, buf, lo, hi, share in sends:
                        request = isend(peer, tag, octets[buf][lo:hi], rail, share)
                        if request.done:
                            self._through(request, ~item)
                        else:
                            opened.append((request, ~item, peer))
                waits[item] = _RAN
                self.left -= 1
                for other in then_run:
                    waits[other] -= 1
                    if not waits[other]:
                        ready.append(other)
                for other in then_post:
                    posts[other] -= 1
                    if not posts[other]:
                        postable.append(other)
        ready.clear()

    def _through(self, request: Request, item: int) -> None:
        """A message has come or left."""
        if request.error is not None:
            raise TransportError(f"{self.what()} failed: {request.error}") from request.error
        waits = self.waits
        if item >= 0:
            waits[item] -= 1
            if not waits[item]:
                self.ready.append(item)
            return
        left = self.leaving.get(~item)
        if left is None:
            return
        if left > 1:
            self.leaving[~item] = left - 1
            return
        del self.leaving[~item]
        run, post = self.flow.left_behind[~item]
        for other in run:
            waits[other] -= 1
            if not waits[other]:
                self.ready.append(other)
        for other in post:
            self.posts[other] -= 1
            if not self.posts[other]:
                self.postable.append(other)

    def _look(self) -> bool:
        """Looks at counters in shared memory; whether any item can go on."""
        flags, base, steps = self.flags, self.base, self.flow.steps
        self.ready += [item for item in self.watching if all(flags[word] >= base + count for word, count in steps[item][1])]
        if not self.ready:
            return False
        going = set(self.ready)
        self.watching = [item for item in self.watching if item not in going]
        self.nap, self.poll = FIRST_NAP, _POLL
        return True

    def _idle(self, end: float) -> None:
        runner, opened = self.runner, self.open
        if runner.aborted is not None:
            raise runner.aborted
        runner.watch()
        left = end - time.monotonic()
        if left <= 0:
            raise CollectiveTimeout(f"{self.what()} did not end within its timeout of {self.timeout:g} s: waiting for {self._missing()}")
        if not opened:
            os.sched_yield() if self.nap == FIRST_NAP else time.sleep(self.nap)
            self.nap = min(self.nap * 1.5, LONGEST_NAP)
            return
        requests = [request for request, _, _ in opened]
        requests += runner.beside
        self.transport.progress(requests, min(left, self.poll if self.watching else PATIENCE))
        still = []
        for entry in opened:
            request = entry[0]
            if request.done:
                self._through(request, entry[1])
            else:
                still.append(entry)
        self.open = still
        self.nap = FIRST_NAP
        self.poll = _POLL if self.ready else min(self.poll * 1.5, _LONGEST_POLL)

    def _missing(self) -> str:
        """The ranks that lanes wait for."""
        flow, flags, base = self.flow, self.flags, self.base
        ranks: set[int] = set()
        for first, end in zip(flow.first, flow.first[1:], strict=False):
            front = next((item for item in range(first, end) if self.waits[item] != _RAN), None)
            if front is None:
                continue
            ranks |= {self.waits_for[word] for word, count in flow.items[front].guards if flags[word] < base + count}
            awaited = {~item for item, (run, _) in flow.left_behind.items() if front in run}
            ranks |= {peer for _, item, peer in self.open if item == front or item in awaited}
        return f"ranks {', '.join(map(str, sorted(ranks)))}" if ranks else "its own sends"
