"""Lists of tensors as the one flat tensor that a collective runs on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from topoccl.collectives.errors import ConfigError


def same_type(what: str, tensors: Sequence[Tensor]) -> None:
    """Raises ConfigError unless all tensors have one dtype."""
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) > 1:
        raise ConfigError(f"{what}: tensors of different types, {' and '.join(sorted(map(str, kinds)))}; they must be the same")


def adjacent(tensors: Sequence[Tensor]) -> Tensor | None:
    """The flat tensor of which ``tensors`` are consecutive parts, sharing their storage; None when they are not."""
    first = next((tensor for tensor in tensors if tensor.numel()), tensors[0]).detach()
    end = first.data_ptr()
    storage = first.untyped_storage().data_ptr()
    total = 0
    for tensor in tensors:
        count = tensor.numel()
        if count:
            if not tensor.is_contiguous() or tensor.data_ptr() != end or tensor.untyped_storage().data_ptr() != storage:
                return None
            end += count * tensor.element_size()
            total += count
    return first.as_strided((total,), (1,))


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """All elements one after the other: the tensors' own storage where they lie so, else a copy."""
    found = adjacent(tensors)
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if found is None else found


def padded(tensors: Sequence[Tensor], width: int) -> Tensor:
    """A copy with ``width`` elements per tensor; those beyond a tensor's end have no meaning."""
    rows = tensors[0].detach().new_empty((len(tensors), width))
    for row, tensor in zip(rows, tensors, strict=True):
        row[: tensor.numel()].copy_(tensor.detach().reshape(-1))
    return rows


def unpack(rows: Tensor, outputs: Sequence[Tensor]) -> None:
    """Copies the first elements of each row to an output."""
    for row, output in zip(rows, outputs, strict=True):
        output.detach().copy_(row[: output.numel()].view(output.shape))


def spread(flat: Tensor, outputs: Sequence[Tensor]) -> None:
    """The inverse of :func:`packed`."""
    at = 0
    for output in outputs:
        count = output.numel()
        output.detach().copy_(flat[at : at + count].view(output.shape))
        at += count


def sizes(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.numel() for tensor in tensors]


def single(given: Any) -> Tensor:
    """The tensor of a list of one, or the tensor itself.

    Raises:
        ConfigError: several tensors; one per rank is all there is.
    """
    if type(given) is list and len(given) == 1:
        return given[0]
    if isinstance(given, Tensor):
        return given
    if len(given) != 1:
        raise ConfigError(f"expected one tensor per rank, got {len(given)}")
    return given[0]


def single_list(given: Any) -> Sequence[Tensor]:
    """The list of tensors in a list of one such list, or the list itself."""
    if len(given) == 1 and not isinstance(given[0], Tensor):
        inner: Sequence[Tensor] = given[0]
        return inner
    return given
