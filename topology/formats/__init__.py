"""Formats in which others describe a fabric, each a pure parser; a text is recognised by its content, never by its name.

To add one: a module with a ``FORMAT`` and a line in :data:`FORMATS`; the tests over all formats pick it up.
"""

from __future__ import annotations

import re

from topoccl.topology.document import MAX_BYTES
from topoccl.topology.formats import (
    amd_smi,
    astra_sim,
    hccl,
    htsim,
    hwloc_xml,
    ibnetdiscover,
    mthreads_gmi,
    mx_smi,
    nccl_graph,
    nccl_xml,
    netq,
    npu_smi,
    nvidia_smi,
    own,
    refused,
    rocm_smi,
    slurm,
    taccl,
    topograph,
)
from topoccl.topology.formats.base import Format
from topoccl.topology.formats.support import HEAD
from topoccl.topology.graph import Topology, TopologyError

_LONGEST = 3000  # characters of a message; the list of formats has 2000
_DECLARES = re.compile(r"<!ENTITY\s|<!DOCTYPE\s[^>\[]{0,1000}\[")

__all__ = ["FORMATS", "Format", "parse", "recognise"]

FORMATS: tuple[Format, ...] = (
    nccl_xml.FORMAT,
    nccl_graph.FORMAT,
    hwloc_xml.FORMAT,
    nvidia_smi.FORMAT,
    rocm_smi.FORMAT,
    amd_smi.FORMAT,
    npu_smi.FORMAT,
    mx_smi.FORMAT,
    mthreads_gmi.FORMAT,
    hccl.FORMAT,
    slurm.CONF,
    slurm.YAML,
    ibnetdiscover.FORMAT,
    topograph.FORMAT,
    netq.FORMAT,
    taccl.FORMAT,
    astra_sim.ANALYTICAL,
    astra_sim.NS3,
    htsim.FORMAT,
    own.FORMAT,
    *refused.FORMATS,
)


def recognise(text: str, source: str = "topology") -> Format:
    """The format that is surest of ``text``, the first of equally sure ones.

    Raises:
        TopologyError: none knows it.
    """
    score, index = max((entry.recognise(text), -index) for index, entry in enumerate(FORMATS))
    if score <= 0:
        if _DECLARES.search(text[:HEAD]):
            raise TopologyError(f"{source}: XML with a document type that declares something; entities are not read")
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        shown = repr(first if len(first) <= 60 else f"{first[:57]}...")
        known = "".join(f"\n  {entry.name}: {entry.summary}" for entry in FORMATS)
        raise TopologyError(f"{source}: no known description of a topology (it begins with {shown}); known formats:{known}")
    return FORMATS[-index]


def parse(text: str, source: str = "topology") -> Topology:
    """The topology that ``text`` describes in any of the known formats; ``source`` is the name that errors begin with.

    Raises:
        TopologyError: empty, too long, of no known format, or wrong in its format; the message is short whatever the text holds.
    """
    text = text.removeprefix("\ufeff")
    if not text.strip("\0 \t\r\n\f\v"):
        raise TopologyError(f"{source}: the file is empty; expected the description of a topology")
    if len(text) > MAX_BYTES:
        raise TopologyError(f"{source}: {len(text)} characters; at most {MAX_BYTES} are read")
    try:
        return recognise(text, source).parse(text, source)
    except TopologyError as error:
        said = str(error)
        if len(said) <= len(source) + _LONGEST:
            raise
        raise TopologyError(f"{said[: len(source) + _LONGEST // 2]} ... {said[-_LONGEST // 4 :]}") from None
