"""The command ``topoccl``. Each subcommand is one module with ``add_parser(subparsers)`` and ``run(args) -> int``."""

from __future__ import annotations

import argparse
from typing import Any, Protocol


class Subparsers(Protocol):
    """What ``add_parser`` of a subcommand is handed (argparse's own type is private)."""

    def add_parser(self, name: str, **kwargs: Any) -> argparse.ArgumentParser: ...
