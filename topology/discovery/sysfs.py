"""Reading the kernel's small files: whatever cannot be read is empty or None, nothing raises."""

from __future__ import annotations

import os
import re
from pathlib import Path


def read(path: Path | str) -> str:
    """The text of a file, stripped; empty where it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 16).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def number(path: Path | str) -> int | None:
    """The decimal number in a file."""
    text = read(path)
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None


def hexadecimal(path: Path | str) -> int | None:
    """The number in a file as PCI writes it: ``0x10de``."""
    text = read(path)
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text) else None


def names(folder: Path | str) -> list[str]:
    """What is in a folder, sorted; nothing where there is none."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def cpu_list(text: str) -> tuple[int, ...]:
    """The kernel's list format: ``0-3,8,10-11``. Malformed parts are skipped."""
    cpus: set[int] = set()
    for part in text.replace("\n", "").split(","):
        if match := re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part):
            cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(cpus))
