"""Output of MetaX's ``mx-smi topo -m``. A MetaXLink (``MX``) is assumed to carry 32 GB/s per direction; the matrix does not say."""

from __future__ import annotations

import re

from topoccl.topology.formats.base import CERTAIN, NO, Format
from topoccl.topology.formats.support import DEFAULT, HEAD
from topoccl.topology.formats.topo_m import Tool, count, looks, read_machine
from topoccl.topology.graph import Topology

METAXLINK = 32e9
_TOOL = Tool("mx-smi topo -m", r"GPU\d+", r"MX\d*", "metax")
_NAME = re.compile(r"MetaX", re.IGNORECASE)


def recognise(text: str) -> int:
    row, linked = looks(_TOOL, text)
    return CERTAIN if linked or (row and _NAME.search(text[:HEAD])) else NO


def parse(text: str, source: str) -> Topology:
    """One machine; slots in the order of the matrix.

    Raises:
        TopologyError: as :func:`topoccl.topology.formats.topo_m.read_machine`.
    """
    machine, links = read_machine(_TOOL, text, source)
    for (a, b), token in links.items():
        lanes = count(token, source)
        machine.link(a, b, lanes * METAXLINK, "metaxlink", {"lanes": lanes, **DEFAULT})
    if links:
        machine.note("the rate of a MetaXLink is not in the matrix: 32 GB/s assumed")
    return machine.build()


FORMAT = Format("mx-smi", "output of mx-smi topo -m (MetaX)", recognise, parse)
