"""Output of Moore Threads' ``mthreads-gmi topo -m``: ``MT2`` is two MTLinks, each assumed to carry 28 GB/s per direction (S5000)."""

from __future__ import annotations

import re

from topoccl.topology.formats.base import CERTAIN, NO, Format
from topoccl.topology.formats.support import DEFAULT, HEAD
from topoccl.topology.formats.topo_m import Tool, count, looks, read_machine
from topoccl.topology.graph import Topology

MTLINK = 28e9
_TOOL = Tool("mthreads-gmi topo -m", r"GPU\d+", r"MT\d+", "mthreads")
_NAME = re.compile(r"mthreads|MTLink|Moore ?Threads", re.IGNORECASE)


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
        machine.link(a, b, lanes * MTLINK, "mtlink", {"lanes": lanes, **DEFAULT})
    if links:
        machine.note("the rate of an MTLink is not in the matrix: 28 GB/s assumed")
    return machine.build()


FORMAT = Format("mthreads-gmi", "output of mthreads-gmi topo -m (Moore Threads)", recognise, parse)
