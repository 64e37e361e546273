"""Times topoccl, Gloo, Open MPI and a plain memory copy side by side: ``mpirun -n 2 python bench/compare.py all_reduce -b 4 -e 256M``.

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
from topoccl.topology.units import format_size, parse_size, parse_time


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="compare.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("collective", choices=COLLECTIVES)
    parser.add_argument("-b", "--minbytes", type=parse_size, default=4, help="smallest size (4)")
    parser.add_argument("-e", "--maxbytes", type=parse_size, default=64 << 20, help="largest size (64M)")
    parser.add_argument("-f", "--stepfactor", type=int, default=4, help="factor between sizes (4)")
    parser.add_argument("--batches", type=int, default=7, help="batches per contender and size (7)")
    parser.add_argument("--batch-time", type=parse_time, default=0.02, help="aim for batches this long (20ms)")
    parser.add_argument("--without", default="", help="contenders to leave out, separated by commas")
    parser.add_argument("-J", "--output_file", help="also write the results as JSON")
    parser.add_argument("--plot", help="also draw times against sizes, both logarithmic, into this PNG or SVG file")
    args = parser.parse_args()
    if args.stepfactor < 2 or args.minbytes > args.maxbytes or args.batches < 1:
        parser.error("expected -f of at least 2, -b at most -e, and at least 1 batch")
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
            "copy": lambda _: CopyContender(self.ranks),
        }
        if "OMPI_COMM_WORLD_RANK" not in os.environ:
            left_out = left_out | {"mpi"}
        self.contenders = [make(name) for name, make in known.items() if name not in left_out]

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


def plot(path: str, collective: str, rows: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for name in rows[0]["seconds"]:
        axes.plot([r["bytes"] for r in rows], [r["seconds"][name] * 1e6 for r in rows], marker="o", markersize=3, label=name)
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="microseconds", title=f"{collective}, {rows[0]['ranks']} ranks")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    args = arguments()
    comparison = Comparison({name for name in args.without.split(",") if name})
    rows = []
    if comparison.rank == 0:
        names = [c.name for c in comparison.contenders]
        print(f"# {args.collective}, {comparison.ranks} ranks, median of {args.batches} alternating batches, slowest rank")
        columns = " ".join(f"{name + ' us':>16}" for name in names)
        print(f"{'size':>8} {columns} {'gloo/topoccl':>13} {'mpi/comm.':>10} {'copy/topoccl':>13}  algorithm")
    size = args.minbytes
    while size <= args.maxbytes:
        times = comparison.run(args.collective, size, args.batches, args.batch_time)
        choice = comparison.communicator.last_choice
        label = choice.schedule.label if choice else ""
        rows.append({"bytes": size, "ranks": comparison.ranks, "seconds": times, "algorithm": label})
        if comparison.rank == 0:
            cells = " ".join(f"{seconds * 1e6:16.1f}" for seconds in times.values())
            ratios = (
                f"{ratio(times, 'gloo', 'topoccl'):>13} {ratio(times, 'mpi', 'communicator'):>10} {ratio(times, 'copy', 'topoccl'):>13}"
            )
            print(f"{format_size(size):>8} {cells} {ratios}  {label} x{comparison.communicator.last_segments}", flush=True)
        size *= args.stepfactor
    if comparison.rank == 0:
        if args.output_file:
            with open(args.output_file + ".tmp", "w") as file:
                json.dump({"collective": args.collective, "rows": rows}, file, indent=1)
            os.replace(args.output_file + ".tmp", args.output_file)
        if args.plot:
            plot(args.plot, args.collective, rows)
    comparison.communicator.close()
    comparison.dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
