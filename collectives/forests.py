"""Where forests are kept between runs: ``$XDG_CACHE_HOME/topoccl/forests``, by default below ``~/.cache``.

One small file each, written whole or not at all. Whatever is wrong with a file or the directory, the forest is made anew.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_MOST_BYTES = 64 << 20


class DiskStore:
    """A :class:`~topoccl.algorithms.forest.store.Store` of files in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> str | None:
        path = self.folder / key
        try:
            return path.read_text(encoding="utf-8") if path.stat().st_size <= _MOST_BYTES else None
        except (OSError, UnicodeDecodeError):
            return None

    def put(self, key: str, text: str) -> None:
        partial = self.folder / f"{key}.{os.getpid()}.tmp"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, self.folder / key)
        except OSError:
            with suppress(OSError):
                partial.unlink()


def keep_forests() -> None:
    """Keeps the forests of this process in the user's cache directory, if there is one."""
    from topoccl.algorithms.forest import keep_in

    given = os.environ.get("XDG_CACHE_HOME", "")
    with suppress(RuntimeError):  # no home
        base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"  # the specification: relative paths are to be ignored
        keep_in(DiskStore(base / "topoccl" / "forests"))
