"""Tables of NCCL's tuner plugin."""

from __future__ import annotations

import pytest

from topoccl.algorithms.tuning import Measurement, Tuning
from topoccl.algorithms.tuning.nccl import CsvError, asked_by, read_csv, write_csv

TABLE = """# a comment
collType,minBytes,maxBytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
allreduce,0,65536,tree,simple,2,1,-1,-1,1

allreduce,65537,1048576,ring,simple,4,4,32,1,0
allreduce,1048577,4294967295,nvls,ll128,-1,-1,-1
broadcast,0,32768,TREE,simple,-1,1,-1
allgather,0,100,pat,ll,-1,2,-1
"""


def test_a_table_is_read() -> None:
    found, left = read_csv(TABLE, "n.csv")
    assert left == ["n.csv:6: allreduce by nvls"]
    assert [(p.collective, p.least, p.most, p.labels, p.hosts, p.ranks) for p in found] == [
        ("all_reduce", 0, 65536, ("tree[intra=chain]", "tree[intra=flat]"), 1, -1),
        ("all_reduce", 65537, 1048576, ("ring[channels=4]",), 4, 32),
        ("broadcast", 0, 32768, ("binomial",), 1, -1),
        ("all_gather", 0, 100, ("pat",), 2, -1),
    ]
    assert asked_by(found, 4, 32, "all_reduce", 1 << 20) == ("ring[channels=4]",)
    assert asked_by(found, 4, 16, "all_reduce", 1 << 20) == ()
    assert asked_by(found, 1, 16, "broadcast", 4) == ("binomial",)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("allreduce,0,1", "n.csv:1: 3 columns; expected collType,minBytes,maxBytes"),
        ("alltoall,0,1,ring,ll,-1,-1,-1", "n.csv:1: collType is 'alltoall'; expected one of broadcast, reduce"),
        ("allreduce,0,1,rings,ll,-1,-1,-1", "algorithm is 'rings'; expected one of tree, ring"),
        ("allreduce,0,1,ring,lll,-1,-1,-1", "protocol is 'lll'; expected one of ll, ll128, simple"),
        ("allreduce,0,x,ring,ll,-1,-1,-1", "maxBytes is 'x'; expected a whole number"),
        ("allreduce,0,1,ring,ll,-2,-1,-1", "channels is -2; expected a number from 0 on, or -1"),
    ],
)
def test_a_wrong_line(line: str, message: str) -> None:
    with pytest.raises(CsvError) as caught:
        read_csv(line, "n.csv")
    assert message in str(caught.value)


def test_a_table_is_written() -> None:
    rows = [("all_reduce", "ring[channels=2]", 1024, 2.0), ("all_reduce", "direct", 1024, 3.0), ("all_reduce", "direct", 4096, 1.0)]
    rows += [("all_reduce", "tree[intra=flat]", 16384, 1.0), ("all_to_all", "direct", 1024, 1.0)]
    tuning = Tuning(tuple(Measurement(c, 8, label, nbytes, seconds, 1, hosts=4) for c, label, nbytes, seconds in rows))
    text, left = write_csv(tuning)
    assert text.splitlines()[1:] == ["allreduce,0,4095,ring,simple,2,4,8,-1,-1", "allreduce,16384,4294967295,tree,simple,-1,4,8,-1,-1"]
    assert left == ["all_reduce of 4K bytes by direct", "all_to_all of 1K bytes by direct"]
    again, none = read_csv(text)
    assert none == []
    assert asked_by(again, 4, 8, "all_reduce", 2000) == ("ring[channels=2]",)
