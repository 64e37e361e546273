"""What a probe found, in a few lines for people. Pure."""

from __future__ import annotations

import statistics
from collections import Counter

from topoccl.collectives.probe.table import Table
from topoccl.topology.graph import Topology, VertexKind
from topoccl.topology.units import format_rate, format_time
from topoccl.topology.wiring import Cable, cables

_NAMED = 8  # members of a list that are named


def summary(table: Table, topology: Topology, seconds: float) -> str:
    """Several lines: hosts, how they are joined, what differs, and how sure that is."""
    hosts, found = len(table.hosts), cables(topology)
    lines = [
        f"{_count(hosts, 'host')}, {_count(topology.num_ranks, 'rank')}; {_count(len(table.outcomes), 'measurement')} in {seconds:.1f} s"
    ]
    if found:
        lines += _structure(topology, found)
        lines += _figures(table)
    else:
        lines.append("one host: nothing lies between its ranks but memory")
    if not table.complete:
        lines.append("the budget was used up before the structure was certain: a longer one (--budget) finds more")
    return "\n".join(lines)


def _structure(topology: Topology, found: tuple[Cable, ...]) -> list[str]:
    switches = [v.id for v in topology.vertices.values() if v.kind is VertexKind.SWITCH and v.host is None]
    if not switches:
        return [f"no switch: {_some([f'{c.a.owner}-{c.b.owner} {_rate(c)}' for c in found])}"]
    members: dict[str, list[str]] = {switch: [] for switch in switches}
    uplinks, nics = [], []
    for cable in found:
        if cable.a.owner in members and cable.b.owner in members:
            uplinks.append(cable)
        else:
            switch, host = (cable.b.owner, cable.a.owner) if cable.b.owner in members else (cable.a.owner, cable.b.owner)
            members[switch].append(host)
            nics.append((host, _rate(cable)))
    common = Counter(rate for _, rate in nics).most_common(1)[0][0]
    others = [f"{host} {rate}" for host, rate in nics if rate != common]
    lines = [f"NICs: {common}" + (f", but {_some(others)}" if others else "")]
    if len(switches) == 1:
        return ["one switch", *lines]
    return [
        *(f"{switch}: {_some(hosts)}" for switch, hosts in members.items() if hosts),
        *(f"uplink {cable.a.owner}-{cable.b.owner}: {_rate(cable)}" for cable in uplinks),
        *lines,
    ]


def _figures(table: Table) -> list[str]:
    lines = []
    if table.latencies:
        lines.append(f"latency between hosts, software included: {format_time(statistics.median(table.latencies.values()))}")
    one, both = ({o.flows: o for o in table.of_kind(kind)} for kind in ("one_way", "both_ways"))
    alone = {flow: rate for outcome in one.values() for flow, rate in zip(outcome.flows, outcome.rates, strict=True)}
    shares = [rate / alone[flow] for o in both.values() for flow, rate in zip(o.flows, o.rates, strict=True) if alone.get(flow)]
    if shares:
        lines.append(f"both ways at once: {statistics.median(shares):.0%} of the rate of one way")
    return lines


def _rate(cable: Cable) -> str:
    there, back = format_rate(cable.rate_ab), format_rate(cable.rate_ba)
    return there if there == back else f"{there}, back {back}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
