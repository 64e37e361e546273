"""Puts devices on a host's PCIe: a vertex for every bridge where ways join, links in a row counted as one. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from topoccl.topology import fabric as fb
from topoccl.topology.discovery.facts import PciHop
from topoccl.topology.fabric import Fabric
from topoccl.topology.graph import VertexKind

_BRIDGE_LATENCY = 0.1e-6
_FACTS, _DEFAULT = {"source": "sysfs"}, {"source": "default"}


@dataclass(frozen=True, slots=True)
class Device:
    """A vertex that hangs on PCIe.

    Attributes:
        vertex: its id.
        hops: the way up, the device first; empty where unknown.
        hub: the host or NUMA vertex at the top.
        need: bytes/s that its link is taken to carry where nothing says how fast it is.
    """

    vertex: str
    hops: tuple[PciHop, ...]
    hub: str
    need: float


def plug(fabric: Fabric, host: str, devices: Sequence[Device]) -> None:
    """Links ``devices`` to their hubs. Functions of one card share the card's link."""
    below: dict[str, set[str]] = {}
    for device in devices:
        child = device.vertex
        for key in _keys(device):
            below.setdefault(key, set()).add(child)
            child = key
    made: set[str] = set()
    for device in devices:
        end, latency = device.vertex, fb.PCIE_LATENCY
        narrowest = math.inf
        for key, hop in zip(_keys(device), device.hops, strict=True):
            if len(below[key]) > 1:
                bridge = f"{host}.pci-{key}"
                _link(fabric, end, bridge, narrowest, device.need, latency)
                if bridge in made:
                    break
                made.add(bridge)
                fabric.add(bridge, VertexKind.PCIE, host, {"busid": hop.address, **_FACTS})
                end, latency, narrowest = bridge, _BRIDGE_LATENCY, math.inf
            if hop.rate is not None:
                narrowest = min(narrowest, hop.rate)
        else:
            _link(fabric, end, device.hub, narrowest, device.need, latency)


def _keys(device: Device) -> list[str]:
    """The card, then the bridges above it."""
    return [hop.address if position else hop.address.partition(".")[0] for position, hop in enumerate(device.hops)]


def _link(fabric: Fabric, a: str, b: str, narrowest: float, need: float, latency: float) -> None:
    known = math.isfinite(narrowest)
    fabric.link(a, b, narrowest if known else need, latency, "pcie", attrs=_FACTS if known else _DEFAULT)
