"""Checks of the backend: tensors that are not what they look like, programs that fail in the middle, lists that differ between ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_reference import Op, check, same, world

from topoccl.collectives.errors import ConfigError, MismatchError


@check
def tensors_that_are_yet_to_be_conjugated_or_negated() -> None:
    rank, size = world()

    def of(r: int) -> torch.Tensor:
        return torch.complex(torch.arange(3.0), torch.full((3,), r + 1.0)).conj()

    mine, everyone = of(rank), [of(r).resolve_conj() for r in range(size)]
    assert mine.is_conj()
    dist.reduce(mine, 0)
    same(mine.resolve_conj(), sum(everyone) if rank == 0 else everyone[rank], "reduce")
    outputs = [torch.zeros(3, dtype=torch.complex64).conj() for _ in range(size)] if rank == 0 else None
    dist.gather(of(rank), outputs, dst=0)
    for output, want in zip(outputs or [], everyone, strict=False):
        same(output.resolve_conj(), want, "gather")
    for _ in range(3):  # also when the same call is made again
        negated = torch.arange(1.0, 4)._neg_view()
        dist.all_reduce(negated)
        same(negated.resolve_neg(), -size * torch.arange(1.0, 4), "all_reduce")
    # A list whose tensors lie one after the other, but only one of them as it is.
    room = torch.ones(2 * size)
    parts = [room[2 * r : 2 * r + 2] for r in range(size)]
    parts[0] = parts[0]._neg_view()
    dist.reduce_scatter(got := torch.empty(2), parts)
    same(got, torch.full((2,), float(-size if rank == 0 else size)), "reduce_scatter")
    dist.all_gather(parts, torch.full((2,), float(rank)))
    for r, part in enumerate(parts):
        same(part.resolve_neg(), torch.full((2,), float(r)), "all_gather")


@check
def types_that_only_move() -> None:
    rank, size = world()
    for name in ("float4_e2m1fn_x2", "bits8", "bits16", "uint4"):
        dtype = getattr(torch, name, None)
        if dtype is None:
            continue
        plain = torch.uint8 if dtype.itemsize == 1 else torch.int16
        outputs = [torch.zeros(5, dtype=plain) for _ in range(size)]
        dist.all_gather([output.view(dtype) for output in outputs], torch.full((5,), rank + 1, dtype=plain).view(dtype))
        assert [output.tolist() for output in outputs] == [[r + 1] * 5 for r in range(size)], name
        with pytest.raises(ConfigError, match=f"has no meaning for {name}"):
            dist.all_reduce(outputs[0].view(dtype))


@check
def errors_inside_a_coalescing_manager() -> None:
    """The calls after it are made, and are over when they return."""
    rank, size = world()
    for device in (None, torch.device("cpu")):

        def fails(device: Any = device) -> None:
            with dist._coalescing_manager(device=device):
                dist.all_reduce(torch.ones(2))
                raise KeyError("no such thing")

        def mixes(device: Any = device) -> None:
            with dist._coalescing_manager(device=device):
                dist.all_reduce(torch.ones(2))
                dist.reduce_scatter_tensor(torch.ones(1), torch.ones(size))

        for wrong, error in ((fails, KeyError), (mixes, RuntimeError)):
            with pytest.raises(error):
                wrong()
            dist.all_reduce(tensor := torch.ones(300_000))
            assert tensor[-1] == size
            dist.broadcast(word := torch.tensor([rank]), size - 1)
            assert word.item() == size - 1


@check
def lists_and_sparse_tensors_that_differ() -> None:
    rank, size = world()
    if size == 1:
        return
    first = rank == 0
    counts = [2, 3, *[4] * (size - 2)] if first else [3, 2, *[4] * (size - 2)]

    def gather(group: Any) -> None:
        dist.all_gather([torch.empty(n) for n in counts], torch.ones(counts[rank]), group=group)

    def scatter(group: Any) -> None:
        dist.reduce_scatter(torch.empty(counts[rank]), [torch.ones(n) for n in counts], group=group)

    def fused(group: Any) -> None:
        group.allreduce_coalesced([torch.ones(n) for n in counts]).wait()

    def shape(group: Any) -> None:
        dist.all_reduce(torch.ones(4 if first else 5, 2).to_sparse(), group=group)

    def op(group: Any) -> None:
        dist.all_reduce(torch.ones(4, 2).to_sparse(), Op.SUM if first else Op.AVG, group=group)

    def layout(group: Any) -> None:
        dist.all_reduce(torch.ones(4) if first else torch.ones(4).to_sparse(), group=group)

    wrong: list[tuple[Callable[[Any], None], str]] = [
        (gather, "rank 0 calls all_gather"), (scatter, "rank 0 calls reduce_scatter"), (fused, "rank 0 calls all_reduce_coalesced"),
        (shape, r"shape \[4, 2\].*shape \[5, 2\]"), (op, "SUM.*AVG"), (layout, "rank 0 calls all_reduce.float32, 4, SUM"),
    ]  # fmt: skip
    for call, text in wrong:
        group = dist.new_group(list(range(size)))
        with pytest.raises(MismatchError, match=text):
            call(group)
        dist.barrier()
        dist.destroy_process_group(group)


@check
def sparse_averages_of_integers() -> None:
    """By the rule of dense ones, and exact."""
    mine = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([2**53 + 1, -3]), (4,), check_invariants=True)
    dist.all_reduce(mine, Op.AVG)
    assert mine.to_dense().tolist() == [2**53 + 1, 0, -3, 0]
