"""The check of results: data that reduces exactly, a reference from the definitions, and errors that are found."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from topoccl.bench.suite.buffers import Buffer, allocate
from topoccl.bench.suite.data import CHUNK, Inputs, reduced
from topoccl.bench.suite.elements import ELEMENTS, Element, element_named
from topoccl.bench.suite.operations import OPERATIONS, Operation, Shape
from topoccl.bench.suite.options import OPS
from topoccl.bench.suite.reference import Part, count_wrong, fill_input, pieces, result_parts

FLOAT = element_named("float")


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda e: e.name)
@pytest.mark.parametrize("op", [*OPS, None])
def test_values_exist_in_the_type(element: Element, op: str | None) -> None:
    for ranks in (1, 2, 3, 5, 8, 17, 64):
        values = Inputs(element, op, ranks, (7, 1)).piece(ranks - 1, 0, 500)
        assert values.dtype == element.exact
        buffer = allocate(element, 500)
        buffer.write(0, values)
        assert buffer.differences(0, values.copy()) == 0
        if not element.native:  # written and read back unrounded
            assert np.array_equal(buffer.data.float().numpy(), values)


@pytest.mark.parametrize("element", [e for e in ELEMENTS if e.floating], ids=lambda e: e.name)
@pytest.mark.parametrize("op", ["sum", "prod"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 33])
def test_reductions_are_exact_in_any_order(element: Element, op: str, ranks: int) -> None:
    """In the type itself, rounding after each step, forwards and backwards: the same bits as in more precise arithmetic."""
    import torch

    inputs = Inputs(element, op, ranks, (3,))
    pieces = [inputs.piece(rank, 0, 400) for rank in range(ranks)]
    wide = np.longdouble
    precise = np.add.reduce([p.astype(wide) for p in pieces]) if op == "sum" else np.multiply.reduce([p.astype(wide) for p in pieces])
    dtype = getattr(torch, element.torch)
    for order in (range(ranks), reversed(range(ranks)), [*range(1, ranks, 2), *range(0, ranks, 2)]):
        total = None
        for rank in order:
            value = torch.from_numpy(pieces[rank].astype(np.float64))
            total = value if total is None else (total + value if op == "sum" else total * value)
            total = total.to(dtype).to(torch.float64)
        assert total is not None
        assert np.array_equal(total.numpy().astype(wide), precise)
    assert np.array_equal(reduced(inputs, tuple(range(ranks)), 0, 400).astype(wide), precise)


@pytest.mark.parametrize("element", [e for e in ELEMENTS if e.floating], ids=lambda e: e.name)
@pytest.mark.parametrize("op", OPS)
def test_every_rank_counts(element: Element, op: str) -> None:
    """A rank that is left out changes results, also with more ranks than fit into the type's significant bits."""
    ranks = 24
    inputs = Inputs(element, op, ranks, (11,))
    whole = reduced(inputs, tuple(range(ranks)), 0, 4000)
    if op in ("sum", "prod"):
        for rank in range(ranks):
            partial = reduced(inputs, tuple(r for r in range(ranks) if r != rank), 0, 4000)
            assert np.count_nonzero(partial != whole) > 100, f"rank {rank}"


def test_wide_types_get_many_values() -> None:
    values = Inputs(FLOAT, "sum", 4, (1,)).piece(0, 0, CHUNK)
    assert len(np.unique(values)) > CHUNK * 0.9
    assert np.abs(values).max() > 1 << 21


@pytest.mark.parametrize("name", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_integers_wrap_and_averages_round_towards_zero(name: str) -> None:
    element = element_named(name)
    bits = element.itemsize * 8
    for op in ("sum", "prod", "avg"):
        inputs = Inputs(element, op, 5, (2,))
        columns = zip(*([int(x) for x in inputs.piece(rank, 0, 50)] for rank in range(5)), strict=True)
        for numbers, got in zip(columns, reduced(inputs, tuple(range(5)), 0, 50), strict=True):
            if op == "avg":
                assert int(got) == int(abs(sum(numbers)) // 5) * (-1 if sum(numbers) < 0 else 1)
                continue
            total = sum(numbers) if op == "sum" else math.prod(numbers)
            assert (int(got) - total) % (1 << bits) == 0


def test_data_is_the_same_on_every_rank_and_fresh_otherwise() -> None:
    a = Inputs(FLOAT, "sum", 4, (1, 2)).piece(3, 10, 90)
    assert np.array_equal(a, Inputs(FLOAT, "sum", 4, (1, 2)).piece(3, 0, 200)[10:90])
    for other in (Inputs(FLOAT, "sum", 4, (1, 3)), Inputs(FLOAT, "sum", 4, (2, 2))):
        assert np.count_nonzero(a == other.piece(3, 10, 90)) < 5
    assert np.count_nonzero(a == Inputs(FLOAT, "sum", 4, (1, 2)).piece(2, 10, 90)) < 5


def test_pieces_end_where_chunks_end() -> None:
    cut = list(pieces(Part((0,), CHUNK - 10, CHUNK + 20), 5))
    assert cut == [(CHUNK - 10, CHUNK, 5), (CHUNK, 2 * CHUNK, 15), (2 * CHUNK, 2 * CHUNK + 10, CHUNK + 15)]
    with pytest.raises(ValueError, match="not within one chunk"):
        Inputs(FLOAT, None, 2).piece(0, CHUNK - 1, CHUNK + 1)


# Results: what each definition says, worked out here in another way


def right_result(operation: Operation, shape: Shape, inputs: list[Any], rank: int, root: int, op: str | None) -> Any:
    ranks = len(inputs)
    blocks = [np.array_split(x, ranks) if len(x) else [x] * ranks for x in inputs]
    fold = {"sum": np.add, "max": np.maximum, None: np.add}[op].reduce
    return {
        "all_reduce": lambda: fold(inputs),
        "reduce": lambda: fold(inputs),
        "reduce_scatter": lambda: fold([b[rank] for b in blocks]),
        "all_gather": lambda: np.concatenate(inputs),
        "gather": lambda: np.concatenate(inputs),
        "broadcast": lambda: inputs[root],
        "scatter": lambda: blocks[root][rank],
        "all_to_all": lambda: np.concatenate([b[rank] for b in blocks]),
        "sendrecv": lambda: inputs[rank - 1],
    }[operation.name]()


def case(name: str, rank: int, element: Element, size: int, op: str | None) -> tuple[Inputs, list[Part], Buffer]:
    """A right result in its buffer, and what is needed to check it: 4 ranks, root 2."""
    operation, ranks, root = OPERATIONS[name], 4, 2
    shape = operation.shape(size, ranks)
    inputs = Inputs(element, op if operation.reduces else None, ranks, (1, 5))
    filled = []
    for source in range(ranks):
        buffer = allocate(element, shape.inp)
        fill_input(inputs, source, buffer)
        filled.append(buffer.data if element.native else buffer.data.float().numpy())
    out = allocate(element, shape.out)
    out.fill(0xFF)
    if shape.out:
        out.write(0, np.ascontiguousarray(right_result(operation, shape, filled, rank, root, op)))
    return inputs, result_parts(operation, shape, rank, ranks, root), out


MOVING = [name for name, operation in OPERATIONS.items() if operation.parts != "none"]


@pytest.mark.parametrize("name", MOVING)
@pytest.mark.parametrize("rank", [0, 2, 3])
@pytest.mark.parametrize("size", [4, 40, CHUNK * 5 + 12])
def test_right_results_pass_and_one_wrong_element_is_found(name: str, rank: int, size: int) -> None:
    inputs, parts, out = case(name, rank, FLOAT, size, "sum")
    assert sum(part.length for part in parts) == (len(out) if OPERATIONS[name].has_output(rank, 2) else 0)
    assert count_wrong(inputs, parts, out) == 0
    if not parts:
        return
    for at in (0, len(out) // 2, len(out) - 1):
        right = out.data[at]
        out.data[at] = np.nextafter(right, np.float32(np.inf))
        assert count_wrong(inputs, parts, out) == 1
        out.data[at] = right
    out.fill(0xFF)
    assert count_wrong(inputs, parts, out) == len(out)


@pytest.mark.parametrize("name", ["half", "bfloat16", "f8e4m3", "f8e5m2", "int8", "double"])
@pytest.mark.parametrize("operation", ["all_reduce", "all_to_all"])
def test_every_type_is_checked(name: str, operation: str) -> None:
    element = element_named(name)
    inputs, parts, out = case(operation, 1, element, 1000, "max")
    assert count_wrong(inputs, parts, out) == 0
    out.part(999, 1).fill(0x7E)
    out.part(0, 1).fill(0x7E)
    assert 1 <= count_wrong(inputs, parts, out) <= 2
    out.fill(0xFF)
    assert count_wrong(inputs, parts, out) > 900


def test_barrier_and_ranks_without_a_result_have_nothing_to_check() -> None:
    assert result_parts(OPERATIONS["barrier"], OPERATIONS["barrier"].shape(8, 4), 0, 4, -1) == []
    assert result_parts(OPERATIONS["reduce"], OPERATIONS["reduce"].shape(8, 4), 0, 4, 1) == []
    assert result_parts(OPERATIONS["gather"], OPERATIONS["gather"].shape(8, 4), 3, 4, 1) == []
    assert not OPERATIONS["scatter"].has_input(0, 1)
    assert not OPERATIONS["broadcast"].has_input(0, 1)
    assert OPERATIONS["reduce"].has_input(0, 1)
