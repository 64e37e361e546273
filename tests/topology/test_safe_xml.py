"""XML that is hostile, broken or merely odd."""

from __future__ import annotations

import tracemalloc

import pytest

from topoccl.topology import TopologyError
from topoccl.topology.formats import parse as parse_any
from topoccl.topology.formats.safe_xml import MAX_ATTRIBUTES, MAX_DEPTH, MAX_ELEMENTS, MAX_TAG, parse, root_name

CPU = '<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD"/></system>'
BOMB = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10 if n else "lol"}">' for n in range(10))
ENTITIES = [
    f"<!DOCTYPE system [{BOMB}]><system>&l9;</system>",
    '<!DOCTYPE system [<!ENTITY x SYSTEM "file:///etc/passwd">]><system>&x;</system>',
    '<!DOCTYPE system [<!ENTITY % x SYSTEM "http://localhost/x.dtd"> %x;]><system/>',
    '<!DOCTYPE system SYSTEM "x.dtd" [<!ATTLIST cpu numaid CDATA "7">]><system/>',
]


def test_elements_have_attributes_text_and_lines() -> None:
    root = parse('<a x="1">\n <b/>\n <c>one <d/>two</c>\n</a>', "f.xml")
    assert (root.tag, root.attrs, root.line) == ("a", {"x": "1"}, 1)
    assert [(child.tag, child.line) for child in root.children] == [("b", 2), ("c", 3)]
    assert root.children[1].text.split() == ["one", "two"]


@pytest.mark.parametrize(
    "text",
    [
        f"\ufeff{CPU}",
        f"<!-- one --> \r\n<!-- two\r\n < & > -->\r\n{CPU}\r\n",
        f'\n\n<!-- licence --><?xml version="1.0" encoding="UTF-16"?>\n{CPU}',
        f'<?xml version="1.0"?><!DOCTYPE system SYSTEM "nowhere.dtd">{CPU}<!-- end -->\n\n',
        f'<?xml-stylesheet href="x"?>{CPU}',
    ],
)
def test_odd_beginnings_are_read(text: str) -> None:
    assert root_name(text) == "system"
    assert parse(text, "f.xml").tag == "system"
    assert parse_any(text, "f.xml").hosts == ("h0",)


def test_lines_count_from_the_top_whatever_was_cut() -> None:
    with pytest.raises(TopologyError, match=r"^f.xml:4: .*numaid"):
        parse_any("<!-- a\n-->\n<?xml version='1.0'?>\n" + CPU.replace('numaid="0"', 'numaid="x"'), "f.xml")


@pytest.mark.parametrize("text", ENTITIES)
def test_declarations_are_refused_before_they_are_used(text: str) -> None:
    assert root_name(text) == "system"
    with pytest.raises(TopologyError, match=r"^f.xml:1: a document type with declarations"):
        parse_any(text, "f.xml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (CPU[:-12], r"^f.xml:1: not well-formed XML: .*<system> of line 1 is not closed"),
        (CPU[:40], r"^f.xml:1: not well-formed XML: "),
        (CPU + CPU, "junk after document element"),
        (CPU.replace("/>", "/"), "not well-formed"),
        (CPU.replace('"0"', '"&nbsp;"'), "undefined entity"),
        (CPU.replace('"0"', '"\0"'), "not well-formed"),
        (CPU.replace('numaid="0"', 'numaid="0" numaid="1"'), "duplicate attribute"),
        ("<a>" * 200, f"nested deeper than {MAX_DEPTH} levels"),
        ("<a " + " ".join(f'x{n}=""' for n in range(100)) + "/>", f"has 100 attributes; at most {MAX_ATTRIBUTES}"),
        ("<a>" + "<b/>" * (MAX_ELEMENTS + 1), f"more than {MAX_ELEMENTS} elements"),
        ("<a>\ud800</a>", "not well-formed"),
        ("", "no element found"),
    ],
)
def test_broken_and_oversized_texts(text: str, problem: str) -> None:
    with pytest.raises(TopologyError, match=problem):
        parse(text, "f.xml")


@pytest.mark.parametrize("text", ["<a " + 'x="" ' * (4 << 20), "<!--" + "x" * (8 << 20), "<a x='" + "y" * (8 << 20)])
def test_endless_markup_takes_bounded_memory(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TopologyError):
            parse(text, "f.xml")
        assert tracemalloc.get_traced_memory()[1] < len(text) * 3 + (32 << 20)
    finally:
        tracemalloc.stop()


def test_a_long_tag_is_refused_before_the_end_of_the_file() -> None:
    with pytest.raises(TopologyError, match=f"longer than {MAX_TAG} bytes"):
        parse("<a x='" + "y" * (8 << 20) + "'/>", "f.xml")
    assert parse("<a x='" + "y" * (MAX_TAG // 2) + "'/>", "f.xml").tag == "a"


@pytest.mark.parametrize("text", ["", "  ", "text", "<", "<1>", "<!-- no end", "<?xml", '{"a": 1}'])
def test_what_is_not_xml_has_no_root(text: str) -> None:
    assert root_name(text) is None


def test_numbers_are_checked() -> None:
    element = parse('<a low="-1" hex="0x1F" word="x" long="99999999999999999999" float="1.5" inf="1e999" empty=""/>', "f.xml")
    assert element.integer("low", -1, 5) == -1
    assert element.integer("hex", 0, 99) == 31
    assert element.integer("empty", 0, 9, 7) == element.integer("none", 0, 9, 7) == 7
    assert element.number("float", 0.0) == 1.5
    for name in ("word", "long", "float"):
        with pytest.raises(TopologyError, match=f"^f.xml:1: <a>: {name} is .*; expected an integer from 0 to 9"):
            element.integer(name, 0, 9)
    for name in ("word", "inf", "low"):
        with pytest.raises(TopologyError, match=f"{name} is .*; expected a number"):
            element.number(name, 0.0)
    for name, problem in (("none", "none is missing"), ("empty", "empty is empty")):
        with pytest.raises(TopologyError, match=problem):
            element.integer(name, 0, 9)
        with pytest.raises(TopologyError, match=problem):
            element.must(name)


def test_a_bomb_of_no_known_format_is_called_one() -> None:
    with pytest.raises(TopologyError, match=r"bomb\.xml: XML with a document type that declares something; entities are not read"):
        parse_any(f'<?xml version="1.0"?><!DOCTYPE lolz [{BOMB}]><lolz>&l9;</lolz>', "bomb.xml")


def test_deep_json_is_called_deep() -> None:
    with pytest.raises(TopologyError, match=r"deep\.json: nested deeper than 32 levels"):
        parse_any('{"a":' * 100_000 + "1" + "}" * 100_000, "deep.json")


def test_messages_are_short_whatever_a_file_holds() -> None:
    with pytest.raises(TopologyError, match=r"long\.conf:1: switch 'a' lists switch 'xxx") as error:
        parse_any(f"SwitchName=a Switches={'x' * 100_000}\n", "long.conf")
    assert len(str(error.value)) < 3100
