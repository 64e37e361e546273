"""Forests that are kept between runs: the same again, and whatever is wrong with the files does not matter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from topoccl.algorithms.forest import keep_in, quick, store, synthesis, synthesise
from topoccl.algorithms.forest.store import read, write
from topoccl.collectives.forests import DiskStore, keep_forests
from topoccl.topology.load import load

RING = load("ring:5")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keep_forests()
    yield tmp_path / "topoccl" / "forests"
    keep_in(None)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The collectives for which a forest was made."""
    calls: list[str] = []
    make = synthesis._synthesise

    def counted(topology: object, collective: str, *rest: object) -> object:
        calls.append(collective)
        return make(topology, collective, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(synthesis, "_synthesise", counted)
    return calls


def test_the_second_time_it_is_read(folder: Path, made: list[str]) -> None:
    first = synthesise(RING, "all_reduce")
    assert len(list(folder.iterdir())) == 1
    assert synthesise(load("ring:5"), "all_reduce") == first
    assert made == ["all_reduce"]
    synthesise(RING, "all_reduce", k=1)
    synthesise(RING, "broadcast", 2)
    synthesise(load("ring:5,net=1GB/s"), "all_reduce")
    assert made == ["all_reduce", "all_reduce", "broadcast", "all_reduce"]
    assert len(list(folder.iterdir())) == 4


def test_one_that_is_at_hand_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = synthesise(RING, "all_reduce")
    texts: list[str] = []
    monkeypatch.setattr(store, "read", lambda text, ranks: texts.append(text) or read(text, ranks))
    assert quick(RING, "all_reduce")
    assert synthesise(RING, "all_reduce") == first
    assert len(texts) == 1
    assert synthesise(RING, "all_reduce") == first  # nothing is kept in memory
    assert len(texts) == 2
    assert quick(RING, "all_reduce")
    assert synthesise(RING, "broadcast", 1) != first
    assert synthesise(RING, "all_reduce") == first
    assert len(texts) == 4


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"0 {}\n", None])
def test_damaged_files_are_made_anew(folder: Path, made: list[str], damage: bytes | None) -> None:
    first = synthesise(RING, "all_gather")
    (path,) = folder.iterdir()
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"weight"', b"")[:-20] if damage is None else damage)
    assert synthesise(RING, "all_gather") == first
    assert made == ["all_gather"] * 2
    assert path.read_bytes() == good


def test_a_place_that_cannot_be_written(tmp_path: Path, made: list[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    store = DiskStore(tmp_path / "file" / "forests")
    keep_in(store)
    try:
        assert synthesise(RING, "all_gather") == synthesise(RING, "all_gather")
    finally:
        keep_in(None)
    assert made == ["all_gather"] * 2
    assert (tmp_path / "file").read_text() == "in the way"


def test_texts() -> None:
    forest = synthesise(RING, "all_reduce")
    text = write(forest)
    assert read(text, 5) == forest
    assert read(text, 6) is None
    assert read(text.replace("hosts", "ranks"), 5) is None
