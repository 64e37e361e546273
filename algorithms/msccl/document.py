"""The XML document as a tree, read safely, and what reader and writer must agree on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.parsers import expat

from topoccl.algorithms.schedule import Buf
from topoccl.algorithms.spec import CollectiveSpec

MAX_BYTES = 64 << 20
"""Longer documents are refused."""
MAX_PLACES = 1 << 22
"""Most places that the buffers of all ranks may have together; a document of one line can ask for any number."""

BUFFERS = {"i": Buf.INPUT, "o": Buf.OUTPUT, "s": Buf.SCRATCH}
COLLECTIVES = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}
"""MSCCL's names where they differ from ours."""

FIFO = 8
"""Messages a sender may run ahead: the slots of a connection that MSCCL's schedules are made for (NCCL_STEPS)."""

Place = tuple[Buf, int]
Meaning = tuple[tuple[Place, ...], Place | None, tuple[int, ...]]

RECEIVING = frozenset({"r", "rcs", "rrs", "rrc", "rrcs"})
SENDING = frozenset({"s", "rcs", "rrs", "rrcs"})
READING = frozenset({"s", "rrs", "rrc", "rrcs", "cpy", "re"})
STORING = frozenset({"r", "rcs", "rrc", "rrcs", "cpy", "re"})
TYPES = RECEIVING | SENDING | READING | STORING | {"nop"}


class MscclError(ValueError):
    """A document is not MSCCL XML that means a schedule; the message names the element and the reason."""


def meaning(kind: str, send: int, recv: int, src: Place, dst: Place) -> Meaning:
    """Operands, destination and targets of a step of type ``kind`` in a thread block that sends to ``send`` and receives from ``recv``.

    A receive-and-reduce has the message on the left; ``re`` adds its source to its destination.
    """
    operands: tuple[Place, ...] = ()
    if kind == "re":
        operands = (dst,)
    elif kind in RECEIVING:
        operands = ((Buf.PEER, recv),)
    if kind in READING:
        operands += (src,)
    return operands, dst if kind in STORING else None, (send,) if kind in SENDING else ()


def blocks_per_loop(spec: CollectiveSpec) -> int:
    """How many blocks the larger buffer of a rank has, which ``nchunksperloop`` counts in chunks."""
    return max(max(len(spec.input_blocks(r)), len(spec.output_blocks(r))) for r in range(spec.ranks))


@dataclass
class Element:
    """An XML element."""

    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    line: int = 0

    def text(self, name: str) -> str:
        """The value of an attribute that must be there."""
        if name not in self.attributes:
            raise self.error(f"has no {name}")
        return self.attributes[name]

    def number(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """The value of an attribute as an integer in ``low`` to ``high``."""
        if default is not None and name not in self.attributes:
            return default
        text = self.text(name)
        if not re.fullmatch(r"-?[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise self.error(f"{name} is {text[:40]!r}; expected an integer from {low} to {high}")
        return int(text)

    def numbers(self, name: str, low: int, high: int) -> list[int]:
        """The value of an attribute as integers separated by blanks; none where the attribute is missing."""
        words = self.attributes.get(name, "").split()
        return [Element(self.tag, {name: word}, line=self.line).number(name, low, high) for word in words]

    def error(self, problem: str) -> MscclError:
        name = "".join(f" {key}={self.attributes[key]!r}" for key in ("id", "s") if key in self.attributes)
        return MscclError(f"MSCCL XML, line {self.line}: <{self.tag}{name}> {problem}")

    def render(self, indent: int = 0) -> str:
        """The element as XML text."""
        attributes = "".join(f' {key}="{_escape(value)}"' for key, value in self.attributes.items())
        if not self.children:
            return f"{' ' * indent}<{self.tag}{attributes}/>\n"
        inside = "".join(child.render(indent + 2) for child in self.children)
        return f"{' ' * indent}<{self.tag}{attributes}>\n{inside}{' ' * indent}</{self.tag}>\n"


def _escape(value: str) -> str:
    for plain, safe in (("&", "&amp;"), ("<", "&lt;"), ('"', "&quot;"), ("\n", "&#10;"), ("\t", "&#9;"), ("\r", "&#13;")):
        value = value.replace(plain, safe)
    return value


def parse(text: str, nesting: Sequence[str]) -> Element:
    """Reads ``text`` into elements nested as ``nesting`` says, such as ``("algo", "gpu", "tb", "step")``.

    Document types (and with them entities of any kind) are refused, and so are elements of other names and text between elements.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise MscclError(f"MSCCL XML: {size} bytes; the limit is {MAX_BYTES}")
    parser = expat.ParserCreate()
    stack: list[Element] = []
    roots: list[Element] = []

    def refuse(problem: str) -> MscclError:
        return MscclError(f"MSCCL XML, line {parser.CurrentLineNumber}: {problem}")

    def start(tag: str, attributes: dict[str, str]) -> None:
        expected = nesting[len(stack)] if len(stack) < len(nesting) else None
        if tag != expected:
            inside = f"inside <{stack[-1].tag}>" if stack else "at the top"
            raise refuse(f"<{tag}> {inside}; expected {f'<{expected}>' if expected else 'nothing'}")
        element = Element(tag, attributes, line=parser.CurrentLineNumber)
        (stack[-1].children if stack else roots).append(element)
        stack.append(element)

    def end(tag: str) -> None:
        stack.pop()

    def doctype(*_: object) -> None:
        raise refuse("a document type is not allowed")

    def characters(data: str) -> None:
        if data.strip():
            raise refuse(f"text {data.strip()[:40]!r} between elements")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler, parser.CharacterDataHandler = doctype, characters
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise MscclError(f"MSCCL XML: {error}") from None
    return roots[0]
