"""Collectives against types, reductions and layouts, on any backend: what works, what is refused, what comes out wrong.

Each rank knows what all ranks put in, and computes for itself what must come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch_reference import DTYPES, Op, Tensor, check, exact, reduced, values

ELEMENTS = 12
REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")
MOVING = (
    "broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "all_to_all", "all_to_all_single", "send_recv",
)  # fmt: skip
LAYOUTS = ("plain", "strided", "transposed", "channels last", "a part", "expanded input", "0-d", "no elements", "stacked", "uneven")
OPS = {"SUM": Op.SUM, "AVG": Op.AVG, "PRODUCT": Op.PRODUCT, "MIN": Op.MIN, "MAX": Op.MAX, "BAND": Op.BAND, "BOR": Op.BOR, "BXOR": Op.BXOR}


class Case(NamedTuple):
    """One call. ``op`` is empty for collectives that move, and may be PREMUL_SUM."""

    collective: str
    dtype: torch.dtype
    op: str = ""
    layout: str = "plain"

    def __str__(self) -> str:
        return " ".join(filter(None, [self.collective, str(self.dtype).removeprefix("torch."), self.op, self.layout]))


def has_meaning(dtype: torch.dtype, op: str) -> bool:
    if op in ("BAND", "BOR", "BXOR"):
        return not dtype.is_floating_point and not dtype.is_complex
    return not (op in ("MIN", "MAX") and dtype.is_complex)


def cases() -> Iterator[Case]:
    """All types and reductions in a plain layout, all layouts with one type of each width, and layouts against reductions."""
    for collective in REDUCING:
        for dtype in DTYPES:
            for op in (*OPS, "PREMUL_SUM"):
                if collective == "all_reduce" or op in ("SUM", "AVG", "MAX"):
                    yield Case(collective, dtype, op)
    for collective in MOVING:
        for dtype in DTYPES:
            yield Case(collective, dtype)
    for collective in (*REDUCING, *MOVING):
        for layout in LAYOUTS[1:]:
            for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.complex64):
                if applies(collective, layout):
                    yield Case(collective, dtype, "SUM" if collective in REDUCING else "", layout)


def applies(collective: str, layout: str) -> bool:
    if layout == "stacked":
        return collective in ("all_gather_into_tensor", "reduce_scatter_tensor")
    if layout == "uneven":
        return collective in ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all", "all_to_all_single")
    if layout == "expanded input":
        return collective in ("all_gather", "gather", "all_gather_into_tensor", "send_recv", "reduce_scatter", "scatter", "all_to_all")
    if layout == "0-d":
        return collective not in ("all_to_all_single",)
    return True


def shaped(flat: Tensor, layout: str) -> Tensor:
    """A tensor with these values in a layout; ``flat`` has as many as :func:`count` says."""
    if layout == "strided":
        room = flat.new_zeros(2 * flat.numel())
        room[::2] = flat
        return room[::2]
    if layout == "transposed":
        return flat.clone().view(-1, 3).t().contiguous().t()
    if layout == "channels last":
        return flat.clone().view(-1, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    if layout == "a part":
        room = flat.new_zeros(flat.numel() // 3 + 2, 5)
        room[1:-1, 1:4] = flat.view(-1, 3)
        return room[1:-1, 1:4]
    if layout == "0-d":
        return flat.clone().view(())
    if layout == "no elements":
        return flat.clone().view(0, 2)
    return flat.clone()


def count(layout: str) -> int:
    return {"0-d": 1, "no elements": 0}.get(layout, ELEMENTS)


def run(case: Case) -> str:
    """``works``, ``wrong`` with what came out, or ``refused`` with the error; of this rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    n = count(case.layout)
    try:
        for got, want in CALLS[case.collective](case, rank, size, n):
            if got.shape.numel() != want.numel() or not torch.equal(exact(got.reshape(-1)), exact(want.reshape(-1))):
                return f"wrong: got {got.reshape(-1)[:6].tolist()}, expected {want.reshape(-1)[:6].tolist()}"
    except Exception as error:
        return f"refused: {str(error).splitlines()[0][:100] if str(error) else type(error).__name__}"
    return "works"


def _op(case: Case) -> Any:
    return dist._make_nccl_premul_sum(2.0) if case.op == "PREMUL_SUM" else OPS[case.op]


def _sum(inputs: list[Tensor], case: Case) -> Tensor:
    if case.op == "PREMUL_SUM":
        return reduced([(exact(t) * 2).to(case.dtype) for t in inputs], Op.SUM)
    return reduced(inputs, OPS[case.op])


Results = Iterator[tuple[Tensor, Tensor]]


def _all_reduce(case: Case, rank: int, size: int, n: int) -> Results:
    inputs = [values(r, n, case.dtype) for r in range(size)]
    tensor = shaped(inputs[rank], case.layout)
    dist.all_reduce(tensor, _op(case))
    yield tensor, _sum(inputs, case)


def _reduce(case: Case, rank: int, size: int, n: int) -> Results:
    inputs = [values(r, n, case.dtype) for r in range(size)]
    tensor = shaped(inputs[rank], case.layout)
    dist.reduce(tensor, size - 1, _op(case))
    if rank == size - 1:
        yield tensor, _sum(inputs, case)


def _counts(case: Case, size: int, n: int) -> list[int]:
    return [n - r for r in range(size)] if case.layout == "uneven" else [n] * size


def _inputs(case: Case, rank: int, size: int, n: int) -> list[Tensor]:
    """What ``rank`` has for each rank."""
    return [values(rank, k, case.dtype, seed=r) for r, k in enumerate(_counts(case, size, n))]


def _expanded(case: Case, flat: Tensor) -> Tensor:
    if case.layout == "expanded input":
        return flat[:1].expand(flat.numel()) if flat.numel() else flat
    return shaped(flat, case.layout)


def _flat(case: Case, flat: Tensor) -> Tensor:
    return flat[:1].repeat(flat.numel()) if case.layout == "expanded input" else flat


def _reduce_scatter(case: Case, rank: int, size: int, n: int) -> Results:
    everyone = [_inputs(case, r, size, n) for r in range(size)]
    output = shaped(torch.zeros(_counts(case, size, n)[rank], dtype=case.dtype), case.layout)
    dist.reduce_scatter(output, [_expanded(case, t) for t in everyone[rank]], _op(case))
    yield output, _sum([_flat(case, parts[rank]) for parts in everyone], case)


def _reduce_scatter_tensor(case: Case, rank: int, size: int, n: int) -> Results:
    everyone = [_inputs(case, r, size, n) for r in range(size)]
    output = shaped(torch.zeros(n, dtype=case.dtype), case.layout)
    whole = torch.cat(everyone[rank])
    dist.reduce_scatter_tensor(output, whole.view(size, n) if case.layout in ("stacked", "0-d") else _wide(whole, case), _op(case))
    yield output, _sum([parts[rank] for parts in everyone], case)


def _wide(whole: Tensor, case: Case) -> Tensor:
    """The tensor of all blocks, in the layout of one where that has several dimensions."""
    return whole if case.layout in ("0-d", "no elements", "stacked") else shaped(whole, case.layout)


def _broadcast(case: Case, rank: int, size: int, n: int) -> Results:
    tensor = shaped(values(rank, n, case.dtype), case.layout)
    dist.broadcast(tensor, size - 1)
    yield tensor, values(size - 1, n, case.dtype)


def _all_gather(case: Case, rank: int, size: int, n: int) -> Results:
    inputs = [values(r, k, case.dtype) for r, k in enumerate(_counts(case, size, n))]
    outputs = [shaped(torch.zeros_like(t), case.layout) for t in inputs]
    dist.all_gather(outputs, _expanded(case, inputs[rank]))
    yield from ((output, _flat(case, t)) for output, t in zip(outputs, inputs, strict=True))


def _all_gather_into_tensor(case: Case, rank: int, size: int, n: int) -> Results:
    inputs = [values(r, n, case.dtype) for r in range(size)]
    output = torch.zeros(size * n, dtype=case.dtype)
    output = output.view(size, n) if case.layout == "stacked" else _wide(output, case)
    dist.all_gather_into_tensor(output, _expanded(case, inputs[rank]))
    yield output, torch.cat([_flat(case, t) for t in inputs])


def _gather(case: Case, rank: int, size: int, n: int) -> Results:
    inputs = [values(r, k, case.dtype) for r, k in enumerate(_counts(case, size, n))]
    outputs = [shaped(torch.zeros_like(t), case.layout) for t in inputs] if rank == 0 else None
    dist.gather(_expanded(case, inputs[rank]), outputs, dst=0)
    yield from ((output, _flat(case, t)) for output, t in zip(outputs or [], inputs, strict=False))


def _scatter(case: Case, rank: int, size: int, n: int) -> Results:
    inputs = _inputs(case, 0, size, n)
    output = shaped(torch.zeros_like(inputs[rank]), case.layout)
    dist.scatter(output, [_expanded(case, t) for t in inputs] if rank == 0 else None, src=0)
    yield output, _flat(case, inputs[rank])


def _all_to_all(case: Case, rank: int, size: int, n: int) -> Results:
    mine = _inputs(case, rank, size, n)
    wanted = [_inputs(case, r, size, n)[rank] for r in range(size)]
    outputs = [shaped(torch.zeros_like(t), case.layout) for t in wanted]
    dist.all_to_all(outputs, [_expanded(case, t) for t in mine])
    yield from ((output, _flat(case, t)) for output, t in zip(outputs, wanted, strict=True))


def _all_to_all_single(case: Case, rank: int, size: int, n: int) -> Results:
    mine = _inputs(case, rank, size, n)
    wanted = torch.cat([_inputs(case, r, size, n)[rank] for r in range(size)])
    if case.layout == "uneven":
        output = torch.zeros_like(wanted)
        dist.all_to_all_single(output, torch.cat(mine), [n - rank] * size, _counts(case, size, n))
        yield output, wanted
        return
    # Rows are what is divided: in layouts of several dimensions they lie one after the other.
    output = _wide(torch.zeros_like(wanted), case)
    dist.all_to_all_single(output, _wide(torch.cat(mine), case))
    yield output, wanted


def _send_recv(case: Case, rank: int, size: int, n: int) -> Results:
    tensor = shaped(torch.zeros(n, dtype=case.dtype), "plain" if case.layout == "expanded input" else case.layout)
    mine = _expanded(case, values(rank, n, case.dtype))
    left, right = (rank - 1) % size, (rank + 1) % size
    first, second = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)
    first(mine if first is dist.send else tensor, right if first is dist.send else left)
    second(mine if second is dist.send else tensor, right if second is dist.send else left)
    yield tensor, _flat(case, values(left, n, case.dtype))


CALLS: dict[str, Callable[[Case, int, int, int], Results]] = {
    "all_reduce": _all_reduce, "reduce": _reduce, "reduce_scatter": _reduce_scatter, "reduce_scatter_tensor": _reduce_scatter_tensor,
    "broadcast": _broadcast, "all_gather": _all_gather, "all_gather_into_tensor": _all_gather_into_tensor, "gather": _gather,
    "scatter": _scatter, "all_to_all": _all_to_all, "all_to_all_single": _all_to_all_single, "send_recv": _send_recv,
}  # fmt: skip


def unexpected(case: Case, result: str) -> bool:
    """Whether our backend should have done otherwise."""
    meaning = not case.op or has_meaning(case.dtype, case.op)
    if case.dtype.is_complex and case.op == "PRODUCT" and case.collective == "all_reduce":
        meaning = False  # torch.distributed refuses it itself
    return result != "works" if meaning else not result.startswith("refused")


@check
def matrix() -> None:
    bad = [f"{case}: {result}" for case in cases() if unexpected(case, result := run(case))]
    assert not bad, "\n".join(bad)
