"""Fake machines for tests of discovery: trees of /proc and /sys, tools on a PATH, a stand-in for NVML."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_MODEL = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9354\n"


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def device(
    root: Path,
    way: Sequence[str],
    kind: str,
    *,
    vendor: str = "0x10de",
    numa: int = 0,
    link: tuple[str, str] = ("16.0 GT/s PCIe", "16"),
    best: tuple[str, str] | None = None,
) -> Path:
    """A PCI function below the bridges ``way[:-1]`` (the outermost first), as the kernel lays it out; returns its folder."""
    folder = root / "sys/devices" / f"pci{way[0][:7]}" / "/".join(way)
    folder.mkdir(parents=True, exist_ok=True)
    best = link if best is None else best
    write(
        folder,
        {
            "class": f"{kind}00\n",
            "vendor": f"{vendor}\n",
            "device": "0x2330\n",
            "numa_node": f"{numa}\n",
            "current_link_speed": f"{link[0]}\n",
            "current_link_width": f"{link[1]}\n",
            "max_link_speed": f"{best[0]}\n",
            "max_link_width": f"{best[1]}\n",
        },
    )
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    if not (bus / way[-1]).exists():
        (bus / way[-1]).symlink_to(os.path.relpath(folder, bus))
    return folder


def rdma(root: Path, folder: Path, name: str, rate: str, interface: str = "", state: str = "4: ACTIVE", layer: str = "InfiniBand") -> None:
    """An RDMA device with one port on a PCI function."""
    at = root / "sys/class/infiniband" / name
    write(at, {"node_guid": "b8ce:f603:00aa:0001\n", "ports/1/rate": f"{rate}\n", "ports/1/state": f"{state}\n"})
    write(at, {"ports/1/link_layer": f"{layer}\n"} | ({"ports/1/gid_attrs/ndevs/0": f"{interface}\n"} if interface else {}))
    (at / "device").symlink_to(os.path.relpath(folder, at))


def two_gpus_and_nics(root: Path) -> None:
    """Two NUMA nodes; on each a PCIe switch with a GPU and an RDMA NIC; the upstream port of node 1's switch claims generation 1."""
    write(
        root,
        {
            "proc/cpuinfo": f"processor: 0\n{_MODEL}\nprocessor: 1\n",
            "sys/devices/system/node/online": "0-1\n",
            "sys/devices/system/node/node0/cpulist": "0-63\n",
            "sys/devices/system/node/node0/distance": "10 32\n",
            "sys/devices/system/node/node1/cpulist": "64-127\n",
            "sys/devices/system/node/node1/distance": "32 10\n",
        },
    )
    for node, bus in ((0, "17"), (1, "97")):
        port = f"0000:{bus}:01.0"
        up, left, right = (f"0000:{int(bus, 16) + n:02x}:00.0" for n in (1, 2, 3))
        gpu, nic = f"0000:{int(bus, 16) + 4:02x}:00.0", f"0000:{int(bus, 16) + 5:02x}:00.0"
        device(root, [port], "0x0604", vendor="0x8086", numa=node, link=("32.0 GT/s PCIe", "16"))
        claims = ("2.5 GT/s PCIe", "16") if node else ("32.0 GT/s PCIe", "16")
        device(root, [port, up], "0x0604", vendor="0x1000", numa=node, link=claims)
        for below in (left, right):
            device(root, [port, up, below], "0x0604", vendor="0x1000", numa=node, link=("32.0 GT/s PCIe", "16"))
        device(root, [port, up, left, gpu], "0x0302", numa=node, link=("2.5 GT/s PCIe", "16"), best=("32.0 GT/s PCIe", "16"))
        card = device(root, [port, up, right, nic], "0x0207", vendor="0x15b3", numa=node, link=("32.0 GT/s PCIe", "16"))
        rdma(root, card, f"mlx5_{node}", "400 Gb/sec (4X NDR)")


def tool(folder: Path, name: str, script: str) -> Path:
    """An executable on the fake PATH ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class NvmlError(Exception):
    pass


class FakeNvml:
    """GPUs by PCI address, each with the ends of its NVLinks (an address, ``switch``, or None for an inactive one)."""

    def __init__(self, gpus: Mapping[str, Sequence[str | None]], name: str = "NVIDIA H100 80GB HBM3", sm: tuple[int, int] = (9, 0)) -> None:
        self.gpus = list(gpus.items())
        self.name = name
        self.sm = sm
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return self.name.encode()

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"0000{self.gpus[handle][0].upper()}".encode())

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self.sm

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        raise NvmlError("Not Supported")

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        links = self.gpus[handle][1]
        if link >= len(links):
            raise NvmlError("Invalid Argument")
        return int(links[link] is not None)

    def nvmlDeviceGetNvLinkVersion(self, handle: int, link: int) -> int:
        return 4

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return 2 if self.gpus[handle][1][link] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        return SimpleNamespace(busId=f"0000{self.gpus[handle][1][link]}".upper())
