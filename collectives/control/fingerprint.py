"""What must be equal on all ranks of a call, as a number to compare and a text to show."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

TEXT = 192  # bytes of a text that travels


@dataclass(frozen=True, slots=True, eq=False)
class Fingerprint:
    """One call's.

    Attributes:
        value: a hash of 62 bits of the whole text; a call's sequence number is added to it where calls are compared.
        text: for people, such as ``all_reduce(float32, 4, SUM)``.
        data: the text as bytes, cut or filled up to :data:`TEXT`.
    """

    value: int
    text: str
    data: bytes


class Name(NamedTuple):
    """What a user calls where several calls are made for it.

    Attributes:
        text: for people.
        same: what of it must be equal on all ranks.
    """

    text: str
    same: str


def fingerprint(text: str, shown: str | None = None) -> Fingerprint:
    """That of calls that ``text`` describes in full; people see ``shown`` in its place."""
    value = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 2
    shown = text if shown is None else shown
    return Fingerprint(value, shown, shown.encode()[:TEXT].ljust(TEXT, b"\0"))


@lru_cache(1024)
def part(name: Name, call: str) -> Fingerprint:
    """That of ``call``, one of those that are made for ``name``, as which people see it."""
    return fingerprint(f"{name.same}: {call}", name.text)


def call_text(collective: str, dtype: str = "", count: int | None = None, op: str | None = None, root: int | None = None) -> str:
    """A call for people; ``count`` is the elements of one block, as its method takes them."""
    parts = [dtype] if dtype else []
    if count is not None:
        parts.append(str(count))
    if op is not None:
        parts.append(op.upper())
    if root is not None:
        parts.append(f"root {root}")
    return f"{collective}({', '.join(parts)})"


def read(data: bytes) -> str:
    """The text in the bytes of a fingerprint."""
    return data.rstrip(b"\0").decode(errors="replace")
