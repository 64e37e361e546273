"""Checks of the torch backend: training with DistributedDataParallel, against one process that sees all the data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch_reference import Tensor, check, world


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.Tanh(), torch.nn.Linear(40, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))


def train(net: torch.nn.Module, batches: list[tuple[Tensor, Tensor]], skip_sync: Callable[[int], Any] | None = None) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for i, (x, y) in enumerate(batches):
        context = skip_sync(i) if skip_sync is not None else None
        if context is not None:
            with context:
                torch.nn.functional.cross_entropy(net(x), y).backward()
            continue
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def batches(size: int, count: int = 6) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(5)
    return [(torch.randn(4 * size, 6), torch.randint(0, 3, (4 * size,))) for _ in range(count)]


@check
def distributed_data_parallel_learns_the_same() -> None:
    rank, size = world()
    whole = batches(size)
    mine = [(x[rank::size], y[rank::size]) for x, y in whole]
    single = model()
    train(single, whole)
    for options in (
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"bucket_cap_mb": 0.001},
        {"find_unused_parameters": True},
    ):
        net = torch.nn.parallel.DistributedDataParallel(model(), **options)
        train(net, mine)
        for got, want in zip(net.module.parameters(), single.parameters(), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@check
def distributed_data_parallel_without_sync_and_with_hooks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    rank, size = world()
    whole = batches(size)
    mine = [(x[rank::size], y[rank::size]) for x, y in whole]
    single = model()
    accumulate = lambda net: lambda i: net.no_sync() if i % 2 == 0 else None  # noqa: E731

    train(single, whole, lambda i: contextlib.nullcontext() if i % 2 == 0 else None)
    net = torch.nn.parallel.DistributedDataParallel(model())
    train(net, mine, accumulate(net))
    for got, want in zip(net.module.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
        net = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.001)
        net.register_comm_hook(None, hook)
        train(net, mine)
        agree(net)
    net = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.001)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(net, mine)
    agree(net)


def agree(net: torch.nn.Module) -> None:
    """All ranks have the same parameters."""
    for parameter in net.parameters():
        first = parameter.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, parameter.detach())
