"""``python -m topoccl`` is ``topoccl``."""

from __future__ import annotations

import sys

from topoccl.collectives.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
