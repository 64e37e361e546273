"""Reads one host's facts from /proc, /sys and the kernel. Whatever cannot be read is left unknown; nothing here raises for it."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from topoccl.topology.discovery import pci, rdma, sysfs
from topoccl.topology.discovery.facts import HostFacts, NicFacts, PciHop
from topoccl.topology.discovery.processors import read_numa

_SIOCGIFFLAGS, _SIOCGIFADDR, _SIOCGIFNETMASK = 0x8913, 0x8915, 0x891B
_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40


def usual_interface(name: str) -> bool:
    """The filter used when nobody gives one: everything but loopback and docker's bridge, as NCCL does."""
    return not name.startswith(("lo", "docker"))


def discover_host(interfaces: Callable[[str], bool] = usual_interface, root: Path = Path("/")) -> HostFacts:
    """What this process sees of its host; takes a few milliseconds.

    Args:
        interfaces: which network interfaces to look at, by name.
        root: where /proc, /sys and /dev are looked for (tests give a copy).
    """
    affinity = tuple(sorted(os.sched_getaffinity(0)))
    shm_size, shm_free = _shm(root / "dev/shm")
    return HostFacts(
        hostname=socket.gethostname(),
        boot_id=sysfs.read(root / "proc/sys/kernel/random/boot_id"),
        network_namespace=_inode(root / "proc/self/ns/net"),
        affinity=affinity,
        cpu_quota=_cpu_quota(root),
        packages=_packages(root / "sys/devices/system/cpu", affinity),
        numa=read_numa(root),
        nics=tuple(_nics(interfaces, root)),
        shm_size=shm_size,
        shm_free=shm_free,
    )


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _shm(path: Path) -> tuple[int | None, int | None]:
    try:
        space = os.statvfs(path)
    except OSError:
        return None, None
    return space.f_frsize * space.f_blocks, space.f_frsize * space.f_bavail


def _packages(cpus: Path, affinity: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    packages: dict[int, list[int]] = {}
    for cpu in affinity:
        packages.setdefault(sysfs.number(cpus / f"cpu{cpu}/topology/physical_package_id") or 0, []).append(cpu)
    return tuple(tuple(members) for _, members in sorted(packages.items()))


def _cpu_quota(root: Path) -> float | None:
    """The tightest limit of the process's cgroup and those above it, both cgroup versions."""
    limits = []
    for line in sysfs.read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("" if not controllers else "cpu")
        for path in _upwards(top, group):
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            figures = " ".join(sysfs.read(path / file) for file in files)
            if (match := re.fullmatch(r"(\d{1,18}) ([1-9]\d{0,17})", figures)) is not None:
                limits.append(int(match[1]) / int(match[2]))
    return min(limits, default=None)


def _upwards(top: Path, group: str) -> Iterator[Path]:
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield top.joinpath(*parts[:depth])


def _nics(wanted: Callable[[str], bool], root: Path) -> Iterator[NicFacts]:
    """Interfaces by socket calls, which see this process's network namespace. /sys may show another: the index must agree."""
    inet6 = _inet6(root)
    ports = {port.interface: port for port in rdma.read_ports(root) if port.interface}
    known: dict[str, pci.PciDevice] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for index, name in sorted(socket.if_nameindex(), key=lambda pair: pair[1]):
            flags = _ioctl(probe, _SIOCGIFFLAGS, name)
            bits = struct.unpack_from("H", flags, 16)[0] if flags else 0
            if not wanted(name) or bits & _IFF_LOOPBACK:
                continue
            sys = root / "sys/class/net" / name
            shown = sysfs.number(sys / "ifindex") == index
            physical = shown and ((sys / "device").exists() or (sys / "bonding").exists())
            megabits = sysfs.number(sys / "speed") if physical else None  # what veth and the like say is made up
            numa = sysfs.number(sys / "device/numa_node") if shown else None
            port = ports.get(name) if shown else None
            speed = megabits * 1e6 / 8 if megabits is not None and megabits > 0 else None
            yield NicFacts(
                name=name,
                speed=speed or (port.rate if port is not None else None),
                up=bool(bits & _IFF_UP and bits & _IFF_RUNNING),
                physical=physical,
                numa=numa if numa is not None and numa >= 0 else None,
                addresses=(*_inet(probe, name), *inet6.get(name, ())),
                pci=_way_up(root, sys / "device", known) if shown else (),
                rdma=port.name if port is not None else "",
            )


def _way_up(root: Path, folder: Path, known: dict[str, pci.PciDevice]) -> tuple[PciHop, ...]:
    way = []
    for address in pci.chain(folder):
        if address not in known:
            known[address] = pci.read_device(root, address)
        way.append(known[address])
    return pci.hops(way)


def _ioctl(probe: socket.socket, request: int, name: str) -> bytes:
    try:
        return fcntl.ioctl(probe, request, struct.pack("16s240x", name.encode()[:15]))
    except OSError:
        return b""


def _inet(probe: socket.socket, name: str) -> tuple[str, ...]:
    address, mask = (_ioctl(probe, request, name)[20:24] for request in (_SIOCGIFADDR, _SIOCGIFNETMASK))
    if len(address) != 4 or len(mask) != 4:
        return ()
    ip = ipaddress.IPv4Address(address)
    return () if ip.is_loopback or ip.is_link_local else (f"{ip}/{int.from_bytes(mask).bit_count()}",)


def _inet6(root: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in sysfs.read(root / "proc/self/net/if_inet6").splitlines():
        fields = line.split()
        if len(fields) == 6 and re.fullmatch("[0-9a-f]{32}", fields[0]) and re.fullmatch("[0-9a-f]{2}", fields[2]):
            ip = ipaddress.IPv6Address(bytes.fromhex(fields[0]))
            if not (ip.is_loopback or ip.is_link_local):
                found.setdefault(fields[5], []).append(f"{ip}/{int(fields[2], 16)}")
    return {name: sorted(addresses) for name, addresses in found.items()}
