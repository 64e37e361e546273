"""Writes the tables of docs/torch-matrix.md: what Gloo and topoccl make of each case of torch_matrix.py.

    python tests/collectives/torch_matrix_table.py > docs/torch-matrix.md

Two ranks run case after case. Where one dies or hangs, the case is noted and new ranks go on with the next.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch_matrix import LAYOUTS, MOVING, OPS, REDUCING, Case, applies, cases, has_meaning, run, unexpected
from torch_reference import DTYPES

SIGNS = {"works": "✓", "refused": "r", "wrong": "**w**", "crash": "**c**", "hang": "**h**"}
RANKS = 2
SECONDS = 15.0  # for one case, which takes about one millisecond


def results(backend: str) -> dict[Case, str]:
    """What becomes of each case: the worst of both ranks' results."""
    todo, found = list(cases()), {}
    while todo:
        with tempfile.TemporaryDirectory() as folder:
            done, end = _world(backend, todo, Path(folder))
        found.update(done)
        todo = todo[len(done) :]
        if todo and end:
            found[todo.pop(0)] = end
    return found


def _world(backend: str, todo: list[Case], folder: Path) -> tuple[dict[Case, str], str]:
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            _rank(backend, todo, folder, rank)
        children.append(child)
    files = [folder / f"results{rank}" for rank in range(RANKS)]
    seen, since, end = -1, time.monotonic() + 100, ""
    open_children = set(children)
    while open_children and not end:
        for child in list(open_children):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                open_children.remove(child)
                end = end or ("crash" if status else "")
        lines = sum(len(file.read_text().splitlines()) for file in files if file.exists())
        if lines != seen:
            seen, since = lines, max(since, time.monotonic())
        elif time.monotonic() > since + SECONDS:
            end = "hang"
        time.sleep(0.02)
    for child in open_children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    columns = [file.read_text().splitlines() if file.exists() else [] for file in files]
    rank_of = list(SIGNS)
    worst = [max(pair, key=rank_of.index) for pair in zip(*columns, strict=False)]
    return dict(zip(todo, worst, strict=False)), end


def _rank(backend: str, todo: list[Case], folder: Path, rank: int) -> None:
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        import topoccl  # noqa: F401 - registers the backend

        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        store = dist.FileStore(str(folder / "store"), RANKS)
        dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=60))
        with open(folder / f"results{rank}", "w", buffering=1) as file:
            for case in todo:
                file.write(run(case).partition(":")[0] + "\n")
        status = 0
    finally:
        os._exit(status)


def cell(found: dict[str, dict[Case, str]], group: Iterable[Case]) -> str:
    """One sign per backend: the worst of a group of cases."""
    wanted = list(group)
    if not wanted:
        return ""
    if all(case.op and not has_meaning(case.dtype, case.op) for case in wanted):
        # Nothing but a refusal is right here.
        return " ".join("-" if all(found[b][c] == "refused" for c in wanted) else SIGNS["wrong"] for b in found)
    order = list(SIGNS)
    return " ".join(SIGNS[max((found[b][c] for c in wanted), key=order.index)] for b in found)


def table(first: str, columns: list[str], rows: list[tuple[str, list[str]]]) -> str:
    lines = [f"| {first} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    return "\n".join(lines + [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows])


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def main() -> int:
    found = {backend: results(backend) for backend in ("gloo", "topoccl")}
    everything = list(found["gloo"])
    print(f"""# Collectives, types, reductions and layouts: Gloo and topoccl

Written by `tests/collectives/torch_matrix_table.py` with torch {torch.__version__.partition("+")[0]} on two ranks; each of the
{len(everything)} cases is compared with what one process computes. In each cell the first sign is Gloo's and the second topoccl's:
✓ works, r is refused with an error, **w** the result is wrong or another tensor is overwritten, **c** the process dies, **h** the
call hangs; - has no meaning and is refused, as it should be.

## Types of elements

Collectives that reduce are called with SUM.
""")
    types = []
    for dtype in DTYPES:
        plain = [
            [c for c in everything if c[:2] == (name, dtype) and c.op in ("", "SUM") and c.layout == "plain"]
            for name in (*REDUCING, *MOVING)
        ]
        types.append((short(dtype), [cell(found, group) for group in plain]))
    print(table("", [*REDUCING, *MOVING], types))
    print("\n## Reductions\n\nOf all_reduce. torch.distributed itself refuses PRODUCT of complex elements there.\n")
    ops = [*OPS, "PREMUL_SUM"]
    print(table("", ops, [(short(d), [cell(found, [Case("all_reduce", d, op)]) for op in ops]) for d in DTYPES]))
    print("\n## Layouts\n\nThe worst of float32, bfloat16, uint8 and complex64; an empty cell has no such form.\n")
    rows = []
    for name in (*REDUCING, *MOVING):
        groups = [[c for c in everything if (c.collective, c.layout) == (name, layout)] for layout in LAYOUTS[1:]]
        rows.append((name, [cell(found, g) if applies(name, layout) else "" for g, layout in zip(groups, LAYOUTS[1:], strict=True)]))
    print(table("", list(LAYOUTS[1:]), rows))
    bad = [str(case) for case, result in found["topoccl"].items() if unexpected(case, result)]
    print("\n".join(bad), file=sys.stderr)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
