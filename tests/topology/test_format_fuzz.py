"""Whatever a file holds, a parser gives a Topology or a TopologyError, quickly, and ``recognise`` never raises."""

from __future__ import annotations

import contextlib
import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topoccl.topology import Topology, TopologyError
from topoccl.topology.formats import FORMATS, Format, parse, recognise

FIXTURES = Path(__file__).parent / "fixtures"
HANDED = Path(__file__).resolve().parents[3] / "shared" / "topologies"
FOLDERS = ("nvidia_smi", "rocm_smi", "other_vendor", "slurm", "ibnetdiscover", "taccl", "astra_sim", "topograph_models", "netq")
TEXTS = [
    *(path.read_text("utf-8") for path in sorted(FIXTURES.iterdir()) if path.suffix != ".xml"),
    "BlockName=b1 Nodes=n[01-04]\nBlockName=b2 Nodes=n[05-08]\nBlockSizes=4,8\n",
    "SwitchName=top Switches=s[1-2]\nSwitchName=s1 Nodes=n[1-3,07]\nSwitchName=s2 Nodes=m5\n",
    "- topology: t\n  tree:\n    switches:\n    - {switch: s1, nodes: 'n[1-2]'}\n    - {switch: r, children: s1}\n",
    "RingName=r0 Nodes=n[1-4]\nRingName=r1 Nodes=m[1-3]\n",
    "- topology: t\n  torus3d: {toruses: [{name: p, dims: {x: 2, y: 2, z: 1}, regions: [{anchor: {x: 0, y: 0, z: 0}, "
    "dims: {x: 2, y: 1, z: 1}, nodes: 'n[1-2]'}]}]}\n",
    "CA 4 1 0xe41d2d0300000001 4x EDR - SW 1 7 0x248a0703008a8500 ( 'n1 mlx5_0' - 'leaf' )\nSW 1 8 0x248a0703008a8500 4x SDR 'leaf'\n",
    "switches:\n  S1: {switches: [S2]}\nblocks:\n- switch: S2\n  nodes: ['I[1-2]']\n  annotations: {accelerator.topology.test/domain: n}\n",
    "topology: [ Ring, Switch ]\nnpus_count: [ 4, 2 ]\nbandwidth: [ 50.0, 10 ]\nlatency: [ 500.0, 1 ]\n",
    "Nodes 8\nTiers 2\nPodsize 8\nTier 0\nDownlink_speed_Gbps 2\nRadix_Down 2\nRadix_Up 2\nTier 1\nDownlink_speed_Gbps 2\nRadix_Down 4\n",
    "4 1 3\n3\n0 3 400Gbps 1us 0\n1 3 400Gbps 1us 0\n2 3 400Gbps 1us 0\n",
    '{"name": "A_1KB", "gpus_per_node": 8, "nics_per_node": 2, "alpha": 3, "node_betas_list": [7], "remote_alpha": 2, "remote_beta": 3}',
    '{"nnodes": 2, "intranode_sketch": {"strategy": "switch", "switches": [[0, 1]]}, "internode_sketch": {"internode_conn": {"1": [0]}}}',
    '[{"Name": "n1", "DomainUUID": "3f", "GpuIDList": ["a", "b"], "LocationInfo": {"SlotID": 1}}]',
    '[{"nodes": [{"id": "a", "device_type": "switch"}, {"id": "b"}], "links": [{"interfaces": [{"node": "a"}, {"node": "b"}]}]}]',
]
NAMES = [entry.name for entry in FORMATS]
SETTINGS = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def survives(entry: Format, text: str) -> None:
    assert 0 <= entry.recognise(text) <= 100
    found: object = None
    try:
        found = entry.parse(text, "fuzz")
    except TopologyError as error:
        found = str(error)
    assert isinstance(found, Topology) or ("fuzz" in str(found) and len(str(found)) < 3000), found


def own_text(entry: Format) -> list[str]:
    return [text for text in TEXTS if entry.recognise(text)] or TEXTS


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(seed=st.integers(0, 1 << 30))
def test_damaged_files(name: str, seed: int) -> None:
    """Real texts with pieces cut, doubled, swapped, or replaced by what breaks parsers."""
    rng = random.Random(seed)
    entry = FORMATS[NAMES.index(name)]
    text = rng.choice(own_text(entry))
    pieces = ["\0", "\ufeff", "[", "]", '"', "X", "NV999999", "-1", "1e999", "NaN", "٣", "9" * 400, "={", "null"]
    pieces += ["&a", "*a", "!!x", "\r", "\x1b[4m", ","]
    for _ in range(rng.randint(1, 4)):
        words = re.split(r"(\s+|[\[\]{}:,\"])", text)
        at = rng.randrange(len(words))
        match rng.randrange(5):
            case 0:
                words = words[:at]
            case 1:
                words[at] = rng.choice(pieces)
            case 2:
                del words[at : at + rng.randint(1, 9)]
            case 3:
                words[at:at] = words[max(0, at - rng.randint(1, 40)) : at]
            case 4:
                other = rng.randrange(len(words))
                words[at], words[other] = words[other], words[at]
        text = "".join(words)
    survives(entry, text)
    with contextlib.suppress(TopologyError):
        parse(text, "fuzz")


@pytest.mark.parametrize("name", NAMES)
@settings(SETTINGS, max_examples=15)
@given(text=st.text(max_size=200))
def test_any_text(name: str, text: str) -> None:
    survives(FORMATS[NAMES.index(name)], text)


PLAIN = st.none() | st.booleans() | st.integers(-3, 1 << 70) | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    PLAIN | st.sampled_from(["0", "switch", "Ring", "n[1-3]"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("name", ["hccl", "taccl", "netq", "astra-sim", "topograph", "slurm-yaml", "rocm-smi", "amd-smi", "topoccl"])
@SETTINGS
@given(data=st.data())
def test_documents_of_the_right_shape_with_wrong_values(name: str, data: st.DataObject) -> None:
    entry = FORMATS[NAMES.index(name)]
    keys = sorted(set(re.findall(r'["\w]([\w./-]+)"?\s*:', "\n".join(own_text(entry)))) | {"gpu", "links", "bdf", "link_type", "card0"})
    inner = st.dictionaries(st.sampled_from(keys), VALUES, max_size=6)
    middle = st.dictionaries(st.sampled_from(keys), VALUES | inner | st.lists(inner, max_size=3), max_size=6)
    document = data.draw(middle | st.lists(middle, max_size=3))
    survives(entry, json.dumps(document))


HOSTILE = [
    *("[" * 200_000, "{" * 100_000, '{"a":' * 50_000, "x" * 1_000_000, "GPU0 " * 100_000, "a: &a [*a]\n", "<" * 200_000),
    *(" " * 300_000, "\n" * 300_000, "\t" * 200_000 + "x", "a = " * 50_000, '"\\' * 100_000, "/*" * 100_000, '"' + "/* " * 100_000),
    *("SwitchName=a Nodes=" + "[1-2]" * 20_000, "GPU0 GPU1\nGPU0 X NV1\nGPU1 NV1 " + "XNV1" * 20_000, "[1]" * 100_000, "\x1b[" * 100_000),
    *("SwitchName=a Nodes=" + "[1]" * 100_000, "GPU0 " + "OK " * 100_000 + "z", '[1] "S-1"[1] # ' + "1x(" * 100_000),
]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_sizes_and_depths_are_refused(name: str) -> None:
    """None may take more than linear work: the time limit of a test would end one that does."""
    for text in HOSTILE:
        survives(FORMATS[NAMES.index(name)], text)


@pytest.mark.parametrize("folder", FOLDERS)
def test_handed_files_load_or_are_refused_for_a_stated_reason(folder: str) -> None:
    paths = sorted((HANDED / folder).glob("*"))
    if not paths:
        pytest.skip("no files were handed over")
    refused = {}
    for path in paths:
        text = path.read_text("utf-8")
        try:
            topology = parse(text, str(path))
        except TopologyError as error:
            refused[path.name] = str(error)
        else:
            assert topology.num_ranks > 0
            assert topology.name
            assert parse(text.replace("\n", "\r\n"), str(path)) == topology
    reasons = {
        "topograph-example-bad.out": "not one cable",
        "sk1-ndv2-n4.json": "does not say how GPUs are linked",
        "network-ns3-sample_16nodes_2D.json": "logical-dims",
        "network-ns3-sample_8nodes_1D.json": "logical-dims",
        "system-custom_collectives-custom_ring_allreduce_8npus_1MB-custom_allreduce.xml": "a schedule",
        "system-native_collectives-HGX-H100-validated.json": "how an ASTRA-sim system",
        "system-native_collectives-Ring_4chunks.json": "how an ASTRA-sim system",
    }
    assert {name: reasons.get(name, "?") in text for name, text in refused.items()} == dict.fromkeys(refused, True)


def test_every_sample_is_recognised_as_one_format_only() -> None:
    for text in TEXTS:
        scores = sorted((entry.recognise(text), entry.name) for entry in FORMATS)
        assert scores[-1][0] > scores[-2][0], scores[-2:]
        assert recognise(text).name == scores[-1][1]
