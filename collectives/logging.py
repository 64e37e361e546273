"""Lines for people, in NCCL's format: ``host:pid:rank [LEVEL] SUBSYS message``.

There is no global logger: whoever sets up a communicator makes a :class:`Logger` from its configuration and hands it on.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from enum import IntEnum, StrEnum
from types import TracebackType
from typing import Any, TextIO


class Level(IntEnum):
    """How much is said; each level includes those before it."""

    WARN = 1
    INFO = 2
    TRACE = 3


class Subsystem(StrEnum):
    """What a line is about. Warnings are printed whatever their subsystem."""

    INIT = "INIT"
    TOPO = "TOPO"
    TUNING = "TUNING"
    COLL = "COLL"
    P2P = "P2P"
    SHM = "SHM"
    NET = "NET"


DEFAULT_SUBSYSTEMS = frozenset({Subsystem.INIT, Subsystem.TOPO, Subsystem.TUNING})


def parse_subsystems(text: str) -> frozenset[Subsystem]:
    """``INIT,TUNING``, ``ALL``, or ``^COLL,P2P`` (all but those), in any case; empty text means the default set.

    Raises:
        ValueError: an unknown or empty name.
    """
    if not text.strip():
        return DEFAULT_SUBSYSTEMS
    exclude = text.strip().startswith("^")
    chosen: set[Subsystem] = set()
    for item in text.strip().removeprefix("^").split(","):
        name = item.strip().upper()
        if name == "ALL":
            chosen.update(Subsystem)
        elif name in Subsystem.__members__:
            chosen.add(Subsystem(name))
        else:
            raise ValueError(f"unknown subsystem {item.strip()!r}")
    return frozenset(Subsystem) - chosen if exclude else frozenset(chosen)


class Logger:
    """Writes lines to ``stream``, or to a file named by ``pattern`` that is created with the first line.

    Messages are formatted with ``%`` and only when they are printed. All methods may be called from several threads.

    Args:
        level: lines above this level are dropped.
        subsystems: lines of other subsystems are dropped, warnings excepted.
        pattern: a file name in which ``%h`` is the host name, ``%p`` the process id and ``%%`` a percent sign; None writes to
            ``stream``.
        rank: this process's rank, None (printed as ``-``) while it is not known.
        host: the host name; by default this host's, up to the first dot.
        stream: by default what ``sys.stderr`` is when a line is printed.
    """

    def __init__(
        self,
        level: Level = Level.WARN,
        subsystems: Collection[Subsystem] = DEFAULT_SUBSYSTEMS,
        pattern: str | None = None,
        *,
        rank: int | None = None,
        host: str | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self.level = level
        self.subsystems = frozenset(subsystems)
        self.rank = rank
        self.host = host if host is not None else socket.gethostname().partition(".")[0]
        self._pattern = pattern
        self._stream = stream
        self._file: TextIO | None = None
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def enabled(self, level: Level, subsystem: Subsystem) -> bool:
        """Whether such a line would be printed; ask it before costly preparation."""
        return level <= self.level and (level is Level.WARN or subsystem in self.subsystems)

    def warn(self, subsystem: Subsystem, message: str, *args: Any) -> None:
        self._log(Level.WARN, subsystem, message, args)

    def warn_once(self, key: str, subsystem: Subsystem, message: str, *args: Any) -> None:
        """Like :meth:`warn`, but only the first time this logger meets ``key``."""
        with self._lock:
            if key in self._said:
                return
            self._said.add(key)
        self._log(Level.WARN, subsystem, message, args)

    def info(self, subsystem: Subsystem, message: str, *args: Any) -> None:
        self._log(Level.INFO, subsystem, message, args)

    def trace(self, subsystem: Subsystem, message: str, *args: Any) -> None:
        self._log(Level.TRACE, subsystem, message, args)

    def _log(self, level: Level, subsystem: Subsystem, message: str, args: tuple[Any, ...]) -> None:
        if not self.enabled(level, subsystem):
            return
        rank = "-" if self.rank is None else self.rank
        head = f"{self.host}:{os.getpid()}:{rank} [{level.name}] {subsystem}"
        text = message % args if args else message
        # One write per message, so that lines of several processes on one terminal stay whole.
        lines = "".join(f"{head} {line}\n" for line in text.splitlines() or [""])
        with self._lock:
            if self._pattern is not None:
                try:
                    self._write_to_file(self._pattern, lines)
                    return
                except OSError as error:
                    name, self._pattern = self.file_name(self._pattern), None
                    lines = f"{head}: lines cannot be written to {name!r} ({error.strerror}); they go on here\n{lines}"
            stream = self._stream if self._stream is not None else sys.stderr
            with suppress(OSError, ValueError):  # nobody can be told, and no call shall fail for it
                if stream is not None:
                    stream.write(lines)
                    stream.flush()

    def _write_to_file(self, pattern: str, lines: str) -> None:
        if self._file is None:
            self._file = open(self.file_name(pattern), "a", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._file.write(lines)
        self._file.flush()

    def file_name(self, pattern: str) -> str:
        """``pattern`` with this logger's host name and process id filled in."""
        values = {"h": self.host, "p": str(os.getpid()), "%": "%"}
        return re.sub("%([hp%])", lambda match: values[match[1]], pattern)

    def close(self) -> None:
        """Closes the file, if one was opened; the next line would open it again. Safe to call twice."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def __enter__(self) -> Logger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
