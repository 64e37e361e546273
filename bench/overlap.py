"""Times what computing and communicating at once cost each other, with topoccl and Gloo in turns.

``python bench/overlap.py products 4M`` (2 hosts of 1 rank): matrix products in the main thread while an asynchronous all_reduce runs,
against the same products without one. ``python bench/overlap.py ddp``: steps of DistributedDataParallel. Both under mpirun or torchrun.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from topoccl.bench.suite.options import checked
from topoccl.topology.units import format_size, format_time, parse_size, parse_time

WIDTH = 192  # of the matrices: a product takes a fraction of a millisecond, so that other threads get their turns between two
PEERS = ("topoccl", "gloo")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="overlap.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("products", "ddp"))
    parser.add_argument("size", nargs="?", type=checked(parse_size), default="4M", help="bytes of the all_reduce, or of all gradients (4M)")
    parser.add_argument("--batches", type=int, default=7, help="batches of each, in turns; medians count (7)")
    parser.add_argument("--steps", type=int, default=3, help="steps of a batch (3)")
    parser.add_argument("--bucket", type=checked(parse_size), default="1M", help="bytes of a bucket of gradients (1M)")
    parser.add_argument("--share", type=float, default=0.7, help="products take so much of the time of an all_reduce (0.7)")
    parser.add_argument("--compute", type=checked(parse_time), help="products take so long, whatever the all_reduce takes")
    parser.add_argument("-J", "--output_file", help="also write the results as JSON")
    return parser.parse_args()


class Job:
    """The groups of both backends, and means to keep batches apart."""

    def __init__(self) -> None:
        import torch.distributed as dist

        import topoccl

        assert topoccl.__version__  # the import makes the backend known
        dist.init_process_group("topoccl")
        self.dist = dist
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.quiet = dist.new_group(backend="gloo")
        self.groups = {"topoccl": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}

    def slowest(self, seconds: float) -> float:
        import torch

        value = torch.tensor([seconds], dtype=torch.float64)
        self.dist.all_reduce(value, op=self.dist.ReduceOp.MAX, group=self.quiet)
        return float(value)

    def mean(self, seconds: float) -> float:
        import torch

        value = torch.tensor([seconds], dtype=torch.float64)
        self.dist.all_reduce(value, group=self.quiet)
        return float(value) / self.ranks


def products(job: Job, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the products alone and during an all_reduce of each peer, mean over ranks; and of the all_reduce itself."""
    import torch

    dist, data = job.dist, torch.ones(max(args.size // 4, 1))
    left, right, out = (torch.rand(WIDTH, WIDTH) for _ in range(3))

    def compute(times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            torch.mm(left, right, out=out)
        return time.perf_counter() - start

    def once(peer: str | None, times: int) -> tuple[float, float, float]:
        """Mean seconds of the products, those of all by the slowest rank, and mean processor time of the other threads meanwhile."""
        dist.barrier(group=job.quiet)
        start, others = time.perf_counter(), time.process_time() - time.thread_time()
        work = None if peer is None else dist.all_reduce(data, group=job.groups[peer], async_op=True)
        computing = compute(times)
        if work is not None:
            work.wait()
        others = time.process_time() - time.thread_time() - others
        return job.mean(computing), job.slowest(time.perf_counter() - start), job.mean(others)

    for peer in PEERS:
        once(peer, 0)
    calls = {peer: once(peer, 0)[1] for peer in PEERS}
    compute(20)
    one = job.slowest(compute(200) / 200)
    aim = args.compute if args.compute is not None else args.share * min(calls.values())
    times = max(1, round(aim / one))
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ("alone", *PEERS)}
    for _ in range(args.batches):
        for name, found in rows.items():
            found.append(once(None if name == "alone" else name, times))
    seconds, whole, threads = ({name: statistics.median(row[at] for row in found) for name, found in rows.items()} for at in range(3))
    # Neighbours in time are compared: the speed of a machine drifts.
    lost = {peer: statistics.median(a[0] - b[0] for a, b in zip(rows[peer], rows["alone"], strict=True)) for peer in PEERS}
    if job.rank == 0:
        print(f"# {times} products in the main thread during an all_reduce of {format_size(args.size)}, {job.ranks} ranks")
        print(f"alone {format_time(seconds['alone'])}")
        for peer in PEERS:
            share = lost[peer] / seconds["alone"]
            print(
                f"{peer:<8} products {format_time(seconds[peer])}, {share:+.1%}; with the all_reduce {format_time(whole[peer])}, "
                f"an all_reduce by itself {format_time(calls[peer])}; processor time of other threads {format_time(threads[peer])}"
            )
        print(
            f"loss of topoccl / loss of gloo: {lost['topoccl'] / lost['gloo']:.2f}" if lost["gloo"] > 0 else "gloo loses nothing",
            flush=True,
        )
    return {
        "alone": seconds["alone"],
        "products": {peer: seconds[peer] for peer in PEERS},
        "whole": whole,
        "calls": calls,
        "lost": lost,
        "threads": threads,
    }


def ddp(job: Job, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds per step of each peer, and without communication."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    layers, width = 8, 1
    while (width + 1) ** 2 * layers * 4 <= args.size:
        width += 1
    samples = torch.rand(16, width)

    def model() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))

    def stepper(net: Any) -> Callable[[], None]:
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)

        def step() -> None:
            optimizer.zero_grad()
            net(samples).square().mean().backward()
            optimizer.step()

        return step

    steppers = {"alone": stepper(model())}
    for peer in PEERS:
        net = DistributedDataParallel(model(), process_group=job.groups[peer], bucket_cap_mb=args.bucket / 2**20)
        steppers[peer] = stepper(net)
    rows: dict[str, list[float]] = {name: [] for name in steppers}
    for batch in range(args.batches + 1):
        for name, step in steppers.items():
            job.dist.barrier(group=job.quiet)
            start = time.perf_counter()
            for _ in range(args.steps if batch else 3):  # the first steps plan, and sort the buckets
                step()
            seconds = job.slowest((time.perf_counter() - start) / args.steps)
            if batch:
                rows[name].append(seconds)
    medians = {name: statistics.median(found) for name, found in rows.items()}
    if job.rank == 0:
        gradients, bucket = format_size(layers * width * width * 4), format_size(args.bucket)
        print(f"# steps of DistributedDataParallel, {job.ranks} ranks, gradients of {gradients} bytes in buckets of {bucket}")
        print(f"without communication {format_time(medians['alone'])}")
        print(
            "".join(f"{peer:<8} {format_time(medians[peer])}\n" for peer in PEERS)
            + f"gloo / topoccl: {medians['gloo'] / medians['topoccl']:.2f}"
        )
        sys.stdout.flush()
    return {"steps": medians}


def main() -> int:
    args = arguments()
    job = Job()
    found = (products if args.what == "products" else ddp)(job, args)
    if job.rank == 0 and args.output_file:
        Path(args.output_file).write_text(json.dumps({"what": args.what, "bytes": args.size, "ranks": job.ranks, **found}, indent=1))
    job.dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
