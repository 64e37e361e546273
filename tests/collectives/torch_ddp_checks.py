"""Checks of DistributedDataParallel on the backend, against one process that sees all the data."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_reference import Tensor, check, world


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.Tanh(), torch.nn.Linear(40, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))


def data(count: int = 4, rows: int = 4) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
    """Batches for one process, and this rank's part of each."""
    rank, size = world()
    torch.manual_seed(5)
    whole = [(torch.randn(rows * size, 6), torch.randint(0, 3, (rows * size,))) for _ in range(count)]
    return whole, [(x[rank::size], y[rank::size]) for x, y in whole]


def train(net: torch.nn.Module, batches: list[tuple[Tensor, Tensor]], around: Callable[[int], Any] | None = None) -> None:
    """Takes a step per batch; ``around(i)`` is a context for the i-th, after which no step is taken, or None."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for i, (x, y) in enumerate(batches):
        context = around(i) if around is not None else None
        with context or contextlib.nullcontext():
            torch.nn.functional.cross_entropy(net(x), y).backward()
        if context is None:
            optimizer.step()
            optimizer.zero_grad()


def alike(net: torch.nn.Module, single: torch.nn.Module, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Parameters are those of a single process, and bitwise the same on all ranks."""
    for got, want in zip(net.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=rtol, atol=atol)
        first = got.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, got.detach())


def reference(batches: list[tuple[Tensor, Tensor]]) -> torch.nn.Module:
    single = model()
    train(single, batches)
    return single


@check
def ddp_options() -> None:
    whole, mine = data()
    single = reference(whole)
    for options in (
        {}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"bucket_cap_mb": 0.001}, {"find_unused_parameters": True},
        {"broadcast_buffers": False, "bucket_cap_mb": 0.001, "static_graph": True, "gradient_as_bucket_view": True},
    ):  # fmt: skip
        net = DistributedDataParallel(model(), **options)
        train(net, mine)
        alike(net.module, single)


@check
def ddp_no_sync() -> None:
    whole, mine = data()
    single = model()
    train(single, whole, lambda i: contextlib.nullcontext() if i % 2 == 0 else None)
    net = DistributedDataParallel(model())
    train(net, mine, lambda i: net.no_sync() if i % 2 == 0 else None)
    alike(net.module, single)


@check
def ddp_python_hooks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks
    from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

    whole, mine = data()
    single = reference(whole)
    hooks: list[tuple[Any, Any, float]] = [
        (None, default_hooks.allreduce_hook, 1e-5),
        (None, default_hooks.fp16_compress_hook, 1e-2),
        (None, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket), 3e-2),  # by name torch refuses it without NCCL
        (None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 1e-2),
        (powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook, 0.3),
        (None, quantization_hooks.quantization_pertensor_hook, 0.3),
    ]
    for state, hook, tolerance in hooks:
        net = DistributedDataParallel(model(), bucket_cap_mb=0.001)
        if "quantization" in hook.__name__:
            state = dist.group.WORLD
        net.register_comm_hook(state, hook)
        train(net, mine)
        try:
            alike(net.module, single, tolerance, tolerance)
        except AssertionError as error:
            raise AssertionError(f"{hook.__name__}: {error}") from error
    net = DistributedDataParallel(model())
    net.register_comm_hook(None, noop_hook)
    train(net, mine)


@check
def ddp_builtin_hooks() -> None:
    whole, mine = data()
    single = reference(whole)
    for kind, tolerance in ((dist.BuiltinCommHookType.ALLREDUCE, 1e-5), (dist.BuiltinCommHookType.FP16_COMPRESS, 1e-2)):
        net = DistributedDataParallel(model(), bucket_cap_mb=0.001)
        net._register_builtin_comm_hook(kind)
        train(net, mine)
        alike(net.module, single, tolerance, tolerance)


@check
def ddp_local_steps() -> None:
    """Post-local SGD: gradients are averaged for a while, then parameters, every few steps."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    _, mine = data(6)
    net = DistributedDataParallel(model())
    net.register_comm_hook(PostLocalSGDState(None, dist.group.WORLD, start_localSGD_iter=2), post_localSGD_hook)
    averager = PeriodicModelAverager(period=2, warmup_steps=2)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), averager)
    for x, y in mine:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    dist.barrier()


@check
def ddp_join_of_uneven_inputs() -> None:
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    rank, _ = world()
    net = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        net.module.weight.fill_(1.0)
    steps = 2 + rank
    seen = 0
    with net.join():
        for _ in range(steps):
            net(torch.ones(1, 2)).sum().backward()
            seen += 1
    assert seen == steps
    # The last step that all ranks take part in gives a gradient of 1; later ones are averaged over all ranks, absent ones as zero.
    assert net.module.weight.grad is not None
    net = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.01)
    with Join([net, optimizer]):
        for _ in range(steps):
            optimizer.zero_grad()
            net(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    first = net.module.weight.detach().clone()
    dist.broadcast(first, 0)
    assert torch.equal(first, net.module.weight.detach())

    def run_out() -> None:
        with net.join(throw_on_early_termination=True):
            for _ in range(steps):
                net(torch.ones(1, 2)).sum().backward()

    with pytest.raises(RuntimeError, match="exhausted"):
        run_out()
    dist.barrier()


class Branches(torch.nn.Module):
    """Uses one of two layers; which one may differ between ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.common = torch.nn.Linear(4, 4)
        self.left = torch.nn.Linear(4, 2)
        self.right = torch.nn.Linear(4, 2)

    def forward(self, x: Tensor, left: bool) -> Tensor:
        x = self.common(x)
        return self.left(x) if left else self.right(x)


@check
def ddp_unused_parameters() -> None:
    rank, size = world()
    single, net = Branches(), DistributedDataParallel(Branches(), find_unused_parameters=True)
    torch.manual_seed(1)
    rows = torch.randn(size, 2, 4)
    for step in range(3):
        for r in range(size):
            (single(rows[r], (r + step) % 2 == 0).sum() / size).backward()
        net(rows[rank], (rank + step) % 2 == 0).sum().backward()
    for got, want in zip(net.module.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)
    net = DistributedDataParallel(Branches(), find_unused_parameters=False)
    net(rows[rank], True).sum().backward()
    with pytest.raises(RuntimeError, match="Expected to have finished reduction"):
        net(rows[rank], True).sum().backward()
    dist.barrier()


@check
def ddp_sparse_gradients() -> None:
    rank, size = world()

    def embedding() -> torch.nn.Module:
        torch.manual_seed(4)
        return torch.nn.EmbeddingBag(10, 3, sparse=True, mode="sum")

    rows = [torch.tensor([[r, (r + 3) % 10], [5, 6]]) for r in range(size)]
    single, net = embedding(), DistributedDataParallel(embedding())
    for _ in range(2):
        single.zero_grad()
        sum(single(row).sum() for row in rows).backward()  # type: ignore[union-attr]
        net.zero_grad()
        net(rows[rank]).sum().backward()
        got, want = net.module.weight.grad, single.weight.grad
        assert got.is_sparse
        torch.testing.assert_close(got.to_dense(), want.to_dense() / size)  # type: ignore[union-attr]


@check
def ddp_buffers() -> None:
    rank, size = world()
    torch.manual_seed(6)
    rows = torch.randn(2 * size, 3, 4)

    def normed() -> torch.nn.Module:
        torch.manual_seed(7)
        return torch.nn.Sequential(torch.nn.Conv1d(3, 5, 2), torch.nn.BatchNorm1d(5), torch.nn.Conv1d(5, 2, 2))

    net = DistributedDataParallel(normed())
    with torch.no_grad():
        net.module[1].running_mean.add_(rank)  # rank 0's goes to all
    net(rows[:2])
    assert float(net.module[1].running_mean.abs().max()) < 1


@check
def ddp_mixed_precision_and_autocast() -> None:
    whole, mine = data()
    single = model()
    net = DistributedDataParallel(model())
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (single, net)]
    for (x, y), (a, b) in zip(whole, mine, strict=True):
        for module, optimizer, i, t in ((single, optimizers[0], x, y), (net, optimizers[1], a, b)):
            with torch.autocast("cpu", torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(module(i), t)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    alike(net.module, single, 2e-2, 2e-2)
    half = copy.deepcopy(model()).to(torch.bfloat16)
    net = DistributedDataParallel(half)
    net(mine[0][0].bfloat16()).float().sum().backward()
    for parameter in net.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.bfloat16
        first = parameter.grad.clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, parameter.grad)


@check
def ddp_uses_its_own_group() -> None:
    """A replica over part of the ranks, and one with a group that was made for it."""
    _, size = world()
    _, mine = data()
    groups = [dist.new_group([r, (r + 1) % size]) if size > 2 else dist.group.WORLD for r in range(0, size - 1, 2)]
    for group in groups:
        if dist.get_rank(group) >= 0:
            net = DistributedDataParallel(model(), process_group=group)
            train(net, mine)
            for parameter in net.parameters():
                first = parameter.detach().clone()
                dist.broadcast(first, dist.get_global_rank(group, 0), group=group)
                assert torch.equal(first, parameter.detach())
    dist.barrier()
