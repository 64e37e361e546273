"""Tuning files: what is read and refused, and what measured sizes say of others."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoccl.algorithms.algorithm import label_of, read_label
from topoccl.algorithms.calibration import default_profile
from topoccl.algorithms.registry import algorithms_for
from topoccl.algorithms.spec import COLLECTIVES, ROOTED
from topoccl.algorithms.tuning import (
    MAX_SEGMENTS,
    Fitted,
    Measured,
    Measurement,
    Range,
    Tuning,
    TuningError,
    dump_tuning,
    fabric_digest,
    load_tuning,
    merge,
    parse_tuning,
)
from topoccl.topology.generators import generate
from topoccl.topology.graph import Topology

K, M = 1 << 10, 1 << 20
RING = "ring[channels=2]"


def parse(*entries: str, head: str = "") -> Tuning:
    return parse_tuning(f"topoccl_tuning: 1\n{head}entries:\n" + "".join(f"- {{{entry}}}\n" for entry in entries), "t.yaml")


def entry(**fields: object) -> str:
    plain = {"collective": "all_reduce", "ranks": 8, "algorithm": '"ring[channels=2]"', "bytes": "1M", "seconds": "12ms"}
    return ", ".join(f"{key}: {value}" for key, value in (plain | fields).items() if value is not None)


def curve(*points: tuple[int, float, int | None]) -> Tuning:
    return Tuning(tuple(Measurement("all_reduce", 8, RING, nbytes, seconds, segments) for nbytes, seconds, segments in points))


def seconds(tuning: Tuning, nbytes: int) -> float | None:
    found = tuning.seconds("all_reduce", 8, RING, nbytes)
    return None if found is None else found.seconds


# Files


def test_a_file() -> None:
    tuning = parse(
        entry(segments=4),
        entry(collective="AllGather", algorithm="ring", bytes=3000, seconds=1.5e-3),
        entry(collective="broadcast", algorithm='" direct "', bytes="64 KiB", seconds="20us", root=7, hosts=2),
        head="topology: 0123456789ABCDEF\n",
    )
    assert tuning.source == "t.yaml"
    assert tuning.topology == "0123456789abcdef"
    assert tuning.entries == (
        Measurement("all_reduce", 8, RING, M, 0.012, 4),
        Measurement("all_gather", 8, "ring", 3000, 0.0015),
        Measurement("broadcast", 8, "direct", 64 * K, 20e-6, None, 7, 2),
    )


def test_json_says_the_same() -> None:
    data = {"topoccl_tuning": 1, "entries": [{"collective": "all_reduce", "ranks": 8, "algorithm": RING, "bytes": M, "seconds": 0.012}]}
    assert parse_tuning(json.dumps(data), "t.json") == parse(entry())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.yaml: the document is empty; expected a mapping with topoccl_tuning and entries"),
        ("entries: []", "t.yaml:1: the document: key 'topoccl_tuning' is missing"),
        ("topoccl_tuning: 1", "t.yaml:1: the document: key 'entries' is missing"),
        ("topoccl_tuning: true\nentries: []", "t.yaml:1: topoccl_tuning is True; expected 1"),
        ("topoccl_tuning: 1\nentries: {}", "t.yaml:2: entries is an empty mapping; expected a list of measurements"),
        ("topoccl_tuning: 1\nentry: []", "t.yaml:2: entry: unknown key 'entry'; known here: topoccl_tuning, topology, transport"),
        ("topoccl_tuning: 1\nentries: []\nentries: []", "t.yaml:3: key 'entries' is given twice"),
        ("topoccl_tuning: 1\nentries: !!python/name:os.system []", "only plain data is read"),
        ("topoccl_tuning: 1\nentries: []\n---\n{}", "t.yaml:3: a second document begins"),
        ("topoccl_tuning: 1\ntopology: cluster\nentries: []", "t.yaml:2: topology is 'cluster'; expected the digest of a topology, or"),
        ("topoccl_tuning: 1\ntopology: 123456789012\nentries: []", "topology is 123456789012; expected the digest of a topology, or"),
        ("topoccl_tuning: ]", "t.yaml:1: not YAML: "),
    ],
)
def test_a_wrong_file(text: str, message: str) -> None:
    with pytest.raises(TuningError) as caught:
        parse_tuning(text, "t.yaml")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seconds": None}, "t.yaml:4: entries[1]: key 'seconds' is missing"),
        ({"second": 1}, "t.yaml:4: entries[1].second: unknown key 'second'; known here: collective, ranks, algorithm, bytes, seconds, "),
        ({"collective": "all_rejoice"}, "entries[1].collective is 'all_rejoice'; expected one of all_reduce, all_gather, "),
        ({"collective": 5}, "entries[1].collective is 5; expected one of all_reduce, "),
        ({"ranks": 0}, "entries[1].ranks is 0; expected a whole number from 1 to "),
        ({"ranks": "true"}, "entries[1].ranks is True; expected a whole number"),
        ({"bytes": "1Q"}, "entries[1].bytes is '1Q'; expected a number of bytes with an optional binary suffix"),
        ({"bytes": -1}, "entries[1].bytes is -1; expected a number of bytes"),
        ({"bytes": 1.5}, "entries[1].bytes is 1.5; expected a number of bytes"),
        ({"bytes": "2048T"}, "entries[1].bytes is '2048T'; expected at most 1024T"),
        ({"seconds": "12 minutes"}, "entries[1].seconds is '12 minutes'; expected a time such as 5us, "),
        ({"seconds": 0}, "entries[1].seconds is 0; expected a time above zero"),
        ({"seconds": ".nan"}, "entries[1].seconds is nan; expected a time"),
        ({"seconds": "1" + "0" * 400}, "entries[1].seconds is a huge number; expected a smaller number"),
        ({"algorithm": "rong"}, "entries[1].algorithm: unknown algorithm 'rong' for all_reduce; known: ring, tree, "),
        ({"algorithm": "pairwise"}, "entries[1].algorithm: unknown algorithm 'pairwise' for all_reduce; known: ring, "),
        ({"algorithm": '"ring[depth=2]"'}, "entries[1].algorithm: ring has no parameter 'depth'; known: channels"),
        ({"algorithm": '"ring[channels=2"'}, "entries[1].algorithm: 'ring[channels=2' is not of the form name or name[key=value,...]"),
        ({"segments": 0}, "entries[1].segments is 0; expected a whole number from 1 to "),
        ({"segments": MAX_SEGMENTS + 1}, f"expected a whole number from 1 to {MAX_SEGMENTS}"),
        ({"root": 0}, "entries[1].root: all_reduce has no root; those that have one: broadcast, reduce, gather, scatter"),
        ({"collective": "broadcast", "algorithm": "direct", "root": 8}, "entries[1].root is 8; expected a whole number from 0 to 7"),
        ({"hosts": 9}, "entries[1].hosts is 9; expected a whole number from 1 to 8"),
        ({"collective": "barrier", "algorithm": "dissemination"}, "entries[1].bytes is '2M'; expected 0, since a barrier moves no data"),
        (
            {"bytes": 1024 * K, "seconds": 1, "algorithm": '"ring[ channels = 2 ]"'},
            f"t.yaml:4: entries[1]: {RING} for all_reduce of 1M bytes among 8 ranks is already given by entries[0] (line 3)",
        ),
    ],
)
def test_a_wrong_entry(fields: dict[str, object], message: str) -> None:
    with pytest.raises(TuningError) as caught:
        parse(entry(), entry(**({"bytes": "2M"} | fields)))
    assert message in str(caught.value)
    assert str(caught.value).startswith("t.yaml:4: ")


def test_json_has_paths_instead_of_lines() -> None:
    with pytest.raises(TuningError, match=r"t.json: entries\[0\]: key 'ranks' is missing"):
        parse_tuning('{"topoccl_tuning": 1, "entries": [{"collective": "barrier"}]}', "t.json")


def test_a_file_that_is_not_there(tmp_path: object) -> None:
    with pytest.raises(TuningError, match=r"none\.yaml: cannot be read: No such file"):
        load_tuning(f"{tmp_path}/none.yaml")


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    collective = draw(st.sampled_from(COLLECTIVES))
    algorithm = draw(st.sampled_from(algorithms_for(collective)))
    label = label_of(algorithm.name, draw(st.sampled_from(algorithm.variants)))
    ranks = draw(st.integers(1, 1000))
    return Measurement(
        collective,
        ranks,
        label,
        0 if collective == "barrier" else draw(st.integers(0, 1 << 40)),
        draw(st.floats(1e-9, 1e6)),
        draw(st.none() | st.integers(1, MAX_SEGMENTS)),
        draw(st.none() | st.integers(0, ranks - 1)) if collective in ROOTED else None,
        draw(st.none() | st.integers(1, ranks)),
    )


@given(st.lists(measurements(), max_size=5, unique_by=lambda m: (m.curve, m.nbytes)), st.none() | st.just("1234567890e12345"))
def test_what_is_written_is_read(entries: list[Measurement], topology: str | None) -> None:
    tuning = Tuning(tuple(entries), topology)
    again = parse_tuning(dump_tuning(tuning))
    assert again == tuning
    assert again.digest == tuning.digest


def test_people_can_read_what_is_written() -> None:
    text = dump_tuning(Tuning((Measurement("all_reduce", 8, RING, M, 0.012, 4),)))
    line = '- {collective: all_reduce, ranks: 8, algorithm: "ring[channels=2]", bytes: 1M, seconds: 12ms, segments: 4}'
    assert text.splitlines()[2] == line


# Digests


def test_the_digest_is_that_of_the_contents() -> None:
    one = curve((K, 1.0, 1), (M, 2.0, None))
    assert one.digest == Tuning(one.entries[::-1], source="elsewhere").digest
    for other in (curve((K, 1.0, 1), (M, 2.0, 1)), curve((K, 1.5, 1), (M, 2.0, None)), curve((K, 1.0, 1)), Tuning(one.entries, "0" * 12)):
        assert other.digest != one.digest


def test_times_hold_for_one_topology() -> None:
    here, there = generate("cluster:4x2"), generate("cluster:2x4")
    assert curve().mismatch(there) is None
    for digest in (here.digest, here.digest[:12]):
        tuning = Tuning((), digest, "t.yaml")
        assert tuning.holds(here)
        assert tuning.mismatch(here) is None
        assert not tuning.holds(there)
        assert tuning.mismatch(there) == (
            f"the times of t.yaml are not used: they were measured on a topology with the digest {digest[:16]}, "
            f"but 'cluster:2x4' has {there.digest[:16]}"
        )
    assert not Tuning((), here.digest).holds(here.place(range(8)[::-1]))


# Looking up


def test_a_measured_size_is_taken_as_it_is() -> None:
    tuning = curve((K, 1.0, 1), (M, 7.0, 16))
    assert tuning.seconds("all_reduce", 8, RING, K) == Measured(1.0, 1)
    assert tuning.seconds("all_reduce", 8, RING, M) == (7.0, 16, False)
    for other in (("all_gather", 8, RING), ("all_reduce", 4, RING), ("all_reduce", 8, "ring[channels=1]"), ("all_reduce", 8, "ring")):
        assert tuning.seconds(*other, M) is None


def test_between_sizes_logarithms_are_interpolated() -> None:
    tuning = curve((K, 1e-3, 1), (4 * K, 4e-3, 2), (64 * K, 4e-3, None))
    assert seconds(tuning, 2 * K) == pytest.approx(2e-3)
    assert seconds(tuning, 3 * K) == pytest.approx(3e-3)
    assert seconds(tuning, 9 * K) == pytest.approx(4e-3)
    assert seconds(curve((K, 1e-3, 1), (M, 16e-3, 1)), 32 * K) == pytest.approx(4e-3)  # the square root of both
    segments = [found.segments for n in (K + 1, 3 * K, 15 * K, 17 * K) if (found := tuning.seconds("all_reduce", 8, RING, n))]
    assert segments == [1, 2, 2, None]


def test_beyond_the_sizes_only_a_little_is_said() -> None:
    tuning = curve((M, 3.0, 4), (2 * M, 4.0, 8))
    assert seconds(tuning, M // 2) == 3.0
    assert seconds(tuning, M // 2 - 1) is None
    assert tuning.seconds("all_reduce", 8, RING, 3 * M) == (6.0, 8, False)
    assert seconds(tuning, 4 * M) == 8.0
    assert seconds(tuning, 4 * M + 1) is None


def test_an_empty_call_stands_alone() -> None:
    tuning = curve((0, 1.0, None), (8, 2.0, None))
    assert seconds(tuning, 0) == 1.0
    assert [seconds(tuning, n) for n in (1, 3, 4, 8)] == [None, None, 2.0, 2.0]
    assert seconds(curve((8, 2.0, None)), 0) is None
    assert seconds(curve((0, 1.0, None)), 1) is None


@given(st.integers(1, 1 << 50), st.integers(1, 1 << 50), st.floats(1e-9, 1e6), st.floats(1e-9, 1e6), st.data())
def test_between_two_sizes_time_stays_between_both(a: int, b: int, one: float, other: float, data: st.DataObject) -> None:
    low, high = sorted((a, b))
    tuning = curve((low, one, 1)) if low == high else curve((low, one, 1), (high, other, 1))
    found = seconds(tuning, data.draw(st.integers(low, high)))
    assert found is not None
    times = [one] if low == high else [one, other]
    assert min(times) * (1 - 1e-9) <= found <= max(times) * (1 + 1e-9)


def test_any_spelling_of_a_candidate() -> None:
    label = "hierarchical[inter=ring,channels=2]"
    tuning = parse(entry(algorithm=f'"{label}"'))
    for spelling in (label, "hierarchical[channels=2,inter=ring]", " hierarchical [ inter = ring, channels=2 ]"):
        assert tuning.seconds("all_reduce", 8, spelling, M) == (0.012, None, False)
    assert tuning.labels("all_reduce", 8) == ["hierarchical[channels=2,inter=ring]"]
    assert tuning.labels("all_reduce", 4) == tuning.labels("all_gather", 8) == []


def test_the_narrowest_entry_counts() -> None:
    given = {"collective": "broadcast", "algorithm": "direct"}
    limits: tuple[dict[str, int], ...] = ({}, {"hosts": 4}, {"root": 5}, {"root": 5, "hosts": 4})
    tuning = parse(*(entry(**given, **limit, seconds=at + 1) for at, limit in enumerate(limits)))

    def look_up(root: int | None, hosts: int | None) -> float:
        found = tuning.seconds("broadcast", 8, "direct", M, root=root, hosts=hosts)
        assert found is not None
        return found.seconds

    assert [look_up(*at) for at in ((5, 4), (5, 1), (0, 4), (0, 1), (None, None))] == [4, 3, 2, 1, 1]


# Labels


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_labels_are_read_back(collective: str) -> None:
    for algorithm in algorithms_for(collective):
        for variant in algorithm.variants:
            assert read_label(label_of(algorithm.name, variant)) == (algorithm.name, dict(variant))
            assert set(variant) <= set(algorithm.parameters)


@pytest.mark.parametrize("text", ["", "[a=1]", "ring[", "ring[]", "ring[a]", "ring[a=]", "ring[=1]", "ring[a=1", "r[a=1,a=2]", "r[a=1,]"])
def test_what_is_no_label(text: str) -> None:
    with pytest.raises(ValueError, match="is not of the form name or name"):
        read_label(text)


# What goes beyond times

FULL = """topoccl_tuning: 2
topology: "0123456789ab"
transport: "mpi"
fabric: "{fabric}"
profile:
  crowd: 2.0
  machine: 4.0
  copy_bandwidth: 4000000000.0
  network: {{both_ways: 0.8, burst: 20K, call_overhead: 300us, efficiency: 0.9, latency: 30us}}
covered:
- {{collective: all_reduce, ranks: 8, from: 4K, to: 8M, hosts: 4}}
- {{collective: broadcast, ranks: 8, from: 4, to: 4, root: 1}}
entries:
- {{collective: all_reduce, ranks: 8, algorithm: "direct", bytes: 1M, seconds: 12ms, segments: 1, pulls: true, predicted: 11ms}}
"""


def test_a_whole_file_is_read_and_written() -> None:
    text = FULL.format(fabric="0" * 16)
    tuning = parse_tuning(text, "t.yaml")
    assert dump_tuning(tuning) == text
    assert tuning.covered == (Range("all_reduce", 8, 4 * K, 8 * M, hosts=4), Range("broadcast", 8, 4, 4, root=1))
    assert tuning.seconds("all_reduce", 8, "direct", M) == (0.012, 1, True)
    assert tuning.covers("all_reduce", 8, 5 * K, hosts=4)
    assert not any(tuning.covers("all_reduce", 8, n, hosts=h) for n, h in ((4 * K - 1, 4), (8 * M + 1, 4), (M, 2)))
    other = parse_tuning(text.replace("0.9,", "0.91,"), "t.yaml")
    assert other.digest != tuning.digest


def test_constants_hold_for_a_fabric_and_a_transport_in_any_placement() -> None:
    here, mpi = generate("cluster:4x2"), default_profile("mpi")
    tuning = parse_tuning(FULL.format(fabric=fabric_digest(here)))
    fitted = tuning.calibrate(mpi, here.place([7, 0, 3]), "mpi")
    assert (fitted.name, fitted.network.efficiency, fitted.network.latency) == ("mpi, tuned", 0.9, 30e-6)
    assert fitted.network.send_overhead == mpi.network.send_overhead
    assert fitted.copy_bandwidth == mpi.copy_bandwidth  # as many ranks as cores here, two on each there
    crowded = mpi.on_hosts(2, attach=False)
    assert tuning.calibrate(crowded, here, "mpi").copy_bandwidth == 4e9
    assert tuning.calibrate(mpi, generate("cluster:2x4"), "mpi") == mpi
    assert tuning.calibrate(mpi, here, "gloo") == mpi
    assert "they were measured over mpi, and this is gloo" in str(tuning.mismatch(here, "gloo"))


def test_a_file_of_another_version_is_not_used() -> None:
    tuning = parse_tuning("topoccl_tuning: 7\nwhatever: [1, 2]", "t.yaml")
    assert (
        tuning.mismatch(generate("cluster:2x1"))
        == "nothing of t.yaml is used: it has version 7 of the format of tuning files; known here: 1, 2"
    )
    assert tuning.entries == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("crowd: 2.0", "crowd: 0.5", "expected a number of ranks for each core, at least 1"),
        ("0.9,", "1.1,", "expected a share from 1e-06 to 1"),
        ("both_ways: 0.8", "both_way: 0.8", "unknown key 'both_way'"),
        ("to: 8M", "to: 1K", "to is '1K'; expected at least 4K, where the range begins"),
        ("pulls: true", "pulls: 1", "expected true or false"),
        ('"mpi"', '"pigeon"', "expected one of tcp, mpi, gloo, memory"),
    ],
)
def test_wrong_parts(old: str, new: str, message: str) -> None:
    with pytest.raises(TuningError) as caught:
        parse_tuning(FULL.format(fabric="0" * 16).replace(old, new), "t.yaml")
    assert message in str(caught.value)


# What was measured in several places


def part(topology: Topology, *rows: tuple[str, int, float, float | None], fitted: Fitted | None = None, transport: str = "tcp") -> Tuning:
    """Rows are label, bytes, seconds and what was predicted."""
    entries = tuple(
        Measurement("all_reduce", topology.num_ranks, label, nbytes, seconds, 1, predicted=predicted)
        for label, nbytes, seconds, predicted in rows
    )
    return Tuning(entries, topology.digest, transport=transport, fabric=fabric_digest(topology), fitted=fitted)


def test_a_file_of_several_places_is_read_and_written() -> None:
    packed = generate("cluster:4x2")
    spread = packed.place([0, 2, 4, 6, 1, 3, 5, 7])
    one = part(packed, ("direct", M, 0.012, 0.011), fitted=Fitted((("network.efficiency", 0.9),)))
    two = part(spread, ("direct", M, 0.015, None), (RING, M, 0.02, 0.01))
    merged = merge([one, two])
    assert parse_tuning(dump_tuning(merged)) == merged
    assert merged.digest != one.digest
    for topology, seconds in ((packed, 0.012), (spread, 0.015)):
        assert merged.mismatch(topology, "tcp") is None
        assert merged.at(topology, "tcp").seconds("all_reduce", 8, "direct", M) == (seconds, 1, False)
        assert merged.calibrate(default_profile("tcp"), topology, "tcp").network.efficiency == 0.9
    other = packed.place([7, 6, 5, 4, 3, 2, 1, 0])
    assert f"measured on topologies with the digests {packed.digest[:16]}, {spread.digest[:16]}, but" in str(merged.mismatch(other, "tcp"))
    assert "they were measured over tcp, and this is gloo" in str(merged.mismatch(packed, "gloo"))
    assert merged.at(other, "tcp").entries == ()
    assert merged.at(packed, "gloo").entries == ()
    with pytest.raises(TuningError, match="parts is a list of 0; expected at least one place"):
        parse_tuning("topoccl_tuning: 2\nparts: []", "t.yaml")
    with pytest.raises(TuningError, match="entries"):
        parse_tuning("topoccl_tuning: 2\nparts: [{}]\nentries: []", "t.yaml")


def test_a_group_that_was_measured_by_itself_has_its_own_times() -> None:
    whole = generate("cluster:4x2")
    pair = whole.place([0, 2])
    merged = merge([part(whole, ("direct", M, 0.012, None)), part(pair, ("direct", M, 0.003, None))])
    here = merged.at(whole, "tcp")
    assert here.seconds("all_reduce", 2, "direct", M) is None
    assert here.for_group(pair).seconds("all_reduce", 2, "direct", M) == (0.003, 1, False)
    assert here.for_group(pair).seconds("all_reduce", 8, "direct", M) == (0.012, 1, False)
    assert here.for_group(whole.place([1, 3])).seconds("all_reduce", 2, "direct", M) is None


def test_merging_keeps_the_last_of_what_was_measured_twice() -> None:
    packed = generate("cluster:4x2")
    old = part(packed, ("direct", M, 0.012, 0.01), (RING, K, 0.001, None), fitted=Fitted((("network.efficiency", 0.9),)))
    new = part(packed, ("direct", M, 0.013, 0.01), fitted=Fitted((("network.efficiency", 0.91),)))
    merged = merge([old, new, part(packed, ("direct", M, 0.5, None), transport="gloo")])
    assert len(merged.parts) == 2
    assert merged.at(packed, "tcp").seconds("all_reduce", 8, "direct", M) == (0.013, 1, False)
    assert merged.at(packed, "tcp").seconds("all_reduce", 8, RING, K) == (0.001, 1, False)
    assert merged.constants(packed, "tcp") == new.fitted
    with pytest.raises(TuningError, match=r"one\.yaml: nothing of one\.yaml is used: it has version 9"):
        merge([old, parse_tuning("topoccl_tuning: 9", "one.yaml")])


# How far predictions were off


def test_what_was_off_is_off_nearby_and_in_other_placements() -> None:
    packed = generate("cluster:4x2")
    tuning = part(packed, ("direct", M, 0.02, 0.01), (RING, M, 0.01, 0.01), ("tree", M, 0.01, 0.01))
    for topology in (packed, packed.place([0, 2, 4, 6, 1, 3, 5, 7])):
        here = tuning.at(topology, "tcp")
        at = [here.factor("all_reduce", 8, "direct", n) for n in (M, 2 * M, 8 * M, 64 * M)]
        assert 2 > at[0] > at[1] > 1.3 > at[2] > 1.0
        assert at[3] == pytest.approx(1, abs=0.01)
        assert here.factor("all_reduce", 8, RING, M) == pytest.approx(1)
        assert here.factor("all_reduce", 8, "swing", M) == pytest.approx(1)  # the median of all is not off
        assert here.factor("all_gather", 8, "direct", M) == 1
        assert here.factor("all_reduce", 4, "direct", M) == pytest.approx(at[0])  # nothing was measured among four
    for topology, transport in ((packed, "gloo"), (generate("cluster:2x4"), "tcp")):
        assert tuning.at(topology, transport).factor("all_reduce", 8, "direct", M) == 1


def test_what_all_have_in_common_is_expected_of_others_too() -> None:
    tuning = part(generate("cluster:4x2"), ("direct", M, 0.02, 0.01), (RING, M, 0.02, 0.01))
    assert 1.5 < tuning.factor("all_reduce", 8, "swing", M) < 2
    absurd = part(generate("cluster:4x2"), ("direct", M, 20.0, 0.01))
    assert absurd.factor("all_reduce", 8, "direct", M) == pytest.approx(3)


def test_far_between_sizes_predictions_are_corrected_not_times_interpolated() -> None:
    tuning = part(generate("cluster:4x2"), ("direct", K, 0.001, 0.001), ("direct", 4 * K, 0.002, 0.002), ("direct", M, 0.02, 0.02))
    assert tuning.seconds("all_reduce", 8, "direct", 2 * K) is not None
    assert tuning.seconds("all_reduce", 8, "direct", 4500) is not None
    assert tuning.seconds("all_reduce", 8, "direct", 64 * K) is None
    assert tuning.seconds("all_reduce", 8, "direct", 8 * M) is None


def test_constants_of_version_1_meant_something_else() -> None:
    old = parse_tuning(FULL.format(fabric="0" * 16).replace("topoccl_tuning: 2", "topoccl_tuning: 1"))
    assert old.fitted is None
    assert old.entries == parse_tuning(FULL.format(fabric="0" * 16)).entries
