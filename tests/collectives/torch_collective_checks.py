"""Checks of the torch backend: every collective, type and layout."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch_reference import DTYPES, Op, check, layouts, reduced, same, values, world

from topoccl.collectives.errors import ConfigError

# Reductions


@check
def reductions_of_every_type() -> None:
    rank, size = world()
    for dtype in DTYPES:
        inputs = [values(r, 12, dtype) for r in range(size)]
        ops = [Op.SUM, Op.AVG, Op.PRODUCT]
        if not dtype.is_complex:
            ops += [Op.MIN, Op.MAX]
        if not dtype.is_complex and not dtype.is_floating_point:
            ops += [Op.BAND, Op.BOR, Op.BXOR]
        for op in ops:
            if dtype.is_complex and op == Op.PRODUCT:
                continue  # dist.all_reduce refuses it
            want = reduced(inputs, op)
            got = inputs[rank].clone()
            dist.all_reduce(got, op)
            same(got, want, f"all_reduce {dtype} {op}")


@check
def reductions_of_every_kind() -> None:
    rank, size = world()
    for dtype in (torch.float32, torch.bfloat16, torch.int16, torch.complex64):
        blocks = [[values(r, 5, dtype, seed=b) for b in range(size)] for r in range(size)]
        for root in range(size):
            got = blocks[rank][0].clone()
            dist.reduce(got, root)
            same(got, reduced([b[0] for b in blocks], Op.SUM) if rank == root else blocks[rank][0], f"reduce to {root}")
        want = reduced([b[rank] for b in blocks], Op.SUM)
        got = torch.empty(5, dtype=dtype)
        dist.reduce_scatter(got, blocks[rank])
        same(got, want, "reduce_scatter")
        got = torch.empty(5, dtype=dtype)
        dist.reduce_scatter_tensor(got, torch.cat(blocks[rank]))
        same(got, want, "reduce_scatter_tensor")
        got = torch.empty(5, dtype=dtype)
        dist.reduce_scatter_tensor(got, torch.stack(blocks[rank]))
        same(got, want, "reduce_scatter_tensor of a stack")
        uneven = [[values(r, 3 + b, dtype, seed=b) for b in range(size)] for r in range(size)]
        got = torch.empty(3 + rank, dtype=dtype)
        dist.reduce_scatter(got, uneven[rank])
        same(got, reduced([b[rank] for b in uneven], Op.SUM), "reduce_scatter of an uneven list")


@check
def reductions_with_a_factor() -> None:
    rank, size = world()
    got = torch.full((4,), float(rank + 1))
    dist.all_reduce(got, dist._make_nccl_premul_sum(0.5))
    same(got, torch.full((4,), 0.5 * sum(range(1, size + 1))))


@check
def not_a_number_is_kept() -> None:
    rank, size = world()
    for dtype in (torch.float32, torch.bfloat16):
        for op in (Op.MIN, Op.MAX):
            got = torch.tensor([1.0, float("nan") if rank == size - 1 else 2.0], dtype=dtype)
            dist.all_reduce(got, op)
            assert got[0] == 1
            assert got[1].isnan()


@check
def pairs_without_meaning_are_refused() -> None:
    for dtype, op in ((torch.float32, Op.BAND), (torch.bfloat16, Op.BXOR)):
        with pytest.raises(ConfigError, match=str(dtype).removeprefix("torch.")):
            dist.all_reduce(torch.ones(3, dtype=dtype), op)
    dist.barrier()


# Layouts


@check
def every_layout() -> None:
    rank, size = world()
    inputs = [values(r, 12, torch.float32) for r in range(size)]
    total = reduced(inputs, Op.SUM)
    for name, tensor in layouts(inputs[rank]):
        dist.all_reduce(tensor)
        same(tensor.reshape(-1), total, f"all_reduce, {name}")
    for name, tensor in layouts(inputs[rank]):
        dist.broadcast(tensor, size - 1)
        same(tensor.reshape(-1), inputs[size - 1], f"broadcast, {name}")
    for name, tensor in layouts(inputs[rank]):
        dist.reduce(tensor, 0)
        same(tensor.reshape(-1), total if rank == 0 else inputs[rank], f"reduce, {name}")
    for name, tensor in layouts(inputs[rank]):
        outputs = [torch.zeros_like(tensor) for _ in range(size)]
        dist.all_gather(outputs, tensor)
        for r, output in enumerate(outputs):
            same(output.reshape(-1), inputs[r], f"all_gather, {name}")
    for name, tensor in layouts(torch.zeros(12)):
        dist.scatter(tensor, [torch.full_like(tensor, float(r)) for r in range(size)] if rank == 0 else None, src=0)
        same(tensor.reshape(-1), torch.full((12,), float(rank)), f"scatter, {name}")
    for name, tensor in layouts(torch.zeros(12)):
        dist.reduce_scatter(tensor, [torch.full_like(tensor, float(r)) for r in range(size)])
        same(tensor.reshape(-1), torch.full((12,), float(rank * size)), f"reduce_scatter, {name}")
    room = torch.zeros(size, 8)[:, ::2]
    dist.all_to_all_single(room, torch.full((size, 8), float(rank))[:, ::2])
    same(room, torch.arange(float(size)).view(-1, 1).expand(-1, 4).clone(), "all_to_all_single, strided")


@check
def odd_tensors() -> None:
    rank, size = world()
    number = torch.tensor(float(rank))
    dist.all_reduce(number)
    same(number, torch.tensor(float(sum(range(size)))), "0-d")
    nothing = torch.ones(1, 0, 2)
    dist.all_reduce(nothing)
    dist.broadcast(nothing, 0)
    assert nothing.shape == (1, 0, 2)
    gathered = torch.empty(size)
    dist.all_gather_into_tensor(gathered, torch.tensor(float(rank)))
    same(gathered, torch.arange(float(size)), "all_gather of 0-d")
    got = torch.empty(())
    dist.reduce_scatter_tensor(got, torch.arange(float(size)))
    same(got, torch.tensor(float(size * rank)), "reduce_scatter to 0-d")
    outputs = [torch.empty(4) for _ in range(size)]
    dist.all_gather(outputs, torch.tensor([float(rank)]).expand(4))
    for r, output in enumerate(outputs):
        same(output, torch.full((4,), float(r)), "an expanded input")
    with torch.inference_mode():
        inside = torch.ones(3)
        dist.all_reduce(inside)
        assert inside.tolist() == [size] * 3
    leaf = torch.ones(3, requires_grad=True)
    dist.all_reduce(leaf)
    assert leaf.tolist() == [size] * 3
    assert leaf.requires_grad
    row = torch.zeros(size, 3)
    row[rank] = rank + 1
    dist.all_gather_into_tensor(row, row[rank])  # in place
    same(row, torch.arange(1.0, size + 1).view(-1, 1).expand(-1, 3).clone(), "all_gather in place")


@check
def sparse_sums() -> None:
    rank, size = world()
    mine = torch.sparse_coo_tensor(torch.arange(rank + 1).view(1, -1), torch.ones(rank + 1, 2), (size, 2), check_invariants=True)
    dist.all_reduce(mine)
    same(mine.to_dense(), torch.arange(float(size), 0, -1).view(-1, 1).expand(-1, 2).clone(), "sparse")


# Moving


@check
def movements_of_every_type() -> None:
    rank, size = world()
    for dtype in DTYPES:
        inputs = [values(r, 6, dtype) for r in range(size)]
        got = inputs[rank].clone()
        dist.broadcast(got, size - 1)
        same(got, inputs[-1], f"broadcast {dtype}")
        outputs = [torch.empty(6, dtype=dtype) for _ in range(size)]
        dist.all_gather(outputs, inputs[rank])
        for r in range(size):
            same(outputs[r], inputs[r], f"all_gather {dtype}")
        for output in (torch.empty(6 * size, dtype=dtype), torch.empty(size, 6, dtype=dtype)):
            dist.all_gather_into_tensor(output, inputs[rank])
            same(output.view(-1), torch.cat(inputs), f"all_gather_into_tensor {dtype}")
        outputs = [torch.empty(6, dtype=dtype) for _ in range(size)] if rank == 1 % size else None
        dist.gather(inputs[rank], outputs, dst=1 % size)
        for r in range(size if outputs else 0):
            same(outputs[r], inputs[r], f"gather {dtype}")
        got = torch.empty(6, dtype=dtype)
        dist.scatter(got, inputs if rank == 0 else None, src=0)
        same(got, inputs[rank], f"scatter {dtype}")
        got = torch.empty(2 * size, dtype=dtype)
        dist.all_to_all_single(got, torch.cat([values(rank, 2, dtype, seed=r) for r in range(size)]))
        same(got, torch.cat([values(r, 2, dtype, seed=rank) for r in range(size)]), f"all_to_all_single {dtype}")


@check
def uneven_movements() -> None:
    rank, size = world()
    inputs = [torch.full((r + 1, 2), float(r)) for r in range(size)]
    outputs = [torch.empty(r + 1, 2) for r in range(size)]
    dist.all_gather(outputs, inputs[rank])
    for r in range(size):
        same(outputs[r], inputs[r], "all_gather")
    outputs = [torch.empty(r + 1, 2) for r in range(size)] if rank == 0 else None
    dist.gather(inputs[rank], outputs, dst=0)
    for r in range(size if outputs else 0):
        same(outputs[r], inputs[r], "gather")
    got = torch.empty(rank + 1, 2)
    dist.scatter(got, inputs if rank == size - 1 else None, src=size - 1)
    same(got, inputs[rank], "scatter")
    # Rank a sends (a + 2 b) % 3 rows of value 10 a + b to rank b.
    rows = [[(a + 2 * b) % 3 for b in range(size)] for a in range(size)]
    sent = [torch.full((rows[rank][b], 2), 10.0 * rank + b) for b in range(size)]
    wanted = [torch.full((rows[a][rank], 2), 10.0 * a + rank) for a in range(size)]
    got = torch.empty(sum(rows[a][rank] for a in range(size)), 2)
    dist.all_to_all_single(got, torch.cat(sent), [rows[a][rank] for a in range(size)], rows[rank])
    same(got, torch.cat(wanted), "all_to_all_single")
    outputs = [torch.empty_like(want) for want in wanted]
    dist.all_to_all(outputs, sent)
    for output, want in zip(outputs, wanted, strict=True):
        same(output, want, "all_to_all")
