"""The command line, the operations' sizes and factors, and the folder of the scripts."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from types import ModuleType

import pytest

from topoccl.bench import compare, lab, mesh_groups, overlap
from topoccl.bench.suite.elements import ELEMENTS, element_named
from topoccl.bench.suite.operations import OPERATIONS, operation_named
from topoccl.bench.suite.options import OPS, Options, UsageError, parse_options

BENCH = Path(__file__).resolve().parents[2] / "bench"
SCRIPTS = [*OPERATIONS]


def parsed(line: str, ranks: int = 4, operation: str | None = "all_reduce") -> Options:
    return parse_options(line.split(), "prog", ranks, OPERATIONS[operation] if operation else None)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_runs_the_operation_of_its_name(name: str) -> None:
    text = (BENCH / f"{name}.py").read_text()
    assert f'main("{name}")' in text
    assert f"bench/{name}.py" in text


def test_scripts_shadow_no_other_module() -> None:
    """A script's folder comes first on sys.path."""
    mine = {path.stem for path in BENCH.iterdir() if path.suffix == ".py" or path.is_dir()} - {"__init__", "__pycache__"}
    assert set(SCRIPTS) <= mine
    assert not mine & set(sys.stdlib_module_names)
    assert not mine & (set(importlib.metadata.packages_distributions()) - {"topoccl"})


# Bus bandwidth: the factors of nccl-tests' doc/PERFORMANCE.md


@pytest.mark.parametrize(
    ("name", "two", "four", "eight"),
    [
        ("all_reduce", 1.0, 1.5, 1.75),
        ("all_gather", 0.5, 0.75, 0.875),
        ("reduce_scatter", 0.5, 0.75, 0.875),
        ("all_to_all", 0.5, 0.75, 0.875),
        ("broadcast", 1, 1, 1),
        ("reduce", 1, 1, 1),
        ("gather", 0.5, 0.75, 0.875),
        ("scatter", 0.5, 0.75, 0.875),
        ("sendrecv", 1, 1, 1),
    ],
)
def test_busbw_factor(name: str, two: float, four: float, eight: float) -> None:
    factor = OPERATIONS[name].factor
    assert (factor(2), factor(4), factor(8)) == (two, four, eight)


@pytest.mark.parametrize(
    ("name", "count", "inp", "out"),
    [
        ("all_reduce", 11, 11, 11),
        ("reduce", 11, 11, 11),
        ("broadcast", 11, 11, 11),
        ("sendrecv", 11, 11, 11),
        ("all_gather", 2, 2, 8),
        ("gather", 2, 2, 8),
        ("reduce_scatter", 2, 8, 2),
        ("scatter", 2, 8, 2),
        ("all_to_all", 2, 8, 8),
        ("barrier", 0, 0, 0),
    ],
)
def test_buffers_of_eleven_elements_among_four_ranks(name: str, count: int, inp: int, out: int) -> None:
    shape = OPERATIONS[name].shape(11, 4)
    assert (shape.count, shape.inp, shape.out) == (count, inp, out)
    assert shape.largest == max(inp, out)
    assert max(3 * shape.inp_at + shape.inp, 3 * shape.out_at + shape.out) <= max(shape.largest, 3 * shape.inp_at + shape.inp)
    if name in ("all_gather", "gather"):
        assert shape.inp_at == 2
    if name in ("reduce_scatter", "scatter"):
        assert shape.out_at == 2


@pytest.mark.parametrize("text", ["all_reduce", "allreduce", "AllReduce", "all-reduce"])
def test_operation_spellings(text: str) -> None:
    assert operation_named(text) is OPERATIONS["all_reduce"]


def test_unknown_operation_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"unknown operation 'allredcue'; known: all_reduce, all_gather, .*sendrecv"):
        operation_named("allredcue")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("float", "float"),
        ("float32", "float"),
        ("torch.float64", "double"),
        ("half", "half"),
        ("float16", "half"),
        ("BF16", "bfloat16"),
        ("float8_e4m3fn", "f8e4m3"),
        ("int", "int32"),
        ("int16", "int16"),
    ],
)
def test_type_names(text: str, name: str) -> None:
    assert element_named(text).name == name


# Options


def test_defaults_are_those_of_nccl_tests() -> None:
    options = parsed("")
    assert (options.minbytes, options.maxbytes, options.iters, options.agg_iters, options.check, options.average) == (
        32 << 20,
        32 << 20,
        20,
        1,
        1,
        1,
    )
    assert list(options.sizes()) == [32 << 20]
    assert [(e.name, op, root) for e, op, root in options.sweeps()] == [("float", "sum", None)]


@pytest.mark.parametrize(
    ("line", "sizes"),
    [
        ("-b 8 -e 64 -f 2", [8, 16, 32, 64]),
        ("-b 8 -e 100 -f 3", [8, 24, 72]),
        ("-b 1K -e 3K -i 1K", [1024, 2048, 3072]),
        ("-b 1M -e 3M", [1 << 20, 2 << 20, 3 << 20]),
        ("-b 0 -e 2 -i 1", [0, 1, 2]),
        ("-b 64M", [64 << 20]),
        ("-e 4K", [4096]),
        ("-b 1KiB -e 1kb -f 1", [1024]),
        ("--minbytes 8 --maxbytes 16 --stepfactor 2", [8, 16]),
    ],
)
def test_sizes(line: str, sizes: list[int]) -> None:
    assert list(parsed(line).sizes()) == sizes


def test_everything_at_once() -> None:
    options = parsed("-n 7 -w 0 -m 3 -c 2 -d all -o all -r all -a 3 -T 30 -J out.json --backend torch --seed 5", 3, "reduce")
    assert (options.iters, options.warmup_iters, options.agg_iters, options.check, options.average) == (7, 0, 3, 2, 3)
    assert (options.timeout, options.output_file, options.backend, options.seed) == (30, "out.json", "torch", 5)
    sweeps = list(options.sweeps())
    assert len(sweeps) == len(ELEMENTS) * len(OPS) * 3
    assert sweeps[:4] == [(ELEMENTS[0], "sum", 0), (ELEMENTS[0], "sum", 1), (ELEMENTS[0], "sum", 2), (ELEMENTS[0], "prod", 0)]


@pytest.mark.parametrize(("operation", "sweeps"), [("all_gather", 1), ("broadcast", 4), ("all_reduce", 5), ("barrier", 1)])
def test_what_an_operation_does_not_take_is_not_swept(operation: str, sweeps: int) -> None:
    options = parsed("-o all -r all", 4, operation)
    assert len(list(options.sweeps())) == sweeps


def test_operation_may_be_the_first_argument() -> None:
    assert parsed("alltoall -b 8 -e 8", operation=None).operation is OPERATIONS["all_to_all"]
    assert parsed("-b 8 -e 8 scatter", operation=None).operation is OPERATIONS["scatter"]


def test_seeds_differ_from_run_to_run() -> None:
    assert parsed("").seed != parsed("").seed


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-b 3Q", "argument -b/--minbytes: bad size '3Q': expected a number of bytes with an optional binary suffix K, M, G or T"),
        ("-b -4", "-b"),
        ("-b 2M -e 1M", "-b 2M is larger than -e 1M"),
        ("-b 8 -e 16 -f 2 -i 8", "-i and -f exclude each other"),
        ("-b 0 -e 16 -f 2", "-f 2 never leaves -b 0"),
        ("-b 8 -e 16 -i 0", "-i 0 never reaches -e"),
        ("-f 0", "'0' is not a whole number, at least 1"),
        ("-f 1.5", "'1.5' is not a whole number, at least 1"),
        ("-n 0", "argument -n/--iters: '0' is not a whole number, at least 1"),
        ("-w -1", "-w"),
        ("-a 4", "'4' is not a whole number from 0 to 3"),
        ("-d floot", "argument -d/--datatype: unknown type 'floot'; known: int8, uint8, .*float16.*, all"),
        ("-o xor", "argument -o/--op: unknown reduction 'xor'; known: sum, prod, max, min, avg, all"),
        ("-r 4", r"-r 4 is not one of the 4 ranks \(0 to 3\)"),
        ("-r first", "argument -r/--root: unknown root 'first'; known: a rank, all"),
        ("-T soon", "argument -T/--timeout: bad time 'soon'"),
        ("--backend nccl", "invalid choice: 'nccl'"),
        ("--bogus", "unrecognized arguments: --bogus"),
        ("--mi 8", "unrecognized arguments: --mi 8"),
    ],
)
def test_bad_value_is_named_with_what_is_known(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parsed(line)
    assert str(caught.value).startswith("usage: prog ")


@pytest.mark.parametrize(
    ("script", "line", "message"),
    [
        (compare, "all_reduce -b -5", "argument -b/--minbytes: bad size '-5': expected a number of bytes"),
        (compare, "all_reduce -b 0", "-b 0: no factor leaves it; expected at least 1 byte"),
        (compare, "all_reduce -b 2M -e 1M", "-b 2M is larger than -e 1M"),
        (compare, "all_reduce -f 1", "argument -f/--stepfactor: '1' is not a whole number, at least 2"),
        (compare, "all_reduce --batches 0", "argument --batches: '0' is not a whole number, at least 1"),
        (overlap, "ddp 4Q", "argument size: bad size '4Q'"),
        (mesh_groups, "all_reduce 1M --mesh 2x2 --link fast", "argument --link: bad rate 'fast'"),
    ],
)
def test_scripts_name_bad_values(
    script: ModuleType, line: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["script", *line.split()])
    with pytest.raises(SystemExit) as caught:
        script.arguments()
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_the_lab_names_a_file_that_it_cannot_use(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise FileNotFoundError(2, "No such file or directory", "/lab")

    monkeypatch.setattr(lab, "check_machine", fail)
    assert lab.main(["status"]) == 2
    assert capsys.readouterr().err == "lab: error: /lab: No such file or directory\n"
