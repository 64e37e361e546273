"""XML as a tree, within limits that keep a hostile file harmless.

Document types are refused, and with them entities of any kind, save a bare reference to a DTD (hwloc's files have one), which
is never looked up. Size, depth, number of elements and the length of one tag are limited. A byte-order mark, CRLF, and
comments or blanks before the declaration are put up with.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from topoccl.topology.document import MAX_BYTES
from topoccl.topology.graph import TopologyError

MAX_DEPTH = 96
MAX_ELEMENTS = 100_000
MAX_ATTRIBUTES = 64
MAX_TAG = 1 << 20
"""Bytes of one tag, comment or other markup."""
_PROLOG = 1 << 18
"""Characters in which the first element has to begin."""
_STEP = 1 << 16
_NAME = re.compile(r"<(?:!DOCTYPE\s+)?([A-Za-z_][\w.-]{0,63})")
_BLANKS = re.compile(r"[\ufeff \t\r\n]*")
_DOCTYPE = re.compile(r"<!DOCTYPE[^\[>]{0,1000}>")
_NAMED = ("busid", "numaid", "name", "type", "id", "dev", "target", "gp_index")
"""Attributes that tell elements of one tag apart, for messages."""


@dataclass(slots=True)
class Element:
    """An element; ``text`` is the text directly in it. The methods raise TopologyErrors that name file, line and element."""

    source: str
    tag: str
    attrs: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def where(self) -> str:
        named = next((f" {key}={_shown(self.attrs[key])}" for key in _NAMED if self.attrs.get(key)), "")
        return f"{self.source}:{self.line}: <{self.tag}{named}>"

    def all(self, tag: str) -> Iterator[Element]:
        """Children of this tag."""
        return (child for child in self.children if child.tag == tag)

    def get(self, name: str, default: str = "") -> str:
        return self.attrs.get(name, default)

    def must(self, name: str) -> str:
        """An attribute that has to be there and not empty."""
        value = self.attrs.get(name, "")
        if not value:
            raise self.error(f"{name} is missing" if name not in self.attrs else f"{name} is empty")
        return value

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A decimal (or 0x) integer; ``default``, if there is one, stands for a missing or empty one."""
        text = self.attrs.get(name, "").strip()
        if not text and default is not None:
            return default
        if not text:
            return int(self.must(name).strip() or self.fail(name, "a number"))
        if not re.fullmatch(r"[+-]?\d{1,18}|0[xX][0-9a-fA-F]{1,16}", text, re.ASCII):
            self.fail(name, f"an integer from {low} to {high}")
        value = int(text, 16 if text[:2] in ("0x", "0X") else 10)
        if not low <= value <= high:
            self.fail(name, f"an integer from {low} to {high}")
        return value

    def number(self, name: str, default: float) -> float:
        """A finite number that is not negative."""
        text = self.attrs.get(name, "").strip()
        if not text:
            return default
        if not re.fullmatch(r"[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})([eE][+-]?\d{1,3})?", text, re.ASCII):
            self.fail(name, "a number")
        value = float(text)
        if not math.isfinite(value) or value < 0:
            self.fail(name, "a number, not negative")
        return value

    def fail(self, name: str, expected: str) -> NoReturn:
        raise self.error(f"{name} is {_shown(self.attrs.get(name, ''))}; expected {expected}")

    def error(self, problem: str) -> TopologyError:
        return TopologyError(f"{self.where}: {problem}")


def root_name(text: str) -> str | None:
    """The tag of the first element (or what a document type with declarations calls it), without parsing; None if this is no XML."""
    text = text[:_PROLOG]
    name = _NAME.match(text, _skip(text)[0])
    return name[1] if name else None


def parse(text: str, source: str) -> Element:
    """The root element.

    Raises:
        TopologyError: not well-formed, over a limit, or with a document type that declares anything.
    """
    if len(text) > MAX_BYTES:
        raise TopologyError(f"{source}: {len(text)} characters; at most {MAX_BYTES} are read")
    return _Parser(source).parse(text)


class _Parser:
    def __init__(self, source: str) -> None:
        self.source = source
        self.stack: list[Element] = []
        self.root: Element | None = None
        self.count = 0
        self.expat = expat.ParserCreate("utf-8")  # whatever the declaration says: the text is decoded already
        self.expat.buffer_text = True
        self.expat.StartElementHandler = self.start
        self.expat.EndElementHandler = self.end
        self.expat.CharacterDataHandler = self.characters
        self.expat.StartDoctypeDeclHandler = self.doctype
        self.expat.EntityDeclHandler = self.entity

    def parse(self, text: str) -> Element:
        text = text.removeprefix("\ufeff")
        start = _skip(text[:_PROLOG])[1]
        if start is not None:  # expat wants a declaration at the very beginning or not at all
            end = text.find("?>", start)
            text = text[:start] + "\n" * text.count("\n", start, end) + text[end + 2 :] if end > 0 else text
        data = text.encode("utf-8", "surrogatepass")
        try:
            for start in range(0, len(data), _STEP):
                self.expat.Parse(data[start : start + _STEP], False)
                if start + _STEP - self.expat.CurrentByteIndex > MAX_TAG + 2 * _STEP:
                    raise self.error(f"a tag, comment or text that is longer than {MAX_TAG} bytes")
            self.expat.Parse(b"", True)
        except expat.ExpatError as error:
            inside = "".join(f"; <{element.tag}> of line {element.line} is not closed" for element in self.stack[-1:])
            reason = expat.errors.messages.get(error.code, "not well-formed")
            raise TopologyError(f"{self.source}:{error.lineno}: not well-formed XML: {reason}{inside}") from None
        assert self.root is not None  # expat has seen an element
        return self.root

    def error(self, problem: str) -> TopologyError:
        return TopologyError(f"{self.source}:{self.expat.CurrentLineNumber}: {problem}")

    def start(self, tag: str, attrs: dict[str, str]) -> None:
        self.count += 1
        if self.count > MAX_ELEMENTS:
            raise self.error(f"more than {MAX_ELEMENTS} elements")
        if len(attrs) > MAX_ATTRIBUTES:
            raise self.error(f"<{_cut(tag)}> has {len(attrs)} attributes; at most {MAX_ATTRIBUTES} are read")
        if len(self.stack) >= MAX_DEPTH:
            raise self.error(f"nested deeper than {MAX_DEPTH} levels")
        element = Element(self.source, _cut(tag), attrs, self.expat.CurrentLineNumber)
        if self.stack:
            self.stack[-1].children.append(element)
        else:
            self.root = element
        self.stack.append(element)

    def end(self, _: str) -> None:
        self.stack.pop()

    def characters(self, data: str) -> None:
        if data.strip():
            self.stack[-1].pieces.append(data)

    def doctype(self, name: str, system: str | None, public: str | None, internal: int) -> None:
        if internal:
            raise self.error(f"a document type with declarations ({_cut(name)}); entities are not read")

    def entity(self, name: str, *_: object) -> None:
        raise self.error(f"entity {_cut(name)!r} is declared; entities are not read")


def _skip(text: str) -> tuple[int, int | None]:
    """The place after blanks, comments, instructions and a plain document type; and where the XML declaration is."""
    at, declaration = 0, None
    while True:
        blanks = _BLANKS.match(text, at)
        at = blanks.end() if blanks else at
        plain = _DOCTYPE.match(text, at)
        if plain:
            at = plain.end()
            continue
        closing = "-->" if text.startswith("<!--", at) else "?>" if text.startswith("<?", at) else None
        if closing is None:
            return at, declaration
        if declaration is None and re.match(r"<\?xml\s", text[at : at + 6]):
            declaration = at
        end = text.find(closing, at + 2)
        if end < 0:
            return len(text), declaration
        at = end + len(closing)


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _shown(value: str) -> str:
    return repr(value if len(value) <= 60 else f"{value[:57]}...")
