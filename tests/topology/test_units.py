"""Sizes, rates and times: what people write, what is refused, and that formatted values read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoccl.topology.units import format_ranks, format_rate, format_size, format_time, parse_rate, parse_size, parse_time


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("4096", 4096),
        (17, 17),
        ("64K", 65536),
        ("64k", 65536),
        ("64M", 64 * 2**20),
        ("64MB", 64 * 2**20),
        ("64 MiB", 64 * 2**20),
        ("1.5G", 3 * 2**29),
        ("2TiB", 2**41),
        ("8B", 8),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_size(text: str | int, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "K", "64X", "-1", "-4K", "1.3", "0x10", "1e400", "64 M M", "nan", "64Mbit", "8388608T", -1, True, None, "٣K"]
)
def test_bad_size_names_the_text_and_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match=r"bad size .*expected a number of bytes") as error:
        parse_size(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("200Mbit/s", 25e6),
        ("200mbit", 25e6),
        ("100Gbps", 12.5e9),
        ("100Gb/s", 12.5e9),
        ("12.5GB/s", 12.5e9),
        ("25GBps", 25e9),
        ("9.6 kbit/s", 1200.0),
        ("1e9", 1e9),
        (1.25e9, 1.25e9),
        (5, 5.0),
        ("3 B/s", 3.0),
        ("1Tbit/s", 1.25e11),
    ],
)
def test_rate(text: str | float, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate, rel=1e-15)


@pytest.mark.parametrize("text", ["", "fast", "25GB", "25G", "200Mbit/h", "-1GB/s", "0", 0, "inf", float("nan"), True, None, [1]])
def test_bad_rate(text: str) -> None:
    with pytest.raises(ValueError, match=r"bad rate .*expected a rate such as 200Mbit/s") as error:
        parse_rate(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5us", 5e-6), ("5 µs", 5e-6), ("1.5ms", 1.5e-3), ("30", 30.0), ("2s", 2.0), ("2min", 120.0), ("1h", 3600.0), ("7ns", 7e-9), (0, 0.0)],
)
def test_time(text: str | float, seconds: float) -> None:
    assert parse_time(text) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize("text", ["", "min", "5 years", "-1s", -1, "inf", True, None])
def test_bad_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"bad time .*expected a time such as 5us") as error:
        parse_time(text)
    assert repr(text) in str(error.value)


@given(st.integers(0, 2**60))
def test_sizes_read_back_exactly(nbytes: int) -> None:
    assert parse_size(format_size(nbytes)) == nbytes


@given(st.floats(1.0, 1e14))
def test_rates_read_back(rate: float) -> None:
    assert parse_rate(format_rate(rate)) == pytest.approx(rate, rel=1e-3)


@given(st.floats(1e-9, 1e5) | st.just(0.0))
def test_times_read_back(seconds: float) -> None:
    assert parse_time(format_time(seconds)) == pytest.approx(seconds, rel=1e-3)


def test_formatting() -> None:
    assert [format_size(x) for x in (0, 1000, 65536, 3 * 2**20)] == ["0", "1000", "64K", "3M"]
    assert [format_rate(x) for x in (25e6, 12.5e9, 999.99, 1e12)] == ["25MB/s", "12.5GB/s", "1kB/s", "1TB/s"]
    assert [format_time(x) for x in (0, 5e-6, 1.5e-3, 120.0)] == ["0s", "5us", "1.5ms", "120s"]


def test_ranks_for_people() -> None:
    texts = [format_ranks(ranks) for ranks in ([], [3], [2, 0, 1], [0, 1, 3, 8, 9])]
    assert texts == ["no rank", "rank 3", "ranks 0-2", "ranks 0-1, 3, 8-9"]
