"""Lists of tensors as the one flat tensor that a collective runs on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from topoccl.collectives.errors import ConfigError
from topoccl.collectives.executor.dtypes import dtype_of, flat, is_contiguous

_SMALL = 1 << 16  # bytes of a tensor that NumPy copies in a fraction of the time that torch's operators take to begin


def same_type(what: str, tensors: Sequence[Tensor]) -> None:
    """Raises ConfigError unless all tensors have one dtype."""
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) > 1:
        raise ConfigError(f"{what}: tensors of different types, {' and '.join(sorted(map(str, kinds)))}; they must be the same")


def adjacent(tensors: Sequence[Tensor]) -> Tensor | None:
    """The flat tensor of which ``tensors`` are consecutive parts, sharing their storage; None when they are not."""
    first = tensors[0]
    if not first.numel():
        first = next((tensor for tensor in tensors if tensor.numel()), first)
    end = first.data_ptr()
    storage = first.untyped_storage().data_ptr()
    total = 0
    for tensor in tensors:
        count = tensor.numel()
        if count:
            if not is_contiguous(tensor) or tensor.data_ptr() != end or tensor.untyped_storage().data_ptr() != storage:
                return None
            end += count * tensor.element_size()
            total += count
    return first.detach().as_strided((total,), (1,))


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """All elements one after the other: the tensors' own storage where they lie so, else a copy."""
    found = adjacent(tensors)
    if found is not None:
        return found
    together = tensors[0].detach().new_empty(sum(sizes(tensors)))
    _copy(tensors, together, None, inwards=True)
    return together


def padded(tensors: Sequence[Tensor], width: int) -> Tensor:
    """A copy with ``width`` elements per tensor; those beyond a tensor's end have no meaning."""
    rows = tensors[0].detach().new_empty(len(tensors) * width)
    _copy(tensors, rows, width, inwards=True)
    return rows.view(len(tensors), width)


def unpack(rows: Tensor, outputs: Sequence[Tensor]) -> None:
    """Copies the first elements of each row to an output."""
    _copy(outputs, rows.view(-1), rows.shape[1], inwards=False)


def spread(together: Tensor, outputs: Sequence[Tensor]) -> None:
    """The inverse of :func:`packed`."""
    _copy(outputs, together, None, inwards=False)


def _copy(tensors: Sequence[Tensor], together: Tensor, width: int | None, *, inwards: bool) -> None:
    """Copies tensors of one type to or from ``together``, where one lies behind the other or, with ``width``, that far apart."""
    dtype = dtype_of(together)
    most, whole = _SMALL // dtype.itemsize, None
    at = 0
    for tensor in tensors:
        count = tensor.numel()
        end = at + count
        if count > most or not is_contiguous(tensor):
            if inwards:
                together[at:end].copy_(tensor.detach().reshape(-1))
            else:
                tensor.detach().copy_(together[at:end].view(tensor.shape))
        elif inwards:
            whole = flat(together, dtype) if whole is None else whole
            whole[at:end] = flat(tensor, dtype)
        else:
            whole = flat(together, dtype) if whole is None else whole
            flat(tensor, dtype)[...] = whole[at:end]
        at = end if width is None else at + width


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
