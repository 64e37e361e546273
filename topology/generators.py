"""Fabrics made from a short expression, usable wherever a topology file is: ``cluster:4x2,net=200Mbit/s``.

An expression is ``NAME:SHAPE[,OPTION=VALUE...]``; docs/topology-format.md lists every name, shape and option.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from topoccl.topology import fabric as fb
from topoccl.topology.fabric import Fabric
from topoccl.topology.graph import Topology, TopologyError, VertexKind
from topoccl.topology.units import parse_rate, parse_time

MAX_SLOTS = 65536
"""The most slots an expression may ask for, so that a slip of the finger does not fill the memory."""

_NETWORK = ("net", "latency")
_HOST = ("memory", "memory_latency", "pcie")
_EXPRESSION = re.compile(r"\s*([A-Za-z][\w-]*)\s*:(.*)", re.DOTALL)


class _Options:
    """The options of one expression, each read with its own syntax; errors name the expression and the option."""

    def __init__(self, text: str, given: dict[str, str]) -> None:
        self.text = text
        self.given = given

    def rates(self, key: str, default: float) -> list[float]:
        """One rate, or several joined by ``+`` (one per host, or one per rail)."""
        if key not in self.given:
            return [default]
        try:
            return [parse_rate(part) for part in self.given[key].split("+")]
        except ValueError as error:
            raise TopologyError(f"{self.text!r}: option {key}: {error}") from None

    def rate(self, key: str, default: float) -> float:
        values = self.rates(key, default)
        if len(values) != 1:
            raise TopologyError(f"{self.text!r}: option {key} has {len(values)} rates; expected one")
        return values[0]

    def optional_rate(self, key: str) -> float | None:
        return self.rate(key, 1.0) if key in self.given else None

    def time(self, key: str, default: float) -> float:
        try:
            return parse_time(self.given[key]) if key in self.given else default
        except ValueError as error:
            raise TopologyError(f"{self.text!r}: option {key}: {error}") from None

    def count(self, key: str, default: int) -> int:
        value = self.given.get(key, str(default))
        if not re.fullmatch(r"[1-9]\d{0,5}", value, re.ASCII):
            raise TopologyError(f"{self.text!r}: option {key} is {value!r}; expected a number from 1 to 999999")
        return int(value)

    def ratio(self, key: str, default: float) -> float:
        value = self.given.get(key, str(default))
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number > 0):
            raise TopologyError(f"{self.text!r}: option {key} is {value!r}; expected a positive number")
        return number

    def choice(self, key: str, known: Sequence[str]) -> str:
        value = self.given.get(key, known[0])
        if value not in known:
            raise TopologyError(f"{self.text!r}: option {key} is {value!r}; known: {', '.join(known)}")
        return value


@dataclass(frozen=True)
class _Generator:
    make: Callable[[Fabric, str, _Options], str]
    """Fills the fabric from the shape and the options; returns the placement."""
    shape: str
    options: tuple[str, ...]


def is_expression(text: str) -> bool:
    """Whether ``text`` names a known generator (its shape and options may still be wrong)."""
    match = _EXPRESSION.fullmatch(text)
    return match is not None and match[1].lower() in GENERATORS


def generate(text: str) -> Topology:
    """The fabric that an expression such as ``cluster:4x2,net=200Mbit/s`` describes.

    Raises:
        TopologyError: unknown generator, wrong shape, unknown or wrong option; the message lists what is known.
    """
    match = _EXPRESSION.fullmatch(text)
    name = match[1].lower() if match else text
    if match is None or name not in GENERATORS:
        near = difflib.get_close_matches(name, GENERATORS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise TopologyError(f"unknown topology generator {text!r}{hint}; known: {known_shapes()}")
    generator = GENERATORS[name]
    shape, given = _split(text, match[2], generator)
    fabric = Fabric(f"{name}:{match[2].strip()}")
    placement = generator.make(fabric, shape, _Options(text, given))
    return fabric.build(placement)


def known_shapes() -> str:
    """One example of each generator, for messages and help."""
    return ", ".join(f"{name}:{generator.shape}" for name, generator in GENERATORS.items())


def _split(text: str, rest: str, generator: _Generator) -> tuple[str, dict[str, str]]:
    parts = [part.strip() for part in rest.split(",")]
    given: dict[str, str] = {}
    shape = ""
    for position, part in enumerate(parts):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals and position == 0:
            shape = part.lower()
            continue
        if not equals or not value:
            raise TopologyError(f"{text!r}: {part!r} is not OPTION=VALUE; known options: {', '.join(generator.options)}")
        key = key.lower()
        if key not in generator.options:
            raise TopologyError(f"{text!r}: unknown option {key!r}; known: {', '.join(generator.options)}")
        if key in given:
            raise TopologyError(f"{text!r}: option {key!r} is given twice")
        given[key] = value
    return shape, given


def _dims(options: _Options, shape: str, low: int, high: int, example: str) -> list[int]:
    """``4x2`` as numbers, between ``low`` and ``high`` of them."""
    parts = shape.split("x")
    if not low <= len(parts) <= high or not all(re.fullmatch(r"[1-9]\d{0,17}", part, re.ASCII) for part in parts):
        raise TopologyError(f"{options.text!r}: shape {shape!r}; expected positive numbers such as {example}")
    dims = [int(part) for part in parts]
    _limit(options, math.prod(dims))
    return dims


def _limit(options: _Options, slots: int) -> None:
    if slots > MAX_SLOTS:
        raise TopologyError(f"{options.text!r}: {slots} slots; at most {MAX_SLOTS} can be generated")


def _spread(options: _Options, key: str, values: list[float], count: int, what: str) -> list[float]:
    """One value for all, or exactly one for each."""
    if len(values) not in (1, count):
        raise TopologyError(f"{options.text!r}: option {key} has {len(values)} values for {count} {what}; expected 1 or {count}")
    return values * count if len(values) == 1 else values


def _host(fabric: Fabric, options: _Options, name: str, ranks: int, *, rack: str | None = None, cell: tuple[int, ...] = ()) -> str:
    host = fabric.host(name, rack=rack, attrs={"cell": list(cell)} if cell else {})
    memory = options.rate("memory", fb.MEMORY_BANDWIDTH)
    latency = options.time("memory_latency", fb.MEMORY_LATENCY)
    for _ in range(ranks):
        fabric.slot(host, memory=memory, latency=latency)
    return host


def _plug(fabric: Fabric, options: _Options, host: str, name: str, rate: float, switch: str) -> None:
    nic = fabric.nic(host, name, rate, pcie=options.optional_rate("pcie"))
    fabric.link(nic, switch, rate, options.time("latency", fb.NET_LATENCY), "net")


def _cluster(fabric: Fabric, shape: str, options: _Options) -> str:
    """Hosts on one switch: ``4x2`` (hosts x ranks) or ``3+2+1`` (ranks of each host); one host alone has no NIC."""
    if "+" in shape:
        if not all(re.fullmatch(r"[1-9]\d{0,17}", part, re.ASCII) for part in shape.split("+")):
            raise TopologyError(f"{options.text!r}: shape {shape!r}; expected ranks per host such as 3+2+1")
        ranks = [int(part) for part in shape.split("+")]
        _limit(options, sum(ranks))
    else:
        hosts, per_host = _dims(options, shape, 2, 2, "4x2 (hosts x ranks) or 3+2+1 (ranks of each host)")
        ranks = [per_host] * hosts
    nics = options.count("nics", 1)
    rates = _spread(options, "net", options.rates("net", fb.NET_BANDWIDTH), len(ranks), "hosts")
    names = [_host(fabric, options, f"h{index}", count) for index, count in enumerate(ranks)]
    if len(ranks) > 1:
        switch = fabric.switch("sw0")
        for host, rate in zip(names, rates, strict=True):
            for nic in range(nics):
                _plug(fabric, options, host, f"eth{nic}", rate, switch)
    return options.choice("placement", fb.PLACEMENTS[:2])


def _rails(fabric: Fabric, shape: str, options: _Options) -> str:
    """Hosts x ranks; NIC ``i`` of every host is plugged into switch ``i``."""
    hosts, ranks = _dims(options, shape, 2, 2, "4x2 (hosts x ranks)")
    given = options.rates("net", fb.NET_BANDWIDTH)
    nics = options.count("nics", max(2, len(given)))
    rates = _spread(options, "net", given, nics, "rails")
    names = [_host(fabric, options, f"h{index}", ranks) for index in range(hosts)]
    switches = [fabric.switch(f"rail{nic}") for nic in range(nics)]
    for host in names:
        for nic, (rate, switch) in enumerate(zip(rates, switches, strict=True)):
            _plug(fabric, options, host, f"eth{nic}", rate, switch)
    return options.choice("placement", fb.PLACEMENTS[:2])


def _racks(fabric: Fabric, shape: str, options: _Options) -> str:
    """Racks x hosts x ranks: a switch per rack, each with one uplink to a core switch."""
    racks, hosts, ranks = _dims(options, shape, 3, 3, "2x4x8 (racks x hosts x ranks)")
    rate = options.rate("net", fb.NET_BANDWIDTH)
    if "uplink" in options.given and "oversub" in options.given:
        raise TopologyError(f"{options.text!r}: options uplink and oversub say the same thing; give one of them")
    uplink = options.rate("uplink", rate * hosts / options.ratio("oversub", 1.0))
    members = [[_host(fabric, options, f"h{r * hosts + h}", ranks, rack=f"rack{r}") for h in range(hosts)] for r in range(racks)]
    core = fabric.switch("core") if racks > 1 else None
    for rack, names in enumerate(members):
        switch = fabric.switch(f"rack{rack}")
        for host in names:
            _plug(fabric, options, host, "eth0", rate, switch)
        if core is not None:
            fabric.link(switch, core, uplink, options.time("latency", fb.NET_LATENCY), "net")
    return options.choice("placement", fb.PLACEMENTS)


def _fattree(fabric: Fabric, shape: str, options: _Options) -> str:
    """``k=4``: the three-level tree of k-port switches with k**3/4 hosts; ``2x4x8``: the same as ``racks:2x4x8``."""
    if "k" not in options.given:
        return _racks(fabric, shape, options)
    k = options.count("k", 4)
    ranks = options.count("ranks", 1)
    if shape or k % 2 or "uplink" in options.given or "oversub" in options.given:
        raise TopologyError(f"{options.text!r}: expected an even k without shape, uplink or oversub, or racks x hosts x ranks")
    half = k // 2
    _limit(options, k * half * half * ranks)
    rate, latency = options.rate("net", fb.NET_BANDWIDTH), options.time("latency", fb.NET_LATENCY)
    names = [_host(fabric, options, f"h{index}", ranks, rack=f"pod{index // half**2}") for index in range(k * half * half)]
    cores = [fabric.switch(f"core{index}") for index in range(half * half)]
    for pod in range(k):
        edges = [fabric.switch(f"edge{pod}.{index}") for index in range(half)]
        aggregates = [fabric.switch(f"agg{pod}.{index}") for index in range(half)]
        for index, edge in enumerate(edges):
            for host in names[(pod * half + index) * half :][:half]:
                _plug(fabric, options, host, "eth0", rate, edge)
            for aggregate in aggregates:
                fabric.link(edge, aggregate, rate, latency, "net")
        for index, aggregate in enumerate(aggregates):
            for core in cores[index * half :][:half]:
                fabric.link(aggregate, core, rate, latency, "net")
    return options.choice("placement", fb.PLACEMENTS)


def _grid(fabric: Fabric, options: _Options, dims: Sequence[int], wrap: bool) -> str:
    """Nodes on a grid, joined to their neighbours; a dimension of two nodes has one link, not two."""
    if "ranks" not in options.given:
        for key in _HOST:
            if key in options.given:
                raise TopologyError(f"{options.text!r}: option {key} needs ranks=N; without it every node is one bare accelerator")
    per_node = options.count("ranks", 1)
    _limit(options, math.prod(dims) * per_node)
    rate, latency = options.rate("net", fb.NET_BANDWIDTH), options.time("latency", fb.NET_LATENCY)
    cells = list(itertools.product(*(range(size) for size in dims)))
    index = {cell: number for number, cell in enumerate(cells)}
    cables = []
    for cell in cells:
        for axis, size in enumerate(dims):
            step = cell[axis] + 1
            if step < size or (wrap and size > 2):
                cables.append((index[cell], index[(*cell[:axis], step % size, *cell[axis + 1 :])]))
    if "ranks" in options.given:
        pcie = options.optional_rate("pcie")
        names = [_host(fabric, options, f"h{number}", per_node, cell=cell) for number, cell in enumerate(cells)]
        ports = [0] * len(cells)
        for a, b in cables:
            ends = []
            for node in (a, b):
                ends.append(fabric.nic(names[node], f"eth{ports[node]}", rate, pcie=pcie))
                ports[node] += 1
            fabric.link(ends[0], ends[1], rate, latency, "net")
    else:
        slots = [fabric.bare_slot(fabric.host(f"h{number}", attrs={"cell": list(cell)})) for number, cell in enumerate(cells)]
        for a, b in cables:
            fabric.link(slots[a], slots[b], rate, latency, "net")
    return options.choice("placement", fb.PLACEMENTS[:2])


def _ring(fabric: Fabric, shape: str, options: _Options) -> str:
    return _grid(fabric, options, _dims(options, shape, 1, 1, "8"), wrap=True)


def _line(fabric: Fabric, shape: str, options: _Options) -> str:
    return _grid(fabric, options, _dims(options, shape, 1, 1, "8"), wrap=False)


def _torus(fabric: Fabric, shape: str, options: _Options) -> str:
    return _grid(fabric, options, _dims(options, shape, 2, 3, "4x4 or 4x4x4"), wrap=True)


def _mesh(fabric: Fabric, shape: str, options: _Options) -> str:
    return _grid(fabric, options, _dims(options, shape, 2, 3, "3x5 or 3x3x3"), wrap=False)


@dataclass(frozen=True)
class _Box:
    """A machine of eight accelerators. Rates in bytes/s per direction."""

    nvlink: float
    """Per accelerator into the NVSwitch, or per single NVLink where there is none."""
    nics: int
    nic: float
    pcie: float
    cube_mesh: tuple[tuple[int, int, int], ...] = ()


_NVLINK_LATENCY = 0.35e-6
_NIC_LATENCY = 1e-6
# Pairs (a, b) with their number of NVLinks, as nvidia-smi topo -m prints them for a DGX-1 with V100s.
_CUBE_MESH = (
    *((0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2)),
    *((2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)),
)
_BOXES = {
    "dgx-a100": _Box(nvlink=300e9, nics=8, nic=25e9, pcie=24e9),
    "dgx-h100": _Box(nvlink=450e9, nics=8, nic=50e9, pcie=48e9),
    "dgx-1v": _Box(nvlink=20e9, nics=4, nic=12.5e9, pcie=12e9, cube_mesh=_CUBE_MESH),
}


def _dgx(model: str) -> Callable[[Fabric, str, _Options], str]:
    box = _BOXES[model]

    def make(fabric: Fabric, shape: str, options: _Options) -> str:
        """``N`` machines of eight accelerators; one machine alone has no NICs.

        Accelerators reach their NIC through a PCIe switch of their own (two share one with one NIC in a DGX-1V). The PCIe
        paths between accelerators and to the CPUs are left out: NVLink is an order faster, and NCCL does not use them either.
        PCIe counts as at least as fast as its NIC, since NCCL's figure for it (24 GB/s for 16 lanes of generation 4) is cautious.
        """
        (count,) = _dims(options, shape, 1, 1, "2 (machines)")
        _limit(options, count * 8)
        nvlink, rate = options.rate("nvlink", box.nvlink), options.rate("net", box.nic)
        pcie, latency = max(options.rate("pcie", box.pcie), rate), options.time("latency", _NIC_LATENCY)
        gpus = []
        for index in range(count):
            host = fabric.host(f"h{index}", attrs={"model": model})
            gpus.append([fabric.bare_slot(host, {"accelerator": model}) for _ in range(8)])
            if not box.cube_mesh:
                nvswitch = fabric.switch(f"{host}.nvswitch", host)
                for gpu in gpus[-1]:
                    fabric.link(gpu, nvswitch, nvlink, _NVLINK_LATENCY, "nvlink")
            for a, b, lanes in box.cube_mesh:
                fabric.link(gpus[-1][a], gpus[-1][b], nvlink * lanes, 2 * _NVLINK_LATENCY, "nvlink", attrs={"lanes": lanes})
        if count > 1:
            rails = options.choice("fabric", ("switch", "rails")) == "rails"
            switches = [fabric.switch(f"ib{nic}") for nic in range(box.nics if rails else 1)]
            for index, slots in enumerate(gpus):
                host = f"h{index}"
                for nic in range(box.nics):
                    pci = fabric.add(f"{host}.pcie{nic}", VertexKind.PCIE, host)
                    for gpu in slots[nic * 8 // box.nics :][: 8 // box.nics]:
                        fabric.link(gpu, pci, pcie, fb.PCIE_LATENCY, "pcie")
                    port = fabric.nic(host, f"ib{nic}", rate, hub=pci, pcie=pcie)
                    fabric.link(port, switches[nic if rails else 0], rate, latency, "net")
        return options.choice("placement", fb.PLACEMENTS[:2])

    return make


_GRID_OPTIONS = (*_NETWORK, "ranks", *_HOST, "placement")
_DGX_OPTIONS = ("nvlink", "net", "latency", "pcie", "fabric", "placement")

GENERATORS: dict[str, _Generator] = {
    "ring": _Generator(_ring, "8", _GRID_OPTIONS),
    "line": _Generator(_line, "8", _GRID_OPTIONS),
    "torus": _Generator(_torus, "4x4", _GRID_OPTIONS),
    "mesh": _Generator(_mesh, "3x5", _GRID_OPTIONS),
    "cluster": _Generator(_cluster, "4x2", (*_NETWORK, *_HOST, "nics", "placement")),
    "rails": _Generator(_rails, "4x2", (*_NETWORK, *_HOST, "nics", "placement")),
    "racks": _Generator(_racks, "2x4x8", (*_NETWORK, *_HOST, "uplink", "oversub", "placement")),
    "fattree": _Generator(_fattree, "k=4", (*_NETWORK, *_HOST, "k", "ranks", "uplink", "oversub", "placement")),
    "dgx-1v": _Generator(_dgx("dgx-1v"), "1", _DGX_OPTIONS),
    "dgx-a100": _Generator(_dgx("dgx-a100"), "2", _DGX_OPTIONS),
    "dgx-h100": _Generator(_dgx("dgx-h100"), "4", _DGX_OPTIONS),
}
