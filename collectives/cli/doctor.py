"""``topoccl doctor``: what is wrong, or odd, with this host, with a job's hosts, or with a description of a fabric."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from topoccl.collectives.bootstrap import LaunchInfo, exchange_or_raise, launch_environment
from topoccl.collectives.cli import Subparsers
from topoccl.collectives.config import Config
from topoccl.collectives.executor.arena import supported
from topoccl.collectives.hosts import seat
from topoccl.collectives.opening import open_job
from topoccl.collectives.setup import survey
from topoccl.topology import TopologyError
from topoccl.topology.checks import CHECKS, Case, Problem, Severity, examine
from topoccl.topology.discovery.inventory import describe, take_inventory
from topoccl.topology.generators import is_expression, known_shapes
from topoccl.topology.load import load
from topoccl.topology.merge import Origin, Part, merge

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="report what is wrong with this host, with a job's hosts, or with a description of a fabric",
        epilog=f"Descriptions: files or {known_shapes()}. Several are merged, the first beats the next, measured figures count below "
        "declared ones. Under mpirun or torchrun all ranks take part and rank 0 reports. The status is 1 when there are errors.",
    )
    parser.add_argument(
        "topology", nargs="*", metavar="SPEC|FILE", help="what the fabric is said to be (default: TOPOCCL_TOPO_FILE); else this host alone"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    info = launch_environment(os.environ)
    case = _this_process(args.topology) if info.kind == "single" else _all_ranks(args.topology, info)
    if case is None:
        return 0
    problems = examine(case)
    if args.json:
        print(json.dumps(_as_dict(case, problems), indent=2))
    else:
        _show(case, problems)
    return int(any(problem.severity is Severity.ERROR for problem in problems))


def _this_process(given: Sequence[str]) -> Case:
    """This host; or the descriptions alone, unless they know this host by name."""
    config = Config.from_environment(os.environ)
    parts = _load(given, config)
    if parts:
        declared = merge(parts)
        inventory = take_inventory(report=_report, interfaces=_interfaces(config))
        if inventory.facts.hostname not in declared.topology.hosts:
            return Case(declared.topology, contradictions=declared.contradictions)
    else:
        inventory = take_inventory(report=_report, interfaces=_interfaces(config))
    found = describe(inventory, _report)
    merged = merge([*parts, Part(Origin.SYSFS, found.topology, "this host")])
    host = config.hostid or inventory.facts.host_id
    contradictions = (*merged.contradictions, *found.contradictions)
    return Case(merged.topology, [inventory.facts], [host], [host], _no_sharing(config), contradictions)


def _all_ranks(given: Sequence[str], info: LaunchInfo) -> Case | None:
    """All ranks of the job; None on those that do not report."""
    transport, config = open_job(info)
    try:
        problem: Exception | None = None
        parts: list[Part] = []
        seen = survey(transport, Config.from_environment(os.environ, topo_file=""), config.timeout)
        if transport.rank == 0:
            try:
                names = [facts.hostname for facts in seen.facts]
                parts = [Part(part.origin, seat(part.topology, names), part.label) for part in _load(given, config)]
            except TopologyError as error:
                problem = error
        exchange_or_raise(transport, problem, config.timeout)
    finally:
        transport.close()
    if info.rank != 0:
        return None
    merged = merge([*parts, Part(Origin.SYSFS, seen.discovered, "discovery")])
    return Case(merged.topology, seen.facts, seen.neighbours.hosts, seen.claims, _no_sharing(config), merged.contradictions)


def _load(given: Sequence[str], config: Config) -> list[Part]:
    """The descriptions that were given, else the one that the configuration names."""
    named = [(text, load(text)) for text in given]
    described = None if given else config.described()
    if described is not None:
        named = [(config.topo_file, described)]
    return [Part(Origin.USER, topology, text if is_expression(text) else Path(text).name) for text, topology in named]


def _interfaces(config: Config) -> Any:
    from topoccl.topology.discovery import usual_interface

    return config.socket_ifname.matches if config.socket_ifname.explicit else usual_interface


def _no_sharing(config: Config) -> str:
    return (supported() or "") if config.shm else "TOPOCCL_SHM=0"


def _report(line: str) -> None:
    print(f"topoccl: warning: {line}", file=sys.stderr)


def _as_dict(case: Case, problems: Sequence[Problem]) -> dict[str, Any]:
    return {
        "topology": case.topology.name,
        "hosts": len(case.topology.hosts),
        "ranks": len(case.facts) or case.topology.num_ranks,
        "checks": [name for name, _ in CHECKS],
        "problems": [
            {
                "severity": problem.severity.value,
                "check": problem.check,
                "subject": problem.subject,
                "reason": problem.reason,
                "values": dict(problem.values),
                "advice": problem.advice,
            }
            for problem in problems
        ],
    }


def _show(case: Case, problems: Sequence[Problem]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    numbers = ((len(case.topology.hosts), "host"), (len(case.facts) or case.topology.num_ranks, "rank"))
    about = ", ".join(f"{number} {word}{'' if number == 1 else 's'}" for number, word in numbers)
    console.print(Text.assemble((case.topology.name, "bold"), f"  {about}, {len(CHECKS)} checks"))
    for problem in problems:
        values = ", ".join(f"{key} {_value(value)}" for key, value in problem.values.items() if value is not None)
        head = Text.assemble((f"{problem.severity.value:<8}", _STYLES[problem.severity]), (problem.subject, "bold"), f": {problem.reason}")
        console.print(head)
        for line in (values, problem.advice):
            if line:
                console.print(Text(f"        {line}", "dim" if line is values else ""))
    counts = [(sum(p.severity is severity for p in problems), severity.value) for severity in Severity]
    console.print(", ".join(f"{number} {word}{'s' if number != 1 else ''}" for number, word in counts if number) or "nothing is wrong")


def _value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
