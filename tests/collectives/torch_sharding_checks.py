"""Checks of sharded training on the backend: FSDP, tensors over meshes, tensor parallelism, sharded optimizers."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch_ddp_checks import Tensor, data, model, train
from torch_reference import check, same, world


def close(got: Tensor, want: Tensor, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(got.to(want.dtype), want, rtol=tolerance, atol=tolerance)


# FSDP1


@check
def fsdp1_strategies() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    whole, mine = data()
    single = model()
    train(single, whole)
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        for options in ({"use_orig_params": True}, {"use_orig_params": False}):
            net = FullyShardedDataParallel(
                model(),
                sharding_strategy=strategy,
                auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
                device_id=torch.device("cpu"),
                **options,
            )
            train(net, mine)
            with FullyShardedDataParallel.summon_full_params(net):
                for got, want in zip(net.parameters(), single.parameters(), strict=True):
                    close(got.reshape(-1)[: want.numel()], want.reshape(-1))
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16)
    net = FullyShardedDataParallel(model(), mixed_precision=half, use_orig_params=True, device_id=torch.device("cpu"))
    train(net, mine)
    with FullyShardedDataParallel.summon_full_params(net):
        for got, want in zip(net.parameters(), single.parameters(), strict=True):
            close(got, want, 5e-2)


@check
def fsdp1_clipping_accumulation_and_state() -> None:
    from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType

    whole, mine = data()
    single = model()
    net = FullyShardedDataParallel(model(), use_orig_params=True, device_id=torch.device("cpu"))
    optimizer, reference = torch.optim.Adam(net.parameters(), lr=0.01), torch.optim.Adam(single.parameters(), lr=0.01)
    for i, ((x, y), (a, b)) in enumerate(zip(whole, mine, strict=True)):
        with net.no_sync() if i % 2 == 0 else contextlib.nullcontext():
            torch.nn.functional.cross_entropy(net(a), b).backward()
        torch.nn.functional.cross_entropy(single(x), y).backward()
        if i % 2:
            got, want = net.clip_grad_norm_(0.1), torch.nn.utils.clip_grad_norm_(single.parameters(), 0.1)
            close(got, want)
            for one in (optimizer, reference):
                one.step()
                one.zero_grad()
    with FullyShardedDataParallel.state_dict_type(net, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False)):
        state = net.state_dict()
        optimizer_state = FullyShardedDataParallel.optim_state_dict(net, optimizer)
    for name, want in single.state_dict().items():
        close(state[name], want)
    assert set(optimizer_state["state"]) == set(single.state_dict())
    again = FullyShardedDataParallel(model(), use_orig_params=True, device_id=torch.device("cpu"))
    with FullyShardedDataParallel.state_dict_type(again, StateDictType.FULL_STATE_DICT):
        again.load_state_dict(state)
    for got, want in zip(again.parameters(), net.parameters(), strict=True):
        assert torch.equal(got, want)
    with FullyShardedDataParallel.state_dict_type(net, StateDictType.SHARDED_STATE_DICT):
        net.load_state_dict(net.state_dict())


@check
def fsdp1_hybrid() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    _, size = world()
    if size < 4:  # torch replicates nothing where a part has one rank
        return
    whole, mine = data()
    single = model()
    train(single, whole)
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    net = FullyShardedDataParallel(
        model(), sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh, use_orig_params=True, device_id=torch.device("cpu")
    )
    train(net, mine)
    with FullyShardedDataParallel.summon_full_params(net):
        for got, want in zip(net.parameters(), single.parameters(), strict=True):
            close(got, want)


# FSDP2


def _fully(mesh: Any = None, **options: Any) -> torch.nn.Module:
    from torch.distributed.fsdp import fully_shard

    net = model()
    for layer in net:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    fully_shard(net, mesh=mesh, **options)
    return net


@check
def fsdp2() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    _, size = world()
    whole, mine = data()
    single = model()
    train(single, whole)
    mesh = init_device_mesh("cpu", (size,))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for options, tolerance in (({}, 1e-4), ({"reshard_after_forward": False}, 1e-4), ({"mp_policy": half}, 5e-2)):
        net = _fully(mesh, **options)
        train(net, mine)
        for got, want in zip(net.parameters(), single.parameters(), strict=True):
            close(got.full_tensor(), want, tolerance)  # type: ignore[attr-defined]
    single, net = model(), _fully(mesh)
    (x, y), (a, b) = whole[0], mine[0]
    torch.nn.functional.cross_entropy(single(x), y).backward()
    torch.nn.functional.cross_entropy(net(a), b).backward()
    got = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    close(got.full_tensor(), torch.nn.utils.clip_grad_norm_(single.parameters(), 0.1))  # type: ignore[attr-defined]
    # Accumulation without communication.
    single, net = model(), _fully(mesh)
    for i, ((x, y), (a, b)) in enumerate(zip(whole[:2], mine[:2], strict=True)):
        net.set_requires_gradient_sync(i == 1)  # type: ignore[operator]
        torch.nn.functional.cross_entropy(single(x), y).backward()
        torch.nn.functional.cross_entropy(net(a), b).backward()
    for shard, want in zip(net.parameters(), single.parameters(), strict=True):
        close(shard.grad.full_tensor(), want.grad)  # type: ignore[union-attr, arg-type]


@check
def fsdp2_hybrid() -> None:
    _, size = world()
    whole, mine = data()
    single = model()
    train(single, whole)
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    net = _fully(mesh)
    train(net, mine)
    for got, want in zip(net.parameters(), single.parameters(), strict=True):
        close(got.full_tensor(), want)  # type: ignore[attr-defined]


@check
def fsdp2_state_from_one_rank() -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

    rank, _ = world()
    torch.manual_seed(11)
    source = copy.deepcopy(model())
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.normal_()
    net = _fully()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(net, source.state_dict() if rank == 0 else {}, options=options)
    got = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))
    for name, want in source.state_dict().items():
        same(got[name], want, name)


# Tensors over meshes


@check
def dtensors() -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    rank, size = world()
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(8)
    for shape in ((4 * size, 3 * size), (4 * size + 1, 3 * size - 1), (1, 2)):  # even, uneven, fewer rows than ranks
        whole = torch.randn(shape)
        for placement in (Shard(0), Shard(1), Replicate()):
            tensor = distribute_tensor(whole, mesh, [placement])
            same(tensor.full_tensor(), whole, f"{shape} {placement}")
            for target in (Shard(0), Shard(1), Replicate()):
                same(tensor.redistribute(mesh, [target]).full_tensor(), whole, f"{shape} {placement} to {target}")
        for kind in ("sum", "avg", "max", "min", "product"):
            part = DTensor.from_local(whole + rank, mesh, [Partial(kind)])
            rows = torch.stack([whole + r for r in range(size)])
            want = {
                "sum": rows.sum(0), "avg": rows.mean(0), "max": rows.amax(0), "min": rows.amin(0), "product": rows.prod(0),
            }[kind]  # fmt: skip
            close(part.full_tensor(), want)
            if kind in ("sum", "avg"):
                for target in (Shard(0), Shard(1)):
                    close(part.redistribute(mesh, [target]).full_tensor(), want)
    a, b = torch.randn(2 * size, 8), torch.randn(8, 3 * size)
    for left, right in ((Shard(0), Replicate()), (Shard(1), Shard(0)), (Replicate(), Shard(1))):
        product = distribute_tensor(a, mesh, [left]) @ distribute_tensor(b, mesh, [right])
        close(product.full_tensor(), a @ b)
    x = distribute_tensor(a, mesh, [Shard(0)])
    close(x.sum().full_tensor(), a.sum())
    close(x.mean(0).full_tensor(), a.mean(0))
    close(torch.nn.functional.softmax(x, 0).full_tensor(), torch.softmax(a, 0))


@check
def meshes_of_two_and_three_dimensions() -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    rank, size = world()
    torch.manual_seed(8)
    whole = torch.randn(8, 12)
    shapes = [(1, size), (size, 1), (1, 1, size), (1, size, 1)] + ([(2, size // 2), (2, 1, size // 2)] if size % 2 == 0 else [])
    for shape in shapes:
        names = tuple("abc"[: len(shape)])
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        coordinate = mesh.get_coordinate()
        assert coordinate is not None
        for axis, name in enumerate(names):
            group = mesh.get_group(name)
            assert group.size() == shape[axis]
            everyone = [torch.empty(1) for _ in range(shape[axis])]
            dist.all_gather(everyone, torch.tensor([float(rank)]), group=group)
            want = mesh.mesh[tuple(slice(None) if a == axis else c for a, c in enumerate(coordinate))]
            assert [t.item() for t in everyone] == want.tolist()
        placements = [Shard(0), Shard(1), Replicate()][: len(shape)]
        tensor = distribute_tensor(whole, mesh, placements)
        same(tensor.full_tensor(), whole, str(shape))
        moved = tensor.redistribute(mesh, [Replicate(), Shard(0), Shard(1)][: len(shape)])
        same(moved.full_tensor(), whole, f"{shape} moved")
        total = moved.sum(0)
        close(total.full_tensor(), whole.sum(0))
        assert isinstance(Partial(), Partial)
        if len(shape) == 3:
            flat = mesh["a", "b"]._flatten("ab")
            dist.all_reduce(one := torch.ones(1), group=flat.get_group())
            assert one.item() == shape[0] * shape[1]


@check
def tensor_parallelism() -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    _, size = world()
    mesh = init_device_mesh("cpu", (size,))

    def net() -> torch.nn.ModuleDict:
        torch.manual_seed(12)
        width = 6 * size
        return torch.nn.ModuleDict(
            {"norm": torch.nn.LayerNorm(width), "up": torch.nn.Linear(width, 2 * width), "down": torch.nn.Linear(2 * width, width),
             "head": torch.nn.Linear(width, 4 * size)}
        )  # fmt: skip

    def forward(m: Any, x: Tensor) -> Any:
        return m["head"](m["down"](torch.tanh(m["up"](m["norm"](x)))))

    torch.manual_seed(13)
    x, y = torch.randn(2 * size, 6 * size), torch.randint(0, 4 * size, (2 * size,))
    single = net()
    want = forward(single, x)
    torch.nn.functional.cross_entropy(want, y).backward()
    plans: list[Any] = [
        {"up": ColwiseParallel(), "down": RowwiseParallel()},
        {
            "norm": SequenceParallel(sequence_dim=0),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0)),
            "head": ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
        },
    ]
    for plan in plans:
        split = parallelize_module(net(), mesh, plan)
        part = x.chunk(size)[world()[0]] if "norm" in plan else x  # sequence parallelism takes a part of the rows
        got = forward(split, part)
        close(got.full_tensor() if hasattr(got, "full_tensor") else got, want)
        torch.nn.functional.cross_entropy(got, y).backward()
        for (name, parameter), other in zip(split.named_parameters(), single.parameters(), strict=True):
            assert parameter.grad is not None
            grad = parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad
            assert other.grad is not None
            torch.testing.assert_close(grad, other.grad, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    split = parallelize_module(net(), mesh, {"head": ColwiseParallel(use_local_output=False)})
    with loss_parallel():
        loss = torch.nn.functional.cross_entropy(forward(split, x), y)
        loss.backward()
    close(loss.full_tensor() if hasattr(loss, "full_tensor") else loss, torch.nn.functional.cross_entropy(want, y))
    assert PrepareModuleInput is not None


@check
def fsdp2_with_tensor_parallelism() -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    rank, size = world()
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("data", "tensor"))

    def net() -> torch.nn.Sequential:
        torch.manual_seed(14)
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))

    torch.manual_seed(15)
    x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
    part = mesh["data"].get_local_rank()
    single = net()
    train(single, [(x, y)] * 2)
    split = parallelize_module(net(), mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(split, mesh=mesh["data"])
    train(split, [(x[part::2], y[part::2])] * 2)
    for got, want in zip(split.parameters(), single.parameters(), strict=True):
        close(got.full_tensor(), want)  # type: ignore[attr-defined]
    assert rank < size


# Sharded optimizers


@check
def zero_redundancy_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    rank, _ = world()
    whole, mine = data()
    single = model()
    reference = torch.optim.Adam(single.parameters(), lr=0.01)
    for x, y in whole:
        reference.zero_grad()
        torch.nn.functional.cross_entropy(single(x), y).backward()
        reference.step()
    for parameters_as_bucket_view in (False, True):
        net = DistributedDataParallel(model())
        optimizer = ZeroRedundancyOptimizer(
            net.parameters(), torch.optim.Adam, lr=0.01, parameters_as_bucket_view=parameters_as_bucket_view
        )
        for x, y in mine:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        for got, want in zip(net.parameters(), single.parameters(), strict=True):
            close(got, want)
        optimizer.consolidate_state_dict(to=0)
        if rank == 0:
            state = optimizer.state_dict()
            assert len(state["state"]) == len(list(single.parameters()))
            optimizer.load_state_dict(state)
    dist.barrier()
