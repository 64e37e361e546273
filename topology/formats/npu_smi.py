"""Output of Ascend's ``npu-smi info -t topo``: HCCS (direct), HCCS_SW (through a switch), SIO (two dies of one package),
UB (the unified bus of the A5 generation).

Rates are not stated. Assumed per direction: 28 GB/s for an HCCS link (Atlas 800T A2: 7 of them, 392 GB/s both ways), 196 GB/s for a
die on an HCCS switch and 270 GB/s for SIO (Atlas 800T A3). UB counts as an HCCS switch: no figure per link is published.
"""

from __future__ import annotations

import re

from topoccl.topology.formats.base import CERTAIN, NO, Format
from topoccl.topology.formats.nvidia_smi import islands
from topoccl.topology.formats.support import DEFAULT
from topoccl.topology.formats.topo_m import Tool, looks, read_machine
from topoccl.topology.graph import Topology

HCCS, HCCS_SWITCH, SIO = 28e9, 7 * 28e9, 270e9
_TOOL = Tool("npu-smi info -t topo", r"NPU\d+|Phy-ID\d+", r"HCCS_SW|HCCS|SIO|PIB|UB", "ascend")


def recognise(text: str) -> int:
    return CERTAIN if looks(_TOOL, text)[0] else NO


def parse(text: str, source: str) -> Topology:
    """One machine; slots in the order of the matrix.

    Raises:
        TopologyError: as :func:`topoccl.topology.formats.topo_m.read_machine`.
    """
    machine, links = read_machine(_TOOL, text, source)
    for device in machine.devices:
        device.name = re.sub(r"^phy-id", "npu", device.name)
    for (a, b), token in links.items():
        if token in ("HCCS", "SIO"):
            machine.link(a, b, HCCS if token == "HCCS" else SIO, token.lower(), DEFAULT)
        elif token == "PIB":  # an internal PCIe bus of a card
            machine.near[a, b] = 0
    for number, members in enumerate(islands({pair: 1 for pair, token in links.items() if token in ("HCCS_SW", "UB")})):
        machine.switch(f"hccs{number or ''}", dict.fromkeys(sorted(members), HCCS_SWITCH), "hccs", DEFAULT)
    if links:
        machine.note(
            "rates of HCCS and SIO are not in the matrix: 28 GB/s per HCCS link, 196 GB/s into an HCCS switch or UB, 270 GB/s for SIO"
        )
    return machine.build()


FORMAT = Format("npu-smi", "output of npu-smi info -t topo (Ascend)", recognise, parse)
