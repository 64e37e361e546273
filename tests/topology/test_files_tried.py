"""The table of files in docs/formats.md says what the parsers do: each handed file loads or is refused, as it is counted there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from topoccl.topology import TopologyError
from topoccl.topology.formats import FORMATS, parse, recognise

REPOSITORY = Path(__file__).resolve().parents[2]
HANDED = REPOSITORY.parent / "shared" / "topologies"
ROW = re.compile(r"^\| `([\w-]+)`[^|]*\| (\d+) \| (\d+) \| (\d+)([^|]*)\| (\d+) \| (\d+) \| (\d+)([^|]*)\|$", re.MULTILINE)
COUNTED_AS = {"ns-3 logical dimensions": "astra-sim", "ASTRA-sim system": "astra-sim", "MSCCL algorithm": "msccl"}


def table() -> dict[str, tuple[str, ...]]:
    text = (REPOSITORY / "docs" / "formats.md").read_text("utf-8").partition("## Files tried")[2]
    return {row[0]: row[1:] for row in ROW.findall(text)}


def test_every_format_has_a_row_that_adds_up() -> None:
    rows = table()
    ours = {entry.name for entry in FORMATS if not entry.summary.startswith("refused")} - {"topoccl"}
    assert set(rows) == ours | {"msccl"}
    for name, row in rows.items():
        for tried, loaded, refused, why in (row[:4], row[4:]):
            assert int(tried) == int(loaded) + int(refused), name
            assert bool(why.strip()) == bool(int(refused)), f"{name}: say why {refused} are refused"


def test_handed_files_do_what_the_table_says() -> None:
    if not HANDED.is_dir():
        pytest.skip("no files were handed over")
    done: dict[str, Counter[str]] = {name: Counter() for name in table()}
    for path in sorted(HANDED.glob("*/*")):
        text = path.read_text("utf-8")
        name = recognise(text, path.name).name
        try:
            parse(text, path.name)
            how = "loaded"
        except TopologyError:
            how = "refused"
        done[COUNTED_AS.get(name, name)][how] += 1
    said = {name: {"loaded": int(row[1]), "refused": int(row[2])} for name, row in table().items()}
    assert {name: {how: count[how] for how in ("loaded", "refused")} for name, count in done.items()} == said
