"""The PCI tree as /sys shows it: who hangs below whom, and how wide and fast each link is and could be."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from topoccl.topology import constants
from topoccl.topology.discovery import sysfs
from topoccl.topology.discovery.facts import PciHop

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)

BRIDGE = 0x0604


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One function of a PCI device.

    Attributes:
        address: such as ``0000:3b:00.0``.
        parent: the address of the bridge above it, None below a root complex.
        kind: class and subclass, such as 0x0604 for a bridge.
        vendor, device: identity numbers, 0 where unknown.
        numa: the NUMA node it hangs on, None where unknown.
        speed, width: of the link above it now, as the kernel writes them (``16.0 GT/s PCIe``, ``8``); empty where unknown.
        max_speed, max_width: what the device could do.
    """

    address: str
    parent: str | None
    kind: int
    vendor: int = 0
    device: int = 0
    numa: int | None = None
    speed: str = ""
    width: str = ""
    max_speed: str = ""
    max_width: str = ""

    @property
    def slot(self) -> str:
        """The address without the function: ports of one card share its link."""
        return self.address.partition(".")[0]


def chain(folder: Path | str) -> tuple[str, ...]:
    """The PCI addresses on the way up from a device's folder (links are followed): the device first, then the bridges above it."""
    return tuple(part for part in reversed(os.path.realpath(folder).split("/")) if _ADDRESS.fullmatch(part))


def read_device(root: Path, address: str) -> PciDevice:
    """One device by its address; unknown ones are all unknown."""
    folder = root / "sys/bus/pci/devices" / address
    above = chain(folder)[1:]
    numa = sysfs.number(folder / "numa_node")
    return PciDevice(
        address=address,
        parent=above[0] if above else None,
        kind=(sysfs.hexadecimal(folder / "class") or 0) >> 8,
        vendor=sysfs.hexadecimal(folder / "vendor") or 0,
        device=sysfs.hexadecimal(folder / "device") or 0,
        numa=numa if numa is not None and numa >= 0 else None,
        speed=sysfs.read(folder / "current_link_speed"),
        width=sysfs.read(folder / "current_link_width"),
        max_speed=sysfs.read(folder / "max_link_speed"),
        max_width=sysfs.read(folder / "max_link_width"),
    )


def hops(way: Sequence[PciDevice]) -> tuple[PciHop, ...]:
    """The links on a way up (the device first), by NCCL's rules: a link can do what the lesser of its two ends can."""
    found = []
    for position, device in enumerate(way):
        now, best = _rate(device.speed, device.width), _rate(device.max_speed, device.max_width)
        above = way[position + 1] if position + 1 < len(way) else None
        port = _rate(above.max_speed, above.max_width) if above is not None else None
        below = way[position - 1] if position else None
        lane = constants.pcie_lane(device.speed)
        faster = below is not None and (constants.pcie_lane(below.speed) or 0) >= constants.PCIE_GEN3
        false = device.kind == BRIDGE and lane is not None and lane < constants.PCIE_GEN3 and faster
        if best is not None and port is not None:
            best = min(best, port)
        found.append(PciHop(device.address, None if false else now, None if false else best, false))
    return tuple(found)


def _rate(speed: str, width: str) -> float | None:
    """Bytes/s, None where the kernel does not know (virtual devices say nothing, or a width of 0 or 255)."""
    lanes = int(width) if re.fullmatch(r"[0-9]{1,3}", width) else 0
    lane = constants.pcie_lane(speed)
    return constants.pcie(lane, lanes) if lane is not None and 0 < lanes <= 32 else None


def read_tree(root: Path) -> dict[str, PciDevice]:
    """All devices by address."""
    found = (read_device(root, name) for name in sysfs.names(root / "sys/bus/pci/devices") if _ADDRESS.fullmatch(name))
    return {device.address: device for device in found}


def way_up(tree: Mapping[str, PciDevice], address: str) -> list[PciDevice]:
    """The device and the bridges above it, as far as the tree knows them."""
    found: list[PciDevice] = []
    at: str | None = address
    while at is not None and at in tree and len(found) < 64:
        found.append(tree[at])
        at = tree[at].parent
    return found
