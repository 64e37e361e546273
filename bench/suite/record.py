"""The report as JSON, with nccl-tests' names where it has them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from topoccl.bench.suite.options import Options
from topoccl.bench.suite.results import Row, Timing, average_busbw, total_wrong
from topoccl.bench.suite.table import Setting
from topoccl.collectives.errors import ConfigError

VERSION = 1
SHOWN_VARIABLES = ("TOPOCCL_", "OMP_NUM_THREADS")


def document(
    options: Options, setting: Setting, rows: Sequence[Row], args: Sequence[str], env: Mapping[str, str], times: tuple[str, str]
) -> dict[str, Any]:
    """Everything about a run. Times of calls are microseconds, bandwidths GB/s, sizes bytes; ``times`` is when it began and ended."""
    o = options
    step = {"step_factor": o.stepfactor} if o.stepfactor > 1 else {"step_bytes": o.stepbytes}
    wrong = total_wrong(rows)
    return {
        "version": VERSION,
        "topoccl_version": setting.version,
        "operation": o.operation.name,
        "start_time": times[0],
        "args": list(args),
        "env": {name: value for name, value in sorted(env.items()) if name.startswith(SHOWN_VARIABLES)},
        "config": {
            "backend": o.backend,
            "ranks": len(setting.devices),
            "minimum_bytes": o.minbytes,
            "maximum_bytes": o.maxbytes,
            **step,
            "warmup_iters": o.warmup_iters,
            "iterations": o.iters,
            "aggregated_iterations": o.agg_iters,
            "validation": o.check,
            "average": o.average,
            "seed": o.seed,
            "transport": setting.transport,
            "topology": setting.topology,
            "devices": [
                {"rank": d.rank, "group": 0, "pid": d.pid, "hostname": d.hostname, "device": "cpu", "cores": list(d.cores)}
                for d in setting.devices
            ],
        },
        "results": [_result(row) for row in rows],
        "out_of_bounds": {"count": wrong, "okay": wrong == 0},
        "average_bus_bandwidth": {"bandwidth": average_busbw(rows)},
        "end_time": times[1],
    }


def _result(row: Row) -> dict[str, Any]:
    chosen = row.chosen
    return {
        "size": row.size,
        "count": row.count,
        "type": row.type,
        "redop": row.redop,
        "root": row.root,
        "out_of_place": _timing(row, row.out_of_place),
        "in_place": _timing(row, row.in_place),
        "algorithm": chosen and chosen.algorithm,
        "segments": chosen and chosen.segments,
        "predicted": chosen and chosen.predicted * 1e6,
        "time_over_predicted": row.slowdown,
        "bound": chosen and chosen.bound * 1e6,
        "reason": chosen and chosen.reason,
    }


def _timing(row: Row, timing: Timing | None) -> dict[str, Any] | None:
    if timing is None:
        return None
    return {"time": timing.seconds * 1e6, "alg_bw": row.algbw(timing), "bus_bw": row.busbw(timing), "nwrong": timing.wrong}


def check_writable(path: str) -> None:
    """Raises ConfigError, before hours of measuring, when a file could not be written at ``path``."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise ConfigError(f"cannot write {path!r}: it is a directory")
    if not os.path.isdir(folder):
        raise ConfigError(f"cannot write {path!r}: there is no directory {folder!r}")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"cannot write {path!r}: directory {folder!r} is not writable")


def write_whole(path: str, content: dict[str, Any]) -> None:
    """Writes JSON to ``path``, all of it or nothing; replaces what is there."""
    partial = f"{path}.{os.getpid()}.tmp"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
        os.replace(partial, path)
    except BaseException:
        if os.path.exists(partial):
            os.unlink(partial)
        raise
