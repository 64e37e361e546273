"""Buffers to communicate from and into: NumPy arrays where NumPy has the type, else torch tensors."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from topoccl.bench.suite.data import Array
from topoccl.bench.suite.elements import Element


class Buffer(Protocol):
    """A run of elements. ``data`` is the array or tensor itself; a part shares its storage."""

    data: Any

    def __len__(self) -> int: ...

    def part(self, start: int, length: int) -> Buffer: ...

    def fill(self, byte: int) -> None:
        """Sets every byte; 0xFF is NaN in every floating type."""

    def write(self, start: int, values: Array) -> None: ...

    def differences(self, start: int, expected: Array) -> int:
        """How many elements from ``start`` on are not what ``expected`` says, rounded to the type."""


class ArrayBuffer:
    """A NumPy array."""

    def __init__(self, data: Array) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def part(self, start: int, length: int) -> ArrayBuffer:
        return ArrayBuffer(self.data[start : start + length])

    def fill(self, byte: int) -> None:
        self.data.view(np.uint8).fill(byte)

    def write(self, start: int, values: Array) -> None:
        self.data[start : start + len(values)] = values

    def differences(self, start: int, expected: Array) -> int:
        return int(np.count_nonzero(self.data[start : start + len(expected)] != expected))


class TensorBuffer:
    """A torch tensor."""

    def __init__(self, data: Any, exact: str) -> None:
        self.data = data
        self.exact = exact

    def __len__(self) -> int:
        return len(self.data)

    def part(self, start: int, length: int) -> TensorBuffer:
        return TensorBuffer(self.data[start : start + length], self.exact)

    def fill(self, byte: int) -> None:
        import torch

        self.data.view(torch.uint8).fill_(byte)

    def _tensor(self, values: Array) -> Any:
        import torch

        return torch.from_numpy(values).to(self.data.dtype)

    def write(self, start: int, values: Array) -> None:
        self.data[start : start + len(values)] = self._tensor(values)

    def differences(self, start: int, expected: Array) -> int:
        import torch

        exact = getattr(torch, self.exact)
        found = self.data[start : start + len(expected)].to(exact).numpy()
        return int(np.count_nonzero(found != self._tensor(expected).to(exact).numpy()))


def allocate(element: Element, count: int, tensors: bool = False) -> Buffer:
    """A buffer of ``count`` elements in memory that is really there; ``tensors`` asks for a tensor even where NumPy has the type."""
    buffer: Buffer
    if element.native and not tensors:
        buffer = ArrayBuffer(np.empty(count, element.exact))
    else:
        import torch

        buffer = TensorBuffer(torch.empty(count, dtype=getattr(torch, element.torch)), element.exact)
    buffer.fill(0)
    return buffer


def free_memory() -> int | None:
    """Bytes that processes of this host can still get without swapping; None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
