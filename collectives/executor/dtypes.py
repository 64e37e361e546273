"""How tensors and arrays enter the executor: as flat NumPy arrays of a carrier type with the same item size.

Moving needs no more than the bytes; reductions use the carrier where NumPy knows the type, and torch's kernels elsewhere.
"""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from topoccl.collectives.errors import ConfigError

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]
_Memory = ctypes.c_char * (1 << 62)  # memory from an address on; arrays made of it know their own size

# torch dtypes that NumPy has no type for, or reduces slowly and without float32 accumulation: carried as integers.
_CARRIED = {"float16": "int16", "bfloat16": "int16", "float8": "int8", "complex32": "int32"}
# Those of torch's that no operator adds, such as several numbers in a byte.
_OPAQUE = re.compile(r"float4_\w+|bits\d\w*|u?int[1-7]")


class DType:
    """An element type. There is one object per type: compare with ``is``.

    Attributes:
        name: as torch spells it.
        carrier: the NumPy type that holds it while it is moved.
        itemsize: bytes per element.
        native: whether the carrier is the type itself, so that NumPy's ufuncs may reduce it.
        opaque: whether it can only be moved.
    """

    __slots__ = ("carrier", "is_complex", "is_floating", "itemsize", "name", "native", "opaque")

    def __init__(self, name: str, carrier: np.dtype[Any], opaque: bool = False) -> None:
        self.opaque = opaque
        self.name = name
        self.carrier = carrier
        self.itemsize = carrier.itemsize
        self.native = carrier.name == name
        self.is_complex = name.startswith("complex")
        self.is_floating = "float" in name

    def __repr__(self) -> str:
        return f"DType({self.name})"

    @property
    def torch(self) -> torch.dtype:
        import torch

        dtype = getattr(torch, self.name)
        assert isinstance(dtype, torch.dtype)
        return dtype


_known: dict[Any, DType] = {}  # by torch or NumPy dtype
_by_name: dict[str, DType] = {}
plain_tensors: set[type] = set()  # kinds that have passed _check_kind


def _carrier(name: str) -> str:
    return next((carrier for prefix, carrier in _CARRIED.items() if name.startswith(prefix)), name)


def dtype_of(data: Any) -> DType:
    """The element type of a tensor or an array.

    Raises:
        ConfigError: neither a tensor nor an array, or a type without a fixed size in memory.
    """
    try:
        found = _known.get(data.dtype)
    except (AttributeError, TypeError):
        raise ConfigError(f"expected a torch tensor or a NumPy array, got {type(data).__name__}") from None
    if found is None:
        name = str(data.dtype).removeprefix("torch.")
        opaque = _OPAQUE.fullmatch(name) is not None
        try:
            carrier = np.dtype(f"int{8 * data.dtype.itemsize}" if opaque else _carrier(name))
        except TypeError:
            raise ConfigError(f"dtype {data.dtype} cannot be sent: it has no fixed representation in memory") from None
        if carrier.kind not in "biufc" or not carrier.isnative:
            raise ConfigError(f"dtype {data.dtype} cannot be sent: elements must be plain numbers in this machine's byte order")
        found = _known[data.dtype] = _by_name.setdefault(name, DType(name, carrier, opaque))
    return found


def flat(data: Any, dtype: DType) -> Array:
    """A flat carrier view of a tensor or array that :func:`is_contiguous`; shares its storage.

    Raises:
        ConfigError: a tensor whose elements are not in this process's memory as they are (sparse, of a device).
    """
    if isinstance(data, np.ndarray):
        view = (data if type(data) is np.ndarray else np.asarray(data)).reshape(-1)  # np.matrix would never be flat
        return view if dtype.native else view.view(dtype.carrier)
    # Not tensor.numpy(), which makes the tensor's storage unresizable for ever: FSDP resizes what it has sent.
    try:
        count = data.numel()
        if not count:
            return np.empty(0, dtype.carrier)
        if type(data) not in plain_tensors:
            _check_kind(type(data))
        if not data.is_cpu:
            raise TypeError(f"it is on device {data.device}")
        address = data.data_ptr()
    except (TypeError, RuntimeError) as error:
        raise ConfigError(f"this tensor of {dtype.name} cannot be sent: {str(error).splitlines()[0]}") from None
    return memory_of(data, address, count, dtype)


def memory_of(tensor: Any, address: int, count: int, dtype: DType) -> Array:
    """The ``count`` elements of a tensor that begin at ``address`` as an array, which keeps the tensor alive."""
    memory: Any = _Memory.from_address(address)
    memory.owner = tensor
    result: Array = np.ndarray(count, dtype.carrier, memory)
    return result


def memory_at(address: int, count: int, dtype: DType) -> Array:
    """As :func:`memory_of`, of what the caller keeps alive as long as the array is looked at."""
    memory: Any = _Memory.from_address(address)
    result: Array = np.ndarray(count, dtype.carrier, memory)
    return result


def _check_kind(kind: type) -> None:
    """Raises TypeError for a kind of tensors that only stand for others and have no elements of their own, as torch.compile's."""
    import torch

    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # type: ignore[attr-defined]
        raise TypeError(f"a {kind.__name__} has no memory of its own")
    plain_tensors.add(kind)


def is_contiguous(data: Any) -> bool:
    """Whether the elements of a tensor or an array lie in memory as they are, one after the other.

    Raises:
        ConfigError: something else that has a dtype, such as a NumPy scalar, or a tensor without dense memory.
    """
    if isinstance(data, np.ndarray):
        return bool(data.flags.c_contiguous)
    try:
        return bool(data.is_contiguous() and not data.is_neg() and not data.is_conj())
    except (AttributeError, RuntimeError):
        raise ConfigError(f"expected a dense torch tensor or a NumPy array, got {type(data).__name__} of {data.dtype}") from None


def elements(data: Any) -> int:
    """How many elements a tensor or an array has.

    Raises:
        ConfigError: neither of them.
    """
    if isinstance(data, np.ndarray):
        return int(data.size)
    try:
        return int(data.numel())
    except AttributeError:
        raise ConfigError(f"expected a torch tensor or a NumPy array, got {type(data).__name__}") from None
