"""Which virtual clusters exist: one directory each under a common one, with ``state.json`` in it.

A process is known by its pid and its start time, so that a number that was given out again is not taken for it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from topoccl.bench.virtual import LabError

DEFAULT_DIRECTORY = Path("/run/topoccl-lab")
_FILE = "state.json"


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this machine; ``started`` is its start time in clock ticks since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """Raises ProcessLookupError if there is none."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError as error:
            raise ProcessLookupError(f"no process {pid}") from error
        return cls(pid, int(stat.rpartition(")")[2].split()[19]))

    @property
    def alive(self) -> bool:
        try:
            return Process.of(self.pid) == self
        except ProcessLookupError:
            return False

    def end(self, seconds: float) -> bool:
        """SIGTERM, and SIGKILL when that has not ended it; whether it is gone after at most twice ``seconds``."""
        for signum in (signal.SIGTERM, signal.SIGKILL):
            if self.alive:
                os.kill(self.pid, signum)
            deadline = time.monotonic() + seconds
            while self.alive and not _zombie(self.pid):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)
            else:
                return True
        return False


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@dataclass(frozen=True, slots=True)
class Record:
    """What is remembered of a cluster.

    Attributes:
        id: also the name of its directory.
        topology: file or expression it was made from, as given.
        persistent: made by ``up``, to last until ``down``; otherwise it belongs to ``owner`` (a ``run``).
        owner: the process that made it.
        holder: the process that holds the namespaces; None before there is one.
        pids: a process in each namespace, by name.
    """

    id: str
    topology: str
    persistent: bool
    owner: Process
    holder: Process | None
    pids: Mapping[str, int]

    @property
    def state(self) -> str:
        """``starting``, ``up``, ``running``, or ``leftover``: nobody will end it, or only its directory is left."""
        if self.holder is None:
            return "starting" if self.owner.alive else "leftover"
        if self.persistent and self.holder.alive:
            return "up"
        return "running" if self.owner.alive and self.holder.alive else "leftover"


def new_directory(base: Path) -> Path:
    """A fresh directory below ``base``, its name unlike those of all other clusters."""
    base.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="", dir=base))


def write(directory: Path, record: Record) -> None:
    partial = directory / f"{_FILE}.partial"
    partial.write_text(json.dumps(asdict(record)))
    partial.rename(directory / _FILE)


def records(base: Path) -> list[Record]:
    """All clusters, oldest first; one that is just being made is not among them yet."""
    found = []
    for file in base.glob(f"*/{_FILE}"):
        try:
            found.append((file.stat().st_mtime, _read(file)))
        except (FileNotFoundError, NotADirectoryError):
            continue  # just taken down
        except (ValueError, KeyError, TypeError) as error:
            raise LabError(f"{file} is not the state of a cluster ({error}); remove its directory") from None
    return [record for _, record in sorted(found, key=lambda pair: pair[0])]


def _read(file: Path) -> Record:
    fields = json.loads(file.read_text())
    for key in ("owner", "holder"):
        fields[key] = fields[key] and Process(**fields[key])
    return Record(**fields)


def remove(base: Path, record: Record) -> None:
    """End a cluster of any state: its processes, with them its namespaces, and its directory.

    Raises:
        LabError: its holder does not die.
    """
    if record.holder is not None and not record.holder.end(10):
        raise LabError(f"cluster {record.id}: its holder, process {record.holder.pid}, does not die")
    shutil.rmtree(base / record.id, ignore_errors=True)
