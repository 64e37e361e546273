"""The file format: what is written reads back the same, short forms, precise errors, and hostile input."""

from __future__ import annotations

import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from topoccl.topology import Link, Topology, TopologyError, Vertex, VertexKind
from topoccl.topology.document import MAX_BYTES
from topoccl.topology.dump import dump
from topoccl.topology.files import load_file, loads
from topoccl.topology.load import load

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = re.findall(r"^```(yaml|json)\n(.*?)^```", (ROOT / "docs" / "topology-format.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
SPECS = [
    *("ring:8", "ring:5,ranks=2", "torus:2x3x4", "mesh:3x5", "cluster:4x2", "cluster:3+2+1,placement=round_robin", "cluster:1x1"),
    *("rails:4x2,net=200Mbit/s+100Mbit/s", "racks:2x2x1,oversub=4,placement=alternate", "fattree:k=4", "dgx-1v:2"),
    "dgx-a100:2,fabric=rails",
]


@pytest.mark.parametrize("style", ["yaml", "json"])
@pytest.mark.parametrize("spec", SPECS)
def test_generated_fabrics_survive_a_file(spec: str, style: str) -> None:
    topology = load(spec)
    text = dump(topology, style=style)
    again = loads(text, f"saved.{style}")
    assert again == topology
    assert (again.name, again.links, again.slots) == (topology.name, topology.links, topology.slots)
    assert [link.attrs for link in again.links] == [link.attrs for link in topology.links]
    assert dump(again, style=style) == text


# Random topologies

TRAPS = ["1", "1e5", "no", "~", "1:30", "a.b", "<<", "2020-01-01"]
IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6) | st.sampled_from(TRAPS)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | IDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(IDS, inner, max_size=3),
    max_leaves=5,
)
ATTRS = st.dictionaries(IDS.filter(lambda key: key != "<<"), PLAIN.filter(lambda x: "<<" not in repr(x)), max_size=2)
RATES = st.floats(min_value=1e-3, max_value=1e15, exclude_min=True) | st.sampled_from([25e6, 12.5e9, 1e9 / 3])
TIMES = st.floats(min_value=0, max_value=1e3) | st.sampled_from([0.0, 5e-6, 7e-6, 1.1e-7])


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    ids = draw(st.lists(IDS, min_size=1, max_size=8, unique=True))
    hosts = ids[: draw(st.integers(1, len(ids)))]
    vertices = [Vertex(name, VertexKind.HOST, draw(st.sampled_from([None, *hosts])), draw(ATTRS)) for name in hosts]
    for name in ids[len(hosts) :]:
        kind = draw(st.sampled_from([kind for kind in VertexKind if kind is not VertexKind.HOST]))
        host = draw(st.sampled_from(hosts if kind is VertexKind.SLOT else [None, *hosts]))
        vertices.append(Vertex(name, kind, host, draw(ATTRS)))
    links = []
    if len(ids) > 1:
        for a, b in draw(st.lists(st.sampled_from(list(itertools.permutations(ids, 2))), max_size=6)):
            link = Link(a, b, draw(RATES), draw(TIMES), draw(IDS), draw(ATTRS))
            links.append(link)
            if draw(st.booleans()):
                links.append(Link(b, a, draw(st.sampled_from([link.bandwidth, 1.0])), link.latency, link.kind, link.attrs))
    slots = [vertex.id for vertex in vertices if vertex.kind is VertexKind.SLOT]
    order = draw(st.permutations(slots))
    kept = order[: draw(st.integers(0, len(order)))] if draw(st.booleans()) else slots
    return Topology(draw(IDS), draw(st.permutations(vertices)), links, kept)


@settings(deadline=None, max_examples=150)
@given(topologies(), st.sampled_from(["yaml", "json"]))
def test_any_topology_survives_a_file(topology: Topology, style: str) -> None:
    text = dump(topology, style=style)
    again = loads(text, f"saved.{style}")
    assert again == topology
    assert again.name == topology.name
    assert [(link, dict(link.attrs)) for link in again.links] == [(link, dict(link.attrs)) for link in topology.links]
    assert dump(again, style=style) == text
    assert not schema_errors(json.loads(dump(topology, style="json")))
    if style == "yaml":
        assert json.dumps(yaml.safe_load(text), sort_keys=True) == json.dumps(json.loads(dump(topology, style="json")), sort_keys=True)


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, float("nan"), float("inf"), object(), {"a": {1}}])
def test_attributes_that_no_file_holds_are_refused(value: object) -> None:
    topology = Topology("t", [Vertex("h", VertexKind.HOST, None, {"odd": value})], [])
    with pytest.raises(TopologyError, match=r"h: attribute .* cannot be written"):
        dump(topology)


def test_text_that_no_file_holds_is_refused() -> None:
    with pytest.raises(TopologyError, match="not valid Unicode"):
        dump(Topology("\ud800", [Vertex("h", VertexKind.HOST)], []))
    with pytest.raises(ValueError, match="unknown style 'toml'; known: yaml, json"):
        dump(load("ring:3"), style="toml")


# Short forms


@pytest.mark.parametrize(("style", "text"), EXAMPLES, ids=[str(i) for i in range(len(EXAMPLES))])
def test_documented_examples(style: str, text: str) -> None:
    topology = loads(text, f"example.{style}")
    assert topology.num_ranks >= 2
    assert loads(dump(topology)) == topology
    assert not schema_errors(json.loads(text) if style == "json" else yaml.safe_load(text))


def example(name: str) -> Topology:
    return next(topology for style, text in EXAMPLES if (topology := loads(text, f"x.{style}")).name == name)


def shape(topology: Topology) -> list[tuple[str, str, float, float, str]]:
    names = {host: f"h{index}" for index, host in enumerate(topology.hosts)}
    switches = (v.id for v in topology.vertices.values() if v.kind is VertexKind.SWITCH)
    names |= {switch: f"x{index}" for index, switch in enumerate(switches)}

    def rename(vertex: str) -> str:
        head, dot, tail = vertex.partition(".")
        return names[head] + dot + tail

    return sorted((rename(k.src), rename(k.dst), k.bandwidth, k.latency, k.kind) for k in topology.links)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("four hosts", "cluster:4x2,net=200Mbit/s+200Mbit/s+200Mbit/s+50Mbit/s,latency=20us,placement=round_robin"),
        ("ring of five", "ring:5,ranks=1,net=200Mbit/s"),
    ],
)
def test_short_forms_say_the_same_as_expressions(name: str, spec: str) -> None:
    written, generated = example(name), load(spec)
    assert shape(written) == shape(generated)
    assert written.ranks_by_host == generated.ranks_by_host


def test_two_racks_example() -> None:
    topology = example("two racks")
    assert topology.host_of_rank == ("a", "c", "b", "d")
    uplinks = [link for link in topology.links if "core" in (link.src, link.dst)]
    assert [link.bandwidth for link in uplinks] == [12.5e6] * 4


def test_numa_and_rails_example() -> None:
    topology = example("rails")
    assert topology.vertices["a.numa1"].attrs["cores"] == 8
    hubs = {link.dst for link in topology.links if link.src in ("a.s2", "a.slow")}
    assert hubs == {"a.numa1", "rail1"}


def test_nics_plugged_into_each_other_share_one_cable() -> None:
    text = "hosts: [{name: a, nics: [{to: b.eth0, rate: 1GB/s}]}, {name: b, nics: [{to: a.eth0, rate: 2GB/s}]}]"
    cable = [(k.src, k.dst, k.bandwidth) for k in loads(text).links if k.kind == "net"]
    assert cable == [("a.eth0", "b.eth0", 1e9), ("b.eth0", "a.eth0", 2e9)]


def test_host_names_with_dots_and_mixed_forms() -> None:
    text = """
hosts: [{name: a.example.org, slots: 1, attrs: {rack: 3}}, b.example.org]
switches: [{name: sw, hosts: [a.example.org, b.example.org]}]
links: [{between: [a.example.org, b.example.org], bandwidth: 1GB/s, duplex: one_way, kind: cxl, attrs: {note: "yes"}}]
"""
    topology = loads(text)
    assert topology.vertices["b.example.org.eth0"].host == "b.example.org"
    assert topology.links[-1] == Link("a.example.org", "b.example.org", 1e9, 0.0, "cxl", {"note": "yes"})


# Errors

AB, A2 = "hosts: [a, b]\n", "hosts: [{name: a, slots: 2}]\n"
BAD = [
    ("", "t.yaml: the document is empty; expected a mapping with hosts", True),
    ("hosts: [a]\nhosts: [b]\n", "t.yaml:2: key 'hosts' is given twice", True),
    ("hosts: [a]\n---\nhosts: [b]\n", "t.yaml:2: a second document begins", True),
    ("- a\n", "t.yaml:1: the document is a list of 1; expected a mapping with hosts", False),
    ("name: x\n", "t.yaml:1: the document: key 'hosts' is missing", False),
    ("topoccl: 2\nhosts: [a]\n", "t.yaml:1: topoccl is 2; expected 1, the only version", False),
    ("hosts: [a]\nlink: []\n", "t.yaml:2: link: unknown key 'link'; known here: topoccl, name, defaults, hosts", False),
    ("hosts:\n- name: a\n  slot: 2\n", "t.yaml:3: hosts[0].slot: unknown key 'slot'; known here: name, slots", False),
    ("hosts:\n- {slots: 2}\n", "t.yaml:2: hosts[0]: key 'name' is missing", False),
    ("hosts:\n- {name: a, slots: -1}\n", "t.yaml:2: hosts[0].slots is -1; expected a whole number from 0 to 65536", False),
    ("hosts:\n- {name: a, slots: two}\n", "t.yaml:2: hosts[0].slots is 'two'; expected a whole number", False),
    ("hosts:\n- {name: 7}\n", "t.yaml:2: hosts[0].name is 7; expected text (quote it if this is meant as text)", False),
    ("hosts:\n- {name: on}\n", "t.yaml:2: hosts[0].name is True; expected text (quote it", False),
    ("hosts: [a,\n a]\n", "t.yaml:2: hosts[1]: 'a' is declared twice, first at line 1", True),
    ("hosts: [a]\nswitches: [a]\n", "t.yaml:2: switches[0]: 'a' is declared twice, first at line 1", True),
    (
        "hosts: [a]\nlinks:\n- {between: [a, b], bandwidth: 1GB/s}\n",
        "t.yaml:3: links[0].between[1] is 'b'; expected a declared vertex; known: a",
        True,
    ),
    ("hosts: [a]\nlinks:\n- {between: [a, a], bandwidth: 1GB/s}\n", "t.yaml:3: links[0].between: connects 'a' with itself", True),
    (
        "hosts: [a]\nlinks:\n- {between: [a], bandwidth: 1GB/s}\n",
        "t.yaml:3: links[0].between is a list of 1; expected a list of two names",
        False,
    ),
    (
        AB + "links:\n- {between: [a, b], bandwidth: -1GB/s}\n",
        "t.yaml:3: links[0].bandwidth is '-1GB/s'; expected a rate such as 200Mbit/s, 100Gbps, 25GB/s, or a number of bytes/s, positive",
        False,
    ),
    (AB + "links:\n- {between: [a, b], bandwidth: 0}\n", "links[0].bandwidth is 0; expected a rate", False),
    (AB + "links:\n- {between: [a, b], bandwidth: .inf}\n", "links[0].bandwidth is inf; expected a rate", True),
    (AB + "links:\n- {between: [a, b]}\n", "t.yaml:3: links[0]: key 'bandwidth' is missing", False),
    (AB + "links:\n- {between: [a, b], bandwidth: 1, latency: -1}\n", "links[0].latency is -1; expected a time such as 5us", False),
    (AB + "links:\n- {between: [a, b], bandwidth: 1, duplex: half}\n", "links[0].duplex is 'half'; expected one of full, one_way", False),
    (
        AB + "links:\n- {between: [a, b], bandwidth: 1, duplex: one_way, back: 2}\n",
        "links[0].back: a one_way link has no way back",
        True,
    ),
    (AB + "links:\n- {between: [a, b], bandwidth: 1, attrs: 3}\n", "links[0].attrs is 3; expected a mapping", False),
    (
        "hosts:\n- {name: a, nics: [{to: sw}]}\n",
        "t.yaml:2: hosts[0].nics[0].to is 'sw'; expected a declared switch or NIC; known: a, a.eth0",
        True,
    ),
    ("hosts:\n- {name: a, slots: 1, nics: [{to: a.s0}]}\n", "hosts[0].nics[0].to is 'a.s0'; expected a switch or another NIC", True),
    ("hosts:\n- {name: a, nics: [{numa: n}]}\n", "nics[0].numa is 'n'; expected a NUMA node of host 'a'; known: none", True),
    (
        "hosts: [{name: a, nics: [{to: b.eth0}]}, {name: b, nics: [{to: c.eth0}]}, {name: c, nics: [{}]}]",
        "hosts[0].nics[0].to: NIC 'b.eth0' is plugged into 'c.eth0', not into 'a.eth0'",
        True,
    ),
    ("hosts: [a]\nswitches: [{name: s, hosts: [b]}]\n", "t.yaml:2: switches[0].hosts[0] is 'b'; expected a declared host; known: a", True),
    (
        "hosts: [a]\nswitches: [{name: s, hosts: [a]}, {name: r, hosts: [a]}]\n",
        "switches[1].hosts[0]: host 'a' already hangs on switch 's'",
        True,
    ),
    ("hosts: [a]\nswitches: [{name: s, uplink: 1GB/s}]\n", "switches[0].uplink: an uplink needs to", True),
    ("hosts: [a]\nswitches: [{name: s, to: a}]\n", "switches[0].to: means nothing without uplink", True),
    ("hosts: [a]\nswitches: [{name: s, uplink: 1, to: s}]\n", "switches[0].to is 's'; expected another switch", True),
    ("hosts: [a]\nswitches: [{name: s, kind: slot}]\n", "switches[0].kind is 'slot'; expected one of numa, pcie, nic, switch", False),
    (
        "hosts: [{name: a, parts: [{id: p, kind: gpu}]}]",
        "hosts[0].parts[0].kind is 'gpu'; expected one of slot, numa, pcie, nic, switch",
        False,
    ),
    ("hosts: [{name: a, host: b}]", "vertex 'a' is in host 'b', which is not a declared host", True),
    (A2 + "placement: [a.s0, a.s2]\n", "t.yaml:2: placement[1] is 'a.s2'; expected a declared slot; known: a.s0, a.s1", True),
    (A2 + "placement: [a.s0, a.s0]\n", "placement[1]: slot 'a.s0' is listed twice", True),
    (A2 + "placement: random\n", "placement is 'random'; expected one of packed, round_robin, alternate", False),
    (AB + "order: [b]\n", "order: 'a' is missing; expected every vertex once", True),
    (AB + "order: [b, b]\n", "order[1]: 'b' is listed twice", True),
    (AB + "cables: [{between: [a, c]}]\n", "cables[0].between[1] is 'c'; expected a declared host, switch or NIC; known: a, b", True),
    ("hosts: {a: 1}\n", "t.yaml:1: hosts is a mapping; expected a list", False),
    (
        "hosts: [!!python/object/apply:os.system [ls]]",
        "t.yaml:1: tag 'tag:yaml.org,2002:python/object/apply:os.system'; only plain data",
        True,
    ),
    ("hosts: [!x a]", "t.yaml:1: tag '!x'; only plain data is read", True),
    ("base: &b {name: a}\nhosts:\n- <<: *b\n", "t.yaml:3: merge key '<<'; write the values out", True),
    ("hosts: &h [*h]", "t.yaml:1: alias *h has no finished anchor &h before it", True),
    ("hosts: [*h]", "alias *h has no finished anchor", True),
    ("1: 2\nhosts: [a]", "t.yaml:1: key 1; expected text (quote it)", True),
    ("hosts: [a", "not YAML: ", True),
    ("hosts:\n\t- a", "t.yaml:2: not YAML: ", True),
    ("hosts: [a\x00]", "not YAML: ", True),
    ("hosts: [{name: a, attrs: {x: 1e999999:99}}]" + "\nname: 9" + "9" * 5000, "expected int", True),
]


@pytest.mark.parametrize(("text", "message", "beyond_schema"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_errors_name_place_value_and_expectation(text: str, message: str, beyond_schema: bool) -> None:
    with pytest.raises(TopologyError) as error:
        loads(text, "t.yaml")
    assert message in str(error.value)
    if not beyond_schema:
        assert schema_errors(yaml.safe_load(text)), "the schema accepts what the reader refuses"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"hosts": ["a"], "hosts": []}', "t.json: hosts: key 'hosts' is given twice"),
        ('{"hosts": [{"name": "a", "attrs": {"x": {"y": 1, "y": 2}}}]}', "t.json: hosts[0].attrs.x.y: key 'y' is given twice"),
        ('{"hosts": [{"name": "a", "slots": 1.5}]}', "t.json: hosts[0].slots is 1.5; expected a whole number"),
        ('{"hosts": NaN}', "t.json: not JSON: NaN is not a JSON value"),
        ('{"hosts": [', "t.json: not JSON: "),
        ('{"hosts": ' + "[" * 100_000, "t.json: nested deeper than 32 levels"),
        ('{"hosts": ' + "[" * 40 + "]" * 40 + "}", "nested deeper than 32 levels"),
        ('{"topoccl": ' + "9" * 5000 + "}", "t.json: not JSON: "),
        (
            '{"hosts": ["a"], "links": [{"between": ["a", "b"], "bandwidth": 1}]}',
            "t.json: links[0].between[1] is 'b'; expected a declared vertex",
        ),
    ],
)
def test_json_errors_name_the_path(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as error:
        loads(text, "t.json")
    assert message in str(error.value)


def test_flow_style_yaml_is_not_taken_for_json() -> None:
    assert loads("{hosts: [{name: a, slots: 2}]}").num_ranks == 2
    assert loads('\ufeff{"hosts": [{"name": "a", "slots": 2}]}').num_ranks == 2


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)),
        "hosts: " + "[" * 100_000,
        "hosts:\n" + "".join(" " * i + "-\n" for i in range(2000)),
        "hosts: " + "{a: " * 100_000,
    ],
    ids=["aliases", "flow", "block", "maps"],
)
def test_bombs_are_refused_quickly(text: str) -> None:
    with pytest.raises(TopologyError, match=r"nested deeper than 32 levels|more than 2000000 values|not YAML"):
        loads(text)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"none\.yaml: cannot be read: No such file"):
        load_file(tmp_path / "none.yaml")
    with pytest.raises(TopologyError, match="cannot be read: Is a directory"):
        load_file(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(TopologyError, match=r"latin\.yaml: not UTF-8: byte 0xe9 at offset 9"):
        load_file(tmp_path / "latin.yaml")
    with (tmp_path / "big.yaml").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(TopologyError, match=f"larger than {MAX_BYTES} bytes"):
        load_file(tmp_path / "big.yaml")
    (tmp_path / "rack 7.yaml").write_bytes(b"\xef\xbb\xbfhosts:\r\n- {name: a, slots: 1}\r\n")
    assert load(tmp_path / "rack 7.yaml").name == "rack 7"


def test_pipes_are_read_and_directories_are_named(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"hosts: [{name: a, slots: 3}]\n")
    os.close(writer)
    try:
        assert load(f"/dev/fd/{reader}").num_ranks == 3
    finally:
        os.close(reader)
    with pytest.raises(TopologyError, match=rf"^{re.escape(str(tmp_path))}: cannot be read: Is a directory$"):
        load(str(tmp_path))


SECTIONS = ["hosts", "switches", "links", "cables"]
JUNK = st.recursive(
    st.sampled_from(["a", "b", "a.s0", "sw", "1GB/s", "5us", "full", "packed", -1, 0, 1, 2.5, True, None, ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("topoccl", "name", "hosts", "switches", "links", "cables", "between", "bandwidth", "latency", "kind", "slots"),
                    *("nics", "to", "rate", "numa", "parts", "id", "attrs", "order", "placement"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from([*SECTIONS, "placement", "order", "defaults", "name"]), JUNK), st.booleans())
def test_any_document_gives_a_topology_or_a_topology_error(data: dict[str, Any], as_json: bool) -> None:
    text = json.dumps(data) if as_json else yaml.safe_dump(data)
    try:
        topology = loads(text, "junk.json" if as_json else "junk.yaml")
    except TopologyError:
        return
    assert not schema_errors(data)
    assert loads(dump(topology)) == topology


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=60) | st.text(alphabet="{}[]:,-&*!|>'\"\n\t #%@a1", max_size=60))
def test_any_text_gives_a_topology_or_a_topology_error(text: str) -> None:
    for source in ("junk.yaml", "junk.json"):
        with pytest.raises(TopologyError):
            loads(text, source)


# The JSON schema: the few keywords that ours uses, so that no validator is needed to keep it true.

SCHEMA = json.loads((ROOT / "topology" / "schema.json").read_text("utf-8"))
TYPES: dict[str, tuple[type, ...]] = {"object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float)}
KEYWORDS = {
    *("$schema", "title", "type", "required", "additionalProperties", "properties", "$defs", "$ref", "items", "anyOf", "enum", "const"),
    *("pattern", "minLength", "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum"),
}


def schema_errors(value: Any, schema: dict[str, Any] = SCHEMA, path: str = "") -> list[str]:
    assert set(schema) <= KEYWORDS, set(schema) - KEYWORDS
    if "$ref" in schema:
        return schema_errors(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], path)
    if "anyOf" in schema:
        tries = [schema_errors(value, option, path) for option in schema["anyOf"]]
        return [] if not all(tries) else [f"{path}: none of {len(tries)}"]
    if "const" in schema and (value != schema["const"] or isinstance(value, bool)):
        return [f"{path}: {value!r}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{path}: {value!r}"]
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or isinstance(value, bool)):
        return [f"{path}: not {kind}"]
    found: list[str] = []
    if isinstance(value, dict):
        known = schema.get("properties", {})
        found += [f"{path}: missing {key}" for key in schema.get("required", ()) if key not in value]
        for key, item in value.items():
            if key in known:
                found += schema_errors(item, known[key], f"{path}.{key}")
            elif schema.get("additionalProperties", True) is False:
                found.append(f"{path}: unknown {key}")
    elif isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            found.append(f"{path}: {len(value)} items")
        for index, item in enumerate(value):
            found += schema_errors(item, schema.get("items", {}), f"{path}[{index}]")
    elif isinstance(value, str):
        if len(value) < schema.get("minLength", 0) or ("pattern" in schema and not re.search(schema["pattern"], value, re.ASCII)):
            found.append(f"{path}: {value!r}")
    elif isinstance(value, int | float):
        low, high, above = schema.get("minimum"), schema.get("maximum"), schema.get("exclusiveMinimum")
        if (low is not None and value < low) or (high is not None and value > high) or (above is not None and value <= above):
            found.append(f"{path}: {value!r}")
    return found


def test_the_schema_knows_the_keys_of_the_reader() -> None:
    from topoccl.topology import files

    host, switch = SCHEMA["$defs"]["host"]["properties"], SCHEMA["$defs"]["switch"]["properties"]
    top = SCHEMA["properties"]
    for keys, properties in [
        (files.TOP, top),
        (files.DEFAULTS, top["defaults"]["properties"]),
        (files.HOST, host),
        (files.NUMA, host["numa"]["items"]["properties"]),
        (files.NIC, host["nics"]["items"]["properties"]),
        (files.PART, host["parts"]["items"]["properties"]),
        (files.SWITCH, switch),
        (files.CABLE, top["cables"]["items"]["properties"]),
        (files.LINK, top["links"]["items"]["properties"]),
    ]:
        assert set(keys) == set(properties)


def test_a_few_bytes_cannot_ask_for_any_number_of_slots() -> None:
    text = "defaults: {slots: 65536}\nhosts: [a, b]\n"
    with pytest.raises(TopologyError, match=r"slots is 65536|131072 slots up to here; at most 65536 are read"):
        loads(text, "many.yaml")
    assert loads(text.replace("65536", "3"), "few.yaml").num_ranks == 6


def test_messages_are_short_whatever_a_key_is() -> None:
    for text in (f"hosts: [{{name: a, {'x' * 9000}: 1}}]", f"{'x' * 9000}: 1", f"hosts: [{{name: a, {'x' * 9000}: 1, {'x' * 9000}: 1}}]"):
        with pytest.raises(TopologyError) as error:
            loads(text, "long.yaml")
        assert len(str(error.value)) < 400


def test_the_rate_of_a_nic_that_is_not_plugged_in_is_kept() -> None:
    topology = loads("hosts:\n- {name: a, slots: 1, nics: [{rate: 400Gbit/s}, {name: ib0}]}\n")
    assert topology.vertices["a.eth0"].attrs == {"rate": 50e9}
    assert topology.vertices["a.ib0"].attrs == {}
    assert loads(dump(topology)) == topology
    plugged = loads("hosts: [{name: a, slots: 1, nics: [{rate: 400Gbit/s}]}]\nswitches: [{name: s, hosts: [a]}]\n")
    assert plugged.vertices["a.eth0"].attrs == {}
