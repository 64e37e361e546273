"""Processors, caches and NUMA nodes as /proc and /sys show them."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from topoccl.topology.discovery import sysfs
from topoccl.topology.discovery.facts import NumaFacts


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """One cache: its level, ``data``, ``instruction`` or ``unified``, its size in bytes and the CPUs behind it."""

    level: int
    kind: str
    size: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CpuModel:
    """What the processors are: such as ``x86_64``, ``AuthenticAMD``, 25, 17, ``AMD EPYC 9354``; 0 and empty where unknown."""

    arch: str
    vendor: str
    family: int
    model: int
    name: str


def read_numa(root: Path) -> tuple[NumaFacts, ...]:
    """Nodes with CPUs; numbers need not be contiguous, and nodes of memory alone are left out."""
    nodes = root / "sys/devices/system/node"
    online = sysfs.cpu_list(sysfs.read(nodes / "online"))
    cpus = {node: sysfs.cpu_list(sysfs.read(nodes / f"node{node}/cpulist")) for node in online}
    found = []
    for node in online:
        if cpus[node]:
            row = sysfs.read(nodes / f"node{node}/distance").split()
            known = len(row) == len(online) and all(text.isascii() and text.isdigit() and len(text) < 6 for text in row)
            distances = tuple(int(text) for text, other in zip(row, online, strict=True) if cpus[other]) if known else ()
            found.append(NumaFacts(node, cpus[node], distances))
    return tuple(found)


def read_caches(root: Path, cpus: Iterable[int]) -> tuple[CacheFacts, ...]:
    """The caches of ``cpus``, each once, by level."""
    found: dict[tuple[int, str, tuple[int, ...]], CacheFacts] = {}
    covered: dict[str, set[int]] = {}
    for cpu in sorted(cpus):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/cache"
        for index in sysfs.names(folder):
            if not index.startswith("index") or cpu in covered.setdefault(index, set()):
                continue
            level, kind = sysfs.number(folder / index / "level"), sysfs.read(folder / index / "type").lower()
            size = re.fullmatch(r"(\d{1,9})([KMG]?)", sysfs.read(folder / index / "size"))
            shared = sysfs.cpu_list(sysfs.read(folder / index / "shared_cpu_list")) or (cpu,)
            covered[index].update(shared)
            if level is not None and size is not None:
                nbytes = int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]
                found.setdefault((level, kind, shared), CacheFacts(level, kind, nbytes, shared))
    return tuple(found[key] for key in sorted(found))


def read_model(root: Path) -> CpuModel:
    """The model of the first processor in /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in sysfs.read(root / "proc/cpuinfo").split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    return CpuModel(
        arch=platform.machine(),
        vendor=fields.get("vendor_id") or fields.get("cpu implementer", ""),
        family=_whole(fields.get("cpu family", "")),
        model=_whole(fields.get("model", "")),
        name=fields.get("model name") or fields.get("cpu", ""),
    )


def _whole(text: str) -> int:
    return int(text) if re.fullmatch(r"\d{1,6}", text) else 0
