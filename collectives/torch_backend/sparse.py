"""all_reduce of sparse tensors: everyone gathers everyone's entries and adds them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from topoccl.collectives.control.fingerprint import Name
from topoccl.collectives.errors import ConfigError

if TYPE_CHECKING:
    from topoccl.collectives.communicator import Communicator


def name_of(tensor: torch.Tensor, op: str) -> Name:
    """What all ranks must call alike; how many entries a rank has is its own."""
    kind = str(tensor.dtype).removeprefix("torch.")
    text = f"all_reduce(sparse {kind}, shape {list(tensor.shape)}, sparse in {tensor.sparse_dim()}, {op.upper()})"
    return Name(text, text)


def all_reduce(communicator: Communicator, tensor: torch.Tensor, op: str) -> Callable[[float | None], None]:
    """What a group runs, given a timeout: ``tensor`` (COO) becomes the coalesced sum, or average, of all.

    Entries are padded to the largest number on any rank, so this moves (W - 1) times that many indices and values to each rank.

    Raises:
        ConfigError: another layout than COO, or another reduction than SUM and AVG, for which absent entries are neutral.
    """
    if tensor.layout is not torch.sparse_coo:
        raise ConfigError(f"all_reduce: tensors of layout {tensor.layout} are not supported; known: torch.strided, torch.sparse_coo")
    if op not in ("sum", "avg"):
        raise ConfigError(f"all_reduce: reduction {op} is not defined for sparse tensors; known: sum, avg")

    def steps(timeout: float | None) -> None:
        mine = tensor.detach().coalesce()
        indices, values = mine.indices(), mine.values()
        size, entries = communicator.size, mine._nnz()
        counts = np.empty(size, np.int64)
        communicator.all_gather(np.array([entries], np.int64), counts, timeout=timeout)
        width = int(counts.max())
        all_indices = indices.new_empty((size, width, indices.shape[0]))
        all_values = values.new_empty((size, width, *values.shape[1:]))
        padded_indices = indices.new_zeros((width, indices.shape[0]))
        padded_indices[:entries].copy_(indices.T)
        padded_values = values.new_zeros((width, *values.shape[1:]))
        padded_values[:entries].copy_(values)
        communicator.all_gather(padded_indices, all_indices, timeout=timeout)
        communicator.all_gather(padded_values, all_values, timeout=timeout)
        found = torch.cat([all_indices[rank, : int(counts[rank])] for rank in range(size)]).T
        entries_of_all = torch.cat([all_values[rank, : int(counts[rank])] for rank in range(size)])
        total = torch.sparse_coo_tensor(found, entries_of_all, tensor.shape, check_invariants=False).coalesce()
        with torch.no_grad():  # a detached sparse tensor would not hand the new entries on
            tensor.copy_(_divided(total, size) if op == "avg" else total)

    return steps


def _divided(total: torch.Tensor, size: int) -> torch.Tensor:
    """A coalesced sum as an average, by the rules of dense ones."""
    values = total.values()
    if values.dtype == torch.bool:
        return total
    whole = not (values.dtype.is_floating_point or values.dtype.is_complex)
    values = torch.div(values, size, rounding_mode="trunc" if whole else None)
    return torch.sparse_coo_tensor(total.indices(), values, total.shape, check_invariants=False, is_coalesced=True)
