"""Element types by nccl-tests' names and torch's, and what of their numbers can be summed and multiplied without rounding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Element:
    """An element type.

    Attributes:
        name: nccl-tests' name, or torch's where nccl-tests has none.
        torch: torch's name.
        itemsize: bytes.
        digits: significant bits of a floating type; 0 for integers.
        top: the largest power of two of a floating type is ``2**top``.
        native: NumPy has the type. The others are tensors, and their exact values float32 arrays.
    """

    name: str
    torch: str
    itemsize: int
    digits: int = 0
    top: int = 0
    native: bool = True

    @property
    def floating(self) -> bool:
        return self.digits > 0

    @property
    def exact(self) -> str:
        """The NumPy type of this type's values in references."""
        return self.torch if self.native else "float32"


ELEMENTS: tuple[Element, ...] = (
    Element("int8", "int8", 1),
    Element("uint8", "uint8", 1),
    Element("int32", "int32", 4),
    Element("uint32", "uint32", 4),
    Element("int64", "int64", 8),
    Element("uint64", "uint64", 8),
    Element("half", "float16", 2, 11, 15, native=False),
    Element("float", "float32", 4, 24, 127),
    Element("double", "float64", 8, 53, 1023),
    Element("bfloat16", "bfloat16", 2, 8, 127, native=False),
    Element("f8e4m3", "float8_e4m3fn", 1, 4, 8, native=False),
    Element("f8e5m2", "float8_e5m2", 1, 3, 15, native=False),
)
"""What ``-d all`` means: nccl-tests' types in its order."""

_MORE = (Element("int16", "int16", 2), Element("uint16", "uint16", 2))
_ALIASES = {"char": "int8", "int": "int32", "fp16": "half", "fp32": "float", "fp64": "double", "bf16": "bfloat16"}
_BY_NAME = {name: element for element in (*ELEMENTS, *_MORE) for name in (element.name, element.torch)}


def element_named(name: str) -> Element:
    """The type called ``name``, by nccl-tests' names (``half``) or torch's (``float16``, ``torch.float16``).

    Raises:
        ValueError: there is none; the message lists the known ones.
    """
    key = name.strip().lower().removeprefix("torch.")
    found = _BY_NAME.get(_ALIASES.get(key, key))
    if found is None:
        raise ValueError(f"unknown type {name!r}; known: {', '.join(_BY_NAME)}, all")
    return found
