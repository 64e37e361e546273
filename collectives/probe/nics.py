"""Whether the ranks of a host share a NIC. Pure.

Ranks share one if two of them together get what one of them gets alone. If all of a host's ranks together get less than the NICs so
found would carry, these are one NIC that a single rank does not fill.
"""

from __future__ import annotations

from dataclasses import dataclass

from topoccl.collectives.probe.table import Flow, Table, level

MORE = 1.3
"""All ranks of a host at once get so much more than one: it has several NICs, or one rank does not fill its NIC."""
_ALL = 0.75  # of what its NICs carry, when they are several


@dataclass(frozen=True)
class Nic:
    """A NIC, as the ranks of its host use it: what it sends and receives, bytes/s."""

    ranks: tuple[int, ...]
    up: float
    down: float


def gains(table: Table) -> list[int]:
    """Hosts whose ranks together sent or received clearly more than the first rank alone."""
    alone = table.peaks("one_way", "both_ways")
    together = table.peaks("streams")
    return [h for h in range(len(table.hosts)) if any(all_[h] > MORE * one[h] for all_, one in zip(together, alone, strict=True))]


class NicGroups:
    """The ranks of one host by the NIC they use, seen from what they send to the host ``partner``."""

    def __init__(self, table: Table, host: int, partner: int) -> None:
        self.groups: list[list[Flow]] = []
        self.open: list[Flow] | None = None
        """Flows that have to be measured next, together; None when all ranks are placed."""
        for flow in table.parallel(host, partner):
            if _rate(table, [flow]) is None:
                self.open = [flow]
                return
            home = None
            for group in self.groups:
                together = _rate(table, [group[0], flow])
                if together is None:
                    self.open = [group[0], flow]
                    return
                alone = [_rate(table, [one]) or 0.0 for one in (group[0], flow)]
                if sum(alone) - together > min(alone) / 2:
                    home = group
                    break
            if home is None:
                self.groups.append([flow])
            else:
                home.append(flow)


def _rate(table: Table, flows: list[Flow]) -> float | None:
    outcome = table.find("ranks", flows)
    return None if outcome is None else outcome.total


def nics(table: Table, host: int) -> list[Nic]:
    """The NICs of one host. Ranks that were not compared use those of the compared ones in turn."""
    sent, received = table.peaks()
    everyone = table.hosts[host]
    one = [Nic(everyone, sent[host], received[host])]
    partner = next((table.host_of[o.flows[0].dst] for o in table.of_kind("ranks") if table.host_of[o.flows[0].src] == host), None)
    if partner is None:
        return one
    found = NicGroups(table, host, partner)
    if found.open is not None or len(found.groups) < 2:
        return one
    rates = [level(run[0] for flow in group if (alone := table.find("ranks", [flow])) for run in alone.runs) for group in found.groups]
    if sent[host] < _ALL * sum(rates):
        return one
    ranks = [[flow.src for flow in group] for group in found.groups]
    for number, rank in enumerate(everyone[sum(map(len, ranks)) :]):
        ranks[number % len(ranks)].append(rank)
    back = received[host] / sent[host] if received[host] else 1.0
    return [Nic(tuple(group), rate, rate * back) for group, rate in zip(ranks, rates, strict=True)]
