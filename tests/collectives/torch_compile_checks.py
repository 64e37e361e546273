"""Checks of torch.compile with collectives of the backend inside."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config
import torch.distributed as dist
from torch_ddp_checks import Tensor, alike, data, model, train
from torch_reference import check, same, world


def compiled(function: Any, backend: str) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True)


@check
def compiled_functional_collectives() -> None:
    import torch.distributed._functional_collectives as functional

    rank, size = world()
    group = dist.group.WORLD

    def everything(x: Tensor) -> tuple[Tensor, ...]:
        total = functional.all_reduce(x * 2, "sum", group)
        gathered = functional.all_gather_tensor(x, 0, group)
        scattered = functional.reduce_scatter_tensor(gathered, "sum", 0, group)
        turned = functional.all_to_all_single(gathered, None, None, group)
        return total + 1, gathered * 1, scattered + 0, turned + 0

    x = torch.arange(float(size)) + rank
    want = everything(x)
    torch._inductor.config.cpp_cache_precompile_headers = False
    for backend in ["eager", "aot_eager"] + (["inductor"] if shutil.which("g++") else []):
        for got, one in zip(compiled(everything, backend)(x), want, strict=True):
            same(got + 0, one + 0, backend)


@check
def compiled_calls_in_place() -> None:
    """Calls of torch.distributed itself, which torch.compile turns into functional ones."""
    rank, size = world()

    def calls(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        dist.all_reduce(y)
        out = torch.empty(size * x.numel())
        dist.all_gather_into_tensor(out, y)
        return y + 1, out

    x = torch.arange(3.0) + rank
    want = calls(x)
    for backend in ("eager", "aot_eager"):
        for got, one in zip(compiled(calls, backend)(x), want, strict=True):
            same(got, one, backend)


@check
def compiled_ddp() -> None:
    whole, mine = data()
    single = model()
    train(single, whole)
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        net = torch.nn.parallel.DistributedDataParallel(model())
        train(torch.compile(net, backend=backend), mine)  # type: ignore[arg-type]
        alike(net.module, single)


@check
def compiled_fsdp2() -> None:
    from torch.distributed.fsdp import fully_shard

    whole, mine = data()
    single = model()
    train(single, whole)
    torch._dynamo.reset()
    net = fully_shard(model())
    train(torch.compile(net, backend="aot_eager"), mine)  # type: ignore[arg-type]
    for got, want in zip(net.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(got.full_tensor(), want, rtol=1e-4, atol=1e-5)


@check
def graph_breaks_around_other_calls() -> None:
    """What torch.compile cannot take into a graph runs outside of it."""
    rank, size = world()

    def calls(x: Tensor) -> Tensor:
        y = x * 2
        dist.broadcast(y, 0)
        work = dist.all_reduce(y, async_op=True)
        assert work is not None
        work.wait()
        dist.barrier()
        return y + 1

    run: Callable[[Tensor], Tensor] = torch.compile(calls, backend="aot_eager")
    torch._dynamo.reset()
    same(run(torch.ones(3) * (rank + 1)), torch.full((3,), 2.0 * size + 1))
