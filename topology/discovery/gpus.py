"""GPUs and their NVLinks, as NVML shows them, as a graph of one host. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from topoccl.topology import constants
from topoccl.topology import fabric as fb
from topoccl.topology.discovery.nvml import GpuFacts
from topoccl.topology.fabric import Fabric
from topoccl.topology.graph import Topology, VertexKind


def gpu_topology(gpus: Sequence[GpuFacts], host: str) -> Topology:
    """One slot per GPU in NVML's order; NVLinks between GPUs added up, all NVSwitches one vertex, as in NCCL, with NCCL's figures.

    Links whose other end NVML does not say, or that lead to no GPU of this host, are counted in the host's ``notes``.
    """
    fabric = Fabric("NVML")
    lost = 0
    counts: dict[tuple[str, str], int] = {}
    slots = {gpu.address: f"{host}.gpu{gpu.index}" for gpu in gpus}
    for gpu in gpus:
        for peer, number in Counter(gpu.peers).items():
            if peer == "switch" or peer in slots:
                counts[gpu.address, peer] = number
            else:
                lost += number
    notes = [f"NVLinks that lead to no GPU of this host and are left out: {lost}"] if lost else []
    fabric.host(host, attrs={"notes": notes} if notes else {})
    for gpu in gpus:
        fabric.add(slots[gpu.address], VertexKind.SLOT, host, _attrs(gpu))
    nvswitch = fabric.switch(f"{host}.nvswitch", host) if any(peer == "switch" for _, peer in counts) else ""
    each = {gpu.address: constants.nvlink(gpu.sm) for gpu in gpus}
    for (address, peer), number in counts.items():
        rate = number * each[address]
        if peer == "switch":
            fabric.link(slots[address], nvswitch, rate, constants.NVLINK_LATENCY, "nvlink", attrs={"lanes": number})
        elif address < peer or (peer, address) not in counts:
            back = counts.get((peer, address), number) * each[peer]
            fabric.link(slots[address], slots[peer], rate, 2 * constants.NVLINK_LATENCY, "nvlink", back=back, attrs={"lanes": number})
    return fabric.build()


def _attrs(gpu: GpuFacts) -> dict[str, str]:
    named = {"accelerator": gpu.name or (f"sm{gpu.sm}" if gpu.sm else ""), "busid": gpu.address, "uuid": gpu.uuid}
    return {key: value for key, value in named.items() if value}


def pcie_rate(gpu: GpuFacts) -> float:
    """Of the GPU's PCIe link by generation and width, bytes/s."""
    lanes = {1: 15, 2: 30, 3: 60, 4: 120, 5: 240, 6: 480}
    return constants.pcie(lanes.get(gpu.generation or 0), gpu.width or 0)


def without_pcie(gpus: Sequence[GpuFacts], host: str) -> Topology:
    """The same GPUs on the host's hub: what is left where /sys does not show them (some virtual machines, Windows' Linux)."""
    fabric = Fabric("NVML")
    fabric.host(host)
    for gpu in gpus:
        slot = fabric.add(f"{host}.gpu{gpu.index}", VertexKind.SLOT, host, _attrs(gpu))
        fabric.link(slot, host, pcie_rate(gpu), fb.PCIE_LATENCY, "pcie", attrs={"source": "default"})
    return fabric.build()
