"""MSCCL XML: published files are proved, ours come back unchanged and mean the same without our attributes, bad ones are refused."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from topoccl.algorithms.msccl import MscclError, read_msccl, write_msccl
from topoccl.algorithms.msccl.document import MAX_BYTES
from topoccl.algorithms.registry import ALGORITHMS
from topoccl.algorithms.schedule import Buf, Schedule, ScheduleBuilder
from topoccl.algorithms.spec import ROOTED, CollectiveSpec
from topoccl.algorithms.verify import ScheduleError, verify
from topoccl.topology.generators import generate

INPUT, OUTPUT, SCRATCH, PEER = Buf.INPUT, Buf.OUTPUT, Buf.SCRATCH, Buf.PEER

PUBLISHED = Path(__file__).resolve().parents[2].parent / "shared" / "topologies" / "msccl_xml"
published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published schedules (shared/topologies/msccl_xml) are not here")

# collective, ranks, chunks, messages, steps on the longest chain
FILES = {
    "ncv4-ag_hier_4_LL.xml": ("all_gather", 4, 4, 48, 3),
    "ncv4-ar_tree_12_LL.xml": ("all_reduce", 4, 24, 144, 9),
    "ndv4-a2a4ll.xml": ("all_to_all", 8, 4, 224, 2),
    "ndv4-ag-16m.xml": ("all_gather", 8, 4, 224, 3),
    "ndv4-ag-1k-512k.xml": ("all_gather", 8, 2, 112, 3),
    "ndv4-ag-1m.xml": ("all_gather", 8, 4, 224, 3),
    "ndv4-ag-8m.xml": ("all_gather", 8, 4, 224, 3),
    "rccl-alltoall-8n-0-9kb.xml": ("all_to_all", 8, 1, 56, 2),
    "rccl-alltoall-8n-7mb-43mb.xml": ("all_to_all", 8, 8, 448, 2),
    "rccl-alltoall-8n-9kb-190kb.xml": ("all_to_all", 8, 2, 112, 2),
}


@published
@pytest.mark.parametrize("name", FILES)
def test_published_schedules_are_proved(name):
    schedule = read_msccl((PUBLISHED / name).read_text())
    proof = verify(schedule)
    assert (schedule.spec.collective, schedule.spec.ranks, schedule.chunks, proof.messages, proof.depth) == FILES[name]
    if schedule.spec.aliases:
        verify(schedule, in_place=True)
    again = read_msccl(write_msccl(schedule))
    assert again.digest == schedule.digest
    assert again.algorithm == schedule.algorithm


@published
def test_no_published_file_is_left_out():
    assert sorted(path.name for path in PUBLISHED.glob("*.xml")) == sorted(FILES)


@published
@pytest.mark.parametrize("name", FILES)
def test_spoilt_published_schedules_are_refused_with_the_step(name):
    """One step of a file goes elsewhere, or a step less."""
    text = (PUBLISHED / name).read_text()
    lines = text.splitlines()
    rng = random.Random(name)
    receives = [i for i, line in enumerate(lines) if re.search(r'type="(r|rcs)"', line)]
    for at in rng.sample(receives, 5):
        offset = int(re.search(r'dstoff="(\d+)"', lines[at])[1])
        spoilt = [*lines]
        spoilt[at] = lines[at].replace(f'dstoff="{offset}"', f'dstoff="{offset + 1 if offset == 0 else offset - 1}"')
        with pytest.raises(ScheduleError, match=r"step \d+ \(rank") as caught:
            verify(read_msccl("\n".join(spoilt)))
        assert caught.value.step is not None
    last = next(i for i in reversed(range(len(lines))) if "<step" in lines[i])
    del lines[last]
    with pytest.raises(ScheduleError, match="step"):
        verify(read_msccl("\n".join(lines)))


@published
def test_the_tree_needs_its_dependencies():
    text = (PUBLISHED / "ncv4-ar_tree_12_LL.xml").read_text()
    loose = re.sub(r'depid="\d+" deps="\d+"', 'depid="-1" deps="-1"', text)
    with pytest.raises(ScheduleError, match="races"):
        verify(read_msccl(loose))


CLUSTERS = ["cluster:1x1", "cluster:2x1", "cluster:1x4", "cluster:2+1+2", "cluster:3x2"]


def all_schedules(clusters):
    for cluster in clusters:
        topology = generate(cluster)
        for algorithm in ALGORITHMS:
            for collective in algorithm.collectives:
                root = topology.num_ranks // 2 if collective in ROOTED else None
                for uneven in (False, True) if collective == "all_to_all" else (False,):
                    spec = CollectiveSpec(collective, topology.num_ranks, root, uneven)
                    if algorithm.reject(spec, topology) is None:
                        for params in algorithm.variants:
                            yield algorithm.build(spec, topology, **params)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_our_schedules_come_back_unchanged(cluster):
    seen = 0
    for schedule in all_schedules([cluster]):
        again = read_msccl(write_msccl(schedule))
        assert again.digest == schedule.digest, schedule.label
        assert again.params == schedule.params
        seen += 1
    assert seen > 20


def plain(text: str) -> str:
    """Without what MSCCL does not know."""
    return re.sub(r' topoccl_\w+="[^"]*"', "", text)


@pytest.mark.parametrize("cluster", CLUSTERS[:4])
def test_our_documents_mean_the_same_to_msccl(cluster):
    """Read as anybody's, with one peer a side for each thread block and at most one dependency a step, they are still right."""
    for schedule in all_schedules([cluster]):
        if schedule.spec.uneven or schedule.weights is not None or (schedule.spec.collective in ROOTED and schedule.spec.ranks == 1):
            continue
        text = plain(write_msccl(schedule))
        assert "topoccl" not in text
        theirs = read_msccl(text)
        verify(theirs)
        assert theirs.spec == schedule.spec
        assert theirs.chunks == schedule.chunks
        ends = [(i, int(r), int(t)) for i, r, t in zip(np.repeat(theirs.step_lane, np.diff(theirs.target_ptr)),
                np.repeat(theirs.step_rank, np.diff(theirs.target_ptr)), theirs.targets, strict=True)]  # fmt: skip
        assert len({(lane, t) for lane, _, t in ends}) == len({lane for lane, _, t in ends}), "one peer to send to for each thread block"
        assert (np.diff(theirs.target_ptr) <= 1).all()
        assert (np.diff(theirs.operand_ptr) <= 2).all()
        assert (np.diff(theirs.dep_ptr) <= 1).all()
        for gpu in text.split("<gpu")[1:]:
            for side in ("send", "recv"):
                used = [m for m in re.findall(rf'{side}="(-?\d+)"[^>]*chan="(\d+)"', gpu) if m[0] != "-1"]
                assert len(used) == len(set(used)), "a connection belongs to one thread block"


def test_an_ordinary_schedule_is_ordinary_msccl():
    b = ScheduleBuilder(CollectiveSpec("all_gather", 2), "swap", fifo=2)
    for r in range(2):
        b.step(b.lane(r), [(INPUT, 0)], None, [1 - r])
        b.recv(b.lane(r), 1 - r, (OUTPUT, 1 - r))
        b.copy(b.lane(r, "own"), (INPUT, 0), (OUTPUT, r))
    schedule = b.build()
    text = write_msccl(schedule)
    assert (
        text
        == """\
<algo name="swap" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" inplace="0" outofplace="1" \
topoccl_version="1" topoccl_slots="0" topoccl_fifo="2">
  <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="1"/>
      <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="-1" chan="0">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="0" deps="0" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="1"/>
      <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="-1" chan="0">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="0" deps="0" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""
    )
    assert replace(read_msccl(plain(text)), fifo=2).digest == schedule.digest


def three_ranks(steps, collective="all_reduce", chunks=1, scratch=(), **options) -> Schedule:
    """Ranks 0 and 2 do what they must; rank 1 does ``steps`` in one lane, on channel 3 and rail 2."""
    b = ScheduleBuilder(CollectiveSpec(collective, 3), "odd", chunks=chunks, fifo=4, **options)
    lane = b.lane(1, channel=3, rail=2)
    for places in scratch:
        b.scratch(1, places)
    for step in steps:
        b.step(lane, *step)
    for r in (0, 2):
        mine = b.lane(r, channel=3)
        b.send(mine, (INPUT, 0), 1, count=chunks)
        b.recv(mine, 1, (OUTPUT, 0), count=chunks)
    return b.build()


P0, P2, IN, OUT = (PEER, 0), (PEER, 2), (INPUT, 0), (OUTPUT, 0)
ODD_STEPS = {
    "three operands, two targets": [([P0, IN, P2], OUT, [0, 2])],
    "local operand first": [([IN, P0, P2], OUT, [2, 0])],
    "messages only, then the rest": [([P0, P2], OUT), ([IN, OUT], OUT, [0, 2])],
    "the accumulator is read late": [([IN], OUT), ([P0, P2, OUT], OUT, [0, 2])],
    "sum sent and not kept": [([P0, IN], OUT), ([P2, OUT], None, [0, 2]), ([OUT, P2], OUT)],
    "re": [([P0], OUT), ([P2, OUT], OUT), ([OUT, IN], OUT), ([OUT], None, [0]), ([OUT], None, [2])],
    "two local operands": [([P0], OUT), ([P2, OUT], (SCRATCH, 0)), ([(SCRATCH, 0), IN], OUT, [0, 2])],
}


@pytest.mark.parametrize("name", ODD_STEPS)
def test_steps_beyond_msccl_are_split_and_put_together_again(name):
    steps = ODD_STEPS[name]
    scratch = [[0]] if "two local" in name else []
    schedule = three_ranks(steps, scratch=scratch)
    if "not kept" not in name:
        verify(schedule)
    text = write_msccl(schedule)
    again = read_msccl(text)
    assert again.digest == schedule.digest
    assert 'topoccl_rail="2"' in text
    if "not kept" not in name:
        verify(read_msccl(plain(text)))


def test_forwarding_without_storing_and_discarding():
    """What MSCCL must put somewhere goes to spare scratch, shared by the steps of a lane."""
    spec = CollectiveSpec("broadcast", 3, 0)
    b = ScheduleBuilder(spec, "relay", chunks=2, fifo=2)
    b.step(b.lane(0), [(INPUT, 0)], (OUTPUT, 0), [1], 2)
    b.step(b.lane(0), [(INPUT, 0)], None, [1], 2)
    b.step(b.lane(1), [P0], None, [2], 2)
    b.step(b.lane(1), [P0], (OUTPUT, 0), [2], 2)
    b.step(b.lane(2), [(PEER, 1)], None, [], 2)
    b.recv(b.lane(2), 1, (OUTPUT, 0), 2)
    schedule = b.build()
    verify(schedule)
    text = write_msccl(schedule)
    assert 's_chunks="2"' in text
    assert read_msccl(text).digest == schedule.digest
    theirs = read_msccl(plain(text))
    verify(theirs)
    assert theirs.scratch_places(1).tolist() == [-1, -1]


def test_everything_else_survives():
    b = ScheduleBuilder(CollectiveSpec("all_gather", 2), 'odd "name" <&>', chunks=3, weights=[1, 2, 3, 4, 5, 6], fifo=7, slots=5,
                        params=[("inter", "ring"), ("channels", 2), ("sizes", (1, (2, 3))), ("ratio", 0.5), ("none", None)])  # fmt: skip
    hold = b.scratch(0, [0, 1, 2])
    for r in range(2):
        b.step(b.lane(r), [(INPUT, 0)], (OUTPUT, 3 * r), [1 - r], 3)
        b.recv(b.lane(r, "in", rail=r), 1 - r, (OUTPUT, 3 - 3 * r), 3)
    b.copy(b.lane(0), (INPUT, 0), (SCRATCH, hold), 3)
    b.step(b.lane(0, "nop"), [], None, deps=[0, 1])
    schedule = b.build()
    again = read_msccl(write_msccl(schedule))
    assert again.digest == schedule.digest
    assert again.params == schedule.params
    assert again.algorithm == schedule.algorithm
    assert again.slots == 5
    one = read_msccl(write_msccl(ScheduleBuilder(CollectiveSpec("all_gather", 2), "empty").build()))
    assert one.num_steps == 0


SWAP = """<algo name="swap" proto="LL" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" inplace="0">
  <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="1" recv="-1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="1" chan="0">
      <step s="0" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="0" deps="0" hasdep="0"/>
    </tb>
    <tb id="2" send="-1" recv="-1" chan="0"/>
  </gpu>
  <gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1"/>
      <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1"/>
      <step s="2" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1"/>
    </tb>
  </gpu>
</algo>"""


def test_a_plain_document_is_read_as_msccl_means_it():
    schedule = read_msccl(SWAP)
    verify(schedule)
    assert schedule.fifo == 8
    assert schedule.num_lanes == 3  # a thread block without steps is none
    assert schedule.step(2).deps == (0,)
    assert str(schedule.step(1)) == "step 1 (rank 0, lane 1, channel 0): message of rank 1 -> output[1:2]"


REFUSED = {
    "a document type is not allowed": ("<algo", "<!DOCTYPE algo [<!ENTITY a 'b'>]><algo"),
    "line 3: <tb id='0'> send is '&x;'|undefined entity": ('send="1"', 'send="&x;"'),
    "mismatched tag": ("</algo>", "</algox>"),
    "<gpus> inside <algo>; expected <gpu>": ('<gpu id="0"', "<gpus/><gpu id='0'"),
    "<algo> at the top|<stuff> at the top; expected <algo>": ("<algo", "<stuff><algo"),
    "text 'hello' between elements": ("</tb>", "hello</tb>"),
    "coll: unknown collective 'custom'; known: all_reduce, ": ('coll="allgather"', 'coll="custom"'),
    "<algo> has no coll": ('coll="allgather"', ""),
    "ngpus is 'two'; expected an integer from 1": ('ngpus="2"', 'ngpus="two"'),
    "ngpus is '0'": ('ngpus="2"', 'ngpus="0"'),
    "ngpus is '9999999999'": ('ngpus="2"', 'ngpus="9999999999"'),
    "must hold the gpus 0 to 2 in order": ('ngpus="2"', 'ngpus="3"'),
    "nchunksperloop is 3; all_gather among 2 ranks needs a multiple of 2": ('nchunksperloop="2"', 'nchunksperloop="3"'),
    "has 16000000 chunks in all buffers; the limit is 4194304": ('nchunksperloop="2"', 'nchunksperloop="4000000"'),
    "<gpu id='0'> o_chunks is 3; all_gather with 1 chunks a block needs 2": ('o_chunks="2"', 'o_chunks="3"'),
    "<gpu id='0'> i_chunks is 0; all_gather with 1 chunks a block needs 1": ('i_chunks="1"', 'i_chunks="0"'),
    "<tb id='7'> is number 0 of gpu 0": ('<tb id="0"', '<tb id="7"'),
    "<step s='5'> is number 1 of its thread block": ('s="1" type="cpy"', 's="5" type="cpy"'),
    "type is 'cp'; known: cpy, nop, ": ('type="cpy"', 'type="cp"'),
    "srcbuf is 'x'; known: i, o, s": ('type="s" srcbuf="i"', 'type="s" srcbuf="x"'),
    "dstoff is '-1'": ('dstoff="1"', 'dstoff="-1"'),
    "of type s needs a peer that its thread block has not \\(send -1, recv -1\\)": ('send="1"', 'send="-1"'),
    "of type r needs a peer": ('recv="1"', 'recv="-1"'),
    "send is '2'; expected an integer from -1 to 1": ('send="1"', 'send="2"'),
    "waits for step 0 of thread block 9, which does not exist": ('depid="0"', 'depid="9"'),
    "waits for step 4 of thread block 0, which does not exist": ('depid="0" deps="0"', 'depid="0" deps="4"'),
    "waits for step 1 of its own thread block": ('depid="0" deps="0"', 'depid="1" deps="1"'),
    "is in place, which all_to_all cannot be": ('i_chunks="1" o_chunks="2"', 'i_chunks="2" o_chunks="2"', 'inplace="0"', 'inplace="1"',
                                                'coll="allgather"', 'coll="alltoall"'),
    "does not say which rank is the root: the ranks with i_chunks are \\[0, 1\\]": ('coll="allgather"', 'coll="broadcast"'),
    "topoccl_version is '2'": ('inplace="0"', 'inplace="0" topoccl_version="2"'),
}  # fmt: skip


@pytest.mark.parametrize(("message", "edits"), REFUSED.items())
def test_bad_documents_are_refused(message, edits):
    text = SWAP
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        assert old in text
        text = text.replace(old, new) if "chunks" in old and len(edits) > 2 else text.replace(old, new, 1)
    with pytest.raises(MscclError, match=message):
        read_msccl(text)


def test_long_documents_are_refused_unread():
    with pytest.raises(MscclError, match="the limit is"):
        read_msccl(" " * (MAX_BYTES + 1))
    with pytest.raises(MscclError, match="no element found"):
        read_msccl("")


def test_a_wrong_step_of_a_plain_document_is_named():
    receive = 'type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="{}"'
    wrong = SWAP.replace(receive.format(1), receive.format(0))
    with pytest.raises(ScheduleError, match=r"step 1 \(rank 0, lane 1.*stores chunk 1 in a place for chunk 0"):
        verify(read_msccl(wrong))
    outside = SWAP.replace(receive.format(1), receive.format(7))
    with pytest.raises(ScheduleError, match="rank 0's output has 2 places"):
        verify(read_msccl(outside))


def test_in_place_documents_serve_calls_of_both_kinds():
    """An all_reduce on the one buffer ``i``, and a reduce_scatter that would spoil its input."""

    def text(coll, chunks, o_chunks, offset):
        def step(kind, at, after):
            places = f'srcbuf="i" srcoff="{at}" dstbuf="i" dstoff="{at}" cnt="1"'
            return f'<step s="0" type="{kind}" {places} depid="{after}" deps="{after}" hasdep="0"/>'

        gpus = "".join(
            f"""<gpu id="{r}" i_chunks="{chunks}" o_chunks="{o_chunks}" s_chunks="0">
                  <tb id="0" send="{1 - r}" recv="-1" chan="0">{step("s", offset(1 - r), -1)}</tb>
                  <tb id="1" send="-1" recv="{1 - r}" chan="0">{step("rrc", offset(r), 0)}</tb></gpu>"""
            for r in range(2)
        )
        return f'<algo name="x" nchunksperloop="{chunks}" ngpus="2" coll="{coll}" inplace="1" outofplace="0">{gpus}</algo>'

    for document in (text("allreduce", 1, 0, lambda r: 0), text("reduce_scatter", 2, 0, lambda r: r)):
        schedule = read_msccl(document)
        verify(schedule)
        verify(schedule, in_place=True)
    spoiling = text("reduce_scatter", 2, 0, lambda r: 1 - r)
    with pytest.raises(ScheduleError, match="writes into the input"):
        verify(read_msccl(spoiling))


EDITS = {
    "moved destination": ('dstbuf="o" dstoff="0" cnt="1" depid="0"', 'dstbuf="o" dstoff="1" cnt="1" depid="0"', "disagrees at dstoff"),
    "note says otherwise": ('topoccl_step="p0 p2>o0>"', 'topoccl_step="p2 p0>o0>"', "disagrees at "),
    "note without sense": ('topoccl_step="p0 p2>o0>"', 'topoccl_step="p0 p2"', "expected operands > destination > targets"),
    "note of no place": ('topoccl_step="p0 p2>o0>"', 'topoccl_step="q0 p2>o0>"', "'q0' is no place"),
    "note of no number": ('topoccl_step="p0 p2>o0>"', 'topoccl_step="p0 p2>o>"', "offset is ''"),
    "a part of nothing": ('topoccl_step="p0 p2>o0>"', 'topoccl_step="+"', "continues a step, but is the first of its lane"),
    "params": ("<algo ", '<algo topoccl_params="{" ', "expected a list of names and values in JSON"),
    "weights": ("<algo ", '<algo topoccl_weights="1 2 3" ', "topoccl_weights has 3 entries; expected 1"),
    "an unknown note of ours": ("<algo ", '<algo topoccl_more="1" ', "disagrees at topoccl_more"),
    "a mark is missing": ('hasdep="1"', 'hasdep="0"', "disagrees at hasdep"),
    "an element is missing": ("</gpu>", '<tb id="1" send="-1" recv="-1" chan="0"/></gpu>', "disagrees in the number of its parts"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_documents_of_ours_are_refused(name):
    """Else the steps would say one thing and our notes another."""
    old, new, message = EDITS[name]
    text = write_msccl(three_ranks(ODD_STEPS["messages only, then the rest"]))
    assert old in text
    with pytest.raises(MscclError, match=message):
        read_msccl(text.replace(old, new, 1))
