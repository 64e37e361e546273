"""The report as text: nccl-tests' columns, then the prediction and the algorithm. Every line but the rows begins with ``#``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topoccl.bench.suite.options import Options
from topoccl.bench.suite.results import Row, Timing, average_busbw, reasons, total_wrong


@dataclass(frozen=True)
class Device:
    """Where a rank runs: ``cores`` are those it may use."""

    rank: int
    pid: int
    hostname: str
    cores: tuple[int, ...]


@dataclass(frozen=True)
class Setting:
    """What the table was measured on: texts for people."""

    version: str
    transport: str
    topology: str
    devices: tuple[Device, ...]


def core_list(cores: Sequence[int]) -> str:
    """``0-3,8``."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in runs)


def heading(options: Options, setting: Setting) -> list[str]:
    """What comes before the table."""
    o = options
    step = f"{o.stepfactor}(factor)" if o.stepfactor > 1 else f"{o.stepbytes}(bytes)"
    lines = [
        f"# topoccl {setting.version}, {o.operation.name}, calls of {o.backend}",
        f"# nRanks {len(setting.devices)} minBytes {o.minbytes} maxBytes {o.maxbytes} step: {step} "
        f"warmup iters: {o.warmup_iters} iters: {o.iters} agg iters: {o.agg_iters} validation: {o.check} seed: {o.seed}",
        "#",
        "# Using devices",
    ]
    lines += [f"#  Rank {d.rank:2} Group  0 Pid {d.pid:6} on {d.hostname:>10} device cpu [{core_list(d.cores)}]" for d in setting.devices]
    lines += [f"# Transport: {setting.transport}", f"# Topology: {setting.topology}", "#"]
    half = f"  {'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}"
    units = f"  {'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>6}"
    lines += [
        f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}           out-of-place                       in-place".rstrip(),
        f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}{half}{half}  {'model':>7}  {'time/':>6}  algorithm",
        f"# {'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}{units}{units}  {'(us)':>7}  {'model':>6}".rstrip(),
    ]
    return lines


def fixed(value: float, width: int) -> str:
    """``value`` with as many decimals, up to two, as fit into ``width`` characters."""
    for decimals in (2, 1, 0):
        text = f"{value:{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"


def row_start(row: Row) -> str:
    """The columns that are known before anything has been measured."""
    return f"{row.size:12}  {row.count:12}  {row.type:>8}  {row.redop:>6}  {row.root:6}"


def row_end(row: Row) -> str:
    """The other columns."""
    model, slowdown, label = "N/A", "N/A", "-"
    if row.chosen is not None:
        model, label = fixed(row.chosen.predicted * 1e6, 7), row.chosen.label
        slowdown = "N/A" if row.slowdown is None else fixed(row.slowdown, 6)
    return f"{_half(row, row.out_of_place)}{_half(row, row.in_place)}  {model:>7}  {slowdown:>6}  {label}"


def _half(row: Row, timing: Timing | None) -> str:
    if timing is None:
        return f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
    wrong = f"{'N/A':>6}" if timing.wrong is None else f"{float(timing.wrong):6g}"
    return f"  {fixed(timing.seconds * 1e6, 7)}  {fixed(row.algbw(timing), 6)}  {fixed(row.busbw(timing), 6)}  {wrong}"


def footer(rows: Sequence[Row]) -> list[str]:
    """What comes after the table."""
    wrong = total_wrong(rows)
    lines = [
        f"# {'Out of bounds values':<20} : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# {'Avg bus bandwidth':<20} : {average_busbw(rows):g}",
        "#",
    ]
    why = reasons(rows)
    return [*lines, "# Choices", *(f"#  {line}" for line in why), "#"] if why else lines
