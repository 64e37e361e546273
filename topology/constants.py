"""NCCL's figures for links of which a description gives only a class: bytes/s per direction, and seconds.

Sources: NCCL 2.30 ``src/graph/topo.h`` and ``topo.cc`` (``kvDictPciGen``, ``ncclTopoNVLinkBw``, ``ncclTopoGetInterCpuBw``), RCCL of
October 2024 ``src/graph/topo.h`` (xGMI). They are what NCCL expects to reach, below the signalling rates. NCCL has no latencies
per link; those here are this project's.
"""

from __future__ import annotations

import re

LOCAL = 5000e9
"""Inside one device: no limit that matters."""

NVLINK_LATENCY = 0.35e-6
"""Between an accelerator and an NVSwitch; twice that between two accelerators that are wired to each other."""
C2C_LATENCY = 0.4e-6
"""Between an accelerator and its processor: less than over PCIe, but past it no better than over an NVSwitch."""

GRACE_C2C = 10 * 44.712e9
"""NVLink-C2C of a Grace processor as NCCL finds it: 10 links, to one accelerator (GH200) or five to each of two (GB200, GB300)."""

PCIE_LANES = 16
"""Where a width is 0 or not said."""
PCIE_GEN3 = 60
"""Per lane in 100 Mbit/s, where a speed is not said or not known."""

# NCCL compares by prefix, and in this order: "8 GT/s" and "32 GT/s PCIe/s" are known, "16.0 GT/s" without PCIe is not.
_PCIE_LANE = {
    "2.5 GT/s": 15,
    "5 GT/s": 30,
    "8 GT/s": 60,
    "16 GT/s": 120,
    "32 GT/s": 240,
    "5.0 GT/s PCIe": 30,
    "8.0 GT/s PCIe": 60,
    "16.0 GT/s PCIe": 120,
    "32.0 GT/s PCIe": 240,
    "64.0 GT/s PCIe": 480,
}
_NVLINK = ((100, 40.1e9), (90, 20.6e9), (87, 20e9), (86, 12e9), (70, 20e9), (60, 18e9))
_NVLINK_UNKNOWN = 20e9
_XGMI = (("gfx90a", 36e9), ("gfx94", 48e9))
_XGMI_VEGA = 24e9
_GCN = {"906": "gfx906", "908": "gfx908", "910": "gfx90a", "940": "gfx940", "941": "gfx941", "942": "gfx942"}
_INTEL = ((0xCF, 40e9), (0x8F, 22e9), (0x55, 10e9), (0, 6e9))
_ZHAOXIN = ("CentaurHauls", "  Shanghai  ")


def pcie_lane(speed: str) -> int | None:
    """A lane's rate in 100 Mbit/s for a ``link_speed`` of sysfs such as ``16.0 GT/s PCIe``; None where NCCL does not know it."""
    return next((rate for prefix, rate in _PCIE_LANE.items() if speed.startswith(prefix)), None)


def pcie(lane: int | None, width: int) -> float:
    """A PCIe link of ``width`` lanes (0: 16), each of ``lane`` as :func:`pcie_lane` gives it (None: generation 3): 16 x 60 is 12 GB/s."""
    return (width or PCIE_LANES) * (PCIE_GEN3 if lane is None else lane) / 80 * 1e9


def is_old_pcie(rate: float) -> bool:
    """Whether ``rate`` bytes/s, as hwloc has it, is that of a link of generation 1 or 2 (2 or 4 Gbit/s of payload per lane, 8b/10b)."""
    lanes = rate / 0.25e9
    return 1 <= lanes <= 64 and abs(lanes - round(lanes)) < 1e-3 and round(lanes).bit_count() == 1


def nvlink(sm: int | None) -> float:
    """One NVLink of a GPU of compute capability ``sm`` (80 for 8.0)."""
    return next((rate for least, rate in _NVLINK if sm is not None and sm >= least), _NVLINK_UNKNOWN)


def gcn_name(gcn: str) -> str:
    """``gfx90a`` for RCCL's older ``910``, and any newer name as it is."""
    return _GCN.get(gcn, gcn)


def xgmi(gcn: str) -> float:
    """One xGMI link of an AMD GPU, by RCCL's name or number of its architecture."""
    return next((rate for prefix, rate in _XGMI if gcn_name(gcn).startswith(prefix)), _XGMI_VEGA)


def cpu_to_cpu(arch: str, vendor: str, family: int, model: int) -> float | None:
    """Between two NUMA nodes; None where NCCL has no figure for the processor."""
    if arch.startswith("ppc64"):
        return 32e9
    if arch in ("arm64", "aarch64"):
        return 6e9
    if arch != "x86_64":
        return None
    if vendor == "GenuineIntel":
        return next(rate for least, rate in _INTEL if least == 0 or (family == 6 and model >= least))
    if vendor == "AuthenticAMD":
        return 16e9
    if vendor in _ZHAOXIN or vendor == "Shanghai":
        return 9e9 if (family, model) == (7, 0x5B) else 6e9
    return None


def net(mbits: float) -> float:
    """A NIC's port of ``mbits`` Mbit/s; those that say nothing (0 or -1) count as 10 Gbit/s."""
    return (mbits if mbits > 0 else 10000) / 8000 * 1e9


def c2c(megabytes: float, count: int) -> float:
    """``count`` chip-to-chip links of ``megabytes`` MB/s each."""
    return megabytes * count * 1e6


def is_accelerator(pci_class: str) -> bool:
    """PCI class 0x03 (display and 3D controllers) or 0x12 (processing accelerators), written with or without ``0x``."""
    return re.match(r"(0x)?(03|12)", pci_class) is not None


def is_network(pci_class: str) -> bool:
    """PCI class 0x02 (network controllers)."""
    return re.match(r"(0x)?02", pci_class) is not None
