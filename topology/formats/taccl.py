"""TACCL's topologies (profiles of one machine) and those of its sketches that say which accelerators share a switch.

A profile gives the time ``alpha + beta`` of one chunk whose size stands in the name (``NDv2_32KB``), in a unit that the file does not
state; it is the power of ten, at most 1 us, that puts alpha between 0.1 and 1 us (all published files then agree: 0.3 us). Without
a size in the name alpha is in us and beta in us per MB, as in the paper (arXiv 2111.04867).
"""

from __future__ import annotations

import math
import re

from topoccl.topology import fabric as fb
from topoccl.topology.document import Cursor, read
from topoccl.topology.formats.base import CERTAIN, NO, Format
from topoccl.topology.formats.draft import Draft
from topoccl.topology.formats.support import DEFAULT, HEAD, finish, need, positive, shown, whole, word
from topoccl.topology.graph import Link, Topology, VertexKind
from topoccl.topology.units import parse_size

MAX_GPUS = 1024
_MB = 1 << 20
_NVLINK = 6 * 20e9
"""A V100 (sm70) with all its six NVLinks, by NCCL's figure."""
# Pairs of an NDv2 (DGX-1 with V100s) in TACCL's numbering: those of the first and of the second beta (two NVLinks and one).
_CUBE_MESH = (
    ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)),
    ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)),
)
_LATENCY = 0.35e-6


def recognise(text: str) -> int:
    head = text[:HEAD]
    profile = re.search(r'"gpus_per_node"\s*:', head) and re.search(r'"(alpha|node_betas_list|betas)"\s*:', head)
    return CERTAIN if profile or re.search(r'"intranode_sketch"\s*:', head) else NO


def parse(text: str, source: str) -> Topology:
    """One machine of a profile, or ``nnodes`` machines of a sketch with the strategy ``switch``.

    Raises:
        TopologyError: not JSON, a value that is none, lists that do not fit the number of GPUs, a sketch that leaves the links to
            its topology.
    """
    document = read(text, source)
    given = document.entries("a mapping (a topology or a sketch of TACCL)")
    return _sketch(document, given, source) if "intranode_sketch" in given else _profile(document, given, source)


def _unit(name: str, alpha: float) -> tuple[float, float]:
    """Bytes of a chunk and seconds of the unit of time."""
    match = re.search(r"_(\d{1,6}[KMG]B)$", name, re.IGNORECASE)
    if match is None or not alpha:
        return float(_MB), 1e-6
    return float(parse_size(match[1])), 1e-6 * 10.0 ** min(0, -math.floor(math.log10(alpha)) - 1)


def _profile(document: Cursor, given: dict[str, Cursor], source: str) -> Topology:
    name = word(need(given, "name", document), "the name of a topology")
    gpus = whole(need(given, "gpus_per_node", document), MAX_GPUS, 1)
    alpha = positive(need(given, "alpha", document), "units of time", zero=True)
    size, unit = _unit(name, alpha)
    draft = Draft(source)
    draft.name = name
    stated = f"times are per chunk of {size:g} bytes in units of {unit:g} s"
    draft.host("h0")
    draft.note("h0", stated)
    draft.note("h0", "the number of machines is not stated: one")
    slots = [draft.bare_slot("h0", {"accelerator": "gpu"}) for _ in range(gpus)]
    if "links" in given:
        _matrix(draft, given, document, slots, alpha * unit, size / unit)
    else:
        at = need(given, "node_betas_list", document)
        rates = [size / unit / positive(item, "units of time") for item in at.items("a list of one or two numbers")]
        if len(rates) == 1:
            hub = draft.switch("h0.nvswitch", "h0")
            for slot in slots:
                draft.link(slot, hub, rates[0], alpha * unit / 2, "nvlink")
        elif len(rates) == 2 and gpus == 8:
            for rate, pairs in zip(rates, _CUBE_MESH, strict=True):
                for a, b in pairs:
                    draft.link(slots[a], slots[b], rate, alpha * unit, "nvlink")
        else:
            raise at.error(f"{len(rates)} betas for {gpus} GPUs; expected one (all on a switch), or two for 8 (a DGX-1's cube mesh)")
    nics = whole(given["nics_per_node"], gpus) if "nics_per_node" in given and given["nics_per_node"].plain() != -1 else 0
    if nics:
        rate = size / unit / positive(need(given, "remote_beta", document), "units of time")
        latency = positive(need(given, "remote_alpha", document), "units of time", zero=True) * unit
        for nic in range(nics):
            _plug(draft, "h0", nic, slots[-(-nic * gpus // nics) : -(-(nic + 1) * gpus // nics)], rate, {"rate": rate, "latency": latency})
    return finish(draft)


def _matrix(draft: Draft, given: dict[str, Cursor], document: Cursor, slots: list[str], latency: float, scale: float) -> None:
    """``links[dst][src]`` with ``betas[dst][src]``."""
    rows = {key: need(given, key, document).items("a square matrix") for key in ("links", "betas")}
    for key, row in rows.items():
        cells = [at.items("a row of numbers") for at in row]
        if len(cells) != len(slots) or any(len(line) != len(slots) for line in cells):
            raise given[key].error(f"is no matrix of {len(slots)} x {len(slots)} numbers")
        rows[key] = [cell for line in cells for cell in line]
    for index, (there, beta) in enumerate(zip(rows["links"], rows["betas"], strict=True)):
        dst, src = divmod(index, len(slots))
        if src != dst and positive(there, "links", zero=True):
            draft.links.append(Link(slots[src], slots[dst], scale / positive(beta, "units of time"), latency, "nvlink"))


def _plug(draft: Draft, host: str, number: int, slots: list[str], rate: float, attrs: dict[str, object]) -> str:
    """A NIC that some slots share."""
    bridge = draft.add(f"{host}.pcie{number}", VertexKind.PCIE, host)
    for slot in slots:
        draft.link(slot, bridge, fb.pcie_for(rate), fb.PCIE_LATENCY, "pcie", attrs=DEFAULT)
    return draft.nic(host, f"ib{number}", rate, hub=bridge, attrs=attrs)


def _sketch(document: Cursor, given: dict[str, Cursor], source: str) -> Topology:
    inside = given["intranode_sketch"].entries()
    strategy = word(need(inside, "strategy", given["intranode_sketch"]), "a strategy")
    if strategy != "switch":
        raise inside["strategy"].error(
            f"a TACCL sketch with the strategy {shown(strategy)} does not say how GPUs are linked, only which links of its topology to use;"
            " give the topology (a file with gpus_per_node)"
        )
    nodes = whole(need(given, "nnodes", document), MAX_GPUS, 1)
    at = need(inside, "switches", given["intranode_sketch"])
    groups = [[whole(gpu, MAX_GPUS - 1) for gpu in item.items("a list of GPUs")] for item in at.items("a list of switches")]
    gpus = len({gpu for group in groups for gpu in group})
    if not gpus or {gpu for group in groups for gpu in group} != set(range(gpus)) or nodes * gpus > 65536:
        raise at.error(f"{gpus} GPUs with numbers that are not 0 to {gpus - 1}, or none")
    senders = _senders(given["internode_sketch"], gpus) if "internode_sketch" in given and nodes > 1 else []
    draft = Draft(source)
    slots = []
    for node in range(nodes):
        draft.host(f"h{node}")
        draft.note(f"h{node}", "a sketch states no rates: 6 NVLinks of 20 GB/s per GPU, 10 Gbit/s per NIC")
        slots.append([draft.bare_slot(f"h{node}", {"accelerator": "gpu"}) for _ in range(gpus)])
    outside = draft.switch("ib") if senders else ""
    for node in range(nodes):
        for number, group in enumerate(groups):
            hub = draft.switch(f"h{node}.nvswitch{number}", f"h{node}")
            for gpu in dict.fromkeys(group):
                draft.link(slots[node][gpu], hub, _NVLINK, _LATENCY, "nvlink", attrs=DEFAULT)
        for number, group in enumerate(senders):
            nic = _plug(draft, f"h{node}", number, [slots[node][gpu] for gpu in group], fb.NET_BANDWIDTH, dict(DEFAULT))
            draft.link(nic, outside, fb.NET_BANDWIDTH, fb.NET_LATENCY, "net", attrs=DEFAULT)
    return finish(draft)


def _senders(at: Cursor, gpus: int) -> list[list[int]]:
    """Which GPUs share each way out of a machine."""
    fields = at.entries()
    connections = fields.get("internode_conn")
    shared = fields.get("gpus_to_sender_rev_map")
    if shared is not None and shared.node.value is not None:
        table = shared.entries()
    elif connections is not None and connections.is_mapping:
        table = connections.entries()
    else:
        return [[gpu] for gpu in range(gpus)]
    found = []
    for key, value in table.items():
        if not re.fullmatch(r"\d{1,6}", key, re.ASCII) or int(key) >= gpus:
            raise value.error(f"GPU {shown(key)}; expected one of 0 to {gpus - 1}")
        found.append(list(dict.fromkeys([int(key), *(whole(item, gpus - 1) for item in value.items("a list of GPUs"))])))
    return found


FORMAT = Format("taccl", "a topology of TACCL, or a sketch that names switches", recognise, parse)
