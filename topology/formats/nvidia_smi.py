"""Output of ``nvidia-smi topo -m``.

The matrix does not say which GPUs these are. What one NVLink carries is inferred from how many a GPU has, and noted: 18 are an
H100's (20.6 GB/s each, NCCL's figures), 7 to 12 an A100's (20), 4 between two alone a bridge of the 86 generation (12), 4 single ones among
eight a P100's (18), else a V100's (20). More links than any GPU has (18), summed over its peers, can only be the same links counted once
per peer: then they lead into an NVSwitch. If the memory of GPUs is a NUMA node (GPU NUMA ID), they hang on a Grace processor by NVLink-C2C:
18 links into a switch are then a GB200's (40.1).
"""

from __future__ import annotations

from topoccl.topology import constants
from topoccl.topology.formats.base import CERTAIN, LIKELY, NO, Format
from topoccl.topology.formats.machine import Machine
from topoccl.topology.formats.topo_m import Tool, count, looks, read_machine
from topoccl.topology.graph import Topology

_TOOL = Tool("nvidia-smi topo -m", r"GPU\d+", r"NV\d+", "nvidia")
_MOST_NVLINKS = 18


def recognise(text: str) -> int:
    row, linked = looks(_TOOL, text)
    return CERTAIN if linked else LIKELY if row else NO


def parse(text: str, source: str) -> Topology:
    """One machine; slots in the order of the matrix.

    Raises:
        TopologyError: as :func:`topoccl.topology.formats.topo_m.read_machine`.
    """
    machine, tokens = read_machine(_TOOL, text, source)
    links = {pair: count(token, source) for pair, token in tokens.items()}
    for number, members in enumerate(islands(links)):
        _island(machine, number, members, {pair: lanes for pair, lanes in links.items() if pair[0] in members})
    return machine.build()


def islands(pairs: dict[tuple[int, int], int]) -> list[set[int]]:
    """Accelerators that direct links join, whatever the way."""
    found: list[set[int]] = []
    for pair in pairs:
        touching = [island for island in found if island & set(pair)]
        found = [island for island in found if island not in touching] + [set(pair).union(*touching)]
    return sorted(found, key=min)


def _island(machine: Machine, number: int, members: set[int], links: dict[tuple[int, int], int]) -> None:
    lanes = {index: [count for pair, count in links.items() if index in pair] for index in members}
    total = max(sum(row) for row in lanes.values())
    switched = total > _MOST_NVLINKS
    sm = _generation(max(max(row) for row in lanes.values()) if switched else total, len(members), max(links.values()))
    if sm == 90 and switched and all(machine.devices[index].coherent for index in members):
        sm = 100
    rate = constants.nvlink(sm)
    machine.note(f"GPUs are not named in the matrix: NVLinks of sm{sm} assumed, {rate / 1e9:g} GB/s each")
    said = {"source": "default"}
    if switched:
        name = "nvswitch" if number == 0 else f"nvswitch{number}"
        machine.switch(name, {index: max(lanes[index]) * rate for index in sorted(members)}, "nvlink", said)
        return
    for (a, b), each in links.items():
        machine.link(a, b, each * rate, "nvlink", {"lanes": each, **said})


def _generation(links: int, members: int, widest: int) -> int:
    """The compute capability (80 for 8.0) of GPUs with ``links`` NVLinks each."""
    if links > 12:
        return 90
    if links > 6:
        return 80
    if links == 4 and members == 2:
        return 86
    return 60 if links == 4 and members == 8 and widest == 1 else 70


FORMAT = Format("nvidia-smi", "output of nvidia-smi topo -m", recognise, parse)
