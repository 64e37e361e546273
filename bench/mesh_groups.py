"""Times the groups of a 2-D mesh that run at once: ``mpirun -n 8 python bench/mesh_groups.py --mesh 4x2 all_reduce 4M``.

Rank r is in row r // COLUMNS and column r % COLUMNS. Each group first runs alone, then all run at once: each rank has a thread for its
row and one for its column. Shown are the rate of each group (bytes of calls per second), how much slower it is than alone, and what the
network interface of the busiest host carried meanwhile, which --link puts in relation to the link's rate. With --gloo, Gloo does the same
in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from topoccl.bench.suite.contenders import TorchContender
from topoccl.bench.suite.options import checked
from topoccl.topology.units import format_rate, format_size, format_time, parse_rate, parse_size, parse_time

COUNTERS = Path("/sys/class/net")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mesh_groups.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("collective", help="of every group")
    parser.add_argument("size", type=checked(parse_size), help="bytes of a call, as nccl-tests counts them")
    parser.add_argument("--mesh", required=True, metavar="ROWSxCOLUMNS", help="such as 4x2")
    parser.add_argument("--which", default="rows,columns", help="rows, columns, or both (rows,columns)")
    parser.add_argument("--time", type=checked(parse_time), default=1.0, help="how long each group is to run alone (1s)")
    parser.add_argument("--gloo", action="store_true", help="also with Gloo, in turns")
    parser.add_argument("--batches", type=int, default=3, help="how often; the median counts (3)")
    parser.add_argument("--link", type=checked(parse_rate), help="the rate of a host's link, such as 200Mbit/s")
    parser.add_argument("--interface", default="eth0", help="the network interface that is watched (eth0)")
    parser.add_argument("-J", "--output_file", help="also write the results as JSON")
    args = parser.parse_args()
    try:
        args.rows, args.columns = map(int, args.mesh.lower().split("x"))
    except ValueError:
        parser.error(f"--mesh {args.mesh}: expected ROWSxCOLUMNS, such as 4x2")
    args.which = args.which.split(",")
    if not set(args.which) <= {"rows", "columns"}:
        parser.error("--which: expected rows, columns or rows,columns")
    return args


class Meshes:
    """The groups of one backend, and this rank's calls on its own ones."""

    def __init__(self, backend: str, args: argparse.Namespace) -> None:
        import torch.distributed as dist

        rank, ranks = dist.get_rank(), dist.get_world_size()
        rows = [list(range(row * args.columns, (row + 1) * args.columns)) for row in range(args.rows)]
        columns = [list(range(column, ranks, args.columns)) for column in range(args.columns)]
        self.backend = backend
        self.members: dict[str, list[int]] = {}
        self.calls: dict[str, Any] = {}
        for kind, lists in (("rows", rows), ("columns", columns)):
            for at, members in enumerate(lists):
                group = dist.new_group(members, backend=backend)
                name = f"{kind[:-1]} {at}"
                if kind in args.which:
                    self.members[name] = members
                    if rank in members:
                        self.calls[name] = TorchContender(name, group).prepare(args.collective, args.size)


class Bench:
    """One job: measures, with barriers and exchanges over Gloo, which sleeps while it waits."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch.distributed as dist

        self.args, self.dist = args, dist
        self.rank = dist.get_rank()
        self.quiet = dist.new_group(backend="gloo")

    def exchange(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.dist.get_world_size()
        self.dist.all_gather_object(found, value, group=self.quiet)
        return found

    def run(self, meshes: Meshes, counts: dict[str, int]) -> tuple[dict[str, float], float, float]:
        """Seconds of each group named in ``counts``, which make so many calls at once; of all; and bytes/s of the busiest interface."""
        mine = {name: call for name, call in meshes.calls.items() if name in counts}
        taken: dict[str, float] = {}
        self.dist.barrier(group=self.quiet)
        start, before = time.perf_counter(), self._carried()

        def work(name: str) -> None:
            for _ in range(counts[name]):
                mine[name]()
            taken[name] = time.perf_counter() - start

        threads = [threading.Thread(target=work, args=(name,)) for name in mine]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        whole = time.perf_counter() - start
        carried = [now - then for now, then in zip(self._carried(), before, strict=True)]
        everyone = self.exchange((taken, whole, max(carried), socket.gethostname()))
        slowest = {name: max(taken[name] for taken, *_ in everyone if name in taken) for name in counts}
        longest = max(whole for _, whole, _, _ in everyone)
        return slowest, longest, max(most for _, _, most, _ in everyone) / longest

    def _carried(self) -> tuple[int, int]:
        folder = COUNTERS / self.args.interface / "statistics"
        if not folder.is_dir():
            return 0, 0
        return int((folder / "tx_bytes").read_text()), int((folder / "rx_bytes").read_text())

    def alone(self, meshes: Meshes) -> dict[str, float]:
        """Seconds per call of each group when no other one runs."""
        found = {}
        for name in meshes.members:
            self.run(meshes, {name: 2})
            once = self.run(meshes, {name: 2})[0][name] / 2
            calls = max(2, min(500, round(0.3 * self.args.time / once)))
            found[name] = self.run(meshes, {name: calls})[0][name] / calls
        return found

    def measure(self, meshes: Meshes, alone: dict[str, float]) -> dict[str, Any]:
        counts = {name: max(2, round(self.args.time / seconds)) for name, seconds in alone.items()}
        taken, whole, carried = self.run(meshes, counts)
        each = {name: seconds / counts[name] for name, seconds in taken.items()}
        return {"backend": meshes.backend, "seconds": each, "whole": whole, "carried": carried}


def median(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The batch with the middle time."""
    return sorted(rows, key=lambda row: row["whole"])[len(rows) // 2]


def show(args: argparse.Namespace, meshes: Meshes, alone: dict[str, float], found: dict[str, Any]) -> None:
    print(f"# {meshes.backend}: {args.collective} of {format_size(args.size)} in the groups of a mesh of {args.mesh}, all at once")
    print(f"{'group':<10} {'ranks':<18} {'alone':>9} {'at once':>9} {'slower':>7} {'rate':>10}")
    for name, members in meshes.members.items():
        seconds = found["seconds"][name]
        cells = (format_time(alone[name]), format_time(seconds), f"{seconds / alone[name]:.2f}", format_rate(args.size / seconds))
        print(f"{name:<10} {','.join(map(str, members)):<18} {cells[0]:>9} {cells[1]:>9} {cells[2]:>7} {cells[3]:>10}")
    share = f", {found['carried'] / args.link:.0%} of the link" if args.link else ""
    print(f"the busiest {args.interface} carried {format_rate(max(found['carried'], 1.0))} one way{share}\n", flush=True)


def main() -> int:
    args = arguments()
    import torch.distributed as dist

    import topoccl

    assert topoccl.__version__  # the import makes the backend known
    dist.init_process_group("topoccl")
    if args.rows * args.columns != dist.get_world_size():
        raise SystemExit(f"mesh_groups.py: a mesh of {args.mesh} has {args.rows * args.columns} places, not {dist.get_world_size()}")
    bench = Bench(args)
    everyone = [Meshes(backend, args) for backend in (["topoccl", "gloo"] if args.gloo else ["topoccl"])]
    alone = [bench.alone(meshes) for meshes in everyone]
    batches: list[list[dict[str, Any]]] = [[] for _ in everyone]
    for _ in range(args.batches):
        for meshes, single, rows in zip(everyone, alone, batches, strict=True):
            rows.append(bench.measure(meshes, single))
    if bench.rank == 0:
        results = [median(rows) for rows in batches]
        for meshes, single, found in zip(everyone, alone, results, strict=True):
            show(args, meshes, single, found)
            found["alone"] = single
        if args.output_file:
            Path(args.output_file).write_text(json.dumps({"mesh": args.mesh, "bytes": args.size, "results": results}, indent=1))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
