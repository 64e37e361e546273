"""What the benchmarks print and write."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from topoccl.bench.suite.operations import OPERATIONS
from topoccl.bench.suite.options import parse_options
from topoccl.bench.suite.record import check_writable, document, write_whole
from topoccl.bench.suite.results import Chosen, Row, Timing, average_busbw, combined, reasons, total_wrong
from topoccl.bench.suite.table import Device, Setting, core_list, fixed, footer, heading, row_end, row_start
from topoccl.collectives.errors import ConfigError

DIRECT = Chosen("direct", 1, 6e-6, 4e-6, "direct is the fastest of 7 candidates; next is tree with 2.1 times its time")
RING = Chosen("ring[channels=2]", 16, 0.0325, 0.03, "ring[channels=2] is the only candidate that TOPOCCL_ALGO allows (ring)")
ROWS = [
    Row(8, 2, "float", "sum", -1, 1.5, Timing(12e-6, 0), Timing(9.5e-6, 0), DIRECT),
    Row(4096, 1024, "float", "sum", -1, 1.5, Timing(20e-6, 0), Timing(19e-6, 3), DIRECT),
    Row(67108864, 16777216, "float", "sum", -1, 1.5, Timing(0.04, 0), Timing(0.0335, None), RING),
]
OPTIONS = parse_options(["-b", "8", "-e", "64M", "-f", "2", "--seed", "42"], "all_reduce.py", 2, OPERATIONS["all_reduce"])
SETTING = Setting(
    "0.1.0", "mpi, shared memory within hosts: on", "lab, 2 hosts", (Device(0, 4321, "node0", (0, 1, 3)), Device(1, 99, "n1", (2,)))
)

TABLE = """\
# topoccl 0.1.0, all_reduce, calls of communicator
# nRanks 2 minBytes 8 maxBytes 67108864 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 seed: 42
#
# Using devices
#  Rank  0 Group  0 Pid   4321 on      node0 device cpu [0-1,3]
#  Rank  1 Group  0 Pid     99 on         n1 device cpu [2]
# Transport: mpi, shared memory within hosts: on
# Topology: lab, 2 hosts
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong    model   time/  algorithm
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)             (us)   model
           8             2     float     sum      -1    12.00    0.00    0.00       0     9.50    0.00    0.00       0     6.00    2.00  direct
        4096          1024     float     sum      -1    20.00    0.20    0.31       0    19.00    0.22    0.32       3     6.00    3.33  direct
    67108864      16777216     float     sum      -1  40000.0    1.68    2.52       0  33500.0    2.00    3.00     N/A  32500.0    1.23  ring[channels=2] x16
# Out of bounds values : 3 FAILED
# Avg bus bandwidth    : 1.02571
#
# Choices
#  8 - 4K: direct is the fastest of 7 candidates; next is tree with 2.1 times its time
#  64M: ring[channels=2] is the only candidate that TOPOCCL_ALGO allows (ring)
#
"""  # noqa: E501


def test_whole_table() -> None:
    lines = [*heading(OPTIONS, SETTING), *(row_start(row) + row_end(row) for row in ROWS), *footer(ROWS)]
    assert "\n".join(lines) + "\n" == TABLE


def test_every_line_but_the_rows_is_a_comment_and_rows_have_fixed_columns() -> None:
    rows = [line for line in TABLE.splitlines() if not line.startswith("#")]
    assert len(rows) == 3
    assert rows[0].split()[:5] == ["8", "2", "float", "sum", "-1"]
    assert all(len(row.split()) >= 16 for row in rows)


def test_missing_halves_and_choices() -> None:
    broadcast = Row(8, 2, "float", "none", 0, 1.0, None, Timing(9.5e-6, 0), DIRECT)
    columns = (row_start(broadcast) + row_end(broadcast)).split()
    assert columns[4:] == ["0", "N/A", "N/A", "N/A", "N/A", "9.50", "0.00", "0.00", "0", "6.00", "1.58", "direct"]
    sendrecv = Row(8, 2, "float", "none", -1, 1.0, Timing(9.5e-6, 0))
    assert row_end(sendrecv).split()[-7:] == ["N/A", "N/A", "N/A", "N/A", "N/A", "N/A", "-"]
    assert footer([sendrecv])[-1] == "#"
    assert not any("Choices" in line for line in footer([sendrecv]))
    assert footer([sendrecv])[0].endswith(": 0 OK")


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (1.234, 7, "   1.23"),
        (12345.67, 7, "12345.7"),
        (1234567.8, 7, "1234568"),
        (123456789, 7, "1.2e+08"),
        (9999999, 6, " 1e+07"),
        (0, 6, "  0.00"),
    ],
)
def test_numbers_fit_their_columns(value: float, width: int, text: str) -> None:
    assert fixed(value, width) == text


def test_bandwidths() -> None:
    row = Row(10**9, 1, "int8", "sum", -1, 1.75, Timing(0.5, 0), Timing(0.25, 2))
    assert row.out_of_place is not None
    assert (row.algbw(row.out_of_place), row.busbw(row.out_of_place)) == (2.0, 3.5)
    assert average_busbw([row]) == pytest.approx((3.5 + 7) / 2)
    assert average_busbw([]) == 0
    assert total_wrong([row, row]) == 4


@pytest.mark.parametrize(("average", "seconds"), [(0, 3.0), (1, 2.0), (2, 1.0), (3, 3.0)])
def test_time_of_all_ranks(average: int, seconds: float) -> None:
    assert combined([3.0, 1.0, 2.0], average) == seconds


def test_reasons_are_one_line_per_algorithm() -> None:
    def row(size: int, chosen: Chosen, name: str = "float") -> Row:
        return Row(size, 1, name, "sum", -1, 1.0, Timing(1e-6, 0), None, chosen)

    slow = Chosen("tree", 1, 1e-6, 1e-6, "forced")
    rows = [row(8, DIRECT), row(16, DIRECT), row(32, slow), row(64, DIRECT)]
    assert reasons(rows) == [f"8 - 16, 64: {DIRECT.reason}", "32: tree: forced"]
    assert reasons([*rows, *(row(r.size, r.chosen or DIRECT, "int8") for r in rows)]) == reasons(rows)


def test_core_list() -> None:
    assert core_list((3, 0, 1, 2, 8)) == "0-3,8"
    assert core_list(()) == ""


# JSON


def test_json_document() -> None:
    env = {"TOPOCCL_ALGO": "ring", "OMP_NUM_THREADS": "1", "SECRET": "x"}
    content = json.loads(json.dumps(document(OPTIONS, SETTING, ROWS, ["all_reduce.py", "-b", "8"], env, ("then", "now"))))
    assert list(content) == [
        "version", "topoccl_version", "operation", "start_time", "args", "env", "config", "results", "out_of_bounds",
        "average_bus_bandwidth", "end_time",
    ]  # fmt: skip
    assert content["env"] == {"OMP_NUM_THREADS": "1", "TOPOCCL_ALGO": "ring"}
    assert content["out_of_bounds"] == {"count": 3, "okay": False}
    assert content["average_bus_bandwidth"]["bandwidth"] == pytest.approx(average_busbw(ROWS))
    config = content["config"]
    assert (config["minimum_bytes"], config["maximum_bytes"], config["step_factor"], config["iterations"]) == (8, 64 << 20, 2, 20)
    assert config["devices"][0] == {"rank": 0, "group": 0, "pid": 4321, "hostname": "node0", "device": "cpu", "cores": [0, 1, 3]}
    first = content["results"][0]
    assert {key: first[key] for key in ("size", "count", "type", "redop", "root", "algorithm", "segments", "reason")} == {
        "size": 8, "count": 2, "type": "float", "redop": "sum", "root": -1, "algorithm": "direct", "segments": 1, "reason": DIRECT.reason,
    }  # fmt: skip
    assert first["out_of_place"] == pytest.approx({"time": 12.0, "alg_bw": 8 / 12e-6 / 1e9, "bus_bw": 12 / 12e-6 / 1e9, "nwrong": 0})
    assert (first["predicted"], first["bound"], first["time_over_predicted"]) == pytest.approx((6.0, 4.0, 2.0))
    assert content["results"][2]["in_place"]["nwrong"] is None


def test_json_of_what_has_no_choice_and_no_out_of_place_form() -> None:
    row = Row(8, 2, "float", "none", 0, 1.0, None, Timing(1e-6, 0))
    result = document(OPTIONS, SETTING, [row], [], {}, ("", ""))["results"][0]
    assert result["out_of_place"] is None
    assert result["algorithm"] is result["predicted"] is result["bound"] is result["time_over_predicted"] is None


def test_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_whole(str(path), {"a": 1})
    write_whole(str(path), {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    with pytest.raises(TypeError):
        write_whole(str(path), {"a": object()})
    assert json.loads(path.read_text()) == {"a": 2}
    assert os.listdir(tmp_path) == ["out.json"]


def test_unwritable_file_is_refused_before_anything_runs(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "new.json"))
    check_writable("new.json")
    with pytest.raises(ConfigError, match="it is a directory"):
        check_writable(str(tmp_path))
    with pytest.raises(ConfigError, match="there is no directory"):
        check_writable(str(tmp_path / "missing" / "x.json"))
