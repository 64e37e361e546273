"""The virtual cluster's command line: ``python bench/lab.py run CLUSTER -- COMMAND``, or ``topoccl lab run ...``.

CLUSTER is a topology file or a generator expression such as ``cluster:4x2,net=200Mbit/s``. docs/virtual-cluster.md explains it all.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from topoccl.bench.virtual import LabError, launch, state
from topoccl.bench.virtual.cluster import Cluster, Traffic, check_machine
from topoccl.bench.virtual.launch import LAUNCHERS, PLACEMENTS, Stopped
from topoccl.collectives.errors import one_line
from topoccl.topology import TopologyError
from topoccl.topology.load import load
from topoccl.topology.units import parse_rate

_FAST = parse_rate("1Gbit/s")
_TOPOLOGY_VARIABLE = "TOPOCCL_TOPO_FILE"


class _Parser(argparse.ArgumentParser):
    """Takes everything after the first ``--`` as it is, as the command (argparse would look into it)."""

    takes_command = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(args)
        command: list[str] = []
        if "--" in words:
            at = words.index("--")
            words, command = words[:at], words[at + 1 :]
        parsed, rest = super().parse_known_args(words, namespace)
        if self.takes_command and not command:
            self.error("no command; write it after --")
        if command and not self.takes_command:
            self.error(f"takes no command, but {' '.join(command)!r} follows --")
        if self.takes_command:
            parsed.argv = command
        return parsed, rest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands of ``lab``; :func:`run` takes what they parse to."""
    parser.add_argument(
        "--state-dir", type=Path, default=state.DEFAULT_DIRECTORY, help="where clusters are recorded (default: %(default)s)"
    )
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)

    sub = commands.add_parser(
        "run", help="build a cluster, run a command's ranks across it, take it down", usage="lab run [options] CLUSTER -- COMMAND ..."
    )
    sub.takes_command = True
    sub.add_argument("cluster", metavar="CLUSTER", help="a topology file, a generator expression, or the id of a cluster that is up")
    sub.add_argument("-n", dest="ranks", type=int, help="number of ranks (default: one for each slot)")
    sub.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        default="mpirun",
        help="env: plain processes with RANK and so on; once: the command itself, on the first rank's host (default: %(default)s)",
    )
    sub.add_argument(
        "--placement",
        default="declared",
        help=f"which rank sits where: {', '.join(PLACEMENTS)}, or slot numbers such as 0,2,1,3 (default: as the topology lists its slots)",
    )
    sub.add_argument("-x", dest="extra", action="append", default=[], metavar="NAME[=VALUE]", help="hand a variable to the ranks")
    sub.add_argument("--no-topology", action="store_true", help=f"do not set {_TOPOLOGY_VARIABLE}: the program has to discover")
    sub.add_argument("--count-bytes", action="store_true", help="print what each link carried meanwhile")
    sub.add_argument("--bytes-json", type=Path, metavar="FILE", help="write what each link carried meanwhile")

    sub = commands.add_parser("up", help="build a cluster and leave it up")
    sub.add_argument("cluster", metavar="CLUSTER", help="a topology file or a generator expression")

    sub = commands.add_parser(
        "exec", help="run a command on one host of a cluster that is up", usage="lab exec [--lab ID] HOST -- COMMAND ..."
    )
    sub.takes_command = True
    sub.add_argument("--lab", metavar="ID", help="which cluster (default: the only one)")
    sub.add_argument("host", metavar="HOST")

    sub = commands.add_parser("status", help="show clusters, and what was left over of some")
    sub.add_argument("--bytes", action="store_true", help="also what each link has carried")
    sub.add_argument("--bytes-json", type=Path, metavar="FILE", help="write what each link of the one cluster that is up has carried")

    sub = commands.add_parser("down", help="take clusters down")
    sub.add_argument("ids", nargs="*", metavar="ID", help="which (default: the only one that is up)")
    sub.add_argument("--all", action="store_true", help="all that are up, and all leftovers; not those of a lab run in progress")


def run(args: argparse.Namespace) -> int:
    """The exit status of the command that was run; 2 with one line on standard error for what cannot be done; 0."""
    actions = {"run": _run, "up": _up, "exec": _exec, "status": _status, "down": _down}
    try:
        check_machine()
        with _signals():
            return actions[args.action](args)
    except (LabError, TopologyError, OSError) as error:
        print(f"lab: error: {one_line(error)}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        return 128 + stopped.signum


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lab", description="Virtual clusters of network namespaces.")
    add_arguments(parser)
    return run(parser.parse_args(argv))


@contextmanager
def _signals() -> Iterator[None]:
    """Turn signals that end a program into :class:`Stopped`, so that everything is cleaned up."""

    def stop(signum: int, frame: object) -> NoReturn:
        raise Stopped(signum)

    signums = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {signum: signal.signal(signum, stop) for signum in signums}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _run(args: argparse.Namespace) -> int:
    if any(r.id == args.cluster and r.state == "up" for r in state.records(args.state_dir)):
        return _run_on(_open(args, args.cluster), args)
    _say_leftovers(args)
    with _create(args, persistent=False) as cluster:
        return _run_on(cluster, args)


def _create(args: argparse.Namespace, persistent: bool) -> Cluster:
    topology = load(args.cluster)
    cluster = Cluster.create(topology, _absolute(args.cluster), persistent=persistent, base=args.state_dir)
    fastest = max((end.rate for end in cluster.plan.ends()), default=0)
    if fastest > _FAST:
        _warn(
            f"links of up to {fastest * 8e-9:g} Gbit/s: this machine's cores will be slower than they; rates of 50 to 400 Mbit/s tell more"
        )
    return cluster


def _absolute(cluster: str) -> str:
    """A file by its full path, an expression as it is."""
    return str(Path(cluster).resolve()) if Path(cluster).is_file() else cluster


def _run_on(cluster: Cluster, args: argparse.Namespace) -> int:
    plan = cluster.plan
    order = launch.slot_order(plan.topology, args.placement, args.ranks)
    env = launch.environment(plan, cluster.directory, args.extra)
    if args.no_topology:
        env.pop(_TOPOLOGY_VARIABLE, None)
    else:
        env.setdefault(_TOPOLOGY_VARIABLE, cluster.record.topology)
    (cluster.directory / "ranks").write_text(launch.rank_file(plan, order))
    tasks = launch.tasks(args.launcher, plan, order, args.argv, env, cluster.directory, args.extra)
    before = cluster.traffic()
    status = launch.supervise([(cluster.enter(task.host, task.argv), task.env) for task in tasks])
    carried = [now.since(then) for then, now in zip(before, cluster.traffic(), strict=True)]
    if args.count_bytes:
        print(_table(carried), file=sys.stderr)
    if args.bytes_json is not None:
        _write_json(args.bytes_json, cluster, carried)
    dropped = [row for row in carried if row.drops]
    if dropped:
        worst = max(dropped, key=lambda row: row.drops)
        _warn(f"{sum(row.drops for row in dropped)} packets dropped ({worst.drops} on {worst.link}): times show TCP's recovery")
    return status


def _up(args: argparse.Namespace) -> int:
    _say_leftovers(args)
    cluster = _create(args, persistent=True)
    print(f"cluster {cluster.record.id} is up: {len(cluster.plan.hosts)} hosts, {cluster.plan.topology.num_ranks} slots")
    for host in cluster.plan.hosts:
        print(f"  {host.name:<12} {host.address:<15} {host.device}")
    return 0


def _exec(args: argparse.Namespace) -> int:
    cluster = _open(args, args.lab)
    argv = cluster.enter(args.host, args.argv)
    sys.stdout.flush()
    os.execvpe(argv[0], argv, launch.environment(cluster.plan, cluster.directory))


def _status(args: argparse.Namespace) -> int:
    records = state.records(args.state_dir)
    if args.bytes_json is not None:
        cluster = _open(args, None)
        _write_json(args.bytes_json, cluster, cluster.traffic())
        return 0
    if not records:
        print("no clusters")
    for record in records:
        if record.state == "leftover":
            print(f"{record.id}  leftover  {record.topology}  (topoccl lab down --all removes it)")
            continue
        if record.state == "starting":
            print(f"{record.id}  starting  {record.topology}")
            continue
        cluster = Cluster.open(record, args.state_dir)
        hosts = ", ".join(f"{host.name} {host.address}" for host in cluster.plan.hosts)
        print(f"{record.id}  {record.state}  {record.topology}  {len(cluster.processes())} processes  {hosts}")
        if args.bytes:
            print(_table(cluster.traffic()))
    return 0


def _down(args: argparse.Namespace) -> int:
    records = state.records(args.state_dir)
    if args.all:
        chosen = [r for r in records if r.state in ("up", "leftover")]
    elif args.ids:
        unknown = set(args.ids) - {r.id for r in records}
        if unknown:
            raise LabError(f"no cluster {min(unknown)!r}; known: {', '.join(r.id for r in records) or 'none'}")
        chosen = [r for r in records if r.id in args.ids]
    else:
        chosen = [_only(records)]
    for record in chosen:
        state.remove(args.state_dir, record)
        print(f"cluster {record.id} is down")
    return 0


def _open(args: argparse.Namespace, lab: str | None) -> Cluster:
    records = state.records(args.state_dir)
    if lab is None:
        return Cluster.open(_only(records), args.state_dir)
    found = [r for r in records if r.id == lab and r.state == "up"]
    if not found:
        raise LabError(f"cluster {lab!r} is not up; up: {', '.join(r.id for r in records if r.state == 'up') or 'none'}")
    return Cluster.open(found[0], args.state_dir)


def _only(records: Sequence[state.Record]) -> state.Record:
    up = [record for record in records if record.state == "up"]
    if len(up) != 1:
        raise LabError(f"which cluster? {len(up)} are up: {', '.join(r.id for r in up)}" if up else "no cluster is up")
    return up[0]


def _say_leftovers(args: argparse.Namespace) -> None:
    left = [record.id for record in state.records(args.state_dir) if record.state == "leftover"]
    if left:
        _warn(f"left over from a laboratory that was killed: {', '.join(left)}; `topoccl lab down --all` removes it")


def _table(rows: Sequence[Traffic]) -> str:
    widths = (
        [max(len(text) for text in column) for column in zip(*(_cells(row) for row in rows), ("link", "at", "Mbit/s"), strict=True)]
        if rows
        else [4, 2, 6]
    )
    lines = [f"{'link':<{widths[0]}}  {'at':<{widths[1]}}  {'Mbit/s':>{widths[2]}}  {'bytes':>12}  {'packets':>9}  {'drops':>6}"]
    for row in rows:
        link, at, rate = _cells(row)
        lines.append(f"{link:<{widths[0]}}  {at:<{widths[1]}}  {rate:>{widths[2]}}  {row.bytes:>12}  {row.packets:>9}  {row.drops:>6}")
    return "\n".join(lines)


def _cells(row: Traffic) -> tuple[str, str, str]:
    return row.link, f"{row.space}:{row.device}", f"{row.rate * 8e-6:g}"


def _write_json(file: Path, cluster: Cluster, rows: Sequence[Traffic]) -> None:
    file.write_text(json.dumps({"topology": cluster.record.topology, "links": [asdict(row) for row in rows]}, indent=1) + "\n")


def _warn(text: str) -> None:
    print(f"lab: warning: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
