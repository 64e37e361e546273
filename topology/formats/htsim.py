"""htsim's fat trees (``Nodes``, ``Tiers``, ``Podsize``, then a section per tier), as ASTRA-sim uses them."""

from __future__ import annotations

import re

from topoccl.topology.formats.base import CERTAIN, NO, Format
from topoccl.topology.formats.draft import Draft
from topoccl.topology.formats.support import HEAD, MAX_LINKS, Line, finish, lines, shown
from topoccl.topology.generators import MAX_SLOTS
from topoccl.topology.graph import Topology, TopologyError

_TOP = ("nodes", "tiers", "podsize")
_TIER = (
    *("downlink_speed_gbps", "radix_down", "radix_up", "downlink_latency_ns", "switch_latency_ns", "bundle"),
    *("oversubscribed", "queue_up", "queue_down"),
)
_REAL = ("downlink_speed_gbps", "downlink_latency_ns", "switch_latency_ns", "oversubscribed", "queue_up", "queue_down")
_HEAD = re.compile(r"^[ \t]*nodes[ \t]+\d+", re.IGNORECASE | re.MULTILINE)
_TIERS = re.compile(r"^[ \t]*(tiers|podsize)[ \t]+\d+", re.IGNORECASE | re.MULTILINE)

_Tier = dict[str, float]


def recognise(text: str) -> int:
    head = text[:HEAD]
    return CERTAIN if _HEAD.search(head) and _TIERS.search(head) else NO


def parse(text: str, source: str) -> Topology:
    """Every node is a bare slot on its leaf switch. Switches of neighbouring tiers are joined by ``bundle`` links (added up to one).

    Half of a switch's latency is added to each link on it, so that every crossing counts it once.

    Raises:
        TopologyError: a line that is no ``KEY NUMBER``, an unknown key, or numbers that do not make a tree.
    """
    top, tiers = _read(text, source)
    nodes, podsize = int(top["nodes"]), int(top.get("podsize", top["nodes"]))
    if int(top["tiers"]) != len(tiers) or not 1 <= len(tiers) <= 3:
        raise TopologyError(f"{source}: Tiers is {int(top['tiers'])} and {len(tiers)} tiers are described; expected as many, 1 to 3")
    for number, tier in enumerate(tiers):
        for key in ("downlink_speed_gbps", "radix_down", *(("radix_up",) if number < len(tiers) - 1 else ())):
            if tier.get(key, 0) <= 0:
                raise TopologyError(f"{source}: tier {number}: {key} is {tier.get(key, 'missing')}; expected a positive number")
    if not 0 < podsize <= nodes or nodes % podsize:
        raise TopologyError(f"{source}: Podsize is {podsize}; expected a divisor of the {nodes} nodes")
    if len(tiers) < 3:
        podsize = nodes
    pods, down, up = nodes // podsize, [int(t["radix_down"]) for t in tiers], [int(t.get("radix_up", 0)) for t in tiers]
    bundle = [int(tier.get("bundle", 1)) for tier in tiers]
    counts = [_divide(source, "nodes of a pod", podsize, "radix_down of tier 0", down[0])]
    draft = Draft(source)
    slots = [draft.bare_slot(draft.host(f"n{index}", rack=f"pod{index // podsize}"), {"accelerator": "npu"}) for index in range(nodes)]
    leaves = [[draft.switch(f"tor{pod}.{index}") for index in range(counts[0])] for pod in range(pods)]
    for index, slot in enumerate(slots):
        leaf = leaves[index // podsize][index % podsize // down[0]]
        draft.link(slot, leaf, _rate(tiers[0]), _latency(tiers, 0), "net")
    if len(tiers) > 1:
        spines = _divide(source, "radix_up of tier 0", up[0], "bundle of tier 1", bundle[1])
        if counts[0] * bundle[1] != down[1]:
            raise TopologyError(f"{source}: tier 1: radix_down is {down[1]}; expected {counts[0]} leaves of a pod x bundle {bundle[1]}")
        if pods * counts[0] * spines > MAX_LINKS:
            raise TopologyError(f"{source}: more than {MAX_LINKS} links")
        middle = [[draft.switch(f"agg{pod}.{index}") for index in range(spines)] for pod in range(pods)]
        for pod in range(pods):
            for leaf in leaves[pod]:
                for spine in middle[pod]:
                    draft.link(leaf, spine, _rate(tiers[1]) * bundle[1], _latency(tiers, 1), "net")
        if len(tiers) > 2:
            per_spine = _divide(source, "radix_up of tier 1", up[1], "bundle of tier 2", bundle[2])
            if pods * bundle[2] != down[2]:
                raise TopologyError(f"{source}: tier 2: radix_down is {down[2]}; expected {pods} pods x bundle {bundle[2]}")
            if pods * spines * per_spine > MAX_LINKS:
                raise TopologyError(f"{source}: more than {MAX_LINKS} links")
            cores = [draft.switch(f"core{index}") for index in range(spines * per_spine)]
            for pod in range(pods):
                for index, core in enumerate(cores):
                    draft.link(middle[pod][index // per_spine], core, _rate(tiers[2]) * bundle[2], _latency(tiers, 2), "net")
    return finish(draft)


def _divide(source: str, what: str, total: int, by: str, part: int) -> int:
    if part < 1 or total % part:
        raise TopologyError(f"{source}: {total} {what} cannot be shared out by {by}, {part}")
    return total // part


def _rate(tier: _Tier) -> float:
    return tier["downlink_speed_gbps"] * 1e9 / 8


def _latency(tiers: list[_Tier], number: int) -> float:
    ends = [tiers[number], *tiers[max(0, number - 1) : number]]
    return (tiers[number].get("downlink_latency_ns", 0.0) + sum(tier.get("switch_latency_ns", 0.0) for tier in ends) / 2) / 1e9


def _read(text: str, source: str) -> tuple[_Tier, list[_Tier]]:
    top: _Tier = {}
    tiers: list[_Tier] = []
    for line in lines(text, source):
        words = line.text.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            line.fail("a line", line.text.strip(), "a key and a number such as Radix_Down 4")
        key, value = words[0].lower(), _number(line, words)
        if key == "tier":
            if value != len(tiers):
                line.fail("tier", words[1], f"tier {len(tiers)}, the next one")
            tiers.append({})
            continue
        section, known = (tiers[-1], _TIER) if tiers else (top, _TOP)
        if key not in known:
            raise line.error(f"unknown key {shown(words[0])}; known here: {', '.join(known)}")
        if key in section:
            raise line.error(f"{words[0]} is given twice")
        section[key] = value
    for key in ("nodes", "tiers"):
        if key not in top:
            raise TopologyError(f"{source}: {key.capitalize()} is missing")
    return top, tiers


def _number(line: Line, words: list[str]) -> float:
    if not re.fullmatch(r"\d{1,12}(\.\d{1,9})?", words[1], re.ASCII):
        line.fail(words[0], words[1], "a number, not negative")
    value = float(words[1])
    if words[0].lower() not in _REAL and (value != int(value) or value > MAX_SLOTS):
        line.fail(words[0], words[1], f"a whole number up to {MAX_SLOTS}")
    return value


FORMAT = Format("htsim", "a fat tree of htsim (ASTRA-sim)", recognise, parse)
