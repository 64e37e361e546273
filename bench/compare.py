"""Times topoccl, Gloo, Open MPI and a plain memory copy side by side: ``mpirun -n 2 python bench/compare.py all_reduce -b 4 -e 256M``.

Several collectives may be named, separated by commas, or ``all``.

All contenders run in the same processes, in alternating batches of back-to-back calls; a batch's time is that of its slowest
rank, and what is shown is the median over batches. Between batches ranks wait in Gloo, which sleeps: nobody who is not
being timed spins.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from topoccl.bench.suite.contenders import COLLECTIVES, CommunicatorContender, CopyContender, MpiContender, TorchContender
from topoccl.bench.suite.options import checked, integer
from topoccl.topology.units import format_size, format_time, parse_size, parse_time


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="compare.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("collectives", help=f"one or more of {', '.join(COLLECTIVES)}, separated by commas, or all")
    parser.add_argument("-b", "--minbytes", type=checked(parse_size), default=4, help="smallest size (4)")
    parser.add_argument("-e", "--maxbytes", type=checked(parse_size), default=64 << 20, help="largest size (64M)")
    parser.add_argument("-f", "--stepfactor", type=integer(2), default=4, help="factor between sizes (4)")
    parser.add_argument("--batches", type=integer(1), default=7, help="batches per contender and size (7)")
    parser.add_argument("--batch-time", type=checked(parse_time), default=0.02, help="aim for batches this long (20ms)")
    parser.add_argument("--without", default="", help="contenders to leave out, separated by commas")
    parser.add_argument("-J", "--output_file", help="also write the results as JSON")
    parser.add_argument("--plot", help="also draw times against sizes, both logarithmic, into this PNG or SVG file")
    args = parser.parse_args()
    args.collectives = list(COLLECTIVES) if args.collectives == "all" else args.collectives.split(",")
    unknown = [name for name in args.collectives if name not in COLLECTIVES]
    if unknown:
        parser.error(f"unknown collective {unknown[0]!r}; known: {', '.join(COLLECTIVES)}, all")
    if not args.minbytes:
        parser.error("-b 0: no factor leaves it; expected at least 1 byte")
    if args.minbytes > args.maxbytes:
        parser.error(f"-b {format_size(args.minbytes)} is larger than -e {format_size(args.maxbytes)}")
    return args


class Comparison:
    """The contenders of one job and the group over which their batches are kept apart."""

    def __init__(self, left_out: set[str]) -> None:
        import torch.distributed as dist

        import topoccl

        dist.init_process_group("topoccl")
        self.dist = dist
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.quiet = dist.new_group(backend="gloo")
        self.communicator: Any = topoccl.init(transport="auto")
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1 and self.ranks <= len(cores):
            os.sched_setaffinity(0, {cores[self.rank % len(cores)]})
        known: dict[str, Any] = {
            "topoccl": lambda name: TorchContender(name, None),
            "gloo": lambda name: TorchContender(name, self.quiet),
            "communicator": lambda name: CommunicatorContender(name, self.communicator),
            "mpi": MpiContender,
            "copy": lambda _: CopyContender(self.rank, self.ranks),
        }
        if "OMPI_COMM_WORLD_RANK" not in os.environ:
            left_out = left_out | {"mpi"}
        self.contenders = [make(name) for name, make in known.items() if name not in left_out]

    @property
    def label(self) -> str:
        """What the communicator's last call ran."""
        choice = self.communicator.last_choice
        if choice is None:
            return ""
        return f"{choice.schedule.label} {'pulled' if choice.pulls else f'x{self.communicator.last_segments}'}"

    def slowest(self, seconds: float) -> float:
        import torch

        value = torch.tensor([seconds], dtype=torch.float64)
        self.dist.all_reduce(value, op=self.dist.ReduceOp.MAX, group=self.quiet)
        return float(value)

    def batch(self, call: Any, calls: int) -> float:
        """Seconds per call of one batch, of the slowest rank."""
        self.dist.barrier(group=self.quiet)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return self.slowest((time.perf_counter() - start) / calls)

    def run(self, collective: str, nbytes: int, batches: int, batch_time: float) -> dict[str, float]:
        """The median seconds of each contender."""
        calls = [contender.prepare(collective, nbytes) for contender in self.contenders]
        lengths = []
        for call in calls:
            self.batch(call, 2)
            lengths.append(max(1, min(2000, int(batch_time / max(self.batch(call, 2), 1e-7)))))
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(batches):
            for call, length, row in zip(calls, lengths, times, strict=True):
                row.append(self.batch(call, length))
        return {c.name: statistics.median(row) for c, row in zip(self.contenders, times, strict=True)}


def ratio(times: dict[str, float], peer: str, ours: str) -> str:
    return f"{times[peer] / times[ours]:.2f}" if peer in times and ours in times else "-"


def plot(path: str, rows: list[dict[str, Any]]) -> None:
    """One panel per collective: time against size, both logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    names = list(dict.fromkeys(row["collective"] for row in rows))
    columns = min(len(names), 3)
    lines = -(-len(names) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(max(7.0, 4.6 * columns), 4.6 * lines), squeeze=False, layout="constrained")
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        mine = [row for row in rows if row["collective"] == name]
        for contender in mine[0]["seconds"]:
            dashed = {"linestyle": "--", "color": "gray"} if contender == "copy" else {"marker": "o", "markersize": 3}
            axis.plot([r["bytes"] for r in mine], [r["seconds"][contender] for r in mine], label=contender, **dashed)
        axis.set(xscale="log", yscale="log", xlabel="size", ylabel="time", title=f"{name}, {mine[0]['ranks']} ranks")
        axis.set_xscale("log", base=2)
        sizes = [r["bytes"] for r in mine]
        axis.set_xticks(sizes[:: max(1, len(sizes) // 6)])
        axis.xaxis.set_major_formatter(FuncFormatter(lambda size, _: format_size(round(size))))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: format_time(seconds)))
        axis.minorticks_off()
        axis.grid(True, alpha=0.3)
    shown, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(shown, labels, loc="outside lower center", ncols=len(labels), frameon=False)  # where it covers no line
    figure.savefig(path, dpi=120)


RATIOS = (("gloo/topoccl", "gloo", "topoccl"), ("mpi/comm.", "mpi", "communicator"), ("copy/topoccl", "copy", "topoccl"),
          ("copy/comm.", "copy", "communicator"))  # fmt: skip


def table(comparison: Comparison, collective: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures one collective; rank 0 prints a line per size."""
    first = comparison.rank == 0
    if first:
        names = [c.name for c in comparison.contenders]
        print(f"# {collective}, {comparison.ranks} ranks, median of {args.batches} alternating batches, slowest rank")
        print(f"{'size':>8}", *(f"{name + ' us':>16}" for name in names), *(f"{title:>13}" for title, _, _ in RATIOS), " algorithm")
    rows = []
    size = args.minbytes
    while size <= args.maxbytes:
        times = comparison.run(collective, size, args.batches, args.batch_time)
        label = comparison.label if collective != "sendrecv" else ""
        rows.append({"collective": collective, "bytes": size, "ranks": comparison.ranks, "seconds": times, "algorithm": label})
        if first:
            cells = [f"{seconds * 1e6:16.1f}" for seconds in times.values()]
            print(f"{format_size(size):>8}", *cells, *(f"{ratio(times, a, b):>13}" for _, a, b in RATIOS), f" {label}", flush=True)
        size *= args.stepfactor
    return rows


def main() -> int:
    args = arguments()
    comparison = Comparison({name for name in args.without.split(",") if name})
    rows = [row for collective in args.collectives for row in table(comparison, collective, args)]
    if comparison.rank == 0:
        if args.output_file:
            with open(args.output_file + ".tmp", "w") as file:
                json.dump({"collectives": args.collectives, "rows": rows}, file, indent=1)
            os.replace(args.output_file + ".tmp", args.output_file)
        if args.plot:
            plot(args.plot, rows)
    comparison.communicator.close()
    comparison.dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
