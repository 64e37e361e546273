"""Checks of what else torch builds on groups: pipelines, checkpoints, ``torch.distributed.nn``, functional collectives with gradients."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch_ddp_checks import Tensor, model
from torch_reference import check, same, world


def close(got: Tensor, want: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


# Pipelines


def layers(count: int) -> list[torch.nn.Module]:
    torch.manual_seed(21)
    return [torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Tanh()) for _ in range(count)]


@check
def pipelines() -> None:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B, ScheduleLoopedBFS

    rank, size = world()
    torch.manual_seed(22)
    micro = 2 * size
    x, y = torch.randn(4 * size, 5), torch.randn(4 * size, 5)
    loss_of = torch.nn.functional.mse_loss
    for kind, per_rank in ((ScheduleGPipe, 1), (Schedule1F1B, 1), (ScheduleInterleaved1F1B, 2), (ScheduleLoopedBFS, 2)):
        count = per_rank * size
        single = layers(count)
        out = x
        for layer in single:
            out = layer(out)
        loss_of(out, y).backward()
        numbers = [rank + i * size for i in range(per_rank)]
        mine = {i: layers(count)[i] for i in numbers}
        stages: list[Any] = [PipelineStage(layer, i, count, torch.device("cpu")) for i, layer in mine.items()]
        schedule: Any = kind(stages[0] if per_rank == 1 else stages, micro, loss_fn=loss_of)
        losses: list[Tensor] = []
        inputs = (x,) if rank == 0 else ()
        last = {"target": y, "losses": losses} if rank == size - 1 else {}
        result = schedule.step(*inputs, **last)
        for i, layer in mine.items():
            for got, want in zip(layer.parameters(), single[i].parameters(), strict=True):
                assert got.grad is not None
                close(got.grad, want.grad)  # type: ignore[arg-type]
        if rank == size - 1:
            close(result, out)
            close(torch.stack(losses).mean(), loss_of(out, y))


# Checkpoints


def shared_folder() -> Path:
    made: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made, 0)
    return Path(made[0])


@check
def checkpoints() -> None:
    """Saved with one sharding, by all or in the background, and loaded with another one or by fewer ranks."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    rank, size = world()
    folder = shared_folder()
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(23)
    whole = torch.randn(2 * size + 1, 6)
    state = {
        "sharded": distribute_tensor(whole, mesh, [Shard(0)]),
        "plain": whole * 2,
        "step": 7,
        "own": {f"of {rank}": torch.tensor([rank])},
    }
    for name, background in (("sync", False), ("async", True)):
        if background:
            checkpoint.async_save(state, checkpoint_id=folder / name).result()
        else:
            checkpoint.save(state, checkpoint_id=folder / name)
        for placement in (Shard(1), Replicate(), Shard(0)):
            into: dict[str, Any] = {
                "sharded": distribute_tensor(torch.zeros_like(whole), mesh, [placement]), "plain": torch.zeros_like(whole), "step": 0,
                "own": {f"of {rank}": torch.tensor([-1])},
            }  # fmt: skip
            checkpoint.load(into, checkpoint_id=folder / name)
            same(into["sharded"].full_tensor(), whole, f"{name} {placement}")
            same(into["plain"], whole * 2, "plain")
            assert (into["step"], into["own"][f"of {rank}"].item()) == (7, rank)
    alone = dist.new_group([0])
    if rank == 0:
        fewer: dict[str, Any] = {"sharded": torch.zeros_like(whole)}
        checkpoint.load(fewer, checkpoint_id=folder / "async", process_group=alone)
        same(fewer["sharded"], whole, "by one rank")
        dist.destroy_process_group(alone)
    net = fully_shard(model())
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    net(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    weights, moments = get_state_dict(net, optimizer)
    checkpoint.save({"weights": weights, "moments": moments}, checkpoint_id=folder / "trained")
    again = fully_shard(model())
    other = torch.optim.Adam(again.parameters(), lr=0.01)
    weights, moments = get_state_dict(again, other)
    loaded = {"weights": weights, "moments": moments}
    checkpoint.load(loaded, checkpoint_id=folder / "trained")
    set_state_dict(again, other, model_state_dict=loaded["weights"], optim_state_dict=loaded["moments"])
    for got, want in zip(again.parameters(), net.parameters(), strict=True):
        same(got.full_tensor(), want.full_tensor())  # type: ignore[attr-defined]
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)


# Collectives with gradients


@check
def collectives_with_gradients() -> None:
    import torch.distributed.nn.functional as nn

    rank, size = world()
    x = torch.arange(3.0) + rank
    x.requires_grad_()

    def gradient(output: Tensor, weight: Tensor) -> Tensor:
        x.grad = None
        (output * weight).sum().backward()
        assert x.grad is not None
        return x.grad

    mine = torch.tensor([1.0, 2.0, 3.0]) * (rank + 1)
    all_weights = torch.tensor([1.0, 2.0, 3.0]) * sum(range(1, size + 1))
    close(gradient(nn.all_reduce(x * 1), mine), all_weights)
    gathered = nn.all_gather(x * 1)
    close(torch.stack(gathered)[:, 0], torch.arange(float(size)))
    close(gradient(torch.stack(gathered), mine), all_weights)
    got = nn.broadcast(x * 1, size - 1)
    close(got, torch.arange(3.0) + size - 1)
    close(gradient(got, mine), all_weights if rank == size - 1 else torch.zeros(3))
    got = nn.reduce(x * 1, 0)
    if rank == 0:
        close(got, torch.arange(3.0) * size + sum(range(size)))
    close(gradient(got, torch.ones(3)), torch.ones(3))
    parts = nn.gather(x * 1, 0)
    if rank == 0:
        close(torch.stack(parts)[:, 0], torch.arange(float(size)))
    close(gradient(torch.stack(parts), torch.ones(3)), torch.ones(3))
    got = nn.scatter([x * (r + 1) for r in range(size)], 0)
    close(got, torch.arange(3.0) * (rank + 1))
    grad = gradient(got, torch.ones(3))
    close(grad, torch.full((3,), float(sum(range(1, size + 1)))) if rank == 0 else torch.zeros(3))
    got = nn.reduce_scatter(torch.empty(3), [x * (r + 1) for r in range(size)])
    close(got, (torch.arange(3.0) * size + sum(range(size))) * (rank + 1))
    close(gradient(got, torch.ones(3)), torch.full((3,), float(sum(range(1, size + 1)))))
    outputs = nn.all_to_all([torch.empty(3) for _ in range(size)], [x * (r + 1) for r in range(size)])
    close(outputs[0], torch.arange(3.0) * (rank + 1))
    close(gradient(torch.stack(list(outputs)), torch.ones(3)), torch.full((3,), float(sum(range(1, size + 1)))))
    got = nn.all_to_all_single(torch.empty(3 * size), torch.cat([x * (r + 1) for r in range(size)]))
    close(got[:3], torch.arange(3.0) * (rank + 1))
    close(gradient(got, torch.ones(3 * size)), torch.full((3,), float(sum(range(1, size + 1)))))


@check
def functional_collectives_of_all_kinds() -> None:
    import torch.distributed._functional_collectives as functional

    rank, size = world()
    group = dist.group.WORLD
    ones = [torch.full((n,), float(rank)) for n in (2, 3)]
    total = float(sum(range(size)))
    for op, want in (("sum", total), ("avg", total / size), ("max", size - 1.0), ("min", 0.0), ("product", 0.0)):
        assert [t[0].item() for t in functional.all_reduce_coalesced(ones, op, group)] == [want] * 2
        assert (functional.all_reduce(ones[0], op, group) + 0)[0].item() == want
    gathered = functional.all_gather_into_tensor_coalesced(ones, group)
    assert [t[-1].item() for t in gathered] == [size - 1.0] * 2
    scattered = functional.reduce_scatter_tensor_coalesced([torch.ones(2 * size), torch.ones(3 * size)], "sum", [0, 0], group)
    assert [t.tolist() for t in scattered] == [[size] * 2, [size] * 3]
    got = functional.all_to_all_single(torch.arange(float(size)) + 10 * rank, [1] * size, [1] * size, group) + 0
    same(got, torch.arange(size) * 10.0 + rank, "all_to_all")
    x = torch.ones(2, requires_grad=True)
    (functional.all_gather_single_autograd if hasattr(functional, "all_gather_single_autograd") else functional.all_gather_tensor_autograd)(
        x, 0, group
    ).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [size] * 2
    name = group.group_name
    out = torch.ops._c10d_functional.all_gather_into_tensor_out(torch.full((2,), float(rank)), size, name, out=torch.empty(2 * size))
    torch.ops._c10d_functional.wait_tensor(out)
    same(out[::2], torch.arange(float(size)), "all_gather_into_tensor_out, which inductor makes of several")
