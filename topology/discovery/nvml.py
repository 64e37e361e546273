"""NVIDIA's GPUs through NVML (the module ``pynvml`` of the package nvidia-ml-py), where both are installed."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from topoccl.topology.discovery.tools import Report

SECONDS = 10.0
"""How long NVML may take: a driver in trouble never answers."""
_MOST_LINKS = 36


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU as its driver shows it.

    Attributes:
        index: NVML's, in the order of PCI addresses.
        name, uuid: such as ``NVIDIA H100 80GB HBM3`` and ``GPU-...``; empty where unknown.
        address: PCI address as /sys writes it.
        sm: compute capability, 90 for 9.0; None where unknown.
        generation, width: of its PCIe link at best; None where unknown.
        peers: for each active NVLink the PCI address at its other end; ``switch`` for an NVSwitch; empty where NVML does not say.
        nvlink_version: of its links, None without any.
    """

    index: int
    name: str
    uuid: str
    address: str
    sm: int | None
    generation: int | None
    width: int | None
    peers: tuple[str, ...]
    nvlink_version: int | None


def read_gpus(*, report: Report, module: Any = None, seconds: float = SECONDS) -> tuple[GpuFacts, ...]:
    """All GPUs; none (and one reported line, unless NVML is not installed at all) where NVML fails or does not answer in time.

    Args:
        module: stands in for ``pynvml``.
    """
    if module is None:
        try:
            module = importlib.import_module("pynvml")
        except ImportError:
            return ()
    found: list[tuple[GpuFacts, ...]] = []
    problems: list[str] = []

    def work() -> None:
        try:
            module.nvmlInit()
        except Exception as error:
            if type(error).__name__ != "NVMLError_LibraryNotFound":  # the module without a driver is nothing to report
                problems.append(f"NVML: {error}; GPUs are not looked at")
            return
        try:
            found.append(tuple(_gpu(module, index) for index in range(module.nvmlDeviceGetCount())))
        except Exception as error:
            problems.append(f"NVML: {error}; GPUs are not looked at")
        finally:
            module.nvmlShutdown()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        problems.append(f"NVML does not answer within {seconds:g} s; GPUs are not looked at")
        found.clear()
    for problem in problems:
        report(problem)
    return found[0] if found else ()


def _gpu(nvml: Any, index: int) -> GpuFacts:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    capability = _try(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    peers, version = [], None
    for link in range(_MOST_LINKS):
        if _try(partial(nvml.nvmlDeviceGetNvLinkState, handle, link)) == 1:
            peers.append(_peer(nvml, handle, link))
            version = version or _try(partial(nvml.nvmlDeviceGetNvLinkVersion, handle, link))
    return GpuFacts(
        index=index,
        name=_text(_try(lambda: nvml.nvmlDeviceGetName(handle))),
        uuid=_text(_try(lambda: nvml.nvmlDeviceGetUUID(handle))),
        address=_address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        sm=capability[0] * 10 + capability[1] if capability else None,
        generation=_try(lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        width=_try(lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        peers=tuple(peers),
        nvlink_version=version,
    )


def _peer(nvml: Any, handle: Any, link: int) -> str:
    kind = _try(lambda: nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))
    if kind == 2:  # NVML_NVLINK_DEVICE_TYPE_SWITCH
        return "switch"
    remote = _try(lambda: nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))
    return _address(_text(remote.busId)) if remote is not None else ""


def _try(call: Callable[[], Any]) -> Any:
    """What NVML answers, None where this GPU or driver cannot: each question may be unsupported."""
    try:
        return call()
    except Exception:
        return None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _address(text: str) -> str:
    """``00000000:3B:00.0`` as /sys writes it: ``0000:3b:00.0``."""
    domain, colon, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if colon and all(c in "0123456789abcdef" for c in domain) and domain else text.lower()
