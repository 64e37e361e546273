"""RDMA devices and their ports as /sys/class/infiniband shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from topoccl.topology.discovery import pci, sysfs


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port.

    Attributes:
        device, port: such as ``mlx5_0`` and 1.
        rate: bytes/s, None where unknown.
        active: whether the link is up.
        layer: ``InfiniBand`` or ``Ethernet``.
        guid: of the device; two ports may share it.
        address: PCI address, empty where it has none.
        interface: the network interface that runs over the port, empty where none is known.
    """

    device: str
    port: int
    rate: float | None
    active: bool
    layer: str
    guid: str
    address: str
    interface: str

    @property
    def name(self) -> str:
        return f"{self.device}:{self.port}"


def read_ports(root: Path) -> tuple[RdmaPort, ...]:
    """All ports, by name."""
    found = []
    for device in sysfs.names(root / "sys/class/infiniband"):
        folder = root / "sys/class/infiniband" / device
        address = (*pci.chain(folder / "device"), "")[0]
        for port in sysfs.names(folder / "ports"):
            if port.isascii() and port.isdigit():
                found.append(_port(folder, device, int(port), address))
    return tuple(sorted(found, key=lambda one: (one.device, one.port)))


def _port(folder: Path, device: str, port: int, address: str) -> RdmaPort:
    at = folder / "ports" / str(port)
    rate = re.match(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec", sysfs.read(at / "rate"))
    gigabits = float(rate[1]) if rate else 0.0
    return RdmaPort(
        device=device,
        port=port,
        rate=gigabits * 1e9 / 8 or None,
        active=sysfs.read(at / "state").endswith("ACTIVE"),
        layer=sysfs.read(at / "link_layer"),
        guid=sysfs.read(folder / "node_guid"),
        address=address,
        interface=sysfs.read(at / "gid_attrs/ndevs/0") or _interface(folder / "device/net", port),
    )


def _interface(folder: Path, port: int) -> str:
    """The interface of the same function whose ``dev_port`` counts to this port (from 0 where RDMA counts from 1)."""
    for name in sysfs.names(folder):
        if (sysfs.number(folder / name / "dev_port") or 0) == port - 1:
            return name
    return ""
