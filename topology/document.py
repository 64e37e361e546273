"""YAML or JSON text as a tree of values that know where they stand, within limits that keep a hostile file harmless.

Only plain data is read: no tags but the standard ones, no merge keys, no duplicate keys, no second document. Aliases are
followed, each use counted at its full size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import yaml

from topoccl.topology.graph import TopologyError
from topoccl.topology.units import parse_rate, parse_size, parse_time

MAX_BYTES = 32 << 20
MAX_DEPTH = 32
MAX_VALUES = 2_000_000

_Scalar = str | int | float | bool | None
_T = TypeVar("_T")
_TAG = "tag:yaml.org,2002:"


@dataclass(slots=True)
class _Node:
    value: _Scalar | list[_Node] | dict[str, _Node]
    line: int | None
    size: int = 1


@dataclass(slots=True)
class Cursor:
    """One value of a document and its place; the methods read it as a type or raise a TopologyError that names the place.

    ``above`` and ``key`` say where: None and "" for the whole.
    """

    source: str
    above: Cursor | None
    key: str | int
    node: _Node

    @property
    def path(self) -> str:
        if self.above is None:
            return ""
        return f"{self.above.path}[{self.key}]" if isinstance(self.key, int) else _join(self.above.path, self.key)

    @property
    def where(self) -> str:
        line = "" if self.node.line is None else f":{self.node.line}"
        return f"{self.source}{line}: {self.path or 'the document'}"

    def fail(self, expected: str) -> NoReturn:
        raise TopologyError(f"{self.where} is {_shown(self.node.value)}; expected {expected}")

    def error(self, problem: str) -> TopologyError:
        """A TopologyError that begins with the place."""
        return TopologyError(f"{self.where}: {problem}")

    def items(self, expected: str = "a list") -> list[Cursor]:
        if not isinstance(self.node.value, list):
            self.fail(expected)
        return [Cursor(self.source, self, index, node) for index, node in enumerate(self.node.value)]

    def fields(self, known: Sequence[str], required: Sequence[str] = (), expected: str = "") -> dict[str, Cursor]:
        """A mapping with no other keys than ``known`` and all of ``required``."""
        value = self.node.value
        if not isinstance(value, dict):
            self.fail(expected or f"a mapping with {', '.join(required or known)}")
        for key, node in value.items():
            if key not in known:
                at = Cursor(self.source, self, key, node)
                raise TopologyError(f"{at.where}: unknown key {_shown(key)}; known here: {', '.join(known)}")
        for key in required:
            if key not in value:
                raise TopologyError(f"{self.where}: key {key!r} is missing")
        return {key: Cursor(self.source, self, key, node) for key, node in value.items()}

    def entries(self, expected: str = "a mapping") -> dict[str, Cursor]:
        """A mapping with whatever keys (formats of others)."""
        if not isinstance(self.node.value, dict):
            self.fail(expected)
        return {key: Cursor(self.source, self, key, node) for key, node in self.node.value.items()}

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.node.value, dict)

    @property
    def is_list(self) -> bool:
        return isinstance(self.node.value, list)

    @property
    def is_text(self) -> bool:
        return isinstance(self.node.value, str)

    def text(self, expected: str = "text") -> str:
        value = self.node.value
        if not isinstance(value, str) or not value:
            quoted = value is not None and not isinstance(value, list | dict | str)
            self.fail(expected + (" (quote it if this is meant as text)" if quoted else ""))
        return value

    def one_of(self, known: Sequence[str]) -> str:
        if self.node.value not in known or not isinstance(self.node.value, str):
            self.fail(f"one of {', '.join(known)}")
        return self.node.value

    def count(self, most: int = 1 << 20) -> int:
        value = self.node.value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            self.fail(f"a whole number from 0 to {most}")
        return value

    def size(self) -> int:
        return self._unit(parse_size)

    def rate(self) -> float:
        return self._unit(parse_rate)

    def time(self) -> float:
        return self._unit(parse_time)

    def _unit(self, parse: Callable[[Any], _T]) -> _T:
        try:
            return parse(self.node.value if not isinstance(self.node.value, list | dict) else None)
        except ValueError as error:
            self.fail(str(error).partition("expected ")[2])
        except OverflowError:
            self.fail("a smaller number")

    def plain(self) -> Any:
        """The value as Python data (attributes)."""
        return _plain(self.node)


def read(text: str, source: str, holds: str = "a mapping with hosts") -> Cursor:
    """Parse YAML or JSON; ``holds`` says what an empty document lacks.

    Raises:
        TopologyError: not well formed, or over a limit.
    """
    if len(text) > MAX_BYTES:
        raise TopologyError(f"{source}: {len(text)} characters; at most {MAX_BYTES} are read")
    text = text.removeprefix("\ufeff")
    as_json = source.endswith(".json")
    if as_json or text.lstrip()[:1] in ("{", "["):
        try:
            return Cursor(source, None, "", _from_json(json.loads(text, object_pairs_hook=_Pairs, parse_constant=_refuse), source, ""))
        except RecursionError:
            raise TopologyError(f"{source}: nested deeper than {MAX_DEPTH} levels") from None
        except ValueError as error:
            if isinstance(error, TopologyError):
                raise
            if as_json:
                raise TopologyError(f"{source}: not JSON: {error}") from None
    return Cursor(source, None, "", _from_yaml(text, source, holds))


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it stands, duplicates included."""


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _from_json(value: Any, source: str, path: str, depth: int = 0) -> _Node:
    if depth > MAX_DEPTH:
        raise TopologyError(f"{source}: {path}: nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, _Pairs):
        fields: dict[str, _Node] = {}
        for key, item in value:
            if key in fields:
                raise TopologyError(f"{source}: {_join(path, key)}: key {_shown(key)} is given twice")
            fields[key] = _from_json(item, source, _join(path, key), depth + 1)
        return _Node(fields, None)
    if isinstance(value, list):
        return _Node([_from_json(item, source, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)], None)
    return _Node(value, None)


_resolver: Any = yaml.resolver.Resolver()
_constructor: Any = yaml.constructor.SafeConstructor()
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _from_yaml(text: str, source: str, holds: str) -> _Node:
    try:
        return _Composer(source, holds).compose(_events(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).partition("\n")[0]
        line = "" if mark is None else f":{mark.line + 1}"
        raise TopologyError(f"{source}{line}: not YAML: {problem}") from None
    except UnicodeError as error:
        raise TopologyError(f"{source}: not YAML: {error}") from None


def _events(text: str) -> Iterator[Any]:
    loader = _Loader(text)
    try:
        while type(event := loader.get_event()) is not yaml.StreamEndEvent:
            yield event
    finally:
        loader.dispose()


class _Open:
    """A collection that is still being read."""

    def __init__(self, event: Any, line: int) -> None:
        self.is_map = isinstance(event, yaml.MappingStartEvent)
        self.anchor = event.anchor
        self.line = line
        self.items: list[_Node] = []
        self.size = 1


class _Composer:
    """Builds nodes from YAML's events without recursion, counting as it goes."""

    def __init__(self, source: str, holds: str) -> None:
        self.source = source
        self.holds = holds
        self.anchors: dict[str, _Node | None] = {}
        self.stack: list[_Open] = []
        self.root: _Node | None = None
        self.plain: dict[str, _Scalar] = {}
        """Short plain scalars and what they stand for: most come again and again."""

    def fail(self, line: int, problem: str) -> NoReturn:
        raise TopologyError(f"{self.source}:{line}: {problem}")

    def compose(self, events: Iterator[Any]) -> _Node:
        for event in events:
            line = event.start_mark.line + 1 if event.start_mark else 1
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self.add(_Node(self.scalar(event, line), line), event.anchor, line)
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                done = self.stack.pop()
                value = self.mapping(done) if done.is_map else done.items
                self.add(_Node(value, done.line, done.size), done.anchor, done.line)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self.check_tag(event, line, ("map",) if kind is yaml.MappingStartEvent else ("seq",))
                if len(self.stack) >= MAX_DEPTH:
                    self.fail(line, f"nested deeper than {MAX_DEPTH} levels")
                if event.anchor:
                    self.anchors[event.anchor] = None
                self.stack.append(_Open(event, line))
            elif kind is yaml.AliasEvent:
                target = self.anchors.get(event.anchor or "")
                if target is None:
                    self.fail(line, f"alias *{event.anchor} has no finished anchor &{event.anchor} before it")
                self.add(target, None, line)
            elif kind is yaml.DocumentStartEvent and self.root is not None:
                self.fail(line, "a second document begins; one file holds one")
        if self.root is None:
            raise TopologyError(f"{self.source}: the document is empty; expected {self.holds}")
        return self.root

    def add(self, node: _Node, anchor: str | None, line: int) -> None:
        if anchor:
            self.anchors[anchor] = node
        if not self.stack:
            self.root = node
            return
        top = self.stack[-1]
        top.items.append(node)
        top.size += node.size
        if top.size > MAX_VALUES:
            self.fail(line, f"more than {MAX_VALUES} values (aliases count at full size)")

    def mapping(self, done: _Open) -> dict[str, _Node]:
        fields: dict[str, _Node] = {}
        for key, node in zip(done.items[::2], done.items[1::2], strict=True):
            line = key.line or done.line
            if not isinstance(key.value, str):
                self.fail(line, f"key {_shown(key.value)}; expected text (quote it)")
            if key.value == "<<":
                self.fail(line, "merge key '<<'; write the values out")
            if key.value in fields:
                self.fail(line, f"key {key.value!r} is given twice")
            fields[key.value] = node
        return fields

    def check_tag(self, event: Any, line: int, known: tuple[str, ...]) -> None:
        if event.tag is not None and event.tag not in [_TAG + name for name in known] and event.tag != "!":
            self.fail(line, f"tag {event.tag!r}; only plain data is read")

    def scalar(self, event: Any, line: int) -> _Scalar:
        if event.tag is None:
            if not event.implicit[0]:  # quoted
                return str(event.value)
            if event.value in self.plain:
                return self.plain[event.value]
        value = self.resolve(event, line)
        if event.tag is None and len(self.plain) < 1 << 16:
            self.plain[event.value] = value
        return value

    def resolve(self, event: Any, line: int) -> _Scalar:
        self.check_tag(event, line, ("str", "int", "float", "bool", "null"))
        tag = event.tag if event.tag not in (None, "!") else _resolver.resolve(yaml.ScalarNode, event.value, event.implicit)
        kind = tag.removeprefix(_TAG)
        if kind not in ("int", "float", "bool", "null"):
            return str(event.value)
        try:
            value: _Scalar = getattr(_constructor, f"construct_yaml_{kind}")(yaml.ScalarNode(tag, event.value))
        except (ValueError, KeyError, IndexError, OverflowError):
            self.fail(line, f"{_shown(event.value)}; expected {kind}")
        return value


def _plain(node: _Node) -> Any:
    if isinstance(node.value, dict):
        return {key: _plain(item) for key, item in node.value.items()}
    if isinstance(node.value, list):
        return [_plain(item) for item in node.value]
    return node.value


def _join(path: str, key: str) -> str:
    name = key if re.fullmatch(r"[\w-]{1,40}", key) else json.dumps(key[:40])
    return f"{path}.{name}" if path else name


def _shown(value: object) -> str:
    """A value for a message, short whatever it is."""
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None:
        return "empty"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**40:
        return "a huge number"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
