"""The verifier accepts hand-made right schedules of every collective, and each of its checks refuses a wrong one by name."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import COLLECTIVES, ROOTED, CollectiveSpec
from topoccl.algorithms.verify import ScheduleError, happens_before_order, proof_size, verify

I, O, S, PEER, NONE = Buf.INPUT, Buf.OUTPUT, Buf.SCRATCH, Buf.PEER, Buf.NONE  # noqa: E741


def columns(spec, lanes, *, chunks=1, slots=1, fifo=1, scratch=(), weights=None):
    """A schedule exactly as written: lanes are ``(rank, channel, steps)``, steps ``(operands, dst, targets[, count[, deps]])``."""
    steps = [(*step, *(1, ())[len(step) - 3 :]) for _, _, lane in lanes for step in lane]
    scratch = scratch or [[] for _ in range(spec.ranks)]

    def ptr(lengths):
        return np.concatenate([[0], np.cumsum(list(lengths))]).astype(np.int32)

    def ints(values):
        return np.array(list(values), dtype=np.int32)

    return Schedule(
        spec=spec, algorithm="hand-made", chunks=chunks, slots=slots, fifo=fifo,
        lane_rank=ints(r for r, _, _ in lanes), lane_channel=ints(c for _, c, _ in lanes), lane_rail=ints(0 for _ in lanes),
        lane_ptr=ptr(len(lane) for _, _, lane in lanes), operand_ptr=ptr(len(s[0]) for s in steps),
        operand_buf=np.array([b for s in steps for b, _ in s[0]], dtype=np.uint8), operand_off=ints(o for s in steps for _, o in s[0]),
        dst_buf=np.array([(s[1] or (NONE, 0))[0] for s in steps], dtype=np.uint8), dst_off=ints((s[1] or (NONE, 0))[1] for s in steps),
        target_ptr=ptr(len(s[2]) for s in steps), targets=ints(t for s in steps for t in s[2]), count=ints(s[3] for s in steps),
        dep_ptr=ptr(len(s[4]) for s in steps), deps=ints(d for s in steps for d in s[4]),
        scratch_ptr=ptr(len(places) for places in scratch), scratch_like=ints(c for places in scratch for c in places),
        weights=None if weights is None else ints(weights),
    )  # fmt: skip


def two_rank_all_reduce(**changes):
    """Each rank sends its vector and adds the other's; rank 0's is on the left on both."""
    first = [([(I, 0)], None, [1]), ([(I, 0), (PEER, 1)], (O, 0), [])]
    second = [([(I, 0)], None, [0]), ([(PEER, 0), (I, 0)], (O, 0), [])]
    return replace(columns(CollectiveSpec("all_reduce", 2), [(0, 0, first), (1, 0, second)]), **changes)


def ring_all_reduce(ranks, fused=False, fifo=1):
    """The classic ring; fused steps receive, reduce and send at once."""
    b = ScheduleBuilder(CollectiveSpec("all_reduce", ranks), "ring", chunks=ranks, fifo=fifo)
    for r in range(ranks):
        lane, after, before = b.lane(r), (r + 1) % ranks, (r - 1) % ranks
        b.send(lane, (I, r), after)
        for k in range(1, 2 * ranks - 1):
            chunk = (r - k) % ranks
            operands = [(PEER, before), (I, chunk)] if k < ranks else [(PEER, before)]
            onward = [after] if k < 2 * ranks - 2 else []
            if fused:
                b.step(lane, operands, (O, chunk), onward)
            else:
                b.step(lane, operands, (O, chunk))
                if onward:
                    b.send(lane, (O, chunk), after)
    return b.build()


def direct(collective, ranks, root=0):
    """Every input goes straight to where it is wanted; folds are in the order of the ranks, sends and receives in lanes apart."""
    spec = CollectiveSpec(collective, ranks, root if collective in ROOTED else None)
    b = ScheduleBuilder(spec, "direct")
    for r in range(ranks):
        for at, block in enumerate(spec.input_blocks(r)):
            wanting = [t for t in range(ranks) if t != r and block in spec.output_blocks(t)]
            if wanting:
                b.send(b.lane(r, "send"), (I, at), wanting)
    for r in range(ranks):
        for at, block in enumerate(spec.output_blocks(r)):
            own = [(I, spec.input_blocks(r).index(block))] if block in spec.input_blocks(r) else []
            operands = [own[0] if f == r else (PEER, f) for f in spec.contributors(block) if f != r or own]
            b.step(b.lane(r, "receive"), operands, (O, at))
    return b.build()


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_direct_schedules_of_every_collective_are_right(collective, ranks):
    for root in range(ranks) if collective in ROOTED else [0]:
        schedule = direct(collective, ranks, root)
        proof = verify(schedule)
        assert proof.digest == schedule.digest
        assert proof.bitwise_equal
        assert proof.messages == len(schedule.targets)
        if schedule.spec.aliases:
            assert verify(schedule, in_place=True).in_place


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 33])
def test_rings_are_right_and_equal_to_the_last_bit(ranks):
    for fused in (False, True):
        schedule = ring_all_reduce(ranks, fused, fifo=1 + fused)
        for in_place in (False, True):
            assert verify(schedule, in_place=in_place).bitwise_equal


def test_sums_in_different_orders_are_noticed():
    assert verify(two_rank_all_reduce()).bitwise_equal
    lanes = [(r, 0, [([(I, 0)], None, [1 - r]), ([(PEER, 1 - r), (I, 0)], (O, 0), [])]) for r in range(2)]
    assert not verify(columns(CollectiveSpec("all_reduce", 2), lanes)).bitwise_equal
    barrier = replace(columns(CollectiveSpec("all_reduce", 2), lanes), spec=CollectiveSpec("barrier", 2))
    assert verify(barrier).bitwise_equal  # a barrier's token has no order


def test_a_barrier_may_count_a_rank_twice():
    """Dissemination among 3 ranks: in the second round rank r hears of rank r again."""
    lanes = []
    for r in range(3):
        one = [([(I, 0)], None, [(r + 1) % 3]), ([(PEER, (r + 2) % 3), (I, 0)], (O, 0), [])]
        two = [([(O, 0)], None, [(r + 2) % 3]), ([(PEER, (r + 1) % 3), (O, 0)], (O, 0), [])]
        lanes.append((r, 0, one + two))
    verify(columns(CollectiveSpec("barrier", 3), lanes))
    with pytest.raises(ScheduleError, match=r"counts the contribution of rank . twice"):
        verify(columns(CollectiveSpec("all_reduce", 3), lanes))


def test_relayed_chunks_through_scratch_of_two_slots():
    """Broadcast 0 -> 1 -> 2 where rank 1 keeps the chunk in scratch for its second lane."""
    lanes = [
        (0, 0, [([(I, 0)], (O, 0), [1])]),
        (1, 0, [([(PEER, 0)], (S, 0), [])]),
        (1, 1, [([(S, 0)], (O, 0), [2], 1, [1])]),
        (2, 1, [([(PEER, 1)], (O, 0), [])]),
    ]
    spec = CollectiveSpec("broadcast", 3, 0)
    schedule = columns(spec, lanes, slots=2, scratch=[[], [0], []])
    for segments in (1, 2, 3, 7):
        assert verify(schedule, segments=[segments]).segments == (segments,)
    with pytest.raises(ScheduleError, match=r"scratch needs a finite number of slots"):
        verify(replace(schedule, slots=0))
    unordered = [(*lane[:2], [step[:4] for step in lane[2]]) for lane in lanes]
    with pytest.raises(ScheduleError, match=r"races: nothing orders it against step ."):
        verify(columns(spec, unordered, slots=2, scratch=[[], [0], []]))


def test_order_through_other_ranks_counts():
    """Rank 0 reuses scratch in another lane after an answer that can only come when the first use is over."""

    def lanes(answered):
        relay = [([(I, 0)], (S, 0), []), ([(S, 0)], None, [1])]
        answer = [([(PEER, 1)], (O, 1), [])] if answered else []
        return [
            (0, 0, [*relay, ([(I, 0)], (O, 0), [])]),
            (0, 1, [*answer, ([(I, 0)], (S, 0), []), ([(S, 0)], None, [2])]),
            (1, 0, [([(PEER, 0)], (O, 0), [])]),
            (1, 1, [([(I, 0)], (O, 1), [0] if answered else [], 1, [5 + answered])]),
            (2, 0, [([(I, 0)], (O, 2), [])]),
            (2, 1, [([(PEER, 0)], (O, 0), [])]),
        ]  # fmt: skip

    spec = CollectiveSpec("all_gather", 3)
    schedule = columns(spec, lanes(True), scratch=[[0], [], []])
    with pytest.raises(ScheduleError, match=r"has never been written"):  # other blocks are left out: what counts is that no race is seen
        verify(schedule)
    with pytest.raises(ScheduleError, match=r"races"):
        verify(columns(spec, lanes(False), scratch=[[0], [], []]))


GATHER = CollectiveSpec("all_gather", 2)
REDUCE = CollectiveSpec("all_reduce", 2)
SWAP = [
    (0, 0, [([(I, 0)], (O, 0), [1]), ([(PEER, 1)], (O, 1), [])]),
    (1, 0, [([(I, 0)], (O, 1), [0]), ([(PEER, 0)], (O, 0), [])]),
]


def swap(rank=0, step=0, spec=GATHER, **options):
    """The two-rank all_gather, with one step replaced by another (or by none, or by several)."""
    lanes = [(r, c, list(steps)) for r, c, steps in SWAP]
    if "by" in options:
        by = options.pop("by")
        lanes[rank][2][step : step + 1] = by if isinstance(by, list) else [by]
    return columns(spec, lanes, **options)


def test_the_swap_itself_is_right():
    verify(swap())
    verify(swap(), in_place=True)


BAD_COLUMNS = {
    "chunks 1, fifo 0, slots 1": {"fifo": 0},
    "slots -1: expected": {"slots": -1},
    "chunks 0, ": {"chunks": 0},
    "lane_ptr must rise": {"lane_ptr": np.array([0, 2, 3], dtype=np.int32)},
    "operand_ptr must rise": {"operand_ptr": np.array([0, 1, 0, 4, 6], dtype=np.int32)},
    "target_ptr must rise": {"target_ptr": np.array([1, 1, 1, 2, 2], dtype=np.int32)},
    "dep_ptr must rise": {"dep_ptr": np.zeros(4, dtype=np.int32)},
    "scratch_ptr must rise": {"scratch_ptr": np.zeros(2, dtype=np.int32)},
    "lane_channel has 1 entries": {"lane_channel": np.zeros(1, dtype=np.int32)},
    "lane_rail has 3 entries": {"lane_rail": np.zeros(3, dtype=np.int32)},
    "operand_off has 5 entries": {"operand_off": np.zeros(5, dtype=np.int32)},
    "dst_buf has 5 entries": {"dst_buf": np.zeros(5, dtype=np.uint8)},
    "dst_off has 3 entries": {"dst_off": np.zeros(3, dtype=np.int32)},
    "operand_buf holds 9": {"operand_buf": np.full(6, 9, dtype=np.uint8)},
    "dst_buf holds 7": {"dst_buf": np.full(4, 7, dtype=np.uint8)},
    "lanes must be sorted by rank, 0 to 1": {"lane_rank": np.array([1, 0], dtype=np.int32)},
    "lane_rank is \\[0, 2\\]": {"lane_rank": np.array([0, 2], dtype=np.int32)},
    "lane 1 has no steps": {"lane_ptr": np.array([0, 4, 4], dtype=np.int32)},
    "lane 1 has channel -1": {"lane_channel": np.array([0, -1], dtype=np.int32)},
    "weights must be 1 numbers": {"weights": np.array([1, 2], dtype=np.int32)},
}


@pytest.mark.parametrize(("message", "change"), BAD_COLUMNS.items())
def test_malformed_columns_are_refused(message, change):
    with pytest.raises(ScheduleError, match=message) as caught:
        verify(two_rank_all_reduce(**change))
    assert caught.value.step is None


def test_scratch_sizes_must_be_known_where_chunks_differ():
    for options, message in (
        ({"scratch": [[2], []]}, "scratch_like must name chunks 0 to 1"),
        ({"scratch": [[-2], []]}, "scratch_like must name chunks 0 to 1"),
        ({"scratch": [[-1], []], "weights": [1, 3]}, "needs equal chunks"),
        ({"weights": [1, -3]}, "weights must be 2 numbers"),
    ):
        with pytest.raises(ScheduleError, match=message):
            verify(swap(**options))
    verify(swap(scratch=[[-1], []]))
    uneven = CollectiveSpec("all_to_all", 2, uneven=True)
    lanes = [(r, 0, [([(I, r)], (O, r), []), ([(I, 1 - r)], None, [1 - r]), ([(PEER, 1 - r)], (O, 1 - r), [])]) for r in range(2)]
    verify(columns(uneven, lanes))
    with pytest.raises(ScheduleError, match=r"needs equal chunks"):
        verify(columns(uneven, lanes, scratch=[[-1], []]))


COPY = ([(I, 0)], (O, 0), [])
BAD_STEPS = {
    "moves -1 chunks": ([(I, 0)], (O, 0), [1], -1),
    "moves 0 chunks; only messages may be empty": ([(I, 0)], (O, 0), [], 0),
    "an operand lies in no buffer": ([(NONE, 0)], (O, 0), [1]),
    "rank 0's input has 1 places": ([(I, 1)], (O, 0), [1]),
    "rank 0's output has 2 places": ([(O, -1)], (O, 0), [1]),
    "rank 0's scratch has 0 places": ([(S, 0)], (O, 0), [1]),
    "receives from rank 0; a peer": ([(PEER, 0)], (O, 0), [1]),
    "receives from rank 2; a peer": ([(PEER, 2)], (O, 0), [1]),
    "receives from rank -1; a peer": ([(PEER, -1)], (O, 0), [1]),
    "takes two messages of rank 1 at once": ([(PEER, 1), (PEER, 1)], (O, 0), [1]),
    "its destination is a peer": ([(I, 0)], (PEER, 1), [1]),
    "writes into the input": ([(O, 0)], (I, 0), [1]),
    "-> output\\[2:3\\] -> ranks 1: rank 0's output has 2 places": ([(I, 0)], (O, 2), [1]),
    "rank 0's output has 2 places$": ([(O, 1)], (O, 1), [1], 2),
    "sends to rank 0; a peer": ([(I, 0)], (O, 0), [0]),
    "sends to rank 2; a peer": ([(I, 0)], (O, 0), [2]),
    "sends to rank 1 twice": ([(I, 0)], (O, 0), [1, 1]),
    "has no operand to store or send": ([], (O, 0), [1]),
    "has no effect": ([(I, 0)], None, []),
    "reduces 2 operands, but all_gather reduces nothing": ([(I, 0), (I, 0)], (O, 0), [1]),
    "depends on step 4, which does not exist": ([(I, 0)], (O, 0), [1], 1, [4]),
    "depends on step -1, which does not exist": ([(I, 0)], (O, 0), [1], 1, [-1]),
    "depends on step 2 of rank 1": ([(I, 0)], (O, 0), [1], 1, [2]),
    "depends on step 1 of its own lane": ([(I, 0)], (O, 0), [1], 1, [1]),
}


@pytest.mark.parametrize(("message", "step"), BAD_STEPS.items())
def test_malformed_steps_are_refused(message, step):
    with pytest.raises(ScheduleError, match=rf"step 0 .*{message}") as caught:
        verify(swap(by=step))
    assert caught.value.step == 0
    with pytest.raises(ScheduleError):
        happens_before_order(swap(by=step), 1)


BAD_MESSAGES = {
    "a message that is never received: stream 0 -> 1 on channel 0 has 2 sends and 1": {"by": [SWAP[0][2][0], ([(I, 0)], None, [1])]},
    "a message that is never received: stream 0 -> 1 on channel 0 has 1 sends and 0 receives": {"rank": 1, "step": 1, "by": []},
    "waits for a message that is never sent: stream 0 -> 1": {"by": COPY},
    "waits for a message that is never sent: stream 1 -> 0": {"step": 1, "by": [SWAP[0][2][1], ([(PEER, 1)], (O, 1), [])]},
    "expects 1 chunks, but step 0 .* sends it 2": {"by": ([(I, 0)], (O, 0), [1], 2), "chunks": 2},
}  # fmt: skip


@pytest.mark.parametrize(("message", "options"), BAD_MESSAGES.items())
def test_unpaired_messages_are_refused(message, options):
    with pytest.raises(ScheduleError, match=message) as caught:
        verify(swap(**options))
    assert caught.value.step is not None


def test_channels_keep_streams_apart():
    lanes = [(0, 0, SWAP[0][2]), (1, 1, SWAP[1][2])]
    with pytest.raises(ScheduleError, match=r"stream 0 -> 1 on channel 0 has 1 sends and 0 receives"):
        verify(columns(GATHER, lanes))


def test_a_stream_has_one_lane_at_each_end():
    spec = CollectiveSpec("all_gather", 2)
    whole = {"chunks": 2, "fifo": 2}
    own = ([(I, 0)], (O, 0), [], 2), ([(I, 0)], (O, 2), [], 2)
    sends = [([(I, c)], None, [1]) for c in range(2)]
    receives = [([(PEER, 0)], (O, c), []) for c in range(2)]
    back = [([(I, 0)], None, [0], 2)], [([(PEER, 1)], (O, 2), [], 2)]

    def lanes(send_lanes, receive_lanes):
        return [
            (0, 0, [own[0], *back[1]]), *((0, 0, [sends[c] for c in s]) for s in send_lanes),
            (1, 0, [own[1], *back[0]]), *((1, 0, [receives[c] for c in r]) for r in receive_lanes),
        ]  # fmt: skip

    verify(columns(spec, lanes([[0, 1]], [[0, 1]]), **whole))
    with pytest.raises(ScheduleError, match=r"stream 0 -> 1 on channel 0 sends from two lanes; the other has step 2"):
        verify(columns(spec, lanes([[0], [1]], [[0, 1]]), **whole))
    with pytest.raises(ScheduleError, match=r"stream 0 -> 1 on channel 0 receives from two lanes; the other has step 6"):
        verify(columns(spec, lanes([[0, 1]], [[0], [1]]), **whole))
    with pytest.raises(ScheduleError, match=r"stores chunk 1 in a place for chunk 0"):
        verify(columns(spec, lanes([[1, 0]], [[0, 1]]), **whole))


def test_waiting_for_each_other_is_a_deadlock():
    lanes = [(r, 0, [([(PEER, 1 - r)], (O, 1 - r), []), ([(I, 0)], (O, r), [1 - r])]) for r in range(2)]
    with pytest.raises(ScheduleError, match=r"deadlock: it .*needs the message of step 3 .*runs after step 2") as caught:
        verify(columns(GATHER, lanes))
    assert "fifo" not in str(caught.value)
    with pytest.raises(ScheduleError, match=r"deadlock"):
        happens_before_order(columns(GATHER, lanes), 3)


def test_dependencies_may_not_go_round():
    spec = CollectiveSpec("all_gather", 1)
    lanes = [(0, 0, [([(I, 0)], (O, 0), [], 1, [1])]), (0, 1, [([(I, 1)], (O, 1), [], 1, [0])])]
    with pytest.raises(ScheduleError, match=r"deadlock: it depends on step 1 .*depends on step 0"):
        verify(columns(spec, lanes, chunks=2))


def test_too_little_room_is_a_deadlock_with_advice():
    """Both ranks send twice before they receive; and fused rings, whose steps keep what they take until they have sent it."""
    lanes = []
    for r in range(2):
        own, other = 3 * r, 3 - 3 * r
        sends = [([(I, c)], (O, own + c), [1 - r]) for c in range(3)]
        lanes.append((r, 0, [*sends, *(([(PEER, 1 - r)], (O, other + c), []) for c in range(3))]))
    verify(columns(GATHER, lanes, chunks=3, fifo=3))
    with pytest.raises(ScheduleError, match=r"deadlock: .*needs room made by .*; fifo is 2, 3 would do$"):
        verify(columns(GATHER, lanes, chunks=3, fifo=2))
    with pytest.raises(ScheduleError, match=r"deadlock: .*\.\.\. \(9 in all\); fifo is 1, 2 would do$"):
        verify(ring_all_reduce(9, fused=True))


def test_advice_is_given_only_where_room_helps():
    lanes = [(r, 0, [([(I, 0)], None, [1 - r]), ([(I, 0)], (O, r), [1 - r]), ([(PEER, 1 - r)], (O, 1 - r), []),
                     ([(PEER, 1 - r)], (O, 1 - r), [])]) for r in range(2)]  # fmt: skip
    with pytest.raises(ScheduleError, match=r"fifo is 1, 2 would do"):
        verify(columns(GATHER, lanes))
    for rank in range(2):  # and beside it a circle of dependencies
        lanes += [(rank, 1, [([], None, [], 1, [9 + 2 * rank])]), (rank, 2, [([], None, [], 1, [8 + 2 * rank])])]
    lanes.sort(key=lambda lane: lane[0])
    mixed = columns(GATHER, lanes)
    assert mixed.deps.tolist() == [9, 8, 11, 10]
    deps = np.array([5, 4, 11, 10], dtype=np.int32)
    with pytest.raises(ScheduleError, match=r"deadlock") as caught:
        verify(replace(mixed, deps=deps))
    assert "would do" not in str(caught.value)


def test_races_between_lanes_are_found_also_where_values_come_out_right():
    copies = [(0, 0, [([(I, 0)], (O, 0), [])]), (0, 1, [([(I, 0)], (O, 0), [])])]
    with pytest.raises(ScheduleError, match=r"step 1 .*races: nothing orders it against step 0"):
        verify(columns(CollectiveSpec("all_gather", 1), copies))
    chained = [copies[0], (0, 1, [([(I, 0)], (O, 0), [], 1, [0])])]
    verify(columns(CollectiveSpec("all_gather", 1), chained))


def test_a_race_of_a_read_with_a_later_write():
    """The sum is stored while another lane may still send the partial it overwrites."""

    def lanes(*deps):
        return [
            (0, 0, [([(I, 0)], (O, 0), []), ([(PEER, 1), (O, 0)], (O, 0), [], 1, deps)]),
            (0, 0, [([(O, 0)], None, [1], 1, [0])]),
            (1, 0, [([(I, 0)], None, [0]), ([(PEER, 0), (I, 0)], (O, 0), [])]),
        ]  # fmt: skip

    verify(columns(REDUCE, lanes(2)))
    with pytest.raises(ScheduleError, match=r"races: nothing orders it against step 1"):
        verify(columns(REDUCE, lanes()))


def test_in_place_calls_race_where_others_do_not():
    lanes = [
        (0, 0, [([(PEER, 1), (I, 0)], (O, 0), [])]),
        (0, 0, [([(I, 0)], None, [1])]),
        (1, 0, [([(I, 0)], None, [0]), ([(PEER, 0), (I, 0)], (O, 0), [])]),
    ]
    schedule = columns(REDUCE, lanes)
    verify(schedule)
    with pytest.raises(ScheduleError, match=r"races \(in place\)"):
        verify(schedule, in_place=True)


def test_a_copy_onto_itself_changes_nothing():
    """In place the block is where it belongs: another lane may send it meanwhile. Out of place the two lanes only read."""
    lanes = [
        (0, 0, [([(I, 0)], (O, 0), []), ([(PEER, 1)], (O, 1), [])]),
        (0, 0, [([(I, 0)], None, [1])]),
        (1, 0, [([(I, 0)], (O, 1), [0]), ([(PEER, 0)], (O, 0), [])]),
    ]
    for in_place in (False, True):
        verify(columns(GATHER, lanes), in_place=in_place)
    lanes[1][2][0] = ([(O, 0)], None, [1])  # out of place it may be sent before it has been copied
    verify(columns(GATHER, lanes), in_place=True)
    with pytest.raises(ScheduleError, match="races"):
        verify(columns(GATHER, lanes))


def test_in_place_data_must_not_be_overwritten_early():
    lanes = [(r, 0, [([(I, 0)], None, [1 - r]), ([(PEER, 1 - r)], (O, 0), []), ([(O, 0), (I, 0)], (O, 0), [])]) for r in range(2)]
    verify(columns(REDUCE, lanes))
    with pytest.raises(ScheduleError, match=r"counts the contribution of rank 1 twice"):
        verify(columns(REDUCE, lanes), in_place=True)


def test_overlapping_operands_are_refused():
    steps = [([(I, 0)], (O, 0), [], 2), ([(O, 0)], (O, 1), [], 2)]
    lanes = [(0, 0, steps)]
    with pytest.raises(ScheduleError, match=r"its destination overlaps an operand at another position"):
        verify(columns(CollectiveSpec("all_gather", 1), lanes, chunks=3))


def test_unwritten_places_are_not_read():
    with pytest.raises(ScheduleError, match=r"step 0 .*reads a place before anything has been written there"):
        verify(swap(by=([(O, 1)], (O, 0), [1])))
    schedule = swap(by=([(O, 0)], None, [1]))
    with pytest.raises(ScheduleError, match=r"reads a place before"):
        verify(schedule)
    verify(schedule, in_place=True)  # there the block is at home already


def test_a_slot_does_not_remember_an_earlier_segment():
    """Rank 0 reads scratch that only the run of the segment before has filled."""
    lanes = [(0, 0, [([(S, 0)], (O, 0), []), ([(I, 0)], (S, 0), [])])]
    schedule = columns(CollectiveSpec("all_gather", 1), lanes, scratch=[[0]])
    for segments in (1, 3):
        with pytest.raises(ScheduleError, match=r"step 0 .*reads a place before"):
            verify(schedule, segments=[segments])


BAD_VALUES = {
    "stores chunk 0 in a place for chunk 1": {"by": ([(I, 0)], (O, 1), [1])},
    "stores chunk 1 in a place for chunk 0": {"step": 1, "by": ([(PEER, 1)], (O, 0), [])},
    "at the end output\\[1\\] of rank 0 \\(chunk 1\\) has never been written": {"step": 1, "by": ([(PEER, 1)], None, [])},
}


@pytest.mark.parametrize(("message", "options"), BAD_VALUES.items())
def test_wrong_chunks_are_refused(message, options):
    with pytest.raises(ScheduleError, match=message):
        verify(swap(**options))


def test_scratch_takes_only_chunks_of_its_size():
    lanes = [(0, 0, [([(I, 0)], (S, 0), []), ([(S, 0)], (O, 0), []), ([(I, 1)], (S, 0), []), ([(S, 0)], (O, 1), [])])]
    spec = CollectiveSpec("all_gather", 1)
    verify(columns(spec, lanes, chunks=2, scratch=[[-1]]))
    with pytest.raises(ScheduleError, match=r"step 2 .*stores chunk 1 in a place for chunk 0"):
        verify(columns(spec, lanes, chunks=2, scratch=[[0]]))
    # Equal blocks are cut alike: the place of one block's chunk serves the other's, unless counts or weights may tell them apart.
    steps = [[([(I, b)], (S, 0), []), ([(S, 0)], None, [1])] for b in range(2)]
    for r, lane in enumerate(steps):
        lane[1] = ([(S, 0)], (O, 0), []) if r == 0 else lane[1]
    lanes = [(0, 0, [*steps[0], *steps[1]]), (1, 0, [([(I, 1)], (O, 1), []), ([(PEER, 0)], (O, 0), []), ([(I, 0)], None, [0])])]
    lanes[0][2].append(([(PEER, 1)], (O, 1), []))
    spec = CollectiveSpec("all_to_all", 2)
    verify(columns(spec, lanes, scratch=[[0], []]))
    for options in ({"spec": replace(spec, uneven=True)}, {"weights": np.ones(4, dtype=np.int32)}):
        with pytest.raises(ScheduleError, match=r"step 2 .*stores chunk 1 in a place for chunk 0"):
            verify(replace(columns(spec, lanes, scratch=[[0], []]), **options))


def reduction(steps):
    return columns(CollectiveSpec("all_reduce", 3), [
        (0, 0, [([(I, 0)], None, [1, 2]), ([(PEER, 1), (PEER, 2), (I, 0)], (O, 0), [], 2)]),
        (1, 0, [([(I, 0)], None, [0, 2], 2), *steps]),
        (2, 0, [([(I, 0)], None, [0, 1], 2), ([(PEER, 0), (PEER, 1), (I, 0)], (O, 0), [], 2)]),
    ], chunks=2)  # fmt: skip


def test_sums_are_counted():
    right = [([(PEER, 0), (I, 0), (PEER, 2)], (O, 0), [], 2)]

    def with_whole_sends(steps):
        schedule = reduction(steps)
        return replace(schedule, count=np.where(np.arange(schedule.num_steps) == 0, 2, schedule.count).astype(np.int32))

    assert not verify(with_whole_sends(right)).bitwise_equal
    for steps, message in (
        ([([(PEER, 0), (I, 0), (I, 0)], (O, 0), [], 2), ([(PEER, 2)], None, [], 2)], "step 3 .*counts the contribution of rank 1 twice"),
        ([([(PEER, 0), (PEER, 2)], (O, 0), [], 2)], r"step 3 .*output\[0\] of rank 1 \(chunk 0\) lacks the contribution of rank 1$"),
        ([([(PEER, 0)], None, [], 2), ([(PEER, 2)], (O, 0), [], 2)], "lacks the contribution of ranks 0, 1$"),
        ([([(PEER, 0)], (O, 0), [], 2), ([(PEER, 2)], None, [], 2), ([(O, 0), (I, 1)], (O, 0), [])], "adds chunk 1 to chunk 0"),
        ([*right, ([(O, 0), (I, 0)], (O, 0), [], 2)], "counts the contribution of rank 1 twice"),
    ):
        with pytest.raises(ScheduleError, match=message):
            verify(with_whole_sends(steps))


def test_many_ranks_are_counted_in_several_words():
    verify(direct("all_reduce", 130))
    schedule = direct("all_reduce", 130)
    last = schedule.num_steps - 1
    operands = schedule.operand_ptr.copy()
    dropped = schedule.operand_ptr[-1] - 1  # the last rank's own input
    operands[last + 1 :] -= 1
    changed = replace(
        schedule, operand_ptr=operands, operand_buf=schedule.operand_buf[:dropped], operand_off=schedule.operand_off[:dropped]
    )
    with pytest.raises(ScheduleError, match=r"lacks the contribution of rank 129$"):
        verify(changed)


def test_arguments():
    with pytest.raises(ValueError, match=r"segments"):
        verify(swap(), segments=())
    with pytest.raises(ValueError, match=r"segments"):
        verify(swap(), segments=(0, 1))
    with pytest.raises(ValueError, match=r"all_to_all has no in-place form"):
        verify(direct("all_to_all", 2), in_place=True)
    with pytest.raises(ValueError, match=r"0 segments"):
        happens_before_order(swap(), 0)
    assert proof_size(swap(), 5) == 4 * 5 * 2


def assert_order_holds(schedule, segments):
    """Every edge, written down once more by hand, goes forward in the order."""
    segment, step = happens_before_order(schedule, segments)
    n = schedule.num_steps
    assert sorted(zip(segment.tolist(), step.tolist(), strict=True)) == [(s, i) for s in range(segments) for i in range(n)]
    at = {node: k for k, node in enumerate(zip(segment.tolist(), step.tolist(), strict=True))}
    sent, taken = {}, {}
    for lane in range(schedule.num_lanes):
        steps = range(schedule.lane_ptr[lane], schedule.lane_ptr[lane + 1])
        line = [(s, i) for s in range(segments) for i in steps]
        assert all(at[a] < at[b] for a, b in itertools.pairwise(line))
        for s, i in line:
            it = schedule.step(i)
            assert all(at[s, d] < at[s, i] for d in it.deps)
            for t in it.targets:
                sent.setdefault((it.rank, t, it.channel), []).append((s, i))
            for buf, peer in it.operands:
                if buf is PEER:
                    taken.setdefault((peer, it.rank, it.channel), []).append((s, i))
    for stream, sends in sent.items():
        receives = taken[stream]
        assert all(at[a] < at[b] for a, b in zip(sends, receives, strict=True))
        assert all(at[a] < at[b] for a, b in zip(receives, sends[schedule.fifo :], strict=False))
    for rank in range(schedule.spec.ranks):
        nodes = [(s, i) for s in range(segments) for i in range(n) if schedule.step_rank[i] == rank]
        for s in range(schedule.slots, segments) if schedule.slots else ():
            assert max(at[x] for x in nodes if x[0] == s - schedule.slots) < min(at[x] for x in nodes if x[0] == s)
    return segment, step


def test_the_linear_order_respects_every_edge():
    for schedule in (
        ring_all_reduce(4), ring_all_reduce(3, fused=True, fifo=2), direct("all_to_all", 4), direct("all_reduce", 3), two_rank_all_reduce(),
        replace(ring_all_reduce(4), slots=1), replace(direct("all_gather", 3), slots=2),
    ):  # fmt: skip
        for segments in (1, 2, 5):
            assert_order_holds(schedule, segments)


def test_the_linear_order_pipelines_and_breaks_ties_by_segment_then_step():
    b = ScheduleBuilder(CollectiveSpec("broadcast", 3, 0), "chain")
    b.step(b.lane(0), [(I, 0)], (O, 0), [1])
    b.step(b.lane(1), [(PEER, 0)], (O, 0), [2])
    b.recv(b.lane(2), 1, (O, 0))
    segment, step = assert_order_holds(b.build(), 3)
    # With room for one message rank 0 sends segment s when rank 1 has passed on segment s - 1.
    assert list(zip(segment.tolist(), step.tolist(), strict=True)) == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2),
    ]  # fmt: skip
    segment, step = assert_order_holds(replace(b.build(), fifo=4), 3)
    assert list(zip(segment.tolist(), step.tolist(), strict=True)) == [
        (0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (2, 0), (1, 2), (2, 1), (2, 2),
    ]  # fmt: skip
